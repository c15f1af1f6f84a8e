//! Faults on script: `[[fault]]` of a topology, and what `softhca ctl fault add` asks for.
//!
//! A fault is a set of keys: `at` (an adapter), `on` (to what it happens), `action` (what it does to that), what has to match, to which of
//! those that match it happens, and the values of the action. [`parse`] takes what it knows; a key that is left over is an error.

use std::collections::BTreeMap;
use std::fmt;

use hca_model::Ps;
use hca_model::fault::{
    Ailment, Assert, CommandAction, Cqn, Delivery, DmaAction, EVENT_DATA, EntryAction, Eqn, Fault, Header,
    InterruptAction, Lasting, ModuleError, PacketAction, PcieLink, PortChange, Psn, Qpn, Side, SlotEvent,
    TimeAction, Trigger, What, event_named, opcode_named, packet_named, pcie_error_named, vendor_of,
};
use serde::{Deserialize, Serialize};

/// Faults of an adapter, those of the topology and those that were added: each packet, command, event and interrupt there is compared with all
/// of them.
pub(crate) const MOST: usize = 256;
/// Longest time of a fault: a day.
const MAX_MS: f64 = 86_400_000.0;
/// The same in microseconds.
const MAX_US: f64 = MAX_MS * 1000.0;
/// Values of commands, queues and registers.
const WORD: u64 = u32::MAX as u64;
/// Bytes of a page of the host.
const PAGE: u64 = 4096;
/// Numbers of objects.
const OBJECT: u64 = 0xff_ffff;

/// A value of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Scalar {
    /// `true` or `false`.
    Switch(bool),
    /// A whole number.
    Whole(i64),
    /// Another number.
    Fraction(f64),
    /// Text.
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(value) => value.fmt(f),
            Self::Whole(value) => value.fmt(f),
            Self::Fraction(value) => value.fmt(f),
            Self::Text(value) => write!(f, "{value:?}"),
        }
    }
}

/// The keys of a fault.
pub type Keys = BTreeMap<String, Scalar>;

/// Keys whose values are text even where they look like numbers: names, and digits of bytes.
pub const TEXTS: [&str; 10] =
    ["at", "on", "action", "name", "until", "side", "error", "prefix", "data", "header"];

/// A fault of a topology.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scripted {
    /// As it stands in the file.
    #[serde(flatten)]
    pub keys: Keys,
    /// Its adapter.
    #[serde(skip)]
    pub at: String,
    /// What it is.
    #[serde(skip)]
    pub fault: Fault,
}

/// A key that is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The key.
    pub key: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.reason)
    }
}

fn wrong<T>(key: &str, reason: impl fmt::Display) -> Result<T, Wrong> {
    Err(Wrong { key: key.into(), reason: reason.to_string() })
}

/// Keys that are taken one after another.
struct Left {
    keys: Keys,
    /// Those that were asked for.
    known: Vec<&'static str>,
}

impl Left {
    fn take(&mut self, key: &'static str) -> Option<Scalar> {
        self.known.push(key);
        self.keys.remove(key)
    }

    fn text(&mut self, key: &'static str) -> Result<Option<String>, Wrong> {
        debug_assert!(TEXTS.contains(&key), "{key} is not among the keys that are text");
        match self.take(key) {
            None => Ok(None),
            Some(Scalar::Text(text)) => Ok(Some(text)),
            Some(other) => wrong(key, format_args!("must be text, not {other}")),
        }
    }

    fn needed(&mut self, key: &'static str) -> Result<String, Wrong> {
        match self.text(key)? {
            Some(text) => Ok(text),
            None => wrong(key, "is needed"),
        }
    }

    fn switch(&mut self, key: &'static str) -> Result<Option<bool>, Wrong> {
        match self.take(key) {
            None => Ok(None),
            Some(Scalar::Switch(on)) => Ok(Some(on)),
            Some(other) => wrong(key, format_args!("must be true or false, not {other}")),
        }
    }

    /// A number from 0 to `most`.
    fn number(&mut self, key: &'static str, most: u64) -> Result<Option<u64>, Wrong> {
        self.named(key, most, |_| None, "")
    }

