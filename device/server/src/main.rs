//! softhca
fn main() {}
