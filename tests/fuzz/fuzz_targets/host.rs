//! Hosts at PCI Express links: see `hca_tests::fuzz::host`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::host(data));
