//! Two connected queue pairs with memory, on one adapter or two, over any bus: what most tests need.

use hca_driver::eth::{Hop, Mac, RoceAddress, RoceVersion};
use hca_driver::qp::{Path, QpConfig};
use hca_driver::{
    Access, Bus, Completion, Cq, CqConfig, CqOptions, Dma, Error, Hca, InitAttr, Mr, Qp, RtrAttr, RtsAttr,
    ScatterToCqe, SendOp, SendRequest, Sge,
};
use hca_spec::ids::{Gid, Pd};
use hca_spec::mad::{PortInfo, port_state};
use hca_spec::qpc::ServiceType;

/// How often a completion is looked for before a test gives up.
const POLLS: u32 = 5_000_000;
/// The port that most tests use.
pub const PORT: u8 = 1;
/// Where a port's table of RoCE addresses has its own.
const ROCE_INDEX: u8 = 0;

/// How the queue pairs of a [`Pair`] shall be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of registered memory at each end.
    pub memory: usize,
    /// What the other end may do with it.
    pub access: Access,
    /// What the other end may do through the queue pair at all.
    pub queue_access: Access,
    /// Entries of each completion queue.
    pub cqes: u32,
    /// Path MTU, IBTA code.
    pub mtu: u8,
    /// Receive requests of each queue pair.
    pub recv_requests: u32,
    /// Basic blocks of each send ring.
    pub send_blocks: u32,
    /// Values of the transition to RTS.
    pub rts: RtsAttr,
    /// RNR timer code.
    pub rnr_timer: u8,
    /// RC or UC.
    pub service: ServiceType,
    /// Whether packets carry a GRH.
    pub global: bool,
    /// Whether the ports are Ethernet: RoCE v2 over IPv6, untagged.
    pub roce: bool,
    /// Whether work requests may load page lists into keys.
    pub fast_registration: bool,
    /// Whether work requests may name the reserved local key.
    pub physical: bool,
    /// What the completion queues have beyond the ordinary.
    pub cq: CqOptions,
    /// Whether a signature error drains the send queue.
    pub drain_on_signature_errors: bool,
    /// Whether small messages come in completions.
    pub scatter_to_cqe: ScatterToCqe,
    /// Whether page faults name keys and addresses: the adapters are then of a kind that has that.
    pub memory_page_faults: bool,
    /// The queue pairs are connected by forced loopback: the port need not be up.
    pub forced: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory: 1 << 16,
            access: Access::ALL,
            queue_access: Access::ALL,
            cqes: 256,
            mtu: 3,
            recv_requests: 128,
            send_blocks: 256,
            rts: RtsAttr::default(),
            rnr_timer: 7,
            service: ServiceType::Rc,
            global: false,
            roce: false,
            fast_registration: false,
            physical: false,
            cq: CqOptions::default(),
            drain_on_signature_errors: false,
            scatter_to_cqe: ScatterToCqe::Off,
            memory_page_faults: false,
            forced: false,
        }
    }
}

/// One end of a connection.
pub struct End<B: Bus> {
    /// Index of its adapter in [`Pair::hcas`].
    pub home: usize,
    /// Protection domain.
    pub pd: Pd,
    /// Completion queue of sends.
    pub send_cq: Cq<B::Dma>,
    /// Completion queue of receives.
    pub recv_cq: Cq<B::Dma>,
    /// The queue pair.
    pub qp: Qp<B::Dma>,
    /// Registered memory.
    pub memory: B::Dma,
    /// Its key.
    pub mr: Mr,
}

impl<B: Bus> End<B> {
    /// A piece of the registered memory.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { address: self.mr.address + offset as u64, len: len as u32, key: self.mr.key }
    }

    /// Bytes of the registered memory.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes);
        bytes
    }
}

/// Two connected queue pairs.
pub struct Pair<B: Bus> {
    /// The adapters: one for loopback, or two.
    pub hcas: Vec<Hca<B>>,
    /// The two ends.
    pub ends: [End<B>; 2],
}

impl<B: Bus> Pair<B> {
    /// Connects the first adapter to the last (for one adapter: to itself), up to RTS.
    ///
    /// # Errors
    /// A command failed.
    pub fn connect(hcas: Vec<Hca<B>>, options: &Options) -> Result<Self, Error> {
        let mut pair = Self::apart(hcas, [options; 2])?;
        for end in 0..2 {
            pair.to_rts(end, options)?;
        }
        Ok(pair)
    }

    /// Two ends in RESET, each with options of its own; [`Pair::to_rts_with`] connects them.
    ///
    /// # Errors
    /// A command failed.
    pub fn apart(mut hcas: Vec<Hca<B>>, options: [&Options; 2]) -> Result<Self, Error> {
        for hca in &mut hcas {
            match options[0].roce {
                _ if options[0].forced => {}
                true => enable_roce(hca)?,
                false => wait_active(hca)?,
            }
        }
        let homes = [0, hcas.len() - 1];
        let mut ends = Vec::new();
        for (home, options) in homes.into_iter().zip(options) {
            ends.push(End::new(&mut hcas[home], home, options)?);
        }
        let Ok(ends) = <[End<B>; 2]>::try_from(ends) else { unreachable!("two ends were made") };
        Ok(Self { hcas, ends })
    }

