//! Doorbells and their records.

use hca_driver::{Bus, SendRequest};
use hca_spec::qpc::Qpc;
use hca_spec::uar::{EQ_ARM, PAGE_SIZE, SEND_DOORBELL};

use super::Mistake;
use super::bench::{Bench, Hand, PATIENCE};
use crate::pair::{Options, Pair};

pub(super) const ALL: &[Mistake] = &[
    Mistake::driver("doorbell rung, and the send counter did not move", "send counter", |b| {
        let mut pair = b.pair(&Options::default());
        let doorbell = count(&mut pair);
        ring(&mut pair, SEND_DOORBELL, doorbell);
        pair.sent_ok(0, 1);
        b.simulation.run(PATIENCE);
        if b.is_wrong() {
            ring(&mut pair, SEND_DOORBELL, doorbell);
        }
        b.keep(pair);
    }),
    Mistake::driver("send counter raised, and no doorbell rung", "send counter", |b| {
        let mut pair = b.pair(&Options::default());
        let doorbell = count(&mut pair);
        if !b.is_wrong() {
            ring(&mut pair, SEND_DOORBELL, doorbell);
            pair.sent_ok(0, 1);
        }
        b.keep(pair);
    }),
    Mistake::driver("doorbell before the queue pair came to RTS", "state", |b| {
        let options = Options::default();
        let mut pair = b.apart(&options);
        if b.is_wrong() {
            let doorbell = count(&mut pair);
            ring(&mut pair, SEND_DOORBELL, doorbell);
        }
        for end in [0, 1] {
            pair.to_rts(end, &options).expect("RTS");
        }
        if !b.is_wrong() {
            let doorbell = count(&mut pair);
            ring(&mut pair, SEND_DOORBELL, doorbell);
            pair.sent_ok(0, 1);
        }
        b.keep(pair);
    }),
    Mistake::driver("send counter little-endian", "send counter", |b| {
        record(b, |counter| counter.swap_bytes());
    }),
    Mistake::driver("send counter beyond the queue", "send counter", |b| {
        record(b, |counter| counter + 0x1000)
    }),
    Mistake::driver("send counter that went backwards", "send counter", |b| {
        record(b, |counter| counter.wrapping_sub(3) & 0xffff);
    }),
    Mistake::driver("send counter in the receive counter's place", "send counter", |b| {
        let mut pair = b.pair(&Options::default());
        let at = doorbell_record(&mut pair);
        let doorbell = count(&mut pair);
        if b.is_wrong() {
            let bus = pair.hcas[0].bus_mut().inner().clone();
            bus.poke(at, &1u32.to_be_bytes());
            bus.poke(at + 4, &0u32.to_be_bytes());
        }
        ring(&mut pair, SEND_DOORBELL, doorbell);
        if !b.is_wrong() {
            pair.sent_ok(0, 1);
        }
        b.keep(pair);
    }),
    Mistake::driver("doorbell that names another queue pair than its WQE", "send counter", |b| {
        let mut pair = Pair::connect(vec![b.open(0)], &Options::default()).expect("the pair connects");
        let doorbell = count(&mut pair);
        let other = u64::from(pair.ends[1].qp.number().0) << 8;
        ring(&mut pair, SEND_DOORBELL, b.pick(doorbell & !0xffff_ff00 | other, doorbell));
        if !b.is_wrong() {
            pair.sent_ok(0, 1);
        }
        b.keep(pair);
    }),
    Mistake::driver("receive counter beyond the queue", "receive counter", |b| {
        receive_record(b, |counter| counter + 0x1000);
    }),
    Mistake::driver("receive counter that went backwards", "receive counter", |b| {
        receive_record(b, |counter| counter.wrapping_sub(1) & 0xffff);
    }),
    Mistake::driver("receive counter little-endian", "receive counter", |b| {
        receive_record(b, |_| 3u32.swap_bytes());
    }),
    Mistake::driver("doorbell in a UAR page that is not allocated", "doorbell", |b| {
        let mut pair = b.pair(&Options::default());
        let doorbell = count(&mut pair);
        if b.is_wrong() {
            pair.hcas[0].bus_mut().mmio_write64(0x700 * PAGE_SIZE + SEND_DOORBELL, doorbell);
        }
        ring(&mut pair, SEND_DOORBELL, doorbell);
        pair.sent_ok(0, 1);
        b.keep(pair);
    }),
    Mistake::driver("doorbell in a UAR page that is not the queue pair's", "uar_page", |b| {
        let mut pair = b.pair(&Options::default());
        let other = super::bench::made(
            &pair.hcas[0]
                .execute(hca_spec::command::Opcode::AllocUar, 0, vec![0; 16], 16)
                .expect("ALLOC_UAR"),
        );
        let doorbell = count(&mut pair);
        if b.is_wrong() {
            pair.hcas[0].bus_mut().mmio_write64(u64::from(other) * PAGE_SIZE + SEND_DOORBELL, doorbell);
        }
        ring(&mut pair, SEND_DOORBELL, doorbell);
        pair.sent_ok(0, 1);
        b.keep(pair);
    }),
    Mistake::driver("doorbell of a queue pair that does not exist", "qpn", |b| {
        let mut pair = b.pair(&Options::default());
        let doorbell = count(&mut pair);
        if b.is_wrong() {
            ring(&mut pair, SEND_DOORBELL, doorbell & !0xffff_ff00 | 0x00ab_cd00);
        }
        ring(&mut pair, SEND_DOORBELL, doorbell);
        pair.sent_ok(0, 1);
        b.keep(pair);
    }),
    Mistake::driver("doorbell of a queue pair that was destroyed", "qpn", |b| {
        let mut pair = b.pair(&Options::default());
        let doorbell = count(&mut pair);
        ring(&mut pair, SEND_DOORBELL, doorbell);
        pair.sent_ok(0, 1);
        if b.is_wrong() {
            let number = pair.ends[0].qp.number().0;
            b.object(&mut pair.hcas[0], hca_spec::command::Opcode::DestroyQp, number);
            ring(&mut pair, SEND_DOORBELL, doorbell);
        }
        b.keep(pair);
    })
    .after("DESTROY_QP of QP"),
    Mistake::driver("doorbell at an offset that has none", "offset", |b| {
        let mut pair = b.pair(&Options::default());
        let doorbell = count(&mut pair);
        if b.is_wrong() {
            ring(&mut pair, 0x100, doorbell);
        }
        ring(&mut pair, SEND_DOORBELL, doorbell);
        pair.sent_ok(0, 1);
        b.keep(pair);
    }),
    Mistake::driver("second half of a doorbell without its first", "doorbell", |b| {
        let mut pair = b.pair(&Options::default());
        let doorbell = count(&mut pair);
        let page = page(&pair);
        let bus = pair.hcas[0].bus_mut();
        if !b.is_wrong() {
            bus.mmio_write32(page + SEND_DOORBELL, (doorbell >> 32) as u32);
        }
        bus.mmio_write32(page + SEND_DOORBELL + 4, doorbell as u32);
        if b.is_wrong() {
            ring(&mut pair, SEND_DOORBELL, doorbell);
        }
        pair.sent_ok(0, 1);
        b.keep(pair);
    }),
    Mistake::driver("store of two bytes to a register", "access", |b| {
        let pair = b.pair(&Options::default());
        if b.is_wrong() {
            let at = page(&pair) + SEND_DOORBELL;
            b.simulation.world(|world, now| world.mmio_write(now, hca_model::HcaId(0), at, &[1, 2]));
        }
        b.keep(pair);
    }),
    Mistake::driver("doorbell of an event queue that does not exist", "eqn", |b| {
        let mut pair = b.pair(&Options::default());
        if b.is_wrong() {
            let at = page(&pair) + EQ_ARM;
            pair.hcas[0].bus_mut().mmio_write32(at, 0x6600_0000);
        }
        b.keep(pair);
    }),
    Mistake::driver("doorbell record in memory that was unmapped", "dbr_addr", |b| {
        let mut pair = b.pair(&Options::default());
        let at = doorbell_record(&mut pair);
        let doorbell = count(&mut pair);
        if b.is_wrong() {
            pair.hcas[0].bus_mut().inner().unmap_at(at, 64);
        }
        ring(&mut pair, SEND_DOORBELL, doorbell);
        if !b.is_wrong() {
            pair.sent_ok(0, 1);
        }
        b.keep(pair);
    })
    .after("the host unmapped"),
];

