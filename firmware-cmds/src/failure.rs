//! A command that is refused: status, a number for the place, and the reason in plain words.

use std::fmt;

use hca_spec::command::Status;

use crate::object::Kind;

/// Why a command is refused: a constant for each place, to which the numbers at hand are added.
///
/// The reason is a sentence; in front of it, each with a colon behind it, stand the command or the kind of object, and the field
/// that is wrong, if the status does not say that already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// The number the driver prints: a hash of the reason, so that each place has its own.
    pub(crate) syndrome: u32,
    pub(crate) why: &'static str,
    object: Option<u64>,
    got: Option<u64>,
    bound: Option<Bound>,
    wanted: Option<&'static str>,
}

/// What the value had to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Most(u64),
    Least(u64),
    Exactly(u64),
}

/// FNV-1a over the reason's text: stable from build to build, never zero.
const fn number(why: &str) -> u32 {
    let mut bytes = why.as_bytes();
    let mut hash = 0x811c_9dc5u32;
    while let [first, rest @ ..] = bytes {
        hash = (hash ^ *first as u32).wrapping_mul(0x0100_0193);
        bytes = rest;
    }
    hash | 1
}

impl Failure {
    pub(crate) const fn new(status: Status, why: &'static str) -> Self {
        Self { status, syndrome: number(why), why, object: None, got: None, bound: None, wanted: None }
    }

    /// Names the object that the command is about.
    pub(crate) fn of(self, object: impl Into<u64>) -> Self {
        Self { object: Some(object.into()), ..self }
    }

    /// Tells the value that was found.
    pub(crate) fn got(self, value: impl Into<u64>) -> Self {
        Self { got: Some(value.into()), ..self }
    }

    /// Tells the most that the value could be.
    pub(crate) fn limit(self, value: impl Into<u64>) -> Self {
        Self { bound: Some(Bound::Most(value.into())), ..self }
    }

    /// Tells the least that the value could be.
    pub(crate) fn least(self, value: impl Into<u64>) -> Self {
        Self { bound: Some(Bound::Least(value.into())), ..self }
    }

    /// Tells the one value that would be right.
    pub(crate) fn exactly(self, value: impl Into<u64>) -> Self {
        Self { bound: Some(Bound::Exactly(value.into())), ..self }
    }

    /// Tells in words what would be right.
    pub(crate) fn wanted(self, what: &'static str) -> Self {
        Self { wanted: Some(what), ..self }
    }

    /// What a driver's author wants to know of the refusal of `command`, whose input is about `target`.
    pub(crate) fn explained(&self, command: Refused, target: Option<(Kind, u32)>) -> Refusal {
        let object = match (target, self.object) {
            (Some((kind, _)), Some(number)) => Some((kind, number as u32)),
            (target, _) => target,
        };
        let Refused { name, opcode } = command;
        Refusal {
            command: name,
            opcode,
            status: self.status,
            syndrome: self.syndrome,
            object,
            field: self.field(object),
            found: self.found(object),
            expected: self.expected(),
            why: self.why,
        }
    }

    /// The field that is wrong: the reason names it, or it follows from the status.
    fn field(&self, object: Option<(Kind, u32)>) -> &'static str {
        if let Some(field) = field_of(self.why) {
            return field;
        }
        match self.status {
            Status::BadOp => "opcode",
            Status::BadSystemState | Status::BadQpState => "state",
            Status::BadInputLength => "input_length",
            Status::BadOutputLength => "output_length",
            Status::ExceedLimit => "number of objects",
            Status::ResourceBusy | Status::BadResourceState => "users",
            Status::BadIndex => "index",
            Status::NoResources => "pages",
            Status::BadPacket => "datagram",
            Status::BadSizeOutstandingCqes => "log_cq_size",
            _ => object.map_or("input", |(kind, _)| kind.number_field()),
        }
    }

    fn found(&self, object: Option<(Kind, u32)>) -> String {
        match (self.got.or(self.object), object) {
            (Some(value), _) => format!("{value:#x}"),
            (None, Some((_, number))) if number != 0 => format!("{number:#x}"),
            _ => "another".into(),
        }
    }

    fn expected(&self) -> String {
        match (self.wanted, self.bound) {
            (Some(what), _) => what.into(),
            (None, Some(Bound::Most(most))) => format!("at most {most:#x}"),
            (None, Some(Bound::Least(least))) => format!("at least {least:#x}"),
            (None, Some(Bound::Exactly(value))) => format!("{value:#x}"),
            (None, None) => match self.why.split_once("must be ") {
                Some((_, what)) => what.into(),
                None => match self.status {
                    Status::BadResource => "one that exists".into(),
                    Status::ResourceBusy | Status::BadResourceState => "0: nothing that uses it".into(),
                    Status::BadOp => "an opcode that the adapter has".into(),
                    _ => "0, or a value that the adapter has".into(),
                },
            },
        }
    }
}

