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
/// of Ethernet ports, and of other kinds of adapters.
pub fn table() -> String {
    let (plain, blueflame) = (Config::default(), Config { blueflame: true, ..Config::default() });
    let mut out = String::from("| group | field | value |\n|---|---|---|\n");
    let ethernet = Config { port_kind: PortKind::Ethernet, ..Config::default() };
    let [connectx5, connectx6dx] = ["connectx5", "connectx6dx"].map(|name| {
        let personality = Personality::named(name).unwrap_or_else(Personality::default_kind);
        Config { personality, ..Config::default() }
    });
    let newer = Config { port_kind: PortKind::Ethernet, ..connectx6dx.clone() };
    let [general, blueflame, ethernet, general_5, general_6dx, general_newer] =
        [&plain, &blueflame, &ethernet, &connectx5, &connectx6dx, &newer].map(general_max);
    rows(
        &mut out,
        &General::LAYOUT,
        general.bytes(),
        &[
            (blueflame.bytes(), "with `blueflame = true`", &[]),
            (ethernet.bytes(), "on Ethernet ports", &[]),
            (general_5.bytes(), "by `connectx5`", &[]),
            (general_6dx.bytes(), "by `connectx6dx`", &[general_5.bytes()]),
            (
                general_newer.bytes(),
                "by `connectx6dx` on Ethernet ports",
                &[ethernet.bytes(), general_5.bytes(), general_6dx.bytes()],
            ),
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
    let (pages, newer) = (&kind.ethernet, &newer.personality.capabilities.ethernet);
    let [flow_tables, more] = [pages, newer].map(|pages| pages.steering.page());
    for (layout, bytes, of_newer) in [
        (&EthernetOffloads::LAYOUT, &pages.offloads.bytes()[..], &newer.offloads.bytes()[..]),
        (&Roce::LAYOUT, pages.roce.bytes(), newer.roce.bytes()),
        (&Qos::LAYOUT, pages.qos.bytes(), newer.qos.bytes()),
        (&FlowTables::LAYOUT, flow_tables.bytes(), more.bytes()),
        (&FlowTableProperties::LAYOUT, flow_tables.nic_receive().bytes(), more.nic_receive().bytes()),
    ] {
        let kinds: [Other<'_>; 2] =
            [(bytes, "on Ethernet ports", &[]), (of_newer, "by `connectx6dx` on them", &[bytes])];
        rows(&mut out, layout, &vec![0; layout.size], &kinds);
    }
    let [memory, more] = [&connectx5, &connectx6dx].map(|kind| kind.personality.capabilities.device_memory);
    rows(
        &mut out,
        &DeviceMemory::LAYOUT,
        &[0; DeviceMemory::SIZE],
        &[(memory.bytes(), "by `connectx5`", &[]), (more.bytes(), "by `connectx6dx`", &[memory.bytes()])],
    );
    out
}

/// A page of other circumstances, which, and those of the pages before it whose values it only repeats.
type Other<'a> = (&'a [u8], &'a str, &'a [&'a [u8]]);

fn rows(out: &mut String, layout: &Layout, plain: &[u8], others: &[Other<'_>]) {
    for field in layout.fields {
        let value = |bytes: &[u8]| match field.hi {
            63 => be64(bytes, field.offset),
            hi => u64::from(be32(bytes, field.offset) << (31 - hi) >> (31 - hi + field.lo)),
        };
        let usual = value(plain);
        let different: Vec<String> = others
            .iter()
            .map(|(bytes, when, like)| (value(bytes), when, like))
            .filter(|(other, _, like)| *other != usual && like.iter().all(|bytes| value(bytes) != *other))
            .map(|(other, when, _)| format!("; {other:#x} {when}"))
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
