//! Tables of the commands: the firmware's own table of them, and the reasons of refusals, which are read from its source.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use hca_firmware::commands::{Action, Command, Right, TABLE, find};
use hca_firmware::{Config, Firmware, Personality, PortKind, State};
use hca_spec::command::Opcode;
use regex::Regex;

use crate::source::{self, row};

/// Every row of the table of commands, and the opcodes that have none.
pub fn table() -> String {
    let mut out = String::from(
        "| opcode | command | legal | input | output | object | ICM | users | time |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let firmware = |port_kind, blueflame| Firmware::new(Config { port_kind, blueflame, ..Config::default() });
    let infiniband = firmware(PortKind::InfiniBand, false);
    let blueflame = firmware(PortKind::InfiniBand, true);
    let ethernet = firmware(PortKind::Ethernet, false);
    // Of each kind of adapter both kinds of ports.
    let kinds: Vec<(&str, [Firmware; 2])> = Personality::names()
        .filter_map(|name| {
            let personality = Personality::named(name)?;
            let of = |port_kind| {
                Firmware::new(Config { personality: personality.clone(), port_kind, ..Config::default() })
            };
            Some((name, [PortKind::InfiniBand, PortKind::Ethernet].map(of)))
        })
        .collect();
    for command in TABLE {
        let mut legal = String::from(match command.state {
            State::Disabled => "always",
            State::Enabled => "after ENABLE_HCA",
            State::Initialized => "after INIT_HCA",
        });
        let offered = |firmware: &Firmware| (command.offered)(firmware);
        match (offered(&infiniband), offered(&blueflame), offered(&ethernet)) {
            (true, _, true) => {}
            (true, _, false) => legal.push_str(", on InfiniBand ports"),
            (false, true, true) => legal.push_str(", on Ethernet ports or with `blueflame = true`"),
            (false, true, false) => legal.push_str(", with `blueflame = true`"),
            (false, false, true) => legal.push_str(", on Ethernet ports"),
            (false, false, false) => {
                let names: Vec<String> = kinds
                    .iter()
                    .filter_map(|(name, [infiniband, ethernet])| {
                        match (offered(infiniband), offered(ethernet)) {
                            (false, false) => None,
                            (false, true) => Some(format!("`{name}` on Ethernet ports")),
                            (true, _) => Some(format!("`{name}`")),
                        }
                    })
                    .collect();
                legal.push_str(&format!(", by {}", names.join(", ")));
            }
        }
        out.push_str(&row(&[
            &format!("{:#x}", command.opcode as u16),
            command.name,
            &legal,
            &format!("{:#x}", command.input),
            &format!("{:#x}", command.output),
            &object(command),
            &icm(command),
            match command.user.right {
                Right::Kernel if command.user.tools => "tools",
                Right::DeviceOwners if command.user.tools => "device owners, tools",
                Right::Kernel => "",
                Right::DeviceOwners => "device owners",
                Right::Users => "all",
            },
            &format!("{:?}", command.time).to_lowercase(),
        ]));
    }
    let absent = Opcode::ALL.iter().filter(|opcode| find(**opcode).is_none());
    let absent: Vec<String> = absent.map(|opcode| format!("`{opcode:?}` ({:#x})", *opcode as u16)).collect();
    out.push_str(&format!("\nWithout a row, hence BAD_OP: {}.\n", absent.join(", ")));
    out
}

/// What a command does with the object that it is about.
fn object(command: &Command) -> String {
    let Some(object) = command.object else { return String::new() };
    let action = match object.action {
        Action::Create => "makes",
        Action::Change => "changes",
        Action::Query => "reports",
        Action::Destroy => "destroys",
    };
    let most = if object.most > 1 { format!("up to {} ", object.most) } else { String::new() };
    format!("{action} {most}`{:?}`", object.kind)
}

/// What a command takes of ICM: bytes for objects, where a list begins that the adapter keeps.
fn icm(command: &Command) -> String {
    let objects = command.icm_bytes(&[]);
    let mut parts = Vec::new();
    if objects > 0 {
        parts.push(format!("{objects:#x}"));
    }
    if let Some(at) = command.icm.list {
        parts.push(format!("list at {at:#x}"));
    }
    let waits = if command.icm.waits { "" } else { ", does not wait" };
    parts.join(" + ") + waits
}

/// A refusal as the source has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the status.
    pub status: String,
    /// The reason.
    pub why: String,
}

impl Refusal {
    /// The number that the driver prints: FNV-1a over the reason, as `firmware-cmds/src/failure.rs` has it.
    pub fn syndrome(&self) -> u32 {
        self.why.bytes().fold(0x811c_9dc5u32, |hash, b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193)) | 1
    }
}

/// The refusals that stand in a source file, its tests left out.
pub fn refusals_of(text: &str) -> Vec<Refusal> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let call = Regex::new(
        r#"(?:Failure::new\(\s*Status::(?<status>\w+),|(?<kind>bad_param|bad_resource|busy|no_room)\()\s*"(?<why>(?:[^"\\]|\\.)*)""#,
    )
    .expect("a constant");
    call.captures_iter(code)
        .map(|found| {
            let status = match found.name("kind").map(|k| k.as_str()) {
                Some("bad_param") => "BadParam",
                Some("bad_resource") => "BadResource",
                Some("busy") => "ResourceBusy",
                Some(_) => "ExceedLimit",
                None => &found["status"],
            };
            Refusal { status: status.into(), why: found["why"].into() }
        })
        .collect()
}

