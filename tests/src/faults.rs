//! One wrong request between two hosts, and everything that can be seen of it: what [`Row`]s of a table say.

use crate::in_process::{ModelBus, ModelMemory, Simulation};
use crate::pair::{Options, PORT, Pair};
use crate::rig::{close, drain_events, open};
use crate::worlds;
use hca_driver::wqe::{SendOp, Wqe};
use hca_driver::{Access, Bus, CounterSet, Dma, Event, InitAttr, Mr, RtsAttr, SendRequest, Sge};
use hca_model::link::{Carrier, Delivery, LinkRate};
use hca_model::link_layer::Packet;
use hca_model::{HcaId, Ps};
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::ids::{Mkey, Pd, Qpn};
use hca_spec::mad::{PortInfo, SmpData, attr};
use hca_spec::qpc::{QpState, Qpc, ServiceType};
use hca_spec::uar::SEND_DOORBELL;
use hca_spec::wire::{Operation, aeth};
use std::sync::{Arc, Mutex, PoisonError};

/// Q counters of errors: offsets in QUERY_Q_COUNTER's output (PRM).
#[allow(missing_docs, reason = "named as in the PRM")]
pub mod counter {
    pub const TIMEOUT: usize = 0x60;
    pub const RESP_LOCAL_LENGTH: usize = 0x78;
    pub const REQ_LOCAL_LENGTH: usize = 0x7c;
    pub const REQ_LOCAL_OPERATION: usize = 0x84;
    pub const RESP_LOCAL_PROTECTION: usize = 0x88;
    pub const REQ_LOCAL_PROTECTION: usize = 0x8c;
    pub const RESP_CQE_ERROR: usize = 0x90;
    pub const REQ_CQE_ERROR: usize = 0x94;
    pub const REQ_REMOTE_INVALID: usize = 0xa0;
    pub const RESP_REMOTE_INVALID: usize = 0xa4;
    pub const REQ_REMOTE_ACCESS: usize = 0xa8;
    pub const RESP_REMOTE_ACCESS: usize = 0xac;
    pub const REQ_REMOTE_OPERATION: usize = 0xb0;
    pub const REQ_RETRIES: usize = 0xb4;
    pub const REQ_FLUSHED: usize = 0xc0;
    /// All that are about something going wrong.
    pub(super) const FIRST: usize = 0x30;
    pub(super) const LAST: usize = REQ_FLUSHED;
}

/// Bytes of each piece of memory.
pub const MEMORY: usize = 1 << 14;
/// What the pieces hold: of the near end, of the far end, and of another domain in both hosts.
const FILLS: [u8; 3] = [0xaa, 0xee, 0xdd];
/// Numbers of the request, of the receive request at the far end, and of a request behind the first.
const WRONG: u64 = 1;
const RECEIVE: u64 = 2;
const BEHIND: u64 = 3;
/// P_Key table of both ports: a full member, another partition, and a limited member of the first.
const PKEYS: [u8; 6] = [0xff, 0xff, 0x80, 0x01, 0x7f, 0xff];
/// Everything that a row causes happens within this.
const TIME: Ps = Ps::from_ms(5);

/// Everything that passed the link.
#[derive(Clone, Default)]
struct Tap(Arc<Mutex<Vec<(usize, Packet)>>>);

impl Carrier for Tap {
    fn transmit(&mut self, now: Ps, from: usize, packet: Packet, out: &mut Vec<Delivery>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((from, packet.clone()));
        out.push(Delivery { at: now + Ps::from_ns(5), end: 1 - from, packet });
    }
}

/// How a work request ended.
type End = Result<(), Syndrome>;

/// Something wrong, and what becomes of it. What is not said does not happen.
pub struct Row {
    what: String,
    options: [Options; 2],
    pkeys: [u16; 2],
    act: Box<dyn Fn(&mut Bench)>,
    sent: Option<End>,
    received: Option<End>,
    nak: Option<u32>,
    event: Option<EventType>,
    counted: [Vec<usize>; 2],
    violations: (u32, u32),
    states: [QpState; 2],
    diagnosed: bool,
}