/// The field that a reason names: before a colon, or the first word with an underscore.
fn field_of(why: &'static str) -> Option<&'static str> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let word = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(part);
    let is_field = |part: &&str| part.split(", ").all(word);
    let mut parts: Vec<&'static str> = why.split(": ").collect();
    let sentence = parts.pop()?;
    let named = parts.into_iter().find(is_field);
    named.or_else(|| sentence.split([' ', ',', ':', '(', ')']).find(|part| part.contains('_') && word(part)))
}

/// The command that was refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) name: &'static str,
    pub(crate) opcode: u16,
}

/// Why a command was refused, for its driver's author.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The command's name in the PRM.
    pub command: &'static str,
    /// Its opcode.
    pub opcode: u16,
    /// What the driver got.
    pub status: Status,
    /// The number of the place.
    pub syndrome: u32,
    /// The object that it was about, if there is one before the command.
    pub object: Option<(Kind, u32)>,
    /// The field that is wrong.
    pub field: &'static str,
    /// What is there.
    pub found: String,
    /// What would be right.
    pub expected: String,
    /// The reason: the rule that was broken.
    pub why: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, opcode, status, syndrome, object, field, found, expected, why } = self;
        if let Some((kind, number)) = object {
            write!(f, "{} {number:#x}: ", kind.name())?;
        }
        write!(f, "{command} ({opcode:#x}) refused: {why}; {field}: found {found}, expected {expected} ")?;
        write!(f, "({status:?}, {syndrome:#010x})")
    }
}

/// A reserved or out of range parameter.
pub(crate) const fn bad_param(why: &'static str) -> Failure {
    Failure::new(Status::BadParam, why)
}

/// An object that isn't there or can't be used here.
pub(crate) const fn bad_resource(why: &'static str) -> Failure {
    Failure::new(Status::BadResource, why)
}

/// An object that others still use.
pub(crate) const fn busy(why: &'static str) -> Failure {
    Failure::new(Status::ResourceBusy, why)
}

/// A full table.
pub(crate) const fn no_room(why: &'static str) -> Failure {
    Failure::new(Status::ExceedLimit, why)
}

/// Input shorter than the command's layout.
pub(crate) const SHORT: Failure =
    Failure::new(Status::BadInputLength, "the input is shorter than the command's layout");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_their_own_numbers() {
        let (a, b) = (bad_param("one"), bad_param("two"));
        assert_ne!(a.syndrome, b.syndrome);
        assert_ne!(SHORT.syndrome, 0);
        assert_eq!(a.got(1u32).syndrome, a.syndrome, "the number names the place, not the value");
    }

    #[test]
    fn says_what_was_found() {
        let create = Refused { name: "CREATE_EQ", opcode: 0x301 };
        let f = bad_param("CREATE_EQ: log_eq_size is above log_max_eq_sz").got(9u32).limit(8u32);
        let refusal = f.explained(create, None);
        assert_eq!(
            (refusal.field, &*refusal.found, &*refusal.expected),
            ("log_eq_size", "0x9", "at most 0x8")
        );
        let f = bad_resource("there is no EQ of that number").of(0x42u32);
        let refusal = f.explained(Refused { name: "DESTROY_EQ", opcode: 0x302 }, Some((Kind::Eq, 0x42)));
        assert_eq!((refusal.field, &*refusal.found), ("eqn", "0x42"));
        assert!(refusal.to_string().starts_with("EQ 0x42: DESTROY_EQ (0x302) refused: "), "{refusal}");
    }

    #[test]
    fn fields_that_reasons_name() {
        assert_eq!(field_of("QP: pd: the protection domain is not allocated"), Some("pd"));
        assert_eq!(field_of("user memory: umem_offset: beyond"), Some("umem_offset"));
        assert_eq!(field_of("CREATE_MKEY: start_addr, len: beyond"), Some("start_addr, len"));
        assert_eq!(field_of("CQ: c_eqn names no EQ"), Some("c_eqn"));
        assert_eq!(field_of("the command is legal only after INIT_HCA"), None);
    }
}
