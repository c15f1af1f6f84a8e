//! Commands for the firmware: see `hca_tests::fuzz::command_mailbox`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| hca_tests::fuzz::command_mailbox(data));
