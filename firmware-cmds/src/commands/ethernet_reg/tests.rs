use super::*;
use crate::commands::testing::{Bench, ethernet, register};
use crate::port::PortLink;
use hca_spec::command::Status;
use hca_spec::register::eth_proto;

fn bench() -> Bench {
    let mut b = Bench::initialized_with(ethernet());
    b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
    b
}

#[test]
fn mtu_in_bytes() {
    let mut b = bench();
    let mut p = Pmtu::new();
    p.set(Pmtu::LOCAL_PORT, 1);
    let r = register(&mut b, reg::PMTU, false, p.bytes());
    assert_eq!((be32(&r.output, 0x14) >> 16, be32(&r.output, 0x1c) >> 16), (10_000, 1522));
    p.set(Pmtu::ADMIN_MTU, 9022);
    let r = register(&mut b, reg::PMTU, true, p.bytes());
    assert_eq!((r.status(), be32(&r.output, 0x1c) >> 16), (Status::Ok, 9022));
    assert_eq!(b.fw.ports.port(1).unwrap().ethernet().unwrap().mtu, 9022);
    for wrong in [0, 89, 10_001] {
        p.set(Pmtu::ADMIN_MTU, wrong);
        assert_eq!(register(&mut b, reg::PMTU, true, p.bytes()).status(), Status::BadParam);
    }
    p.set(Pmtu::LOCAL_PORT, 2);
    assert_eq!(register(&mut b, reg::PMTU, false, p.bytes()).status(), Status::BadParam);
}

#[test]
fn rates_of_the_link() {
    let mut b = bench();
    let mut p = Ptys::new();
    p.set(Ptys::LOCAL_PORT, 1).set(Ptys::PROTO_MASK, PROTO_ETHERNET);
    let read = |b: &mut Bench, p: &Ptys, write| {
        let r = register(b, reg::PTYS, write, p.bytes());
        assert_eq!(r.status(), Status::Ok);
        Ptys::from_prefix_or_zero(&r.output[16..])
    };
    let got = read(&mut b, &p, false);
    assert_eq!(got.get(Ptys::ETH_PROTO_OPER), eth_proto::CR4_100G);
    assert_eq!((got.get(Ptys::DATA_RATE_OPER), got.get(Ptys::EXT_ETH_PROTO_CAPABILITY)), (1000, 0));
    p.set(Ptys::ETH_PROTO_ADMIN, eth_proto::CR_25G);
    assert_eq!(read(&mut b, &p, true).get(Ptys::ETH_PROTO_ADMIN), eth_proto::CR_25G);
    b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
    assert_eq!(read(&mut b, &p, false).get(Ptys::ETH_PROTO_OPER), eth_proto::CR_25G);
    b.fw.ports.set_link(1, None, &mut Vec::new());
    let got = read(&mut b, &p, false);
    assert_eq!((got.get(Ptys::ETH_PROTO_OPER), got.get(Ptys::AN_STATUS)), (0, 4));
    p.set(Ptys::AN_DISABLE_ADMIN, 1);
    let got = read(&mut b, &p, true);
    assert_eq!((got.get(Ptys::AN_DISABLE_ADMIN), got.get(Ptys::AN_DISABLE_CAP)), (1, 1));
    assert_eq!(got.get(Ptys::AN_STATUS), 0, "unavailable");
    p.set(Ptys::AN_DISABLE_ADMIN, 0);
    assert_eq!(read(&mut b, &p, true).get(Ptys::AN_STATUS), 4);
    p.set(Ptys::ETH_PROTO_ADMIN, 1);
    assert_eq!(register(&mut b, reg::PTYS, true, p.bytes()).status(), Status::BadParam);
    p.set(Ptys::ETH_PROTO_ADMIN, eth_proto::CR_25G).set(Ptys::PROTO_MASK, 1);
    assert_eq!(register(&mut b, reg::PTYS, true, p.bytes()).status(), Status::BadParam);
}

#[test]
fn pause_and_priorities() {
    let mut b = bench();
    let mut p = Pfcc::new();
    p.set(Pfcc::LOCAL_PORT, 1).set(Pfcc::PPTX, 1).set(Pfcc::PPRX, 1).set(Pfcc::PFCTX, 0xff);
    assert_eq!(register(&mut b, reg::PFCC, true, p.bytes()).status(), Status::Ok, "no priority is named");
    let pause = |b: &Bench| b.fw.ports.port(1).unwrap().ethernet().unwrap().pause;
    assert_eq!((pause(&b).tx, pause(&b).rx, pause(&b).pfc_tx), (true, true, 0));
    p.set(Pfcc::PRIO_MASK_TX, 0x0f);
    assert_eq!(register(&mut b, reg::PFCC, true, p.bytes()).status(), Status::BadParam);
    p.set(Pfcc::PPTX, 0).set(Pfcc::PPRX, 0).set(Pfcc::PPRX_MASK_N, 1);
    let r = register(&mut b, reg::PFCC, true, p.bytes());
    let got = Pfcc::from_prefix_or_zero(&r.output[16..]);
    assert_eq!((got.get(Pfcc::PFCTX), got.get(Pfcc::PPTX), got.get(Pfcc::PPRX)), (0xf, 0, 1));
    let read = register(&mut b, reg::PFCC, false, Pfcc::new().set(Pfcc::LOCAL_PORT, 1).bytes());
    assert_eq!(read.output, r.output);
}

