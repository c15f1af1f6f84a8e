//! Our driver over a real vfio-user socket: another client than QEMU, against the server as it runs.

use std::time::Instant;

use hca_driver::vfio_user::VfioUserBus;
use hca_driver::wqe::SendOp;
use hca_driver::{
    Access, Bus, Config, CqConfig, Dma, Event, Hca, Path, QpConfig, RtrAttr, RtsAttr, SendRequest,
};
use hca_model::timing::{Profile, Timing};
use hca_spec::command::Status;
use hca_spec::cqe::Syndrome;
use hca_tests::pair::{Options, PORT, Pair, pattern, wait_active};
use hca_tests::served::Served;

const ONE: &str = "
[[host]]
name = \"a\"
[[host.hca]]
";

fn two(loss: f64) -> String {
    format!(
        "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n\
         [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\nrate = \"edr\"\nwidth = 4\nloss = {loss:?}\n"
    )
}

fn open(served: &Served, host: &str) -> Hca<VfioUserBus> {
    Hca::open(served.bus(host), Config::default()).expect("the adapter comes up")
}

/// Every count in the answer of "resources" about what was left at the last teardown, and is there now.
fn counts(value: &serde_json::Value) -> Vec<u64> {
    match value {
        serde_json::Value::Object(map) => map.values().flat_map(counts).collect(),
        serde_json::Value::Array(list) => list.iter().flat_map(counts).collect(),
        other => other.as_u64().into_iter().collect(),
    }
}

#[test]
fn up_and_down_by_several_clients() {
    let served = Served::start(ONE);
    for command_events in [true, false, true] {
        let mut hca = Hca::open(served.bus("a"), Config { command_events, ..Config::default() }).expect("up");
        wait_active(&mut hca).expect("PortInfo");
        let bus = hca.close().expect("teardown");
        assert_eq!(bus.error(), None);
        drop(bus);
        let resources = served.ask("resources");
        let counts = counts(&resources);
        assert!(!counts.is_empty() && counts.iter().all(|n| *n == 0), "{resources}");
    }
}

#[test]
fn data_over_the_link() {
    let served = Served::start(&two(0.0));
    let hcas = vec![open(&served, "a"), open(&served, "b")];
    let mut pair = Pair::connect(hcas, &Options { memory: 4 << 20, ..Options::default() }).expect("connect");
    let far = pair.ends[1].mr;
    let before = served.ask("stat");
    for (i, size) in [0, 1, 1023, 1024, 1025, 1 << 20].into_iter().enumerate() {
        let data = pattern(i as u64, size);
        pair.fill(0, 0, &data);
        pair.recv(1, 7, 0, size + 8);
        let sge = [pair.ends[0].sge(0, size)];
        pair.send(0, &SendRequest::send(1, &sge));
        pair.sent_ok(0, 1);
        assert_eq!(pair.received_ok(1, 7).byte_len as usize, size);
        assert!(pair.ends[1].bytes(0, size) == data, "send of {size} bytes");
        pair.send(0, &SendRequest::write(2, &sge, far.address + (2 << 20), far.key));
        pair.sent_ok(0, 2);
        assert!(pair.ends[1].bytes(2 << 20, size) == data, "write of {size} bytes");
        let sge = [pair.ends[0].sge(2 << 20, size)];
        pair.send(0, &SendRequest::read(3, &sge, far.address + (2 << 20), far.key));
        pair.sent_ok(0, 3);
        assert!(pair.ends[0].bytes(2 << 20, size) == data, "read of {size} bytes");
    }
    let after = served.ask("stat");
    let count = |of: &serde_json::Value, place: &str| of["hcas"][0].pointer(place).and_then(|v| v.as_u64());
    let more = |place: &str| count(&after, place).zip(count(&before, place)).map(|(a, b)| a - b);
    assert_eq!(more("/adapter/doorbells"), Some(18), "{after}");
    assert_eq!(more("/adapter/requests_done"), Some(18), "{after}");
    assert!(more("/ports/0/counters/xmit_packets") > Some(2 * 1024), "{after}");
    assert_eq!(after["hcas"][0]["qps"][0]["state"], "Rts", "{after}");
    assert!(after["time_ns"].as_u64() > before["time_ns"].as_u64());
    for bus in pair.close().expect("teardown") {
        assert_eq!(bus.error(), None);
    }
}

