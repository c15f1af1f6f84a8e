use super::*;
use crate::commands::testing::{Answer, Bench, ethernet, register};
use crate::port::{FrameClass, PortLink};
use hca_spec::cmd::reg;
use hca_spec::command::Status;
use hca_spec::{be32, be64};

fn bench() -> Bench {
    let mut b = Bench::initialized_with(ethernet());
    b.fw.ports.set_link(1, Some(PortLink::default()), &mut Vec::new());
    b
}

/// Reads or writes a group, with or without CLR.
fn ask(b: &mut Bench, write: bool, group: u32, clear: u32) -> Answer {
    let mut p = Ppcnt::new();
    p.set(Ppcnt::LOCAL_PORT, 1).set(Ppcnt::GRP, group).set(Ppcnt::CLR, clear);
    register(b, reg::PPCNT, write, p.bytes())
}

/// A counter of 64 bits.
fn at(r: &Answer, at: usize) -> u64 {
    be64(&r.output, 0x18 + at)
}

#[test]
fn groups_of_counters() {
    let mut b = bench();
    let c = &mut b.fw.ports.port_mut(1).unwrap().ethernet_mut().unwrap().counters;
    c.received(FrameClass::Unicast, 60, 5);
    c.received(FrameClass::Broadcast, 1514, 0);
    c.sent(FrameClass::Multicast, 100, 0);
    c.link_down_events = 3;
    let read = |b: &mut Bench, group, priority, clear| {
        let mut p = Ppcnt::new();
        p.set(Ppcnt::LOCAL_PORT, 1).set(Ppcnt::GRP, group).set(Ppcnt::PRIO_TC, priority);
        p.set(Ppcnt::CLR, clear);
        register(b, reg::PPCNT, false, p.bytes())
    };
    let r = read(&mut b, 0, 0, 0);
    assert_eq!((at(&r, 0), at(&r, 8), at(&r, 0x28), at(&r, 0x30), at(&r, 0x48)), (1, 2, 1582, 1, 1));
    let r = read(&mut b, 1, 0, 0);
    assert_eq!((at(&r, 0), at(&r, 8), at(&r, 0x28), at(&r, 0x50), at(&r, 0x58)), (1582, 1, 104, 1, 1));
    let r = read(&mut b, 2, 0, 0);
    assert_eq!((at(&r, 0x10), at(&r, 0x18), at(&r, 0x58), at(&r, 0x80)), (2, 1, 1, 1));
    let r = read(&mut b, 0x10, 5, 0);
    assert_eq!((at(&r, 0), at(&r, 0x20)), (64, 1));
    assert_eq!(read(&mut b, 0x10, 8, 0).status(), Status::BadParam);
    assert_eq!(be32(&read(&mut b, 0x12, 0, 0).output, 0x18 + 0xc0), 3);
    assert_eq!(be32(&read(&mut b, 0x20, 0, 1).output, 0x18), 3, "and clears");
    assert_eq!(at(&read(&mut b, 0, 0, 0), 8), 0);
    assert_eq!(read(&mut b, 0x3f, 0, 0).status(), Status::BadParam);
    assert_eq!(register(&mut b, reg::PPCNT, true, &[0; 0x100]).status(), Status::BadParam);
}

/// What BSDs read many times a second (groups 3 and 5), and what `mstlink -c` reads (0x16): they say what the other groups say.
#[test]
fn further_groups_of_ethernet() {
    let mut b = bench();
    let c = &mut b.fw.ports.port_mut(1).unwrap().ethernet_mut().unwrap().counters;
    c.received(FrameClass::Unicast, 60, 5);
    (c.fcs_errors, c.oversize, c.rx.pause, c.tx.pause, c.ecn_marked) = (1, 2, 3, 4, 5);
    for (octets, times) in [(60, 1), (1514, 2), (9000, 3)] {
        (0..times).for_each(|_| c.sent(FrameClass::Unicast, octets, 0));
    }
    let ieee = ask(&mut b, false, 0, 0);
    let r = ask(&mut b, false, 3, 0);
    assert_eq!((r.status(), r.output.len()), (Status::Ok, 0x10 + 0x100));
    assert_eq!((at(&r, 0x8), at(&r, 0x50), at(&r, 0x70), at(&r, 0x78)), (1, 2, 3, 4));
    assert_eq!(
        [0x8, 0x50, 0x70, 0x78].map(|place| at(&r, place)),
        [0x10, 0x60, 0x88, 0x90].map(|place| at(&ieee, place))
    );
    let r = ask(&mut b, false, 5, 0);
    let sizes: [u64; 10] = std::array::from_fn(|class| at(&r, 0x50 + 8 * class));
    assert_eq!((at(&r, 0), at(&r, 8), sizes), (0, 5, [1, 0, 0, 0, 0, 2, 0, 0, 0, 3]));
    let r = ask(&mut b, false, 0x16, 0);
    assert_eq!((at(&r, 0x8), at(&r, 0x10)), (64 * 8, 0));
    let none = 255 << 8 | 15;
    assert_eq!([0x60, 0x64, 0x68].map(|place| be32(&r.output, 0x18 + place)), [none; 3], "15E-255");
    for unknown in [4, 6, 7, 0x11, 0x13, 0x1a, 0x21, 0x22, 0x23, 0x3e] {
        assert_eq!(ask(&mut b, false, unknown, 0).status(), Status::BadParam, "{unknown:#x}");
    }
}

