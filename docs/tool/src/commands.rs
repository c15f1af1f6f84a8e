//! Tables of the commands. Lengths and states are asked of the firmware itself, reasons of refusals are read from
//! its source.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use hca_firmware::{Config, Execution, Firmware, State};
use hca_spec::be32;
use hca_spec::command::{Opcode, Status};
use regex::Regex;

use crate::source::row;

/// The command's name as the manual spells it.
pub fn name(opcode: Opcode) -> String {
    match opcode {
        Opcode::ToErrQp => return "2ERR_QP".into(),
        Opcode::ToRstQp => return "2RST_QP".into(),
        Opcode::SqErr2RtsQp => return "SQERR2RTS_QP".into(),
        Opcode::AccessReg => return "ACCESS_REGISTER".into(),
        _ => {}
    }
    let mut out = String::new();
    let mut before = ' ';
    for c in format!("{opcode:?}").chars() {
        if c.is_ascii_uppercase() && before.is_ascii_lowercase() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
        before = c;
    }
    out.replace("QCOUNTER", "Q_COUNTER")
}

/// What the firmware answers to a command: its status, and the diagnosis of a refusal.
fn ask(fw: &mut Firmware, opcode: Opcode, input: usize, output: usize) -> (u8, String) {
    let mut bytes = vec![0; input.max(4)];
    bytes[..2].copy_from_slice(&(opcode as u16).to_be_bytes());
    match fw.execute(&bytes, output, &mut Vec::new()) {
        Execution::Done(out) => ((be32(&out, 0) >> 24) as u8, fw.take_refusal().unwrap_or_default()),
        Execution::NeedPages => (Status::Ok as u8, String::new()),
    }
}

/// The bound that the diagnosis names, if its status is `status`.
fn bound(answer: (u8, String), status: Status) -> Option<usize> {
    let text = answer.1.split_once("; limit 0x")?.1;
    let digits = text.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    usize::from_str_radix(digits, 16).ok().filter(|_| answer.0 == status as u8 || answer.0 == 0)
}

/// Whether the adapter has the command at all.
fn is_here(opcode: Opcode, input: usize, output: usize) -> bool {
    let mut fw = Firmware::new(Config { blueflame: true, ..Config::default() });
    ask(&mut fw, Opcode::EnableHca, 16, 16);
    give_pages(&mut fw);
    ask(&mut fw, Opcode::InitHca, 16, 16);
    let (status, why) = ask(&mut fw, opcode, input, output);
    !(status == Status::BadOp as u8 && why.contains("does not have the command"))
}

/// Gives more pages than INIT_HCA wants.
fn give_pages(fw: &mut Firmware) {
    const PAGES: u32 = 256;
    let mut input = vec![0; 16];
    input[..2].copy_from_slice(&(Opcode::ManagePages as u16).to_be_bytes());
    input[7] = hca_spec::cmd::PAGES_GIVE as u8;
    input[12..].copy_from_slice(&PAGES.to_be_bytes());
    (1..=u64::from(PAGES)).for_each(|page| input.extend_from_slice(&(page << 12).to_be_bytes()));
    fw.execute(&input, 16, &mut Vec::new());
}

/// Least lengths of input and output, headers included, and the least state, as the firmware enforces them.
pub fn requirements(opcode: Opcode) -> (usize, usize, State) {
    let mut fw = Firmware::new(Config { blueflame: true, ..Config::default() });
    // Room for status and syndrome is needed to be answered at all.
    const LEAST: usize = 8;
    const PLENTY: usize = 1 << 14;
    let input = bound(ask(&mut fw, opcode, 4, PLENTY), Status::BadInputLength).unwrap_or(LEAST);
    let output = bound(ask(&mut fw, opcode, input, 0), Status::BadOutputLength).unwrap_or(LEAST);
    let state = |fw: &mut Firmware| {
        let (status, why) = ask(fw, opcode, input, output);
        status == Status::BadSystemState as u8 && why.contains("legal only after")
    };
    if !state(&mut fw) {
        return (input, output, State::Disabled);
    }
    ask(&mut fw, Opcode::EnableHca, 16, 16);
    let least = if state(&mut fw) { State::Initialized } else { State::Enabled };
    (input, output, least)
}

/// Every opcode with its lengths and least state.
pub fn table() -> String {
    let mut out = String::from("| opcode | command | input | output | legal |\n|---|---|---|---|---|\n");
    for opcode in Opcode::ALL {
        let (input, output, state) = requirements(*opcode);
        let state = match state {
            _ if !is_here(*opcode, input, output) => "never: BAD_OP",
            State::Disabled => "always",
            State::Enabled => "after ENABLE_HCA",
            State::Initialized => "after INIT_HCA",
        };
        let number = format!("{:#x}", *opcode as u16);
        out.push_str(&row(&[
            &number,
            &name(*opcode),
            &format!("{input:#x}"),
            &format!("{output:#x}"),
            state,
        ]));
    }
    out
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
    use super::*;

    #[test]
    fn names_of_the_manual() {
        assert_eq!(name(Opcode::Rst2InitQp), "RST2INIT_QP");
        assert_eq!(name(Opcode::QueryHcaVportGid), "QUERY_HCA_VPORT_GID");
        assert_eq!(name(Opcode::ToErrQp), "2ERR_QP");
        assert_eq!(name(Opcode::AllocQCounter), "ALLOC_Q_COUNTER");
    }

    #[test]
    fn the_firmware_is_asked() {
        use hca_spec::cmd::CreateQpIn;
        assert_eq!(requirements(Opcode::CreateQp), (CreateQpIn::SIZE, 16, State::Initialized));
        assert_eq!(requirements(Opcode::QueryIssi).2, State::Disabled);
        assert_eq!(requirements(Opcode::QueryPages).2, State::Enabled);
        assert!(is_here(Opcode::CreateSq, 0x110, 16) && !is_here(Opcode::GenEqe, 16, 16));
    }

    /// The number in the table is the one that the firmware answers.
    #[test]
    fn syndromes_are_the_firmware_s() {
        let mut fw = Firmware::new(Config::default());
        let mut input = [0; 16];
        input[..2].copy_from_slice(&(Opcode::DisableHca as u16).to_be_bytes());
        let Execution::Done(out) = fw.execute(&input, 16, &mut Vec::new()) else { panic!("waits") };
        let text = refusals(&crate::root(), &["commands/hca"]).unwrap();
        let line =
            format!("| BAD_SYS_STATE | {:#010x} | DISABLE_HCA: the function is not enabled |", be32(&out, 4));
        assert!(text.contains(&line), "{line}\n{text}");
    }
}
