//! Receive queues that take strides of the WQEs of one pool (PRM "RMP Context", "RQ Context", `mem_rq_type`).

use hca_driver::eth::{Destination, FlowEntry, Mac};
use hca_driver::{Access, Bus, Cq, CqConfig, Dma, Event, Mr};
use hca_spec::cmd::{CreateRmpIn, MODIFY_RMP_LWM, ModifyRmpIn, ObjectIn, ObjectOut, QueryRmpOut};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::eqe::EventType;
use hca_spec::flow::{MatchLayers, MatchParam};
use hca_spec::ids::{Rqn, Srqn};
use hca_spec::queue::{RMP_READY, Rmpc, Wq};
use hca_spec::rq::{CreateRqIn, ModifyRqIn, RQ_ERROR, RQ_READY, RQ_RESET, RQ_RMP, Rqc};
use hca_spec::wqe::{Data, SrqNext};
use hca_tests::frames::framed;
use hca_tests::in_process::ModelMemory;
use hca_tests::lan::{Lan, Station};
use hca_tests::rig::drain_events;

/// WQEs of the pool.
const WQES: usize = 4;
/// Bytes of a WQE: next segment and a scatter entry.
const WQE: usize = 32;
/// Ethertype of the first queue's frames; that of the second is one more.
const FIRST: u16 = 0x88b5;
/// Places, [`Wq::WQ_TYPE`].
const LINKED: u32 = 2;
const CYCLIC: u32 = 3;
/// Code of so many strides, log2.
const LOG_STRIDES: [(u32, u32); 2] = [(0, 9), (10, 3)];

/// What a completion says of a frame: WQE, first stride, how many, bytes.
type Place = (u16, u16, u32, usize);
/// The same of strides that are passed over.
const FILLER: usize = usize::MAX;

struct Pool {
    number: Srqn,
    record: ModelMemory,
    room: ModelMemory,
    /// Bytes of a stride, and of a WQE.
    stride: usize,
    wqe: usize,
    queues: Vec<(Rqn, Cq<ModelMemory>)>,
    _ring: ModelMemory,
}

