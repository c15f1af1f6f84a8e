//! Queue pairs (QP): a send and a receive queue with a connection (or none, for datagrams).
//!
//! One buffer holds the receive ring and, behind it, the send ring; a doorbell record holds how much was
//! posted to each (PRM "QP Context", "Work Queues").

mod life;
pub(crate) mod ring;

use crate::bus::{Bus, Dma, pages_of};
use crate::counters::CounterSet;
use crate::cq::{Completion, Cq, RECORD_LINE, Side};
use crate::error::Error;
use crate::eth::Hop;
use crate::events::{page, with_pages};
use crate::hca::Hca;
use crate::mr::Access;
use crate::wqe::{self, SendRequest, Sge, Wqe};
use alloc::vec;
use hca_spec::caps::General;
use hca_spec::cmd::{CreateQpIn, ModifyQpExtIn, ModifyQpIn, ObjectIn, QueryQpOut};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::ids::{Cqn, Gid, Lid, Pd, Psn, Qpn, Srqn, UarIndex, Xrcd};
use hca_spec::qpc::{
    AddressPath, OFFLOAD_RENDEZVOUS, QpState, Qpc, QpcExt, RqType, ServiceType, opt, opt_95_32,
    path_migration, send_dbr_mode,
};
use hca_spec::uar::{RECORDLESS_DOORBELL, SEND_DOORBELL, SEND_DOORBELL_STEP};
use hca_spec::wqe::{Data, WQEBB};
use ring::Ring;

/// Offset of the receive counter in the doorbell record.
pub(crate) const RECORD_RECEIVE: usize = 0;
/// Offset of the send counter in the doorbell record.
pub(crate) const RECORD_SEND: usize = 4;
/// An ACK is requested at least every 2^8 packets.
const LOG_ACK_REQ_FREQ: u32 = 8;
/// Path MTU code of datagram queue pairs: 4096 bytes, so that the port's MTU is the limit.
const DATAGRAM_MTU: u32 = 5;
/// Longest WQE that fits a BlueFlame register: half of the 2^9 bytes that `log_bf_reg_size` says.
pub const BLUEFLAME_BYTES: usize = SEND_DOORBELL_STEP as usize;
/// The 16-bit counters limit a ring to half their range.
const LOG_MAX_RING: u32 = 15;

/// How a queue pair shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpConfig {
    /// RC, UC, UD or XRC.
    pub service: ServiceType,
    /// Protection domain.
    pub pd: Pd,
    /// Completion queue of the send queue.
    pub send_cq: Cqn,
    /// Completion queue of the receive queue.
    pub recv_cq: Cqn,
    /// Size of the send ring in basic blocks of 64 bytes; rounded up to a power of two, 0 = no send queue.
    pub send_blocks: u32,
    /// Shared receive queue; with one, the queue pair has no receive queue of its own.
    pub srq: Option<Srqn>,
    /// Receive requests; rounded up to a power of two, 0 = no receive queue.
    pub recv_requests: u32,
    /// Scatter entries of a receive request; rounded up to a power of two.
    pub recv_sges: u32,
    /// Whether its work requests may load page lists into keys: they hold bus addresses, so only trusted
    /// code may have such a queue pair.
    pub fast_registration: bool,
    /// XRC: the domain whose shared receive queues the peer may name.
    pub xrcd: Option<Xrcd>,
    /// Whether small messages and responses come in the completion instead of the buffers.
    pub scatter_to_cqe: ScatterToCqe,
    /// An initiator of dynamic connections: log2 of its streams, and of those in error with which it is in error itself.
    pub streams: Option<(u8, u8)>,
    /// Whether the send queue does without its counter in the doorbell record.
    pub recordless: bool,
    /// Whether the adapter fetches data that messages announce, by itself: of a queue pair without a send queue that receives from a queue
    /// with tag matching.
    pub fetches: bool,
    /// Its requests may name the reserved local key, under which addresses are bus addresses ([`Hca::reserved_lkey`]).
    pub physical: bool,
    /// Datagrams that it sends to a group of which it is a member don't come back to it.
    pub blocks_own_multicast: bool,
}

