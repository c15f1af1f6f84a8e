//! Trace files by the rules of their format, and what is read out of them.
//!
//! Source of the rules: "Trace Event Format". The reader here knows the format, not the writer.

use std::collections::{BTreeMap, HashMap};

use hca_driver::{SendOp, SendRequest};
use hca_model::HcaId;
use hca_model::link::Faults;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, Pair};
use hca_tests::{rig, worlds};
use hca_trace::explain::{File, WorkRequest};
use hca_trace::{perfetto, picture};
use serde_json::Value;

/// Writes, reads, atomics and sends, signalled and not, over a link with faults; then the text of the trace.
fn traced(faults: Faults, seed: u64) -> (String, u64) {
    const MESSAGES: u64 = 60;
    let simulation = Simulation::new(worlds::two_with(faults, seed));
    let names: Vec<String> = (0..2).map(|i| simulation.world(|w, _| w.name(HcaId(i)).to_string())).collect();
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    let mut pair: Pair<ModelBus> = Pair::connect(hcas, &Options::default()).expect("the queue pairs connect");
    simulation.world(|world, _| world.start_trace(1 << 20));
    let (address, rkey) = (pair.ends[1].mr.address, pair.ends[1].mr.key);
    (0..MESSAGES).for_each(|n| pair.recv(1, n, 8192, 8192));
    for number in 0..MESSAGES {
        let len = [8, 700, 3000, 5000][number as usize % 4];
        let (op, len) = match number % 5 {
            0 => (SendOp::Read { address, rkey }, len),
            1 => (SendOp::Send { imm: None }, len),
            2 => (SendOp::FetchAdd { address, rkey, add: 1 }, 8),
            _ => (SendOp::Write { address, rkey, imm: None }, len),
        };
        let sge = [pair.ends[0].sge(0, len)];
        let signaled = number % 4 == 3;
        pair.send(0, &SendRequest { signaled, ..SendRequest::new(number, op, &sge) });
        if signaled {
            pair.sent_ok(0, number);
        }
    }
    let mut out = Vec::new();
    let mut writer = perfetto::Writer::new(&mut out, &names).unwrap();
    simulation.world(|world, _| world.drain_trace().for_each(|r| writer.record(&r).unwrap()));
    writer.finish().unwrap();
    rig::close(pair);
    (String::from_utf8(out).unwrap(), MESSAGES)
}

type Track = (u64, u64);

fn number(event: &Value, name: &str) -> f64 {
    event[name].as_f64().unwrap_or_else(|| panic!("no number {name}: {event}"))
}

fn track(event: &Value) -> Track {
    (event["pid"].as_u64().expect("pid"), event["tid"].as_u64().expect("tid"))
}

/// Picoseconds.
fn ps(event: &Value, name: &str) -> u64 {
    (number(event, name) * 1e6).round() as u64
}

/// Checks the rules that viewers rely on.
fn check(text: &str) -> BTreeMap<u64, Vec<(u64, String, String)>> {
    let events: Vec<Value> = serde_json::from_str(text).expect("an array in JSON");
    let mut threads = HashMap::new();
    let mut slices: HashMap<Track, Vec<(u64, u64, String)>> = HashMap::new();
    let mut flows: BTreeMap<u64, Vec<(u64, String, Track)>> = BTreeMap::new();
    for event in &events {
        let name = event["name"].as_str().expect("every event has a name");
        match event["ph"].as_str().expect("every event has a phase") {
            "M" => {
                let what = &event["args"];
                match name {
                    "process_name" => assert!(what["name"].as_str().is_some_and(|n| n.starts_with("hca"))),
                    "thread_name" => {
                        let name = what["name"].as_str().expect("a name").to_string();
                        assert_eq!(threads.insert(track(event), name), None, "a thread is named once");
                    }
                    _ => assert!(what["sort_index"].is_u64(), "{event}"),
                }
            }
            "X" => {
                assert!(event["args"].is_object() && event["cat"].is_string(), "{event}");
                slices.entry(track(event)).or_default().push((
                    ps(event, "ts"),
                    ps(event, "dur"),
                    name.into(),
                ));
            }
            phase @ ("s" | "t" | "f") => {
                assert!(phase == "s" || event["bp"] == "e", "bound to the slice that encloses it: {event}");
                let id = event["id"].as_u64().expect("a flow has an id");
                flows.entry(id).or_default().push((ps(event, "ts"), phase.into(), track(event)));
            }
            other => panic!("phase {other}"),
        }
    }
    for (track, slices) in &mut slices {
        assert!(threads.contains_key(track), "a thread without name: {track:?}");
        slices.sort_by_key(|s| (s.0, std::cmp::Reverse(s.1)));
        // Complete events of a thread lie within each other or apart.
        for pair in slices.windows(2) {
            let (first, second) = (&pair[0], &pair[1]);
            let apart = first.0 + first.1 <= second.0;
            let within = second.0 + second.1 <= first.0 + first.1;
            assert!(apart || within, "slices of {:?} overlap: {pair:?}", threads[track]);
            // The viewer's times are nanoseconds.
            let ns = |ps: u64| ps / 1000;
            let apart = ns(first.0) + ns(first.1) <= ns(second.0);
            assert!(apart || within, "slices of {:?} overlap in a viewer: {pair:?}", threads[track]);
        }
    }
    // Instants may share a time and a thread: the names of all that begin there.
    for unit in ["doorbell", "WQE fetch", "requester", "DMA read", "DMA write", "cache", "port", "completion"]
    {
        assert!(threads.values().any(|name| name == unit), "no track of {unit}");
    }
    let bound = |(at, phase, track): &(u64, String, Track)| {
        let on = slices.get(track).into_iter().flatten().filter(|s| s.0 == *at);
        let names: Vec<&str> = on.map(|s| s.2.as_str()).collect();
        assert!(!names.is_empty(), "flow at {at} is bound to nothing");
        (*at, phase.clone(), names.join(" "))
    };
    flows
        .into_iter()
        .map(|(id, mut steps)| {
            steps.sort_by_key(|s| s.0);
            (id, steps.iter().map(bound).collect())
        })
        .collect()
}