#[test]
fn module_and_checks() {
    let mut b = bench();
    let r =
        register(&mut b, reg::PMLP, false, &[0, 1, 0, 0].into_iter().chain([0; 0x3c]).collect::<Vec<_>>());
    assert_eq!(r.output[16..32], [0, 1, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0]);
    let mut p = Pcmr::new();
    let r = register(&mut b, reg::PCMR, false, p.bytes());
    assert_eq!(r.output[16..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(register(&mut b, reg::PCMR, true, p.bytes()).status(), Status::BadParam);
    p.set(Pcmr::FCS_CHK, 1);
    assert_eq!(register(&mut b, reg::PCMR, true, p.bytes()).status(), Status::Ok);
    let r = register(&mut b, reg::PCAM, false, &[0; 0x50]);
    let low = be32(&r.output, 0x10 + 0x14);
    assert_eq!(
        low, 0b1_0000_0100_0001_1001_1101_1100,
        "PMLP, PMTU, PTYS, PAOS, PFCC, PPCNT, PPTB, PBMC, PMAOS, PPLR"
    );
    let is_named = |bit: &u32| {
        let word = 3 - *bit as usize / 32;
        be32(&r.output, 0x18 + 4 * word) >> (bit % 32) & 1 == 1
    };
    let named: Vec<u32> = (0..128).filter(is_named).map(|bit| 0x5000 + bit).collect();
    let mut present = PRESENT.to_vec();
    present.sort_unstable();
    assert_eq!(named, present);
    for id in named {
        assert_eq!(register(&mut b, id, false, &[0; 4]).status(), Status::Ok, "{id:#x}");
    }
    let features = be32(&r.output, 0x10 + 0x34);
    assert_eq!(features & 0x1001, 0x1001, "statistics of the physical layer, sizes that were sent");
    for read_only in [reg::PMLP, reg::PCAM] {
        assert_eq!(register(&mut b, read_only, true, &[0; 0x90]).status(), Status::BadParam);
    }
}

#[test]
fn error_correction() {
    use hca_spec::register::fec;
    let mut b = bench();
    let mut p = Pplm::new();
    p.set(Pplm::LOCAL_PORT, 1);
    let access = |b: &mut Bench, p: &Pplm, write| {
        let r = register(b, reg::PPLM, write, p.bytes());
        (r.status(), Pplm::from_prefix_or_zero(r.output.get(16..).unwrap_or_default()))
    };
    let (_, got) = access(&mut b, &p, false);
    assert_eq!(got.get(Pplm::FEC_MODE_ACTIVE), fec::RS_528_514, "as 100 Gb/s over copper have it");
    assert_eq!((got.get(Pplm::FEC_OVERRIDE_CAP_100G), got.get(Pplm::FEC_OVERRIDE_ADMIN_100G)), (5, 0));
    p.set(Pplm::FEC_OVERRIDE_ADMIN_100G, fec::NONE).set(Pplm::FEC_OVERRIDE_ADMIN_25G, fec::FIRECODE);
    let (status, got) = access(&mut b, &p, true);
    assert_eq!((status, got.get(Pplm::FEC_MODE_ACTIVE)), (Status::Ok, fec::NONE));
    assert_eq!(got.get(Pplm::FEC_OVERRIDE_ADMIN_25G), fec::FIRECODE);
    p.set(Pplm::FEC_OVERRIDE_ADMIN_100G, fec::FIRECODE);
    assert_eq!(access(&mut b, &p, true).0, Status::BadParam);
    b.fw.ports.set_link(1, None, &mut Vec::new());
    p.set(Pplm::FEC_OVERRIDE_ADMIN_100G, 0);
    assert_eq!(access(&mut b, &p, true).1.get(Pplm::FEC_MODE_ACTIVE), 0, "the link is down");
}

/// Registers of InfiniBand are not there, and those of Ethernet are not on InfiniBand ports.
#[test]
fn each_layer_has_its_own() {
    let mut b = bench();
    for other in [reg::PCAP, reg::PVLC] {
        assert_eq!(register(&mut b, other, false, &[0; 0x40]).status(), Status::BadParam);
    }
    let mut b = Bench::initialized();
    // The driver asks for modules on ports of both.
    let r = register(&mut b, reg::PMLP, false, &[0; 0x40]);
    assert_eq!((r.status(), r.output[0x13]), (Status::Ok, 4), "lanes");
    for other in [reg::PFCC, reg::PCMR, reg::PCAM] {
        assert_eq!(register(&mut b, other, false, &[0; 0x100]).status(), Status::BadParam);
    }
}

/// The link comes up behind PAOS.
#[test]
fn switched_off_and_on() {
    use crate::effect::Effect;
    use hca_spec::eqe::port_change;
    let mut b = bench();
    let paos = |b: &mut Bench, admin: u32| {
        let data = [1 << 16 | admin << 8, 1 << 31, 0, 0].map(u32::to_be_bytes).concat();
        b.effects.clear();
        let r = register(b, reg::PAOS, true, &data);
        assert_eq!(r.status(), Status::Ok);
        r.output[19] & 0xf
    };
    assert_eq!(paos(&mut b, 2), 2);
    assert_eq!(b.effects, [Effect::PortChange { port: 1, sub_type: port_change::DOWN }]);
    assert_eq!(paos(&mut b, 1), 2, "not trained yet");
    assert_eq!(b.effects, [Effect::PortEnabled { port: 1 }]);
    let mut effects = Vec::new();
    b.fw.ports.set_link(1, Some(PortLink::default()), &mut effects);
    assert_eq!(effects, [Effect::PortChange { port: 1, sub_type: port_change::ACTIVE }]);
    assert_eq!(b.fw.ports.port(1).unwrap().ethernet().unwrap().counters.link_down_events, 1);
}

/// What is not selected stays; what can't be configured is refused, and nothing changes.
#[test]
fn accelerations_are_selected() {
    let mut b = Bench::initialized_with(ethernet());
    let get = |b: &mut Bench| be32(&register(b, reg::ROCE_ACCL, false, &[0; RoceAccl::SIZE]).output, 0x14);
    let r = register(&mut b, reg::ROCE_ACCL, false, &[0; RoceAccl::SIZE]);
    assert_eq!(
        (be32(&r.output, 0x10), be32(&r.output, 0x14)),
        (0b101, 0),
        "what there is, and that it is off"
    );
    let mut set = |select: u8, on: u8| {
        let mut value = [0; RoceAccl::SIZE];
        (value[3], value[7]) = (select, on);
        let status = register(&mut b, reg::ROCE_ACCL, true, &value).status();
        (status, get(&mut b))
    };
    assert_eq!(set(0b001, 0b101), (Status::Ok, 0b001));
    assert_eq!(set(0b100, 0b100), (Status::Ok, 0b101));
    assert_eq!(set(0b101, 0b100), (Status::Ok, 0b100));
    for other in [0b010, 0b1000] {
        assert_eq!(set(other | 1, other | 1), (Status::BadParam, 0b100));
    }
    let mut infiniband = Bench::initialized();
    assert_eq!(
        register(&mut infiniband, reg::ROCE_ACCL, false, &[0; RoceAccl::SIZE]).status(),
        Status::BadParam
    );
}

/// Each watermark is written where its bit says so, and neither touches flow control.
#[test]
fn stall_watermarks() {
    let mut b = bench();
    let mut p = Pfcc::new();
    p.set(Pfcc::LOCAL_PORT, 1);
    let read = |b: &mut Bench, p: &Pfcc| be32(&register(b, reg::PFCC, false, p.bytes()).output, 0x20);
    assert_eq!(read(&mut b, &p), 6800 << 16 | 8000);
    let before = b.fw.ports.port(1).unwrap().ethernet().unwrap().pause;
    p.set(Pfcc::PPTX_MASK_N, 1).set(Pfcc::PPRX_MASK_N, 1).set(Pfcc::DEVICE_STALL_MINOR_WATERMARK, 85);
    p.set(Pfcc::DEVICE_STALL_CRITICAL_WATERMARK, 100);
    assert_eq!(register(&mut b, reg::PFCC, true, p.bytes()).status(), Status::Ok);
    assert_eq!(read(&mut b, &p), 6800 << 16 | 8000, "neither is selected");
    p.set(Pfcc::CRITICAL_STALL_MASK, 1);
    assert_eq!(register(&mut b, reg::PFCC, true, p.bytes()).status(), Status::Ok);
    assert_eq!(read(&mut b, &p), 6800 << 16 | 100);
    p.set(Pfcc::CRITICAL_STALL_MASK, 0).set(Pfcc::MINOR_STALL_MASK, 1);
    assert_eq!(register(&mut b, reg::PFCC, true, p.bytes()).status(), Status::Ok);
    assert_eq!(read(&mut b, &p), 85 << 16 | 100);
    assert_eq!(b.fw.ports.port(1).unwrap().ethernet().unwrap().pause, before);
}
