use super::*;
use crate::ground::timing::Profile;

const NS: fn(u64) -> Ps = Ps::from_ns;

fn units(edits: &[(&str, &str)]) -> Units {
    let mut text = Profile::text("connectx4").unwrap().to_string();
    for (key, value) in edits {
        let mut profile = Profile::connectx4();
        profile.set(key, value).unwrap();
        let (section, key) = key.split_once('.').unwrap();
        let begin = text.find(&format!("[{section}]")).unwrap();
        let line = begin + text[begin..].find(&format!("\n{key} ")).unwrap() + 1;
        let end = line + text[line..].find('\n').unwrap();
        text.replace_range(line..end, &format!("{key} = {value}"));
    }
    let profile = Profile::from_toml(&text).unwrap();
    Units::new(&Timing::new(&profile))
}

#[test]
fn a_queue_pair_is_worked_on_in_order_and_others_beside_it() {
    let mut u = units(&[]);
    u.context(Ps::ZERO, 1);
    u.context(Ps::ZERO, 2);
    let now = NS(10_000);
    assert_eq!(u.send(now, 1, NS(100)), now + NS(100));
    assert_eq!(u.send(now, 1, NS(100)), now + NS(200));
    assert_eq!(u.send(now, 2, NS(100)), now + NS(100));
}

#[test]
fn more_queue_pairs_than_contexts_are_slower() {
    let rate = |qps: u32| {
        let mut u = units(&[("cache.context_entries", "64")]);
        let last = (0..20_000).map(|i| u.send(Ps::ZERO, i * 7 % qps, NS(100))).max().unwrap();
        20_000.0 / last.as_ns() as f64
    };
    assert!(rate(512) < 0.8 * rate(32), "{} {}", rate(512), rate(32));
}

#[test]
fn gathered_data_comes_after_a_read() {
    let mut u = units(&[]);
    let span = Place { key: 1, va: 0x1000, len: 64, page: Some(12) };
    let cold = u.gather(Ps::ZERO, 1, Ps::ZERO, [span].into_iter());
    let now = NS(10_000);
    let warm = u.gather(now, 1, now, [span].into_iter()) - now;
    assert!(warm > NS(300) && warm < NS(600), "{warm}");
    assert!(cold > warm + warm + warm - NS(100), "the key, then the translation, then the data: {cold}");
    assert_eq!(u.gather(now, 1, now, [].into_iter()), now, "inline data is there");
}

#[test]
fn lists_of_registrations_are_loaded_one_after_the_other() {
    let mut u = units(&[]);
    let list = |qp: u32| [Place { key: qp, va: 0x1000, len: 64, page: None }].into_iter();
    (1..=2).for_each(|qp| _ = u.load(Ps::ZERO, qp, Ps::ZERO, list(qp)));
    let now = NS(10_000);
    let first = u.load(now, 1, now, list(1)) - now;
    assert!(first > u.load + NS(300), "a read and what comes beside it: {first}");
    assert_eq!(u.load(now, 2, now, list(2)) - now, first + first, "another queue pair's waits");
}

#[test]
fn packets_of_a_queue_pair_leave_in_order() {
    let mut u = units(&[]);
    let first = u.depart(5, NS(700));
    assert_eq!(u.depart(5, NS(300)), first);
    assert!(u.depart(6, NS(300)) < first);
}

#[test]
fn what_a_packet_writes_is_seen_later_and_in_order() {
    let mut u = units(&[]);
    u.context(Ps::ZERO, 1);
    let now = NS(10_000);
    let write = Inbound { bytes: 64, ..Inbound::default() };
    let at = u.receive(now, 1, NS(50), write);
    assert!(at > now + NS(50) + u.bus.write_latency());
    assert_eq!(u.receive(now, 1, NS(50), Inbound::default()), at, "a read does not overtake a write");
}

