//! Event queues.

use hca_driver::CqConfig;
use hca_spec::command::Opcode;
use hca_spec::ids::Eqn;
use hca_spec::queue::Eqc;

use super::Mistake;
use super::bench::{Bench, CONTEXT};
use crate::pair::{Options, Pair};

pub(super) const ALL: &[Mistake] = &[
    Mistake::command("CREATE_EQ larger than log_max_eq_sz", "log_eq_size", Opcode::CreateEq, |c| {
        c.set(CONTEXT, Eqc::LOG_EQ_SIZE, 31);
    }),
    Mistake::command("CREATE_EQ with a UAR page that is not allocated", "uar_page", Opcode::CreateEq, |c| {
        c.set(CONTEXT, Eqc::UAR_PAGE, 0x1234);
    }),
    Mistake::command("CREATE_EQ with a vector beyond the MSI-X table", "intr", Opcode::CreateEq, |c| {
        c.set(CONTEXT, Eqc::INTR, 64);
    }),
    Mistake::command("CREATE_EQ with pages of 2^43 bytes", "log_page_size", Opcode::CreateEq, |c| {
        c.set(CONTEXT, Eqc::LOG_PAGE_SIZE, 31);
    }),
    Mistake::command("CREATE_EQ with a page address with low bits", "pas", Opcode::CreateEq, |c| {
        let page = hca_spec::be64(&c.input, hca_spec::cmd::PAS_OFFSET);
        c.list(&[page | 0x40]);
    }),
    Mistake::command("CREATE_EQ with fewer pages than the queue has", "pas", Opcode::CreateEq, |c| {
        c.set(CONTEXT, Eqc::LOG_EQ_SIZE, 8);
    }),
    Mistake::command("CREATE_EQ with a page offset that leaves no room", "pas", Opcode::CreateEq, |c| {
        c.set(CONTEXT, Eqc::PAGE_OFFSET, 1);
    }),
    Mistake::command("CREATE_EQ in memory that is not mapped", "pas", Opcode::CreateEq, |c| {
        c.list(&[0x10_0000]);
    }),
    Mistake::driver("DESTROY_EQ while a CQ reports to it", "users", |b| {
        let mut hca = b.open(0);
        let eq = hca.create_eq(64, 1).expect("CREATE_EQ");
        let cq = hca.create_cq(CqConfig { entries: 64, eq: Some(eq.number()) }).expect("CREATE_CQ");
        let number = eq.number().0.into();
        if b.is_wrong() {
            b.object(&mut hca, Opcode::DestroyEq, number);
        } else {
            hca.destroy_cq(cq).expect("DESTROY_CQ");
            b.object(&mut hca, Opcode::DestroyEq, number);
        }
        b.keep((hca, eq));
    }),
    Mistake::driver("DESTROY_EQ twice", "eqn", |b| {
        let mut hca = b.open(0);
        let number = hca.create_eq(64, 1).expect("CREATE_EQ").number().0.into();
        for _ in 0..b.pick(2, 1) {
            b.object(&mut hca, Opcode::DestroyEq, number);
        }
        b.keep(hca);
    })
    .after("DESTROY_EQ of EQ"),
    Mistake::driver("event queue that is never armed", "consumer index", |b| {
        reported(b, |b, hca, eq| {
            if !b.is_wrong() {
                eq.arm(hca.bus_mut());
            }
        });
    }),
    Mistake::driver("event queue that is armed, raises its vector, and is not read", "consumer index", |b| {
        let wrong = b.is_wrong();
        let mut pair = completions_by_event(b);
        let (hca, eq) = (&mut pair.0.hcas[0], &mut pair.1);
        eq.arm(hca.bus_mut());
        one_write(&mut pair.0);
        if !wrong {
            b.simulation.run(hca_model::Ps::from_us(50));
            while pair.1.poll().is_some() {}
            pair.1.arm(pair.0.hcas[0].bus_mut());
        }
        b.keep(pair);
    }),
    Mistake::driver("event queue that overruns, as its consumer index never moves", "consumer index", |b| {
        let wrong = b.is_wrong();
        let (mut pair, mut eq) = completions_by_event(b);
        eq.arm(pair.hcas[0].bus_mut());
        for _ in 0..70 {
            one_write(&mut pair);
            pair.ends[0].send_cq.event_taken();
            let end = &mut pair.ends[0];
            end.send_cq.arm(pair.hcas[0].bus_mut(), false);
            b.simulation.run(hca_model::Ps::from_us(20));
            if !wrong {
                while eq.poll().is_some() {}
                eq.arm(pair.hcas[0].bus_mut());
            }
        }
        b.keep((pair, eq));
    }),
    Mistake::driver("doorbell of an event queue that was destroyed", "eqn", |b| {
        let mut hca = b.open(0);
        let eq = hca.create_eq(64, 1).expect("CREATE_EQ");
        if b.is_wrong() {
            b.object(&mut hca, Opcode::DestroyEq, eq.number().0.into());
        }
        eq.arm(hca.bus_mut());
        b.keep((hca, eq));
    })
    .after("DESTROY_EQ of EQ"),
];

type Eq = hca_driver::Eq<crate::in_process::ModelMemory>;
type Hca = hca_driver::Hca<super::bench::Hand>;

/// A pair whose first send queue's completions make events of their own event queue.
fn completions_by_event(b: &mut Bench) -> (Pair<super::bench::Hand>, Eq) {
    let mut pair = b.pair(&Options::default());
    let eq = pair.hcas[0].create_eq(64, 1).expect("CREATE_EQ");
    let number: Eqn = eq.number();
    let End { send_cq, .. } = &mut pair.ends[0];
    pair.hcas[0].remap_cq(send_cq, number).expect("MODIFY_CQ");
    send_cq.arm(pair.hcas[0].bus_mut(), false);
    (pair, eq)
}

use crate::pair::End;

fn one_write(pair: &mut Pair<super::bench::Hand>) {
    let (sge, far) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
    pair.send(0, &hca_driver::SendRequest::write(1, &sge, far.address, far.key));
    pair.sent_ok(0, 1);
}

/// One completion is reported by an event, after `prepare`.
fn reported(b: &mut Bench, prepare: fn(&Bench, &mut Hca, &mut Eq)) {
    let (mut pair, mut eq) = completions_by_event(b);
    prepare(b, &mut pair.hcas[0], &mut eq);
    one_write(&mut pair);
    if !b.is_wrong() {
        b.simulation.run(hca_model::Ps::from_us(50));
        while eq.poll().is_some() {}
        eq.arm(pair.hcas[0].bus_mut());
    }
    b.keep((pair, eq));
}
