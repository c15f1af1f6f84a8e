//! The tables of contexts (interconnect context memory, ICM).

use std::collections::BTreeSet;

use hca_spec::bsf::Bsf;
use hca_spec::caps::object_type;
use hca_spec::crypto::CryptoBsf;
use hca_spec::dct::{DctState, Dctc};
use hca_spec::ids::{Gid, Qpn};
use hca_spec::mkc::{ANY_QP, AccessMode, Mkc, RESERVED_LKEY};
use hca_spec::qpc::{QpState, Qpc, ServiceType};
use hca_spec::queue::{Cqc, Eqc, Srqc};
use hca_spec::wqe::Datagram;

pub use crate::buffer::Buffer;
use crate::crypto::{BLOCK, DataKey, Keys};
use crate::device_memory::DeviceMemory;
use crate::function::FunctionId;
use crate::limits::{
    LOG_MAX_RESERVED_QPNS, LOG_MAX_RQ, LOG_MAX_RQT, LOG_MAX_TIR, LOG_MAX_TIS, LOG_MAX_UCTX, LOG_MAX_UMEM,
    LOG_RESERVED_QPNS, MAX_Q_COUNTERS, RATES,
};
use crate::list::List;
use crate::object::Kind;
use crate::piece_list::PieceList;
use crate::q_counters::{CounterSet, QCounter};
use crate::rq::{Rq, Strides};
use crate::steering::Steering;
use crate::table::Table;
use crate::transport::{Rqt, Tir, Tis};
pub use crate::users::UserPages;
use crate::users::Users;

/// An event queue.
#[derive(Debug, Clone, Default)]
pub struct Eq {
    /// Its context.
    pub ctx: Eqc,
    /// Bit n of word n / 64 = event type n is wanted. All zero: a completion event queue.
    pub events: [u64; 4],
    /// The entries, 64 bytes each.
    pub buffer: Buffer,
    /// Completion queues that report here.
    pub users: u32,
}

impl Eq {
    /// Whether the queue asked for events of that type.
    pub fn wants(&self, event_type: u8) -> bool {
        self.events.get(event_type as usize / 64).is_some_and(|w| w >> (event_type % 64) & 1 == 1)
    }
}

/// A completion queue.
#[derive(Debug, Clone, Default)]
pub struct Cq {
    /// Its context.
    pub ctx: Cqc,
    /// The entries.
    pub buffer: Buffer,
    /// Queue pairs and shared receive queues that report here.
    pub users: u32,
}

/// A queue pair.
#[derive(Debug, Clone, Default)]
pub struct Qp {
    /// Its context. `STATE` is the firmware's view; the hardware writes moving parts back.
    pub ctx: Qpc,
    /// Optional parameters given at creation and since.
    pub opt_param_mask: u32,
    /// Receive queue first, then send queue.
    pub buffer: Buffer,
    /// Multicast groups the queue pair is attached to.
    pub multicast: u32,
    /// RTS2SQD asked for an event when the send queue is drained.
    pub drained_event: bool,
    /// The elements that it sends by: requests, answers; 0 = none.
    pub groups: [u32; 2],
    /// An initiator of dynamic connections: its streams in error, fewer than 2^`LOG_NUM_DCI_ERRORED_STREAMS`. The hardware says which.
    pub errored_streams: BTreeSet<u16>,
    /// What a send queue on its own (CREATE_SQ) has beside its context: only commands of that family find it. `None`: a
    /// queue pair.
    pub send_only: Option<SendOnly>,
}

impl Qp {
    /// Current state.
    pub fn state(&self) -> QpState {
        QpState::from_bits(self.ctx.get(Qpc::STATE)).unwrap_or_default()
    }

    /// Service type.
    pub fn service(&self) -> ServiceType {
        ServiceType::from_bits(self.ctx.get(Qpc::ST)).unwrap_or_default()
    }

