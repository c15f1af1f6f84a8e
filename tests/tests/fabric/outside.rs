//! What a process at the other end of a link may say that keeps to no rule: it gets what the rules give it.

use hca_driver::SendRequest;
use hca_model::link::{LinkMessage, LinkPacket, Session};
use hca_model::link_layer::Packet;
use hca_model::{HcaId, LinkOffer, PortLink, Ps, TunnelEvent, TunnelId, World};
use hca_spec::wire::Operation;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::joined::passed;
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::{lan, rig, worlds};

const NEAR: TunnelId = TunnelId(10);
const FAR: TunnelId = TunnelId(11);

/// Two adapters, each with a cable that leaves the world.
fn apart() -> World {
    worlds::many(2, vec![worlds::cable(HcaId(0), NEAR), worlds::cable(HcaId(1), FAR)], 1)
}

/// What has left the world, as it comes to another process.
fn left(simulation: &Simulation) -> Vec<TunnelEvent> {
    let mut events = Vec::new();
    simulation.world(|world, _| world.take_leaving(|event| events.push(passed(event))));
    events
}

/// It comes in again by the other tunnel.
fn carry(simulation: &Simulation, events: Vec<TunnelEvent>) {
    for TunnelEvent { tunnel, message, at } in events {
        let other = if tunnel == NEAR { FAR } else { NEAR };
        simulation.world(|world, _| world.deliver(other, at, message));
    }
}

/// Time goes on, and everything passes.
fn run(simulation: &Simulation, us: u64) {
    for _ in 0..us {
        simulation.run(Ps::from_us(1));
        carry(simulation, left(simulation));
    }
}

fn connected(simulation: &Simulation, options: &Options) -> Pair<ModelBus> {
    carry(simulation, left(simulation));
    let hcas = vec![rig::open(simulation, 0), rig::open(simulation, 1)];
    run(simulation, 20_000);
    Pair::connect(hcas, options).expect("connected")
}

/// Packets that left by the first adapter's link, and what else did.
fn packets(events: Vec<TunnelEvent>) -> (Vec<TunnelEvent>, Vec<TunnelEvent>) {
    events.into_iter().partition(|e| e.tunnel == NEAR && matches!(e.message, LinkMessage::Packet(_)))
}

fn packet(event: &TunnelEvent) -> &LinkPacket {
    let LinkMessage::Packet(packet) = &event.message else { panic!("{event:?}") };
    packet
}

/// Who gives no credits and says that it has received what has not left yet gets what was in the buffer when the write was
/// posted, not what is there when credits come.
#[test]
fn what_is_acknowledged_early_is_what_it_was() {
    const MTU: usize = 4096;
    const MEMORY: usize = 1 << 20;
    let mut world = apart();
    world.set_trains_out(true);
    let simulation = Simulation::new(world);
    let options = Options { memory: MEMORY, mtu: 5, ..Options::default() };
    let mut pair = connected(&simulation, &options);
    let far = pair.ends[1].mr;
    let write = |pair: &mut Pair<ModelBus>, number, len| {
        let sge = [pair.ends[0].sge(0, len)];
        pair.send(0, &SendRequest::write(number, &sge, far.address, far.key));
    };
    let before = pattern(7, MEMORY);
    pair.fill(0, 0, &before);
    // How many packets leave without credits, and what an acknowledgement looks like.
    write(&mut pair, 1, MEMORY);
    let mut free = Vec::new();
    let mut other = Vec::new();
    for _ in 0..200 {
        simulation.run(Ps::from_us(1));
        let (mut packets, mut others) = packets(left(&simulation));
        free.append(&mut packets);
        other.append(&mut others);
    }
    let count = free.len();
    assert!((4..200).contains(&count), "{count} packets leave");
    carry(&simulation, other);
    carry(&simulation, free);
    let mut answer = None;
    for _ in 0..400 {
        simulation.run(Ps::from_us(1));
        let events = left(&simulation);
        let mut back =
            events.iter().filter(|e| e.tunnel == FAR && matches!(e.message, LinkMessage::Packet(_)));
        answer = back.next_back().map(|event| packet(event).clone()).or(answer);
        carry(&simulation, events);
    }
    assert!(pair.try_sent(0).is_some_and(|(number, c)| number == 1 && c.status.is_ok()));
    let answer = answer.expect("an acknowledgement");
    // The last packets of this one wait in the port, three of them as they are in memory.
    let len = (count + 4) * MTU;
    write(&mut pair, 2, len);
    let mut sent = Vec::new();
    for _ in 0..200 {
        simulation.run(Ps::from_us(1));
        sent.extend(packets(left(&simulation)).0);
    }
    assert_eq!(sent.len(), count);
    assert!(simulation.world(|world, _| world.trains_begun()) > 0);
    let first = packet(&sent[0]).packet.parse().expect("a good packet").1.psn;
    let (path, mut repr, _) = answer.packet.parse().expect("a good packet");
    assert_eq!(repr.operation, Operation::Acknowledge);
    repr.psn = first.add(count as u32 + 3);
    let forged = LinkPacket { packet: Packet::build_empty(&path, &repr), ..answer };
    let now = simulation.now();
    simulation.world(|world, _| world.deliver(NEAR, now, LinkMessage::Packet(forged)));
    simulation.run(Ps::from_us(5));
    assert!(pair.try_sent(0).is_some_and(|(number, c)| number == 2 && c.status.is_ok()));
    // Its owner has the buffer back.
    pair.fill(0, 0, &vec![0xee; MEMORY]);
    let session = packet(&sent[0]).session.reversed();
    let credit = LinkMessage::Credit { lane: 0, blocks: 10_000, session };
    simulation.world(|world, now| world.deliver(NEAR, now, credit));
    for _ in 0..20 {
        simulation.run(Ps::from_us(1));
        sent.extend(packets(left(&simulation)).0);
    }
    assert_eq!(sent.len(), count + 4);
    for (i, event) in sent.iter().enumerate() {
        let (_, _, payload) = packet(event).packet.parse().expect("a good packet");
        assert!(payload == &before[i * MTU..][..MTU], "packet {i} of {}", sent.len());
    }
}

