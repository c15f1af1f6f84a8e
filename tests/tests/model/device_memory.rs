//! Device memory: pieces that the host reaches through BAR0, and everybody else by keys.

use hca_driver::device_memory::DeviceMemory;
use hca_driver::{Access, Bus, Mr, SendOp, SendRequest, Sge};
use hca_model::personality::Personality;
use hca_model::timing::Profile;
use hca_model::{FirmwareConfig, HcaConfig, HcaId, Ps, World, WorldConfig};
use hca_spec::caps;
use hca_spec::cqe::Syndrome;
use hca_spec::uar::SEND_DOORBELL;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{close, open};
use hca_tests::worlds;

/// Bytes of the piece.
const LEN: u32 = 3 * 4096;

/// Two queue pairs of one adapter that has device memory, a piece, and its key in the domain of end 1.
fn rig() -> (Pair<ModelBus>, DeviceMemory, Mr) {
    rig_of("connectx5")
}

/// One adapter of that kind.
pub(crate) fn world_of(kind: &'static str) -> World {
    let personality = Personality::named(kind).expect("there is one");
    let memory_page_faults = personality.pages_by_memory();
    let firmware = FirmwareConfig::with_guid(0x0002_c903_00a0_0001);
    world_with(FirmwareConfig { personality, memory_page_faults, ..firmware }, kind)
}

/// One adapter, with the times of a kind.
pub(crate) fn world_with(firmware: FirmwareConfig, kind: &'static str) -> World {
    let config = WorldConfig {
        hcas: vec![HcaConfig { name: "hca0".into(), firmware, timing: None }],
        switches: Vec::new(),
        links: Vec::new(),
        subnet_manager: true,
        management_key: None,
        seed: 1,
        profile: Profile::named(kind).expect("there is one"),
    };
    World::new(config).expect("a valid topology")
}

fn rig_of(kind: &'static str) -> (Pair<ModelBus>, DeviceMemory, Mr) {
    let simulation = Simulation::new(world_of(kind));
    let mut pair =
        Pair::connect(vec![open(&simulation, 0)], &Options::default()).expect("the queue pairs connect");
    let hca = &mut pair.hcas[0];
    let window =
        hca.device_memory_caps().expect("QUERY_HCA_CAP").get(caps::DeviceMemory::MEMIC_BAR_START_ADDR);
    let piece = hca.alloc_device_memory(window + 0x1000, LEN).expect("ALLOC_MEMIC");
    assert_eq!(piece.offset, window + 0x1000);
    let mr = hca.register_device_memory(pair.ends[1].pd, &piece, Access::ALL).expect("CREATE_MKEY");
    (pair, piece, mr)
}

fn end(mut pair: Pair<ModelBus>, piece: DeviceMemory, mr: Mr) {
    pair.hcas[0].deregister(mr).expect("DESTROY_MKEY");
    pair.hcas[0].free_device_memory(piece).expect("DEALLOC_MEMIC");
    close(pair);
}

/// What the host finds there: bytes at a multiple of 4.
fn through_the_bar(pair: &mut Pair<ModelBus>, piece: DeviceMemory, at: u64, len: usize) -> Vec<u8> {
    let words =
        (0..len.div_ceil(4)).map(|i| pair.hcas[0].bus_mut().mmio_read32(piece.offset + at + 4 * i as u64));
    words.flat_map(u32::to_be_bytes).take(len).collect()
}