/// A row in which `act` is all right.
pub fn row(what: impl Into<String>, act: impl Fn(&mut Bench) + 'static) -> Row {
    let rts = RtsAttr { timeout: 8, retries: 0, ..RtsAttr::default() };
    let options = Options { memory: MEMORY, rts, ..Options::default() };
    Row {
        what: what.into(),
        options: [options.clone(), options],
        pkeys: [0, 0],
        act: Box::new(act),
        sent: Some(Ok(())),
        received: None,
        nak: None,
        event: None,
        counted: [Vec::new(), Vec::new()],
        violations: (0, 0),
        states: [QpState::Rts; 2],
        diagnosed: true,
    }
}

impl Row {
    /// The options of the near and of the far end.
    pub fn options(mut self, change: impl Fn(&mut Options, &mut Options)) -> Self {
        let [near, far] = &mut self.options;
        change(near, far);
        self
    }

    /// P_Key indices of the two ends.
    pub fn pkeys(self, near: u16, far: u16) -> Self {
        Self { pkeys: [near, far], ..self }
    }

    /// The request is never completed.
    pub fn waits(self) -> Self {
        Self { sent: None, ..self }
    }

    /// The request fails, the one behind it is flushed, and so is all that comes.
    pub fn fails(mut self, syndrome: Syndrome, counted: &[usize]) -> Self {
        self.sent = Some(Err(syndrome));
        let stops_all = matches!(self.options[0].service, ServiceType::Rc);
        self.states[0] = if stops_all { QpState::Error } else { QpState::SqError };
        self.counted[0].extend([counter::REQ_CQE_ERROR, counter::REQ_FLUSHED]);
        self.counted[0].extend(counted);
        self
    }

    /// The far end answers with a NAK, and its queue pair goes to error.
    pub fn refused(mut self, nak: u32, event: Option<EventType>, counted: &[usize]) -> Self {
        (self.nak, self.event) = (Some(nak), event);
        self.states[1] = QpState::Error;
        self.counted[1].extend(counted);
        self
    }

    /// The receive request at the far end completes.
    pub fn received(mut self, end: End) -> Self {
        if end.is_err() {
            self.states[1] = QpState::Error;
            self.counted[1].push(counter::RESP_CQE_ERROR);
        }
        Self { received: Some(end), ..self }
    }

    /// Errors that the far end counts.
    pub fn counts_far(mut self, counted: &[usize]) -> Self {
        self.counted[1].extend(counted);
        self
    }

    /// What the far port counts: packets with a wrong P_Key and with a wrong Q_Key.
    pub fn violations(self, pkey: u32, qkey: u32) -> Self {
        Self { violations: (pkey, qkey), ..self }
    }

    /// State of the far queue pair at the end.
    pub fn far_state(mut self, state: QpState) -> Self {
        self.states[1] = state;
        self
    }

    /// State of the near queue pair at the end.
    pub fn near_state(mut self, state: QpState) -> Self {
        self.states[0] = state;
        self
    }

    /// The adapters need not say a word: nobody's mistake, or the completion says it all.
    pub fn silent(self) -> Self {
        Self { diagnosed: false, ..self }
    }