    /// Bytes of the receive queue, which precedes the send queue in the buffer.
    #[inline]
    pub fn rq_bytes(&self) -> u64 {
        match self.ctx.get(Qpc::RQ_TYPE) {
            0 => 1 << (self.ctx.get(Qpc::LOG_RQ_SIZE) + self.ctx.get(Qpc::LOG_RQ_STRIDE) + 4),
            _ => 0,
        }
    }

    /// Bytes of the send queue.
    pub fn sq_bytes(&self) -> u64 {
        match self.ctx.get(Qpc::NO_SQ) {
            0 => 64 << self.ctx.get(Qpc::LOG_SQ_SIZE),
            _ => 0,
        }
    }
}

/// Options of a send queue on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendOnly {
    /// The transport interface by which it sends. `None`: it sends nothing, but executes what needs no peer.
    pub tis: Option<u32>,
    /// Its WQEs may change memory keys.
    pub reg_umr: bool,
    /// Headers that WQEs have to carry inline, as the driver said: 0 none, 1 layer 2, 2 layer 3, 3 layer 4.
    pub min_inline_mode: u8,
    /// A WQE may have several packets.
    pub multi_packet: bool,
    /// WQEs may say where headers begin: no more than a note, as nothing is read of it (capability `swp`).
    pub parser: bool,
    /// WQEs posted in error are flushed; if not, the driver hears nothing of them.
    pub flush_in_error: bool,
    /// Index of the rate that it keeps to; 0 = none.
    pub rate_limit: u16,
    /// Format of timestamps, as the driver said: the default is free running, too.
    pub timestamps: u8,
}

/// A rate that send queues keep to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rate {
    /// kb/s; 0 = none.
    pub(crate) kbps: u32,
    /// The user context that it was set for.
    pub(crate) owner: u16,
}

/// Kind of a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SrqKind {
    /// CREATE_SRQ.
    #[default]
    Basic,
    /// CREATE_XRC_SRQ.
    Xrc,
    /// CREATE_RMP.
    Rmp,
    /// CREATE_XRQ: one with tag matching.
    Xrq,
}

/// Which WQE of a shared receive queue is next, and where its scatter entries begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SrqOrder {
    /// A linked list: each begins with a segment that names the next.
    #[default]
    List,
    /// One after the other; each begins with such a segment, which is not looked at.
    Cyclic,
    /// One after the other, without that segment.
    BasicCyclic,
}

impl SrqOrder {
    /// Bytes in front of a WQE's scatter entries.
    pub fn head(self) -> usize {
        if self == Self::BasicCyclic { 0 } else { size_of::<hca_spec::wqe::SrqNext>() }
    }
}

/// A shared receive queue of any kind: RMPs are brought into the same form.
#[derive(Debug, Clone, Default)]
pub struct Srq {
    /// How it was created; only commands of that family find it.
    pub kind: SrqKind,
    /// The order of its WQEs.
    pub order: SrqOrder,
    /// Of a pool whose packets take strides of a WQE.
    pub strides: Option<Strides>,
    /// Its context; of an RMP, the fields that RMPs have.
    pub ctx: Srqc,
    /// The WQEs.
    pub buffer: Buffer,
    /// log2 of the WQE's stride in bytes.
    pub log_stride: u32,
    /// log2 of the number of WQEs.
    pub log_size: u32,
    /// Queue pairs that receive from here.
    pub users: u32,
    /// Of one with tag matching: its list, as it was when the hardware last wrote it here.
    pub matching: Matching,
}

/// What commands know of the list of a queue with tag matching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Matching {
    /// log2 of its entries.
    pub log_size: u32,
    /// The adapter fetches data that messages announce.
    pub rendezvous: bool,
    /// The entry that the next one is put into.
    pub next: u16,
    /// Unexpected messages that software has told it has seen.
    pub seen: u16,
    /// Unexpected messages that came.
    pub came: u16,
}

/// A DC target.
#[derive(Debug, Clone, Default)]
pub struct Dct {
    /// Its context.
    pub ctx: Dctc,
    /// The next access key violation raises an event.
    pub armed: bool,
}

impl Dct {
    /// Current state.
    pub fn state(&self) -> DctState {
        DctState::from_bits(self.ctx.get(Dctc::STATE)).unwrap_or_default()
    }
}