/// What the host stores and what it rings come in order, but the doorbell record is memory, and may be read before any of them has come: what
/// a WQE finds in device memory is what was stored before its doorbell.
#[test]
fn stores_that_come_after_the_record() {
    let (mut pair, piece, mr) = rig();
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let far = pair.ends[0].mr;
    let store = |pair: &mut Pair<ModelBus>, value: u64| {
        pair.hcas[0].bus_mut().mmio_write64(piece.offset, value.swap_bytes());
    };
    let here = [Sge { address: 0, len: 8, key: mr.key }];
    let request = |id: u64| {
        let address = far.address + 8 * id;
        SendRequest::new(id, SendOp::Write { address, rkey: far.key, imm: None }, &here)
    };
    store(&mut pair, 1);
    // The first is rung for, and the record counts the second: its stores and its doorbell are on their way.
    pair.ends[1].qp.queue_send(&request(0)).expect("room");
    let first = pair.ends[1].qp.count_sends().expect("a doorbell");
    pair.ends[1].qp.queue_send(&request(1)).expect("room");
    let second = pair.ends[1].qp.count_sends().expect("a doorbell");
    let register = (u64::from(pair.hcas[0].uar().0) << 12) + SEND_DOORBELL;
    pair.hcas[0].bus_mut().mmio_write64(register, first);
    simulation.run(Ps::from_us(20));
    pair.sent_ok(1, 0);
    assert!(pair.try_sent(1).is_none(), "the second one was sent before it was rung for");
    store(&mut pair, 2);
    pair.hcas[0].bus_mut().mmio_write64(register, second);
    pair.sent_ok(1, 1);
    assert_eq!(pair.ends[0].bytes(0, 16), [1u64.to_le_bytes(), 2u64.to_le_bytes()].concat());
    // Nor does a read of that memory by its key come before them.
    let back = [0, 1].map(|i| [pair.ends[0].sge(64 + 8 * i, 8)]);
    let doorbells = [0, 1].map(|i| {
        let qp = &mut pair.ends[0].qp;
        qp.queue_send(&SendRequest::read(i as u64, &back[i], 0, mr.key)).expect("room");
        qp.count_sends().expect("a doorbell")
    });
    pair.hcas[0].bus_mut().mmio_write64(register, doorbells[0]);
    simulation.run(Ps::from_us(20));
    pair.sent_ok(0, 0);
    store(&mut pair, 3);
    pair.hcas[0].bus_mut().mmio_write64(register, doorbells[1]);
    pair.sent_ok(0, 1);
    assert_eq!(pair.ends[0].bytes(64, 16), [2u64.to_le_bytes(), 3u64.to_le_bytes()].concat());
    // A doorbell that never comes is done without, when everything must have come.
    pair.ends[1].qp.queue_send(&request(2)).expect("room");
    pair.ends[1].qp.queue_send(&request(3)).expect("room");
    pair.ends[1].qp.count_sends().expect("a doorbell");
    pair.hcas[0].bus_mut().mmio_write64(register, first);
    simulation.run(Ps::from_ms(11));
    pair.sent_ok(1, 2);
    pair.sent_ok(1, 3);
    end(pair, piece, mr);
}

/// Writes, reads, sends and atomics find what the host wrote, and the host what they wrote.
#[test]
fn host_and_wire_see_the_same() {
    let (mut pair, piece, mr) = rig();
    let data = pattern(7, LEN as usize);
    pair.fill(0, 0, &data);
    let all = [pair.ends[0].sge(0, LEN as usize)];
    pair.send(0, &SendRequest::write(1, &all, 0, mr.key));
    pair.sent_ok(0, 1);
    assert_eq!(through_the_bar(&mut pair, piece, 0, LEN as usize), data);

    // The host changes 4 and 8 bytes; a read over the wire brings them.
    pair.hcas[0].bus_mut().mmio_write32(piece.offset + 0x104, 0x1122_3344);
    pair.hcas[0].bus_mut().mmio_write64(piece.offset + 0xff8, 0x0102_0304_0506_0708);
    let back = [pair.ends[0].sge(0x8000, 0x1000)];
    pair.send(0, &SendRequest::read(2, &back, 0x100, mr.key));
    pair.sent_ok(0, 2);
    let mut expected = data[0x100..0x1100].to_vec();
    expected[4..8].copy_from_slice(&[0x11, 0x22, 0x33, 0x44]);
    expected[0xef8..0xf00].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(pair.ends[0].bytes(0x8000, 0x1000), expected);

    // Gathered from there, and scattered there.
    let here = Sge { address: 0x2001, len: 0xfff, key: mr.key };
    pair.recv(0, 3, 0xa000, 0xfff);
    pair.send(1, &SendRequest::send(3, &[here]));
    pair.sent_ok(1, 3);
    pair.received_ok(0, 3);
    assert_eq!(pair.ends[0].bytes(0xa000, 0xfff), data[0x2001..]);
    let posted = pair.ends[1].qp.post_recv(4, &[Sge { address: 64, len: 200, key: mr.key }]);
    assert_eq!(posted, Ok(()));
    let words = [pair.ends[0].sge(0x500, 200)];
    pair.send(0, &SendRequest::send(4, &words));
    pair.sent_ok(0, 4);
    pair.received_ok(1, 4);
    assert_eq!(through_the_bar(&mut pair, piece, 64, 200), data[0x500..0x500 + 200]);

    // Operands of atomics have the host's byte order.
    pair.hcas[0].bus_mut().mmio_write64(piece.offset + 8, u64::swap_bytes(40));
    let old = [pair.ends[0].sge(0xf000, 8)];
    pair.send(0, &SendRequest::new(5, SendOp::FetchAdd { address: 8, rkey: mr.key, add: 2 }, &old));
    pair.sent_ok(0, 5);
    assert_eq!(pair.ends[0].bytes(0xf000, 8), 40u64.to_le_bytes());
    assert_eq!(through_the_bar(&mut pair, piece, 8, 8), 42u64.to_le_bytes());
    end(pair, piece, mr);
}

