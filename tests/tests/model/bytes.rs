//! The bring-up of the book, byte by byte, is what our driver does.

use hca_tests::bytes;

#[test]
fn the_page_is_what_the_driver_does() {
    let text = bytes::page().expect("the adapter takes all of it");
    let page = include_str!("../../../docs/src/bring-up-bytes.md");
    assert!(
        page.ends_with(&text),
        "docs/src/bring-up-bytes.md: what stands behind its first part is `hca-tests bytes` no more"
    );
}

#[test]
fn what_happens_without_each_command_is_on_its_page() {
    let table = bytes::left_out().expect("the whole is taken");
    let page = include_str!("../../../docs/src/conformance.md");
    assert!(
        page.ends_with(&table),
        "docs/src/conformance.md: its last table is `hca-tests bytes --left-out` no more"
    );
    // Each has an outcome, and there are some of both kinds.
    let rows = || table.lines().skip(2);
    let optional = rows().filter(|row| row.ends_with("it may be left out |")).count();
    assert!(optional > 5 && rows().count() > optional + 20, "{table}");
}