/// What was sent before the link trained again is void, but takes its room until it is there: who trains the link again and again has no more
/// on its way than who doesn't.
#[test]
fn what_is_void_takes_its_room() {
    let simulation = Simulation::new(apart());
    let mut pair = connected(&simulation, &Options::default());
    let far = pair.ends[1].mr;
    let sge = [pair.ends[0].sge(0, 1024)];
    pair.send(0, &SendRequest::write(1, &sge, far.address, far.key));
    simulation.run(Ps::from_us(5));
    let sent = packets(left(&simulation)).0.remove(0);
    let refused = || simulation.world(|w, _| w.port_counters(HcaId(1).into())).expect("counters").rcv_errors;
    const FLOOD: u32 = 5000;
    let flood = || {
        let before = refused();
        // None is there before all of this is over.
        let at = simulation.now() + Ps::from_us(500);
        for _ in 0..FLOOD {
            simulation.world(|world, _| world.deliver(FAR, at, sent.message.clone()));
        }
        FLOOD - (refused() - before)
    };
    let taken = flood();
    assert!(taken > 0 && taken < FLOOD / 2, "{taken} taken");
    for session in 1..10 {
        let light = hca_model::link::Light {
            session,
            offer: Some(LinkOffer::up_to(PortLink::default())),
            ..Default::default()
        };
        simulation.world(|world, now| world.deliver(FAR, now, LinkMessage::Light(light)));
        simulation.run(Ps::from_us(2));
        assert_eq!(flood(), 0, "in session {session}");
    }
    // When they have come, there is room again.
    simulation.run(Ps::from_ms(1));
    assert_eq!(flood(), taken);
}

/// Frames that say that they take credits are frames like others, and packets of another kind of link are none.
#[test]
fn frames_are_frames_whatever_they_say() {
    let config = worlds::config(2, vec![worlds::cable(HcaId(0), NEAR), worlds::cable(HcaId(1), FAR)], 1);
    let simulation = Simulation::new(lan::ethernet(config));
    run(&simulation, 20_000);
    let dropped = || simulation.world(|w, _| w.ethernet_counters(HcaId(1)).expect("of Ethernet").rx.discards);
    let session = Session { near: 1, far: 1 };
    let deliver = |packet: Packet, credits| {
        simulation.run(Ps::from_us(2));
        simulation.world(|world, now| {
            let packet = LinkPacket { packet, tail: Ps(1), credits, session };
            world.deliver(FAR, now, LinkMessage::Packet(packet));
        });
    };
    left(&simulation);
    // More than may be on its way at once.
    const FRAMES: u64 = 3000;
    for _ in 0..FRAMES {
        deliver(Packet::frame(vec![0xff; 1500]), 24);
    }
    simulation.run(Ps::from_us(2));
    let frames = simulation.world(|w, _| w.ethernet_counters(HcaId(1)).expect("of Ethernet").rx.frames);
    assert_eq!((frames, dropped()), (FRAMES, 0));
    assert!(left(&simulation).is_empty(), "nobody is given credits");
    deliver(Packet::from_bytes(vec![0; 2000]), 0);
    assert_eq!(dropped(), 1);
}