/// Small messages in completions (PRM "Scatter to CQE"): what fits is in [`Completion::data`] and not in the buffers of
/// the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ScatterToCqe {
    /// None.
    #[default]
    Off,
    /// Up to 32 bytes.
    Data32,
    /// Up to 64 bytes; for completion queues with 128-byte entries.
    Data64,
}

impl ScatterToCqe {
    /// `Qpc::CS_REQ` and `Qpc::CS_RES`.
    pub(crate) fn codes(self) -> (u32, u32) {
        match self {
            Self::Off => (0, 0),
            Self::Data32 => (0x11, 0x1),
            Self::Data64 => (0x22, 0x2),
        }
    }
}

impl QpConfig {
    /// A reliable connection with queues of moderate size.
    pub fn rc<D: Dma>(pd: Pd, send_cq: &Cq<D>, recv_cq: &Cq<D>) -> Self {
        let service = ServiceType::Rc;
        let (send_cq, recv_cq) = (send_cq.number(), recv_cq.number());
        Self {
            service,
            pd,
            send_cq,
            recv_cq,
            send_blocks: 256,
            srq: None,
            recv_requests: 128,
            recv_sges: 4,
            fast_registration: false,
            scatter_to_cqe: ScatterToCqe::Off,
            streams: None,
            recordless: false,
            fetches: false,
            physical: false,
            blocks_own_multicast: false,
            xrcd: None,
        }
    }

    /// An XRC queue pair that sends and is a target: it has no receive queue, its peer's requests name
    /// shared receive queues of the domain.
    pub fn xrc<D: Dma>(pd: Pd, xrcd: Xrcd, send_cq: &Cq<D>) -> Self {
        let (service, recv_cq, xrcd) = (ServiceType::Xrc, Cqn(0), Some(xrcd));
        Self { service, recv_cq, recv_requests: 0, xrcd, ..Self::rc(pd, send_cq, send_cq) }
    }

    /// An XRC target only: without a send queue, so without any completion queue.
    pub fn xrc_target(pd: Pd, xrcd: Xrcd) -> Self {
        Self {
            service: ServiceType::Xrc,
            pd,
            send_cq: Cqn(0),
            recv_cq: Cqn(0),
            send_blocks: 0,
            srq: None,
            recv_requests: 0,
            recv_sges: 1,
            fast_registration: false,
            scatter_to_cqe: ScatterToCqe::Off,
            streams: None,
            recordless: false,
            fetches: false,
            physical: false,
            blocks_own_multicast: false,
            xrcd: Some(xrcd),
        }
    }

    /// An initiator of dynamic connections: each send request names its target ([`SendRequest::to_target`]). It
    /// receives nothing.
    pub fn dci<D: Dma>(pd: Pd, send_cq: &Cq<D>) -> Self {
        let (service, recv_cq) = (ServiceType::Dci, Cqn(0));
        Self { service, recv_cq, recv_requests: 0, ..Self::rc(pd, send_cq, send_cq) }
    }

    /// A datagram queue pair with queues of moderate size.
    pub fn ud<D: Dma>(pd: Pd, send_cq: &Cq<D>, recv_cq: &Cq<D>) -> Self {
        Self { service: ServiceType::Ud, ..Self::rc(pd, send_cq, recv_cq) }
    }
}

/// Values of the transition RESET to INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitAttr {
    /// Local port, from 1.
    pub port: u8,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// What the peer may do.
    pub access: Access,
    /// Datagrams: the Q_Key that senders must know.
    pub qkey: u32,
    /// Datagrams: the source that they name instead of the queue pair's own number; 0 = that.
    pub source: Qpn,
    /// Q counters that the queue pair counts into; 0 = none.
    pub counter_set: u8,
}

impl Default for InitAttr {
    fn default() -> Self {
        Self {
            port: 1,
            pkey_index: 0,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            qkey: 0x1111_1111,
            source: Qpn(0),
            counter_set: 0,
        }
    }
}

