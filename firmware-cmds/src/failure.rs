//! A command that is refused: status, a number for the place, and the reason in plain words.

use std::fmt;

use hca_spec::command::Status;

/// Why a command is refused: a constant for each place, to which the numbers at hand are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// The number the driver prints: a hash of the reason, so that each place has its own.
    pub(crate) syndrome: u32,
    pub(crate) why: &'static str,
    object: Option<u64>,
    got: Option<u64>,
    limit: Option<u64>,
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
        Self { status, syndrome: number(why), why, object: None, got: None, limit: None }
    }

    /// Names the object that the command is about.
    pub(crate) fn of(self, object: impl Into<u64>) -> Self {
        Self { object: Some(object.into()), ..self }
    }

    /// Tells the value that was found.
    pub(crate) fn got(self, value: impl Into<u64>) -> Self {
        Self { got: Some(value.into()), ..self }
    }

    /// Tells the bound that the value had to keep.
    pub(crate) fn limit(self, value: impl Into<u64>) -> Self {
        Self { limit: Some(value.into()), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why)?;
        if let Some(object) = self.object {
            write!(f, "; object {object:#x}")?;
        }
        if let Some(got) = self.got {
            write!(f, "; found {got:#x}")?;
        }
        if let Some(limit) = self.limit {
            write!(f, "; limit {limit:#x}")?;
        }
        Ok(())
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
        let f = bad_param("size").of(0x42u32).got(9u32).limit(8u32);
        assert_eq!(f.to_string(), "size; object 0x42; found 0x9; limit 0x8");
    }
}
