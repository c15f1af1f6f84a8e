//! A process for each host, and one for the switches.

use std::os::fd::AsFd;
use std::time::Duration;

use hca_driver::eth::{FrameRequest, Mac, QueueState, SqConfig};
use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Access, Bus, Config, CqConfig, Dma, Hca, RtsAttr, SendRequest, Sge};
use hca_server::vfio_user::VfioUser;
use hca_server::workers::{self, Program};
use hca_tests::frames::plain;
use hca_tests::pair::{Options, Pair, pattern, wait_active};
use hca_tests::process::Process;
use hca_tests::served::Served;
use nix::sys::eventfd::EventFd;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

/// What the tests below start as a worker: this test, in a process of its own.
#[test]
#[ignore = "a worker of other tests, not a test"]
fn worker_process() {
    let inbox = std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor");
    let never = EventFd::new().expect("an event").as_fd().try_clone_to_owned().expect("a descriptor");
    workers::run(inbox, never, false, |listener| Ok(Box::new(VfioUser::on(listener))), |_| Ok(()))
        .expect("the worker serves");
}

fn program() -> Program {
    let arguments = ["workers::worker_process", "--exact", "--ignored", "--nocapture"];
    Program {
        file: std::env::current_exe().expect("the test's file"),
        arguments: arguments.map(Into::into).into(),
        helper: None,
    }
}

/// Hosts around a switch, by name.
fn around(hosts: &[&str]) -> String {
    let mut text = format!("[[switch]]\nname = \"s\"\nports = {}\n", hosts.len());
    for (i, host) in (1..).zip(hosts) {
        text += &format!("[[host]]\nname = \"{host}\"\n[[host.hca]]\n");
        text += &format!("[[link]]\nbetween = [\"{host}/hca0\", \"s/{i}\"]\n");
    }
    text
}

