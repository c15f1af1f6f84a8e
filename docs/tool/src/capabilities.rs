//! What the adapter reports as its capabilities.

use hca_firmware::Config;
use hca_firmware::profile::general_max;
use hca_spec::caps::{Atomic, General, General2, Odp};
use hca_spec::layout::Layout;
use hca_spec::{be32, be64};

use crate::source::row;

/// Every field of the capability groups that is not zero, at its maximum, with and without BlueFlame.
pub fn table() -> String {
    let (plain, blueflame) = (Config::default(), Config { blueflame: true, ..Config::default() });
    let mut out = String::from("| group | field | value |\n|---|---|---|\n");
    rows(&mut out, &General::LAYOUT, general_max(&plain).bytes(), general_max(&blueflame).bytes());
    let kind = &plain.personality.capabilities;
    for (layout, bytes) in [
        (&General2::LAYOUT, kind.general_2.bytes()),
        (&Atomic::LAYOUT, kind.atomic.bytes()),
        (&Odp::LAYOUT, kind.odp.bytes()),
    ] {
        rows(&mut out, layout, bytes, bytes);
    }
    out
}

fn rows(out: &mut String, layout: &Layout, plain: &[u8], blueflame: &[u8]) {
    for field in layout.fields {
        let value = |bytes: &[u8]| match field.hi {
            63 => be64(bytes, field.offset),
            hi => u64::from(be32(bytes, field.offset) << (31 - hi) >> (31 - hi + field.lo)),
        };
        let shown = match (value(plain), value(blueflame)) {
            (0, 0) => continue,
            (value, same) if value == same => format!("{value:#x}"),
            (value, other) => format!("{value:#x}; {other:#x} with `blueflame = true`"),
        };
        out.push_str(&row(&[layout.name, &format!("`{}`", field.name), &shown]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_fields() {
        let text = table();
        let general = general_max(&Config::default());
        let line = |field: &str, value: &str| format!("| General | `{field}` | {value} |\n");
        assert!(
            text.contains(&line("LOG_MAX_QP", &format!("{:#x}", general.get(General::LOG_MAX_QP)))),
            "{text}"
        );
        assert!(text.contains(&line("BF", "0x0; 0x1 with `blueflame = true`")), "{text}");
        assert!(!text.contains("`IB_VIRT`"), "zero");
    }
}
