//! Mistakes of drivers' authors are named, and those who do it right hear nothing.

use hca_tests::mistakes;

#[test]
fn every_mistake_is_named_and_no_twin_speaks() {
    let table = mistakes::run("");
    assert!(table.is_good() && table.is_complete(), "{table}");
    let page = include_str!("../../../docs/src/mistakes.md");
    assert!(
        page.ends_with(&table.markdown()),
        "docs/src/mistakes.md: what stands behind its table's first line is `hca-tests mistakes --markdown` no more"
    );
}
