//! What adapters report as their capabilities: what QUERY_HCA_CAP answers.

use std::fmt::Write as _;

use hca_firmware::{Config, Execution, Firmware, Personality, PortKind};
use hca_spec::caps::{
    Atomic, Debug, DeviceMemory, EthernetOffloads, FlowTables, General, General2, Odp, Qos, Roce,
    TYPE_ATOMIC, TYPE_CRYPTO, TYPE_DEBUG, TYPE_DEVICE_MEMORY, TYPE_ETHERNET, TYPE_FLOW_TABLE, TYPE_GENERAL,
    TYPE_GENERAL_2, TYPE_ODP, TYPE_QOS, TYPE_ROCE,
};
use hca_spec::cmd::QueryHcaCapOut;
use hca_spec::command::{InHeader, Opcode, Status};
use hca_spec::crypto::Crypto;
use hca_spec::layout::Layout;

use crate::source::row;

/// The groups, by type.
const GROUPS: [(u32, &Layout); 11] = [
    (TYPE_GENERAL, &General::LAYOUT),
    (TYPE_ETHERNET, &EthernetOffloads::LAYOUT),
    (TYPE_ODP, &Odp::LAYOUT),
    (TYPE_ATOMIC, &Atomic::LAYOUT),
    (TYPE_ROCE, &Roce::LAYOUT),
    (TYPE_FLOW_TABLE, &FlowTables::LAYOUT),
    (TYPE_QOS, &Qos::LAYOUT),
    (TYPE_DEBUG, &Debug::LAYOUT),
    (TYPE_DEVICE_MEMORY, &DeviceMemory::LAYOUT),
    (TYPE_CRYPTO, &Crypto::LAYOUT),
    (TYPE_GENERAL_2, &General2::LAYOUT),
];

/// Of what kind an adapter is, and with what options.
struct Circumstance {
    when: &'static str,
    /// Those before it whose values it has, too, unless it has others: what is said of the last of them holds.
    like: &'static [usize],
    config: Config,
}

/// An InfiniBand port of the default kind first.
fn circumstances() -> Vec<Circumstance> {
    let plain = Config::default;
    let of = |name| Config {
        personality: Personality::named(name).unwrap_or_else(Personality::default_kind),
        ..plain()
    };
    let ethernet = |config| Config { port_kind: PortKind::Ethernet, ..config };
    [
        ("", &[][..], plain()),
        ("with `blueflame = true`", &[0], Config { blueflame: true, ..plain() }),
        ("on Ethernet ports", &[0], ethernet(plain())),
        ("by `connectx5`", &[0], of("connectx5")),
        ("by `connectx5` on Ethernet ports", &[0, 2, 3], ethernet(of("connectx5"))),
        ("by `connectx6dx`", &[0, 3], of("connectx6dx")),
        ("by `connectx6dx` on Ethernet ports", &[0, 2, 3, 4, 5], ethernet(of("connectx6dx"))),
        (
            "by `connectx6dx` with `wrapped_keys = true`",
            &[0, 3, 5],
            Config { wrapped_keys: true, ..of("connectx6dx") },
        ),
        (
            "by `connectx6dx` with `memory_page_faults = true`",
            &[0, 3, 5],
            Config { memory_page_faults: true, ..of("connectx6dx") },
        ),
    ]
    .map(|(when, like, config)| Circumstance { when, like, config })
    .into()
}

/// What the firmware answers about each type, from 0 to the last that it knows: capabilities at their maximum.
fn answers(config: &Config) -> Vec<Vec<u8>> {
    let mut firmware = Firmware::new(config.clone());
    let mut ask = |opcode: Opcode, op_mod: u32| {
        let mut input = InHeader::new();
        input.set(InHeader::OPCODE, opcode as u32).set(InHeader::OP_MOD, op_mod);
        match firmware.execute(input.bytes(), QueryHcaCapOut::SIZE, &mut Vec::new()) {
            Execution::Done(output) if output.first() == Some(&(Status::Ok as u8)) => Some(output),
            _ => None,
        }
    };
    ask(Opcode::EnableHca, 0);
    let group = |kind: u32| Some(ask(Opcode::QueryHcaCap, kind << 1)?.split_off(OUTPUT));
    (0..).map_while(group).collect()
}

/// Where the answer begins.
const OUTPUT: usize = 0x10;

