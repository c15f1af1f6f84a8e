//! Our driver on the model, in process: an adapter connected to itself, and two over a link.

use hca_driver::qp::QpConfig;
use hca_driver::wqe::{Datagram, SendOp};
use hca_driver::{Access, Config, CqConfig, Dma, Event, Hca, InitAttr, RtsAttr, SendRequest, Sge};
use hca_model::{HcaId, Ps};
use hca_spec::cqe::{CqeOpcode, Syndrome};
use hca_spec::eqe::{EventType, cq_syndrome};
use hca_spec::ids::{Mkey, Qpn};
use hca_spec::mad::NodeInfo;
use hca_spec::qpc::{QpState, Qpc};
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, PORT, Pair, pattern, wait_active};
use hca_tests::worlds;

/// DMA memory of a host.
const HOST_MEMORY: usize = 64 << 20;
/// Path MTU of code 3.
const MTU: usize = 1024;

fn open(simulation: &Simulation, hca: usize) -> Hca<ModelBus> {
    Hca::open(simulation.bus(HcaId(hca), HOST_MEMORY), Config::default()).expect("the adapter comes up")
}

fn loopback(options: &Options) -> Pair<ModelBus> {
    let simulation = Simulation::new(worlds::one());
    let hca = open(&simulation, 0);
    Pair::connect(vec![hca], options).expect("the queue pairs connect")
}

fn linked(options: &Options, loss: f64, seed: u64) -> Pair<ModelBus> {
    let simulation = Simulation::new(worlds::two(loss, seed));
    let hcas = vec![open(&simulation, 0), open(&simulation, 1)];
    Pair::connect(hcas, options).expect("the queue pairs connect")
}

/// Closes everything and checks that the adapter kept nothing.
fn close(pair: Pair<ModelBus>) {
    for bus in pair.close().expect("teardown") {
        assert_eq!(bus.free_memory(), HOST_MEMORY, "DMA memory was leaked");
        worlds::assert_nothing_held(bus.simulation(), bus.hca());
    }
}

/// Both on one adapter and over a link.
fn everywhere(options: &Options, test: impl Fn(&mut Pair<ModelBus>)) {
    for mut pair in [loopback(options), linked(options, 0.0, 1)] {
        test(&mut pair);
        close(pair);
    }
}

#[test]
fn up_and_down_again() {
    let simulation = Simulation::new(worlds::one());
    for command_events in [true, false, true] {
        let bus = simulation.bus(HcaId(0), HOST_MEMORY);
        let mut hca =
            Hca::open(bus, Config { command_events, ..Config::default() }).expect("the adapter comes up");
        assert!(hca.board_id().expect("QUERY_ADAPTER").iter().all(|b| *b == 0 || b.is_ascii_graphic()));
        let node = hca.node_info(PORT).expect("NodeInfo");
        assert_eq!((node.get(NodeInfo::NODE_TYPE), node.get(NodeInfo::NUM_PORTS)), (1, 1));
        let gid = hca.gid(PORT, 0).expect("GID");
        assert_eq!(hca_spec::be64(&gid.0, 8), node.get(NodeInfo::PORT_GUID));
        assert_eq!(hca.pkey(PORT, 0), Ok(0xffff));
        wait_active(&mut hca).expect("PortInfo");
        assert_ne!(hca.lid(PORT).expect("PortInfo").0, 0, "the subnet manager gave no LID");
        assert_eq!(hca.recovered_commands(), 0);
        let before = hca.health();
        simulation.run(Ps::from_ms(1500));
        assert_ne!(hca.health().counter, before.counter);
        assert_eq!(hca.health().syndrome, 0);
        let bus = hca.close().expect("teardown");
        assert_eq!(bus.free_memory(), HOST_MEMORY);
        worlds::assert_nothing_held(&simulation, HcaId(0));
    }
}

#[test]
fn commands_overlap() {
    let simulation = Simulation::new(worlds::one());
    let mut hca = open(&simulation, 0);
    use hca_spec::cmd::ObjectOut;
    use hca_spec::command::Opcode;
    for _ in 0..3 {
        let slots: Vec<_> = (0..31)
            .map(|_| hca.begin(Opcode::AllocPd, 0, vec![0; 16], 16).expect("a slot is free"))
            .collect();
        assert!(hca.begin(Opcode::AllocPd, 0, vec![0; 16], 16).is_err());
        let mut pds: Vec<u32> = Vec::new();
        for slot in slots.into_iter().rev() {
            let out = hca.finish(slot).expect("ALLOC_PD");
            pds.push(ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER));
        }
        pds.sort_unstable();
        pds.dedup();
        assert_eq!(pds.len(), 31, "the same number was given twice");
        for pd in pds {
            hca.dealloc_pd(hca_spec::ids::Pd(pd)).expect("DEALLOC_PD");
        }
    }
    assert_eq!(hca.recovered_commands(), 0);
    hca.close().expect("teardown");
}

