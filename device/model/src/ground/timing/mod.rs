//! What everything takes in time.
//!
//! A [`Profile`] is a TOML file with the numbers and their sources; [`Timing`] turns it into durations;
//! [`crate::units`] are the parts of an adapter that are busy while they work, so that load turns into queueing.
//! Nothing else in the model knows a number.
//!
//! The way of a work request through the units is told in `specs/timing/UNITS.md`.

mod fabric;
mod pcie;
mod place;
mod profile;

use hca_firmware::commands::{TimeClass, find};
use hca_firmware::flash::Work;
use hca_spec::command::Opcode;
use hca_spec::wire::Operation;

use crate::ground::time::Ps;

pub use pcie::PcieCost;
pub use place::{Mark, Place};
pub use profile::{Memory, Profile, ProfileError};

/// Durations of one adapter.
///
/// The methods give times of an *idle* adapter; where units are shared, [`crate::units::Units`] adds the queueing.
#[derive(Clone, Debug)]
pub struct Timing {
    profile: Profile,
    pcie: PcieCost,
}

impl Timing {
    /// Durations according to `profile`.
    pub fn new(profile: &Profile) -> Self {
        Self { pcie: PcieCost::new(&profile.pcie, &profile.host), profile: profile.clone() }
    }

    /// The name of the profile.
    pub fn name(&self) -> &str {
        &self.profile.name
    }

    /// PCIe link arithmetic.
    pub const fn pcie(&self) -> PcieCost {
        self.pcie
    }

    /// The numbers themselves.
    pub(crate) const fn profile(&self) -> &Profile {
        &self.profile
    }

    /// From the CPU's store to a UAR page until the adapter sees it (posted PCIe write), on an idle link.
    pub const fn doorbell(&self) -> Ps {
        self.profile.pcie.mmio_write_ns.0
    }

    /// A DMA read of `bytes`: request, latency, completions. None for 0 bytes.
    pub fn dma_read(&self, bytes: usize) -> Ps {
        if bytes == 0 {
            return Ps::ZERO;
        }
        self.pcie.request(bytes) + self.pcie.read_latency() + self.pcie.completion(bytes)
    }

    /// A DMA write of `bytes`, until the host sees the last one. None for 0 bytes.
    pub fn dma_write(&self, bytes: usize) -> Ps {
        if bytes == 0 {
            return Ps::ZERO;
        }
        self.pcie.write_latency() + self.pcie.write(bytes)
    }

    /// Bytes of the send queue that one fetch reads at most.
    pub const fn wqe_prefetch(&self) -> usize {
        self.profile.send.prefetch_bytes.get() as usize
    }

    /// Fetches of one send queue that are under way or waiting to be used at most.
    pub const fn wqe_prefetches(&self) -> usize {
        self.profile.send.prefetches.get() as usize
    }

    /// How long a processing unit is busy with scheduling and parsing one send WQE, besides its packets.
    pub const fn wqe(&self) -> Ps {
        self.profile.send.wqe_ns.0
    }

    /// The same for having data read that the first packet of a WQE carries.
    pub const fn gather(&self) -> Ps {
        self.profile.send.gather_ns.0
    }

    /// The same for the address vector of a datagram.
    pub const fn datagram(&self) -> Ps {
        self.profile.send.datagram_ns.0
    }

    /// How long a processing unit is busy with a packet that it sends. Its bytes pass beside the unit.
    pub const fn transmit(&self) -> Ps {
        self.profile.send.packet_ns.0
    }

    /// How long a processing unit is busy with a frame that a send queue sends, beside [`Timing::wqe`].
    pub const fn frame(&self) -> Ps {
        self.profile.ethernet.frame_ns.0
    }

    /// The same for each frame but the first that a large send is cut into.
    pub const fn segment(&self) -> Ps {
        self.profile.ethernet.segment_ns.0
    }

    /// How long a processing unit is busy with a frame for a receive queue, its completion included.
    pub const fn deliver(&self) -> Ps {
        self.profile.ethernet.deliver_ns.0
    }

    /// How long a processing unit is busy with a packet with `payload` bytes that arrives: headers, context, PSN, key, and
    /// the writes to the host that it leads to.
    pub fn receive(&self, operation: Operation, payload: usize) -> Ps {
        use Operation as Op;
        let r = &self.profile.receive;
        let base = match operation {
            operation if operation.is_response() => r.answer_ns.0,
            // What the first packet has found holds for those that follow it.
            Op::SendMiddle | Op::SendLast | Op::SendLastImm | Op::SendLastInval => Ps::ZERO,
            Op::WriteMiddle | Op::WriteLast | Op::WriteLastImm => Ps::ZERO,
            _ => r.request_ns.0,
        };
        // Payload is written, and the completion of what takes a receive request.
        let writes = u64::from(payload > 0) + u64::from(takes_receive(operation));
        base + r.write_ns.0.times(writes)
    }

