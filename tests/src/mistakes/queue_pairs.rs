//! Queue pairs: creation, and their way through the states.

use hca_driver::{InitAttr, Path, RtrAttr, RtsAttr};
use hca_firmware::object::Kind;
use hca_spec::cmd::ModifyQpIn;
use hca_spec::command::Opcode;
use hca_spec::ids::{Lid, Qpn};
use hca_spec::qpc::{Qpc, opt};

use super::Mistake;
use super::bench::{Bench, Command, QPC};
use crate::pair::{Options, Pair};

pub(super) const ALL: &[Mistake] = &[
    Mistake::command("CREATE_QP of a service that there is not", "st", Opcode::CreateQp, |c| {
        c.set(QPC, Qpc::ST, 0xf)
    }),
    Mistake::command("CREATE_QP with a reserved kind of receive queue", "rq_type", Opcode::CreateQp, |c| {
        c.set(QPC, Qpc::RQ_TYPE, 2);
    }),
    Mistake::command("CREATE_QP with a PD that is not allocated", "pd", Opcode::CreateQp, |c| {
        c.set(QPC, Qpc::PD, 0x777)
    }),
    Mistake::command("CREATE_QP with a send CQ that does not exist", "cqn_snd", Opcode::CreateQp, |c| {
        c.set(QPC, Qpc::CQN_SND, 0x777);
    }),
    Mistake::command("CREATE_QP with a receive CQ that does not exist", "cqn_rcv", Opcode::CreateQp, |c| {
        c.set(QPC, Qpc::CQN_RCV, 0x777);
    }),
    Mistake::command("CREATE_QP with an SRQ that does not exist", "srqn_rmpn", Opcode::CreateQp, |c| {
        c.set(QPC, Qpc::RQ_TYPE, 1);
        c.set(QPC, Qpc::SRQN_RMPN, 0x777);
    }),
    Mistake::command("CREATE_QP with a UAR page that is not allocated", "uar_page", Opcode::CreateQp, |c| {
        c.set(QPC, Qpc::UAR_PAGE, 0x1234);
    }),
    Mistake::command(
        "CREATE_QP with a doorbell record that is not aligned",
        "dbr_addr",
        Opcode::CreateQp,
        |c| {
            let record = hca_spec::be64(&c.input, QPC + Qpc::DBR_ADDR.offset());
            c.set(QPC, Qpc::DBR_ADDR, record + 2);
        },
    ),
    Mistake::command(
        "CREATE_QP with a doorbell record that is not mapped",
        "dbr_addr",
        Opcode::CreateQp,
        |c| {
            c.set(QPC, Qpc::DBR_ADDR, 0x8000);
        },
    ),
    Mistake::command("CREATE_QP with too few pages", "pas", Opcode::CreateQp, |c| {
        c.set(QPC, Qpc::LOG_SQ_SIZE, 9)
    }),
    Mistake::command("CREATE_QP with a page address with low bits", "pas", Opcode::CreateQp, |c| {
        let page = hca_spec::be64(&c.input, hca_spec::cmd::PAS_OFFSET);
        c.list(&[page | 0x10, page]);
    }),
    Mistake::command("CREATE_QP in memory that is not mapped", "pas", Opcode::CreateQp, |c| {
        c.list(&[0x10_0000, 0x10_1000])
    }),
    Mistake::command("QUERY_QP of one that does not exist", "qpn", Opcode::QueryQp, |c| {
        c.set(0, hca_spec::cmd::ObjectIn::NUMBER, 0x999);
    }),
    Mistake::driver("DESTROY_QP twice", "qpn", |b| {
        let mut hca = b.open(0);
        let fixture = b.fixture(&mut hca);
        let number = b.make(&mut hca, Kind::Qp, &fixture);
        for _ in 0..b.pick(2, 1) {
            b.object(&mut hca, Opcode::DestroyQp, number);
        }
        b.keep(hca);
    })
    .after("DESTROY_QP of QP"),
    Mistake::driver("INIT2RTR of a queue pair in RESET", "state", |b| {
        transition(b, Opcode::Init2RtrQp, 0, |_| {})
    }),
    Mistake::driver("RTR2RTS of a queue pair in INIT", "state", |b| {
        transition(b, Opcode::Rtr2RtsQp, 1, |_| {})
    }),
    Mistake::driver("RTS2RTS of a queue pair in RTR", "state", |b| {
        transition(b, Opcode::Rts2RtsQp, 2, |_| {})
    }),
    Mistake::driver("RST2INIT of a queue pair in RTS", "state", |b| {
        transition(b, Opcode::Rst2InitQp, 3, |_| {})
    }),
    Mistake::driver("SQD2RTS of a queue pair that is not drained", "state", |b| {
        transition(b, Opcode::Sqd2RtsQp, 3, |_| {})
    }),
    Mistake::driver("RST2INIT with a port that there is not", "vhca_port_num", |b| {
        init(b, |attr| attr.port = 7);
    }),
    Mistake::driver("RST2INIT with a P_Key beyond the table", "pkey_index", |b| {
        init(b, |attr| attr.pkey_index = 0x4000);
    }),
    Mistake::driver("INIT2RTR with a path MTU that there is not", "mtu", |b| rtr(b, |attr| attr.mtu = 6)),
    Mistake::driver("INIT2RTR with a GID beyond the table", "src_addr_index", |b| {
        rtr(b, |attr| {
            attr.path.gid = Some(hca_spec::ids::Gid::new(0xfe80 << 48, 1));
            attr.path.sgid_index = 200;
        });
    }),
    Mistake::driver("INIT2RTR with more responder resources than there are", "log_rra_max", |b| {
        rtr(b, |attr| attr.responder_reads = 128);
    }),
    Mistake::driver("RTR2RTS with more outstanding reads than there can be", "log_sra_max", |b| {
        let mut pair = b.apart(&Options::default());
        up_to_rtr(&mut pair);
        let attr = RtsAttr { initiator_reads: b.pick(128, 16), ..RtsAttr::default() };
        let done = pair.hcas[0].qp_to_rts(&mut pair.ends[0].qp, &attr);
        b.note(done);
        b.keep(pair);
    }),
    Mistake::driver("migration without an alternate path", "pm_state", |b| {
        transition(b, Opcode::Rts2RtsQp, 3, |c| {
            c.set(0, ModifyQpIn::OPT_PARAM_MASK, opt::PM_STATE);
            c.set(QPC, Qpc::PM_STATE, 1);
        });
    }),
    Mistake::driver("transition of a queue pair that was destroyed", "qpn", |b| {
        let mut hca = b.open(0);
        let fixture = b.fixture(&mut hca);
        let number = b.make(&mut hca, Kind::Qp, &fixture);
        if b.is_wrong() {
            b.object(&mut hca, Opcode::DestroyQp, number);
        }
        let mut init = b.template(Opcode::Rst2InitQp, &fixture);
        init.set(0, ModifyQpIn::QPN, number);
        let sent = Bench::send(&mut hca, Opcode::Rst2InitQp, init);
        b.note(sent);
        b.keep(hca);
    }),
];

