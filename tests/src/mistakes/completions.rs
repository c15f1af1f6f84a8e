//! Completion queues.

use hca_driver::Bus;
use hca_driver::{Cq, CqConfig, SendRequest};
use hca_model::Ps;
use hca_spec::cmd::ModifyCqIn;
use hca_spec::command::Opcode;
use hca_spec::queue::Cqc;
use hca_spec::uar::{self, CQ_DOORBELL, PAGE_SIZE};

use super::Mistake;
use super::bench::{CONTEXT, Hand};
use crate::in_process::ModelMemory;
use crate::pair::{Options, Pair};

pub(super) const ALL: &[Mistake] = &[
    Mistake::command("CREATE_CQ larger than log_max_cq_sz", "log_cq_size", Opcode::CreateCq, |c| {
        c.set(CONTEXT, Cqc::LOG_CQ_SIZE, 31);
    }),
    Mistake::command("CREATE_CQ with an EQ that does not exist", "c_eqn", Opcode::CreateCq, |c| {
        c.set(CONTEXT, Cqc::C_EQN, 0x7e);
    }),
    Mistake::command("CREATE_CQ with a UAR page that is not allocated", "uar_page", Opcode::CreateCq, |c| {
        c.set(CONTEXT, Cqc::UAR_PAGE, 0x1234);
    }),
    Mistake::command("CREATE_CQ with a reserved size of entries", "cqe_sz", Opcode::CreateCq, |c| {
        c.set(CONTEXT, Cqc::CQE_SZ, 5);
    }),
    Mistake::command(
        "CREATE_CQ with a doorbell record that is not aligned",
        "dbr_addr",
        Opcode::CreateCq,
        |c| {
            let record = hca_spec::be64(&c.input, CONTEXT + Cqc::DBR_ADDR.offset());
            c.set(CONTEXT, Cqc::DBR_ADDR, record + 4);
        },
    ),
    Mistake::command(
        "CREATE_CQ with a doorbell record that is not mapped",
        "dbr_addr",
        Opcode::CreateCq,
        |c| {
            c.set(CONTEXT, Cqc::DBR_ADDR, 0x8000);
        },
    ),
    Mistake::command("CREATE_CQ with a page address with low bits", "pas", Opcode::CreateCq, |c| {
        let page = hca_spec::be64(&c.input, hca_spec::cmd::PAS_OFFSET);
        c.list(&[page | 0x80]);
    }),
    Mistake::command("CREATE_CQ with too few pages", "pas", Opcode::CreateCq, |c| {
        c.set(CONTEXT, Cqc::LOG_CQ_SIZE, 12);
    }),
    Mistake::command("CREATE_CQ in memory that is not mapped", "pas", Opcode::CreateCq, |c| {
        c.list(&[0x10_0000]);
    }),
    Mistake::command("CREATE_CQ collapsed and compressed", "cqe_comp_en", Opcode::CreateCq, |c| {
        c.set(CONTEXT, Cqc::CC, 1);
        c.set(CONTEXT, Cqc::CQE_COMP_EN, 1);
    }),
    Mistake::command("MODIFY_CQ with a reserved modifier", "op_mod", Opcode::ModifyCq, |c| {
        c.set(0, ModifyCqIn::OP_MOD, 7);
    }),
    Mistake::command("MODIFY_CQ of a CQ that does not exist", "cqn", Opcode::ModifyCq, |c| {
        c.set(0, ModifyCqIn::CQN, 0xfffe);
    }),
    Mistake::driver("DESTROY_CQ while a queue pair reports to it", "users", |b| {
        let mut pair = b.pair(&Options::default());
        let number = pair.ends[0].send_cq.number().0;
        if b.is_wrong() {
            b.object(&mut pair.hcas[0], Opcode::DestroyCq, number);
        }
        b.keep(pair);
    }),
    Mistake::driver("DESTROY_CQ twice", "cqn", |b| {
        let mut hca = b.open(0);
        let number = hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ").number().0;
        for _ in 0..b.pick(2, 1) {
            b.object(&mut hca, Opcode::DestroyCq, number);
        }
        b.keep(hca);
    })
    .after("DESTROY_CQ of CQ"),
    Mistake::driver("QUERY_CQ of one that was destroyed", "cqn", |b| {
        let mut hca = b.open(0);
        let cq = hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
        if b.is_wrong() {
            b.object(&mut hca, Opcode::DestroyCq, cq.number().0);
        }
        let queried = hca.query_cq(&cq);
        b.note(queried);
        b.keep((hca, cq));
    })
    .after("DESTROY_CQ of CQ"),
    Mistake::driver("completions that nobody polls", "consumer index in the doorbell record", |b| {
        let mut pair = b.pair(&Options::default());
        write(&mut pair);
        if !b.is_wrong() {
            pair.sent_ok(0, 1);
        }
        b.pass();
        b.keep(pair);
    }),
    Mistake::driver(
        "consumer index never written, and the queue overruns",
        "consumer index in the doorbell record",
        |b| {
            let wrong = b.is_wrong();
            let mut pair = b.pair(&Options { cqes: 16, ..Options::default() });
            for _ in 0..20 {
                write(&mut pair);
                match wrong {
                    true => b.simulation.run(Ps::from_us(20)),
                    false => drop(pair.sent_ok(0, 1)),
                }
            }
            b.keep(pair);
        },
    ),
    Mistake::driver(
        "CQ armed with an index beyond its doorbell record",
        "consumer index in the doorbell record",
        |b| {
            let mut pair = b.pair(&Options::default());
            write(&mut pair);
            pair.sent_ok(0, 1);
            let (number, index) = (pair.ends[0].send_cq.number().0, b.pick(9, 1));
            arm(&mut pair, number, index, 0);
            b.keep(pair);
        },
    ),
    Mistake::driver(
        "CQ armed again and again with one sequence number",
        "sequence number of the arming",
        |b| {
            let mut pair = b.pair(&Options::default());
            for _ in 0..12 {
                let cq: &mut Cq<ModelMemory> = &mut pair.ends[0].send_cq;
                cq.arm(pair.hcas[0].bus_mut(), false);
                write(&mut pair);
                pair.sent_ok(0, 1);
                while pair.hcas[0].poll_event().expect("events").is_some() {}
                if !b.is_wrong() {
                    pair.ends[0].send_cq.event_taken();
                }
            }
            b.keep(pair);
        },
    ),
    Mistake::driver("CQ armed again and again with an old index", "consumer index of the arming", |b| {
        let mut pair = b.pair(&Options::default());
        for sequence in 0..12 {
            write(&mut pair);
            pair.sent_ok(0, 1);
            let cq: &mut Cq<ModelMemory> = &mut pair.ends[0].send_cq;
            let number = cq.number().0;
            match b.is_wrong() {
                true => arm(&mut pair, number, 0, sequence % 4),
                false => cq.arm(pair.hcas[0].bus_mut(), false),
            }
            while pair.hcas[0].poll_event().expect("events").is_some() {}
        }
        b.keep(pair);
    }),
    Mistake::driver("CQ armed that was destroyed", "cqn", |b| {
        let mut pair = b.pair(&Options::default());
        let spare = pair.hcas[0].create_cq(CqConfig::new(64)).expect("CREATE_CQ");
        let number = spare.number().0;
        if b.is_wrong() {
            pair.hcas[0].destroy_cq(spare).expect("DESTROY_CQ");
        } else {
            b.keep(spare);
        }
        arm(&mut pair, number, 0, 0);
        b.keep(pair);
    })
    .after("DESTROY_CQ of CQ"),
    Mistake::driver("entries of a CQ in memory that was unmapped", "queue memory", |b| {
        let mut pair = b.pair(&Options::default());
        if b.is_wrong() {
            pair.hcas[0].bus_mut().inner().clone().unmap(pair.ends[0].send_cq.memory());
        }
        write(&mut pair);
        match b.is_wrong() {
            true => b.simulation.run(Ps::from_us(100)),
            false => drop(pair.sent_ok(0, 1)),
        }
        b.keep(pair);
    })
    .after("the host unmapped"),
];

fn write(pair: &mut Pair<Hand>) {
    let (sge, far) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
    pair.send(0, &SendRequest::write(1, &sge, far.address, far.key));
}

/// Arms a CQ of the first adapter.
fn arm(pair: &mut Pair<Hand>, cqn: u32, consumer: u32, sequence: u32) {
    let mut doorbell = uar::CqDoorbell::new();
    doorbell.set(uar::CqDoorbell::CMD_SN, sequence).set(uar::CqDoorbell::CONSUMER_INDEX, consumer);
    doorbell.set(uar::CqDoorbell::CQN, cqn);
    let page = u64::from(pair.hcas[0].uar().0) * PAGE_SIZE;
    pair.hcas[0].bus_mut().mmio_write64(page + CQ_DOORBELL, u64::from_be_bytes(*doorbell.bytes()));
}