/// The way to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The peer's port.
    pub lid: Lid,
    /// Service level.
    pub sl: u8,
    /// The peer's GID; with one, packets carry a GRH.
    pub gid: Option<Gid>,
    /// Index of the local GID, when `gid` is used.
    pub sgid_index: u8,
    /// Path bits of the source: added to the own LID, as far as the port's LMC goes.
    pub source_bits: u8,
    /// The own port, from 1; 0: that of INIT, and of an alternate path the first.
    pub port: u8,
    /// Of an alternate path: index of its P_Key. The other one has that of INIT.
    pub pkey_index: u16,
    /// RoCE: what the way has beside the GID.
    pub hop: Option<Hop>,
    /// Forced loopback: it leads back to the own port, whatever the rest says.
    pub back: bool,
}

impl Path {
    /// The way to a LID.
    pub const fn lid(lid: Lid) -> Self {
        Self {
            lid,
            sl: 0,
            gid: None,
            sgid_index: 0,
            source_bits: 0,
            port: 0,
            pkey_index: 0,
            hop: None,
            back: false,
        }
    }

    /// The way back to the own port, which need not be up (forced loopback).
    pub const fn back() -> Self {
        Self { back: true, ..Self::lid(Lid(0)) }
    }

    /// The way to a RoCE address, from the port's own of that index.
    pub const fn roce(gid: Gid, sgid_index: u8, hop: Hop) -> Self {
        Self { gid: Some(gid), sgid_index, hop: Some(hop), ..Self::lid(Lid(0)) }
    }
}

/// Values of the transition INIT to RTR (ready to receive).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtrAttr {
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// The way to it.
    pub path: Path,
    /// Path MTU, IBTA code 1..=5 = 256..=4096 bytes.
    pub mtu: u8,
    /// The peer's first packet sequence number.
    pub receive_psn: Psn,
    /// Outstanding RDMA reads served at once; a power of two.
    pub responder_reads: u8,
    /// How long the peer shall wait when there is no receive request (IBTA table 45).
    pub rnr_timer: u8,
}

impl RtrAttr {
    /// Moderate values: MTU 4096, PSN 0, 16 reads, RNR timer 0.12 ms.
    pub const fn new(remote_qpn: Qpn, path: Path) -> Self {
        Self { remote_qpn, path, mtu: 5, receive_psn: Psn::new(0), responder_reads: 16, rnr_timer: 7 }
    }
}

/// Values of the transition RTR to RTS (ready to send).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtsAttr {
    /// First packet sequence number.
    pub send_psn: Psn,
    /// Local ACK timeout: 4.096 us * 2^value; 0 = never.
    pub timeout: u8,
    /// Retries after a timeout or a sequence error, 0..=7.
    pub retries: u8,
    /// Retries after "receiver not ready", 0..=6; 7 = for ever.
    pub rnr_retries: u8,
    /// RDMA reads outstanding at once as requester; a power of two.
    pub initiator_reads: u8,
}

impl Default for RtsAttr {
    fn default() -> Self {
        Self { send_psn: Psn::new(0), timeout: 14, retries: 7, rnr_retries: 7, initiator_reads: 16 }
    }
}

/// A queue pair.
#[must_use = "destroy it with Hca::destroy_qp"]
pub struct Qp<D> {
    number: Qpn,
    config: QpConfig,
    buffer: D,
    record: D,
    uar: UarIndex,
    send: Ring,
    recv: Ring,
    state: QpState,
    /// Doorbell of the last WQE queued and not yet announced.
    doorbell: Option<u64>,
    /// Doorbells alternate between two registers.
    doorbell_half: u64,
    /// Where send WQEs are built.
    wqe: Wqe,
}

impl<D: Dma> Qp<D> {
    /// The queue pair's number.
    pub fn number(&self) -> Qpn {
        self.number
    }

    /// The state as the driver knows it: the adapter may have gone to error meanwhile.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Posts a send request and announces it.
    ///
    /// # Errors
    /// Nothing is posted: the ring is full or the request can't be built.
    pub fn post_send<B: Bus>(&mut self, bus: &mut B, request: &SendRequest<'_>) -> Result<(), Error> {
        self.queue_send(request)?;
        self.ring_doorbell(bus);
        Ok(())
    }

