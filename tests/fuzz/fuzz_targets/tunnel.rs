//! Tunnels: see `hca_tests::fuzz::tunnel`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::tunnel(data));