    /// A number from 0 to `most`, or a name of one.
    fn named(
        &mut self,
        key: &'static str,
        most: u64,
        name: impl Fn(&str) -> Option<u64>,
        such_as: &str,
    ) -> Result<Option<u64>, Wrong> {
        let found = match self.take(key) {
            None => return Ok(None),
            Some(Scalar::Whole(number)) => u64::try_from(number).ok(),
            Some(Scalar::Text(text)) => match text.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok(),
                None => name(&text),
            },
            Some(_) => None,
        };
        match found.filter(|number| *number <= most) {
            Some(number) => Ok(Some(number)),
            None if such_as.is_empty() => wrong(key, format_args!("must be a number from 0 to {most:#x}")),
            None => wrong(
                key,
                format_args!("must be a number from 0 to {most:#x}, or a name such as {such_as:?}"),
            ),
        }
    }

    fn narrow<T: TryFrom<u64>>(&mut self, key: &'static str, most: u64) -> Result<Option<T>, Wrong> {
        Ok(self.number(key, most)?.and_then(|number| T::try_from(number).ok()))
    }

    fn fraction(&mut self, key: &'static str, most: f64) -> Result<Option<f64>, Wrong> {
        let found = match self.take(key) {
            None => return Ok(None),
            Some(Scalar::Whole(number)) => Some(number as f64),
            Some(Scalar::Fraction(number)) => Some(number),
            Some(_) => None,
        };
        match found.filter(|number| (0.0..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => wrong(key, format_args!("must be a number from 0 to {most}")),
        }
    }

    fn ms(&mut self, key: &'static str) -> Result<Option<Ps>, Wrong> {
        Ok(self.fraction(key, MAX_MS)?.map(|ms| Ps((ms * 1e9) as u64)))
    }

    /// How late something is.
    fn delay(&mut self) -> Result<Ps, Wrong> {
        match self.fraction("delay_us", MAX_US)? {
            Some(us) => Ok(Ps((us * 1e6) as u64)),
            None => wrong("delay_us", "is needed: how late it is"),
        }
    }

    fn lasting(&mut self) -> Result<Lasting, Wrong> {
        let time = self.ms("for_ms")?;
        match (time, self.text("until")?.as_deref()) {
            (Some(time), None) => Ok(Lasting::For(time)),
            (None, None | Some("reset")) => Ok(Lasting::UntilReset),
            (None, Some("never")) => Ok(Lasting::ForEver),
            (Some(_), Some(_)) => wrong("until", "for_ms says already how long it lasts"),
            (None, Some(other)) => {
                wrong("until", format_args!("{other:?} is neither \"reset\" nor \"never\""))
            }
        }
    }

    /// An action that is not there.
    fn no_action<T>(&self, on: &str, action: &str, known: &[&str]) -> Result<T, Wrong> {
        let known = known.join(", ");
        wrong("action", format_args!("on = {on:?} has no action {action:?}, only {known}"))
    }
}