/// Sizes around every boundary the transport has.
const SIZES: [usize; 11] =
    [0, 1, 63, 64, MTU - 1, MTU, MTU + 1, 2 * MTU, 10 * MTU + 1, (1 << 20) - 1, 1 << 20];

#[test]
fn sends_of_every_size() {
    everywhere(&Options { memory: 4 << 20, ..Options::default() }, |pair| {
        for (i, size) in SIZES.into_iter().enumerate() {
            let (data, room) = (pattern(i as u64, size), size + 64);
            pair.fill(0, 5, &data);
            pair.fill(1, 0, &vec![0xee; room + 3]);
            pair.recv(1, 70, 3, room);
            let sge = pair.ends[0].sge(5, size);
            let op = SendOp::Send { imm: (i % 2 == 0).then_some(0xdead_0000 | i as u32) };
            pair.send(0, &SendRequest::new(7, op, &[sge]));
            let sent = pair.sent_ok(0, 7);
            let received = pair.received_ok(1, 70);
            assert_eq!(received.byte_len as usize, size);
            assert_eq!(received.imm, (i % 2 == 0).then_some(0xdead_0000 | i as u32));
            assert!(received.timestamp <= sent.timestamp && received.timestamp > 0);
            assert!(pair.ends[1].bytes(3, size) == data, "{size} bytes were garbled");
            assert!(pair.ends[1].bytes(3 + size, 64).iter().all(|b| *b == 0xee), "{size} bytes overflowed");
            assert_eq!(pair.ends[1].bytes(0, 3), [0xee; 3]);
        }
    });
}

#[test]
fn writes_and_reads_of_every_size() {
    everywhere(&Options { memory: 4 << 20, ..Options::default() }, |pair| {
        let far = pair.ends[1].mr;
        for (i, size) in SIZES.into_iter().enumerate() {
            let data = pattern(100 + i as u64, size);
            pair.fill(0, 0, &data);
            pair.fill(1, 0, &vec![0xee; size + 64]);
            let sge = pair.ends[0].sge(0, size);
            pair.send(0, &SendRequest::write(1, &[sge], far.address + 9, far.key));
            pair.sent_ok(0, 1);
            assert!(pair.ends[1].bytes(9, size) == data, "write of {size} bytes");
            assert!(pair.ends[1].bytes(9 + size, 55).iter().all(|b| *b == 0xee));

            let back = 2 << 20;
            pair.fill(0, back - 8, &vec![0x55; size + 16]);
            let sge = pair.ends[0].sge(back, size);
            pair.send(0, &SendRequest::read(2, &[sge], far.address + 9, far.key));
            let done = pair.sent_ok(0, 2);
            assert_eq!(done.byte_len as usize, size, "bytes read");
            assert!(pair.ends[0].bytes(back, size) == data, "read of {size} bytes");
            assert_eq!(pair.ends[0].bytes(back - 8, 8), [0x55; 8]);
            assert_eq!(pair.ends[0].bytes(back + size, 8), [0x55; 8]);
        }
        // Writes without immediate data leave the peer's queue alone.
        assert_eq!(pair.try_received(1).map(|r| r.0), None);
        pair.recv(1, 33, 0, 16);
        let sge = pair.ends[0].sge(0, 3000);
        let op = SendOp::Write { address: far.address, rkey: far.key, imm: Some(0x1234_5678) };
        pair.send(0, &SendRequest::new(3, op, &[sge]));
        pair.sent_ok(0, 3);
        let received = pair.received_ok(1, 33);
        assert_eq!((received.opcode, received.imm), (Some(CqeOpcode::RespWrImm), Some(0x1234_5678)));
        assert_eq!(received.byte_len, 3000);
        assert!(pair.ends[1].bytes(0, 3000) == pair.ends[0].bytes(0, 3000));
    });
}

#[test]
fn every_mtu() {
    for mtu in 1..=5 {
        let bytes = 128usize << mtu;
        everywhere(&Options { mtu, ..Options::default() }, |pair| {
            for size in [bytes - 1, bytes, bytes + 1, 3 * bytes] {
                let data = pattern(size as u64, size);
                pair.fill(0, 0, &data);
                pair.recv(1, 0, 1, size);
                let sge = pair.ends[0].sge(0, size);
                pair.send(0, &SendRequest::send(0, &[sge]));
                pair.sent_ok(0, 0);
                pair.received_ok(1, 0);
                assert!(pair.ends[1].bytes(1, size) == data);
            }
        });
    }
}

