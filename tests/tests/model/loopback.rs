//! Our driver on the model, in process: bring-up, commands, and data of every kind, on an adapter connected to
//! itself and on two over a link.

use hca_driver::wqe::SendOp;
use hca_driver::{Access, Config, Hca, SendRequest, Sge};
use hca_model::World;
use hca_model::{HcaId, Ps};
use hca_spec::cqe::CqeOpcode;
use hca_spec::mad::{NodeInfo, PortInfo, port_state};
use hca_spec::qpc::ServiceType;
use hca_tests::in_process::Simulation;
use hca_tests::lan;
use hca_tests::pair::{Options, PORT, Pair, pattern, wait_active};
use hca_tests::rig::{HOST_MEMORY, MTU, close, everywhere, open};
use hca_tests::worlds;

#[test]
pub(crate) fn up_and_down_again() {
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

/// Queue pairs with forced loopback reach their own port on both link layers and in both services: without a LID, a RoCE address
/// or a cable, with none of the addresses in the path, and nothing goes out.
#[test]
pub(crate) fn forced() {
    for (ethernet, service) in
        [(false, ServiceType::Rc), (false, ServiceType::Uc), (true, ServiceType::Rc), (true, ServiceType::Uc)]
    {
        let mut config = worlds::config(2, vec![worlds::cable(HcaId(0), HcaId(1))], 1);
        config.subnet_manager = false;
        let world = if ethernet { lan::ethernet(config) } else { World::new(config).expect("a topology") };
        let simulation = Simulation::new(world);
        simulation.world(|world, now| world.set_cable(now, 0, false));
        let hca = open(&simulation, 0);
        let options = Options { forced: true, service, ..Options::default() };
        let mut pair = Pair::connect(vec![hca], &options).expect("the queue pairs connect");
        if !ethernet {
            let info = pair.hcas[0].port_info(PORT).expect("PortInfo");
            assert_eq!((info.get(PortInfo::LID), info.get(PortInfo::PORT_STATE)), (0, port_state::DOWN));
        }
        for (i, len) in [1, 5 * MTU].into_iter().enumerate() {
            let data = pattern(i as u64, len);
            pair.fill(0, 0, &data);
            pair.recv(1, 7, 0, len);
            let sge = pair.ends[0].sge(0, len);
            pair.send(0, &SendRequest::send(1, &[sge]));
            pair.sent_ok(0, 1);
            pair.received_ok(1, 7);
            assert!(pair.ends[1].bytes(0, len) == data, "{len} bytes");
            let back = pair.ends[1].mr;
            pair.send(0, &SendRequest::write(2, &[sge], back.address + 0x8000, back.key));
            pair.sent_ok(0, 2);
            if service == ServiceType::Rc {
                let there = pair.ends[0].sge(0x4000, len);
                pair.send(0, &SendRequest::read(3, &[there], back.address + 0x8000, back.key));
                pair.sent_ok(0, 3);
                assert!(pair.ends[0].bytes(0x4000, len) == data, "{len} bytes back");
            }
        }
        close(pair);
    }
}

#[test]
pub(crate) fn commands_overlap() {
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
pub(crate) fn sends_of_every_size() {
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
pub(crate) fn writes_and_reads_of_every_size() {
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
pub(crate) fn every_mtu() {
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
pub(crate) fn gather_and_scatter_across_pages() {
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
pub(crate) fn inline_data() {
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
pub(crate) fn unsignalled_requests_complete_with_the_next_signalled() {
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
pub(crate) fn rings_wrap() {
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
pub(crate) fn both_directions_at_once() {
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
