//! Receive queues whose frames take strides of a WQE.

use hca_driver::eth::{Destination, FlowEntry};
use hca_driver::{Access, Bus, Cq, CqConfig, Dma, Mr};
use hca_spec::cmd::ObjectOut;
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::flow::MatchParam;
use hca_spec::ids::Rqn;
use hca_spec::queue::Wq;
use hca_spec::rq::{CreateRqIn, ModifyRqIn, Rqc, modify_rq};
use hca_spec::wqe::{Data, SrqNext};
use hca_tests::frames::plain;
use hca_tests::in_process::ModelMemory;
use hca_tests::lan::{Lan, Station};

/// WQEs of a queue.
const WQES: usize = 4;
/// Bytes of a stride.
const STRIDE: usize = 64;
/// Strides of a WQE.
const STRIDES: usize = 512;
/// Bytes of a WQE's memory.
const ROOM: usize = STRIDE * STRIDES;
/// Bytes of a WQE: next segment and a scatter entry.
const WQE: usize = 32;
/// Places, [`Wq::WQ_TYPE`].
const LINKED: u32 = 2;
const CYCLIC: u32 = 3;

/// A queue with strides.
struct Queue {
    number: Rqn,
    ring: ModelMemory,
    record: ModelMemory,
    room: ModelMemory,
    cq: Cq<ModelMemory>,
    posted: u32,
}

impl Queue {
    /// Makes a queue to which everything goes. Its WQEs name each other in that order.
    fn new(station: &mut Station, kind: u32, order: [u16; WQES], shifted: bool) -> Self {
        let hca = &mut station.hca;
        let cq = hca.create_cq(CqConfig::new(256)).expect("CREATE_CQ");
        let bus = hca.bus_mut();
        let mut ring = bus.dma_alloc(4096, 4096).expect("memory");
        let record = bus.dma_alloc(64, 64).expect("memory");
        let room = bus.dma_alloc(WQES * ROOM, 4096).expect("memory");
        let mr: Mr = hca.register(station.pd, &room, WQES * ROOM, Access::LOCAL_WRITE).expect("CREATE_MKEY");
        for (i, place) in order.iter().enumerate() {
            let mut next = SrqNext::new();
            next.set(SrqNext::NEXT_WQE_INDEX, order[(i + 1) % WQES].into());
            let mut data = Data::new();
            let at = usize::from(*place);
            data.set(Data::BYTE_COUNT, ROOM as u32).set(Data::LKEY, mr.key.0);
            data.set(Data::ADDRESS, mr.address + (at * ROOM) as u64);
            ring.write(at * WQE, &[&next.bytes()[..], data.bytes()].concat());
        }
        let mut create = CreateRqIn::new();
        let rqc = create.rqc_mut();
        rqc.set(Rqc::CQN, cq.number().0).set(Rqc::VSD, 1).set(Rqc::FLUSH_IN_ERROR_EN, 1);
        rqc.set(Rqc::COUNTER_SET_ID, station.counters.0.into());
        let wq = rqc.wq_mut();
        wq.set(Wq::WQ_TYPE, kind).set(Wq::LOG_WQ_STRIDE, 5).set(Wq::LOG_WQ_SZ, 2);
        wq.set(Wq::PD, station.pd.0).set(Wq::DBR_ADDR, record.bus_address());
        wq.set(Wq::TWO_BYTE_SHIFT_EN, shifted.into());
        let input = [&create.bytes()[..], &ring.bus_address().to_be_bytes()].concat();
        let out = hca.execute(Opcode::CreateRq, 0, input, ObjectOut::SIZE).expect("CREATE_RQ");
        let number = Rqn(ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER));
        let mut queue = Self { number, ring, record, room, cq, posted: 0 };
        queue.modify(station, 0, 1);
        let tir = station.hca.create_direct_tir(station.domain, number).expect("CREATE_TIR");
        station.take_nothing();
        let value = MatchParam::new();
        let entry =
            FlowEntry { value: &value, destinations: &[Destination::Tir(tir)], counters: &[], tag: 0 };
        station.hca.set_flow_entry(station.anything, 31, &entry).expect("SET_FLOW_TABLE_ENTRY");
        queue
    }

    fn modify(&mut self, station: &mut Station, from: u32, to: u32) {
        let mut modify = ModifyRqIn::new();
        modify.set(ModifyRqIn::RQN, self.number.0).set(ModifyRqIn::RQ_STATE, from);
        modify.rqc_mut().set(Rqc::STATE, to);
        let input = modify.bytes().to_vec();
        station.hca.execute(Opcode::ModifyRq, 0, input, OutHeader::SIZE).expect("MODIFY_RQ");
    }

    fn post(&mut self, wqes: u32) {
        self.posted += wqes;
        self.record.store32(0, self.posted);
    }

    /// Completions: WQE, first stride, strides, bytes, and whether it is a filler. What is there is compared with `frame`.
    fn completions(&mut self, frame: &[u8], front: usize) -> Vec<(u16, u16, u32, usize, bool)> {
        std::iter::from_fn(|| {
            let completion = self.cq.poll()?;
            assert_eq!(completion.status, Ok(()));
            let word = completion.byte_len;
            let (wqe, first, len) = (completion.frame.wqe, completion.wqe_index, (word & 0xffff) as usize);
            let filler = word >> 31 == 1;
            if !filler {
                let mut bytes = vec![0; len];
                let at = usize::from(wqe) * ROOM + usize::from(first) * STRIDE + front;
                self.room.read(at, &mut bytes);
                assert_eq!(bytes, frame, "at stride {first} of WQE {wqe}");
            }
            Some((wqe, first, word >> 16 & 0x7fff, len, filler))
        })
        .collect()
    }
}

