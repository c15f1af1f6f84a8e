//! Objects looked at: what is shown is what the driver made, and looking changes nothing.

use hca_driver::SendRequest;
use hca_model::look::{KINDS, Part, Shown, What};
use hca_model::{HcaId, Ps};
use hca_spec::qpc::QpState;
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{close, loopback};

type Bus = hca_tests::in_process::ModelBus;

fn look(pair: &mut Pair<Bus>, word: &str, number: Option<u32>) -> Result<Vec<Part>, String> {
    let what = What::named(word, number)?;
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    simulation.world(|world, _| world.inspect(HcaId(0), what))
}

/// A field of the first part that has it, by the name of its layout and its own.
fn field(parts: &[Part], layout: &str, name: &str) -> Option<u64> {
    let mut found = None;
    for (of, bytes) in parts.iter().flat_map(|part| &part.structures) {
        if of.name == layout {
            of.decode(bytes, &mut |_, field, value| {
                if field.name == name && found.is_none() {
                    found = Some(value);
                }
            });
        }
    }
    found
}

fn value(parts: &[Part], name: &str) -> Option<Shown> {
    parts.iter().flat_map(|part| &part.values).find(|(of, _)| *of == name).map(|(_, value)| value.clone())
}

#[test]
fn a_queue_pair_with_its_work_requests() {
    let mut pair = loopback(&Options::default());
    let (qpn, far) = (pair.ends[0].qp.number().0, pair.ends[1].qp.number().0);
    let mr = pair.ends[1].mr;
    let key = pair.ends[0].mr.key;
    pair.fill(0, 0, &pattern(1, 3000));
    pair.recv(1, 9, 0, 64);
    let sge = [pair.ends[0].sge(0, 3000)];
    for wr in 0..12 {
        pair.send(0, &SendRequest::write(wr, &sge, mr.address + 16 * wr, mr.key));
        pair.sent_ok(0, wr);
    }
    let parts = look(&mut pair, "qp", Some(qpn)).expect("it is there");
    assert_eq!(field(&parts, "Qpc", "STATE"), Some(QpState::Rts as u64));
    assert_eq!(field(&parts, "Qpc", "REMOTE_QPN"), Some(far.into()));
    assert_eq!(value(&parts, "service"), Some(Shown::Text("Rc".into())));
    // Three packets each: as many PSNs.
    assert_eq!(value(&parts, "next_psn"), value(&parts, "oldest_psn"));
    assert_eq!(value(&parts, "send_posted"), value(&parts, "record_send"));
    let sends: Vec<&Part> = parts.iter().filter(|part| part.title.starts_with("send WQE")).collect();
    assert_eq!(sends.len(), 8, "the last ones");
    for (wr, part) in (4..12).zip(&sends) {
        let of = std::slice::from_ref(*part);
        assert!(part.title.ends_with(": RdmaWrite"), "{}", part.title);
        assert_eq!(field(of, "Ctrl", "QPN"), Some(qpn.into()));
        assert_eq!(field(of, "RemoteAddr", "VA"), Some(mr.address + 16 * wr));
        assert_eq!(field(of, "RemoteAddr", "RKEY"), Some(mr.key.0.into()));
        assert_eq!(field(of, "Data", "BYTE_COUNT"), Some(3000));
        assert_eq!(field(of, "Data", "LKEY"), Some(key.0.into()));
    }
    let receiver = look(&mut pair, "qp", Some(far)).expect("it is there");
    let receive: Vec<Part> =
        receiver.into_iter().filter(|part| part.title.starts_with("receive WQE")).collect();
    assert_eq!((receive.len(), field(&receive, "Data", "BYTE_COUNT")), (1, Some(64)));
    pair.send(0, &SendRequest::send(12, &[pair.ends[0].sge(0, 64)]));
    pair.received_ok(1, 9);
    pair.sent_ok(0, 12);
    close(pair);
}