/// Translations of a memory key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Translation {
    /// None: physical address.
    #[default]
    None,
    /// One DMA address per page, 8 bytes, access bits in the low bits (see [`hca_spec::mkc`]).
    Mtt(List),
    /// Pages of a user memory.
    User(UserPages),
    /// Pieces of other keys, 16 bytes each ([`hca_spec::mkc::Klm`]).
    Klm(PieceList),
}

impl Translation {
    /// The MTT of a page, of a key that has pages.
    #[inline]
    pub fn page(&self, index: usize) -> Option<u64> {
        match self {
            Self::Mtt(list) => list.get(index).map(u64::from_be_bytes),
            Self::User(pages) => pages.get(index),
            Self::None | Self::Klm(_) => None,
        }
    }

    /// MTTs from that of page `index` on, as many as lie in memory one behind the other; none says nothing of [`Translation::page`].
    #[inline]
    pub fn entries_from(&self, index: usize) -> &[[u8; 8]] {
        match self {
            Self::Mtt(list) => list.entries_from(index),
            Self::None | Self::Klm(_) | Self::User(_) => &[],
        }
    }
}

/// A memory key.
#[derive(Debug, Clone, Default)]
pub struct MemoryKey {
    /// Its context.
    pub ctx: Mkc,
    /// Whether MTT entries carry access bits that count.
    pub pg_access: bool,
    /// Its translations.
    pub translation: Translation,
    /// Capacity in 16-byte units; UMR WQEs can't load more.
    pub octwords: u32,
    /// Bytes of ICM that are counted for the translations.
    pub counted: u64,
    /// Its signature and encryption parts, once loaded.
    pub signature: Option<Box<Signature>>,
}

/// The signature part of a memory key, and the encryption part behind it.
#[derive(Debug, Clone, Default)]
pub struct Signature {
    /// What data looks like in memory and on the wire; zeros, which is no signatures, if only data is encrypted.
    pub bsf: Bsf,
    /// How data is encrypted, of a key that does that.
    pub crypto: Option<Encryption>,
    /// The block's signature as far as it has come from the wire.
    pub arriving: [u8; 8],
    /// The key's count of signature errors when one was told: the next is told when the driver changes it.
    pub told: Option<u32>,
}

/// The encryption part of a memory key.
#[derive(Debug, Clone, Default)]
pub struct Encryption {
    /// What is encrypted where, and with which key.
    pub bsf: CryptoBsf,
    /// Bytes that have come and are not enough to be encrypted or decrypted.
    pub partial: Partial,
}

/// The begin of a part of a data unit that is encrypted as a whole, as far as it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Partial {
    /// Where the access began that left it, and what it found. An access that is made again finds the same.
    pub access: u64,
    /// What that access found.
    pub before: Piece,
    /// What it left.
    pub after: Piece,
}

/// Some bytes, by where they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Piece {
    /// Where.
    pub start: u64,
    /// How many.
    pub len: u8,
    /// The first so many.
    pub bytes: [u8; 2 * BLOCK],
}

/// A protection signature value.
#[derive(Debug, Clone, Copy, Default)]
pub struct Psv {
    /// Its protection domain.
    pub pd: u32,
    /// The guard's seed in the highest bits; for T10-DIF the tags follow.
    pub value: u64,
}

/// A protection domain, XRC domain or transport domain: only its users count.
#[derive(Debug, Clone, Copy, Default)]
pub struct Domain {
    /// Objects that name the domain, but for memory keys.
    pub users: u32,
    /// Memory keys that name the domain.
    pub keys: u32,
    /// Protection signature values that name the domain.
    pub psvs: u32,
}

/// Members of a multicast group.
#[derive(Debug, Clone, Default)]
pub struct Mcg {
    /// The group.
    pub gid: Gid,
    /// Its queue pairs.
    pub qps: Vec<Qpn>,
}

