//! A second front end, without a socket and without a protocol: our driver comes up through it, and the adapter behaves
//! as it does over vfio-user. So the server's engine, memory and interrupts know nothing of vfio-user.

use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Config, Hca, SendRequest};
use hca_server::front_end::FrontEnd;
use hca_server::memory::{MapError, Range};
use hca_server::pci::Space;
use hca_server::vfio_user::VfioUser;
use hca_tests::direct::{Direct, DirectBus, Kind, MEMORY, WINDOW};
use hca_tests::pair::{Options, PORT, Pair, pattern, wait_active};
use hca_tests::worlds::TWO_HOSTS;

const KINDS: [Kind; 4] = [Kind::Descriptor, Kind::Beside, Kind::Questions, Kind::Later];
const ONE: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n";

fn open(server: &Direct, place: usize, kind: Kind) -> Hca<DirectBus> {
    Hca::open(server.bus(place, kind), Config::default()).expect("the adapter comes up")
}

/// The counts of an answer about one adapter.
fn counts(of: &serde_json::Value) -> Vec<u64> {
    of.as_object().expect("counts").values().filter_map(serde_json::Value::as_u64).collect()
}

#[test]
fn the_driver_comes_up_and_leaves_nothing() {
    for kind in KINDS {
        let server = Direct::start(ONE);
        // One host after the other.
        for command_events in [true, false] {
            let config = Config { command_events, ..Config::default() };
            let mut hca = Hca::open(server.bus(0, kind), config).expect("the adapter comes up");
            let identity = hca.bus_mut().read(Space::Config, 0, 4);
            assert_eq!(identity, [0xb3, 0x15, 0x13, 0x10]);
            wait_active(&mut hca).expect("PortInfo");
            let bus = hca.close().expect("teardown");
            assert!(bus.interrupts(0) > 0 || !command_events, "{kind:?}");
            assert_eq!(bus.interrupts(1), 0, "{kind:?}");
            assert_eq!(bus.questions().0 > 0, !matches!(kind, Kind::Descriptor | Kind::Beside));
        }
        let left = server.stop("resources");
        let hca = &left["hcas"][0];
        assert_eq!((&hca["name"], &hca["attached"]), (&"a/hca0".into(), &false.into()));
        for when in ["now", "last_teardown"] {
            let counts = counts(&hca[when]);
            assert!(!counts.is_empty() && counts.iter().all(|n| *n == 0), "{kind:?}: {left}");
        }
    }
}

#[test]
fn data_between_hosts_of_either_kind() {
    for (near, far) in KINDS.into_iter().flat_map(|near| KINDS.map(|far| (near, far))) {
        let server = Direct::start(TWO_HOSTS);
        let hcas = vec![open(&server, 0, near), open(&server, 1, far)];
        let mut pair =
            Pair::connect(hcas, &Options { memory: 1 << 20, ..Options::default() }).expect("connect");
        for (i, size) in [0, 1, 1023, 1025, 100_000].into_iter().enumerate() {
            pair.deliver_and_read(&pattern(i as u64, size), 1 << 19);
        }
        pair.close().expect("teardown");
    }
}

/// A stream of writes into memory that is taken away in the middle: once that is answered, nothing is accessed.
#[test]
fn memory_taken_away_is_left_alone() {
    const SIZE: usize = 1 << 20;
    for kind in KINDS {
        let server = Direct::start(TWO_HOSTS);
        let hcas = vec![open(&server, 0, Kind::Descriptor), open(&server, 1, kind)];
        let options = Options { memory: SIZE, mtu: 5, ..Options::default() };
        let mut pair = Pair::connect(hcas, &options).expect("connect");
        pair.fill(0, 0, &pattern(1, SIZE));
        let (near, far) = ([pair.ends[0].sge(0, SIZE)], pair.ends[1].mr);
        for i in 0..100 {
            let request = SendRequest::write(i, &near, far.address, far.key);
            pair.ends[0].qp.queue_send(&request).expect("queue_send");
        }
        pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
        // The first write has ended, others are on their way.
        pair.sent_ok(0, 0);
        let host = pair.hcas[1].bus_mut();
        let part = Range::Part { iova: WINDOW, size: 4096 };
        assert_eq!(host.unmap(part), Err(MapError::Partial));
        host.unmap(Range::Part { iova: WINDOW, size: MEMORY as u64 }).expect("it is taken away");
        let before = host.memory();
        let failed = (0..1_000_000).find_map(|_| {
            let found = pair.try_sent(0).filter(|(_, completion)| completion.status.is_err());
            pair.hcas[0].bus_mut().read(Space::Bar0, 0, 4);
            found
        });
        assert!(failed.is_some(), "{kind:?}: the stream ends with an error");
        let host = pair.hcas[1].bus_mut();
        assert_eq!(host.questions().1, 0, "{kind:?}: asked for memory that is gone");
        assert!(host.memory() == before, "{kind:?}: memory that is gone was written");
        // It can come back in the other way.
        let other = if kind == Kind::Descriptor { Kind::Questions } else { Kind::Descriptor };
        host.map(other).expect("mapped again");
        assert_eq!(host.map(other), Err(MapError::Overlap));
        wait_active(&mut pair.hcas[1]).expect("commands work again");
    }
}