#[test]
fn queues_keys_and_what_has_no_context() {
    let mut pair = loopback(&Options::default());
    let mr = pair.ends[1].mr;
    let sge = [pair.ends[0].sge(0, 8)];
    for wr in 0..3 {
        pair.send(0, &SendRequest::write(wr, &sge, mr.address, mr.key));
        pair.sent_ok(0, wr);
    }
    let qpn = u64::from(pair.ends[0].qp.number().0);
    let cqn = pair.ends[0].send_cq.number().0;
    let cq = look(&mut pair, "cq", Some(cqn)).expect("it is there");
    assert_eq!(field(&cq, "Cqc", "PRODUCER_COUNTER"), Some(3));
    assert_eq!(value(&cq, "producer"), Some(Shown::Number(3)));
    let entries = cq.iter().filter(|part| part.title.starts_with("CQE")).count();
    assert_eq!((entries, field(&cq, "Cqe", "QPN")), (3, Some(qpn)));
    // By its index and by itself.
    for number in [mr.key.0 >> 8, mr.key.0] {
        let key = look(&mut pair, "mkey", Some(number)).expect("it is there");
        assert_eq!(field(&key, "Mkc", "PD"), Some(pair.ends[1].pd.0.into()));
        assert_eq!(field(&key, "Mkc", "LEN"), Some(mr.len));
    }
    let pd = pair.ends[0].pd.0;
    let pd = look(&mut pair, "pd", Some(pd)).expect("it is there");
    assert!(matches!(value(&pd, "keys"), Some(Shown::Number(1..))), "{pd:?}");
    let uar = pair.hcas[0].uar().0;
    let uar = look(&mut pair, "uar", Some(uar)).expect("it is there");
    assert!(matches!(value(&uar, "offset_in_bar0"), Some(Shown::Number(0x1000..))), "{uar:?}");
    let commands = look(&mut pair, "commands", None).expect("there is a queue");
    assert!(commands.iter().any(|part| part.title.contains("RTR2RTS_QP")), "{commands:?}");
    let pages = look(&mut pair, "pages", None).expect("there are pages");
    assert_eq!(value(&pages, "QPs"), Some(Shown::Number(2)));
    let port = look(&mut pair, "port", None).expect("there is a port");
    assert_eq!(field(&port, "PortInfo", "PORT_STATE"), Some(4));
    close(pair);
}

#[test]
fn event_queues() {
    let mut pair = loopback(&Options::default());
    let eq = pair.hcas[0].create_eq(64, 3).expect("CREATE_EQ");
    pair.hcas[0].remap_cq(&pair.ends[0].send_cq, eq.number()).expect("MODIFY_CQ");
    eq.arm(pair.hcas[0].bus_mut());
    pair.ends[0].send_cq.arm(pair.hcas[0].bus_mut(), false);
    let (mr, sge) = (pair.ends[1].mr, [pair.ends[0].sge(0, 8)]);
    pair.send(0, &SendRequest::write(1, &sge, mr.address, mr.key));
    pair.sent_ok(0, 1);
    pair.hcas[0].bus_mut().simulation().clone().run(Ps::from_us(50));
    let number = u32::from(eq.number().0);
    let shown = look(&mut pair, "eq", Some(number)).expect("it is there");
    assert_eq!(field(&shown, "Eqc", "INTR"), Some(3));
    assert_eq!(value(&shown, "producer"), Some(Shown::Number(1)));
    assert_eq!(value(&shown, "event_types"), Some(Shown::Text("completions".into())));
    let cqn = u64::from(pair.ends[0].send_cq.number().0);
    assert_eq!(field(&shown, "Eqe", "COMPLETION_CQN"), Some(cqn), "its only entry");
    let wrong = look(&mut pair, "eq", Some(0xff)).unwrap_err();
    assert!(wrong.starts_with("there is no EQ 0xff, but "), "{wrong}");
}

#[test]
fn who_asks_wrongly_hears_what_there_is() {
    let mut pair = loopback(&Options::default());
    let qpn = pair.ends[0].qp.number().0;
    let wrong = look(&mut pair, "qp", Some(0x3f)).unwrap_err();
    assert!(
        wrong.starts_with("there is no QP 0x3f, but ") && wrong.contains(&format!("{qpn:#x}")),
        "{wrong}"
    );
    assert_eq!(look(&mut pair, "tir", Some(1)).unwrap_err(), "there is no TIR 0x1: there is none at all");
    assert_eq!(look(&mut pair, "port", Some(2)).unwrap_err(), "there is no port 2, but 1 to 1");
    assert!(look(&mut pair, "qp", None).unwrap_err().contains("number"), "which one?");
    let unknown = look(&mut pair, "queue", Some(1)).unwrap_err();
    assert!(KINDS.iter().all(|(word, _)| unknown.contains(word)), "{unknown}");
    close(pair);
}

/// Looked at in the middle of everything, the same happens at the same times.
#[test]
fn looking_changes_nothing() {
    let run = |looks: bool| {
        let mut pair = loopback(&Options::default());
        let simulation = pair.hcas[0].bus_mut().simulation().clone();
        simulation.world(|world, _| world.start_trace(0));
        let mr = pair.ends[1].mr;
        let numbers =
            [("qp", pair.ends[0].qp.number().0), ("cq", pair.ends[0].send_cq.number().0), ("eq", 1)];
        let sge = [pair.ends[0].sge(0, 5000)];
        for wr in 0..20 {
            pair.send(0, &SendRequest::write(wr, &sge, mr.address, mr.key));
            simulation.run(Ps::from_ns(700));
            if looks {
                for (word, number) in numbers {
                    look(&mut pair, word, Some(number)).expect("it is there");
                }
                for word in ["commands", "pages", "port"] {
                    look(&mut pair, word, None).expect("it is there");
                }
            }
            pair.sent_ok(0, wr);
        }
        let hash = simulation.world(|world, _| world.trace().map(|trace| (trace.hash(), trace.count())));
        close(pair);
        hash
    };
    assert_eq!(run(false), run(true));
}
