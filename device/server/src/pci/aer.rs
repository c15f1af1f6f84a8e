//! What the registers of a function say of errors: status, device status, advanced error reporting.
//!
//! Source: PCIe 6.2 (signaling and logging), 7.5.1.2 (status), 7.8.5 (device status), 7.10 (advanced error reporting).
//!
//! Which message goes to the root complex with that (ERR_COR, ERR_NONFATAL, ERR_FATAL) is said here; who has the slot sends it.

use std::fmt;

use hca_model::fault::{ErrorMessage, PcieError, PcieEvent};

use super::config::{ConfigSpace, reg};

/// Status register: master data parity error, received target abort, received master abort, signaled system error, detected parity
/// error.
const MASTER_PARITY: u16 = 1 << 8;
const TARGET_ABORT: u16 = 1 << 12;
const MASTER_ABORT: u16 = 1 << 13;
const SYSTEM_ERROR: u16 = 1 << 14;
const PARITY: u16 = 1 << 15;
/// Command register: parity error response, SERR# enable.
const PARITY_RESPONSE: u16 = 1 << 6;
const SERR: u16 = 1 << 8;
/// Device status, behind device control: bits 0 to 3, and those that enable reports of the same in device control.
const DEVICE_STATUS: usize = 2;
const CORRECTABLE: u16 = 1;
const NON_FATAL: u16 = 1 << 1;
const FATAL: u16 = 1 << 2;
const UNSUPPORTED: u16 = 1 << 3;
/// Registers of the capability.
const STATUS: usize = 0x04;
const MASK: usize = 0x08;
const SEVERITY: usize = 0x0c;
const CORRECTABLE_STATUS: usize = 0x10;
const CORRECTABLE_MASK: usize = 0x14;
const CONTROL: usize = 0x18;
const HEADER_LOG: usize = 0x1c;
/// First error pointer, in control.
const POINTER: u32 = 0x1f;

/// A message about an error to the root complex (PCIe 2.2.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A correctable one.
    Correctable,
    /// An uncorrectable one that is not fatal.
    NonFatal,
    /// A fatal one.
    Fatal,
}

impl From<Message> for ErrorMessage {
    fn from(message: Message) -> Self {
        match message {
            Message::Correctable => Self::Correctable,
            Message::NonFatal => Self::NonFatal,
            Message::Fatal => Self::Fatal,
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Message::Correctable => "ERR_COR",
            Message::NonFatal => "ERR_NONFATAL",
            Message::Fatal => "ERR_FATAL",
        })
    }
}

/// Platforms' firmware has functions report errors; nothing else of device control changes.
pub(super) fn enable_reports(space: &mut ConfigSpace) {
    let at = space.places.device_control;
    space.set_u16(at, space.get_u16(at) | CORRECTABLE | NON_FATAL | FATAL);
}

/// Logs an event. Returns the message about it that is to be sent.
pub(super) fn log(space: &mut ConfigSpace, event: PcieEvent) -> Option<Message> {
    match event {
        PcieEvent::ReceivedMasterAbort => raise(space, MASTER_ABORT),
        PcieEvent::ReceivedTargetAbort => raise(space, TARGET_ABORT),
        PcieEvent::Error(PcieError::Correctable(bit), _) => return correctable(space, bit),
        PcieEvent::Error(PcieError::Uncorrectable(bit), header) => return uncorrectable(space, bit, header),
    }
    None
}

fn raise(space: &mut ConfigSpace, bits: u16) {
    space.set_u16(reg::STATUS, space.get_u16(reg::STATUS) | bits);
}

fn set_u32(space: &mut ConfigSpace, at: usize, value: u32) {
    space.put(at, &value.to_le_bytes());
}

fn detected(space: &mut ConfigSpace, bits: u16) {
    let at = space.places.device_control.saturating_add(DEVICE_STATUS);
    space.set_u16(at, space.get_u16(at) | bits);
}

fn correctable(space: &mut ConfigSpace, bit: u8) -> Option<Message> {
    let (aer, error) = (space.places.errors, 1u32 << (bit & 0x1f));
    set_u32(space, aer + CORRECTABLE_STATUS, space.get_u32(aer + CORRECTABLE_STATUS) | error);
    detected(space, CORRECTABLE);
    let masked = space.get_u32(aer + CORRECTABLE_MASK) & error != 0;
    let reports = !masked && space.get_u16(space.places.device_control) & CORRECTABLE != 0;
    reports.then_some(Message::Correctable)
}

fn uncorrectable(space: &mut ConfigSpace, bit: u8, header: [u32; 4]) -> Option<Message> {
    let (aer, number) = (space.places.errors, u32::from(bit & 0x1f));
    let error = 1u32 << number;
    let (before, masked) = (space.get_u32(aer + STATUS), space.get_u32(aer + MASK) & error != 0);
    set_u32(space, aer + STATUS, before | error);
    let class = if space.get_u32(aer + SEVERITY) & error != 0 { FATAL } else { NON_FATAL };
    let which = PcieError::Uncorrectable(bit);
    detected(space, class | if which == PcieError::UNSUPPORTED_REQUEST { UNSUPPORTED } else { 0 });
    let command = space.command();
    if which == PcieError::POISONED {
        raise(space, PARITY | if command & PARITY_RESPONSE != 0 { MASTER_PARITY } else { 0 });
    }
    if masked {
        return None;
    }
    // The first one's header stays until software has cleared its bit (PCIe 6.2.4.2).
    let control = space.get_u32(aer + CONTROL);
    if before & 1u32 << (control & POINTER) == 0 {
        set_u32(space, aer + CONTROL, control & !POINTER | number);
        for (i, word) in header.into_iter().enumerate() {
            set_u32(space, aer + HEADER_LOG + 4 * i, word);
        }
    }
    let reports = space.get_u16(space.places.device_control) & class != 0 || command & SERR != 0;
    if reports && command & SERR != 0 {
        raise(space, SYSTEM_ERROR);
    }
    reports.then_some(if class == FATAL { Message::Fatal } else { Message::NonFatal })
}

