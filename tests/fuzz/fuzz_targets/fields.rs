//! Commands and registers by their fields: see `hca_tests::fuzz::fields`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::fields(data));
