//! Receive queues: their counters.

use hca_driver::eth::{QueueState, RqConfig};
use hca_driver::qp::QpConfig;
use hca_driver::{Hca, RtsAttr, SendOp, SendRequest, Srq, XrcSrqConfig};
use hca_model::Ps;
use hca_spec::cmd::{ObjectIn, QueryRmpOut, QuerySrqOut};
use hca_spec::command::Opcode;
use hca_spec::qpc::Qpc;
use hca_spec::queue::{Srqc, Wq};
use hca_spec::rq::QueryRqOut;

use super::Mistake;
use super::bench::{Bench, Hand};
use crate::in_process::ModelMemory;
use crate::pair::{Options, Pair};

/// Requests that are posted.
const POSTED: u32 = 3;

pub(super) const ALL: &[Mistake] = &[
    Mistake::driver(
        "receive WQE written and not counted, and the peer tries for ever",
        "receive counter",
        |b| {
            let mut pair = b.pair(&for_ever());
            pair.recv(1, 7, 0, 64);
            if b.is_wrong() {
                let at = pair.hcas[1].query_qp(&pair.ends[1].qp).expect("QUERY_QP").get(Qpc::DBR_ADDR);
                poke(&mut pair.hcas[1], at, 0);
            }
            send(b, &mut pair);
            b.keep(pair);
        },
    ),
    Mistake::driver(
        "receive counter of a shared queue in the other word of its record",
        "receive counter",
        |b| {
            let options = for_ever();
            let mut pair = b.apart(&options);
            let (hca, end) = (&mut pair.hcas[1], &mut pair.ends[1]);
            let mut srq = hca.create_srq(end.pd, 16, 1).expect("a shared queue");
            let config =
                QpConfig { srq: Some(srq.number()), ..QpConfig::rc(end.pd, &end.send_cq, &end.recv_cq) };
            let own = std::mem::replace(&mut end.qp, hca.create_qp(&config).expect("a queue pair"));
            hca.destroy_qp(own).expect("DESTROY_QP");
            for end in [0, 1] {
                pair.to_rts(end, &options).expect("RTS");
            }
            // The adapter reads the counter when it is asked for the queue.
            let at = pool_record(&mut pair.hcas[1], &srq);
            srq.post_recv(1, &[pair.ends[1].sge(0, 64)]).expect("room");
            if b.is_wrong() {
                poke(&mut pair.hcas[1], at, 0);
                poke(&mut pair.hcas[1], at + 4, 1);
            }
            send(b, &mut pair);
            b.keep((pair, srq));
        },
    ),
    Mistake::driver("counter of a receive memory pool little-endian", "receive counter", |b| {
        pool(b, |counter| counter.swap_bytes());
    }),
    Mistake::driver("counter of a receive memory pool beyond the queue", "receive counter", |b| {
        pool(b, |counter| counter + 0x1000);
    }),
    Mistake::driver("counter of an XRC SRQ little-endian", "receive counter", |b| {
        xrc(b, |counter| counter.swap_bytes());
    }),
    Mistake::driver("counter of an XRC SRQ that went backwards", "receive counter", |b| {
        xrc(b, |counter| counter.wrapping_sub(POSTED + 1) & 0xffff);
    }),
    Mistake::driver("counter of a receive queue of frames little-endian", "receive counter", |b| {
        frames(b, |counter| counter.swap_bytes());
    })
    .on_ethernet(),
    Mistake::driver("counter of a receive queue of frames beyond the queue", "receive counter", |b| {
        frames(b, |counter| counter + 0x1000);
    })
    .on_ethernet(),
];

/// The first end tries for ever.
fn for_ever() -> Options {
    Options { rts: RtsAttr { rnr_retries: 7, ..RtsAttr::default() }, ..Options::default() }
}