    /// Posts a send request whose WQE the adapter gets with the doorbell (PRM "BlueFlame"), for which
    /// [`General::BF`] has to be set; a WQE above [`BLUEFLAME_BYTES`] is announced by a plain doorbell.
    ///
    /// # Errors
    /// Nothing is posted: the ring is full or the request can't be built.
    pub fn post_send_blueflame<B: Bus>(
        &mut self,
        bus: &mut B,
        request: &SendRequest<'_>,
    ) -> Result<(), Error> {
        let alone = self.doorbell.is_none();
        let first = self.send.place(self.send.head);
        self.queue_send(request)?;
        let blocks = self.send.requests.get(first).map_or(0, |(_, blocks)| usize::from(*blocks));
        let len = blocks * WQEBB;
        if !alone || len > BLUEFLAME_BYTES {
            self.ring_doorbell(bus);
            return Ok(());
        }
        let mut copy = [0; BLUEFLAME_BYTES];
        for (i, block) in copy.chunks_exact_mut(WQEBB).take(blocks).enumerate() {
            let place = (first + i) & (self.send.size as usize).saturating_sub(1);
            self.buffer.read(self.send.offset + place * WQEBB, block);
        }
        self.count_sends();
        bus.mmio_write_block(page(self.uar) + SEND_DOORBELL + self.doorbell_half, copy.split_at(len).0);
        self.doorbell_half ^= SEND_DOORBELL_STEP;
        Ok(())
    }

    /// Puts a send request into the ring; the adapter does not know of it before [`Qp::ring_doorbell`].
    pub fn queue_send(&mut self, request: &SendRequest<'_>) -> Result<(), Error> {
        let wqe = &mut self.wqe;
        wqe.send(self.number, self.send.head, request)?;
        if u32::from(wqe.blocks()) > self.send.free() {
            return Err(Error::QueueFull);
        }
        self.send.write(&mut self.buffer, wqe.bytes());
        self.send.take(request.wr_id, wqe.blocks());
        self.doorbell = Some(wqe.doorbell());
        Ok(())
    }

    /// Posts a send WQE as it is and rings for it: for requests that [`SendRequest`] does not cover. `wqe` is whole basic
    /// blocks; the first 8 bytes are the doorbell.
    ///
    /// # Errors
    /// Nothing is posted: the ring is full, or `wqe` is not a number of whole blocks.
    pub fn post_raw<B: Bus>(&mut self, bus: &mut B, wr_id: u64, wqe: &[u8]) -> Result<(), Error> {
        let blocks = wqe.len() / WQEBB;
        if blocks == 0 || !wqe.len().is_multiple_of(WQEBB) {
            return Err(Error::Invalid("a WQE is a number of whole basic blocks"));
        }
        if blocks > self.send.free() as usize {
            return Err(Error::QueueFull);
        }
        self.send.write(&mut self.buffer, wqe);
        self.send.take(wr_id, blocks as u16);
        self.doorbell = Some(hca_spec::be64(wqe, 0));
        self.ring_doorbell(bus);
        Ok(())
    }

    /// Counts what was queued in the doorbell record and returns the doorbell, for callers who ring it themselves.
    pub fn count_sends(&mut self) -> Option<u64> {
        let doorbell = self.doorbell.take()?;
        if !self.config.recordless {
            self.record.store32(RECORD_SEND, self.send.head.into());
        }
        Some(doorbell)
    }

    /// Hands queued requests to the adapter: first the doorbell record, then the doorbell.
    pub fn ring_doorbell<B: Bus>(&mut self, bus: &mut B) {
        let Some(doorbell) = self.count_sends() else { return };
        let first = if self.config.recordless { RECORDLESS_DOORBELL } else { SEND_DOORBELL };
        bus.mmio_write64(page(self.uar) + first + self.doorbell_half, doorbell);
        self.doorbell_half ^= SEND_DOORBELL_STEP;
    }

    /// Posts a receive request. There is no doorbell: the adapter looks at the record when it needs one.
    ///
    /// # Errors
    /// Nothing is posted: the ring is full or the list is too long.
    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Error> {
        if self.recv.free() == 0 {
            return Err(Error::QueueFull);
        }
        let mut wqe = vec![0; self.recv.stride];
        wqe::receive(sges, self.recv.stride / Data::SIZE, &mut wqe)?;
        self.recv.write(&mut self.buffer, &wqe);
        self.recv.take(wr_id, 1);
        self.record.store32(RECORD_RECEIVE, self.recv.head.into());
        Ok(())
    }

