//! One object of a function, looked at: its context as a QUERY command would show it now, where its queues stand, and the
//! entries that were last.
//!
//! Looking changes nothing, in the model or in the host's memory. Structures come as bytes with their
//! [`Layout`]: whoever shows them takes the fields' names from there.

mod queues;
mod requests;

use hca_firmware::object::Kind;
use hca_firmware::{PageAccounts, Snapshot};
use hca_spec::command::{CommandEntry, INLINE_INPUT, INLINE_OUTPUT, Opcode};
use hca_spec::layout::Layout;
use hca_spec::mad::PortInfo;
use hca_spec::{be32, layout_named};

use crate::adapter::Hca;
use crate::adapter::state::function::Function;
use crate::engines::registers::LOG_COMMAND_ENTRIES;

/// Entries of each queue that are shown: the last ones.
const ENTRIES: u32 = 8;
/// Numbers that a message lists.
const LISTED: usize = 32;

/// What may be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// An object, by its number; a memory key by its index or by the key itself.
    Object(Kind, u32),
    /// The command queue.
    Commands,
    /// Pages that the host gave.
    Pages,
    /// A port, from 1 on.
    Port(u8),
}

/// Words for the kinds of objects that can be looked at.
pub const KINDS: [(&str, Kind); 20] = [
    ("qp", Kind::Qp),
    ("cq", Kind::Cq),
    ("eq", Kind::Eq),
    ("srq", Kind::Srq),
    ("mkey", Kind::Mkey),
    ("pd", Kind::Pd),
    ("uar", Kind::Uar),
    ("sq", Kind::Sq),
    ("rq", Kind::Rq),
    ("rqt", Kind::Rqt),
    ("tir", Kind::Tir),
    ("tis", Kind::Tis),
    ("rmp", Kind::Rmp),
    ("xrq", Kind::Xrq),
    ("xrc_srq", Kind::XrcSrq),
    ("dct", Kind::Dct),
    ("xrcd", Kind::Xrcd),
    ("td", Kind::TransportDomain),
    ("counters", Kind::QCounter),
    ("psv", Kind::Psv),
];

impl What {
    /// What a word and a number name.
    ///
    /// # Errors
    /// The words that there are; or that the number is missing.
    pub fn named(word: &str, number: Option<u32>) -> Result<Self, String> {
        let needed = |of: &str| number.ok_or(format!("{word}: the number of the {of} is needed"));
        match word {
            "commands" => Ok(Self::Commands),
            "pages" => Ok(Self::Pages),
            "port" => {
                let number = number.unwrap_or(1);
                u8::try_from(number).map(Self::Port).map_err(|_| format!("port {number}: there is none"))
            }
            _ => match KINDS.iter().find(|(name, _)| *name == word) {
                Some((_, kind)) => Ok(Self::Object(*kind, needed(kind.name())?)),
                None => {
                    let kinds: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
                    Err(format!("{word:?}: {}, commands, pages or port are known", kinds.join(", ")))
                }
            },
        }
    }
}

/// A value that no layout has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// A number.
    Number(u64),
    /// Words.
    Text(String),
}

/// A structure with its layout, and what the adapter knows beside it.
#[derive(Debug, Clone)]
pub struct Part {
    /// What it is: `context`, `send queue`, `WQE 0x5`.
    pub title: String,
    /// Its structures in the order in which they lie there.
    pub structures: Vec<(&'static Layout, Vec<u8>)>,
    /// Names and values of what has no layout.
    pub values: Vec<(&'static str, Shown)>,
}

impl Part {
    fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), structures: Vec::new(), values: Vec::new() }
    }

    fn of(title: impl Into<String>, layout: &'static Layout, bytes: &[u8]) -> Self {
        Self { structures: vec![(layout, bytes.to_vec())], ..Self::new(title) }
    }

    fn with(mut self, name: &'static str, value: impl Into<u64>) -> Self {
        self.values.push((name, Shown::Number(value.into())));
        self
    }

    fn saying(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.values.push((name, Shown::Text(text.into())));
        self
    }
}

/// Looks at a function of an adapter.
///
/// # Errors
/// There is no such object, in words, with those that there are.
pub(crate) fn inspect(hca: &Hca, function: &Function, what: What) -> Result<Vec<Part>, String> {
    match what {
        What::Object(kind, number) => object(function, kind, number),
        What::Commands => Ok(commands(function)),
        What::Pages => Ok(pages(function)),
        What::Port(number) => port(hca, number),
    }
}

fn object(function: &Function, kind: Kind, number: u32) -> Result<Vec<Part>, String> {
    let icm = &function.state.fw.icm;
    let number = match kind {
        // A driver prints keys, of which the lowest byte is the driver's own.
        Kind::Mkey if icm.mkeys.get(number).is_none() && icm.mkeys.get(number >> 8).is_some() => number >> 8,
        _ => number,
    };
    match kind {
        Kind::Qp | Kind::Sq => requests::queue_pair(function, kind, number),
        Kind::Cq => queues::completion(function, number),
        Kind::Eq => queues::event(function, number),
        Kind::Srq | Kind::XrcSrq | Kind::Rmp | Kind::Xrq => queues::shared(function, kind, number),
        Kind::Mkey => key(function, number),
        Kind::Pd | Kind::Xrcd | Kind::TransportDomain | Kind::Uar => domain(function, kind, number),
        _ => reported(function, kind, number).map(|part| vec![part]),
    }
    .ok_or_else(|| missing(function, kind, number))
}

