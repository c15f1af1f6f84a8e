//! What there is to be reached, from the tables and layouts of the interface.

use std::collections::BTreeSet;

use hca_firmware::commands::TABLE;
use hca_spec::command::{InHeader, Status};
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::init_segment::InitSegment;
use hca_spec::layout::FieldInfo;
use hca_spec::qpc::QpState;
use hca_spec::uar;
use hca_spec::wqe::SendOpcode;

/// The name of a field: that of the view it is in, if it is in one, and its own.
pub fn field_name(view: &str, field: &FieldInfo) -> String {
    match view {
        "" => field.name.to_owned(),
        view => format!("{view}.{}", field.name),
    }
}

/// Whether it is the opcode, which every command has.
pub fn is_header(view: &str, field: &FieldInfo) -> bool {
    view.is_empty() && field.name == "OPCODE" && field.offset == InHeader::OPCODE.offset()
}

/// Registers of the initialization segment, by their words: offset, and the names of what is there.
fn words() -> impl Iterator<Item = (u32, String)> {
    let offsets: BTreeSet<usize> = InitSegment::LAYOUT.fields.iter().map(|field| field.offset).collect();
    offsets.into_iter().map(|offset| {
        let names = InitSegment::LAYOUT.fields.iter().filter(|field| field.offset == offset);
        (offset as u32, names.map(|field| field.name).collect::<Vec<_>>().join(", "))
    })
}

/// The name of a register of BAR0. An access within a word has the names of the fields that its first byte is of.
pub fn register_name(offset: u32, write: bool) -> String {
    let what = if write { "write" } else { "read" };
    let names = match offset % 4 {
        0 => words().find(|(of, _)| *of == offset).map(|(_, names)| names),
        byte => fields_of(offset - byte, byte),
    };
    format!("{offset:#06x} {what}: {}", names.as_deref().unwrap_or("no register"))
}

/// The names of the fields that a byte of a word is of. Words are big-endian: byte 1 has bits 23 to 16.
fn fields_of(word: u32, byte: u32) -> Option<String> {
    let low = 24 - 8 * byte;
    let fields = InitSegment::LAYOUT.fields.iter().filter(|field| {
        let (high, lowest) = (u32::from(field.hi), u32::from(field.lo));
        field.offset == word as usize && lowest < low + 8 && high >= low
    });
    let names: Vec<&str> = fields.map(|field| field.name).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// The doorbell register of UAR pages that an event of the trace is a write of.
pub fn doorbell_of(event: &str) -> Option<&'static str> {
    const { assert!(uar::CQ_DOORBELL == 0x20 && uar::EQ_ARM == 0x40 && uar::SEND_DOORBELL == 0x800) };
    DOORBELLS.iter().find(|(name, _)| *name == event).map(|(_, register)| *register)
}

/// Events that are writes to UAR pages, and where.
const DOORBELLS: [(&str, &str); 4] = [
    ("arm", "UAR 0x020 write: CQ doorbell"),
    ("EQ consumed", "UAR 0x040, 0x048 write: EQ doorbells"),
    ("doorbell", "UAR 0x800 write: send doorbell"),
    ("BlueFlame", "UAR 0x800 write: BlueFlame"),
];

/// Transitions of queue pairs that commands make (PRM "QP State Transition").
const TRANSITIONS: [(QpState, QpState); 12] = [
    (QpState::Reset, QpState::Init),
    (QpState::Init, QpState::Init),
    (QpState::Init, QpState::Rtr),
    (QpState::Rtr, QpState::Rts),
    (QpState::Rts, QpState::Rts),
    (QpState::Rts, QpState::SqDraining),
    (QpState::SqDraining, QpState::SqDrained),
    (QpState::SqDrained, QpState::SqDrained),
    (QpState::SqDrained, QpState::Rts),
    (QpState::SqError, QpState::Rts),
    (QpState::Rts, QpState::Error),
    (QpState::Error, QpState::Reset),
];

/// Names of commands.
pub fn commands() -> Vec<String> {
    TABLE.iter().map(|command| command.name.to_owned()).collect()
}

/// Fields of a command's input.
pub fn fields(command: &str) -> Vec<String> {
    let Some(row) = TABLE.iter().find(|row| row.name == command) else { return Vec::new() };
    let mut names = Vec::new();
    row.layout.decode(&[0; MOST_INPUT], &mut |view, field, _| {
        if !is_header(view, field) {
            names.push(field_name(view, field));
        }
    });
    names
}

/// Longer than every input's layout.
const MOST_INPUT: usize = 4096;

/// Names of a list of [`super::Used::LISTS`] that are known; of what has an open end, none.
pub fn names(list: &str) -> Vec<String> {
    match list {
        "opcodes" => SendOpcode::ALL.map(|opcode| format!("{opcode:?}")).to_vec(),
        "events" => EventType::ALL.map(|kind| format!("{kind:?}")).to_vec(),
        "transitions" => TRANSITIONS.map(|(from, to)| format!("{from:?} to {to:?}")).to_vec(),
        "errors" => {
            let statuses = Status::ALL.into_iter().filter(|status| *status != Status::Ok);
            let statuses = statuses.map(|status| format!("command {status:?}"));
            let completions = Syndrome::ALL.map(|syndrome| format!("completion {syndrome:?}"));
            let retries = ["Timeout", "SequenceNak", "MissingResponse", "ReceiverNotReady"];
            statuses.chain(completions).chain(retries.map(|why| format!("retry {why}"))).collect()
        }
        "registers" => {
            let written = [0x10, 0x14, 0x18];
            let words = words().flat_map(|(offset, _)| {
                let writes = written.contains(&offset).then(|| register_name(offset, true));
                std::iter::once(register_name(offset, false)).chain(writes)
            });
            words.chain(DOORBELLS.map(|(_, register)| register.to_owned())).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::register_name;

    #[test]
    fn registers_have_names_within_words_too() {
        let names = [
            (0x14, "0x0014 read: CMDQ_PHY_ADDR_LOW, NIC_INTERFACE, LOG_CMDQ_SIZE, LOG_CMDQ_STRIDE"),
            (0x23d, "0x023d read: HEALTH_SYNDROME"),
            (0x23f, "0x023f read: HEALTH_EXT_SYNDROME"),
            (0x17, "0x0017 read: LOG_CMDQ_SIZE, LOG_CMDQ_STRIDE"),
            (0x1012, "0x1012 read: HEALTH_COUNTER"),
            (0x23, "0x0023 read: no register"),
        ];
        for (offset, name) in names {
            assert_eq!(register_name(offset, false), name);
        }
    }
}
