//! The queue without memory: steps are carried out by nobody, outcomes are made up.

use super::*;
use hca_spec::cqe::OP_OWN_BYTE;

const EQN: Eqn = Eqn(9);
const RECORD: u64 = 0x8000;
const PAGE: u64 = 0x10_0000;
const PERIOD: Ps = Ps::from_us(16);

fn cq(set: impl FnOnce(&mut Cqc)) -> Cq {
    let mut cq = Cq { buffer: Buffer::new(Box::new([PAGE]), 12, 0, 4096).unwrap(), ..Cq::default() };
    cq.ctx.set(Cqc::LOG_CQ_SIZE, 2).set(Cqc::C_EQN, EQN.0.into()).set(Cqc::DBR_ADDR, RECORD);
    set(&mut cq.ctx);
    cq
}

fn completion(opcode: CqeOpcode, solicited: bool, index: u32) -> Completion<'static> {
    let mut cqe = Cqe::new();
    cqe.set(Cqe::OPCODE, opcode as u32).set(Cqe::SE, solicited.into()).set(Cqe::WQE_COUNTER, index);
    Completion::new(cqe, &[], || 77)
}

fn plain() -> Completion<'static> {
    completion(CqeOpcode::Req, false, 0)
}

/// Address and owner byte of the entry that is to be written, and what the host is told once it is.
fn write(q: &mut CompletionQueue, cq: &Cq, now: Ps, mut c: Completion<'_>) -> (u64, u8, Notice) {
    let (at, owner) = match q.complete(now, &cq.buffer, &mut c) {
        CqStep::Write(write) => (write.at, write.entry[OP_OWN_BYTE] & 1),
        other => panic!("{other:?}"),
    };
    (at, owner, q.written(now, &c))
}

#[test]
fn entries_go_round_and_their_owner_alternates() {
    let cq = cq(|_| ());
    let mut q = CompletionQueue::new(&cq);
    for i in 0..12 {
        q.consumer_read(Some(i));
        let place = PAGE + u64::from(i % 4) * 64;
        assert_eq!(write(&mut q, &cq, Ps::ZERO, plain()), (place, (i / 4 % 2) as u8, Notice::None));
    }
}