/// That there is no such object, and which there are.
fn missing(function: &Function, kind: Kind, number: u32) -> String {
    let mut numbers = function.state.fw.icm.numbers(kind);
    let listed: Vec<String> = numbers.by_ref().take(LISTED).map(|number| format!("{number:#x}")).collect();
    let more = numbers.count();
    let name = kind.name();
    match (listed.is_empty(), more) {
        (true, _) => format!("there is no {name} {number:#x}: there is none at all"),
        (false, 0) => format!("there is no {name} {number:#x}, but {}", listed.join(", ")),
        (false, more) => format!("there is no {name} {number:#x}, but {} and {more} more", listed.join(", ")),
    }
}

/// The answer of the kind's QUERY command.
fn reported(function: &Function, kind: Kind, number: u32) -> Option<Part> {
    let (opcode, output) = function.state.fw.report(kind, number)?;
    match layout_named(&format!("{opcode:?}Out")) {
        Some(layout) => Some(Part::of("context", layout, &output)),
        None => Some(Part::new("context").saying("bytes", hex(&output))),
    }
}

fn key(function: &Function, index: u32) -> Option<Vec<Part>> {
    use hca_firmware::icm::Translation;
    let key = function.state.fw.icm.mkeys.get(index)?;
    let context = Part::of("context", &hca_spec::mkc::Mkc::LAYOUT, key.ctx.bytes());
    let (form, entries) = match &key.translation {
        Translation::None => ("none: addresses are the host's own", 0),
        Translation::Mtt(list) => ("pages (MTT), 8 bytes each", list.len() / 8),
        Translation::User(_) => ("pages of a user memory", 0),
        Translation::Klm(list) => ("pieces of other keys (KLM), 16 bytes each", list.count()),
    };
    let translations = Part::new("translations")
        .saying("form", form)
        .with("entries", entries as u64)
        .with("room_octowords", key.octwords)
        .with("signature", key.signature.is_some());
    Some(vec![context, translations])
}

fn domain(function: &Function, kind: Kind, number: u32) -> Option<Vec<Part>> {
    let icm = &function.state.fw.icm;
    let table = match kind {
        Kind::Pd => &icm.pds,
        Kind::Xrcd => &icm.xrcds,
        Kind::TransportDomain => &icm.tds,
        _ => &icm.uars,
    };
    let domain = table.get(number)?;
    let mut part = Part::new(kind.name());
    if kind == Kind::Uar {
        part = part.with("offset_in_bar0", u64::from(number) * hca_spec::uar::PAGE_SIZE);
    }
    part = part.with("objects", domain.users).with("keys", domain.keys).with("psvs", domain.psvs);
    Some(vec![part])
}

/// The entries of the command queue that the driver wrote.
fn commands(function: &Function) -> Vec<Part> {
    let registers = &function.side.registers;
    let (busy, stalled) = function.side.commands.slots();
    let queue = Part::new("command queue")
        .with("address", registers.command_queue())
        .with("slots", 1u64 << LOG_COMMAND_ENTRIES)
        .with("slots_under_way", busy)
        .with("slots_that_wait_for_pages", stalled);
    let mut parts = vec![queue];
    for slot in 0..1u32 << LOG_COMMAND_ENTRIES {
        let at = registers.command_queue() + u64::from(slot) * CommandEntry::SIZE as u64;
        let Some(bytes) = memory(function, at, CommandEntry::SIZE) else { continue };
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        let opcode = (be32(&bytes, INLINE_INPUT) >> 16) as u16;
        let name =
            Opcode::from_u16(opcode).and_then(hca_firmware::commands::find).map_or("?", |row| row.name);
        let output = (be32(&bytes, INLINE_OUTPUT) >> 24, be32(&bytes, INLINE_OUTPUT + 4));
        let part = Part::of(format!("slot {slot:#x}: {name}"), &CommandEntry::LAYOUT, &bytes)
            .with("opcode", opcode)
            .with("op_mod", be32(&bytes, INLINE_INPUT + 4) & 0xffff)
            .with("output_status", output.0)
            .with("output_syndrome", output.1);
        parts.push(part);
    }
    parts
}

fn pages(function: &Function) -> Vec<Part> {
    let PageAccounts { given, used, asked, missing_for_boot, missing_for_init, object_bytes } =
        function.state.fw.page_accounts();
    let pages = Part::new("pages")
        .with("given", given)
        .with("in_use", used)
        .with("asked_for", asked)
        .with("missing_for_boot", missing_for_boot)
        .with("missing_for_init", missing_for_init)
        .with("object_bytes", object_bytes);
    let mut objects = Part::new("objects");
    let now: Snapshot = function.state.fw.resources().now;
    for (kind, count) in now.objects() {
        objects = objects.with(kind, count);
    }
    vec![pages, objects]
}

fn port(hca: &Hca, number: u8) -> Result<Vec<Part>, String> {
    let ports = &hca.chip.managed;
    let port = ports
        .port(number)
        .ok_or_else(|| format!("there is no port {number}, but 1 to {}", ports.numbers().end()))?;
    let mut parts = vec![Part::of("port", &PortInfo::LAYOUT, port.info().bytes())];
    let link =
        Part::new("link").saying("kind", if port.ethernet().is_some() { "Ethernet" } else { "InfiniBand" });
    parts.push(match port.link() {
        Some(link_now) => link.saying("trained", format!("{}x {:?}", link_now.width, link_now.speed)),
        None => link.saying("trained", "no"),
    });
    Ok(parts)
}

/// Bytes of the host's memory; `None` where they can't be read at once.
fn memory(function: &Function, at: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    function.state.seen_memory().read(at, &mut bytes).ok()?;
    Some(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