    /// Lets it happen and compares.
    ///
    /// # Panics
    /// Something else happened.
    pub fn check(&self) {
        let what = &self.what;
        let mut bench = Bench::new(self);
        let diagnoses = bench.diagnoses();
        (self.act)(&mut bench);
        if self.sent.is_some_and(|end| end.is_err()) {
            bench.pair.send(0, &SendRequest::new(BEHIND, SendOp::Nop, &[]));
        }
        bench.simulation().run(TIME);

        let mut expected: Vec<(u64, End)> = self.sent.map(|end| (WRONG, end)).into_iter().collect();
        if self.sent.is_some_and(|end| end.is_err()) {
            expected.push((BEHIND, Err(Syndrome::WorkRequestFlushed)));
        }
        let ended = |status: Result<(), hca_driver::Failure>, syndrome: Option<Syndrome>| match status {
            Ok(()) => Ok(()),
            Err(_) => Err(syndrome.unwrap_or_else(|| panic!("{what}: an unknown syndrome"))),
        };
        let mut sent = Vec::new();
        while let Some((wr_id, completion)) = bench.pair.try_sent(0) {
            sent.push((wr_id, ended(completion.status, completion.syndrome())));
        }
        assert_eq!(sent, expected, "{what}: completions of the requester");
        let mut received = Vec::new();
        while let Some((wr_id, completion)) = bench.pair.try_received(1) {
            received.push((wr_id, ended(completion.status, completion.syndrome())));
        }
        let expected: Vec<(u64, End)> = self.received.map(|end| (RECEIVE, end)).into_iter().collect();
        assert_eq!(received, expected, "{what}: completions of the responder");
        assert!(bench.pair.try_received(0).is_none() && bench.pair.try_sent(1).is_none(), "{what}");
        assert_eq!(bench.naks(), Vec::from_iter(self.nak), "{what}: NAKs");
        for (end, expected) in [(0, None), (1, self.event)] {
            let events = drain_events(&mut bench.pair.hcas[end]);
            let kinds: Vec<u8> = events
                .iter()
                .filter_map(|e| if let Event::Qp { kind, .. } = e { Some(*kind) } else { None })
                .collect();
            assert_eq!(kinds, Vec::from_iter(expected.map(|e| e as u8)), "{what}: events at end {end}");
        }
        for end in 0..2 {
            let counters = bench.pair.hcas[end].counters(bench.sets[end]).expect("QUERY_Q_COUNTER");
            for at in (counter::FIRST..=counter::LAST).step_by(4) {
                let expected = u32::from(self.counted[end].contains(&at));
                assert_eq!(counters.at(at), expected, "{what}: Q counter {at:#x} at end {end}");
            }
            let info = bench.pair.hcas[end].port_info(PORT).expect("PortInfo");
            let counted = (info.get(PortInfo::P_KEY_VIOLATIONS), info.get(PortInfo::Q_KEY_VIOLATIONS));
            let expected = if end == 1 { self.violations } else { (0, 0) };
            assert_eq!(counted, expected, "{what}: P_Key and Q_Key violations at end {end}");
            let qpc = bench.pair.hcas[end].query_qp(&bench.pair.ends[end].qp).expect("QUERY_QP");
            let state = QpState::from_bits(qpc.get(Qpc::STATE));
            assert_eq!(state, Some(self.states[end]), "{what}: state at end {end}");
        }
        let said = bench.diagnoses() > diagnoses;
        assert!(said || !self.diagnosed, "{what}: nobody said what was wrong");
        bench.assert_untouched(what);
        bench.close();
    }
}

/// Two connected queue pairs on two hosts, each with memory of its own and of another domain.
pub struct Bench {
    /// The connection; the near end is 0.
    pub pair: Pair<ModelBus>,
    foreign: [(Pd, ModelMemory, Mr); 2],
    sets: [CounterSet; 2],
    tap: Tap,
}

impl Bench {
    fn new(row: &Row) -> Self {
        let tap = Tap::default();
        let mut world = worlds::many(2, Vec::new(), 1);
        let connected = world.connect(vec![HcaId(0), HcaId(1)], LinkRate::Edr, 4, Box::new(tap.clone()));
        assert_eq!(connected, Ok(()));
        let simulation = Simulation::new(world);
        let hcas = vec![open(&simulation, 0), open(&simulation, 1)];
        let [near, far] = &row.options;
        let mut pair = Pair::apart(hcas, [near, far]).expect("the queue pairs are made");
        let mut table = SmpData::new();
        table.bytes_mut()[..PKEYS.len()].copy_from_slice(&PKEYS);
        let sets = [0, 1].map(|end| {
            let hca: &mut hca_driver::Hca<ModelBus> = &mut pair.hcas[end];
            hca.smp_set(PORT, attr::PKEY_TABLE, 0, &table).expect("SubnSet(P_KeyTable)");
            hca.create_counters().expect("ALLOC_Q_COUNTER")
        });
        for (end, (options, set)) in row.options.iter().zip(sets).enumerate() {
            let init = InitAttr {
                access: options.queue_access,
                counter_set: set.0,
                pkey_index: row.pkeys[end],
                ..InitAttr::default()
            };
            pair.to_rts_with(end, options, &init).expect("the queue pairs connect");
        }
        let foreign = [0, 1].map(|end| {
            let hca: &mut hca_driver::Hca<ModelBus> = &mut pair.hcas[end];
            let pd = hca.alloc_pd().expect("ALLOC_PD");
            let mut memory = hca.bus_mut().dma_alloc(MEMORY, 4096).expect("memory");
            memory.write(0, &[FILLS[2]; MEMORY]);
            let mr = hca.register(pd, &memory, MEMORY, Access::ALL).expect("CREATE_MKEY");
            (pd, memory, mr)
        });
        for (end, byte) in FILLS.into_iter().enumerate().take(2) {
            pair.fill(end, 0, &[byte; MEMORY]);
            drain_events(&mut pair.hcas[end]);
        }
        Self { pair, foreign, sets, tap }
    }