#[test]
fn a_trace_follows_the_rules_of_its_format() {
    for (faults, seed) in [(Faults::default(), 1), (Faults::loss(0.1), 2), (Faults::loss(0.1), 3)] {
        let (text, messages) = traced(faults, seed);
        let flows = check(&text);
        assert_eq!(flows.len() as u64, messages, "a flow for each work request");
        for (id, steps) in &flows {
            let count = |phase: &str| steps.iter().filter(|s| s.1 == phase).count();
            assert_eq!((count("s"), count("f")), (1, 1), "flow {id} begins and ends once: {steps:?}");
            let (first, last) = (&steps[0], &steps[steps.len() - 1]);
            assert_eq!((first.1.as_str(), first.2.as_str()), ("s", "doorbell"), "flow {id}");
            let ends = steps.iter().find(|s| s.1 == "f").expect("counted");
            // A packet that was sent twice may still be under way.
            assert!(ends.0 == last.0 || seed > 1, "flow {id}: nothing comes after its end: {steps:?}");
            assert!(ends.2.contains("CQE") || ends.2.contains("done"), "flow {id} ends with {}", ends.2);
            let has = |name: &str| steps.iter().any(|s| s.2.contains(name));
            for name in ["fetch", "start", "build", "sent", "received", "execute", "respond", "answer"] {
                // A lost ACK is made good by a later one.
                assert!(has(name) || (seed > 1 && name == "respond"), "flow {id} without {name}: {steps:?}");
            }
        }
        let signalled =
            flows.values().filter(|s| s.iter().any(|s| s.1 == "f" && s.2.contains("CQE"))).count();
        assert_eq!(signalled as u64, messages / 4, "those that asked for a completion end with it");
    }
}

#[test]
fn a_life_can_be_read() {
    let (text, messages) = traced(Faults::default(), 1);
    let file = File::parse(&text).unwrap();
    let lives: Vec<_> = file.lives().collect();
    assert_eq!(lives.len() as u64, messages);
    let first = &lives[0];
    let wr: WorkRequest = format!("{:#x}:{}", first.qpn, first.index).parse().unwrap();
    let life = file.find(wr, Some("hca0"), 1).unwrap();
    assert_eq!(life, *first);
    let table = life.table();
    let mut rest = table.as_str();
    for name in
        ["doorbell", "fetch", "start", "build", "sent", "received", "execute", "respond", "answer", "done"]
    {
        let at = rest.find(&format!("  {name} ")).unwrap_or_else(|| panic!("no {name} in order:\n{table}"));
        rest = &rest[at..];
    }
    // What was done aside: the first work request meets empty caches.
    for name in ["context miss", "key miss", "translation miss", "read", "write"] {
        let aside =
            life.steps.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no {name}:\n{table}"));
        assert!(aside.aside && aside.took > 0, "{aside:?}");
        assert!(life.steps[0].at <= aside.at, "nothing is done before the doorbell");
    }
    assert!(table.contains("was on the way") && table.contains("Rc ReadRequest"), "{table}");
    assert!(file.list().contains(&format!("{:#x}:{}", wr.qpn, wr.index)) || messages > 20);
    assert!(file.find(WorkRequest { qpn: 1, index: 1 }, None, 1).is_err());
    let svg = picture::svg(&life);
    assert!(
        svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.matches("<rect").count() > 10,
        "{svg}"
    );
}

/// A server that was killed leaves a file without end: what is there is read.
#[test]
fn a_file_without_end_is_read() {
    let (text, _) = traced(Faults::default(), 1);
    let whole = File::parse(&text).unwrap().lives().count();
    let cut = File::parse(&text[..text.len() * 2 / 3]).unwrap().lives().count();
    assert!(0 < cut && cut < whole, "{cut} of {whole}");
    assert!(File::parse("{}").is_err());
    assert!(File::parse("").is_err());
}