    /// Takes a queue pair from RESET to RTS, connected to the other.
    ///
    /// # Errors
    /// A command failed.
    pub fn to_rts(&mut self, end: usize, options: &Options) -> Result<(), Error> {
        self.to_rts_with(end, options, &InitAttr { access: options.queue_access, ..InitAttr::default() })
    }

    /// The same with these values of the transition to INIT.
    ///
    /// # Errors
    /// A command failed.
    pub fn to_rts_with(&mut self, end: usize, options: &Options, init: &InitAttr) -> Result<(), Error> {
        let (peer, path) = (self.ends[1 - end].qp.number(), self.path_to(1 - end, options)?);
        let home = self.ends[end].home;
        let (hca, qp) = (&mut self.hcas[home], &mut self.ends[end].qp);
        hca.qp_to_init(qp, init)?;
        if options.drain_on_signature_errors {
            hca.qp_drain_on_signature_errors(qp)?;
        }
        let (mtu, rnr_timer, receive_psn) = (options.mtu, options.rnr_timer, options.rts.send_psn);
        let rtr = RtrAttr { mtu, rnr_timer, receive_psn, ..RtrAttr::new(peer, path) };
        hca.qp_to_rtr(qp, &rtr)?;
        hca.qp_to_rts(qp, &options.rts)
    }

    /// The way to an end.
    ///
    /// # Errors
    /// A command failed.
    pub fn path_to(&mut self, end: usize, options: &Options) -> Result<Path, Error> {
        let hca = &mut self.hcas[self.ends[end].home];
        if options.forced {
            return Ok(Path::back());
        }
        Ok(match (options.roce, options.global) {
            (true, _) => {
                let mac = hca.mac()?;
                Path::roce(roce_gid(mac), ROCE_INDEX, Hop::to(mac))
            }
            (false, true) => Path { gid: Some(hca.gid(PORT, 0)?), ..Path::lid(hca.lid(PORT)?) },
            (false, false) => Path::lid(hca.lid(PORT)?),
        })
    }

    /// Fills memory of an end.
    pub fn fill(&mut self, end: usize, offset: usize, data: &[u8]) {
        self.ends[end].memory.write(offset, data);
    }

    /// Posts a send request.
    pub fn send(&mut self, end: usize, request: &SendRequest<'_>) {
        let home = self.ends[end].home;
        let posted = self.ends[end].qp.post_send(self.hcas[home].bus_mut(), request);
        assert_eq!(posted, Ok(()), "post_send at end {end}");
    }

    /// Sends `count` messages of `len` bytes from end 0, and waits until the last is done.
    pub fn batch(&mut self, count: u64, op: SendOp, len: usize) {
        for i in 0..count {
            let sge = [self.ends[0].sge(0, len)];
            let last = i + 1 == count;
            self.send(0, &SendRequest { signaled: last, ..SendRequest::new(i, op, &sge) });
        }
        self.sent_ok(0, count - 1);
    }

    /// Posts a receive request into memory of the end.
    pub fn recv(&mut self, end: usize, wr_id: u64, offset: usize, len: usize) {
        let sge = self.ends[end].sge(offset, len);
        let posted = self.ends[end].qp.post_recv(wr_id, &[sge]);
        assert_eq!(posted, Ok(()), "post_recv at end {end}");
    }

    /// Waits for a completion of the send queue; gives the request's number too.
    pub fn sent(&mut self, end: usize) -> (u64, Completion) {
        for _ in 0..POLLS {
            if let Some(found) = self.try_sent(end) {
                return found;
            }
            self.hcas[0].wait(None);
        }
        panic!("no send completion at end {end}");
    }

    /// Waits for a completion of the receive queue; gives the request's number too.
    pub fn received(&mut self, end: usize) -> (u64, Completion) {
        for _ in 0..POLLS {
            if let Some(found) = self.try_received(end) {
                return found;
            }
            self.hcas[0].wait(None);
        }
        panic!("no receive completion at end {end}");
    }

    /// A completion of the send queue, if there is one.
    pub fn try_sent(&mut self, end: usize) -> Option<(u64, Completion)> {
        let end = &mut self.ends[end];
        let completion = end.send_cq.poll()?;
        let wr_id = end.qp.finish(&completion);
        Some((wr_id.unwrap_or_else(|| panic!("a completion of nothing: {completion:?}")), completion))
    }

    /// A completion of the receive queue, if there is one.
    pub fn try_received(&mut self, end: usize) -> Option<(u64, Completion)> {
        let end = &mut self.ends[end];
        let completion = end.recv_cq.poll()?;
        let wr_id = end.qp.finish(&completion);
        Some((wr_id.unwrap_or_else(|| panic!("a completion of nothing: {completion:?}")), completion))
    }