#[test]
fn a_wqe_that_was_evicted_is_read_again() {
    let mut u = units(&[("cache.wqe_blocks", "4"), ("cache.wqe_ways", "4")]);
    u.context(Ps::ZERO, 1);
    let now = NS(10_000);
    let mark = u.cache_from_doorbell(now, 1, 0, 1).unwrap();
    let answer = Inbound { wqe: Some(mark), ..Inbound::default() };
    let usual = u.receive(now, 1, NS(50), answer) - now;
    let then = NS(20_000);
    (0..4).for_each(|_| _ = u.cache_from_doorbell(then, 1, 1, 1));
    let again = u.receive(then, 1, NS(50), answer) - then;
    assert!(again > usual + NS(300), "{again} {usual}");
    assert_eq!(u.counts().wqes, Ratio { hits: 1, misses: 1 });
}

#[test]
fn a_wqe_is_evicted_while_its_answer_waits_for_a_unit() {
    let mut u = units(&[("cache.wqe_blocks", "20"), ("cache.wqe_ways", "20")]);
    u.context(Ps::ZERO, 1);
    // One in 100 ns; then the units are busy for 10 us.
    let marks: Vec<Mark> = (1..=30).filter_map(|i| u.cache_from_doorbell(NS(100 * i), 1, 1, 1)).collect();
    let now = NS(3000);
    let answer = Inbound { wqe: marks.last().copied(), ..Inbound::default() };
    u.receive(now, 1, NS(50), answer);
    (0..16_000).for_each(|_| _ = u.receivers.admit(now, now, NS(10)));
    u.receive(now, 2, NS(50), answer);
    assert_eq!(u.counts().wqes, Ratio { hits: 1, misses: 1 });
}

#[test]
fn a_wqe_that_comes_before_its_context_is_dropped() {
    let mut u = units(&[]);
    assert_eq!(u.cache_from_doorbell(Ps::ZERO, 7, 0, 1), None);
    u.send(Ps::ZERO, 7, NS(10));
    assert!(u.cache_from_doorbell(Ps::ZERO, 7, 0, 1).is_some());
}

#[test]
fn atomics_wait_for_locks_and_slots() {
    let mut u = units(&[("receive.atomic_slots", "2")]);
    let first = u.atomic(Ps::ZERO, 0, 8);
    assert_eq!(u.atomic(Ps::ZERO, 0, 16), first, "another lock");
    assert!(u.atomic(Ps::ZERO, 0, 24) > first, "no slot");
    let mut u = units(&[("receive.atomic_queues", "4")]);
    let first = u.atomic(Ps::ZERO, 0, 8);
    assert_eq!(u.atomic(Ps::ZERO, 0, 8 + 4096), first + first, "the same lock");
    assert_eq!(u.atomic(Ps::ZERO, 4, 16), first + first, "behind that in a queue");
    assert_eq!(u.atomic(Ps::ZERO, 1, 24), first, "another queue");
}

#[test]
fn payload_of_several_writes_takes_time_of_any_unit() {
    let jobs = |bytes: usize, queues: u32| {
        let mut u = units(&[("units.count", "4"), ("receive.piece_ns", "100")]);
        (0..queues).for_each(|qp| _ = u.context(Ps::ZERO, qp));
        let now = NS(10_000);
        let write = Inbound { bytes, ..Inbound::default() };
        (0..400).for_each(|i| _ = u.receive(now, i % queues, NS(100), write));
        (u.receivers.idle_from(now, now) - now, u.counts().busy)
    };
    // The calendar is kept by pages.
    let about = |(took, busy): (Ps, Ps), expected| {
        took <= expected && expected - took < NS(100) && busy == Ps(expected.0 * 4)
    };
    let (whole, split) = (jobs(256, 40), jobs(257, 40));
    assert!(about(whole, NS(10_000)), "400 jobs of 100 ns, in four units: {whole:?}");
    assert!(about(split, NS(20_000)), "and so many second writes: {split:?}");
    // One queue pair's packets follow each other, their further writes are done beside them.
    let mut u = units(&[("units.count", "4"), ("receive.piece_ns", "100")]);
    u.context(Ps::ZERO, 1);
    let now = NS(10_000);
    let last = |u: &mut Units, bytes| {
        let write = Inbound { bytes, ..Inbound::default() };
        (0..10).map(|_| u.receive(now, 1, NS(100), write)).last()
    };
    let short = last(&mut u.clone(), 256);
    let long = last(&mut u, 768);
    assert!(long.zip(short).is_some_and(|(long, short)| long - short < NS(300)), "{long:?} {short:?}");
}
