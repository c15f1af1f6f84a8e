//! Signature keys through our own driver: domains, errors, and the draining that follows them.

use hca_driver::umr::{pieces, strided};
use hca_driver::wqe::SendOp;
use hca_driver::{Access, Event, KeyChange, SendRequest, Sge, SignatureError};
use hca_spec::bsf::{BSF_WITH_INLINE, Bsf, Dif, GUARD_CRC, format, sig_err};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::Mkey;
use hca_spec::qpc::QpState;
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{assert_state, close, drain_events, everywhere, loopback};

/// Bytes of a block, of its signature, and of both.
const BLOCK: usize = 512;
const TUPLE: usize = 8;
const STRIDE: usize = BLOCK + TUPLE;
/// Where in an end's memory signatures are, if not between the blocks.
const TUPLES: usize = 0x8000;

/// A signature key at an end, with its two PSVs: memory and wire.
struct Signed {
    end: usize,
    key: Mkey,
    psvs: Vec<u32>,
}

fn signed(pair: &mut Pair<ModelBus>, end: usize) -> Signed {
    let (home, pd) = (pair.ends[end].home, pair.ends[end].pd);
    let psvs = pair.hcas[home].create_psvs(pd, 2).expect("CREATE_PSV");
    let key = pair.hcas[home].alloc_signature_key(pd, 4).expect("CREATE_MKEY");
    Signed { end, key, psvs }
}

impl Signed {
    fn post(&self, pair: &mut Pair<ModelBus>, op: SendOp, translations: &[u8]) -> Option<Syndrome> {
        pair.send(self.end, &SendRequest::new(77, op, &[]).inline(translations));
        pair.sent(self.end).1.syndrome()
    }

    /// Loads pieces and domains, and the seeds; `errors` were seen so far.
    fn load(&self, pair: &mut Pair<ModelBus>, mut bsf: Bsf, list: &[u8], len: usize, errors: u32) {
        bsf.set(Bsf::MEMORY_PSV, self.psvs[0]).set(Bsf::WIRE_PSV, self.psvs[1]);
        let change = KeyChange::new(self.key).enable(self.key.variant()).access(Access::ALL);
        let change = change.range(0, len as u64).signatures(bsf, errors);
        assert_eq!(self.post(pair, SendOp::Change(change), list), None);
        for psv in &self.psvs {
            assert_eq!(self.post(pair, SendOp::SetPsv { psv: *psv, value: 0 }, &[]), None);
        }
    }

    fn sge(&self, len: usize) -> Sge {
        Sge { address: 0, len: len as u32, key: self.key }
    }

    fn free(self, pair: &mut Pair<ModelBus>) {
        let home = pair.ends[self.end].home;
        pair.hcas[home].free_key(self.key).expect("DESTROY_MKEY");
        for psv in self.psvs {
            pair.hcas[home].destroy_psv(psv).expect("DESTROY_PSV");
        }
    }
}

fn dif(dif: &mut Dif) {
    dif.set(Dif::VALID, 1).set(Dif::REFRESH, 1).set(Dif::REPEAT, 1).set(Dif::GUARD, GUARD_CRC);
    dif.set(Dif::APP_TAG, 0x5aa5).set(Dif::REF_TAG, 1000).set(Dif::INCREMENT, 1).set(Dif::APP_MASK, 0xffff);
}

/// T10-DIF in these domains.
fn t10(memory: bool, wire: bool) -> Bsf {
    let mut bsf = Bsf::new();
    bsf.set(Bsf::PARTS, BSF_WITH_INLINE).set(Bsf::CHECK_MASK, 0xff).set(Bsf::RAW_DATA_SIZE, u32::MAX);
    if memory {
        bsf.set(Bsf::MEMORY, 1);
        dif(bsf.memory_dif_mut());
    }
    if wire {
        bsf.set(Bsf::WIRE, 1);
        dif(bsf.wire_dif_mut());
    }
    bsf
}

/// The signature error that must have come before anything else at the sender.
fn told(pair: &mut Pair<ModelBus>, end: usize) -> Option<SignatureError> {
    let completion = pair.ends[end].send_cq.poll()?;
    Some(completion.signature.unwrap_or_else(|| panic!("no signature error: {completion:?}")))
}

