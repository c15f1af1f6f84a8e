//! A command that is refused: status, a number for the place, and the reason in plain words.

use hca_spec::command::Status;

/// Why a command is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// The number the driver prints: a hash of the reason, so that each place has its own.
    pub(crate) syndrome: u32,
    pub(crate) why: &'static str,
}

/// FNV-1a over the reason's text: stable from build to build, never zero.
const fn number(why: &str) -> u32 {
    let bytes = why.as_bytes();
    let mut hash = 0x811c_9dc5u32;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    hash | 1
}

impl Failure {
    pub(crate) const fn new(status: Status, why: &'static str) -> Self {
        Self { status, syndrome: number(why), why }
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
    Failure::new(Status::BadInputLength, "the input is shorter than the command");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_their_own_numbers() {
        let (a, b) = (bad_param("one"), bad_param("two"));
        assert_ne!(a.syndrome, b.syndrome);
        assert_ne!(SHORT.syndrome, 0);
    }
}