/// A queue pair that was brought `steps` forward; then the transition, right in the twin.
fn transition(b: &mut Bench, opcode: Opcode, steps: usize, spoil: fn(&mut Command)) {
    const WAY: [Opcode; 3] = [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp];
    let mut hca = b.open(0);
    let fixture = b.fixture(&mut hca);
    for step in &WAY[..steps] {
        let command = b.template(*step, &fixture);
        Bench::send(&mut hca, *step, command).expect("a transition of the right order");
    }
    if b.is_wrong() {
        let mut command = b.template(opcode, &fixture);
        spoil(&mut command);
        let sent = Bench::send(&mut hca, opcode, command);
        b.note(sent);
    } else if let Some(next) = WAY.get(steps) {
        let command = b.template(*next, &fixture);
        let sent = Bench::send(&mut hca, *next, command);
        b.note(sent);
    }
    b.keep(hca);
}

fn init(b: &mut Bench, spoil: fn(&mut InitAttr)) {
    let mut pair = b.apart(&Options::default());
    let mut attr = InitAttr::default();
    if b.is_wrong() {
        spoil(&mut attr);
    }
    let done = pair.hcas[0].qp_to_init(&mut pair.ends[0].qp, &attr);
    b.note(done);
    b.keep(pair);
}

fn rtr(b: &mut Bench, spoil: fn(&mut RtrAttr)) {
    let mut pair = b.apart(&Options::default());
    let (hca, qp) = (&mut pair.hcas[0], &mut pair.ends[0].qp);
    hca.qp_to_init(qp, &InitAttr::default()).expect("INIT");
    let mut attr = RtrAttr::new(Qpn(1), Path::lid(Lid(2)));
    if b.is_wrong() {
        spoil(&mut attr);
    }
    let done = hca.qp_to_rtr(qp, &attr);
    b.note(done);
    b.keep(pair);
}

fn up_to_rtr(pair: &mut Pair<super::bench::Hand>) {
    let (hca, qp) = (&mut pair.hcas[0], &mut pair.ends[0].qp);
    hca.qp_to_init(qp, &InitAttr::default()).expect("INIT");
    hca.qp_to_rtr(qp, &RtrAttr::new(Qpn(1), Path::lid(Lid(2)))).expect("RTR");
}