/// Lists of odd pieces, through a key whose pages are shuffled and whose start is unaligned.
#[test]
fn gather_and_scatter_across_pages() {
    everywhere(&Options::default(), |pair| {
        const PAGES: usize = 8;
        let mut keys = Vec::new();
        for end in 0..2 {
            let (home, pd) = (pair.ends[end].home, pair.ends[end].pd);
            let base = pair.ends[end].mr.address;
            let order = [3u64, 0, 7, 1, 6, 2, 5, 4];
            let pages: Vec<u64> = order.iter().map(|p| base + p * 4096).collect();
            // The virtual address has nothing in common with the bus address but the place in the page.
            let (address, len) = (0x7f00_0000_0000 + 100, (PAGES * 4096 - 100) as u64);
            let mr = pair.hcas[home]
                .register_pages(pd, &pages, 12, address, len, Access::ALL)
                .expect("CREATE_MKEY with 8 pages");
            keys.push((mr, order));
        }
        let mut byte = |end: usize, at: usize, value: Option<u8>| -> u8 {
            let (_, order) = keys[end];
            let within = at + 100;
            let physical = order[within / 4096] as usize * 4096 + within % 4096;
            if let Some(value) = value {
                pair.fill(end, physical, &[value]);
            }
            pair.ends[end].bytes(physical, 1)[0]
        };
        let data = pattern(5, 20_000);
        for (i, value) in data.iter().enumerate() {
            byte(0, 50 + i, Some(*value));
        }
        let cut = |end: usize, start: usize, lens: &[usize]| -> Vec<Sge> {
            let mr = keys[end].0;
            let mut at = start;
            let sges = lens.iter().map(|len| {
                let sge = Sge { address: mr.address + at as u64, len: *len as u32, key: mr.key };
                at += len;
                sge
            });
            sges.collect()
        };
        let gather = cut(0, 50, &[1, 3994, 3, 5000, 2, 4096, 6000, 904]);
        let scatter = cut(1, 7, &[4000, 1, 10_000, 5999]);
        assert_eq!(pair.ends[1].qp.post_recv(11, &scatter), Ok(()));
        pair.send(0, &SendRequest::send(10, &gather));
        pair.sent_ok(0, 10);
        assert_eq!(pair.received_ok(1, 11).byte_len, 20_000);
        let byte = |end: usize, at: usize| -> u8 {
            let within = at + 100;
            pair.ends[end].bytes(keys[end].1[within / 4096] as usize * 4096 + within % 4096, 1)[0]
        };
        let got: Vec<u8> = (0..20_000).map(|i| byte(1, 7 + i)).collect();
        assert!(got == data, "gathered data is garbled");

        // The same by RDMA read into a scattered list: swap the ends' roles.
        let far = keys[0].0;
        let into = cut(1, 100, &[17, 4096, 8000, 7887]);
        pair.send(1, &SendRequest::read(12, &into, far.address + 50, far.key));
        pair.sent_ok(1, 12);
        let byte = |at: usize| -> u8 {
            let within = at + 100;
            pair.ends[1].bytes(keys[1].1[within / 4096] as usize * 4096 + within % 4096, 1)[0]
        };
        let got: Vec<u8> = (0..20_000).map(|i| byte(100 + i)).collect();
        assert!(got == data, "data read is garbled");
        for (end, (mr, _)) in keys.into_iter().enumerate() {
            let home = pair.ends[end].home;
            pair.hcas[home].deregister(mr).expect("DESTROY_MKEY");
        }
    });
}

#[test]
fn inline_data() {
    everywhere(&Options::default(), |pair| {
        let far = pair.ends[1].mr;
        for size in [0, 1, 12, 13, 28, 29, 60, 200, 900] {
            let data = pattern(size as u64, size);
            pair.fill(1, 0, &[0xee; 1000]);
            pair.recv(1, 2, 0, 1000);
            pair.send(0, &SendRequest::send(1, &[]).inline(&data));
            pair.sent_ok(0, 1);
            assert_eq!(pair.received_ok(1, 2).byte_len as usize, size);
            assert_eq!(pair.ends[1].bytes(0, size), data);
            assert_eq!(pair.ends[1].bytes(size, 8), [0xee; 8]);
            pair.send(0, &SendRequest::write(3, &[], far.address + 2000, far.key).inline(&data));
            pair.sent_ok(0, 3);
            assert_eq!(pair.ends[1].bytes(2000, size), data);
        }
    });
}

#[test]
fn unsignalled_requests_complete_with_the_next_signalled() {
    everywhere(&Options::default(), |pair| {
        let far = pair.ends[1].mr;
        for round in 0..100u64 {
            for i in 0..20 {
                let request = SendRequest::write(i, &[], far.address + i * 8, far.key);
                let data = (round * 100 + i).to_be_bytes();
                let request = request.inline(&data);
                pair.send(0, &if i < 19 { request.unsignaled() } else { request });
            }
            pair.sent_ok(0, 19);
            assert_eq!(pair.ends[0].qp.send_room(), 256, "all are retired");
            assert!(pair.try_sent(0).is_none(), "an unsignalled request was reported");
            for i in 0..20u64 {
                let got = pair.ends[1].bytes(i as usize * 8, 8);
                assert_eq!(got, (round * 100 + i).to_be_bytes());
            }
        }
    });
}