/// Puts a write into the send queue and counts it. Returns the doorbell.
fn count(pair: &mut Pair<Hand>) -> u64 {
    let (sge, far) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
    let qp = &mut pair.ends[0].qp;
    qp.queue_send(&SendRequest::write(1, &sge, far.address, far.key)).expect("room");
    qp.count_sends().expect("a doorbell")
}

fn page(pair: &Pair<Hand>) -> u64 {
    u64::from(pair.hcas[0].uar().0) * PAGE_SIZE
}

fn ring(pair: &mut Pair<Hand>, offset: u64, doorbell: u64) {
    let at = page(pair) + offset;
    pair.hcas[0].bus_mut().mmio_write64(at, doorbell);
}

/// Address of the first queue pair's doorbell record.
fn doorbell_record(pair: &mut Pair<Hand>) -> u64 {
    pair.hcas[0].query_qp(&pair.ends[0].qp).expect("QUERY_QP").get(Qpc::DBR_ADDR)
}

/// A receive counter that is not as it should be.
fn receive_record(b: &mut Bench, spoil: fn(u32) -> u32) {
    let mut pair = b.pair(&Options::default());
    let at = doorbell_record(&mut pair);
    if b.is_wrong() {
        let bus = pair.hcas[0].bus_mut().inner().clone();
        let mut word = [0; 4];
        bus.peek(at, &mut word);
        bus.poke(at, &spoil(u32::from_be_bytes(word)).to_be_bytes());
    }
    b.keep(pair);
    b.pass();
}

/// A doorbell with a send counter that is not as it should be.
fn record(b: &mut Bench, spoil: fn(u32) -> u32) {
    let mut pair = b.pair(&Options::default());
    let at = doorbell_record(&mut pair);
    let doorbell = count(&mut pair);
    if b.is_wrong() {
        let bus = pair.hcas[0].bus_mut().inner().clone();
        let mut word = [0; 4];
        bus.peek(at + 4, &mut word);
        bus.poke(at + 4, &spoil(u32::from_be_bytes(word)).to_be_bytes());
    }
    ring(&mut pair, SEND_DOORBELL, doorbell);
    if !b.is_wrong() {
        pair.sent_ok(0, 1);
    }
    b.keep(pair);
}