    /// Retires what a completion of this queue pair completes; returns the caller's number of the request.
    ///
    /// On the send side all earlier requests are done as well, reported or not. `None` if the completion
    /// names no request that is under way. Receives from a shared queue are [`crate::Srq::finish`]'s.
    pub fn finish(&mut self, completion: &Completion) -> Option<u64> {
        if completion.qpn != self.number {
            return None;
        }
        match completion.side {
            Side::Send => self.send.retire(completion.wqe_index),
            Side::Receive => self.recv.retire(completion.wqe_index),
        }
    }

    /// Basic blocks free in the send ring.
    pub fn send_room(&self) -> u32 {
        self.send.free()
    }

    /// Receive requests that can be posted.
    pub fn recv_room(&self) -> u32 {
        self.recv.free()
    }

    /// The fields that every transition repeats.
    fn common(&self, qpc: &mut Qpc) {
        qpc.set(Qpc::ST, self.config.service as u32);
        qpc.set(Qpc::PD, self.config.pd.0).set(Qpc::XRCD, self.config.xrcd.unwrap_or_default().0);
        qpc.set(Qpc::CQN_SND, self.config.send_cq.0).set(Qpc::CQN_RCV, self.config.recv_cq.0);
    }
}

pub(crate) fn log2_of(count: u32) -> Result<u32, Error> {
    let log = count.max(1).checked_next_power_of_two().map(u32::ilog2);
    log.filter(|l| *l <= LOG_MAX_RING).ok_or(Error::Invalid("the queue is too long"))
}

fn set_access(qpc: &mut Qpc, access: Access, atomic_mode: u32) {
    qpc.set(Qpc::RRE, access.contains(Access::REMOTE_READ).into());
    qpc.set(Qpc::RWE, access.contains(Access::REMOTE_WRITE).into());
    let atomics = access.contains(Access::REMOTE_ATOMIC);
    qpc.set(Qpc::RAE, atomics.into()).set(Qpc::ATOMIC_MODE, if atomics { atomic_mode } else { 0 });
}

fn set_path(to: &mut AddressPath, path: &Path) {
    to.set(AddressPath::FL, path.back.into());
    to.set(AddressPath::RLID, path.lid.0.into()).set(AddressPath::SL, path.sl.into());
    to.set(AddressPath::MLID, path.source_bits.into()).set(AddressPath::VHCA_PORT_NUM, path.port.into());
    if let Some(gid) = path.gid {
        to.set(AddressPath::GRH, 1).set(AddressPath::SRC_ADDR_INDEX, path.sgid_index.into());
        to.set(AddressPath::HOP_LIMIT, 0xff);
        to.set(AddressPath::RGID_H, hca_spec::be64(&gid.0, 0));
        to.set(AddressPath::RGID_L, hca_spec::be64(&gid.0, 8));
    }
    if let Some(hop) = path.hop {
        let (high, low) = hop.mac.halves();
        to.set(AddressPath::RMAC_47_32, high.into()).set(AddressPath::RMAC_31_0, low);
        to.set(AddressPath::ETH_PRIO, hop.priority.into())
            .set(AddressPath::UDP_SPORT, hop.source_port.into());
        to.set(AddressPath::HOP_LIMIT, hop.hop_limit.into());
        to.set(AddressPath::TCLASS, hop.traffic_class.into());
    }
}