/// Rings of a few entries go round many times, with requests of one and two basic blocks.
#[test]
fn rings_wrap() {
    let options = Options { cqes: 8, recv_requests: 4, send_blocks: 8, ..Options::default() };
    everywhere(&options, |pair| {
        for i in 0..3000u64 {
            let size = 1 + (i % 90) as usize;
            let data = pattern(i, size);
            pair.recv(1, i, (i % 4) as usize * 128, 128);
            pair.send(0, &SendRequest::send(i, &[]).inline(&data));
            pair.sent_ok(0, i);
            assert_eq!(pair.received_ok(1, i).byte_len as usize, size);
            assert_eq!(pair.ends[1].bytes((i % 4) as usize * 128, size), data);
        }
    });
}

/// Both directions at once, with everything mixed.
#[test]
fn both_directions_at_once() {
    everywhere(&Options::default(), |pair| {
        let mut done = [[0u64; 2]; 2];
        for round in 0..50u64 {
            for end in 0..2 {
                let far = pair.ends[1 - end].mr;
                pair.recv(end, round, 4096, 4096);
                let sge = pair.ends[end].sge(0, 2500);
                pair.send(end, &SendRequest::write(3 * round, &[sge], far.address + 16384, far.key));
                let into = pair.ends[end].sge(8192, 3000);
                pair.send(end, &SendRequest::read(3 * round + 1, &[into], far.address, far.key));
                pair.send(end, &SendRequest::send(3 * round + 2, &[sge]));
            }
            while done.iter().any(|d| d[0] < 3 * (round + 1) || d[1] < round + 1) {
                for (end, [sends, receives]) in done.iter_mut().enumerate() {
                    while let Some((wr_id, completion)) = pair.try_sent(end) {
                        assert_eq!((wr_id, completion.status), (*sends, Ok(())));
                        *sends += 1;
                    }
                    while let Some((wr_id, completion)) = pair.try_received(end) {
                        assert_eq!((wr_id, completion.status), (*receives, Ok(())));
                        *receives += 1;
                    }
                }
                pair.hcas[0].wait(None);
            }
        }
    });
}

#[test]
fn receiver_not_ready_is_waited_for() {
    everywhere(&Options::default(), |pair| {
        let data = pattern(1, 5000);
        pair.fill(0, 0, &data);
        let sge = pair.ends[0].sge(0, 5000);
        pair.send(0, &SendRequest::send(1, &[sge]));
        pair.send(0, &SendRequest::send(2, &[]).inline(b"second"));
        let simulation = pair.hcas[0].bus_mut().simulation().clone();
        simulation.run(Ps::from_ms(20));
        assert_eq!(pair.try_sent(0), None, "there was nothing to receive into");
        pair.recv(1, 11, 0, 8192);
        pair.recv(1, 12, 8192, 8192);
        pair.sent_ok(0, 1);
        pair.sent_ok(0, 2);
        assert_eq!(pair.received_ok(1, 11).byte_len, 5000);
        assert_eq!(pair.received_ok(1, 12).byte_len, 6);
        assert!(pair.ends[1].bytes(0, 5000) == data);
        assert_eq!(pair.ends[1].bytes(8192, 6), b"second");
    });
}

#[test]
fn receiver_not_ready_for_too_long_is_an_error() {
    let rts = RtsAttr { rnr_retries: 2, ..RtsAttr::default() };
    everywhere(&Options { rts, ..Options::default() }, |pair| {
        pair.send(0, &SendRequest::send(1, &[]).inline(b"x"));
        pair.send(0, &SendRequest::send(2, &[]).inline(b"y").unsignaled());
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::RnrRetryExceeded)));
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (2, Some(Syndrome::WorkRequestFlushed)));
        assert_state(pair, 0, QpState::Error);
        assert_state(pair, 1, QpState::Rts);
    });
}

fn assert_state(pair: &mut Pair<ModelBus>, end: usize, state: QpState) {
    let home = pair.ends[end].home;
    let qpc = pair.hcas[home].query_qp(&pair.ends[end].qp).expect("QUERY_QP");
    assert_eq!(QpState::from_bits(qpc.get(Qpc::STATE)), Some(state), "end {end}");
}

/// The peer does not answer at all: its queue pair was reset.
#[test]
fn a_silent_peer_is_an_error_after_the_retries() {
    let rts = RtsAttr { timeout: 8, retries: 3, ..RtsAttr::default() };
    everywhere(&Options { rts, ..Options::default() }, |pair| {
        let home = pair.ends[1].home;
        let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[1].qp);
        hca.qp_to_reset(qp).expect("2RST");
        pair.send(0, &SendRequest::send(1, &[]).inline(b"x"));
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::TransportRetryExceeded)));
        assert_state(pair, 0, QpState::Error);
    });
}