/// A general object that is not reserved QP numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GeneralObject {
    /// Memory that a driver writes entries of flow tables into: where it begins, and log2 of its bytes.
    SwIcm { start: u64, log: u32 },
    /// A sampler of flows.
    Sampler,
    /// A meter of flows.
    Meter,
    /// An element that queues are scheduled by.
    Element(Element),
    /// A queue pair whose congestion control is that of an address vector.
    Mapping { qpn: u32, vector: Datagram },
    /// A key that data is encrypted with.
    DataKey,
    /// The login of a user context that imports wrapped keys.
    Login { uid: u16 },
}

impl GeneralObject {
    /// Its type, as commands name it.
    pub(crate) fn object_type(&self) -> u32 {
        match self {
            Self::SwIcm { .. } => object_type::SW_ICM,
            Self::Sampler => object_type::FLOW_SAMPLER,
            Self::Meter => object_type::FLOW_METER,
            Self::Element(_) => object_type::SCHEDULING_ELEMENT,
            Self::Mapping { .. } => object_type::AV_QP_MAPPING,
            Self::DataKey => object_type::DEK,
            Self::Login { .. } => object_type::CRYPTO_LOGIN,
        }
    }
}

/// An element that queues are scheduled by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Element {
    /// A group of queues, and no node.
    pub(crate) leaf: bool,
    /// The node above it; 0: none.
    pub(crate) parent: u32,
    /// Its weight among the children of its parent.
    pub(crate) share: u32,
    /// The rate that it keeps to, Mb/s; 0: none.
    pub rate: u32,
    /// Queues that it schedules, or elements below it.
    pub(crate) users: u32,
}

impl Element {
    /// The node above it; 0: none.
    pub fn node(&self) -> u32 {
        self.parent
    }

    /// Its weight among the children of its node: 0 is the smallest.
    pub fn weight(&self) -> u32 {
        self.share.max(1)
    }
}

/// Elements from a root to a leaf: what is looked at for a packet.
pub const MOST_LEVELS: usize = 4;

/// Number of the first DC target of a function, from its first number on: beyond those of all queue pairs, because packets name both in one field.
const FIRST_DCT: u32 = 1 << 20;
/// The first reserved QP number: beyond those too, and the last within what a function has.
const FIRST_RESERVED_QPN: u32 = 1 << 21;
/// The first pages of BAR0 hold the initialization segment.
const FIRST_UAR: u32 = 0x10;
/// Bytes of a page of BAR0.
const UAR_PAGE: u32 = 4096;
/// Numbers below name definers.
const FIRST_GENERAL_OBJECT: u32 = 0x100;
/// General objects of a function, without reserved QP numbers. Numbers have 16 bits: with as many send queues name their group.
const MOST_GENERAL_OBJECTS: u32 = (1 << 16) - FIRST_GENERAL_OBJECT;
/// Pages of BAR0.
const BAR0_PAGES: u32 = 8192;
/// log2 of the number of DC targets.
pub(crate) const LOG_MAX_DCT: u32 = 18;

/// Queue pairs 0 and 1 that a function has at most, all ports and states together.
pub(crate) const MAX_MANAGEMENT_QPS: usize = 64;