/// A message to the second end, which takes it if there is no mistake.
fn send(b: &mut Bench, pair: &mut Pair<Hand>) {
    let sge = [pair.ends[0].sge(0, 8)];
    pair.send(0, &SendRequest::new(1, SendOp::Send { imm: None }, &sge));
    if b.is_wrong() {
        b.pass();
        return;
    }
    pair.sent_ok(0, 1);
    b.simulation.run(Ps::from_us(100));
    assert!(pair.ends[1].recv_cq.poll().expect("a completion").status.is_ok());
}

fn poke(hca: &mut Hca<Hand>, at: u64, word: u32) {
    hca.bus_mut().inner().poke(at, &word.to_be_bytes());
}

/// A counter that is not as it should be.
fn spoil(b: &Bench, hca: &mut Hca<Hand>, at: u64, spoil: fn(u32) -> u32) {
    if b.is_wrong() {
        let mut word = [0; 4];
        hca.bus_mut().inner().peek(at, &mut word);
        assert_eq!(u32::from_be_bytes(word), POSTED);
        poke(hca, at, spoil(POSTED));
    }
    b.pass();
}

/// What the adapter says of an object.
fn query(hca: &mut Hca<Hand>, opcode: Opcode, number: u32, size: usize) -> Vec<u8> {
    let mut input = ObjectIn::new();
    input.set(ObjectIn::NUMBER, number);
    hca.execute(opcode, 0, input.bytes().to_vec(), size).expect("the object")
}

fn pool_record(hca: &mut Hca<Hand>, srq: &Srq<ModelMemory>) -> u64 {
    let out = query(hca, Opcode::QueryRmp, srq.number().0, QueryRmpOut::SIZE);
    QueryRmpOut::from_prefix_or_zero(&out).rmpc().wq().get(Wq::DBR_ADDR)
}

fn pool(b: &mut Bench, change: fn(u32) -> u32) {
    let mut pair = b.apart(&Options::default());
    let mut srq = pair.hcas[0].create_srq(pair.ends[0].pd, 16, 1).expect("a pool");
    for i in 0..POSTED {
        srq.post_recv(i.into(), &[pair.ends[0].sge(0, 64)]).expect("room");
    }
    let at = pool_record(&mut pair.hcas[0], &srq);
    spoil(b, &mut pair.hcas[0], at, change);
    b.keep((pair, srq));
}

fn xrc(b: &mut Bench, change: fn(u32) -> u32) {
    let mut pair = b.apart(&Options::default());
    let hca = &mut pair.hcas[0];
    let xrcd = hca.alloc_xrcd().expect("a domain");
    let (pd, cq) = (pair.ends[0].pd, pair.ends[0].recv_cq.number());
    let config = XrcSrqConfig { pd, xrcd, cq, requests: 16, sges: 1, user_index: None };
    let mut srq = hca.create_xrc_srq(&config).expect("a shared queue");
    for i in 0..POSTED {
        srq.post_recv(i.into(), &[pair.ends[0].sge(0, 64)]).expect("room");
    }
    let out = query(&mut pair.hcas[0], Opcode::QueryXrcSrq, srq.number().0, QuerySrqOut::SIZE);
    let at = QuerySrqOut::from_prefix_or_zero(&out).srqc().get(Srqc::DBR_ADDR);
    spoil(b, &mut pair.hcas[0], at, change);
    b.keep((pair, srq));
}

fn frames(b: &mut Bench, change: fn(u32) -> u32) {
    let mut pair = b.apart(&Options::default());
    let (hca, end) = (&mut pair.hcas[0], &pair.ends[0]);
    let mut rq = hca.create_rq(&RqConfig::new(end.pd, &end.recv_cq)).expect("a receive queue");
    hca.modify_rq(&mut rq, QueueState::Ready).expect("ready");
    for i in 0..POSTED {
        rq.post(i.into(), &[end.sge(0, 2048)]).expect("room");
    }
    let out = query(hca, Opcode::QueryRq, rq.number().0, QueryRqOut::SIZE);
    let at = QueryRqOut::from_prefix_or_zero(&out).rqc().wq().get(Wq::DBR_ADDR);
    spoil(b, hca, at, change);
    b.keep((pair, rq));
}