/// What goes through a switch is counted by its ports, too.
#[test]
fn ports_of_a_switch_count() {
    let host = |name| format!("[[host]]\nname = \"{name}\"\n[[host.hca]]\n");
    let link = |end, port| format!("[[link]]\nbetween = [\"{end}/hca0\", \"s/{port}\"]\n");
    let switch = "[[switch]]\nname = \"s\"\nports = 3\n";
    let served =
        Served::start(&format!("{}{}{switch}{}{}", host("a"), host("b"), link("a", 1), link("b", 3)));
    let hcas = vec![open(&served, "a"), open(&served, "b")];
    let mut pair = Pair::connect(hcas, &Options::default()).expect("connect");
    let counts = || {
        let stat = served.ask("stat");
        let switch = &stat["switches"][0];
        assert_eq!(
            (&switch["name"], switch["ports"].as_array().map(Vec::len)),
            (&"s".into(), Some(3)),
            "{stat}"
        );
        let count =
            |port: usize, name| switch["ports"][port - 1]["counters"][name].as_u64().expect("a count");
        [count(1, "rcv_packets"), count(3, "xmit_packets"), count(2, "xmit_packets")]
    };
    let before = counts();
    let far = pair.ends[1].mr;
    for i in 0..10 {
        let sge = [pair.ends[0].sge(0, 1000)];
        pair.send(0, &SendRequest::write(i, &sge, far.address, far.key));
        pair.sent_ok(0, i);
    }
    let after = counts();
    assert_eq!([0, 1, 2].map(|i| after[i] - before[i]), [10, 10, 0]);
    pair.close().expect("teardown");
}

#[test]
fn losses_are_repaired() {
    let served = Served::start(&two(0.05));
    let hcas = vec![open(&served, "a"), open(&served, "b")];
    let rts = RtsAttr { timeout: 8, ..RtsAttr::default() };
    let mut pair = Pair::connect(hcas, &Options { rts, ..Options::default() }).expect("connect");
    for i in 0..200u64 {
        pair.recv(1, i, i as usize % 8 * 4096, 4096);
        let data = pattern(i, 1 + (i as usize * 97) % 4000);
        pair.fill(0, 0, &data);
        let sge = [pair.ends[0].sge(0, data.len())];
        pair.send(0, &SendRequest::new(i, SendOp::Send { imm: Some(i as u32) }, &sge));
        pair.sent_ok(0, i);
        assert_eq!(pair.received_ok(1, i).imm, Some(i as u32));
        assert!(pair.ends[1].bytes(i as usize % 8 * 4096, data.len()) == data, "message {i}");
    }
    pair.close().expect("teardown");
}

/// A host that goes away in the middle of a stream just falls silent: its peer's retries run out.
#[test]
fn a_host_that_dies_is_silent() {
    const SIZE: usize = 1 << 20;
    let served = Served::start(&two(0.0));
    let rts = RtsAttr { timeout: 10, retries: 2, ..RtsAttr::default() };
    let options = Options { memory: SIZE, mtu: 5, rts, ..Options::default() };
    for _ in 0..5 {
        let hcas = vec![open(&served, "a"), open(&served, "b")];
        let mut pair = Pair::connect(hcas, &options).expect("connect");
        let (near, far) = ([pair.ends[0].sge(0, SIZE)], pair.ends[1].mr);
        for i in 0..200 {
            let request = SendRequest::write(i, &near, far.address, far.key);
            pair.ends[0].qp.queue_send(&request).expect("queue_send");
        }
        let qp = &mut pair.ends[0].qp;
        qp.ring_doorbell(pair.hcas[0].bus_mut());
        let Pair { mut hcas, ends: [mut alive, dead] } = pair;
        drop((hcas.pop(), dead));
        let failed = (0..100_000_000u64)
            .find_map(|_| alive.send_cq.poll().filter(|c| c.status.is_err()))
            .expect("the stream ends with an error");
        assert_eq!(failed.syndrome(), Some(Syndrome::TransportRetryExceeded));
    }
}