#[test]
fn error_flushes_everything_in_order() {
    everywhere(&Options::default(), |pair| {
        for i in 0..10 {
            pair.recv(0, 100 + i, 0, 64);
        }
        let home = pair.ends[0].home;
        let (hca, qp) = (&mut pair.hcas[home], &mut pair.ends[0].qp);
        hca.qp_to_error(qp).expect("2ERR");
        // Requests posted in the error state are flushed as well.
        for i in 0..5 {
            pair.send(0, &SendRequest::send(i, &[]).inline(&[1; 50]).unsignaled());
        }
        for i in 10..12 {
            pair.recv(0, 100 + i, 0, 64);
        }
        for i in 0..5 {
            let (wr_id, completion) = pair.sent(0);
            assert_eq!((wr_id, completion.syndrome()), (i, Some(Syndrome::WorkRequestFlushed)));
        }
        for i in 0..12 {
            let (wr_id, completion) = pair.received(0);
            assert_eq!((wr_id, completion.syndrome()), (100 + i, Some(Syndrome::WorkRequestFlushed)));
        }
        assert_state(pair, 0, QpState::Error);
        assert!(pair.try_sent(0).is_none() && pair.try_received(0).is_none());
    });
}

/// After 2RST nothing more is reported, and the same queue pair can be connected again.
#[test]
fn reset_forgets_and_the_pair_reconnects() {
    let options = Options::default();
    everywhere(&options, |pair| {
        for round in 0..3 {
            for i in 0..7 {
                pair.recv(0, i, 0, 64);
                pair.send(0, &SendRequest::send(i, &[]).inline(b"never received"));
            }
            for end in 0..2 {
                let home = pair.ends[end].home;
                pair.hcas[home].qp_to_reset(&mut pair.ends[end].qp).expect("2RST");
            }
            let simulation = pair.hcas[0].bus_mut().simulation().clone();
            simulation.run(Ps::from_ms(100));
            assert!(pair.ends.iter().all(|e| e.send_cq.peek().is_none() && e.recv_cq.peek().is_none()));
            for end in 0..2 {
                pair.to_rts(end, &options).expect("connect again");
            }
            pair.recv(1, 40 + round, 0, 64);
            pair.send(0, &SendRequest::send(30 + round, &[]).inline(b"hello"));
            pair.sent_ok(0, 30 + round);
            pair.received_ok(1, 40 + round);
            assert_eq!(pair.ends[1].bytes(0, 5), b"hello");
        }
    });
}

/// What a remote access may get wrong; all are answered the same way.
#[test]
fn bad_remote_access_is_refused() {
    type Spoil = fn(u64, Mkey, u64) -> (u64, Mkey);
    let cases: [(&str, Spoil); 5] = [
        ("wrong variant of the key", |address, key, _| (address, Mkey(key.0 ^ 1))),
        ("a key that does not exist", |address, _, _| (address, Mkey(0x00ab_cd00))),
        ("one byte beyond the end", |address, key, len| (address + len - 99, key)),
        ("one byte before the start", |address, key, _| (address - 1, key)),
        ("around the end of the address space", |_, key, _| (u64::MAX - 50, key)),
    ];
    for read in [false, true] {
        for (what, spoil) in cases {
            everywhere(&Options::default(), |pair| {
                let far = pair.ends[1].mr;
                let (address, key) = spoil(far.address, far.key, far.len);
                pair.fill(1, 0, &[0xee; 1 << 16]);
                let sge = [pair.ends[0].sge(0, 100)];
                let request = if read {
                    SendRequest::read(1, &sge, address, key)
                } else {
                    SendRequest::write(1, &sge, address, key)
                };
                pair.recv(0, 9, 0, 10);
                pair.send(0, &request.unsignaled());
                let (wr_id, completion) = pair.sent(0);
                assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::RemoteAccess)), "{what}");
                let (wr_id, completion) = pair.received(0);
                assert_eq!((wr_id, completion.syndrome()), (9, Some(Syndrome::WorkRequestFlushed)), "{what}");
                assert_state(pair, 0, QpState::Error);
                assert_state(pair, 1, QpState::Error);
                assert!(pair.ends[1].bytes(0, 1 << 16).iter().all(|b| *b == 0xee), "{what}: memory changed");
                // The responder's host is told by an event.
                let home = pair.ends[1].home;
                let qpn = pair.ends[1].qp.number();
                let kinds = [EventType::AccessError as u8, EventType::InvalidRequest as u8];
                let told = drain_events(&mut pair.hcas[home])
                    .iter()
                    .any(|e| matches!(e, Event::Qp { qpn: q, kind } if *q == qpn && kinds.contains(kind)));
                assert!(told, "{what}: no event at the responder");
            });
        }
    }
}