impl<B: Bus> Hca<B> {
    /// Creates a queue pair in state RESET (PRM "CREATE_QP").
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<Qp<B::Dma>, Error> {
        let log_send = log2_of(config.send_blocks)?;
        let log_sges = log2_of(config.recv_sges)?;
        // The send ring starts on a basic block, so the receive ring has at least one.
        let log_recv =
            log2_of(config.recv_requests)?.max((WQEBB / Data::SIZE).ilog2().saturating_sub(log_sges));
        let max = self.caps().get(General::LOG_MAX_QP_SZ);
        let stride = Data::SIZE << log_sges;
        if log_send > max || log_recv > max || stride as u32 > self.caps().get(General::MAX_WQE_SZ_RQ) {
            return Err(Error::Invalid("larger queues than the adapter has"));
        }
        let has_recv = config.recv_requests > 0 && config.srq.is_none();
        let recv_size = if has_recv { 1 << log_recv } else { 0 };
        let send_offset = recv_size as usize * stride;
        let has_send = config.send_blocks > 0;
        let send_size = if has_send { 1 << log_send } else { 0 };
        let size = send_offset + WQEBB * send_size as usize;

        let buffer = self.dma_alloc(size.max(crate::PAGE_SIZE))?;
        let record = self.dma_alloc(RECORD_LINE)?;
        let uar = self.uar();
        let mut qp = Qp {
            number: Qpn(0),
            config: *config,
            buffer,
            record,
            uar,
            send: Ring::new(send_offset, WQEBB, send_size),
            recv: Ring::new(0, stride, recv_size),
            state: QpState::Reset,
            doorbell: None,
            doorbell_half: 0,
            wqe: Wqe::default(),
        };
        let mut input = CreateQpIn::new();
        let qpc = input.qpc_mut();
        qp.common(qpc);
        qpc.set(Qpc::PM_STATE, path_migration::MIGRATED);
        qpc.set(Qpc::LOG_SQ_SIZE, log_send).set(Qpc::NO_SQ, (!has_send).into()).set(Qpc::UAR_PAGE, uar.0);
        qpc.set(Qpc::BLOCK_LB_MC, config.blocks_own_multicast.into());
        qpc.set(Qpc::FRE, config.fast_registration.into()).set(Qpc::RLKY, config.physical.into());
        if let Some((streams, errored)) = config.streams {
            qpc.set(Qpc::LOG_NUM_DCI_STREAM_CHANNELS, streams.into());
            qpc.set(Qpc::LOG_NUM_DCI_ERRORED_STREAMS, errored.into());
        }
        if config.fetches {
            qpc.set(Qpc::OFFLOAD_TYPE, OFFLOAD_RENDEZVOUS);
        }
        if config.recordless {
            qpc.set(Qpc::SEND_DBR_MODE, send_dbr_mode::NO_RECORD);
        }
        let (request, response) = config.scatter_to_cqe.codes();
        qpc.set(Qpc::CS_REQ, request).set(Qpc::CS_RES, response);
        if has_recv {
            // The stride is given in units of 16 bytes.
            qpc.set(Qpc::LOG_RQ_SIZE, log_recv).set(Qpc::LOG_RQ_STRIDE, log_sges);
        }
        let rq_type = match config.srq {
            Some(_) => RqType::Shared,
            None if has_recv => RqType::Own,
            None => RqType::Zero,
        };
        qpc.set(Qpc::RQ_TYPE, rq_type as u32).set(Qpc::SRQN_RMPN, config.srq.unwrap_or_default().0);
        qpc.set(Qpc::DBR_ADDR, qp.record.bus_address());
        // No index of our own in CQEs: they name the queue pair anyway.
        qpc.set(Qpc::USER_INDEX, Qpc::USER_INDEX.max());
        let input = with_pages(input.bytes(), pages_of(qp.buffer.bus_address(), size));
        qp.number = Qpn(self.create(Opcode::CreateQp, 0, input)?);
        Ok(qp)
    }

    /// Resets and destroys a queue pair.
    pub fn destroy_qp(&mut self, mut qp: Qp<B::Dma>) -> Result<(), Error> {
        if qp.state != QpState::Reset
            && let Err(error) = self.qp_to_reset(&mut qp)
        {
            core::mem::forget(qp);
            return Err(error);
        }
        self.destroy(Opcode::DestroyQp, qp.number.0, qp)
    }

    /// Asks the adapter for a queue pair's context.
    pub fn query_qp(&mut self, qp: &Qp<B::Dma>) -> Result<Qpc, Error> {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, qp.number.0);
        let out = self.execute(Opcode::QueryQp, 0, input.bytes().to_vec(), QueryQpOut::SIZE)?;
        Ok(*QueryQpOut::from_prefix_or_zero(&out).qpc())
    }
}