/// A completion raises an event descriptor.
#[test]
fn completion_interrupts() {
    const VECTOR: u16 = 2;
    let served = Served::start(ONE);
    let mut hca = open(&served, "a");
    let mut eq = hca.create_eq(64, VECTOR).expect("CREATE_EQ");
    eq.arm(hca.bus_mut());
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let mut cq = hca.create_cq(CqConfig { entries: 16, eq: Some(eq.number()) }).expect("CREATE_CQ");
    let options = Options::default();
    let mut pair = Pair::connect(vec![hca], &options).expect("connect");
    let config = QpConfig::rc(pd, &cq, &cq);
    let mut qp = pair.hcas[0].create_qp(&config).expect("CREATE_QP");
    let lid = pair.hcas[0].lid(PORT).expect("LID");
    let own = qp.number();
    let hca = &mut pair.hcas[0];
    hca.qp_to_init(&mut qp, &Default::default()).expect("INIT");
    hca.qp_to_rtr(&mut qp, &RtrAttr::new(own, Path::lid(lid))).expect("RTR");
    hca.qp_to_rts(&mut qp, &RtsAttr::default()).expect("RTS");
    for round in 1..=50 {
        cq.arm(hca.bus_mut(), false);
        qp.post_send(hca.bus_mut(), &SendRequest::new(round, SendOp::Nop, &[])).expect("post_send");
        // Each arming of both queues raises the vector once.
        for _ in 0..100_000 {
            if hca.bus_mut().interrupts(VECTOR) == round {
                break;
            }
            hca.wait(Some(VECTOR));
        }
        assert_eq!(hca.bus_mut().interrupts(VECTOR), round);
        assert_eq!((eq.poll(), eq.poll()), (Some(Event::Completion(cq.number())), None));
        cq.event_taken();
        eq.arm(hca.bus_mut());
        assert_eq!(cq.poll().and_then(|c| qp.finish(&c)), Some(round));
    }
    hca.destroy_qp(qp).expect("DESTROY_QP");
    hca.destroy_cq(cq).expect("DESTROY_CQ");
    hca.destroy_eq(eq).expect("DESTROY_EQ");
    hca.dealloc_pd(pd).expect("DEALLOC_PD");
    pair.close().expect("teardown");
}

/// The quota of an adapter (`icm` of the topology): keys that don't fit are refused with the status of a full adapter, however many pages the host
/// has to give, and what was there before stays good.
#[test]
fn a_host_gets_what_its_quota_holds() {
    const PAGES: usize = 4096;
    /// What a key costs at least: a translation of 8 bytes for each page.
    const KEY: usize = PAGES * 8;
    const QUOTA: usize = 4 << 20;
    let served = Served::start("[[host]]\nname = \"a\"\n[[host.hca]]\nicm = \"4M\"\n");
    let mut hca = open(&served, "a");
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let page = hca.bus_mut().dma_alloc(4096, 4096).expect("memory");
    let pages = vec![page.bus_address(); PAGES];
    let make = |hca: &mut Hca<VfioUserBus>| {
        hca.register_pages(pd, &pages, 12, 0, (PAGES * 4096) as u64, Access::ALL)
    };
    let mut keys = Vec::new();
    let refused = loop {
        match make(&mut hca) {
            Ok(key) => keys.push(key),
            Err(why) => break why,
        }
        assert!(keys.len() * KEY <= QUOTA, "{} keys", keys.len());
    };
    assert_eq!(refused.status(), Some(Status::ExceedLimit), "{refused}");
    assert!(keys.len() * KEY >= QUOTA / 2, "{} keys", keys.len());
    let accounts = served.ask("stat");
    assert!(hca.firmware_pages() * 4096 <= QUOTA, "{accounts}");
    // Room for one more is room for one more.
    hca.deregister(keys.pop().expect("a key")).expect("DESTROY_MKEY");
    keys.push(make(&mut hca).expect("there is room again"));
    for key in keys {
        hca.deregister(key).expect("DESTROY_MKEY");
    }
    hca.dealloc_pd(pd).expect("DEALLOC_PD");
    hca.close().expect("teardown");
}