/// The seed of the fault with that number, of a fabric with that seed.
pub fn seed(fabric: u64, number: u64) -> u64 {
    // 2^64 over the golden ratio: seeds lie far apart.
    fabric ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn opcode(name: &str) -> Option<u64> {
    opcode_named(name).map(u64::from)
}

fn event_type(name: &str) -> Option<u64> {
    event_named(name).map(u64::from)
}

fn delivery(number: u64) -> Option<Delivery> {
    const ALL: [Delivery; 11] = [
        Delivery::Ok,
        Delivery::Signature,
        Delivery::Token,
        Delivery::BadBlockNumber,
        Delivery::BadOutputPointer,
        Delivery::BadInputPointer,
        Delivery::Internal,
        Delivery::BadInputLength,
        Delivery::BadOutputLength,
        Delivery::ReservedNotZero,
        Delivery::BadType,
    ];
    ALL.into_iter().find(|delivery| *delivery as u64 == number)
}

/// What keys say: the adapter, and the fault. `seed`: of what is random, if they don't say.
///
/// # Errors
/// [`Wrong`]: a key that is needed, unknown here, or has a value that it can't have.
pub fn parse(keys: &Keys, seed: u64) -> Result<(String, Fault), Wrong> {
    let mut left = Left { keys: keys.clone(), known: Vec::new() };
    let at = left.needed("at")?;
    let on = left.needed("on")?;
    let action = left.needed("action")?;
    let name = left.text("name")?.unwrap_or_else(|| format!("{on} {action}"));
    let what = match on.as_str() {
        "command" => command(&mut left, &action)?,
        "event" => event(&mut left, &action)?,
        "completion" => completion(&mut left, &action)?,
        "interrupt" => interrupt(&mut left, &action)?,
        "packet" => packet(&mut left, &action)?,
        "dma" => dma(&mut left, &action)?,
        "reset" => What::Reset { action: of_itself(&mut left, &on, &action)? },
        "time" => {
            let every = left.ms("every_ms")?;
            What::Time { every, action: of_itself(&mut left, &on, &action)? }
        }
        other => {
            let reason = format!(
                "{other:?} is none of \"command\", \"event\", \"completion\", \"interrupt\", \"packet\", \"dma\", \"reset\", \"time\""
            );
            return wrong("on", reason);
        }
    };
    let trigger = trigger(&mut left, seed)?;
    if let Some((key, _)) = left.keys.first_key_value() {
        left.known.sort_unstable();
        let known = left.known.join(", ");
        let reason = format!("is no key of on = {on:?} with action = {action:?}; those are {known}");
        return wrong(key, reason);
    }
    Ok((at, Fault { name, what, trigger }))
}

fn trigger(left: &mut Left, seed: u64) -> Result<Trigger, Wrong> {
    let nth = left.number("nth", i64::MAX as u64)?.unwrap_or(1);
    if nth == 0 {
        return wrong("nth", "counts from 1");
    }
    let probability = left.fraction("probability", 1.0)?;
    // What happens by chance happens again and again, unless it is said how often.
    let count = match left.number("count", i64::MAX as u64)? {
        Some(0) => None,
        Some(count) => Some(count),
        None if probability.is_some() => None,
        None => Some(1),
    };
    let (from, until) = (left.ms("from_ms")?.unwrap_or(Ps::ZERO), left.ms("until_ms")?.unwrap_or(Ps::MAX));
    if until <= from {
        return wrong("until_ms", "must be after from_ms");
    }
    let seed = left.number("seed", i64::MAX as u64)?.unwrap_or(seed);
    Ok(Trigger { nth, count, probability: probability.unwrap_or(1.0), from, until, seed })
}

fn command(left: &mut Left, action: &str) -> Result<What, Wrong> {
    let opcode = left.named("opcode", 0xffff, opcode, "CREATE_CQ")?.and_then(|n| u16::try_from(n).ok());
    let object = left.narrow("object", OBJECT)?;
    let action = match action {
        "fail" => CommandAction::Fail {
            status: left.narrow("status", 0xff)?.unwrap_or(1),
            syndrome: left.narrow("syndrome", WORD)?.unwrap_or(0),
        },
        "hang" => CommandAction::Hang,
        "late" => CommandAction::Late(left.delay()?),
        "corrupt" => CommandAction::Corrupt(left.narrow("bits", 4096)?.unwrap_or(1)),
        "signature" => CommandAction::Signature,
        "undelivered" => match left.number("delivery", 0x7f)?.map(delivery) {
            None => CommandAction::Undelivered(Delivery::Internal),
            Some(Some(delivery)) if delivery != Delivery::Ok => CommandAction::Undelivered(delivery),
            Some(_) => return wrong("delivery", "must be 0x1 to 0x9, or 0x10"),
        },
        other => {
            let known = ["fail", "hang", "late", "corrupt", "signature", "undelivered"];
            return left.no_action("command", other, &known);
        }
    };
    Ok(What::Command { opcode, object, action })
}

/// What may happen to entries of any queue; `most`: of a type.
fn entry(left: &mut Left, action: &str, most: u64) -> Result<Option<EntryAction>, Wrong> {
    Ok(Some(match action {
        "lose" => EntryAction::Lose,
        "late" => EntryAction::Late(left.delay()?),
        "twice" => EntryAction::Twice,
        "corrupt" => EntryAction::Corrupt(left.narrow("bits", 512)?.unwrap_or(1)),
        "kind" => match left.narrow("to", most)? {
            Some(kind) => EntryAction::Kind(kind),
            None => return wrong("to", "is needed: the type that the entry is to have"),
        },
        "overflow" => EntryAction::Overflow,
        _ => return Ok(None),
    }))
}

fn event(left: &mut Left, action: &str) -> Result<What, Wrong> {
    let eqn = left.narrow("eq", 0xff)?.map(Eqn);
    let kind = left.named("type", 0xff, event_type, "command")?.and_then(|n| u8::try_from(n).ok());
    let number = left.narrow("object", OBJECT)?;
    let port = left.narrow("port", 0xf)?;
    match entry(left, action, 0xff)? {
        Some(action) => Ok(What::Event { eqn, kind, number, port, action }),
        None => left.no_action("event", action, &["lose", "late", "twice", "corrupt", "kind", "overflow"]),
    }
}

fn completion(left: &mut Left, action: &str) -> Result<What, Wrong> {
    let cqn = left.narrow("cq", OBJECT)?.map(Cqn);
    let queue = left.narrow("queue", OBJECT)?.map(Qpn);
    let side = match left.text("side")?.as_deref() {
        None => None,
        Some("send") => Some(Side::Send),
        Some("receive") => Some(Side::Receive),
        Some(other) => {
            return wrong("side", format_args!("{other:?} is neither \"send\" nor \"receive\""));
        }
    };
    let wqe = left.narrow("wqe", 0xff)?;
    let action = match entry(left, action, 0xf)? {
        Some(action) => action,
        None if action == "error" => {
            let Some(syndrome) = left.narrow("syndrome", 0xff)? else {
                return wrong("syndrome", "is needed: that of the completion, such as 0x2");
            };
            let vendor = left.narrow("vendor", 0xff)?.unwrap_or_else(|| vendor_of(syndrome));
            EntryAction::Error { syndrome, vendor }
        }
        None => {
            let known = ["lose", "late", "twice", "corrupt", "kind", "overflow", "error"];
            return left.no_action("completion", action, &known);
        }
    };
    Ok(What::Completion { cqn, queue, side, wqe, action })
}

fn interrupt(left: &mut Left, action: &str) -> Result<What, Wrong> {
    let vector = left.narrow("vector", 0x7ff)?;
    let action = match action {
        "lose" => InterruptAction::Lose,
        "late" => InterruptAction::Late(left.delay()?),
        "twice" => InterruptAction::Twice,
        "other" => match left.narrow("to", 0x7ff)? {
            Some(to) => InterruptAction::Other(to),
            None => return wrong("to", "is needed: the vector that is raised instead"),
        },
        other => return left.no_action("interrupt", other, &["lose", "late", "twice", "other"]),
    };
    Ok(What::Interrupt { vector, action })
}

fn packet(left: &mut Left, action: &str) -> Result<What, Wrong> {
    let packet = |name: &str| packet_named(name).map(u64::from);
    let header = Header {
        port: left.narrow("port", 0xff)?,
        opcode: left.named("opcode", 0xff, packet, "rc-send-only")?.and_then(|n| u8::try_from(n).ok()),
        qpn: left.narrow("qp", OBJECT)?.map(Qpn),
        psn: left.narrow("psn", OBJECT)?.map(Psn::new),
    };
    let action = match action {
        "lose" => PacketAction::Lose,
        "late" => PacketAction::Late(left.delay()?),
        "twice" => PacketAction::Twice,
        "corrupt" => PacketAction::Corrupt(left.narrow("bits", 512)?.unwrap_or(1)),
        other => return left.no_action("packet", other, &["lose", "late", "twice", "corrupt"]),
    };
    Ok(What::Packet { header, action })
}

fn dma(left: &mut Left, action: &str) -> Result<What, Wrong> {
    let first = left.number("address", u64::MAX)?;
    let len = left.number("length", u64::MAX)?;
    let range = match (first, len) {
        (None, None) => None,
        (Some(first), len) => Some((first, first.saturating_add(len.unwrap_or(PAGE)))),
        (None, Some(_)) => return wrong("length", "says how many bytes from address on, which is not there"),
    };
    let action = match action {
        "unsupported" => DmaAction::Unsupported,
        "abort" => DmaAction::Abort,
        "poison" => DmaAction::Poison,
        "lose" => DmaAction::Lose,
        other => return left.no_action("dma", other, &["unsupported", "abort", "poison", "lose"]),
    };
    Ok(What::Dma { range, action })
}

/// What happens at a time, or behind a reset.
fn of_itself(left: &mut Left, on: &str, action: &str) -> Result<TimeAction, Wrong> {
    Ok(match action {
        "ail" => TimeAction::Ail(ailment(left)?),
        "away" => TimeAction::Away(left.lasting()?),
        "event" => {
            let Some(kind) = left.named("type", 0xff, event_type, "port-module")? else {
                return wrong("type", "is needed: that of the event");
            };
            let sub_type = left.narrow("sub_type", 0xff)?.unwrap_or(0);
            TimeAction::Event { kind: u8::try_from(kind).unwrap_or(0), sub_type, data: data(left)? }
        }
        "pages" => match left.take("pages") {
            Some(Scalar::Whole(pages)) if pages != 0 && pages.unsigned_abs() <= 1 << 20 => {
                TimeAction::Pages(pages as i32)
            }
            _ => return wrong("pages", "is needed: how many, negative if they are given back; at most 2^20"),
        },
        "interrupt" => match left.narrow("vector", 0x7ff)? {
            Some(vector) => TimeAction::Interrupt(vector),
            None => return wrong("vector", "is needed"),
        },
        "unplug" => {
            let port = left.narrow("port", 0xff)?.unwrap_or(1);
            TimeAction::Unplug { port, lasting: left.lasting()? }
        }
        "module" => {
            let port = left.narrow("port", 0xff)?.unwrap_or(1);
            let error = left.needed("error")?;
            let Some(error) = ModuleError::named(&error) else {
                let known = ModuleError::ALL.map(|(name, _)| name).join(", ");
                return wrong("error", format_args!("{error:?} is none of {known}"));
            };
            TimeAction::Module { port, error, lasting: left.lasting()? }
        }
        "heat" => match left.narrow("degrees", 0xff)? {
            Some(degrees) => TimeAction::Heat { degrees, lasting: left.ms("for_ms")? },
            None => return wrong("degrees", "is needed: degrees Celsius, at most 255"),
        },
        "pcie-error" => {
            let error = left.needed("error")?;
            let Some(error) = pcie_error_named(&error) else {
                return wrong(
                    "error",
                    format_args!("{error:?} is no name of one, such as \"completion-timeout\""),
                );
            };
            TimeAction::PcieError { error, header: header(left)? }
        }
        "retrain" => {
            let speed = left.named("speed", 4, generation, "gen1")?.filter(|speed| *speed > 0);
            let lanes = left.narrow("lanes", 32)?.filter(|lanes: &u8| lanes.is_power_of_two());
            let (Some(speed), Some(lanes)) = (speed.and_then(|s| u8::try_from(s).ok()), lanes) else {
                return wrong("lanes", "is needed: 1, 2, 4, 8, 16 or 32; and speed: \"gen1\" to \"gen4\"");
            };
            TimeAction::Retrain { link: PcieLink { lanes, speed }, lasting: left.ms("for_ms")? }
        }
        "remove" | "eject" | "insert" => {
            let event = match action {
                "remove" => SlotEvent::Removed,
                "eject" => SlotEvent::Ejected,
                _ => SlotEvent::Inserted,
            };
            let back = if event == SlotEvent::Inserted { None } else { left.ms("for_ms")? };
            TimeAction::Slot { event, back }
        }
        "degrade" => {
            let port = left.narrow("port", 0xff)?.unwrap_or(1);
            match left.narrow("lanes", 12)? {
                Some(lanes @ (1 | 2 | 4 | 8 | 12)) => {
                    TimeAction::Degrade { port, lanes, lasting: left.ms("for_ms")? }
                }
                _ => return wrong("lanes", "is needed: 1, 2, 4, 8 or 12"),
            }
        }
        "lid" | "pkey" | "gid-prefix" => {
            let port = left.narrow("port", 0xff)?.unwrap_or(1);
            TimeAction::Port { port, change: port_change(left, action)? }
        }
        other => {
            let known = [
                "ail",
                "away",
                "event",
                "pages",
                "interrupt",
                "unplug",
                "module",
                "heat",
                "pcie-error",
                "retrain",
                "degrade",
                "remove",
                "eject",
                "insert",
                "lid",
                "pkey",
                "gid-prefix",
            ];
            return left.no_action(on, other, &known);
        }
    })
}

/// What a subnet manager changes at a port.
fn port_change(left: &mut Left, action: &str) -> Result<PortChange, Wrong> {
    /// The last unicast LID (IBTA vol 1 4.1.3).
    const UNICAST: u64 = 0xbfff;
    match action {
        "lid" => match left.narrow("lid", UNICAST)? {
            Some(lid @ 1..) => Ok(PortChange::Lid(lid)),
            _ => wrong("lid", "is needed: that of one port, 1 to 0xbfff"),
        },
        "pkey" => {
            let index = left.narrow("index", 0xffff)?.unwrap_or(0);
            match left.narrow("pkey", 0xffff)? {
                Some(pkey) => Ok(PortChange::Pkey { index, pkey }),
                None => wrong("pkey", "is needed: what the entry is then"),
            }
        }
        _ => match left.text("prefix")?.map(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16)) {
            Some(Ok(prefix)) => Ok(PortChange::GidPrefix(prefix)),
            _ => wrong("prefix", "is needed: 64 bits as hexadecimal digits, such as \"0xfec0000000000000\""),
        },
    }
}

