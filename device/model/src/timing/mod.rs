//! What everything takes in time.
//!
//! A [`Profile`] is a TOML file with the numbers and their sources; [`Timing`] turns it into durations
//! and methods; [`Units`] are the parts of an adapter that are busy while they work, so that load turns
//! into queueing. Nothing else in the model knows a number.

mod fabric;
mod profile;
mod unit;

use hca_spec::command::Opcode;

use crate::time::Ps;

pub use profile::{Profile, ProfileError};
pub use unit::{ReadEngine, Unit};

use profile::Pcie;

/// PCIe link arithmetic (source: pcie-bench/pcie-model, SIGCOMM 2018): how long TLPs occupy the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcieCost {
    /// Femtoseconds per byte, after line code and data link layer traffic.
    fs_per_byte: u64,
    max_payload: u64,
    max_read_request: u64,
    request_overhead: u64,
    completion_overhead: u64,
    read_latency: Ps,
    write_latency: Ps,
}

impl PcieCost {
    fn new(pcie: &Pcie) -> Self {
        const FS_PER_S: f64 = 1e15;
        let (data, line) = pcie.encoding;
        let raw =
            pcie.lane_gt_per_s.get() * 1e9 * data.get() as f64 / line.get() as f64 * pcie.lanes.get() as f64;
        // An Ack and a flow control update, each once per interval.
        let data_link = 2.0 * pcie.dllp_bytes.get() as f64 / pcie.dllp_interval.get() as f64;
        let share = (1.0 - data_link - pcie.skp_share.get()).max(0.01);
        Self {
            fs_per_byte: (8.0 * FS_PER_S / (raw * share)).round() as u64,
            max_payload: pcie.max_payload.get(),
            max_read_request: pcie.max_read_request.get(),
            request_overhead: pcie.request_overhead.get(),
            completion_overhead: pcie.completion_overhead.get(),
            read_latency: pcie.read_ns.0,
            write_latency: pcie.write_ns.0,
        }
    }

    fn on_link(&self, bytes: u64) -> Ps {
        const FS_PER_PS: u64 = 1_000;
        Ps(bytes.saturating_mul(self.fs_per_byte).div_ceil(FS_PER_PS))
    }

    /// How long writing `bytes` occupies the direction to the host: data and one header per MPS.
    pub fn write(&self, bytes: usize) -> Ps {
        let bytes = bytes as u64;
        self.on_link(bytes + bytes.div_ceil(self.max_payload) * self.request_overhead)
    }

    /// How long the data of a read of `bytes` occupies the direction from the host: data and one
    /// header per completion of MPS.
    pub fn completion(&self, bytes: usize) -> Ps {
        let bytes = bytes as u64;
        self.on_link(bytes + bytes.div_ceil(self.max_payload) * self.completion_overhead)
    }

    /// How long the requests for `bytes` occupy the direction to the host: one header per MRRS.
    pub fn request(&self, bytes: usize) -> Ps {
        self.on_link((bytes as u64).div_ceil(self.max_read_request) * self.request_overhead)
    }

    /// Bytes that one read request asks for at most.
    pub const fn max_read_request(&self) -> usize {
        self.max_read_request as usize
    }

    /// From a read request's departure to the first byte of its data.
    pub const fn read_latency(&self) -> Ps {
        self.read_latency
    }

    /// From the departure of a posted write's last byte until the host sees it.
    pub const fn write_latency(&self) -> Ps {
        self.write_latency
    }
}

/// Durations of one adapter.
///
/// The methods give times of an *idle* adapter; where units are shared, [`Units`] adds the queueing.
#[derive(Clone, Debug)]
pub struct Timing {
    profile: Profile,
    pcie: PcieCost,
}

impl Timing {
    /// Durations according to `profile`.
    pub fn new(profile: &Profile) -> Self {
        Self { pcie: PcieCost::new(&profile.pcie), profile: profile.clone() }
    }

    /// The name of the profile.
    pub fn name(&self) -> &str {
        &self.profile.name
    }

    /// PCIe link arithmetic.
    pub const fn pcie(&self) -> PcieCost {
        self.pcie
    }