fn send(lan: &mut Lan, len: usize, count: usize) -> Vec<u8> {
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let payload: Vec<u8> = (0..len - 14).map(|n| (n * 7 + len) as u8).collect();
    let frame = plain(to, from, &payload);
    for _ in 0..count {
        lan.stations[0].send(&frame);
        lan.run();
        lan.stations[0].sent();
    }
    frame
}

/// Frame check sequences take room of strides, too.
#[test]
pub(crate) fn check_sequences_take_room() {
    let mut lan = Lan::cable();
    let mut queue = Queue::new(&mut lan.stations[1], LINKED, [0, 1, 2, 3], false);
    queue.post(2);
    let mut modify = ModifyRqIn::new();
    modify.set(ModifyRqIn::RQN, queue.number.0).set(ModifyRqIn::RQ_STATE, 1);
    modify.set(ModifyRqIn::MODIFY_BITMASK, modify_rq::SCATTER_FCS);
    modify.rqc_mut().set(Rqc::STATE, 1).set(Rqc::SCATTER_FCS, 1);
    let input = modify.bytes().to_vec();
    lan.stations[1].hca.execute(Opcode::ModifyRq, 0, input, OutHeader::SIZE).expect("MODIFY_RQ");
    for (len, first, strides) in [(124, 0, 2), (125, 2, 3)] {
        let mut frame = send(&mut lan, len, 1);
        frame.extend(hca_model::wire::ethernet::fcs(&frame));
        assert_eq!(queue.completions(&frame, 0), [(0, first, strides, len + 4, false)]);
    }
    // Of 17 strides, where 16 would do without: 29 of them, and 14 strides are left.
    let mut frame = send(&mut lan, 16 * STRIDE, 30);
    frame.extend(hca_model::wire::ethernet::fcs(&frame));
    let got = queue.completions(&frame, 0);
    assert_eq!((got.len(), got[28]), (31, (0, 5 + 28 * 17, 17, 16 * STRIDE + 4, false)));
    assert_eq!(got[29..], [(0, 498, 14, 0, true), (1, 0, 17, 16 * STRIDE + 4, false)]);
}

/// Frames take whole strides one behind the other; the rest of a WQE that is too short is passed over; WQEs come in the
/// order in which they name each other.
#[test]
pub(crate) fn frames_fill_wqes() {
    let mut lan = Lan::cable();
    let mut queue = Queue::new(&mut lan.stations[1], LINKED, [0, 2, 1, 3], false);
    queue.post(2);
    // 22 strides each: 23 fit into a WQE, and 6 strides are left.
    let frame = send(&mut lan, 1400, 24);
    let got = queue.completions(&frame, 0);
    assert_eq!(got.len(), 25);
    assert_eq!(got[..3], [(0, 0, 22, 1400, false), (0, 22, 22, 1400, false), (0, 44, 22, 1400, false)]);
    assert_eq!(got[22..], [(0, 484, 22, 1400, false), (0, 506, 6, 0, true), (2, 0, 22, 1400, false)]);
    let small = send(&mut lan, 60, 1);
    assert_eq!(queue.completions(&small, 0), [(2, 22, 1, 60, false)]);
    // 512 strides, of which 23 are taken: 22 more frames, then there is no WQE.
    let frame = send(&mut lan, 1400, 23);
    let got = queue.completions(&frame, 0);
    assert_eq!((got.len(), got[21], got[22]), (23, (2, 485, 22, 1400, false), (2, 507, 5, 0, true)));
    assert_eq!(lan.stations[1].out_of_buffer(), 1);
    queue.post(1);
    let frame = send(&mut lan, 1400, 1);
    assert_eq!(queue.completions(&frame, 0), [(1, 0, 22, 1400, false)]);
    assert_eq!(lan.stations[1].out_of_buffer(), 1);
}

/// A queue that leaves two bytes in front of each frame; WQEs that follow in memory, whatever they name.
#[test]
pub(crate) fn two_bytes_in_front() {
    let mut lan = Lan::cable();
    let mut queue = Queue::new(&mut lan.stations[1], CYCLIC, [3, 2, 1, 0], true);
    queue.post(1);
    let frame = send(&mut lan, 1406, 2);
    assert_eq!(queue.completions(&frame, 2), [(0, 0, 22, 1406, false), (0, 22, 22, 1406, false)]);
    let frame = send(&mut lan, 1407, 1);
    assert_eq!(queue.completions(&frame, 2), [(0, 44, 23, 1407, false)]);
}

/// In error what was not taken is flushed by its place; reset begins with the first WQE again.
#[test]
pub(crate) fn flushed_and_reset() {
    let mut lan = Lan::cable();
    let mut queue = Queue::new(&mut lan.stations[1], LINKED, [0, 2, 1, 3], false);
    queue.post(3);
    let frame = send(&mut lan, 1400, 1);
    assert_eq!(queue.completions(&frame, 0), [(0, 0, 22, 1400, false)]);
    queue.modify(&mut lan.stations[1], 1, 3);
    lan.run();
    let flushed: Vec<_> =
        std::iter::from_fn(|| queue.cq.poll()).map(|c| (c.status.is_err(), c.wqe_index)).collect();
    assert_eq!(flushed, [(true, 2), (true, 1)]);
    queue.modify(&mut lan.stations[1], 3, 0);
    queue.record.store32(0, 0);
    queue.posted = 0;
    queue.modify(&mut lan.stations[1], 0, 1);
    queue.post(1);
    let frame = send(&mut lan, 100, 1);
    assert_eq!(queue.completions(&frame, 0), [(0, 0, 2, 100, false)]);
    assert_eq!(queue.ring.bus_address() % 4096, 0);
}
