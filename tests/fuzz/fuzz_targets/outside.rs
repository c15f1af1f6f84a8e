//! Streams of frames: see `hca_tests::fuzz::outside`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::outside(data));