/// A key reaches its own bytes and no more, and none when the piece was freed.
#[test]
fn keys_keep_to_their_piece() {
    for (va, len, freed, fits) in [
        (u64::from(LEN) - 8, 8, false, true),
        (u64::from(LEN) - 8, 9, false, false),
        (u64::MAX - 4, 8, false, false),
        (0, 8, true, false),
    ] {
        let (mut pair, piece, mr) = rig();
        if freed {
            pair.hcas[0].free_device_memory(piece).expect("DEALLOC_MEMIC");
        }
        let sge = [pair.ends[0].sge(0, len)];
        pair.send(0, &SendRequest::write(1, &sge, va, mr.key));
        let wrong = (!fits).then_some(Syndrome::RemoteAccess);
        assert_eq!(pair.sent(0).1.syndrome(), wrong, "{len} bytes at {va:#x}, freed: {freed}");
        if freed {
            let again = pair.hcas[0].alloc_device_memory(piece.offset, LEN).expect("ALLOC_MEMIC");
            assert_eq!(again, piece);
        }
        end(pair, piece, mr);
    }
}

/// What is not allocated reads as zeros, writes there are lost, and whoever has the pages next finds zeros.
#[test]
fn nothing_is_left_behind() {
    let (mut pair, piece, mr) = rig();
    let beyond = piece.offset + u64::from(LEN);
    pair.hcas[0].bus_mut().mmio_write32(beyond, 7);
    pair.hcas[0].bus_mut().mmio_write32(piece.offset, 7);
    assert_eq!([beyond, piece.offset].map(|at| pair.hcas[0].bus_mut().mmio_read32(at)), [0, 7]);
    pair.hcas[0].free_device_memory(piece).expect("DEALLOC_MEMIC");
    assert_eq!(through_the_bar(&mut pair, piece, 0, 4), [0; 4]);
    let again = pair.hcas[0].alloc_device_memory(piece.offset, LEN).expect("ALLOC_MEMIC");
    assert_eq!(through_the_bar(&mut pair, piece, 0, 4), [0; 4]);
    end(pair, again, mr);
}

/// Programs and the wire find what operations leave, and operations what the wire left.
#[test]
fn operations_through_the_bar() {
    use caps::memic_operation::{INCREMENT, TEST_AND_SET};
    let (mut pair, piece, mr) = rig_of("connectx6dx");
    pair.fill(0, 0, &[0xff, 7]);
    let two = [pair.ends[0].sge(0, 2)];
    pair.send(0, &SendRequest::write(1, &two, 0x1ffe, mr.key));
    pair.sent_ok(0, 1);
    let hca = &mut pair.hcas[0];
    let add = hca.map_device_memory_operation(&piece, INCREMENT).expect("MODIFY_MEMIC");
    let test = hca.map_device_memory_operation(&piece, TEST_AND_SET).expect("MODIFY_MEMIC");
    assert!(hca.map_device_memory_operation(&piece, 2).is_err());
    let bus = hca.bus_mut();
    let byte = |bus: &ModelBus, at: u64| {
        let mut found = [0xaa];
        bus.simulation().world(|world, now| world.mmio_read(now, bus.hca(), at, &mut found));
        found[0]
    };
    let store = |bus: &ModelBus, at: u64| {
        bus.simulation().world(|world, now| world.mmio_write(now, bus.hca(), at, &[1]));
    };
    for _ in 0..2 {
        store(bus, add + 0x1ffe);
        store(bus, add + 0x1fff);
    }
    assert_eq!([byte(bus, add + 0x1ffe), byte(bus, piece.offset + 0x1fff)], [1, 9]);
    assert_eq!([byte(bus, test + 0x1fff), byte(bus, test + 0x1fff)], [9, 1]);
    let back = [pair.ends[0].sge(0x100, 2)];
    pair.send(0, &SendRequest::read(2, &back, 0x1ffe, mr.key));
    pair.sent_ok(0, 2);
    assert_eq!(pair.ends[0].bytes(0x100, 2), [1, 1]);
    let hca = &mut pair.hcas[0];
    assert!(hca.free_device_memory(piece).is_err(), "operations have addresses");
    for operation in [INCREMENT, TEST_AND_SET] {
        hca.unmap_device_memory_operation(&piece, operation).expect("MODIFY_MEMIC");
        assert!(hca.unmap_device_memory_operation(&piece, operation).is_err());
    }
    store(hca.bus_mut(), add);
    assert_eq!(byte(hca.bus_mut(), piece.offset), 0, "no longer");
    end(pair, piece, mr);
}

/// An adapter without has neither the commands nor the keys.
#[test]
fn a_connectx4_has_none() {
    let simulation = Simulation::new(worlds::one());
    let mut hca = open(&simulation, 0);
    assert_eq!(hca.device_memory_caps().expect("QUERY_HCA_CAP"), caps::DeviceMemory::new());
    let window = (32 << 20) - (256 << 10);
    assert!(hca.alloc_device_memory(window, 64).is_err());
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let piece = DeviceMemory { offset: window, len: 64 };
    assert!(hca.register_device_memory(pd, &piece, Access::ALL).is_err());
    hca.dealloc_pd(pd).expect("DEALLOC_PD");
    hca.close().expect("teardown");
    worlds::assert_nothing_held(&simulation, HcaId(0));
}
