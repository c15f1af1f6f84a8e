//! Mistakes of drivers' authors are named, and those who do it right hear nothing.

use hca_tests::mistakes;

#[test]
fn every_mistake_is_named_and_no_twin_speaks() {
    let table = mistakes::run("");
    assert!(table.is_good() && table.is_complete(), "{table}");
}