/// The sender inserts, the receiver keeps the signatures apart from the data; the way back strips them. The
/// blocks end in the middle of packets.
#[test]
pub(crate) fn insert_pass_and_strip() {
    const BLOCKS: usize = 7;
    everywhere(&Options::default(), |pair| {
        let (near, far) = (signed(pair, 0), signed(pair, 1));
        let data = pattern(3, BLOCKS * BLOCK);
        pair.fill(0, 0, &data);
        let plain = pieces(&[pair.ends[0].sge(0, data.len())]);
        near.load(pair, t10(false, true), &plain, data.len(), 1);
        // As the kernel's storage drivers lay it out: a block here, its signature there.
        let apart = [(pair.ends[1].sge(0, BLOCK), 0), (pair.ends[1].sge(TUPLES, TUPLE), 0)];
        let apart = strided(BLOCKS as u32, &apart);
        let mut same = t10(true, true);
        same.set(Bsf::SAME_STRUCTURE, 1).set(Bsf::WIRE, 0xff);
        far.load(pair, same, &apart, BLOCKS * STRIDE, 1);

        pair.send(0, &SendRequest::write(1, &[near.sge(BLOCKS * STRIDE)], 0, far.key));
        pair.sent_ok(0, 1);
        assert!(pair.ends[1].bytes(0, data.len()) == data);
        for block in 0..BLOCKS {
            let tuple = pair.ends[1].bytes(TUPLES + block * TUPLE, TUPLE);
            assert_eq!(tuple[2..6], [0x5a, 0xa5, 0, 0], "block {block}");
            assert_eq!(tuple[6..], (1000 + block as u16).to_be_bytes(), "block {block}");
        }
        assert!(pair.ends[1].recv_cq.poll().is_none(), "all is right");

        // Read back: checked and stripped at this end.
        pair.fill(0, 0, &vec![0; data.len()]);
        pair.send(0, &SendRequest::read(2, &[near.sge(BLOCKS * STRIDE)], 0, far.key));
        pair.sent_ok(0, 2);
        assert!(pair.ends[0].bytes(0, data.len()) == data);
        near.free(pair);
        far.free(pair);
    });
}

/// A signature that comes in two packets, with another whole one behind it, is right: it is put together once.
#[test]
pub(crate) fn signatures_are_cut_by_packets() {
    const BLOCKS: usize = 5;
    // The second packet begins two bytes into a signature.
    const FIRST: usize = 2 + 2 * BLOCK + TUPLE - 1024;
    everywhere(&Options::default(), |pair| {
        let (near, far) = (signed(pair, 0), signed(pair, 1));
        let data = pattern(5, BLOCKS * BLOCK);
        pair.fill(0, 0, &data);
        let [at_near, at_far] = [0, 1].map(|end: usize| pieces(&[pair.ends[end].sge(0, data.len())]));
        near.load(pair, t10(false, true), &at_near, data.len(), 1);
        far.load(pair, t10(false, true), &at_far, data.len(), 1);
        let piece = |at: usize, len: usize| Sge { address: at as u64, len: len as u32, key: near.key };
        for (at, len) in [(0, FIRST), (FIRST, BLOCKS * STRIDE - FIRST)] {
            pair.send(0, &SendRequest::write(1, &[piece(at, len)], at as u64, far.key));
            pair.sent_ok(0, 1);
        }
        assert!(pair.ends[1].bytes(0, data.len()) == data);
        for end in 0..2 {
            assert_eq!(told(pair, end), None, "end {end}: all is right");
            assert!(pair.ends[end].recv_cq.poll().is_none(), "end {end}: all is right");
        }
        near.free(pair);
        far.free(pair);
    });
}

/// A wrong signature is told once, with what is wrong and where, and the data goes on all the same.
#[test]
pub(crate) fn errors_are_told_once() {
    let mut pair = loopback(&Options::default());
    let near = signed(&mut pair, 0);
    let list = pieces(&[pair.ends[0].sge(0, 3 * STRIDE)]);
    let far = pair.ends[1].mr;
    let good = {
        // What is right is made by the adapter itself: received into the key.
        near.load(&mut pair, t10(true, false), &list, 3 * STRIDE, 1);
        pair.fill(1, 0, &pattern(4, 3 * BLOCK));
        pair.send(0, &SendRequest::read(1, &[near.sge(3 * BLOCK)], far.address, far.key));
        pair.sent_ok(0, 1);
        pair.ends[0].bytes(0, 3 * STRIDE)
    };
    assert_eq!(good[BLOCK + 2..STRIDE], [0x5a, 0xa5, 0, 0, 3, 232]);
    let send = |pair: &mut Pair<ModelBus>, at: Option<usize>| {
        let mut bytes = good.clone();
        if let Some(at) = at {
            bytes[at] ^= 1;
        }
        pair.fill(0, 0, &bytes);
        pair.send(0, &SendRequest::write(2, &[near.sge(3 * BLOCK)], far.address, far.key));
        drain_events(&mut pair.hcas[0]);
        let error = match pair.ends[0].send_cq.peek() {
            Some(c) if c.signature.is_some() => told(pair, 0),
            _ => None,
        };
        pair.sent_ok(0, 2);
        assert!(pair.ends[1].bytes(0, 10) == bytes[..10], "the data goes on");
        error
    };
    assert_eq!(send(&mut pair, None), None);
    let error = send(&mut pair, Some(STRIDE + BLOCK + 3)).expect("an application tag is wrong");
    assert_eq!((error.key, error.syndrome, error.domain), (near.key, sig_err::APP_TAG, sig_err::MEMORY));
    assert_eq!(error.offset, STRIDE as u64);
    assert_eq!((error.expected ^ error.actual) >> 32, 1);
    assert_eq!(send(&mut pair, Some(5)), None, "the driver has not said that it saw the first");
    near.load(&mut pair, t10(true, false), &list, 3 * STRIDE, 2);
    let error = send(&mut pair, Some(5)).expect("a guard is wrong");
    assert_eq!((error.syndrome, error.offset), (sig_err::GUARD, 0));
    near.free(&mut pair);
    close(pair);
}