    /// From a request understood to its response (or ACK) begun; reading the data comes on top.
    pub const fn respond(&self) -> Ps {
        self.profile.receive.respond_ns.0
    }

    /// The same where what was understood has written to the host: until that is there, whoever simulates the way to it.
    pub fn acknowledge(&self) -> Ps {
        self.respond() + self.profile.pcie.crossing
    }

    /// How long one atomic keeps its address locked: read, modify, write issued.
    pub fn atomic(&self) -> Ps {
        const OPERAND: usize = 8;
        self.dma_read(OPERAND) + self.profile.receive.atomic_ns.0
    }

    /// From a reason until the host's interrupt controller has the MSI-X message: an EQE, then a write of 4 bytes.
    pub fn interrupt(&self) -> Ps {
        const MSIX_DATA: usize = 4;
        self.profile.completion.eqe_ns.0 + self.profile.completion.interrupt_ns.0 + self.dma_write(MSIX_DATA)
    }

    /// From a packet's departure until it arrives again at the same adapter.
    pub const fn loopback(&self) -> Ps {
        self.profile.port.loopback_ns.0
    }

    /// MAC and PHY of an adapter at its end of a link, in either direction: a part of what the link takes.
    pub const fn phy(&self) -> Ps {
        self.profile.port.phy_ns.0
    }

    /// From the port's start to the link's being up.
    pub const fn link_training(&self) -> Ps {
        self.profile.link_training()
    }

    /// Execution of the command `opcode` with `input_len` bytes of input, DMA not included.
    pub fn command(&self, opcode: u16, input_len: usize) -> Ps {
        let c = &self.profile.command;
        let class = match class_of(opcode) {
            TimeClass::Query => c.query_us.0,
            TimeClass::Create => c.create_us.0,
            TimeClass::Destroy => c.destroy_us.0,
            TimeClass::Modify => c.modify_us.0,
            TimeClass::Pages => c.pages_us.0,
            TimeClass::Lifecycle => c.lifecycle_us.0,
            TimeClass::Mad => c.mad_us.0,
            TimeClass::Other => c.other_us.0,
        };
        class + c.input_ps_per_byte.times(input_len)
    }

    /// What work on flash memory adds to a command: data sheets of serial NOR memory have some 45 ms for a sector of 4 KiB and
    /// 0.7 ms for a page of 256 bytes. An estimate: of which kind an adapter's is, is not known.
    pub fn flash(&self, work: Work) -> Ps {
        const ERASE: Ps = Ps::from_ms(45);
        const PROGRAM_BYTE: Ps = Ps::from_ns(2734);
        ERASE.times(work.erased.into()) + PROGRAM_BYTE.times(work.programmed.into())
    }

    /// Frequency of the internal timer and of CQE timestamps, in kilohertz.
    pub const fn timer_khz(&self) -> u64 {
        self.profile.clock.timer_khz.get()
    }

    /// Period of the health counter.
    pub const fn health_tick(&self) -> Ps {
        self.profile.clock.health_tick_ms.0
    }
}

/// Whether a packet ends a message that takes a receive request.
pub const fn takes_receive(operation: Operation) -> bool {
    use Operation as Op;
    matches!(
        operation,
        Op::SendOnly
            | Op::SendOnlyImm
            | Op::SendOnlyInval
            | Op::SendLast
            | Op::SendLastImm
            | Op::SendLastInval
            | Op::WriteOnlyImm
            | Op::WriteLastImm
    )
}

/// The class of a command; one that the adapter does not have takes as long as the others.
fn class_of(opcode: u16) -> TimeClass {
    Opcode::from_u16(opcode).and_then(find).map_or(TimeClass::Other, |command| command.time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_take_the_time_of_their_class() {
        assert_eq!(class_of(Opcode::Rst2InitQp as u16), TimeClass::Modify);
        assert_eq!([class_of(Opcode::GenEqe as u16), class_of(0xffff)], [TimeClass::Other; 2]);
        let t = Timing::new(&Profile::connectx4());
        assert!(t.command(Opcode::CreateMkey as u16, 4096) > t.command(Opcode::CreateMkey as u16, 0));
        assert!(t.command(Opcode::InitHca as u16, 0) > t.command(Opcode::QueryQp as u16, 0));
        assert_eq!(t.flash(Work::default()), Ps::ZERO);
        assert_eq!(t.flash(Work { erased: 1, programmed: 1000 }), Ps::from_ns(45_000_000 + 2_734_000));
    }
}