/// All tables.
#[derive(Debug)]
pub struct Icm {
    /// Event queues, numbers from 1 (8 bits).
    pub eqs: Table<Eq>,
    /// Completion queues: every 24-bit number but 0.
    pub cqs: Table<Cq>,
    /// Queue pairs. The first 0x40 numbers are never handed out: 0 and 1 are special.
    pub qps: Table<Qp>,
    /// Those of them that are queue pair 0 or 1 of a port; so few that each MAD may look at all.
    pub management: BTreeSet<Qpn>,
    /// Shared receive queues of every kind: one number space.
    pub srqs: Table<Srq>,
    /// DC targets. Their numbers and those of queue pairs are different.
    pub dcts: Table<Dct>,
    /// Receive queues: numbers of their own.
    pub rqs: Table<Rq>,
    /// Tables of receive queues.
    pub rqts: Table<Rqt>,
    /// Transport interfaces of receivers.
    pub tirs: Table<Tir>,
    /// Transport interfaces of senders.
    pub tiss: Table<Tis>,
    /// Reserved QP numbers: `2^`[`LOG_RESERVED_QPNS`] behind each entry.
    pub(crate) reserved_qpns: Table<()>,
    /// General objects of other types, but definers ([`Steering`]); their numbers are above those of definers, and below all
    /// reserved QP numbers.
    pub(crate) general: Table<GeneralObject>,
    /// Groups of queues among them.
    pub(crate) queue_groups: u32,
    /// Keys that data is encrypted with, and logins.
    pub(crate) crypto: Keys,
    /// Memory keys by index; index 0 and 1 are never handed out (lkey 0x100 ends scatter lists).
    pub mkeys: Table<MemoryKey>,
    /// The reserved local key, which is in no table.
    pub reserved_lkey: MemoryKey,
    /// Protection domains.
    pub pds: Table<Domain>,
    /// XRC domains.
    pub xrcds: Table<Domain>,
    /// Transport domains.
    pub tds: Table<Domain>,
    /// UAR pages: the index times 4096 is the offset in BAR0.
    pub uars: Table<Domain>,
    /// Q counters.
    pub q_counters: Table<CounterSet>,
    /// Rates that send queues may keep to, kb/s, from entry 1 on; 0: without end.
    pub(crate) rates: Vec<Rate>,
    /// Protection signature values.
    pub psvs: Table<Psv>,
    /// Multicast groups.
    pub mcgs: Vec<Mcg>,
    /// Flow tables.
    pub steering: Steering,
    /// Memory of the adapter's own.
    pub device_memory: DeviceMemory,
    /// User contexts, their memory and their objects.
    pub(crate) users: Users,
    /// Bytes that translations take: those given with CREATE_MKEY and those that UMR WQEs loaded.
    pub translation_bytes: u64,
    /// Pages in the page lists of all queues.
    pub page_lists: u64,
    /// Entries of all tables of receive queues.
    pub(crate) rqt_entries: u64,
}

/// The reserved local key: all of the bus's addresses, for local accesses.
fn reserved_lkey() -> MemoryKey {
    let mut ctx = Mkc::new();
    ctx.set_access_mode(AccessMode::Pa).set(Mkc::LR, 1).set(Mkc::LW, 1).set(Mkc::LENGTH64, 1);
    ctx.set(Mkc::QPN, ANY_QP).set(Mkc::MKEY_7_0, RESERVED_LKEY & 0xff);
    MemoryKey { ctx, ..MemoryKey::default() }
}

impl Icm {
    /// All tables of a function empty.
    pub(crate) fn new(function: FunctionId) -> Self {
        let first_qpn = function.first_qpn().0;
        Icm {
            eqs: Table::new(1, 127),
            // Numbers have 24 bits, and 0 means "none" in the contexts that name a CQ.
            cqs: Table::new(1, (1 << 24) - 1),
            qps: Table::new(first_qpn + 0x40, 1 << 18),
            management: BTreeSet::new(),
            srqs: Table::new(0x40, (1 << 18) - 0x40),
            dcts: Table::new(first_qpn + FIRST_DCT, 1 << LOG_MAX_DCT),
            rqs: Table::new(1, 1 << LOG_MAX_RQ),
            rqts: Table::new(1, 1 << LOG_MAX_RQT),
            tirs: Table::new(1, 1 << LOG_MAX_TIR),
            tiss: Table::new(1, 1 << LOG_MAX_TIS),
            reserved_qpns: Table::new(
                (first_qpn + FIRST_RESERVED_QPN) >> LOG_RESERVED_QPNS,
                1 << (LOG_MAX_RESERVED_QPNS - LOG_RESERVED_QPNS),
            ),
            general: Table::new(FIRST_GENERAL_OBJECT, MOST_GENERAL_OBJECTS),
            queue_groups: 0,
            crypto: Keys::default(),
            mkeys: Table::new(0x100, (1 << 24) - 0x100),
            reserved_lkey: reserved_lkey(),
            pds: Table::new(1, (1 << 24) - 2),
            xrcds: Table::new(1, (1 << 24) - 2),
            tds: Table::new(1, (1 << 16) - 1),
            uars: Table::new(FIRST_UAR, BAR0_PAGES - FIRST_UAR),
            q_counters: Table::new(1, MAX_Q_COUNTERS),
            rates: vec![Rate::default(); usize::from(RATES).saturating_sub(1)],
            psvs: Table::new(1, (1 << 24) - 2),
            mcgs: Vec::new(),
            steering: Steering::default(),
            device_memory: DeviceMemory::default(),
            users: Users::new((1 << LOG_MAX_UCTX) - 1, 1 << LOG_MAX_UMEM),
            translation_bytes: 0,
            page_lists: 0,
            rqt_entries: 0,
        }
    }