    /// Fresh, idle units.
    pub fn units(&self) -> Units {
        let (send, receive) = (&self.profile.send, &self.profile.receive);
        Units {
            transmit: Unit::new(send.units.get(), Ps::ZERO).in_order(),
            receive: Unit::new(receive.units.get(), Ps::ZERO).in_order(),
            command: Unit::new(1, Ps::ZERO),
            atomic: Unit::new(1, Ps::ZERO),
            read: ReadEngine::new(self.profile.pcie.read_tags.get(), self.pcie),
            write: Unit::new(1, self.pcie.write_latency),
            pcie: self.pcie,
        }
    }

    /// From the CPU's store to a UAR page until the adapter sees it (posted PCIe write).
    pub const fn doorbell(&self) -> Ps {
        self.profile.pcie.mmio_write_ns.0
    }

    /// A DMA read of `bytes`: request, latency, completions. None for 0 bytes.
    pub fn dma_read(&self, bytes: usize) -> Ps {
        if bytes == 0 {
            return Ps::ZERO;
        }
        self.pcie.read_latency + self.pcie.completion(bytes)
    }

    /// A DMA write of `bytes`, until the host sees the last one. None for 0 bytes.
    pub fn dma_write(&self, bytes: usize) -> Ps {
        if bytes == 0 {
            return Ps::ZERO;
        }
        self.pcie.write_latency + self.pcie.write(bytes)
    }

    /// Fetching the next send WQEs after a doorbell: one read covers several.
    pub fn wqe_fetch(&self) -> Ps {
        self.dma_read(self.wqe_prefetch())
    }

    /// Bytes of the send queue that one fetch reads at most.
    pub const fn wqe_prefetch(&self) -> usize {
        self.profile.send.prefetch_bytes.get() as usize
    }

    /// Service time of scheduling and parsing one send WQE, besides its packets'.
    pub const fn wqe(&self) -> Ps {
        self.profile.send.wqe_ns.0
    }

    /// Service time in [`Units::transmit`] of building a packet of `len` bytes (LRH to VCRC).
    pub fn transmit(&self, len: usize) -> Ps {
        self.profile.send.packet_ns.0 + self.profile.send.packet_ps_per_byte.times(len)
    }

    /// Service time in [`Units::receive`] of a packet of `len` bytes: checks, context, PSN, key.
    pub fn receive(&self, len: usize) -> Ps {
        self.profile.receive.packet_ns.0 + self.profile.receive.packet_ps_per_byte.times(len)
    }

    /// From a request understood to its response (or ACK) begun; reading the data comes on top.
    pub const fn respond(&self) -> Ps {
        self.profile.receive.respond_ns.0
    }

    /// Taking a (prefetched) receive WQE.
    pub const fn receive_wqe(&self) -> Ps {
        self.profile.receive.wqe_ns.0
    }

    /// Service time in [`Units::atomic`]: how closely atomics to different addresses follow each other.
    pub const fn atomic_issue(&self) -> Ps {
        self.profile.receive.atomic_issue_ns.0
    }

    /// How long one atomic keeps its address locked: read, modify, write issued.
    pub fn atomic(&self) -> Ps {
        const OPERAND: usize = 8;
        self.dma_read(OPERAND) + self.profile.receive.atomic_ns.0
    }

    /// Which lock an atomic to `address` takes: atomics with the same lock exclude each other.
    pub const fn atomic_bucket(&self, address: u64) -> u64 {
        address % self.profile.receive.atomic_buckets.get()
    }

    /// From the end of an operation until its CQE's write is issued.
    pub const fn cqe(&self) -> Ps {
        self.profile.completion.cqe_ns.0
    }

    /// From a reason until its EQE's write is issued.
    pub const fn eqe(&self) -> Ps {
        self.profile.completion.eqe_ns.0
    }

    /// From the EQE until the host's interrupt controller has the MSI-X message (a write of 4 bytes).
    pub fn interrupt(&self) -> Ps {
        const MSIX_DATA: usize = 4;
        self.profile.completion.interrupt_ns.0 + self.dma_write(MSIX_DATA)
    }

    /// Extra time where a queue pair's context is not in the cache.
    pub fn context_miss(&self) -> Ps {
        self.dma_read(self.profile.cache.context_bytes.get() as usize)
    }

    /// Queue pair contexts that the cache holds.
    pub const fn context_entries(&self) -> usize {
        self.profile.cache.context_entries.get() as usize
    }

