//! What the adapter reports as its capabilities.

use hca_firmware::profile::general_max;
use hca_firmware::{Config, Personality, PortKind};
use hca_spec::caps::{
    Atomic, DeviceMemory, EthernetOffloads, FlowTableProperties, FlowTables, General, General2, Odp, Qos,
    Roce,
};
use hca_spec::layout::Layout;
use hca_spec::{be32, be64};

use crate::source::row;

/// Every field of the capability groups that is not zero, at its maximum: of InfiniBand ports with and without BlueFlame, and
/// of Ethernet ports, and of a ConnectX-5.
pub fn table() -> String {
    let (plain, blueflame) = (Config::default(), Config { blueflame: true, ..Config::default() });
    let mut out = String::from("| group | field | value |\n|---|---|---|\n");
    let ethernet = Config { port_kind: PortKind::Ethernet, ..Config::default() };
    let connectx5 = Personality::named("connectx5").unwrap_or_else(Personality::default_kind);
    let connectx5 = Config { personality: connectx5, ..Config::default() };
    rows(
        &mut out,
        &General::LAYOUT,
        general_max(&plain).bytes(),
        &[
            (general_max(&blueflame).bytes(), "with `blueflame = true`"),
            (general_max(&ethernet).bytes(), "on Ethernet ports"),
            (general_max(&connectx5).bytes(), "by `connectx5`"),
        ],
    );
    let kind = &plain.personality.capabilities;
    for (layout, bytes) in [
        (&General2::LAYOUT, kind.general_2.bytes()),
        (&Atomic::LAYOUT, kind.atomic.bytes()),
        (&Odp::LAYOUT, kind.odp.bytes()),
    ] {
        rows(&mut out, layout, bytes, &[]);
    }
    let pages = &kind.ethernet;
    let flow_tables = pages.steering.page();
    for (layout, bytes) in [
        (&EthernetOffloads::LAYOUT, &pages.offloads.bytes()[..]),
        (&Roce::LAYOUT, pages.roce.bytes()),
        (&Qos::LAYOUT, pages.qos.bytes()),
        (&FlowTables::LAYOUT, flow_tables.bytes()),
        (&FlowTableProperties::LAYOUT, flow_tables.nic_receive().bytes()),
    ] {
        rows(&mut out, layout, &vec![0; layout.size], &[(bytes, "on Ethernet ports")]);
    }
    let memory = connectx5.personality.capabilities.device_memory;
    rows(&mut out, &DeviceMemory::LAYOUT, &[0; DeviceMemory::SIZE], &[(memory.bytes(), "by `connectx5`")]);
    out
}

fn rows(out: &mut String, layout: &Layout, plain: &[u8], others: &[(&[u8], &str)]) {
    for field in layout.fields {
        let value = |bytes: &[u8]| match field.hi {
            63 => be64(bytes, field.offset),
            hi => u64::from(be32(bytes, field.offset) << (31 - hi) >> (31 - hi + field.lo)),
        };
        let usual = value(plain);
        let different: Vec<String> = others
            .iter()
            .map(|(bytes, when)| (value(bytes), when))
            .filter(|(other, _)| *other != usual)
            .map(|(other, when)| format!("; {other:#x} {when}"))
            .collect();
        if usual == 0 && different.is_empty() {
            continue;
        }
        let shown = format!("{usual:#x}{}", different.concat());
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
