//! Work queue entries, doorbell records and doorbells: see `hca_tests::fuzz::wqe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::wqe(data));