/// Every field of the capability groups that is not zero.
pub fn table() -> String {
    let all = circumstances();
    let answers: Vec<_> = all.iter().map(|one| answers(&one.config)).collect();
    let mut out = String::from("| group | field | value |\n|---|---|---|\n");
    for (kind, layout) in GROUPS {
        // The same fields in each circumstance, in the same order.
        let mut fields: Vec<(String, &str, Vec<u64>)> = Vec::new();
        for answers in &answers {
            let mut at = 0;
            layout.decode(&answers[kind as usize], &mut |view, field, value| {
                if at == fields.len() {
                    let group = format!("{kind:#x} {} {view}", layout.name);
                    fields.push((group.trim_end().into(), field.name, Vec::new()));
                }
                fields[at].2.push(value);
                at += 1;
            });
        }
        for (group, field, values) in fields {
            let mut said: Vec<Option<u64>> = vec![Some(values[0])];
            let mut shown = format!("{:#x}", values[0]);
            for (Circumstance { when, like, .. }, value) in all.iter().zip(&values).skip(1) {
                let known = like.iter().rev().find_map(|at| said[*at]);
                said.push((known != Some(*value)).then_some(*value));
                if known != Some(*value) {
                    let _ = write!(shown, "; {value:#x} {when}");
                }
            }
            if shown != "0x0" {
                out.push_str(&row(&[&group, &format!("`{field}`"), &shown]));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What the table says of a circumstance: of what is said of it and of those that it is like, the last.
    fn told(shown: &str, all: &[Circumstance], at: usize) -> u64 {
        let said: BTreeMap<&str, &str> = shown
            .split("; ")
            .map(|part| part.split_once(' ').map_or(("", part), |(v, when)| (when, v)))
            .collect();
        let value = all[at].like.iter().chain([&at]).rev().find_map(|at| said.get(all[*at].when)).unwrap();
        u64::from_str_radix(&value[2..], 16).unwrap()
    }

    /// Who reads the table knows every bit that the firmware answers, whatever the adapter is: where nothing is said, there is a zero,
    /// in groups without a line, too.
    #[test]
    fn the_table_has_all_that_is_not_zero() {
        let (text, all) = (table(), circumstances());
        let lines: BTreeMap<(&str, &str), &str> = text
            .lines()
            .skip(2)
            .map(|line| line.trim_matches(['|', ' ']).split(" | ").collect::<Vec<_>>())
            .map(|cells| ((cells[0], cells[1]), cells[2]))
            .collect();
        for (at, one) in all.iter().enumerate() {
            for (kind, mut bytes) in answers(&one.config).into_iter().enumerate() {
                let group = GROUPS.iter().find(|(of, _)| *of as usize == kind);
                if let Some((_, layout)) = group {
                    let mut known = vec![0u8; bytes.len()];
                    layout.decode(&bytes.clone(), &mut |view, field, value| {
                        let group = format!("{kind:#x} {} {view}", layout.name);
                        let name = format!("`{}`", field.name);
                        let line = lines.get(&(group.trim_end(), &*name));
                        let told = line.map_or(0, |shown| told(shown, &all, at));
                        assert_eq!(told, value, "{group} {} {}", field.name, one.when);
                        let within = layout.views.iter().find(|inner| inner.name == view);
                        let offset = within.map_or(0, |inner| inner.offset) + field.offset;
                        match field.hi {
                            63 => known[offset..offset + 8].fill(0xff),
                            hi => {
                                let mask = u32::MAX << field.lo & u32::MAX >> (31 - hi);
                                let old = hca_spec::be32(&known, offset);
                                hca_spec::put_be32(&mut known, offset, old | mask);
                            }
                        }
                    });
                    bytes.iter_mut().zip(known).for_each(|(byte, known)| *byte &= !known);
                }
                assert!(
                    bytes.iter().all(|byte| *byte == 0),
                    "type {kind:#x} {}: bits without a name",
                    one.when
                );
            }
        }
    }

    #[test]
    fn values_are_those_of_the_fields() {
        let text = table();
        let general = hca_firmware::profile::general_max(&Config::default());
        let line = |field: &str, value: &str| format!("| 0x0 General | `{field}` | {value} |\n");
        assert!(
            text.contains(&line("LOG_MAX_QP", &format!("{:#x}", general.get(General::LOG_MAX_QP)))),
            "{text}"
        );
        assert!(text.contains(&line("BF", "0x0; 0x1 with `blueflame = true`")), "{text}");
        assert!(!text.contains("`IB_VIRT`"), "zero");
    }
}