    /// The same with device memory. Its pages at the end of BAR0 are no doorbells.
    pub(crate) fn with_device_memory(self, device_memory: DeviceMemory) -> Self {
        let pages = device_memory.pages();
        if pages.is_empty() {
            return self;
        }
        let end = u32::try_from(pages.start / u64::from(UAR_PAGE)).unwrap_or(BAR0_PAGES);
        Self { uars: Table::new(FIRST_UAR, end.saturating_sub(FIRST_UAR)), device_memory, ..self }
    }

    /// The key of that number that data is encrypted with.
    pub fn data_key(&self, number: u32) -> Option<&DataKey> {
        self.crypto.data.get(&number)
    }

    /// An element that queues are scheduled by.
    pub(crate) fn element(&self, number: u32) -> Option<&Element> {
        match self.general.get(number) {
            Some(GeneralObject::Element(element)) => Some(element),
            _ => None,
        }
    }

    pub(crate) fn element_mut(&mut self, number: u32) -> Option<&mut Element> {
        match self.general.get_mut(number) {
            Some(GeneralObject::Element(element)) => Some(element),
            _ => None,
        }
    }

    /// An element and those above it, at most [`MOST_LEVELS`], with their numbers.
    pub fn elements(&self, leaf: u32) -> impl Iterator<Item = (u32, &Element)> {
        let first = self.element(leaf).map(|element| (leaf, element));
        let up = |(_, below): &(u32, &Element)| Some((below.parent, self.element(below.parent)?));
        std::iter::successors(first, up).take(MOST_LEVELS)
    }

    /// One use more or less of elements.
    pub(crate) fn hold_elements(&mut self, numbers: impl IntoIterator<Item = u32>, held: bool) {
        for number in numbers {
            if let Some(element) = self.element_mut(number) {
                let users = element.users;
                element.users = if held { users.saturating_add(1) } else { users.saturating_sub(1) };
            }
        }
    }

    /// The rate of that index, in kb/s. `None`: there is none.
    pub fn rate(&self, index: u16) -> Option<u32> {
        let rate = self.rates.get(usize::from(index).checked_sub(1)?)?.kbps;
        (rate != 0).then_some(rate)
    }

    /// The user context that set the rate of that index; 0: the kernel, or nobody.
    pub(crate) fn rate_owner(&self, index: u32) -> u16 {
        let at = (index as usize).checked_sub(1);
        at.and_then(|at| self.rates.get(at)).map_or(0, |rate| rate.owner)
    }

