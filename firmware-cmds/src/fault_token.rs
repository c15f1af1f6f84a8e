//! What a page fault of memory is known by: drivers repeat it in PAGE_FAULT_RESUME, and look at nothing in it.
//!
//! The interface gives a token 48 bits. What is in them is softhca's choice: everything that finds the queue pair that waits, so that
//! nothing has to be kept of a fault but by that queue pair.

use hca_spec::ids::Qpn;

const QPN: u64 = 0xff_ffff;
const SERIAL_SHIFT: u32 = 32;
const REQUESTER: u64 = 1 << 47;

/// The token of a page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultToken {
    /// The queue pair that waits; of a DC target: the target.
    pub qpn: Qpn,
    /// Its requester waits; else its responder.
    pub requester: bool,
    /// Counts the function's faults, 15 bits: what a driver says late, of a fault that is gone, is not taken for the next one.
    pub serial: u16,
}

impl FaultToken {
    /// One with that count; bits that it has no room for are cut off.
    pub fn new(qpn: Qpn, requester: bool, serial: u16) -> Self {
        Self { qpn, requester, serial: serial & (REQUESTER >> SERIAL_SHIFT).saturating_sub(1) as u16 }
    }

    /// As an event has it.
    pub fn bits(self) -> u64 {
        let side = if self.requester { REQUESTER } else { 0 };
        side | u64::from(self.serial) << SERIAL_SHIFT | u64::from(self.qpn.0) & QPN
    }

    /// The token of these bits. `None`: no event ever had them.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let token = Self::new(Qpn((bits & QPN) as u32), bits & REQUESTER != 0, (bits >> SERIAL_SHIFT) as u16);
        (token.bits() == bits).then_some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_one_token() {
        for (requester, serial, bits) in [(false, 0, 0x12_3456), (true, 0x7fff, 0xffff_0012_3456)] {
            let token = FaultToken::new(Qpn(0x12_3456), requester, serial);
            assert_eq!((token.bits(), FaultToken::from_bits(bits)), (bits, Some(token)));
        }
        assert_eq!(FaultToken::new(Qpn(1), true, 0xffff), FaultToken::new(Qpn(1), true, 0x7fff));
        assert_eq!(FaultToken::from_bits(1 << 24), None);
        assert_eq!(FaultToken::from_bits(1 << 48), None);
    }
}