/// A queue pair that was asked to stops at a signature error: what follows is not sent before it goes on.
#[test]
pub(crate) fn errors_drain_the_queue() {
    let options = Options { drain_on_signature_errors: true, ..Options::default() };
    let mut pair = loopback(&options);
    let near = signed(&mut pair, 0);
    let mut crc = Bsf::new();
    crc.set(Bsf::PARTS, BSF_WITH_INLINE).set(Bsf::CHECK_MASK, 0xf0).set(Bsf::MEMORY, 1);
    crc.set(Bsf::MEMORY_FORMAT, format::CRC32 | format::REPEAT);
    let list = pieces(&[pair.ends[0].sge(0, BLOCK + 4)]);
    near.load(&mut pair, crc, &list, BLOCK + 4, 1);
    pair.fill(0, 0, &pattern(8, BLOCK + 4));
    let far = pair.ends[1].mr;
    pair.recv(1, 5, 0, 64);
    let mut write = SendRequest::write(1, &[], far.address, far.key);
    let sges = [near.sge(BLOCK)];
    write.payload = hca_driver::Payload::Gather(&sges);
    pair.send(0, &write);
    let sges = [pair.ends[0].sge(0, 16)];
    let mut response = SendRequest::new(2, SendOp::Send { imm: None }, &sges);
    response.fence = true;
    pair.send(0, &response);
    let number = pair.ends[0].qp.number();
    let events = drain_events(&mut pair.hcas[0]);
    let drained = events.iter().any(|e| matches!(e, Event::Qp { qpn, .. } if *qpn == number));
    assert!(drained, "{events:?}");
    assert_eq!(told(&mut pair, 0).map(|e| e.syndrome), Some(sig_err::GUARD));
    assert_state(&mut pair, 0, QpState::SqDrained);
    pair.sent_ok(0, 1);
    assert!(pair.try_received(1).is_none(), "the response was not sent");
    pair.hcas[0].qp_drained_to_rts(&mut pair.ends[0].qp).expect("SQD2RTS");
    pair.sent_ok(0, 2);
    pair.received_ok(1, 5);
    near.free(&mut pair);
    close(pair);
}

/// A PSV of another domain, a range that the signatures don't fit into, a signature part that says nonsense.
#[test]
pub(crate) fn refusals() {
    let mut pair = loopback(&Options::default());
    let (near, far) = (signed(&mut pair, 0), signed(&mut pair, 1));
    let list = pieces(&[pair.ends[0].sge(0, STRIDE)]);
    near.load(&mut pair, t10(true, false), &list, STRIDE, 1);
    let target = pair.ends[1].mr;
    // 513 bytes of data need a byte behind the first block's signature.
    pair.send(0, &SendRequest::write(1, &[near.sge(BLOCK + 1)], target.address, target.key));
    assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::LocalProtection));
    // The far end may not set the near end's PSV.
    let set = SendOp::SetPsv { psv: near.psvs[0], value: 1 };
    assert_eq!(far.post(&mut pair, set, &[]), Some(Syndrome::LocalProtection));
    near.free(&mut pair);
    far.free(&mut pair);
    close(pair);

    let mut pair = loopback(&Options::default());
    let near = signed(&mut pair, 0);
    let mut bad = t10(true, false);
    bad.set(Bsf::MEMORY, 5);
    let change = KeyChange::new(near.key).enable(0).signatures(bad, 1);
    assert_eq!(near.post(&mut pair, SendOp::Change(change), &[]), Some(Syndrome::MemoryWindowBind));
    near.free(&mut pair);
    close(pair);
}