#[cfg(test)]
mod tests {
    use hca_model::PortKind;
    use hca_model::personality::Personality;

    use super::*;

    const AER: usize = 0x100;
    const DEVCTL: usize = 0x68;
    const DEVSTA: usize = 0x6a;
    const HEADER: [u32; 4] = [0x4a00_0001, 2, 3, 4];

    fn space() -> ConfigSpace {
        ConfigSpace::new(&Personality::default_kind(), PortKind::InfiniBand, "")
    }

    fn error(bit: u8) -> PcieEvent {
        PcieEvent::Error(PcieError::Uncorrectable(bit), HEADER)
    }

    #[test]
    fn correctable_errors_are_masked_or_told() {
        let mut space = space();
        let event = PcieEvent::Error(PcieError::Correctable(6), [0; 4]);
        assert_eq!(space.log(event), None, "nobody wants to hear of it");
        assert_eq!((space.get_u32(AER + 0x10), space.get_u16(DEVSTA) & 0xf), (1 << 6, 1));
        space.write(DEVCTL, &[1, 0]);
        assert_eq!(space.log(event), Some(Message::Correctable));
        // Advisory ones are masked after reset.
        assert_eq!(space.log(PcieEvent::Error(PcieError::Correctable(13), [0; 4])), None);
        space.write(AER + 0x10, &u32::MAX.to_le_bytes());
        space.write(DEVSTA, &[0xf, 0]);
        assert_eq!((space.get_u32(AER + 0x10), space.get_u16(DEVSTA) & 0xf), (0, 0));
    }

    #[test]
    fn the_first_error_keeps_its_header() {
        let mut space = space();
        space.write(0x04, &[6, 1]);
        assert_eq!(space.log(error(14)), Some(Message::NonFatal), "SERR# enable is enough");
        assert_eq!(space.get_u32(AER + 4), 1 << 14);
        assert_eq!(space.get_u32(AER + 0x18) & 0x1f, 14);
        assert_eq!([0, 4, 8, 12].map(|at| space.get_u32(AER + 0x1c + at)), HEADER);
        assert_eq!((space.get_u16(DEVSTA) & 0xf, space.get_u16(0x06) & SYSTEM_ERROR), (2, SYSTEM_ERROR));
        // A malformed TLP is fatal after reset. The pointer stays.
        let fatal = space.log(PcieEvent::Error(PcieError::Uncorrectable(18), [9; 4]));
        assert_eq!(fatal, Some(Message::Fatal));
        assert_eq!((space.get_u32(AER + 0x18) & 0x1f, space.get_u32(AER + 0x1c)), (14, HEADER[0]));
        assert_eq!(space.get_u16(DEVSTA) & 0xf, 6);
        space.write(AER + 4, &(1u32 << 14).to_le_bytes());
        space.log(PcieEvent::Error(PcieError::Uncorrectable(18), [9; 4]));
        assert_eq!((space.get_u32(AER + 0x18) & 0x1f, space.get_u32(AER + 0x1c)), (18, 9));
    }

    #[test]
    fn severity_and_mask_are_software_s() {
        let mut space = space();
        space.write(AER + 0x0c, &0xffff_ffffu32.to_le_bytes());
        space.write(AER + 0x08, &(1u32 << 12).to_le_bytes());
        space.write(DEVCTL, &[0xf, 0]);
        assert_eq!(space.log(error(12)), None, "masked");
        assert_eq!((space.get_u32(AER + 4), space.get_u32(AER + 0x1c)), (1 << 12, 0));
        assert_eq!((space.get_u16(DEVSTA) & 0xf, space.get_u16(0x06) & PARITY), (4, PARITY));
        assert_eq!(space.log(error(20)), Some(Message::Fatal));
        assert_eq!(space.get_u16(DEVSTA) & 0xf, 0xc, "an unsupported request has a bit of its own");
    }

    #[test]
    fn failed_reads_are_in_the_status_register() {
        let mut space = space();
        assert_eq!(space.log(PcieEvent::ReceivedMasterAbort), None);
        assert_eq!(space.log(PcieEvent::ReceivedTargetAbort), None);
        assert_eq!(space.get_u16(0x06) & 0xff00, MASTER_ABORT | TARGET_ABORT);
        space.write(0x06, &[0, 0xff]);
        assert_eq!(space.get_u16(0x06) & 0xff00, 0);
    }

    #[test]
    fn firmware_of_the_platform_enables_reports_until_reset() {
        let mut space = space();
        space.enable_reports();
        assert_eq!(space.get_u16(DEVCTL) & 0xf, 7);
        assert_eq!(space.log(error(14)), Some(Message::NonFatal));
        space.reset();
        assert_eq!(space.log(error(14)), None);
    }

    #[test]
    fn a_link_that_trained_to_less_says_so() {
        let mut space = space();
        space.set_link(4, 1);
        assert_eq!(space.get_u16(0x72), 0x1041);
        assert_eq!(space.get_u32(0x6c) & 0x3ff, 0x103, "what it can do stays");
    }
}