fn drain_events(hca: &mut Hca<ModelBus>) -> Vec<Event> {
    hca.bus_mut().simulation().clone().run(Ps::from_us(100));
    let mut events = Vec::new();
    while let Some(event) = hca.poll_event().expect("events") {
        events.push(event);
    }
    events
}

/// The key's and the queue pair's rights are both needed.
#[test]
fn rights_are_checked() {
    let rights = [
        (Access::LOCAL_WRITE | Access::REMOTE_READ, false),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, true),
    ];
    for (access, read) in rights {
        everywhere(&Options { access, ..Options::default() }, |pair| {
            let far = pair.ends[1].mr;
            let sge = [pair.ends[0].sge(0, 100)];
            let (good, bad) = (
                SendRequest::write(1, &sge, far.address, far.key),
                SendRequest::read(1, &sge, far.address, far.key),
            );
            let (good, bad) = if read { (good, bad) } else { (bad, good) };
            pair.send(0, &good);
            pair.sent_ok(0, 1);
            pair.send(0, &bad);
            let (_, completion) = pair.sent(0);
            let expected = [Some(Syndrome::RemoteAccess), Some(Syndrome::RemoteInvalidRequest)];
            assert!(expected.contains(&completion.syndrome()), "{completion:?}");
        });
    }
}

#[test]
fn bad_local_access_is_an_error() {
    everywhere(&Options::default(), |pair| {
        let near = pair.ends[0].mr;
        let sge = Sge { address: near.address + near.len - 10, len: 11, key: near.key };
        pair.send(0, &SendRequest::send(1, &[sge]));
        let (wr_id, completion) = pair.sent(0);
        assert_eq!((wr_id, completion.syndrome()), (1, Some(Syndrome::LocalProtection)));
        assert_state(pair, 0, QpState::Error);
    });
}

/// A message longer than the receive request: an error at both ends.
#[test]
fn too_long_for_the_receiver() {
    everywhere(&Options::default(), |pair| {
        pair.fill(1, 0, &[0xee; 4096]);
        pair.recv(1, 5, 0, 1500);
        let sge = pair.ends[0].sge(0, 3000);
        pair.send(0, &SendRequest::send(1, &[sge]));
        let (_, completion) = pair.sent(0);
        assert_eq!(completion.syndrome(), Some(Syndrome::RemoteInvalidRequest));
        let (wr_id, completion) = pair.received(1);
        assert_eq!((wr_id, completion.syndrome()), (5, Some(Syndrome::LocalLength)));
        assert!(pair.ends[1].bytes(1500, 2000).iter().all(|b| *b == 0xee), "the receive overflowed");
        assert_state(pair, 0, QpState::Error);
        assert_state(pair, 1, QpState::Error);
    });
}

#[test]
fn completion_queue_overrun_is_an_event() {
    everywhere(&Options { cqes: 4, ..Options::default() }, |pair| {
        for i in 0..6 {
            pair.send(0, &SendRequest::new(i, SendOp::Nop, &[]));
        }
        let cqn = pair.ends[0].send_cq.number();
        let home = pair.ends[0].home;
        let events = drain_events(&mut pair.hcas[home]);
        let overrun = Event::CqError { cqn, syndrome: cq_syndrome::OVERRUN as u8 };
        assert_eq!(events.iter().filter(|e| **e == overrun).count(), 1, "{events:?}");
        // What was written before is intact.
        for i in 0..4 {
            pair.sent_ok(0, i);
        }
        assert!(pair.try_sent(0).is_none());
    });
}