#[test]
fn a_large_entry_has_its_payload_in_front() {
    for (size, padded) in [(cqe_size::B128, false), (cqe_size::B128_PADDED, true)] {
        let cq = cq(|c| _ = c.set(Cqc::CQE_SZ, size));
        let mut q = CompletionQueue::new(&cq);
        let mut entry = |data: &[u8]| {
            let mut c = Completion::new(Cqe::new(), data, || 0);
            match q.complete(Ps::ZERO, &cq.buffer, &mut c) {
                CqStep::Write(w) => {
                    assert_eq!((w.at, w.bytes), (PAGE + 64, 128));
                    let format = w.entry[OP_OWN_BYTE] >> 2 & 3;
                    (w.first_half.map(|(at, bytes)| (at, bytes.to_vec())), w.entry[0], format)
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(entry(&[7; 64]), (Some((PAGE, vec![7; 64])), 0, CqeFormat::Data64 as u8));
        let pad = padded.then_some((PAGE, vec![0; 64]));
        assert_eq!(entry(&[7; 32]), (None, 7, CqeFormat::Data32 as u8));
        assert_eq!(entry(&[]), (pad, 0, CqeFormat::Plain as u8));
    }
}

#[test]
fn the_consumer_counter_is_read_once_when_the_queue_looks_full() {
    let cq = cq(|_| ());
    let mut q = CompletionQueue::new(&cq);
    (0..4).for_each(|_| _ = write(&mut q, &cq, Ps::ZERO, plain()));
    let mut c = plain();
    assert_eq!(q.complete(Ps::ZERO, &cq.buffer, &mut c), CqStep::ReadConsumer(RECORD));
    q.consumer_read(Some(1));
    assert!(matches!(q.complete(Ps::ZERO, &cq.buffer, &mut c), CqStep::Write(_)));
    let _ = q.written(Ps::ZERO, &c);
    // It has not moved, or can't be read: overrun, once.
    for word in [Some(1), None] {
        let mut q = CompletionQueue { error: None, ..CompletionQueue::new(&cq) };
        q.producer = 5;
        q.consumer = 1;
        let mut c = plain();
        assert_eq!(q.complete(Ps::ZERO, &cq.buffer, &mut c), CqStep::ReadConsumer(RECORD));
        q.consumer_read(word);
        assert_eq!(q.complete(Ps::ZERO, &cq.buffer, &mut c), CqStep::Error(CqError::Overrun));
        assert_eq!(q.complete(Ps::ZERO, &cq.buffer, &mut plain()), CqStep::Refused);
        assert_eq!(q.write_failed(), None, "it is in error already");
        let mut ctx = Cqc::new();
        q.write_back(&mut ctx);
        assert_eq!((ctx.get(Cqc::STATUS), ctx.get(Cqc::PRODUCER_COUNTER)), (STATUS_OVERRUN, 5));
    }
}

/// A counter that can't be this queue's (here in the other byte order) stops nothing.
#[test]
fn a_counter_beyond_the_queue_is_no_overrun() {
    let cq = cq(|_| ());
    let mut q = CompletionQueue::new(&cq);
    (0..4).for_each(|_| _ = write(&mut q, &cq, Ps::ZERO, plain()));
    let mut c = plain();
    assert_eq!(q.complete(Ps::ZERO, &cq.buffer, &mut c), CqStep::ReadConsumer(RECORD));
    q.consumer_read(Some(4 << 16));
    assert!(matches!(q.complete(Ps::ZERO, &cq.buffer, &mut c), CqStep::Write(_)));
}

#[test]
fn overrun_can_be_ignored() {
    let cq = cq(|c| _ = c.set(Cqc::OI, 1));
    let mut q = CompletionQueue::new(&cq);
    (0..4).for_each(|_| _ = write(&mut q, &cq, Ps::ZERO, plain()));
    assert_eq!(write(&mut q, &cq, Ps::ZERO, plain()), (PAGE, 1, Notice::None));
}

#[test]
fn an_entry_that_was_not_written_does_not_count() {
    let cq = cq(|_| ());
    let mut q = CompletionQueue::new(&cq);
    assert_eq!(q.arm(Ps::ZERO, 0, false), Notice::None);
    assert!(matches!(q.complete(Ps::ZERO, &cq.buffer, &mut plain()), CqStep::Write(_)));
    assert_eq!(q.write_failed(), Some(CqError::Write));
    assert_eq!(q.complete(Ps::ZERO, &cq.buffer, &mut plain()), CqStep::Refused);
    let mut ctx = Cqc::new();
    q.write_back(&mut ctx);
    assert_eq!((ctx.get(Cqc::STATUS), ctx.get(Cqc::PRODUCER_COUNTER)), (STATUS_WRITE_FAILURE, 0));
    // A page list that does not reach as far as the context says.
    let short = Buffer::new(Box::new([PAGE]), 12, 0, 64).unwrap();
    let mut q = CompletionQueue::new(&cq);
    q.producer = 1;
    assert_eq!(q.complete(Ps::ZERO, &short, &mut plain()), CqStep::Error(CqError::Write));
}

#[test]
fn armed_for_the_next_or_a_solicited_entry() {
    let cq = cq(|c| _ = c.set(Cqc::OI, 1));
    let mut q = CompletionQueue::new(&cq);
    let notice = |q: &mut CompletionQueue, c| write(q, &cq, Ps::ZERO, c).2;
    assert_eq!(notice(&mut q, plain()), Notice::None, "not armed");
    assert_eq!(q.arm(Ps::ZERO, 0, false), Notice::Event(EQN), "an entry is there");
    assert_eq!(q.arm(Ps::ZERO, 0, false), Notice::None, "but was told of");
    assert_eq!(notice(&mut q, plain()), Notice::Event(EQN));
    assert_eq!(notice(&mut q, plain()), Notice::None, "one event for each arming");
    assert_eq!(q.arm(Ps::ZERO, 3, true), Notice::None);
    assert_eq!(notice(&mut q, plain()), Notice::None);
    assert_eq!(notice(&mut q, completion(CqeOpcode::RespSend, true, 0)), Notice::Event(EQN));
    assert_eq!(q.arm(Ps::ZERO, 5, true), Notice::None);
    assert_eq!(notice(&mut q, completion(CqeOpcode::ReqErr, false, 0)), Notice::Event(EQN));
}

#[test]
fn moderation_ends_by_count_time_error_or_solicited_entry() {
    let moderated = |mode| {
        let cq = cq(|c| {
            c.set(Cqc::CQ_MAX_COUNT, 3).set(Cqc::CQ_PERIOD, 16).set(Cqc::CQ_PERIOD_MODE, mode);
            c.set(Cqc::OI, 1).set(Cqc::SCQE_BREAK_MODERATION_EN, 1);
        });
        let mut q = CompletionQueue::new(&cq);
        assert_eq!(q.arm(Ps::ZERO, 0, false), Notice::None);
        (q, cq)
    };
    let at = Ps::from_us(1);
    // From the last event: one timer for all; from the entry: one for each.
    for (mode, due, second) in [
        (0, PERIOD, Notice::None),
        (PERIOD_FROM_CQE, at + PERIOD, Notice::Moderate { due: at + at + PERIOD, generation: 2 }),
    ] {
        let (mut q, cq) = moderated(mode);
        assert_eq!(write(&mut q, &cq, at, plain()).2, Notice::Moderate { due, generation: 1 });
        assert_eq!(write(&mut q, &cq, at + at, plain()).2, second);
        let last = if second == Notice::None { 1 } else { 2 };
        assert_eq!(q.moderation_over(due, last + 1), Notice::None);
        assert_eq!(q.moderation_over(due, last), Notice::Event(EQN));
        assert_eq!(q.moderation_over(due, last), Notice::None);
    }
    let (mut q, cq) = moderated(0);
    let _ = (write(&mut q, &cq, at, plain()), write(&mut q, &cq, at, plain()));
    assert_eq!(write(&mut q, &cq, at, plain()).2, Notice::Event(EQN), "three");
    for at_once in [completion(CqeOpcode::RespErr, false, 0), completion(CqeOpcode::RespSend, true, 0)] {
        let (mut q, cq) = moderated(0);
        assert_eq!(write(&mut q, &cq, at, at_once).2, Notice::Event(EQN));
    }
    let (mut q, cq) = moderated(0);
    assert_eq!(write(&mut q, &cq, PERIOD, plain()).2, Notice::Event(EQN), "the period is over already");
}

#[test]
fn a_session_is_written_before_what_does_not_belong_to_it() {
    let cq = cq(|c| _ = c.set(Cqc::CQE_COMP_EN, 1));
    let mut q = CompletionQueue::new(&cq);
    assert_eq!(q.arm(Ps::ZERO, 0, false), Notice::None);
    let receive = |i| completion(CqeOpcode::RespSend, false, i);
    assert_eq!(q.complete(Ps::ZERO, &cq.buffer, &mut receive(0)), CqStep::Wait(Some((SESSION, 1))));
    assert_eq!(q.complete(Ps::ZERO, &cq.buffer, &mut receive(1)), CqStep::Wait(None));
    assert!(q.in_session(1) && !q.in_session(2));
    let mut other = plain();
    assert_eq!(q.complete(Ps::ZERO, &cq.buffer, &mut other), CqStep::CloseSession);
    let block = q.close_session().unwrap();
    let arrays: Vec<_> = q.arrays(&cq.buffer, &block).map(|a| a.unwrap().0).collect();
    assert_eq!(arrays, [PAGE + 64]);
    let mut title = Completion::title(&block);
    assert_eq!(q.entry(&cq.buffer, &mut title).unwrap().at, PAGE);
    assert_eq!((title.cqe().get(Cqe::FORMAT), title.cqe().get(Cqe::TIMESTAMP)), (3, 77));
    assert_eq!(q.block_written(Ps::ZERO, block), Notice::Event(EQN));
    match q.complete(Ps::ZERO, &cq.buffer, &mut other) {
        CqStep::Write(write) => assert_eq!(write.at, PAGE + 2 * 64),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_waits_takes_room_in_the_queue() {
    let cq = cq(|c| _ = c.set(Cqc::CQE_COMP_EN, 1));
    let mut q = CompletionQueue::new(&cq);
    for i in 0..4 {
        let mut c = completion(CqeOpcode::RespSend, false, i);
        assert!(matches!(q.complete(Ps::ZERO, &cq.buffer, &mut c), CqStep::Wait(_)));
    }
    let mut fifth = completion(CqeOpcode::RespSend, false, 4);
    assert_eq!(q.complete(Ps::ZERO, &cq.buffer, &mut fifth), CqStep::ReadConsumer(RECORD));
}

#[test]
fn a_resized_queue_goes_on_in_its_new_size() {
    let mut cq = cq(|_| ());
    let mut q = CompletionQueue::new(&cq);
    (0..3).for_each(|_| _ = write(&mut q, &cq, Ps::ZERO, plain()));
    let mut end = Completion::resize();
    assert_eq!(q.entry(&cq.buffer, &mut end).unwrap().at, PAGE + 3 * 64);
    assert_eq!(end.cqe().get(Cqe::OPCODE), CqeOpcode::Resize as u32);
    cq.ctx.set(Cqc::LOG_CQ_SIZE, 3);
    q.resized(&cq.ctx, true);
    // The entry that ended the old buffer counts.
    assert_eq!(write(&mut q, &cq, Ps::ZERO, plain()), (PAGE + 4 * 64, 0, Notice::None));
}
