//! Network links of SimBricks: see `hca_tests::fuzz::network_link`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::network_link(data));
