//! Why a packet is dropped where it arrives, and which counter of the port says so.

use hca_firmware::port::PortCounters;
use hca_spec::wire::Operation;

/// Why bytes are not a packet a port may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The bytes end before the headers and CRCs do.
    #[error("packet of {len} bytes ends within its headers")]
    Truncated {
        /// Bytes there are.
        len: usize,
    },
    /// The variant CRC is wrong: the packet changed on the link.
    #[error("VCRC is {found:04x}, computed {expected:04x} (IBTA vol 1 7.8.2)")]
    Vcrc {
        /// In the packet.
        found: u16,
        /// Computed.
        expected: u16,
    },
    /// The frame check sequence is wrong: the frame changed on the link.
    #[error("FCS is {found:08x}, computed {expected:08x} (IEEE 802.3 3.2.9)")]
    Fcs {
        /// In the frame.
        found: u32,
        /// Computed.
        expected: u32,
    },
    /// What is in front of a RoCE packet's BTH is wrong.
    #[error("RoCE: {0} (IBTA vol 1 annex A17)")]
    Network(&'static str),
    /// It came marked as bad: a switch that had begun to forward it before it saw the wrong VCRC ended it with EBP.
    #[error("the packet ended with EBP: it was bad before it came here (IBTA vol 1 7.3)")]
    Marked,
    /// The link version is not 0.
    #[error("LRH:LVer is {0}, must be 0 (IBTA vol 1 7.7.2)")]
    LinkVersion(u8),
    /// The LRH's length is not that of the bytes.
    #[error("LRH:PktLen says {said} bytes up to the ICRC, there are {len} (IBTA vol 1 7.7.8)")]
    Length {
        /// What the header says.
        said: usize,
        /// Bytes there are.
        len: usize,
    },
    /// Not an IBA transport packet.
    #[error("LRH:LNH is {0}: raw packets are not supported (IBTA vol 1 7.7.5)")]
    Raw(u8),
    /// The invariant CRC is wrong although the VCRC is right: the packet changed within a switch.
    #[error("ICRC is {found:08x}, computed {expected:08x} (IBTA vol 1 7.8.1)")]
    Icrc {
        /// In the packet.
        found: u32,
        /// Computed.
        expected: u32,
    },
    /// A field of the GRH has a value it can't have.
    #[error(
        "GRH: IPVer {version} must be 6, NxtHdr {next:#x} must be 0x1b, PayLen {said} must be {len} (IBTA vol 1 8.3)"
    )]
    Grh {
        /// IPVer.
        version: u8,
        /// NxtHdr.
        next: u8,
        /// PayLen.
        said: usize,
        /// Bytes from BTH to ICRC.
        len: usize,
    },
    /// The transport version is not 0.
    #[error("BTH:TVer is {0}, must be 0 (IBTA vol 1 9.2.4)")]
    TransportVersion(u8),
    /// There is no such opcode, or not on a transport that the adapter has.
    #[error("BTH:OpCode {0:#04x} is reserved or of a transport that is not supported (IBTA vol 1 9.2.1)")]
    Opcode(u8),
    /// More pad bytes than payload.
    #[error("BTH:PadCnt is {pad}, but only {len} bytes follow the headers (IBTA vol 1 9.2.3)")]
    Pad {
        /// Pad count.
        pad: usize,
        /// Bytes between headers and ICRC.
        len: usize,
    },
    /// Payload where the opcode has none, or more than the largest MTU.
    #[error("{len} bytes of payload, but {operation:?} may carry {max} (IBTA vol 1 9.4)")]
    Payload {
        /// The operation.
        operation: Operation,
        /// Bytes of payload.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
}

/// A counter of the port that a dropped packet adds to (IBTA vol 1 16.1.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortCounter {
    /// `PortRcvErrors`: CRC errors, and wrong LVer, length or VL.
    RcvErrors,
    /// `PortRcvRemotePhysicalErrors`: packets that another port ended with EBP.
    RcvRemotePhysicalErrors,
}

impl PortCounter {
    /// Adds to it.
    pub(crate) fn count(self, counters: &mut PortCounters) {
        let counter = match self {
            Self::RcvErrors => &mut counters.rcv_errors,
            Self::RcvRemotePhysicalErrors => &mut counters.rcv_remote_physical_errors,
        };
        *counter = counter.saturating_add(1);
    }
}

impl Malformed {
    /// The port's counter that this drop adds to; `None` where the packet is dropped in silence, as
    /// the transport's header checks do (IBTA vol 1 9.6.1).
    pub const fn counter(&self) -> Option<PortCounter> {
        match self {
            Self::Truncated { .. }
            | Self::Vcrc { .. }
            | Self::Fcs { .. }
            | Self::Icrc { .. }
            | Self::LinkVersion(_)
            | Self::Length { .. } => Some(PortCounter::RcvErrors),
            Self::Marked => Some(PortCounter::RcvRemotePhysicalErrors),
            Self::Raw(_)
            | Self::Grh { .. }
            | Self::Network(_)
            | Self::TransportVersion(_)
            | Self::Opcode(_)
            | Self::Pad { .. }
            | Self::Payload { .. } => None,
        }
    }
}
