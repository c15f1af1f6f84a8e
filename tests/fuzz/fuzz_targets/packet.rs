//! Packets from the wire: see `hca_tests::fuzz::packet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::packet(data));