/// Written, they are cleared, one group or all of them (`mstlink --pc`); what comes back is what they were.
#[test]
fn counters_are_cleared_by_a_write() {
    for group in [0, 0x3f] {
        let mut b = bench();
        let c = &mut b.fw.ports.port_mut(1).unwrap().ethernet_mut().unwrap().counters;
        c.received(FrameClass::Unicast, 60, 5);
        assert_eq!(ask(&mut b, true, group, 0).status(), Status::BadParam, "what would be written");
        assert_eq!(at(&ask(&mut b, false, 0, 0), 8), 1);
        let r = ask(&mut b, true, group, 1);
        assert_eq!((r.status(), at(&r, 8)), (Status::Ok, u64::from(group == 0)));
        assert_eq!(at(&ask(&mut b, false, 0, 0), 8), 0);
        assert_eq!(ask(&mut b, true, 7, 1).status(), Status::BadParam, "no such group");
        assert_eq!(ask(&mut b, false, 0x3f, 1).status(), Status::BadParam, "all of them can't be read");
    }
}

/// An InfiniBand port has what its performance agent tells, and the groups of the physical layer.
#[test]
fn groups_of_infiniband() {
    let mut b = Bench::initialized();
    let c = &mut b.fw.ports.port_mut(1).unwrap().counters;
    c.rcv(400);
    c.rcv_multicast(40);
    c.xmit(4000);
    (c.symbol_errors, c.link_downed, c.link_error_recovery, c.rcv_errors, c.xmit_discards) =
        (44, 0x1ff, 3, 4, 5);
    (c.xmit_wait, c.vl15_dropped, c.rcv_constraint_errors) = (1 << 33, 7, 8);
    let r = ask(&mut b, false, 0x20, 0);
    assert_eq!((r.status(), r.output.len()), (Status::Ok, 0x10 + 0x100));
    let words: [u32; 11] = std::array::from_fn(|word| be32(&r.output, 0x18 + 4 * word));
    let errors = [44 << 16 | 3 << 8 | 0xff, 4 << 16, 5, 8 << 16, 7];
    assert_eq!((&words[..5], &words[5..]), (&errors[..], &[1000, 110, 1, 2, u32::MAX, 0][..]));
    let r = ask(&mut b, false, 0x21, 0);
    assert_eq!([0, 8, 0x10, 0x18, 0x30, 0x40, 0x58].map(|place| at(&r, place)), [44, 3, 0x1ff, 4, 5, 8, 7]);
    assert_eq!([0x60, 0x68, 0x70, 0x78, 0x80].map(|place| at(&r, place)), [1000, 110, 1, 2, 1 << 33]);
    assert_eq!([0x90, 0x98, 0xa0, 0xa8].map(|place| at(&r, place)), [1, 0, 1, 1]);
    let r = ask(&mut b, false, 0x12, 0);
    assert_eq!((at(&r, 8), be32(&r.output, 0x18 + 0xc0), be32(&r.output, 0x18 + 0xc4)), (44, 0x1ff, 3));
    let r = ask(&mut b, false, 0x16, 0);
    assert_eq!((at(&r, 8), at(&r, 0x10)), (440 * 8, 44));
    // 44 of 3520 bits.
    assert_eq!([0x60, 0x64].map(|place| be32(&r.output, 0x18 + place)), [255 << 8 | 15, 2 << 8 | 1]);
    let r = ask(&mut b, false, 0x22, 0);
    assert_eq!((r.status(), &r.output[0x18..]), (Status::Ok, &[0; 0xf8][..]));
    for unknown in [0, 1, 2, 3, 5, 0x10, 0x23, 0x3f] {
        assert_eq!(ask(&mut b, false, unknown, 0).status(), Status::BadParam, "{unknown:#x}");
    }
    assert_eq!(ask(&mut b, true, 0x20, 0).status(), Status::BadParam);
    assert_eq!(ask(&mut b, true, 0x3f, 1).status(), Status::Ok);
    assert_eq!(b.fw.ports.port(1).unwrap().counters, PortCounters::default());
}

#[test]
fn rates_of_errors() {
    for (errors, bits, rate) in [
        (0, 9, None),
        (1, 1, Some((1, 0))),
        (9, 10, Some((9, 1))),
        (1, 1000, Some((1, 3))),
        (2, 1001, Some((1, 3))),
        (5, 0, Some((5, 0))),
        (50, 2, Some((9, 0))),
        (1, u64::MAX, Some((5, 20))),
        (u64::MAX, u64::MAX, Some((1, 0))),
    ] {
        assert_eq!(error_rate(errors, bits), rate, "{errors} of {bits}");
    }
}