/// One event per arming; at once if something is there; solicited-only waits for a solicited one.
#[test]
fn arming() {
    const VECTOR: u16 = 3;
    for solicited_only in [false, true] {
        let simulation = Simulation::new(worlds::two(0.0, 1));
        let mut hcas = vec![open(&simulation, 0), open(&simulation, 1)];
        let mut eq = hcas[1].create_eq(64, VECTOR).expect("CREATE_EQ");
        eq.arm(hcas[1].bus_mut());
        let pair = Pair::connect(hcas, &Options::default()).expect("connect");
        // A second receive queue, whose completions have an event queue.
        let Pair { mut hcas, ends: [near, mut far] } = pair;
        let config = CqConfig { entries: 64, eq: Some(eq.number()) };
        let cq = hcas[1].create_cq(config).expect("CREATE_CQ");
        let qp = hcas[1].create_qp(&QpConfig::rc(far.pd, &far.send_cq, &cq)).expect("CREATE_QP");
        let old_qp = std::mem::replace(&mut far.qp, qp);
        let old_cq = std::mem::replace(&mut far.recv_cq, cq);
        hcas[1].destroy_qp(old_qp).expect("DESTROY_QP");
        hcas[1].destroy_cq(old_cq).expect("DESTROY_CQ");
        let mut pair = Pair { hcas, ends: [near, far] };
        pair.hcas[0].qp_to_reset(&mut pair.ends[0].qp).expect("2RST");
        for end in 0..2 {
            pair.to_rts(end, &Options::default()).expect("connect");
        }
        for i in 0..20 {
            pair.recv(1, i, 0, 64);
        }
        let cqn = pair.ends[1].recv_cq.number();
        let fired = || simulation.interrupts(HcaId(1), VECTOR);
        let mut expected = fired();
        let send = |pair: &mut Pair<ModelBus>, solicited: bool| {
            let request = SendRequest::send(0, &[]).inline(b"x");
            pair.send(0, &if solicited { request.solicited() } else { request });
            pair.sent_ok(0, 0);
            simulation.run(Ps::from_us(50));
        };

        // Not armed: no event.
        send(&mut pair, true);
        assert_eq!((eq.poll(), fired()), (None, expected));
        // Armed beyond a completion that is there: an event at once.
        pair.ends[1].recv_cq.arm(pair.hcas[1].bus_mut(), solicited_only);
        simulation.run(Ps::from_us(50));
        expected += 1;
        assert_eq!((eq.poll(), fired()), (Some(Event::Completion(cqn)), expected));
        pair.ends[1].recv_cq.event_taken();
        eq.arm(pair.hcas[1].bus_mut());
        assert!(pair.received_ok(1, 0).solicited);

        // Armed, nothing there: none; then one for many.
        pair.ends[1].recv_cq.arm(pair.hcas[1].bus_mut(), solicited_only);
        simulation.run(Ps::from_us(50));
        assert_eq!((eq.poll(), fired()), (None, expected));
        send(&mut pair, false);
        if solicited_only {
            assert_eq!((eq.poll(), fired()), (None, expected), "a plain completion fired a solicited arming");
        }
        send(&mut pair, true);
        send(&mut pair, true);
        expected += 1;
        assert_eq!((eq.poll(), fired()), (Some(Event::Completion(cqn)), expected));
        assert_eq!(eq.poll(), None, "one event per arming");
        pair.ends[1].recv_cq.event_taken();
        for (i, solicited) in [(1, false), (2, true), (3, true)] {
            assert_eq!(pair.received_ok(1, i).solicited, solicited);
        }

        // The event queue itself is not armed: the event comes, the interrupt only with the arming.
        pair.ends[1].recv_cq.arm(pair.hcas[1].bus_mut(), solicited_only);
        send(&mut pair, true);
        assert_eq!(fired(), expected);
        eq.arm(pair.hcas[1].bus_mut());
        simulation.run(Ps::from_us(50));
        expected += 1;
        assert_eq!((fired(), eq.poll()), (expected, Some(Event::Completion(cqn))));
        pair.received_ok(1, 4);

        let Pair { mut hcas, ends: [near, far] } = pair;
        hcas[1].destroy_qp(far.qp).expect("DESTROY_QP");
        hcas[1].destroy_cq(far.recv_cq).expect("DESTROY_CQ");
        hcas[1].destroy_eq(eq).expect("DESTROY_EQ");
        hcas[0].destroy_qp(near.qp).expect("DESTROY_QP");
    }
}