    fn simulation(&mut self) -> Simulation {
        self.pair.hcas[0].bus_mut().simulation().clone()
    }

    fn diagnoses(&mut self) -> u64 {
        self.simulation().world(|world, _| world.diagnoses(HcaId(0)) + world.diagnoses(HcaId(1)))
    }

    /// NAKs of the far end, RNR NAKs among them.
    fn naks(&self) -> Vec<u32> {
        let packets = self.tap.0.lock().unwrap_or_else(PoisonError::into_inner);
        let naks = packets.iter().filter_map(|(from, packet)| {
            let (_, repr, _) = packet.parse().expect("adapters send good packets");
            let syndrome = u32::from(repr.aeth?.syndrome);
            let is_nak = repr.operation == Operation::Acknowledge && syndrome & aeth::KIND_MASK != aeth::ACK;
            (*from == 1 && is_nak).then_some(syndrome & aeth::VALUE_MASK)
        });
        naks.collect()
    }

    fn assert_untouched(&self, what: &str) {
        for (end, byte) in FILLS.into_iter().enumerate().take(2) {
            let own = self.pair.ends[end].bytes(0, MEMORY);
            assert!(own.iter().all(|b| *b == byte), "{what}: memory of end {end} changed");
            let mut bytes = vec![0; MEMORY];
            self.foreign[end].1.read(0, &mut bytes);
            assert!(bytes.iter().all(|b| *b == FILLS[2]), "{what}: foreign memory at end {end} changed");
        }
    }

    fn close(self) {
        let Self { mut pair, foreign, sets, tap: _ } = self;
        for (end, ((pd, memory, mr), set)) in foreign.into_iter().zip(sets).enumerate() {
            let hca = &mut pair.hcas[end];
            hca.deregister(mr).expect("DESTROY_MKEY");
            drop(memory);
            hca.dealloc_pd(pd).expect("DEALLOC_PD");
            hca.destroy_counters(set).expect("DEALLOC_Q_COUNTER");
        }
        close(pair);
    }

    /// Memory of the near end.
    pub fn near(&self) -> Mr {
        self.pair.ends[0].mr
    }

    /// Memory of the far end.
    pub fn far(&self) -> Mr {
        self.pair.ends[1].mr
    }

    /// Memory of another domain in the host of `end`.
    pub fn foreign(&self, end: usize) -> Mr {
        self.foreign[end].2
    }

    /// Posts the request that the row is about.
    pub fn post(&mut self, op: SendOp, sge: Sge) {
        self.pair.send(0, &SendRequest::new(WRONG, op, &[sge]));
    }

    /// Posts a send.
    pub fn send(&mut self, sge: Sge) {
        self.post(SendOp::Send { imm: None }, sge);
    }

    /// Posts a write.
    pub fn write(&mut self, sge: Sge, address: u64, rkey: Mkey) {
        self.post(SendOp::Write { address, rkey, imm: None }, sge);
    }

    /// Posts a send whose WQE `spoil` changes: a control segment, then a data segment of 64 bytes.
    pub fn spoilt(&mut self, spoil: impl Fn(&mut Vec<u8>)) {
        let sge = [self.pair.ends[0].sge(0, 64)];
        let qp = &mut self.pair.ends[0].qp;
        let mut wqe = Wqe::default();
        wqe.send(qp.number(), 0, &SendRequest::send(WRONG, &sge)).expect("a WQE");
        let mut bytes = wqe.bytes().to_vec();
        spoil(&mut bytes);
        qp.post_raw(self.pair.hcas[0].bus_mut(), WRONG, &bytes).expect("post_raw");
    }

    /// Rings the doorbell of a queue pair that isn't there.
    pub fn ring_nobody(&mut self) {
        const NOBODY: Qpn = Qpn(0xff_ff00);
        let hca = &mut self.pair.hcas[0];
        let page = u64::from(hca.uar().0) * hca_spec::uar::PAGE_SIZE;
        hca.bus_mut().mmio_write64(page + SEND_DOORBELL, u64::from(NOBODY.0) << 8);
    }

    /// Posts a receive request at the far end.
    pub fn recv(&mut self, sge: Sge) {
        self.pair.ends[1].qp.post_recv(RECEIVE, &[sge]).expect("post_recv");
    }
}
