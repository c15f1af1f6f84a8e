//! PCIe link arithmetic: how long TLPs occupy the link.

use super::profile::{Host, Memory, Pcie};
use crate::ground::time::Ps;

/// PCIe link arithmetic (source: pcie-bench/pcie-model, SIGCOMM 2018): how long TLPs occupy the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcieCost {
    /// Femtoseconds per byte, after line code and data link layer traffic.
    fs_per_byte: u64,
    max_payload: u64,
    max_read_request: u64,
    completion_chunk: u64,
    request_overhead: u64,
    completion_overhead: u64,
    read_latency: Ps,
    write_latency: Ps,
}

impl PcieCost {
    pub(super) fn new(pcie: &Pcie, host: &Host) -> Self {
        const FS_PER_S: f64 = 1e15;
        let (data, line) = pcie.encoding;
        let raw =
            pcie.lane_gt_per_s.get() * 1e9 * data.get() as f64 / line.get() as f64 * pcie.lanes.get() as f64;
        // An Ack and a flow control update, each once per interval.
        let data_link = 2.0 * pcie.dllp_bytes.get() as f64 / pcie.dllp_interval.get() as f64;
        let share = (1.0 - data_link - pcie.skp_share.get()).max(0.01);
        let memory = match host.memory {
            Memory::Llc => Ps::ZERO,
            Memory::Dram => host.dram_ns.0,
        };
        let remote = if host.remote { host.remote_ns.0 } else { Ps::ZERO };
        Self {
            fs_per_byte: (8.0 * FS_PER_S / (raw * share)).round() as u64,
            max_payload: pcie.max_payload.get(),
            max_read_request: pcie.max_read_request.get(),
            completion_chunk: pcie.completion_chunk.get().min(pcie.max_payload.get()),
            request_overhead: pcie.request_overhead.get(),
            completion_overhead: pcie.completion_overhead.get(),
            read_latency: pcie.read_ns.0 + memory + remote,
            write_latency: pcie.write_ns.0 + remote,
        }
    }

    fn on_link(&self, bytes: u64) -> Ps {
        const FS_PER_PS: u64 = 1_000;
        Ps(bytes.saturating_mul(self.fs_per_byte).div_ceil(FS_PER_PS))
    }

    /// How long writing `bytes` occupies the link, in either direction: data and one header per MPS.
    pub fn write(&self, bytes: usize) -> Ps {
        let bytes = bytes as u64;
        self.on_link(bytes + bytes.div_ceil(self.max_payload) * self.request_overhead)
    }

    /// How long stores of the processor that fill whole write-combining buffers occupy the link: one TLP per buffer.
    pub fn stores(&self, bytes: usize) -> Ps {
        const BUFFER: u64 = 64;
        let bytes = bytes as u64;
        self.on_link(bytes + bytes.div_ceil(BUFFER) * self.request_overhead)
    }

    /// How long the data of a read of `bytes` occupies the direction from the host: data and one
    /// header per completion.
    pub fn completion(&self, bytes: usize) -> Ps {
        let bytes = bytes as u64;
        self.on_link(bytes + bytes.div_ceil(self.completion_chunk) * self.completion_overhead)
    }

    /// How long the requests for `bytes` occupy the direction to the host: one header per MRRS.
    pub fn request(&self, bytes: usize) -> Ps {
        self.on_link((bytes as u64).div_ceil(self.max_read_request) * self.request_overhead)
    }

    /// How long a read of `bytes` takes with nothing else on the link.
    pub fn idle_read(&self, bytes: usize) -> Ps {
        self.request(bytes.min(self.max_read_request())) + self.read_latency + self.completion(bytes)
    }

    /// How long it takes until the host sees a write of `bytes`, with nothing else on the link.
    pub fn idle_write(&self, bytes: usize) -> Ps {
        self.write(bytes) + self.write_latency
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