    /// How many objects there are in the table of a kind.
    pub fn objects(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Eq => self.eqs.len(),
            Kind::Cq => self.cqs.len(),
            Kind::Qp | Kind::Sq => self.qps.len(),
            Kind::Srq | Kind::XrcSrq | Kind::Rmp | Kind::Xrq => self.srqs.len(),
            Kind::Dct => self.dcts.len(),
            Kind::Rq => self.rqs.len(),
            Kind::Rqt => self.rqts.len(),
            Kind::Tir => self.tirs.len(),
            Kind::Tis => self.tiss.len(),
            Kind::Mkey => self.mkeys.len(),
            Kind::Pd => self.pds.len(),
            Kind::Xrcd => self.xrcds.len(),
            Kind::TransportDomain => self.tds.len(),
            Kind::Uar => self.uars.len(),
            Kind::QCounter => self.q_counters.len(),
            Kind::Psv => self.psvs.len(),
            Kind::UserContext => self.users.contexts.len(),
            Kind::Umem => self.users.umems.len(),
            Kind::GeneralObject => {
                self.reserved_qpns.len() + self.general.len() + self.steering.definers.len()
            }
            Kind::FlowTable => self.steering.tables(),
            Kind::FlowGroup => self.steering.groups(),
            Kind::FlowCounter => self.steering.counters(),
            Kind::ReformatContext => self.steering.contexts()[0],
            Kind::HeaderContext => self.steering.contexts()[1],
        }
    }

    /// The numbers of the objects of a kind, in order; none of what is not kept in a table of its own.
    pub fn numbers(&self, kind: Kind) -> Box<dyn Iterator<Item = u32> + '_> {
        fn all<T>(table: &Table<T>) -> Box<dyn Iterator<Item = u32> + '_> {
            Box::new(table.iter().map(|(number, _)| number))
        }
        let qps = |is_send_only: bool| {
            let is = move |(_, qp): &(u32, &Qp)| qp.send_only.is_some() == is_send_only;
            Box::new(self.qps.iter().filter(is).map(|(number, _)| number))
        };
        let srqs = |kind: SrqKind| {
            let is = move |(_, srq): &(u32, &Srq)| srq.kind == kind;
            Box::new(self.srqs.iter().filter(is).map(|(number, _)| number))
        };
        match kind {
            Kind::Eq => all(&self.eqs),
            Kind::Cq => all(&self.cqs),
            Kind::Qp => qps(false),
            Kind::Sq => qps(true),
            Kind::Srq => srqs(SrqKind::Basic),
            Kind::XrcSrq => srqs(SrqKind::Xrc),
            Kind::Rmp => srqs(SrqKind::Rmp),
            Kind::Xrq => srqs(SrqKind::Xrq),
            Kind::Dct => all(&self.dcts),
            Kind::Rq => all(&self.rqs),
            Kind::Rqt => all(&self.rqts),
            Kind::Tir => all(&self.tirs),
            Kind::Tis => all(&self.tiss),
            Kind::Mkey => all(&self.mkeys),
            Kind::Pd => all(&self.pds),
            Kind::Xrcd => all(&self.xrcds),
            Kind::TransportDomain => all(&self.tds),
            Kind::Uar => all(&self.uars),
            Kind::QCounter => all(&self.q_counters),
            Kind::Psv => all(&self.psvs),
            Kind::UserContext
            | Kind::Umem
            | Kind::GeneralObject
            | Kind::FlowTable
            | Kind::FlowGroup
            | Kind::FlowCounter
            | Kind::ReformatContext
            | Kind::HeaderContext => Box::new(std::iter::empty()),
        }
    }

    /// Counts for a queue pair or a DC target, if it has a set of counters.
    #[inline]
    pub fn count(&mut self, qpn: Qpn, counter: QCounter) {
        let of_qp = self.qps.get(qpn.0).map(|qp| qp.ctx.get(Qpc::COUNTER_SET_ID));
        let of_dct = || self.dcts.get(qpn.0).map(|dct| dct.ctx.get(Dctc::COUNTER_SET_ID));
        let set = of_qp.or_else(of_dct).unwrap_or(0);
        self.count_in(set, counter);
    }

    /// Counts in a set of counters, as of a receive queue; in none if there is none of that number.
    #[inline]
    pub fn count_in(&mut self, set: u32, counter: QCounter) {
        if let Some(set) = self.q_counters.get_mut(set) {
            set.count(counter);
        }
    }

    /// Counts the page list of a new queue.
    pub(crate) fn count_pages(&mut self, pages: usize) {
        self.page_lists += pages as u64;
    }

    /// Forgets the page list of a queue that is gone.
    pub(crate) fn uncount_pages(&mut self, pages: usize) {
        self.page_lists = self.page_lists.saturating_sub(pages as u64);
    }
}