/// The name of a status as the manual spells it, with its number.
fn status(name: &str) -> String {
    let upper = Regex::new("([a-z])([A-Z])").expect("a constant").replace_all(name, "${1}_$2").to_uppercase();
    match upper.as_str() {
        "BAD_SYSTEM_STATE" => "BAD_SYS_STATE".into(),
        "BAD_RESOURCE" => "BAD_RES".into(),
        "EXCEED_LIMIT" => "EXCEED_LIM".into(),
        "BAD_RESOURCE_STATE" => "BAD_RES_STATE".into(),
        "NO_RESOURCES" => "NO_RES".into(),
        "BAD_INPUT_LENGTH" => "BAD_INPUT_LEN".into(),
        "BAD_OUTPUT_LENGTH" => "BAD_OUTPUT_LEN".into(),
        _ => upper,
    }
}

/// The statuses of commands: the names that pages use beside those that logs use.
///
/// # Errors
/// The enumeration is not there.
pub fn statuses(root: &Path) -> Result<String> {
    let row_of =
        Regex::new(r"^\| (?<value>\w+) \| `(?<name>\w+)` \| (?<meaning>.*) \|$").expect("a constant");
    let mut out = String::new();
    for line in source::enumeration(root, "command::Status")?.lines() {
        match row_of.captures(line) {
            Some(found) => {
                let (short, name) =
                    (format!("`{}`", status(&found["name"])), format!("`{}`", &found["name"]));
                out.push_str(&row(&[&found["value"], &short, &name, &found["meaning"]]));
            }
            None if line == "| value | name | meaning |" => {
                out.push_str("| value | on these pages | in logs | meaning |\n");
            }
            None if line == "|---|---|---|" => out.push_str("|---|---|---|---|\n"),
            None => out.push_str(&format!("{line}\n")),
        }
    }
    Ok(out)
}

/// The refusals in files of `firmware-cmds/src`, without `.rs`.
///
/// # Errors
/// A file that is not there or refuses nothing.
pub fn refusals(root: &Path, files: &[&str]) -> Result<String> {
    let mut out = String::from("| status | syndrome | reason |\n|---|---|---|\n");
    let mut seen = BTreeSet::new();
    for file in files {
        let path = root.join("firmware-cmds/src").join(format!("{file}.rs"));
        let found = refusals_of(&std::fs::read_to_string(&path)?);
        if found.is_empty() {
            bail!("{} has no refusals", path.display());
        }
        for refusal in found {
            if seen.insert(refusal.syndrome()) {
                let syndrome = format!("{:#010x}", refusal.syndrome());
                out.push_str(&row(&[&status(&refusal.status), &syndrome, &refusal.why]));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use hca_firmware::Execution;
    use hca_spec::be32;

    use super::*;

    #[test]
    fn rows_of_all_kinds() {
        let text = table();
        let line = |line: &str| assert!(text.contains(&format!("\n{line}\n")), "{line}\n{text}");
        line("| 0x10a | QUERY_ISSI | always | 0x10 | 0x70 |  |  | all | query |");
        line(
            "| 0x200 | CREATE_MKEY | after INIT_HCA | 0x110 | 0x10 | makes `Mkey` | 0xc0 + list at 0x110 | all | create |",
        );
        line(
            "| 0x303 | QUERY_EQ | after INIT_HCA | 0x10 | 0x110 | reports `Eq` |  | device owners, tools | query |",
        );
        line(
            "| 0x906 | DESTROY_SQ | after INIT_HCA, on Ethernet ports or with `blueflame = true` | 0x10 | 0x8 | destroys `Sq` |  | all | destroy |",
        );
        line(
            "| 0x93a | DEALLOC_FLOW_COUNTER | after INIT_HCA, on Ethernet ports | 0x10 | 0x8 | destroys `FlowCounter` |  | all | destroy |",
        );
        line("Without a row, hence BAD_OP: `GenEqe` (0x304).");
        assert!(
            text.contains("| makes up to 4 `Psv` | 0x100 |")
                && text.contains("list at 0x110, does not wait |"),
            "{text}"
        );
    }

    #[test]
    fn statuses_have_both_names() {
        let text = statuses(&crate::root()).unwrap();
        let begin = "| value | on these pages | in logs | meaning |\n|---|---|---|---|\n| 0x0 | `OK` | `Ok` | Done. |\n";
        assert!(text.contains(begin), "{text}");
        assert!(text.contains("| 0xf | `NO_RES` | `NoResources` | Nothing left to allocate. |\n"), "{text}");
    }

    /// The number in the table is the one that the firmware answers.
    #[test]
    fn syndromes_are_the_firmware_s() {
        let mut fw = Firmware::new(Config::default());
        let mut input = [0; 16];
        input[..2].copy_from_slice(&(Opcode::DisableHca as u16).to_be_bytes());
        let Execution::Done(out) = fw.execute(&input, 16, &mut Vec::new()) else { panic!("waits") };
        let text = refusals(&crate::root(), &["commands/execute"]).unwrap();
        let line = format!(
            "| BAD_SYS_STATE | {:#010x} | the command is legal only after ENABLE_HCA |",
            be32(&out, 4)
        );
        assert!(text.contains(&line), "{line}\n{text}");
    }
}
