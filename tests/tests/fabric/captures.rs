//! Captures of every kind of packet, judged by tshark and by a reader in Python that knows nothing of us.

use std::collections::BTreeSet;
use std::fs;

use hca_driver::wqe::Datagram;
use hca_driver::{Access, Bus, CqConfig, SendOp, SendRequest, Sge};
use hca_model::link::Faults;
use hca_model::link_layer::{Packet, Path, ib::Address};
use hca_model::wire::{DethRepr, Repr};
use hca_model::{HcaId, Ps, World};
use hca_spec::ids::{Lid, Mkey, Qpn};
use hca_spec::mad::{CLASS_SUBN_LID_ROUTED, METHOD_GET, Mad, attr};
use hca_spec::qpc::ServiceType;
use hca_spec::wire::{Operation, Transport};
use hca_tests::fabric::Plan;
use hca_tests::files::Temporary;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::packets::{COMPLAINTS, Line, checksums, tshark};
use hca_tests::pair::{Options, PORT, Pair, wait_active};
use hca_tests::{rig, worlds};
use hca_trace::{Observer, pcapng};

/// A capture in a file of its own.
struct Capture {
    simulation: Simulation,
    file: Temporary,
    writer: pcapng::Writer<fs::File>,
}

impl Capture {
    fn new(name: &str, faults: Faults) -> Self {
        Self::of(name, Simulation::new(worlds::two_with(faults, 1)))
    }

    /// Of every port.
    fn of(name: &str, simulation: Simulation) -> Self {
        let interface = |world: &World, port| pcapng::Interface {
            port,
            kind: world.port_kind(port),
            name: world.port_name(port),
        };
        let named = |world: &World| world.ports().map(|port| interface(world, port)).collect();
        let ports: Vec<_> = simulation.world(|world, _| named(world));
        simulation.world(|world, _| ports.iter().for_each(|p| world.capture_packets(p.port)));
        let file = Temporary::new(&format!("{name}.pcapng"));
        let out = fs::File::create(file.path()).expect("a file");
        let writer = pcapng::Writer::new(out, &ports).expect("written");
        Self { simulation, file, writer }
    }

    fn take(&mut self) -> usize {
        let packets = self.simulation.world(|world, _| world.drain_packets());
        let count = packets.len();
        packets.into_iter().for_each(|p| self.writer.packet(p).expect("written"));
        count
    }

    fn checked(&mut self) -> Vec<Line> {
        self.take();
        self.writer.flush().expect("written");
        checksums(self.file.path())
    }

    /// What tshark prints of fields of each packet.
    fn dissected(&mut self, arguments: &[&str]) -> String {
        self.take();
        self.writer.flush().expect("written");
        tshark(self.file.path(), arguments)
    }
}

/// Sends, writes, reads and atomics of one packet and of several, with every extended header.
fn connected(simulation: &Simulation, options: &Options) {
    let hcas = vec![rig::open(simulation, 0), rig::open(simulation, 1)];
    let mut pair: Pair<ModelBus> = Pair::connect(hcas, options).expect("the queue pairs connect");
    let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
    let reliable = options.service == ServiceType::Rc;
    let mut ops = vec![
        SendOp::Send { imm: None },
        SendOp::Send { imm: Some(7) },
        SendOp::Write { address, rkey, imm: None },
        SendOp::Write { address, rkey, imm: Some(9) },
    ];
    if reliable {
        ops.push(SendOp::Read { address, rkey });
        ops.push(SendOp::FetchAdd { address, rkey, add: 1 });
        ops.push(SendOp::CompareSwap { address, rkey, compare: 1, swap: 2 });
    }
    let (mut number, mut received) = (0, 0);
    for op in ops {
        let atomic = matches!(op, SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. });
        for len in if atomic { vec![8] } else { vec![0, 1, 2, 3, 1000, 2 * rig::MTU, 3 * rig::MTU + 5] } {
            pair.recv(1, number, 0, 8192);
            let sge = [pair.ends[0].sge(0, len)];
            let list = if len > 0 { &sge[..] } else { &[] };
            pair.send(0, &SendRequest::new(number, op, list));
            pair.sent_ok(0, number);
            number += 1;
        }
    }
    simulation.run(Ps::from_us(100));
    while pair.try_received(1).is_some() {
        received += 1;
    }
    assert!(received > 0);
    rig::close(pair);
}

