//! Entries of flow tables that drivers write: see `hca_tests::fuzz::entries`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::entries(data));