#[test]
fn datagrams() {
    const QKEY: u32 = 0x2233_4455;
    const GRH: usize = 40;
    let simulation = Simulation::new(worlds::two(0.0, 1));
    let mut hcas = [open(&simulation, 0), open(&simulation, 1)];
    let mut nodes = Vec::new();
    for hca in &mut hcas {
        wait_active(hca).expect("PortInfo");
        let pd = hca.alloc_pd().expect("ALLOC_PD");
        let cq = hca.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
        let mut qp = hca.create_qp(&QpConfig::ud(pd, &cq, &cq)).expect("CREATE_QP");
        hca.qp_to_init(&mut qp, &InitAttr { qkey: QKEY, ..InitAttr::default() }).expect("INIT");
        hca.ud_to_rtr(&mut qp).expect("RTR");
        hca.qp_to_rts(&mut qp, &RtsAttr::default()).expect("RTS");
        use hca_driver::Bus;
        let memory = hca.bus_mut().dma_alloc(8192, 4096).expect("memory");
        let mr = hca.register(pd, &memory, 8192, Access::LOCAL_WRITE).expect("CREATE_MKEY");
        nodes.push((cq, qp, memory, mr));
    }
    let lids = [hcas[0].lid(PORT).expect("LID"), hcas[1].lid(PORT).expect("LID")];
    let [a, b] = &mut nodes[..] else { unreachable!() };
    let data = pattern(3, 1500);
    a.2.write(0, &data);
    let sge = Sge { address: a.3.address, len: 1500, key: a.3.key };
    for (qkey, arrives) in [(QKEY, true), (QKEY + 1, false), (QKEY, true)] {
        let to = Datagram { qpn: b.1.number(), qkey, lid: lids[1], sl: 0, gid: None };
        if arrives {
            let room = Sge { address: b.3.address, len: 4096, key: b.3.key };
            b.1.post_recv(5, &[room]).expect("post_recv");
        }
        a.1.post_send(hcas[0].bus_mut(), &SendRequest::new(1, SendOp::Datagram { to, imm: Some(9) }, &[sge]))
            .expect("post_send");
        simulation.run(Ps::from_us(200));
        let sent = a.0.poll().expect("send completion");
        assert_eq!((a.1.finish(&sent), sent.status), (Some(1), Ok(())));
        let Some(received) = b.0.poll() else {
            assert!(!arrives, "a datagram was lost");
            continue;
        };
        assert!(arrives, "a datagram with a wrong Q_Key arrived");
        assert_eq!((b.1.finish(&received), received.status), (Some(5), Ok(())));
        assert_eq!((received.byte_len as usize, received.imm), (1500 + GRH, Some(9)));
        assert_eq!((received.source_qpn, received.source_lid), (a.1.number(), lids[0]));
        assert!(!received.has_grh);
        let mut got = vec![0; 1500];
        b.2.read(GRH, &mut got);
        assert!(got == data);
    }
    let nobody = Datagram { qpn: Qpn(0xffff00), qkey: QKEY, lid: lids[1], sl: 0, gid: None };
    a.1.post_send(
        hcas[0].bus_mut(),
        &SendRequest::new(2, SendOp::Datagram { to: nobody, imm: None }, &[sge]),
    )
    .expect("post_send");
    simulation.run(Ps::from_us(200));
    assert_eq!(a.0.poll().map(|c| c.status), Some(Ok(())), "a datagram to nobody is sent all the same");
    for (hca, (cq, qp, memory, mr)) in hcas.iter_mut().zip(nodes) {
        hca.destroy_qp(qp).expect("DESTROY_QP");
        hca.destroy_cq(cq).expect("DESTROY_CQ");
        hca.deregister(mr).expect("DESTROY_MKEY");
        drop(memory);
    }
}

/// On a link that loses 5 % of the packets everything arrives, in order, once.
#[test]
fn losses_are_repaired() {
    const MESSAGES: u64 = 400;
    for seed in 1..=4 {
        let rts = RtsAttr { timeout: 8, ..RtsAttr::default() };
        let options = Options { rts, memory: 1 << 20, recv_requests: 512, ..Options::default() };
        let mut pair = linked(&options, 0.05, seed);
        let far = pair.ends[1].mr;
        let slot = 8192;
        let sizes: Vec<usize> = (0..MESSAGES).map(|i| (i * 613 % 5000) as usize).collect();
        for i in 0..MESSAGES {
            pair.recv(1, i, (i % 64) as usize * slot, slot);
        }
        let (mut sent, mut done, mut received) = (0u64, 0u64, 0u64);
        let kind = |i: u64| i % 4;
        let receives = |i: u64| kind(i) != 3;
        let mut expected: Vec<u64> = (0..MESSAGES).filter(|i| receives(*i)).collect();
        expected.reverse();
        while done < MESSAGES || !expected.is_empty() {
            while sent < MESSAGES && sent < done + 16 {
                let at = (sent % 32) as usize * slot;
                let data = pattern(seed << 32 | sent, sizes[sent as usize]);
                let sge = [pair.ends[0].sge(at, data.len())];
                match kind(sent) {
                    // A read of what the peer has at its memory's end.
                    3 => pair.send(0, &SendRequest::read(sent, &sge, far.address + (900 << 10), far.key)),
                    _ => {
                        pair.fill(0, at, &data);
                        let op = SendOp::Send { imm: Some(sent as u32) };
                        pair.send(0, &SendRequest::new(sent, op, &sge));
                    }
                }
                sent += 1;
            }
            while let Some((wr_id, completion)) = pair.try_sent(0) {
                assert_eq!((wr_id, completion.status), (done, Ok(())), "seed {seed}");
                done += 1;
            }
            while let Some((place, completion)) = pair.try_received(1) {
                let message = expected.pop().expect("more messages than were sent");
                assert_eq!(
                    (completion.status, completion.imm),
                    (Ok(()), Some(message as u32)),
                    "seed {seed}"
                );
                assert_eq!(place, received, "receive requests are used in order");
                let got = pair.ends[1].bytes((place % 64) as usize * slot, completion.byte_len as usize);
                let data = pattern(seed << 32 | message, sizes[message as usize]);
                assert!(got == data, "message {message} was garbled, seed {seed}");
                received += 1;
            }
            pair.hcas[0].wait(None);
        }
        assert!(pair.try_received(1).is_none() && pair.try_sent(0).is_none());
        close(pair);
    }
}