impl Pool {
    /// A pool whose WQEs name each other in that order, or follow each other, of so many strides; and two queues on it.
    fn new(station: &mut Station, kind: u32, (code, log_strides): (u32, u32), shifted: bool) -> Self {
        const ORDER: [u16; WQES] = [0, 2, 1, 3];
        let stride = 64;
        let wqe = stride << log_strides;
        let hca = &mut station.hca;
        // A domain of its own: that of the queues says nothing.
        let pd = hca.alloc_pd().expect("ALLOC_PD");
        let bus = hca.bus_mut();
        let mut ring = bus.dma_alloc(4096, 4096).expect("memory");
        let record = bus.dma_alloc(64, 64).expect("memory");
        let room = bus.dma_alloc(WQES * wqe, 4096).expect("memory");
        let mr: Mr = hca.register(pd, &room, WQES * wqe, Access::LOCAL_WRITE).expect("CREATE_MKEY");
        for (i, place) in ORDER.iter().enumerate() {
            let mut next = SrqNext::new();
            next.set(SrqNext::NEXT_WQE_INDEX, ORDER[(i + 1) % WQES].into());
            let mut data = Data::new();
            let at = usize::from(*place);
            data.set(Data::BYTE_COUNT, wqe as u32).set(Data::LKEY, mr.key.0);
            data.set(Data::ADDRESS, mr.address + (at * wqe) as u64);
            ring.write(at * WQE, &[&next.bytes()[..], data.bytes()].concat());
        }
        let mut create = CreateRmpIn::new();
        create.rmpc_mut().set(Rmpc::STATE, RMP_READY);
        let wq = create.rmpc_mut().wq_mut();
        wq.set(Wq::WQ_TYPE, kind).set(Wq::LOG_WQ_STRIDE, 5).set(Wq::LOG_WQ_SZ, 2);
        wq.set(Wq::PD, pd.0).set(Wq::DBR_ADDR, record.bus_address());
        wq.set(Wq::TWO_BYTE_SHIFT_EN, shifted.into()).set(Wq::LOG_WQE_NUM_OF_STRIDES, code);
        let input = [&create.bytes()[..], &ring.bus_address().to_be_bytes()].concat();
        let out = hca.execute(Opcode::CreateRmp, 0, input, ObjectOut::SIZE).expect("CREATE_RMP");
        let number = Srqn(ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER));
        let mut pool = Self { number, record, room, stride, wqe, queues: Vec::new(), _ring: ring };
        station.take_nothing();
        let mut fields = MatchParam::new();
        fields.outer_mut().set(MatchLayers::ETHERTYPE, 0xffff);
        let group = station.group(0..=1, &fields);
        for place in 0..2 {
            let rqn = pool.add(station);
            let tir = station.hca.create_direct_tir(station.domain, rqn).expect("CREATE_TIR");
            let mut value = MatchParam::new();
            value.outer_mut().set(MatchLayers::ETHERTYPE, u32::from(FIRST) + place);
            let destinations = [Destination::Tir(tir)];
            let entry = FlowEntry { value: &value, destinations: &destinations, counters: &[], tag: 0 };
            station.hca.set_flow_entry(group, place, &entry).expect("SET_FLOW_TABLE_ENTRY");
        }
        pool
    }

    /// One more queue, ready.
    fn add(&mut self, station: &mut Station) -> Rqn {
        let hca = &mut station.hca;
        let cq = hca.create_cq(CqConfig::new(256)).expect("CREATE_CQ");
        let mut create = CreateRqIn::new();
        let rqc = create.rqc_mut();
        rqc.set(Rqc::CQN, cq.number().0).set(Rqc::VSD, 1).set(Rqc::FLUSH_IN_ERROR_EN, 1);
        rqc.set(Rqc::COUNTER_SET_ID, station.counters.0.into());
        rqc.set(Rqc::MEM_RQ_TYPE, RQ_RMP).set(Rqc::RMPN, self.number.0);
        let out = hca.execute(Opcode::CreateRq, 0, create.bytes().to_vec(), ObjectOut::SIZE);
        let out = out.expect("CREATE_RQ");
        let rqn = Rqn(ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER));
        self.queues.push((rqn, cq));
        self.modify(station, self.queues.len() - 1, RQ_RESET, RQ_READY);
        rqn
    }

    fn modify(&mut self, station: &mut Station, queue: usize, from: u32, to: u32) {
        let mut modify = ModifyRqIn::new();
        modify.set(ModifyRqIn::RQN, self.queues[queue].0.0).set(ModifyRqIn::RQ_STATE, from);
        modify.rqc_mut().set(Rqc::STATE, to);
        let input = modify.bytes().to_vec();
        station.hca.execute(Opcode::ModifyRq, 0, input, OutHeader::SIZE).expect("MODIFY_RQ");
    }

    /// So many WQEs were posted in all.
    fn post(&mut self, wqes: u32) {
        self.record.store32(0, wqes);
    }

    fn query(&self, station: &mut Station) -> Rmpc {
        let mut input = ObjectIn::new();
        input.set(ObjectIn::NUMBER, self.number.0);
        let input = input.bytes().to_vec();
        let out = station.hca.execute(Opcode::QueryRmp, 0, input, QueryRmpOut::SIZE).expect("QUERY_RMP");
        *QueryRmpOut::from_prefix_or_zero(&out).rmpc()
    }

    /// Completions of a queue. The bytes of each frame are those that were sent to it.
    fn completions(&mut self, queue: usize, front: usize) -> Vec<Place> {
        let (wqe, stride) = (self.wqe, self.stride);
        let (cq, room) = (&mut self.queues[queue].1, &mut self.room);
        std::iter::from_fn(|| {
            let completion = cq.poll()?;
            assert_eq!(completion.status, Ok(()));
            let word = completion.byte_len;
            let (index, first, len) = (completion.frame.wqe, completion.wqe_index, (word & 0xffff) as usize);
            let count = word >> 16 & 0x7fff;
            if word >> 31 == 1 {
                return Some((index, first, count, FILLER));
            }
            let mut bytes = vec![0; len];
            room.read(usize::from(index) * wqe + usize::from(first) * stride + front, &mut bytes);
            assert_eq!(bytes[12..], sent_to(queue, len)[12..], "at stride {first} of WQE {index}");
            Some((index, first, count, len))
        })
        .collect()
    }
}

/// A frame of that length for a queue, without its addresses.
fn sent_to(queue: usize, len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len - 14).map(|n| (n * 7 + len + queue) as u8).collect();
    framed(Mac([0; 6]), Mac([0; 6]), None, FIRST + queue as u16, &payload)
}

fn send(lan: &mut Lan, queue: usize, len: usize) {
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let frame = framed(to, from, None, FIRST + queue as u16, &sent_to(queue, len)[14..]);
    lan.stations[0].send(&frame);
    lan.run();
    lan.stations[0].sent();
}

