//! hca-vm
fn main() {}