/// Datagrams: local, with a GRH, to a group.
fn datagrams(capture: &mut Capture) {
    const QKEY: u32 = 0x1234;
    let simulation = capture.simulation.clone();
    let mut hcas = [rig::open(&simulation, 0), rig::open(&simulation, 1)];
    let mut ends = Vec::new();
    for hca in &mut hcas {
        wait_active(hca).expect("PortInfo");
        let pd = hca.alloc_pd().expect("ALLOC_PD");
        let cq = hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
        let qp = rig::datagrams(hca, pd, (&cq, &cq), QKEY);
        let memory = hca.bus_mut().dma_alloc(8192, 4096).expect("memory");
        let mr = hca.register(pd, &memory, 8192, Access::LOCAL_WRITE).expect("CREATE_MKEY");
        ends.push((cq, qp, memory, mr));
    }
    let (lid, gid) = (hcas[1].lid(PORT).expect("LID"), hcas[1].gid(PORT, 0).expect("GID"));
    let group = hca_spec::ids::Gid::new(0xff12_401b_ffff_0000, 0x1);
    let qpn = ends[1].1.number();
    let targets = [
        Datagram { qpn, qkey: QKEY, lid, sl: 0, gid: None },
        Datagram { qpn, qkey: QKEY, lid, sl: 3, gid: Some(gid) },
        Datagram { qpn: Qpn(0xff_ffff), qkey: QKEY, lid: Lid(0xc001), sl: 0, gid: Some(group) },
    ];
    let sge = Sge { address: ends[0].3.address, len: 1001, key: ends[0].3.key };
    for (i, to) in targets.into_iter().enumerate() {
        for imm in [None, Some(5)] {
            let request = [sge];
            let request = SendRequest::new(i as u64, SendOp::Datagram { to, imm }, &request);
            ends[0].1.post_send(hcas[0].bus_mut(), &request).expect("post_send");
            simulation.run(Ps::from_us(100));
        }
    }
}

/// What XRC adds to the headers, and a management packet.
fn others(capture: &mut Capture) {
    let build = |vl: u8, repr: &Repr, payload: &[u8]| {
        let path = Path::from(Address { vl, ..Address::between(Lid(2), Lid(1)) });
        let fill = |buf: &mut [u8]| {
            buf.copy_from_slice(payload);
            Ok::<(), std::convert::Infallible>(())
        };
        Packet::build(&path, repr, payload.len(), fill).expect("a packet")
    };
    let mut smp = Mad::new();
    smp.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED).set(Mad::CLASS_VERSION, 1);
    smp.set(Mad::METHOD, METHOD_GET).set(Mad::ATTRIBUTE_ID, attr::NODE_INFO);
    let datagram = Repr { transport: Transport::Ud, deth: Some(DethRepr::default()), ..Repr::default() };
    let xrc = Repr {
        transport: Transport::Xrc,
        xrceth: Some(hca_spec::ids::Srqn(5)),
        dest_qp: Qpn(9),
        ..Repr::default()
    };
    let invalidate = Repr {
        operation: Operation::SendOnlyInval,
        ieth: Some(Mkey(0x1234)),
        dest_qp: Qpn(9),
        ..Repr::default()
    };
    for packet in
        [build(15, &datagram, smp.bytes()), build(0, &xrc, b"xrc!"), build(0, &invalidate, b"12345678")]
    {
        capture.simulation.world(|world, now| world.inject_packet(now, HcaId(0), packet));
    }
}

fn everything(name: &str) -> Capture {
    let mut capture = Capture::new(name, Faults::default());
    for service in [ServiceType::Rc, ServiceType::Uc] {
        for global in [false, true] {
            connected(&capture.simulation, &Options { service, global, ..Options::default() });
        }
    }
    datagrams(&mut capture);
    others(&mut capture);
    capture
}

#[test]
fn checksums_are_good_and_times_are_the_model_s() {
    let mut capture = everything("checksums");
    let lines = capture.checked();
    assert!(lines.len() > 200, "{}", lines.len());
    for line in &lines {
        assert!(["hca0:1", "hca1:1"].contains(&line.port.as_str()), "{line:?}");
        assert_eq!(line.verdict, "good", "{line:?}");
    }
    assert!(lines.is_sorted_by_key(|l| l.at), "packets are in the order of time");
    assert!(lines.last().is_some_and(|l| Ps::from_ns(l.at) <= capture.simulation.now()));
    // What leaves one port arrives at the other.
    let count = |port: &str, sent| lines.iter().filter(|l| l.port == port && l.sent == sent).count();
    for (port, sent) in [("hca0:1", true), ("hca1:1", false), ("hca0:1", false)] {
        assert!(count(port, sent) > 50);
    }
}

