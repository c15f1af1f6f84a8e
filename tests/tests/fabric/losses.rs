//! Reliable connections over a link that is not.

use hca_driver::wqe::SendOp;
use hca_driver::{RtsAttr, SendRequest};
use hca_model::Ps;
use hca_model::link::Faults;
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{close, linked};

const MESSAGES: u64 = 400;

/// On a link that loses 5 % of the packets everything arrives, in order, once.
#[test]
fn losses_are_repaired() {
    for seed in 1..=8 {
        exchange(Faults::loss(0.05), seed);
    }
}

/// The same with copies, late and overtaking packets, and flipped bits.
#[test]
fn every_fault_is_repaired() {
    let calm = Faults { delay_by: Ps::from_us(3), ..Faults::default() };
    let faults = [
        Faults { duplicate: 0.2, ..calm.clone() },
        Faults { delay: 0.2, ..calm.clone() },
        Faults { reorder: 0.02, ..calm.clone() },
        Faults { corrupt: 0.05, ..calm.clone() },
        Faults { loss: 0.02, duplicate: 0.02, delay: 0.05, reorder: 0.01, corrupt: 0.02, ..calm },
    ];
    for faults in faults {
        for seed in 1..=4 {
            exchange(faults.clone(), seed);
        }
    }
}

/// As many large reads at a time as the responder has resources for: asking again for lost responses takes no more.
#[test]
fn reads_are_asked_for_again() {
    const LEN: usize = 65536;
    const READS: u64 = 100;
    const AT_ONCE: u64 = 16;
    for seed in 1..=8 {
        let attr = RtsAttr { timeout: 8, ..RtsAttr::default() };
        let options = Options { rts: attr, memory: AT_ONCE as usize * LEN, ..Options::default() };
        let mut pair: Pair<ModelBus> = linked(&options, Faults::loss(0.05), seed);
        let far = pair.ends[1].mr;
        let remote = pattern(seed, LEN);
        pair.fill(1, 0, &remote);
        let place = |read: u64| (read % AT_ONCE) as usize * LEN;
        let (mut sent, mut done) = (0, 0);
        while done < READS {
            while sent < READS && sent < done + AT_ONCE {
                let sge = [pair.ends[0].sge(place(sent), LEN)];
                pair.fill(0, place(sent), &[0; LEN]);
                pair.send(0, &SendRequest::read(sent, &sge, far.address, far.key));
                sent += 1;
            }
            while let Some((read, completion)) = pair.try_sent(0) {
                assert_eq!((read, completion.status), (done, Ok(())), "seed {seed}");
                assert!(
                    pair.ends[0].bytes(place(read), LEN) == remote,
                    "read {read} was garbled, seed {seed}"
                );
                done += 1;
            }
            pair.hcas[0].wait(None);
        }
        close(pair);
    }
}

/// The same seed gives the same history, another seed another one.
#[test]
fn a_seed_is_a_history() {
    let ends: Vec<Ps> = [1, 1, 2].map(|seed| exchange(Faults::loss(0.05), seed)).into();
    assert_eq!(ends[0], ends[1]);
    assert_ne!(ends[0], ends[2]);
}

/// Bytes of a place for a message.
const PLACE: usize = 8192;
/// Where written messages go at the far end: behind 64 places for receives.
const WRITTEN: usize = 64 * PLACE;
/// Where the far end has what is read: behind 32 places for writes.
const READ: usize = WRITTEN + 32 * PLACE;

/// Sends, writes and reads many messages and checks each. Returns the model time at the end.
fn exchange(faults: Faults, seed: u64) -> Ps {
    let what = format!("{faults:?}, seed {seed}");
    let rts = RtsAttr { timeout: 8, ..RtsAttr::default() };
    let options = Options { rts, memory: 1 << 20, recv_requests: 512, ..Options::default() };
    let mut pair: Pair<ModelBus> = linked(&options, faults, seed);
    let far = pair.ends[1].mr;
    let size = |message: u64| (message * 613 % 5000) as usize;
    let data = |message: u64| pattern(seed << 32 | message, size(message));
    let is_read = |message: u64| message % 4 == 3;
    let is_write = |message: u64| message % 4 == 1;
    let remote = pattern(seed, 5000);
    pair.fill(1, READ, &remote);
    for place in 0..MESSAGES {
        pair.recv(1, place, place as usize % 64 * PLACE, PLACE);
    }
    // What the far end is to be told of, in this order.
    let mut expected = (0..MESSAGES).filter(|m| !is_read(*m));
    let (mut sent, mut done, mut received) = (0, 0, 0);
    while done < MESSAGES || received < MESSAGES / 4 * 3 {
        while sent < MESSAGES && sent < done + 16 {
            let at = sent as usize % 32;
            let sge = [pair.ends[0].sge(at * PLACE, size(sent))];
            let op = if is_read(sent) {
                pair.fill(0, at * PLACE, &[0; PLACE]);
                SendOp::Read { address: far.address + READ as u64, rkey: far.key }
            } else {
                pair.fill(0, at * PLACE, &data(sent));
                match is_write(sent) {
                    true => {
                        let address = far.address + (WRITTEN + at * PLACE) as u64;
                        SendOp::Write { address, rkey: far.key, imm: Some(sent as u32) }
                    }
                    false => SendOp::Send { imm: Some(sent as u32) },
                }
            };
            pair.send(0, &SendRequest::new(sent, op, &sge));
            sent += 1;
        }
        while let Some((wr_id, completion)) = pair.try_sent(0) {
            assert_eq!((wr_id, completion.status), (done, Ok(())), "{what}");
            if is_read(wr_id) {
                let got = pair.ends[0].bytes(wr_id as usize % 32 * PLACE, size(wr_id));
                assert!(got == remote[..got.len()], "read {wr_id} was garbled, {what}");
            }
            done += 1;
        }
        while let Some((place, completion)) = pair.try_received(1) {
            let message = expected.next().expect("no more messages than were sent");
            assert_eq!((completion.status, completion.imm), (Ok(()), Some(message as u32)), "{what}");
            assert_eq!((place, completion.byte_len as usize), (received, size(message)), "{what}");
            let at = match is_write(message) {
                true => WRITTEN + message as usize % 32 * PLACE,
                false => place as usize % 64 * PLACE,
            };
            assert!(pair.ends[1].bytes(at, size(message)) == data(message), "{message} was garbled, {what}");
            received += 1;
        }
        pair.hcas[0].wait(None);
    }
    assert_eq!((pair.try_received(1), pair.try_sent(0)), (None, None), "{what}");
    let end = pair.hcas[0].bus_mut().simulation().now();
    close(pair);
    end
}
