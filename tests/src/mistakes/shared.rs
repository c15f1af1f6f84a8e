//! Shared receive queues, receive memory pools, DC targets, and the queues of Ethernet ports.

use hca_firmware::object::Kind;
use hca_spec::cmd::{ModifySqIn, ObjectIn};
use hca_spec::command::Opcode;
use hca_spec::dct::Dctc;
use hca_spec::queue::{Rmpc, Sqc, Srqc, Wq};
use hca_spec::rq::Rqc;
use hca_spec::transport::Tirc;

use super::Mistake;
use super::bench::{CONTEXT, LATE_CONTEXT};

/// The work queue within RMP, SQ and RQ contexts.
const WQ: usize = 0x50;

pub(super) const ALL: &[Mistake] = &[
    Mistake::command("CREATE_RMP that is not ready", "state", Opcode::CreateRmp, |c| {
        c.set(LATE_CONTEXT, Rmpc::STATE, 0);
    }),
    Mistake::command("CREATE_RMP with a stride that there is not", "log_wq_stride", Opcode::CreateRmp, |c| {
        c.set(WQ, Wq::LOG_WQ_STRIDE, 2);
    }),
    Mistake::command("CREATE_RMP with a PD that is not allocated", "pd", Opcode::CreateRmp, |c| {
        c.set(WQ, Wq::PD, 0x777)
    }),
    Mistake::command("CREATE_RMP with a record that is not aligned", "dbr_addr", Opcode::CreateRmp, |c| {
        let record = hca_spec::be64(&c.input, WQ + Wq::DBR_ADDR.offset());
        c.set(WQ, Wq::DBR_ADDR, record + 4);
    }),
    Mistake::command(
        "CREATE_XRC_SRQ with a record that is not aligned",
        "dbr_addr",
        Opcode::CreateXrcSrq,
        |c| {
            let record = hca_spec::be64(&c.input, CONTEXT + Srqc::DBR_ADDR.offset());
            c.set(CONTEXT, Srqc::DBR_ADDR, record + 1);
        },
    ),
    Mistake::command(
        "CREATE_XRC_SRQ with an XRC domain that is not allocated",
        "xrcd",
        Opcode::CreateXrcSrq,
        |c| {
            c.set(CONTEXT, Srqc::XRCD, 0x777);
        },
    ),
    Mistake::command("CREATE_XRC_SRQ with a CQ that does not exist", "cqn", Opcode::CreateXrcSrq, |c| {
        c.set(CONTEXT, Srqc::CQN, 0x777);
    }),
    Mistake::command("limit of an SRQ above its number of WQEs", "lwm", Opcode::ArmXrcSrq, |c| {
        c.set(0, ObjectIn::LWM, 0x7fff);
    }),
    Mistake::driver("DESTROY_RMP that queue pairs receive from", "users", |b| {
        let mut hca = b.open(0);
        let fixture = b.fixture(&mut hca);
        // The DC target receives from the pool.
        let number = b.pick(fixture.number(Kind::Rmp), b.make(&mut hca, Kind::Rmp, &fixture));
        b.object(&mut hca, Opcode::DestroyRmp, number);
        b.keep(hca);
    }),
    Mistake::command("CREATE_DCT with a path MTU that there is not", "mtu", Opcode::CreateDct, |c| {
        c.set(CONTEXT, Dctc::MTU, 0);
    }),
    Mistake::command("CREATE_DCT with a CQ that does not exist", "cqn", Opcode::CreateDct, |c| {
        c.set(CONTEXT, Dctc::CQN, 0x777);
    }),
    Mistake::command("CREATE_SQ that is not in reset", "state", Opcode::CreateSq, |c| {
        c.set(LATE_CONTEXT, Sqc::STATE, 1);
    })
    .on_ethernet(),
    Mistake::command("CREATE_SQ with a record that is not aligned", "dbr_addr", Opcode::CreateSq, |c| {
        let record = hca_spec::be64(&c.input, WQ + Wq::DBR_ADDR.offset());
        c.set(WQ, Wq::DBR_ADDR, record + 2);
    })
    .on_ethernet(),
    Mistake::command("CREATE_SQ with a TIS that does not exist", "tis_num_0", Opcode::CreateSq, |c| {
        c.set(LATE_CONTEXT, Sqc::TIS_NUM_0, 0x777);
    })
    .on_ethernet(),
    Mistake::command("CREATE_SQ with another stride than 64 bytes", "log_wq_stride", Opcode::CreateSq, |c| {
        c.set(WQ, Wq::LOG_WQ_STRIDE, 4);
    })
    .on_ethernet(),
    Mistake::command("MODIFY_SQ that says the wrong state", "sq_state", Opcode::ModifySq, |c| {
        c.set(0, ModifySqIn::SQ_STATE, 3);
    })
    .on_ethernet(),
    Mistake::command("CREATE_RQ with a CQ that does not exist", "cqn", Opcode::CreateRq, |c| {
        c.set(LATE_CONTEXT, Rqc::CQN, 0x777);
    })
    .on_ethernet(),
    Mistake::command("CREATE_RQ with a stride that is too small", "log_wq_stride", Opcode::CreateRq, |c| {
        c.set(WQ, Wq::LOG_WQ_STRIDE, 0);
    })
    .on_ethernet(),
    Mistake::command(
        "CREATE_TIR with a transport domain that is not allocated",
        "transport_domain",
        Opcode::CreateTir,
        |c| {
            c.set(LATE_CONTEXT, Tirc::TRANSPORT_DOMAIN, 0x777);
        },
    )
    .on_ethernet(),
    Mistake::driver("DESTROY_RQ that a TIR names", "users", |b| {
        let mut hca = b.open(0);
        let fixture = b.fixture(&mut hca);
        let number = b.pick(fixture.number(Kind::Rq), b.make(&mut hca, Kind::Rq, &fixture));
        b.object(&mut hca, Opcode::DestroyRq, number);
        b.keep(hca);
    })
    .on_ethernet(),
];