/// A packet on its way through a switch is seen at four ports, the later the farther it has come, and is the same
/// everywhere but for its lane.
#[test]
fn ports_of_switches_are_captured() {
    let world = Plan::around(&[2], 0).world(1);
    let mut capture = Capture::of("switch", Simulation::new(world));
    connected(&capture.simulation, &Options::default());
    let lines = capture.checked();
    assert!(lines.iter().all(|l| l.verdict == "good"));
    let of = |port: &str, sent| {
        // The longest data packets: what the subnet manager says is shorter.
        let of_port = lines.iter().filter(|l| l.port == port && l.sent == sent && l.length > rig::MTU as u64);
        of_port.map(|l| (l.at, l.length)).collect::<Vec<_>>()
    };
    let way = [("hca0:1", true), ("switch0:1", false), ("switch0:2", true), ("hca1:1", false)];
    let seen = way.map(|(port, sent)| of(port, sent));
    assert!(seen[0].len() > 20, "{lines:?}");
    for pair in seen.windows(2) {
        assert_eq!(pair[0].len(), pair[1].len());
        for (before, after) in pair[0].iter().zip(&pair[1]) {
            assert_eq!(before.1, after.1, "the same packet");
        }
    }
    assert!(seen[0].iter().zip(&seen[3]).all(|(left, came)| left.0 < came.0));
    let bad = capture.dissected(&["-Y", COMPLAINTS]);
    assert!(bad.is_empty(), "tshark complains:\n{}", bad.lines().take(20).collect::<Vec<_>>().join("\n"));
}

/// Ports are chosen by name, in any of the ways they can be named.
#[test]
fn ports_are_chosen_by_name() {
    let observed = |ports: &[&str]| {
        let simulation = Simulation::new(Plan::around(&[2], 1).world(1));
        let file = Temporary::new("chosen.pcapng");
        let pcap_port = ports.iter().map(|p| p.to_string()).collect();
        let options =
            hca_trace::Options { pcap: Some(file.path().to_owned()), pcap_port, ..Default::default() };
        let observer = simulation.world(|world, _| Observer::new(&options, world));
        let observer = observer.map_err(|why| why.to_string())?;
        connected(&simulation, &Options::default());
        simulation.world(|world, _| observer.finish(world)).expect("a file");
        let lines = checksums(file.path());
        Ok::<_, String>(lines.into_iter().map(|l| l.port).collect::<BTreeSet<_>>())
    };
    for (wanted, seen) in [
        (&[][..], &["hca0:1", "hca1:1"][..]),
        (&["hca1:1"], &["hca1:1"]),
        (&["hca0", "switch0:2"], &["hca0:1", "switch0:2"]),
        (&["switch0/1"], &["switch0:1"]),
        (&["switch0"], &["switch0:1", "switch0:2"]),
    ] {
        assert_eq!(observed(wanted).expect("ports").iter().collect::<Vec<_>>(), seen, "{wanted:?}");
    }
    let error = observed(&["switch0:9"]).expect_err("there is no such port");
    assert!(
        error.contains("switch0:9") && error.contains("hca1:1, switch0:1, switch0:2, switch0:3"),
        "{error}"
    );
}

/// The judge finds what is broken: a link that flips bits.
#[test]
fn a_broken_packet_is_seen() {
    let mut capture = Capture::new("broken", Faults { corrupt: 0.3, ..Faults::default() });
    connected(&capture.simulation, &Options::default());
    let lines = capture.checked();
    assert!(lines.iter().any(|l| !l.sent && l.verdict.contains("VCRC")), "some arrive broken");
    assert!(lines.iter().filter(|l| l.sent).all(|l| l.verdict == "good"), "but all leave good");
}

#[test]
fn tshark_dissects_every_packet() {
    let mut capture = everything("tshark");
    let bad = capture.dissected(&["-Y", COMPLAINTS]);
    assert!(bad.is_empty(), "tshark complains:\n{}", bad.lines().take(20).collect::<Vec<_>>().join("\n"));
    let fields = [
        "-T",
        "fields",
        "-e",
        "infiniband.bth.opcode",
        "-e",
        "infiniband.lrh.lnh",
        "-e",
        "frame.interface_name",
    ];
    let table = capture.dissected(&fields);
    let seen = |opcode: u32| {
        table.lines().any(|l| {
            l.split('\t').next().is_some_and(|o| o.parse() == Ok(opcode) || o == format!("{opcode:#04x}"))
        })
    };
    // RC: all but the ones that only DC has; UC: sends and writes; UD; XRC.
    let reliable = (0x00..=0x14).chain([0x17]);
    let rest = (0x20..=0x2b).chain([0x64, 0x65, 0xa4]);
    for opcode in reliable.chain(rest) {
        assert!(seen(opcode), "no packet with opcode {opcode:#x}");
    }
    assert!(table.contains("hca0:1") && table.contains("hca1:1"));
    let detail = capture.dissected(&["-Y", "infiniband.mad.attributeid == 0x11", "-V"]);
    assert!(detail.contains("NodeInfo") || detail.contains("Subnet Management"), "{detail}");
}
