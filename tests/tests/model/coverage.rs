//! What a driver uses of the interface: as it is collected, as a trace file has it, and the difference of two runs.

use std::path::PathBuf;

use hca_driver::{SendOp, SendRequest};
use hca_spec::command::Opcode;
use hca_tests::in_process::Simulation;
use hca_tests::pair::{Options, Pair};
use hca_tests::{rig, worlds};
use hca_trace::coverage::steps::STEPS;
use hca_trace::coverage::{Coverage, Difference, text};

/// Writes of that many work requests.
const WRITES: u64 = 5;

/// What a run left: the coverage that was collected, the trace, and what was printed.
struct Run {
    coverage: Coverage,
    trace: String,
    printed: Vec<String>,
}

/// Bring-up, writes, perhaps a read, a command that is refused, teardown. Of what the options say.
fn run(name: &str, reads: bool, collects: bool) -> Run {
    let file = |what: &str| {
        std::env::temp_dir().join(format!("hca-tests-coverage-{}-{name}.{what}", std::process::id()))
    };
    let (trace, coverage): (PathBuf, PathBuf) = (file("trace"), file("coverage"));
    let simulation = Simulation::new(worlds::two(0.0, 1));
    let options = hca_trace::Options {
        trace: Some(trace.clone()),
        trace_hash: true,
        coverage: collects.then(|| Some(coverage.clone())),
        ..hca_trace::Options::default()
    };
    simulation.observe(&options).expect("files");
    let hcas = vec![rig::open(&simulation, 0), rig::open(&simulation, 1)];
    let mut pair = Pair::connect(hcas, &Options::default()).expect("the queue pairs connect");
    let far = pair.ends[1].mr;
    for number in 0..WRITES {
        let sge = [pair.ends[0].sge(0, 3000)];
        pair.send(0, &SendRequest::write(number, &sge, far.address, far.key));
        pair.sent_ok(0, number);
    }
    if reads {
        let op = SendOp::Read { address: far.address, rkey: far.key };
        pair.send(0, &SendRequest::new(9, op, &[pair.ends[0].sge(0, 64)]));
        pair.sent_ok(0, 9);
    }
    let refused = pair.hcas[0].execute(Opcode::DestroyCq, 0, vec![0; 16], 16);
    assert!(refused.is_err(), "there is no such queue");
    rig::close(pair);
    let printed = simulation.end_observing().expect("they end");
    let text = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        text
    };
    let (trace, coverage) = (text(&trace), text(&coverage));
    let coverage = if collects { Coverage::parse(&coverage).expect("coverage") } else { Coverage::default() };
    Run { coverage, trace, printed }
}

#[test]
fn bring_up_as_a_checklist_and_what_was_used() {
    let Run { coverage, .. } = run("used", false, true);
    let used = &coverage.adapters["hca0"];
    let reached: Vec<&str> = used.steps.iter().map(|step| step.step.as_str()).collect();
    for step in [
        "command queue's address, low",
        "ENABLE_HCA",
        "pages are given",
        "INIT_HCA",
        "CREATE_EQ",
        "port active",
        "a queue pair in RTS",
        "first send doorbell",
        "first completion",
        "TEARDOWN_HCA",
        "pages are taken back",
        "DISABLE_HCA",
    ] {
        assert!(reached.contains(&step), "{step}: {reached:?}");
    }
    let place = |name: &str| STEPS.iter().position(|step| step.name == name);
    assert!(reached.is_sorted_by_key(|name| place(name)), "{reached:?}");
    let step = |name: &str| used.steps.iter().find(|step| step.step == name).expect("it was reached");
    let order = ["ENABLE_HCA", "INIT_HCA", "CREATE_QP", "first completion", "DISABLE_HCA"]
        .map(|name| step(name).first_ps);
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!((step("INIT_HCA").status.as_str(), step("INIT_HCA").times), ("Ok", 1));
    assert!(step("INIT_HCA").took_ps > Some(0) && step("first completion").took_ps.is_none());
    // By the names of layouts, and only what is not zero.
    let fields = &used.fields["CREATE_CQ"];
    assert!(fields.contains_key("cqc.LOG_CQ_SIZE") && fields.contains_key("cqc.DBR_ADDR"), "{fields:?}");
    assert!(!fields.contains_key("cqc.CQE_COMP_EN") && !fields.contains_key("OPCODE"), "{fields:?}");
    assert_eq!(used.opcodes.iter().collect::<Vec<_>>(), [(&"RdmaWrite".to_owned(), &WRITES)]);
    for transition in ["Reset to Init", "Init to Rtr", "Rtr to Rts"] {
        assert!(used.transitions.contains_key(transition), "{:?}", used.transitions);
    }
    assert!(used.errors.contains_key("command BadResource"), "{:?}", used.errors);
    let refused = &used.commands["DESTROY_CQ"].statuses;
    assert!(refused.keys().any(|status| status.starts_with("BadResource 0x")), "{refused:?}");
    assert!(used.registers.contains_key("0x0018 write: COMMAND_DOORBELL_VECTOR"), "{:?}", used.registers);
    assert!(used.registers.contains_key("UAR 0x800 write: send doorbell"), "{:?}", used.registers);
    let shown = text::text(&coverage, true);
    for line in [
        "[x] INIT_HCA",
        "[ ] SET_DRIVER_VERSION",
        "CREATE_CQ: ",
        "opcodes: 1 reached, 14 never",
        "QUERY_FLOW_TABLE",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
}

/// Collected live and read from the trace, it is the same; and a file that ends early is good up to there.
#[test]
fn a_trace_has_the_same() {
    let Run { coverage, trace, .. } = run("trace", true, true);
    let read = Coverage::of_trace(&trace).expect("a trace");
    assert_eq!(read.json(), coverage.json());
    let part = Coverage::of_trace(&trace[..trace.len() / 2]).expect("a trace");
    let counted =
        |coverage: &Coverage| coverage.adapters.values().map(|used| used.commands.len()).sum::<usize>();
    assert!(counted(&part) > 0 && counted(&part) <= counted(&coverage));
    assert!(
        Coverage::of_trace("{}").is_err() && Coverage::parse("{}").is_err() && Coverage::parse("[]").is_err()
    );
    let other = coverage.json().to_string().replace("softhca coverage 1", "softhca coverage 9");
    assert!(Coverage::parse(&other).unwrap_err().to_string().contains("coverage 9"));
}

#[test]
fn what_only_one_of_two_runs_uses() {
    let (with, without) = (run("with", true, true).coverage, run("without", false, true).coverage);
    let difference = Difference::new(&with, &without);
    assert_eq!(difference.only_first["opcodes"], ["RdmaRead"]);
    assert_eq!(difference.only_first.len(), 1, "{difference:?}");
    assert!(difference.only_second.is_empty(), "{difference:?}");
    assert_eq!(Difference::new(&with, &with), Difference::default());
    let text = difference.text("new.json", "old.json");
    assert!(text.starts_with("new.json uses, and old.json does not:\n  opcodes\n    RdmaRead\n"), "{text}");
    assert!(text.ends_with("old.json uses, and new.json does not:\n  nothing\n"), "{text}");
}

/// Whether it is collected or not, the same happens.
#[test]
fn collecting_changes_nothing() {
    let (with, without) = (run("on", true, true), run("off", true, false));
    let hash = |run: &Run| run.printed.iter().find(|line| line.starts_with("trace hash")).cloned();
    assert!(hash(&with).is_some());
    assert_eq!(hash(&with), hash(&without));
}