    /// Waits until the send queue says "done, without error" for request `wr_id`.
    pub fn sent_ok(&mut self, end: usize, wr_id: u64) -> Completion {
        let (got, completion) = self.sent(end);
        assert_eq!((got, completion.status), (wr_id, Ok(())), "send completion at end {end}");
        completion
    }

    /// Waits until the receive queue says "done, without error" for request `wr_id`.
    pub fn received_ok(&mut self, end: usize, wr_id: u64) -> Completion {
        let (got, completion) = self.received(end);
        assert_eq!((got, completion.status), (wr_id, Ok(())), "receive completion at end {end}");
        completion
    }

    /// Sends `data` from end 0 to end 1, looks whether it came, and reads it back to `back` in end 0's memory.
    pub fn deliver_and_read(&mut self, data: &[u8], back: usize) {
        let (size, there) = (data.len(), self.ends[1].mr);
        self.fill(0, 0, data);
        self.recv(1, 7, 0, size + 8);
        let sge = [self.ends[0].sge(0, size)];
        self.send(0, &SendRequest::send(1, &sge));
        self.sent_ok(0, 1);
        assert_eq!(self.received_ok(1, 7).byte_len as usize, size);
        assert!(self.ends[1].bytes(0, size) == data, "{size} bytes were sent");
        let sge = [self.ends[0].sge(back, size)];
        self.send(0, &SendRequest::read(2, &sge, there.address, there.key));
        self.sent_ok(0, 2);
        assert!(self.ends[0].bytes(back, size) == data, "{size} bytes were read");
    }

    /// Destroys everything and closes the adapters.
    ///
    /// # Errors
    /// A command failed.
    pub fn close(self) -> Result<Vec<B>, Error> {
        let Self { mut hcas, ends } = self;
        for End { home, pd, send_cq, recv_cq, qp, memory, mr } in ends {
            let hca = &mut hcas[home];
            hca.destroy_qp(qp)?;
            hca.destroy_cq(send_cq)?;
            hca.destroy_cq(recv_cq)?;
            hca.deregister(mr)?;
            drop(memory);
            hca.dealloc_pd(pd)?;
        }
        hcas.into_iter().map(Hca::close).collect()
    }
}

impl<B: Bus> End<B> {
    fn new(hca: &mut Hca<B>, home: usize, options: &Options) -> Result<Self, Error> {
        let pd = hca.alloc_pd()?;
        let send_cq = hca.create_cq_with(CqConfig::new(options.cqes), options.cq)?;
        let recv_cq = hca.create_cq_with(CqConfig::new(options.cqes), options.cq)?;
        let (recv_requests, send_blocks) = (options.recv_requests, options.send_blocks);
        let service = options.service;
        let fast_registration = options.fast_registration;
        let defaults = QpConfig::rc(pd, &send_cq, &recv_cq);
        let scatter_to_cqe = options.scatter_to_cqe;
        let config = QpConfig {
            service,
            recv_requests,
            send_blocks,
            fast_registration,
            scatter_to_cqe,
            physical: options.physical,
            ..defaults
        };
        let qp = hca.create_qp(&config)?;
        let memory = hca.bus_mut().dma_alloc(options.memory, 4096).ok_or(Error::OutOfMemory)?;
        let mr = hca.register(pd, &memory, options.memory, options.access)?;
        Ok(Self { home, pd, send_cq, recv_cq, qp, memory, mr })
    }
}

/// Waits until the subnet manager has brought the port up.
///
/// # Errors
/// A command failed.
pub fn wait_active<B: Bus>(hca: &mut Hca<B>) -> Result<(), Error> {
    for _ in 0..POLLS {
        if hca.port_info(PORT)?.get(PortInfo::PORT_STATE) == port_state::ACTIVE {
            return Ok(());
        }
        hca.wait(None);
    }
    panic!("the port does not come up");
}

/// A GID that no other MAC address has.
fn roce_gid(Mac(mac): Mac) -> Gid {
    Gid::new(0xfd00 << 48, mac.iter().fold(0, |gid, byte| gid << 8 | u64::from(*byte)))
}

/// Waits until an Ethernet port is up, and gives it a RoCE address.
fn enable_roce<B: Bus>(hca: &mut Hca<B>) -> Result<(), Error> {
    let mut left = POLLS;
    while !hca.vport_is_up()? {
        hca.wait(None);
        left = left.checked_sub(1).expect("the port comes up");
    }
    hca.set_roce_mtu(PORT)?;
    hca.set_roce(true)?;
    let mac = hca.mac()?;
    let address = RoceAddress { gid: roce_gid(mac), mac, vlan: None, version: RoceVersion::V2 };
    hca.set_roce_address(PORT, ROCE_INDEX, Some(&address))
}

/// Bytes that differ by position and by `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
