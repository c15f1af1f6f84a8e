//! Work requests: WQEs and what they ask for.

use hca_driver::{Access, SendOp, SendRequest};
use hca_spec::wqe::{Ctrl, SendOpcode};

use super::Mistake;
use super::bench::{Bench, Hand};
use crate::pair::{Options, Pair};
use hca_spec::qpc::ServiceType;

pub(super) const ALL: &[Mistake] = &[
    Mistake::driver("send WQE with an opcode that there is not", "send WQE", |b| {
        raw(b, |ctrl| _ = ctrl.set(Ctrl::OPCODE, 0x77))
    }),
    Mistake::driver("send WQE shorter than its segments", "send WQE", |b| {
        raw(b, |ctrl| _ = ctrl.set(Ctrl::OPCODE, SendOpcode::RdmaWrite as u32).set(Ctrl::DS, 1));
    }),
    Mistake::driver("send WQE with a size of 0", "send WQE", |b| raw(b, |ctrl| _ = ctrl.set(Ctrl::DS, 0))),
    Mistake::driver("RDMA read on an unreliable connection", "send WQE", |b| {
        let pair =
            b.pair(&Options { service: b.pick(ServiceType::Uc, ServiceType::Rc), ..Options::default() });
        let far = pair.ends[1].mr;
        request(b, pair, SendOp::Read { address: far.address, rkey: far.key }, 8, true);
    }),
    Mistake::driver("message longer than its receive WQE", "receive WQE", |b| {
        let mut pair = b.pair(&Options::default());
        pair.recv(1, 1, 0, b.pick(8, 64));
        request(b, pair, SendOp::Send { imm: None }, 64, true);
    }),
    Mistake::driver("receive WQE with a key that does not exist", "key", |b| {
        let mut pair = b.pair(&Options::default());
        let mut sge = pair.ends[1].sge(0, 64);
        if b.is_wrong() {
            sge.key = hca_spec::ids::Mkey(0x00ab_cd00);
        }
        pair.ends[1].qp.post_recv(1, &[sge]).expect("post_recv");
        request(b, pair, SendOp::Send { imm: None }, 64, true);
    }),
    Mistake::driver("receive WQE in memory without local write", "lw", |b| {
        let access = b.pick(Access::LOCAL_READ, Access::LOCAL_WRITE);
        let mut pair = b.pair(&Options::default());
        let end = &pair.ends[1];
        let key = pair.hcas[1].register(end.pd, &end.memory, 4096, access).expect("CREATE_MKEY").key;
        let sge = hca_driver::Sge { key, ..pair.ends[1].sge(0, 64) };
        pair.ends[1].qp.post_recv(1, &[sge]).expect("post_recv");
        request(b, pair, SendOp::Send { imm: None }, 64, true);
    }),
    Mistake::driver("write to a queue pair that does not allow writes", "rwe", |b| {
        let queue_access = b.pick(Access::REMOTE_READ, Access::ALL);
        let pair = b.pair(&Options { queue_access, ..Options::default() });
        let far = pair.ends[1].mr;
        request(b, pair, SendOp::Write { address: far.address, rkey: far.key, imm: None }, 8, true);
    }),
    Mistake::driver("read from a queue pair that does not allow reads", "rre", |b| {
        let queue_access = b.pick(Access::REMOTE_WRITE, Access::ALL);
        let pair = b.pair(&Options { queue_access, ..Options::default() });
        let far = pair.ends[1].mr;
        request(b, pair, SendOp::Read { address: far.address, rkey: far.key }, 8, true);
    }),
    Mistake::driver("atomic at a queue pair that does not allow them", "rae", |b| {
        let queue_access = b.pick(Access::REMOTE_WRITE, Access::ALL);
        let pair = b.pair(&Options { queue_access, ..Options::default() });
        let far = pair.ends[1].mr;
        request(b, pair, SendOp::FetchAdd { address: far.address, rkey: far.key, add: 1 }, 8, true);
    }),
    Mistake::driver("atomic at an address that is not aligned", "virtual address of an atomic", |b| {
        let pair = b.pair(&Options::default());
        let (far, off) = (pair.ends[1].mr, b.pick(4, 8));
        request(b, pair, SendOp::FetchAdd { address: far.address + off, rkey: far.key, add: 1 }, 8, true);
    }),
    Mistake::driver("send to a peer that has posted no receive WQE", "peer's receive counter", |b| {
        let rts = hca_driver::RtsAttr { rnr_retries: 1, ..hca_driver::RtsAttr::default() };
        let mut pair = b.pair(&Options { rts, rnr_timer: 1, ..Options::default() });
        if !b.is_wrong() {
            pair.recv(1, 1, 0, 64);
        }
        request(b, pair, SendOp::Send { imm: None }, 8, true);
    }),
];

fn request(b: &mut Bench, mut pair: Pair<Hand>, op: SendOp, len: usize, completes: bool) {
    let sge = [pair.ends[0].sge(0, len)];
    pair.send(0, &SendRequest::new(1, op, &sge));
    if completes {
        let (_, completion) = pair.sent(0);
        assert_eq!(completion.status.is_err(), b.is_wrong(), "{completion:?}");
    }
    _ = pair.try_received(1);
    b.keep(pair);
}

/// A NOP, spoiled.
fn raw(b: &mut Bench, spoil: fn(&mut Ctrl)) {
    let mut pair = b.pair(&Options::default());
    let mut ctrl = Ctrl::new();
    ctrl.set(Ctrl::OPCODE, SendOpcode::Nop as u32).set(Ctrl::DS, 1).set(Ctrl::CE, 2);
    ctrl.set(Ctrl::QPN, pair.ends[0].qp.number().0);
    if b.is_wrong() {
        spoil(&mut ctrl);
    }
    let mut wqe = ctrl.bytes().to_vec();
    wqe.resize(64, 0);
    pair.ends[0].qp.post_raw(pair.hcas[0].bus_mut(), 1, &wqe).expect("room");
    b.simulation.run(hca_model::Ps::from_us(100));
    let found = pair.try_sent(0);
    assert_eq!(found.is_some_and(|(_, completion)| completion.status.is_err()), b.is_wrong());
    b.keep(pair);
}