/// Frames of both queues take strides of the same WQE as they come. What is left of it and too little is told to the queue whose frame comes; a
/// WQE ends for both, and the next one is that which a list names, or that behind.
#[test]
pub(crate) fn strides_are_everybodys() {
    for (kind, second) in [(LINKED, 2), (CYCLIC, 1)] {
        let mut lan = Lan::cable();
        let mut pool = Pool::new(&mut lan.stations[1], kind, LOG_STRIDES[0], false);
        let rmpc = pool.query(&mut lan.stations[1]);
        assert_eq!((rmpc.wq().get(Wq::WQ_TYPE), rmpc.wq().get(Wq::LOG_WQE_NUM_OF_STRIDES)), (kind, 0));
        pool.post(2);
        for frame in 0..23 {
            send(&mut lan, frame % 2, 1400);
        }
        let (first, other) = (pool.completions(0, 0), pool.completions(1, 0));
        assert_eq!((first.len(), other.len()), (12, 11));
        assert_eq!(first[..2], [(0, 0, 22, 1400), (0, 44, 22, 1400)]);
        assert_eq!(other[..2], [(0, 22, 22, 1400), (0, 66, 22, 1400)]);
        // Six strides are left: enough for a short one, and the rest of them is passed over.
        send(&mut lan, 0, 60);
        send(&mut lan, 1, 1400);
        send(&mut lan, 0, 64);
        assert_eq!(pool.completions(1, 0), [(0, 507, 5, FILLER), (second, 0, 22, 1400)]);
        assert_eq!(pool.completions(0, 0), [(0, 506, 1, 60), (second, 22, 1, 64)]);
        // The other queue does without the first.
        pool.modify(&mut lan.stations[1], 0, RQ_READY, RQ_ERROR);
        send(&mut lan, 0, 64);
        send(&mut lan, 1, 64);
        assert_eq!((pool.completions(0, 0), pool.completions(1, 0)), (vec![], vec![(second, 23, 1, 64)]));
        pool.modify(&mut lan.stations[1], 0, RQ_ERROR, RQ_RESET);
        pool.modify(&mut lan.stations[1], 0, RQ_RESET, RQ_READY);
        send(&mut lan, 0, 64);
        assert_eq!(pool.completions(0, 0), [(second, 24, 1, 64)], "where the pool stands");
    }
}

/// WQEs of eight strides, with two bytes in front of frames: a WQE that was taken is no more among those that are posted, the pool says so once,
/// and who finds none is counted.
#[test]
pub(crate) fn a_pool_runs_low() {
    let mut lan = Lan::of_kind("connectx5");
    let mut pool = Pool::new(&mut lan.stations[1], CYCLIC, LOG_STRIDES[1], true);
    let rmpc = pool.query(&mut lan.stations[1]);
    let told = [Wq::LOG_WQE_NUM_OF_STRIDES, Wq::TWO_BYTE_SHIFT_EN, Wq::LOG_WQE_STRIDE_SIZE];
    assert_eq!(told.map(|field| rmpc.wq().get(field)), [10, 1, 0]);
    pool.post(3);
    let limit = Event::Srq { srqn: pool.number, kind: EventType::SrqLimit as u8 };
    let station = &mut lan.stations[1];
    drain_events(&mut station.hca);
    let mut modify = ModifyRmpIn::new();
    modify.set(ModifyRmpIn::RMPN, pool.number.0).set(ModifyRmpIn::RMP_STATE, RMP_READY);
    modify.set(ModifyRmpIn::BITMASK, MODIFY_RMP_LWM);
    modify.rmpc_mut().set(Rmpc::STATE, RMP_READY).wq_mut().set(Wq::LWM, 2);
    let input = modify.bytes().to_vec();
    station.hca.execute(Opcode::ModifyRmp, 0, input, OutHeader::SIZE).expect("MODIFY_RMP");
    // 62 bytes fill a stride with the two in front; 63 take two.
    send(&mut lan, 0, 62);
    send(&mut lan, 1, 63);
    assert_eq!((pool.completions(0, 2), pool.completions(1, 2)), (vec![(0, 0, 1, 62)], vec![(0, 1, 2, 63)]));
    assert!(drain_events(&mut lan.stations[1].hca).is_empty());
    send(&mut lan, 0, 400);
    assert_eq!(pool.completions(0, 2), [(0, 3, 5, FILLER), (1, 0, 7, 400)]);
    assert_eq!(drain_events(&mut lan.stations[1].hca), [limit]);
    assert_eq!(pool.query(&mut lan.stations[1]).wq().get(Wq::LWM), 0);
    send(&mut lan, 1, 500);
    assert_eq!(pool.completions(1, 2), [(1, 7, 1, FILLER), (2, 0, 8, 500)]);
    assert!(drain_events(&mut lan.stations[1].hca).is_empty());
    send(&mut lan, 0, 60);
    assert_eq!((pool.completions(0, 2), lan.stations[1].out_of_buffer()), (vec![], 1));
    // It goes round: WQEs count on, and are told by their place.
    pool.post(6);
    for _ in 0..3 {
        send(&mut lan, 0, 500);
    }
    assert_eq!(pool.completions(0, 2), [(3, 0, 8, 500), (0, 0, 8, 500), (1, 0, 8, 500)]);
}

/// A frame that no WQE has room for is told of, takes no stride, and harms neither the queue that it is for nor others.
#[test]
pub(crate) fn frames_that_no_wqe_has_room_for() {
    let mut lan = Lan::of_kind("connectx5");
    let mut pool = Pool::new(&mut lan.stations[1], LINKED, LOG_STRIDES[1], false);
    pool.post(2);
    send(&mut lan, 1, 60);
    send(&mut lan, 0, 513);
    let failed = pool.queues[0].1.poll().expect("a completion");
    assert!(failed.status.is_err());
    send(&mut lan, 0, 60);
    send(&mut lan, 1, 60);
    assert_eq!(
        (pool.completions(0, 0), pool.completions(1, 0)),
        (vec![(0, 1, 1, 60)], vec![(0, 0, 1, 60), (0, 2, 1, 60)])
    );
}
