//! Register accesses: see `hca_tests::fuzz::mmio`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::mmio(data));