/// One host dies in the middle: the other sees its retries run out, and the dead one can come back.
#[test]
fn a_client_that_dies_and_returns() {
    let served = Served::start(&two(0.0));
    let rts = RtsAttr { timeout: 8, retries: 2, ..RtsAttr::default() };
    let options = Options { rts, ..Options::default() };
    let hcas = vec![open(&served, "a"), open(&served, "b")];
    let mut pair = Pair::connect(hcas, &options).expect("connect");
    let far = pair.ends[1].mr;
    let sge = [pair.ends[0].sge(0, 4096)];
    for i in 0..50 {
        pair.send(0, &SendRequest::write(i, &sge, far.address, far.key).unsignaled());
    }
    let Pair { mut hcas, ends: [mut near, far] } = pair;
    let dead = hcas.pop();
    drop((dead, far));
    // Whatever was under way when the other end died, this is not answered.
    let bus = hcas[0].bus_mut();
    near.qp.post_send(bus, &SendRequest::new(99, SendOp::Send { imm: None }, &[])).expect("post_send");
    let mut failure = None;
    for _ in 0..1_000_000 {
        if let Some(completion) = near.send_cq.poll() {
            failure = completion.syndrome();
            break;
        }
        hcas[0].wait(None);
    }
    // The adapter of a host that dies may answer once more that it can't reach memory, or never again.
    let expected = [Some(Syndrome::TransportRetryExceeded), Some(Syndrome::RemoteOperation)];
    assert!(expected.contains(&failure), "{failure:?}");
    hcas[0].destroy_qp(near.qp).expect("DESTROY_QP");
    hcas.push(open(&served, "b"));
    let mut pair = Pair::connect(hcas, &options).expect("connect again");
    pair.recv(1, 5, 0, 64);
    pair.send(0, &SendRequest::send(4, &[]).inline(b"back"));
    pair.sent_ok(0, 4);
    pair.received_ok(1, 5);
    assert_eq!(pair.ends[1].bytes(0, 4), b"back");
}

/// In paced mode no completion is there before its time: the time that stands in it, on the adapter's clock, which is
/// the host's, slowed down so much that a pipeline of the model takes far longer than a client to look.
#[test]
fn paced_completions_are_not_early() {
    const DILATION: f64 = 400.0;
    const SIZES: [usize; 4] = [0, 64, 4096, 40_000];
    let time = format!("[time]\nmode = \"paced\"\ndilation = {DILATION:?}\n[fabric]\ntraining_ms = 0\n");
    let served = Served::start(&(time + &two(0.0)));
    let hcas = vec![open(&served, "a"), open(&served, "b")];
    let mut pair = Pair::connect(hcas, &Options { memory: 1 << 17, ..Options::default() }).expect("connect");
    let far = pair.ends[1].mr;
    let khz = Timing::new(&Profile::default()).timer_khz() as f64;
    // The clock shows this at some moment after `start`, so that it can't show more than this and what passed since.
    let start = Instant::now();
    let first = pair.hcas[0].internal_timer() + 1;
    let latest = || first + (start.elapsed().as_secs_f64() * 1e3 * khz / DILATION) as u64;
    for i in 0..40 {
        let size = SIZES[i as usize % SIZES.len()];
        let sge = [pair.ends[0].sge(0, size)];
        pair.recv(1, i, 1 << 16, 1 << 16);
        let request = match i % 3 {
            0 => SendRequest::send(i, &sge),
            1 => SendRequest::write(i, &sge, far.address, far.key),
            _ => SendRequest::read(i, &sge, far.address, far.key),
        };
        pair.send(0, &request);
        let mut done = false;
        while !done {
            let (sent, received) = (pair.try_sent(0), pair.try_received(1));
            let latest = latest();
            done = sent.is_some();
            for (number, completion) in sent.into_iter().chain(received) {
                assert_eq!(completion.status, Ok(()), "request {number}");
                let early = completion.timestamp.saturating_sub(latest);
                assert_eq!(early, 0, "request {i}: a completion came {early} cycles before its time");
            }
        }
    }
    pair.close().expect("teardown");
}