/// A reset through the front end is one of the function: the driver finds the adapter as after power-on.
#[test]
fn reset() {
    let server = Direct::start(ONE);
    let mut hca = open(&server, 0, Kind::Descriptor);
    hca.alloc_pd().expect("ALLOC_PD");
    let bus = hca.bus_mut();
    bus.reset();
    assert_eq!(bus.read(Space::Config, 4, 2), [0, 0], "bus mastering is off");
    drop(hca);
    let hca = open(&server, 0, Kind::Descriptor);
    hca.close().expect("teardown");
    let metrics = server.stop("metrics");
    let hca = &metrics["hcas"][0];
    assert_eq!((&hca["clients"], &hca["resets"]), (&2.into(), &1.into()), "{metrics}");
}

/// Adapters of one server, on one link, may have different front ends.
#[test]
fn front_ends_mix() {
    let dir = std::env::temp_dir().join(format!("hca-tests-mix-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let socket = dir.join("b.sock");
    let server = Direct::start_with(
        TWO_HOSTS,
        |hca| {
            let listen = || VfioUser::listen(&socket).expect("a socket");
            (hca.socket == "b-hca0.sock").then(|| Box::new(listen()) as Box<dyn FrontEnd>)
        },
        None,
    );
    let mut direct = open(&server, 0, Kind::Questions);
    let bus = VfioUserBus::connect(&socket, MEMORY, 4).expect("the client connects");
    let mut other = Hca::open(bus, Config::default()).expect("the adapter comes up");
    wait_active(&mut direct).expect("PortInfo");
    wait_active(&mut other).expect("PortInfo");
    assert_ne!(direct.lid(PORT).expect("LID"), other.lid(PORT).expect("LID"));
    direct.close().expect("teardown");
    other.close().expect("teardown");
    let metrics = server.stop("metrics");
    assert!((0..2).all(|i| metrics["hcas"][i]["clients"] == 1), "{metrics}");
    std::fs::remove_dir_all(dir).expect("the folder goes");
}

/// A host that leaves what its adapter asks for without an answer holds nobody: another host's work ends, and its own
/// registers answer. When it answers, its own work goes on.
#[test]
fn an_answer_that_is_withheld_holds_nobody() {
    let server = Direct::start(TWO_HOSTS);
    let hcas = vec![open(&server, 0, Kind::Later), open(&server, 1, Kind::Descriptor)];
    let mut pair = Pair::connect(hcas, &Options::default()).expect("connect");
    let data = pattern(1, 1000);
    pair.fill(0, 0, &data);
    let (near, far) = (pair.ends[0].mr, pair.ends[1].mr);
    pair.hcas[0].bus_mut().withhold(true);
    let sge = [pair.ends[0].sge(0, 1000)];
    pair.send(0, &SendRequest::write(1, &sge, far.address, far.key));
    while pair.hcas[0].bus_mut().waiting() == 0 {
        std::thread::yield_now();
    }
    // The other host's own work: commands, and messages to itself.
    let mut alone = Pair::connect(vec![pair.hcas.remove(1)], &Options::default()).expect("connect");
    alone.fill(0, 0, &data);
    let there = alone.ends[1].mr;
    for i in 0..50 {
        let sge = [alone.ends[0].sge(0, 1000)];
        alone.send(0, &SendRequest::write(i, &sge, there.address, there.key));
        alone.sent_ok(0, i);
    }
    assert!(alone.ends[1].bytes(0, 1000) == data);
    let host = pair.hcas[0].bus_mut();
    assert_eq!(host.read(Space::Config, 0, 4), [0xb3, 0x15, 0x13, 0x10]);
    host.read(Space::Bar0, 0, 4);
    assert!(pair.try_sent(0).is_none());
    pair.hcas[0].bus_mut().withhold(false);
    pair.hcas.push(alone.hcas.remove(0));
    pair.sent_ok(0, 1);
    assert!(pair.ends[1].bytes(0, 1000) == data);
    let sge = [pair.ends[1].sge(2000, 1000)];
    pair.send(1, &SendRequest::read(2, &sge, near.address, near.key));
    pair.sent_ok(1, 2);
    assert!(pair.ends[1].bytes(2000, 1000) == data);
}