    /// Extra time where a translation is not in the cache.
    pub fn translation_miss(&self) -> Ps {
        self.dma_read(self.profile.cache.translation_bytes.get() as usize)
    }

    /// Translations (pages) that the cache holds.
    pub const fn translation_entries(&self) -> usize {
        self.profile.cache.translation_entries.get() as usize
    }

    /// Extra time where a memory key is not in the cache.
    pub fn key_miss(&self) -> Ps {
        self.dma_read(self.profile.cache.key_bytes.get() as usize)
    }

    /// Memory keys that the cache holds.
    pub const fn key_entries(&self) -> usize {
        self.profile.cache.key_entries.get() as usize
    }

    /// A UMR, besides reading its list (which an inline UMR need not).
    pub const fn umr(&self) -> Ps {
        self.profile.cache.umr_ns.0
    }

    /// From a packet's departure until it arrives again at the same adapter.
    pub const fn loopback(&self) -> Ps {
        self.profile.port.loopback_ns.0
    }

    /// MAC and PHY at one end of a link; a packet between two adapters passes two.
    pub const fn phy(&self) -> Ps {
        self.profile.port.phy_ns.0
    }

    /// From the port's start to the link's being up.
    pub const fn link_training(&self) -> Ps {
        self.profile.port.link_training_ms.0
    }

    /// Execution of the command `opcode` with `input_len` bytes of input, DMA not included.
    pub fn command(&self, opcode: u16, input_len: usize) -> Ps {
        let c = &self.profile.command;
        let class = match CommandClass::of(opcode) {
            CommandClass::Query => c.query_us.0,
            CommandClass::Create => c.create_us.0,
            CommandClass::Destroy => c.destroy_us.0,
            CommandClass::Modify => c.modify_us.0,
            CommandClass::Pages => c.pages_us.0,
            CommandClass::Lifecycle => c.lifecycle_us.0,
            CommandClass::Mad => c.mad_us.0,
            CommandClass::Other => c.other_us.0,
        };
        class + c.input_ps_per_byte.times(input_len)
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

/// Commands that take about the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CommandClass {
    Query,
    Create,
    Destroy,
    Modify,
    Pages,
    Lifecycle,
    Mad,
    Other,
}

impl CommandClass {
    /// By the command's name, which the manual forms from a verb and an object.
    fn of(opcode: u16) -> Self {
        let Some(opcode) = Opcode::from_u16(opcode) else { return Self::Other };
        match opcode {
            Opcode::EnableHca | Opcode::InitHca | Opcode::TeardownHca | Opcode::DisableHca => Self::Lifecycle,
            Opcode::ManagePages => Self::Pages,
            Opcode::MadIfc => Self::Mad,
            _ => {
                let name = format!("{opcode:?}");
                let verb = |verbs: &[&str]| verbs.iter().any(|v| name.starts_with(v));
                if verb(&["Query"]) {
                    Self::Query
                } else if verb(&["Create", "Alloc"]) {
                    Self::Create
                } else if verb(&["Destroy", "Dealloc"]) {
                    Self::Destroy
                } else if verb(&["Modify", "Set", "Arm"]) || name.ends_with("Qp") {
                    Self::Modify
                } else {
                    Self::Other
                }
            }
        }
    }
}

/// The parts of one adapter that are busy while they work.
#[derive(Clone, Debug)]
pub struct Units {
    /// Builds packets; a queue pair keeps one of its slots busy at a time.
    pub transmit: Unit,
    /// Checks packets that arrive; they leave in the order they came.
    pub receive: Unit,
    /// The firmware's command processor.
    pub command: Unit,
    /// Issues atomics.
    pub atomic: Unit,
    /// DMA reads.
    read: ReadEngine,
    /// DMA writes and read requests: the direction to the host.
    write: Unit,
    pcie: PcieCost,
}

impl Units {
    /// When a DMA read of `bytes` that is issued at `now` has its last byte.
    pub fn dma_read(&mut self, now: Ps, bytes: usize) -> Ps {
        self.read.read(now, bytes)
    }

    /// When the host sees the last byte of a DMA write of `bytes` that is issued at `now`.
    pub fn dma_write(&mut self, now: Ps, bytes: usize) -> Ps {
        if bytes == 0 {
            return now;
        }
        self.write.admit(now, self.pcie.write(bytes))
    }
}

#[cfg(test)]
mod tests;