const CABLE: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n\
                     [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n";

fn open(served: &Served, host: &str) -> Hca<VfioUserBus> {
    let mut hca = Hca::open(served.bus(host), Config::default()).expect("the adapter comes up");
    wait_active(&mut hca).expect("the port comes up");
    hca
}

/// A time that outlasts what a busy machine does between two processes.
fn patient() -> RtsAttr {
    RtsAttr { timeout: 18, ..RtsAttr::default() }
}

fn pair(served: &Served, hosts: [&str; 2], rts: RtsAttr) -> Pair<VfioUserBus> {
    let hcas = hosts.map(|host| open(served, host)).into();
    Pair::connect(hcas, &Options { memory: 4 << 20, rts, ..Options::default() }).expect("connect")
}

/// Messages of all kinds and sizes, each byte checked.
fn exchange(pair: &mut Pair<VfioUserBus>, seed: u64) {
    let far = pair.ends[1].mr;
    for (i, size) in [0, 1, 1023, 4096, 100_000, 1 << 20].into_iter().enumerate() {
        let data = pattern(seed + i as u64, size);
        pair.fill(0, 0, &data);
        pair.recv(1, 7, 0, size + 8);
        let sge = [pair.ends[0].sge(0, size)];
        pair.send(0, &SendRequest::send(1, &sge));
        pair.sent_ok(0, 1);
        assert_eq!(pair.received_ok(1, 7).byte_len as usize, size);
        assert!(pair.ends[1].bytes(0, size) == data, "send of {size} bytes");
        pair.send(0, &SendRequest::write(2, &sge, far.address + (2 << 20), far.key));
        pair.sent_ok(0, 2);
        let sge = [pair.ends[0].sge(2 << 20, size)];
        pair.send(0, &SendRequest::read(3, &sge, far.address + (2 << 20), far.key));
        pair.sent_ok(0, 3);
        assert!(pair.ends[0].bytes(2 << 20, size) == data, "write and read of {size} bytes");
    }
}

fn pid(served: &Served, worker: &str) -> Option<i32> {
    served.ask("stat")["engine"][worker]["pid"].as_i64().and_then(|pid| pid.try_into().ok())
}

#[test]
fn data_between_processes() {
    for topology in [CABLE.to_owned(), around(&["a", "b"])] {
        let served = Served::apart(&topology, program());
        let mut pair = pair(&served, ["a", "b"], patient());
        exchange(&mut pair, 1);
        let stat = served.ask("stat");
        let names: Vec<_> =
            stat["hcas"].as_array().expect("adapters").iter().map(|hca| &hca["name"]).collect();
        assert_eq!(names, ["a/hca0", "b/hca0"]);
        assert_ne!(pid(&served, "host a"), pid(&served, "host b"));
        assert_eq!(served.ask("links")["links"][0]["up"], true);
        pair.close().expect("teardown");
    }
}

/// A worker that dies is a host that dies: its peers' messages fail, other hosts notice nothing, and it is there again for
/// its next client.
#[test]
fn a_worker_that_dies_takes_nobody_with_it() {
    let served = Served::apart(&around(&["a", "b", "c", "d"]), program());
    let mut other = pair(&served, ["c", "d"], patient());
    exchange(&mut other, 1);
    let rts = RtsAttr { timeout: 12, retries: 3, ..RtsAttr::default() };
    let mut lonely = pair(&served, ["a", "b"], rts);
    let before = pid(&served, "host b").expect("it runs");
    kill(Pid::from_raw(before), Signal::SIGKILL).expect("it is ours");
    let sge = [lonely.ends[0].sge(0, 100)];
    lonely.send(0, &SendRequest::send(1, &sge));
    let (_, failed) = lonely.sent(0);
    assert!(failed.status.is_err(), "{failed:?}");
    exchange(&mut other, 2);
    while pid(&served, "host b").is_none_or(|now| now == before) {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(lonely);
    exchange(&mut pair(&served, ["a", "b"], patient()), 3);
    // The switches die: everybody's link goes, and comes back.
    let before = pid(&served, "switches").expect("it runs");
    kill(Pid::from_raw(before), Signal::SIGKILL).expect("it is ours");
    while pid(&served, "switches").is_none_or(|now| now == before) {
        std::thread::sleep(Duration::from_millis(20));
    }
    for hca in &mut other.hcas {
        wait_active(hca).expect("the port comes up again");
    }
    exchange(&mut other, 4);
    other.close().expect("teardown");
}

/// Each worker writes its own ports' P_Keys, and that of the switches enforces them.
#[test]
fn partitions_between_processes() {
    let mut text = around(&["a", "b", "c"]);
    for (name, pkey, members) in
        [("default", 0x7fff, ""), ("red", 1, "\"a/hca0\", \"b/hca0\""), ("blue", 2, "\"c/hca0\"")]
    {
        text += &format!("[[partition]]\nname = \"{name}\"\npkey = {pkey}\nfull = [{members}]\n");
    }
    let served = Served::apart(&text, program());
    let mut members = pair(&served, ["a", "b"], patient());
    exchange(&mut members, 1);
    members.close().expect("teardown");
    let rts = RtsAttr { timeout: 12, retries: 1, ..RtsAttr::default() };
    let mut strangers = pair(&served, ["a", "c"], rts);
    let sge = [strangers.ends[0].sge(0, 100)];
    strangers.send(0, &SendRequest::send(1, &sge));
    let (_, failed) = strangers.sent(0);
    assert!(failed.status.is_err(), "{failed:?}");
    let ports = served.ask("stat")["switches"][0]["ports"].clone();
    let count = |port: usize, name: &str| ports[port]["counters"][name].as_u64().expect("a count");
    assert_eq!(count(0, "rcv_constraint_errors"), 0, "it is a member's");
    assert_eq!(count(2, "xmit_constraint_errors"), 2, "once, and once again");
}

/// The operator's words reach the workers they concern.
/// Each process has faults of its own, and none has another's number.
#[test]
fn faults_of_several_processes_have_numbers_of_their_own() {
    let fault = |at: &str| json!({ "at": at, "on": "command", "action": "hang", "nth": 1_000_000 });
    let served = Served::apart(&around(&["a", "b"]), program());
    // Who answers runs.
    let _clients = ["a", "b"].map(|host| served.bus(host));
    let add = |at: &str| {
        let answer = served.request(&json!({ "cmd": "fault", "add": fault(at) })).expect("it is added");
        (answer["number"].as_u64().expect("a number"), answer["at"].clone())
    };
    let added = [add("a"), add("b"), add("a"), add("b")];
    let list = || -> Vec<_> {
        let answer = served.ask("fault");
        let rows = answer["faults"].as_array().expect("faults").iter();
        let mut rows: Vec<_> =
            rows.map(|row| (row["number"].as_u64().expect("a number"), row["at"].to_string())).collect();
        rows.sort();
        rows
    };
    let mut expected: Vec<_> = added.iter().map(|(number, at)| (*number, at.to_string())).collect();
    expected.sort();
    expected.dedup_by_key(|(number, _)| *number);
    assert_eq!((expected.len(), list()), (4, expected.clone()));
    // One is removed, and only that.
    let (gone, _) = added[3];
    let remove = json!({ "cmd": "fault", "remove": gone });
    served.request(&remove).expect("it is removed");
    expected.retain(|(number, _)| *number != gone);
    assert_eq!(list(), expected);
    let why = served.request(&remove).expect_err("it is gone").to_string();
    assert!(why.contains(&format!("there is no fault {gone}")), "{why}");
    assert_eq!(list(), expected);
}

/// A worker that does not answer is named; who asks next does not wait for it, and another that dies meanwhile is started again.
#[test]
fn a_silent_worker_is_named_and_not_asked_again() {
    let served = Served::apart(&around(&["a", "b"]), program());
    // Who answers runs.
    drop(["a", "b"].map(|host| served.bus(host)));
    let [a, b] = ["host a", "host b"].map(|worker| Pid::from_raw(pid(&served, worker).expect("it runs")));
    Process(a.as_raw().unsigned_abs()).stop().expect("it is ours");
    let why = |stat: &serde_json::Value| stat["errors"]["host a"].as_str().unwrap_or_default().to_owned();
    let first = served.ask("stat");
    assert!(why(&first).contains("silent: no answer"), "{first}");
    assert_eq!(first["engine"]["host b"]["pid"], b.as_raw());
    let next = served.ask("stat");
    assert!(why(&next).contains("is not asked for another"), "{next}");
    // What only it could answer is refused in its name.
    let inspect = json!({ "cmd": "fault", "remove": 0 });
    let refused = served.request(&inspect).expect_err("nobody answers").to_string();
    assert!(refused.contains("it was silent"), "{refused}");
    kill(b, Signal::SIGKILL).expect("it is ours");
    while pid(&served, "host b").is_none_or(|now| now == b.as_raw()) {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Its successor is asked at once.
    kill(a, Signal::SIGKILL).expect("it is ours");
    while pid(&served, "host a").is_none_or(|now| now == a.as_raw()) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut pair = pair(&served, ["a", "b"], patient());
    exchange(&mut pair, 1);
    pair.close().expect("teardown");
}

#[test]
fn a_cable_between_processes_is_taken_out() {
    let served = Served::apart(&around(&["a", "b"]), program());
    let mut pair = pair(&served, ["a", "b"], patient());
    let link = |state| served.request(&serde_json::json!({"cmd": "link", "at": "a/hca0", "state": state}));
    assert!(link("down").is_ok());
    while served.ask("links")["links"][0]["up"] != false {}
    assert!(served.ask("links")["links"][1]["up"] == true);
    assert!(link("up").is_ok());
    for hca in &mut pair.hcas {
        wait_active(hca).expect("the port comes up again");
    }
    exchange(&mut pair, 5);
    let wrong = served.request(&serde_json::json!({"cmd": "link", "at": "z/hca0", "state": "up"}));
    let why = format!("{:#}", wrong.unwrap_err());
    assert!(why.contains("no link at \"z/hca0\"") && why.contains("s:2"), "{why}");
    pair.close().expect("teardown");
}

/// An Ethernet switch between processes: RoCE passes, and who shows another's address gets nothing of what is for that.
#[test]
fn ethernet_between_processes() {
    let mut text = "[[switch]]\nname = \"s\"\ntype = \"eth\"\nports = 3\n".to_owned();
    for (i, host) in (1..).zip(["a", "b", "c"]) {
        text += &format!("[[host]]\nname = \"{host}\"\n[[host.hca]]\nport_type = \"eth\"\n");
        text += &format!("[[link]]\nbetween = [\"{host}/hca0\", \"s/{i}\"]\n");
    }
    let served = Served::apart(&text, program());
    let open = |host| Hca::open(served.bus(host), Config::default()).expect("the adapter comes up");
    let options = Options { memory: 4 << 20, rts: patient(), roce: true, ..Options::default() };
    let mut pair = Pair::connect(vec![open("a"), open("b")], &options).expect("connect");
    exchange(&mut pair, 1);
    // The third shows the first's address, and the second speaks before the first does again.
    let mac = pair.hcas[0].mac().expect("QUERY_NIC_VPORT_CONTEXT");
    let mut thief = open("c");
    while !thief.vport_is_up().expect("QUERY_VPORT_STATE") {
        thief.wait(None);
    }
    let (pd, domain) =
        (thief.alloc_pd().expect("ALLOC_PD"), thief.alloc_transport_domain().expect("a domain"));
    let mut cq = thief.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
    let tis = thief.create_tis(domain, 0).expect("CREATE_TIS");
    let mut sq = thief.create_sq(&SqConfig::new(tis, pd, &cq)).expect("CREATE_SQ");
    thief.modify_sq(&mut sq, QueueState::Ready).expect("MODIFY_SQ");
    let frame = plain(Mac([0xff; 6]), mac, &[0; 46]);
    let mut memory = thief.bus_mut().dma_alloc(4096, 4096).expect("memory");
    let key = thief.register(pd, &memory, 4096, Access::LOCAL_WRITE).expect("CREATE_MKEY");
    memory.write(0, &frame);
    let data = [Sge { address: key.address, len: frame.len() as u32, key: key.key }];
    sq.post(thief.bus_mut(), &FrameRequest::new(1, &[], &data)).expect("post");
    while cq.poll().is_none() {
        thief.wait(None);
    }
    std::thread::sleep(Duration::from_millis(100));
    let (sge, far) = ([pair.ends[1].sge(0, 100)], pair.ends[0].mr);
    pair.send(1, &SendRequest::write(9, &sge, far.address, far.key));
    pair.sent_ok(1, 9);
    exchange(&mut pair, 2);
}
