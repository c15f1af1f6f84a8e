//! What can go wrong, in one type.

use core::fmt;
use hca_spec::command::{Delivery, Opcode, Status};

/// An error of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// Registers read as all ones: there is no adapter, or it fell off the bus.
    Absent,
    /// The adapter speaks another revision of the command interface.
    InterfaceRevision(u32),
    /// Size and stride of the command queue are not usable.
    CommandQueueGeometry {
        /// log2 of the entries.
        log_size: u32,
        /// log2 of an entry's bytes.
        log_stride: u32,
    },
    /// The firmware executed the command and refused it.
    Command {
        /// The command's opcode.
        opcode: u16,
        /// Status byte, see [`Status`].
        status: u8,
        /// The firmware's number of the place that refused.
        syndrome: u32,
    },
    /// The command did not reach the firmware.
    Delivery {
        /// The command's opcode.
        opcode: u16,
        /// Delivery status, see [`Delivery`].
        status: u8,
    },
    /// The adapter did not react within the configured number of polls.
    Timeout {
        /// What was awaited.
        what: &'static str,
        /// Polls made.
        polls: u32,
    },
    /// Every command slot is taken.
    NoCommandSlot,
    /// The bus has no more DMA memory.
    OutOfMemory,
    /// The adapter lacks something the driver needs.
    Unsupported(&'static str),
    /// The caller's arguments are not valid.
    Invalid(&'static str),
    /// The work queue has no room for the request.
    QueueFull,
    /// A management datagram came back with this status (IBTA 13.4.7).
    Mad(u16),
}

impl Error {
    /// The status of a refused command, when it is one the interface names.
    pub fn status(&self) -> Option<Status> {
        let Error::Command { status, .. } = self else { return None };
        STATUSES.iter().copied().find(|s| *s as u8 == *status)
    }
}

const STATUSES: [Status; 17] = [
    Status::Ok,
    Status::InternalError,
    Status::BadOp,
    Status::BadParam,
    Status::BadSystemState,
    Status::BadResource,
    Status::ResourceBusy,
    Status::NotReady,
    Status::ExceedLimit,
    Status::BadResourceState,
    Status::BadIndex,
    Status::NoResources,
    Status::BadQpState,
    Status::BadPacket,
    Status::BadSizeOutstandingCqes,
    Status::BadInputLength,
    Status::BadOutputLength,
];

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::Absent => write!(f, "the adapter does not answer (registers read as all ones)"),
            Error::InterfaceRevision(rev) => write!(f, "command interface revision {rev}, 5 is needed"),
            Error::CommandQueueGeometry { log_size, log_stride } => {
                write!(f, "command queue of 2^{log_size} entries of 2^{log_stride} bytes is not usable")
            }
            Error::Command { opcode, status, syndrome } => {
                match Opcode::from_u16(opcode) {
                    Some(name) => write!(f, "{name:?}")?,
                    None => write!(f, "command {opcode:#x}")?,
                }
                match self.status() {
                    Some(name) => write!(f, " refused: {name:?} ({status:#x}), syndrome {syndrome:#x}"),
                    None => write!(f, " refused: status {status:#x}, syndrome {syndrome:#x}"),
                }
            }
            Error::Delivery { opcode, status } => {
                write!(f, "command {opcode:#x} was not delivered: status {status:#x}")
            }
            Error::Timeout { what, polls } => write!(f, "{what}: nothing within {polls} polls"),
            Error::NoCommandSlot => write!(f, "every command slot is taken"),
            Error::OutOfMemory => write!(f, "out of DMA memory"),
            Error::Unsupported(what) => write!(f, "the adapter lacks {what}"),
            Error::Invalid(why) => write!(f, "invalid request: {why}"),
            Error::QueueFull => write!(f, "the work queue is full"),
            Error::Mad(status) => write!(f, "management datagram answered with status {status:#x}"),
        }
    }
}

impl core::error::Error for Error {}

/// Whether a delivery status means that the firmware saw the command.
pub(crate) const fn delivered(status: u8) -> bool {
    status == Delivery::Ok as u8
}
