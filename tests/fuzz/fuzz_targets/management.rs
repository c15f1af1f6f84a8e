//! Management datagrams: see `hca_tests::fuzz::management`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::management(data));
