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

/// Bytes between one Ack and the next, and between flow control updates, in the accounting of pcie-bench/pcie-model: the limit of
/// PCIe's tables of acknowledgement latencies (PCIe 3.5.2.1, "Ack Transmission Latency Limit"), which are
/// (MPS + overhead) * AckFactor / width + internal delay, in whole symbol times.
fn dllp_interval(pcie: &Pcie) -> f64 {
    /// What a TLP has around its payload, in those tables.
    const OVERHEAD: f64 = 28.0;
    let (payload, lanes) = (pcie.max_payload.get(), pcie.lanes.get());
    let factor = match (payload, lanes) {
        (..=256, ..=4) => 1.4,
        (..=256, ..=8) => 2.5,
        (..=256, _) => 3.0,
        (_, ..=8) => 1.0,
        _ => 2.0,
    };
    let delay = match pcie.lane_gt_per_s.get() {
        ..=2.5 => 19.0,
        ..=5.0 => 70.0,
        // Of 16 GT/s and more: estimate, as of 8.
        _ => 115.0,
    };
    ((payload as f64 + OVERHEAD) * factor / lanes as f64 + delay).floor()
}

impl PcieCost {
    pub(super) fn new(pcie: &Pcie, host: &Host) -> Self {
        const FS_PER_S: f64 = 1e15;
        let (data, line) = pcie.encoding;
        let raw =
            pcie.lane_gt_per_s.get() * 1e9 * data.get() as f64 / line.get() as f64 * pcie.lanes.get() as f64;
        // An Ack and a flow control update, each once per interval.
        let data_link = 2.0 * pcie.dllp_bytes.get() as f64 / dllp_interval(pcie);
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
            completion_chunk: pcie.completion_chunk.get().min(pcie.max_payload.get()).max(1),
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
        self.on_link(bytes as u64 + self.writes(bytes) * self.request_overhead)
    }

    /// How many TLPs write `bytes`: one per MPS.
    pub const fn writes(&self, bytes: usize) -> u64 {
        (bytes as u64).div_ceil(self.max_payload)
    }

    /// How long stores of the processor that fill whole write-combining buffers occupy the link: one TLP per buffer.
    pub fn stores(&self, bytes: usize) -> Ps {
        const BUFFER: u64 = 64;
        let bytes = bytes as u64;
        self.on_link(bytes + bytes.div_ceil(BUFFER) * self.request_overhead)
    }

    /// How long the data of a read of `bytes` from an aligned place occupies the direction from the host: data and one
    /// header per completion.
    pub fn completion(&self, bytes: usize) -> Ps {
        self.completion_at(0, bytes)
    }

    /// The same of a read at `address`: all completions but the last end at a multiple of what they have (PCIe 2.3.1.1, read
    /// completion boundary), so that data across such a place takes one header more.
    pub fn completion_at(&self, address: u64, bytes: usize) -> Ps {
        let bytes = bytes as u64;
        let before = address % self.completion_chunk;
        let completions = if bytes > 0 { (before + bytes).div_ceil(self.completion_chunk) } else { 0 };
        self.on_link(bytes + completions * self.completion_overhead)
    }

    /// Bytes at multiples of which completions end.
    pub const fn completion_chunk(&self) -> usize {
        self.completion_chunk as usize
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::timing::{Profile, Timing};

    #[test]
    fn acknowledgements_are_as_often_as_pcie_s_tables_say() {
        let interval = |rate: f64, lanes, payload| {
            dllp_interval(&Profile::connectx4().with_pcie(rate, lanes, payload, 512).pcie) as u64
        };
        // PCIe base specification, tables of 2.5, 5.0 and 8.0 GT/s: payload, then x1, x4, x8 and x16.
        for (rate, payload, symbols) in [
            (2.5, 128, [237, 73, 67, 48]),
            (2.5, 256, [416, 118, 107, 72]),
            (2.5, 512, [559, 154, 86, 86]),
            (5.0, 256, [467, 169, 158, 123]),
            (8.0, 128, [333, 169, 163, 144]),
            (8.0, 256, [512, 214, 203, 168]),
        ] {
            let lanes = [1, 4, 8, 16];
            assert_eq!(lanes.map(|lanes| interval(rate, lanes, payload)), symbols, "{rate} GT/s, {payload}");
        }
    }

    #[test]
    fn data_across_a_completion_boundary_takes_a_header_more() {
        let pcie = Timing::new(&Profile::connectx4()).pcie();
        let at = |address, bytes| pcie.completion_at(address, bytes);
        assert_eq!(at(0x1000, 256), pcie.completion(256));
        assert_eq!(at(0x10fc, 4), pcie.completion(4));
        let header = at(0x10fc, 8).0 - pcie.completion(8).0;
        assert!(header > 0 && at(0x1080, 256).0.abs_diff(pcie.completion(256).0 + header) <= 1);
        assert_eq!(at(0x10ff, 0), Ps::ZERO);
    }
}
