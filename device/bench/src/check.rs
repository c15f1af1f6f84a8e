//! Whether the options of a scenario go together.

use hca_firmware::switch::MAX_PORTS;

use crate::Error;
use crate::scenario::{Detect, Metric, Op, Pace, Pick, Scenario, Topology, Transport};

/// Most pages that a registration has: their list takes 512 KiB.
const MAX_PAGES: u64 = 1 << 16;
/// Bytes of a list that a WQE has room for, beside its control segments and the key's context.
const MAX_INLINE_LIST: u64 = 832;

impl Scenario {
    /// Checks that the options go together.
    ///
    /// # Errors
    /// They don't: which, and what to change.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::new(what));
        let latency = self.metric == Metric::Latency;
        if self.op.is_pcie() {
            return match (self.op, self.size) {
                (_, 0) => wrong("a PCIe transfer has bytes: --size is at least 1"),
                (Op::PcieReadWrite, _) if latency => {
                    wrong("reads and writes side by side have no latency: use --metric bandwidth")
                }
                (Op::PcieWrite, _) if latency => wrong(
                    "nobody sees when a posted write arrives: use pcie_write_read, or --metric bandwidth",
                ),
                _ => Ok(()),
            };
        }
        if self.dma {
            return wrong("--dma is for PCIe operations");
        }
        if self.vlan > 0 && !self.link.is_ethernet() {
            return wrong("InfiniBand has no VLANs: use --link eth100, or leave --vlan out");
        }
        if self.op.is_frames() {
            self.check_frames()?;
        }
        match self.transport {
            _ if self.op.is_frames() => {}
            _ if self.op == Op::Umr => self.check_registrations()?,
            Transport::Uc if self.op.has_response() => return wrong("uc has no reads and atomics: use rc"),
            Transport::Ud if self.op != Op::Send => return wrong("ud has sends only: use --op send"),
            Transport::Ud if self.size > self.mtu => {
                return wrong("a datagram is one packet: --size is at most --mtu");
            }
            _ => {}
        }
        if self.dcts > 1 && self.transport != Transport::Dc {
            return wrong("--dcts are targets of dynamic connections: use --transport dc");
        }
        if !self.qps.is_multiple_of(self.threads) {
            return wrong(
                "every thread has the same number of queue pairs: --qps is a multiple of --threads",
            );
        }
        if latency && (self.qps, self.threads, self.initiators, self.bidirectional) != (1, 1, 1, false) {
            return wrong(
                "latency is of one queue pair: leave --qps, --threads, --initiators, --bidirectional out",
            );
        }
        if latency && self.op == Op::Write && self.size == 0 {
            return wrong("who waits for a write looks at its last byte: --size is at least 1");
        }
        if (self.initiators > 1 || self.targets > 1) && self.topology != Topology::Switch {
            return wrong("several initiators or targets need --topology switch");
        }
        if self.initiators + self.targets > u64::from(MAX_PORTS) {
            return wrong(
                "the switch has 64 ports: --initiators and --targets are that many together at most",
            );
        }
        if self.targets > 1 && (latency || self.bidirectional || self.count_received) {
            return wrong(
                "several targets are for rates of what is sent to them: leave --metric latency, --bidirectional and --count out",
            );
        }
        if self.initiators > 1
            && self.bidirectional
            && self.transport != Transport::Dc
            && !(self.qps / self.threads).is_multiple_of(self.initiators)
        {
            return wrong(
                "where all adapters talk with all, a thread's share of --qps is a multiple of --initiators",
            );
        }
        if self.detect == Detect::Memory && !self.op.has_response() {
            return wrong("only reads and atomics are seen in memory: use --detect cq");
        }
        if self.detect == Detect::Memory && self.signal_every == 1 {
            return wrong("every request is signalled: use --detect cq, or a larger --signal-every");
        }
        if self.count_received && (latency || self.op.has_response() || self.packets() > 1) {
            return wrong("--count received is for rates of sends and writes of one packet: leave it out");
        }
        let per_qp = self.signal_every.max(self.post_list);
        let qps = self.qps / self.threads;
        if !latency && self.detect == Detect::Cq && self.window < per_qp * qps.min(self.window) {
            return wrong(
                "a thread would wait for completions that never come: --window is at least --signal-every (and --post-list) times its queue pairs",
            );
        }
        if !latency && self.post_list > self.window {
            return wrong("--post-list is at most --window");
        }
        if self.cq_per_qp && self.pace == Pace::Any && self.detect == Detect::Cq && qps > 1 {
            return wrong("with a completion queue per queue pair use --pace oldest");
        }
        if self.op != Op::Umr && self.inline > 0 && self.size <= self.inline && self.inline > 900 {
            return wrong("a WQE has room for 900 inline bytes: --inline is at most that");
        }
        Ok(())
    }

    /// What is asked of registrations besides.
    fn check_registrations(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::new(what));
        if self.transport != Transport::Rc {
            return wrong("a registration goes to nobody: leave --transport out");
        }
        if !(1..=MAX_PAGES).contains(&self.size.div_ceil(self.page_size)) {
            return wrong("a registration has 1 to 65536 pages: --size, --page-size");
        }
        if self.is_inline() && self.translations() > MAX_INLINE_LIST {
            return wrong(
                "a WQE has room for 832 bytes of pages, 104 of them: less --inline, so that they are read",
            );
        }
        if self.detect == Detect::Memory || self.count_received {
            return wrong(
                "registrations are done by completion, and reach nobody: leave --detect and --count out",
            );
        }
        Ok(())
    }

    /// What is asked of frames besides.
    fn check_frames(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::new(what));
        if !self.link.is_ethernet() {
            return wrong("frames go over Ethernet: use --link eth100");
        }
        if self.topology == Topology::Loopback {
            return wrong("an adapter sends itself no frames: use --topology back-to-back, or switch");
        }
        if self.targets > 1 {
            return wrong("frames go to one target: leave --targets out");
        }
        if self.detect == Detect::Memory
            || self.cq_per_qp
            || self.pace != Pace::Any
            || self.pick != Pick::RoundRobin
        {
            return wrong(
                "frames are posted queue by queue, and done by completion: leave --detect, --cq-per-qp, --pace and --pick out",
            );
        }
        match self.op {
            Op::Frame if !(64..=9216).contains(&self.size) => {
                wrong("a frame has 64 to 9216 bytes, check sequence included: --size")
            }
            Op::Lso if !(1..=65_000).contains(&self.size) => {
                wrong("a large send has 1 to 65000 bytes of data: --size")
            }
            Op::Lso if self.metric == Metric::Latency => {
                wrong("a large send has no latency here: use --metric bandwidth")
            }
            _ if self.receive_queues == Some(0)
                && (self.metric == Metric::Latency || self.count_received) =>
            {
                wrong("nobody receives with --receive-queues 0: leave --count and --metric latency out")
            }
            _ => Ok(()),
        }
    }
}