/// A generation of PCI Express by its name.
fn generation(name: &str) -> Option<u64> {
    ["gen1", "gen2", "gen3", "gen4"].iter().position(|known| *known == name).map(|n| n as u64 + 1)
}

/// The header of a TLP, as hexadecimal bytes; zeros behind what is given.
fn header(left: &mut Left) -> Result<[u32; 4], Wrong> {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(digits(left, "header", 16)?).for_each(|(to, from)| *to = from);
    let mut header = [0; 4];
    header.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(to, from)| *to = u32::from_be_bytes(*from));
    Ok(header)
}

fn ailment(left: &mut Left) -> Result<Ailment, Wrong> {
    let syndrome: u8 = left.narrow("syndrome", 0xff)?.unwrap_or(0);
    let frozen = left.switch("frozen")?.unwrap_or(false);
    let initializing = left.switch("initializing")?.unwrap_or(false);
    if syndrome == 0 && !frozen && !initializing {
        return wrong("syndrome", "is needed, or frozen = true, or initializing = true");
    }
    let mut vars = [0; 5];
    for (var, key) in
        vars.iter_mut().zip(["assert_var0", "assert_var1", "assert_var2", "assert_var3", "assert_var4"])
    {
        *var = left.narrow(key, WORD)?.unwrap_or(0);
    }
    let assert = Assert {
        vars,
        exit_ptr: left.narrow("assert_exit_ptr", WORD)?.unwrap_or(0),
        callra: left.narrow("assert_callra", WORD)?.unwrap_or(0),
        irisc: left.narrow("irisc", 0xff)?.unwrap_or(0),
    };
    Ok(Ailment {
        syndrome,
        extended: left.narrow("extended", 0xffff)?.unwrap_or(0),
        reset_required: left.switch("reset_required")?.unwrap_or(false),
        frozen,
        initializing,
        assert,
        stopped: left.switch("stopped")?.unwrap_or(true),
        lasting: left.lasting()?,
    })
}

/// Data of an event, as hexadecimal bytes.
fn data(left: &mut Left) -> Result<[u8; EVENT_DATA], Wrong> {
    let mut data = [0; EVENT_DATA];
    data.iter_mut().zip(digits(left, "data", EVENT_DATA)?).for_each(|(to, from)| *to = from);
    Ok(data)
}

/// So many bytes at most, as hexadecimal digits.
fn digits(left: &mut Left, key: &'static str, most: usize) -> Result<Vec<u8>, Wrong> {
    let Some(text) = left.text(key)? else { return Ok(Vec::new()) };
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map_while(|c| u8::try_from(c.to_digit(16)?).ok())
        .collect();
    let (bytes, rest) = digits.as_chunks::<2>();
    let all = text.chars().filter(|c| !c.is_whitespace()).count();
    if !rest.is_empty() || digits.len() != all || bytes.len() > most {
        return wrong(key, format_args!("must be up to {most} bytes, as hexadecimal digits"));
    }
    Ok(bytes.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests;
