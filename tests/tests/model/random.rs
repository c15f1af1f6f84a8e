//! Everything at random, both ways at once, against an oracle of what memory must hold.
//!
//! Each direction owns a region of the far end's memory. Requests of a direction are executed in order,
//! but for what follows a read: that needs the fence (IBTA 10.8.3.3). So the oracle applies a write when
//! it is posted, and a read must see what the region held when *it* was posted.

use std::collections::VecDeque;

use hca_driver::wqe::SendOp;
use hca_driver::{RtsAttr, SendRequest, Sge};
use hca_model::link::Faults;
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, Pair};
use hca_tests::rig::{close, linked, loopback};

/// Requests posted in each direction of a run.
const REQUESTS: usize = 300;
/// Bytes that a direction owns at the far end, for writes and reads.
const REGION: usize = 64 << 10;
/// Where receives go: behind the region.
const RECEIVES: usize = REGION;
/// Bytes of a receive.
const RECEIVE: usize = 16 << 10;
/// Receives that are posted at a time.
const POSTED: usize = 16;
/// Where the near end has its own data: behind the receives.
const SOURCE: usize = RECEIVES + POSTED * RECEIVE;
/// Places for data of requests under way.
const PLACES: usize = 32;
/// Bytes of a place.
const PLACE: usize = 16 << 10;

/// A small generator (xorshift64*): the same seed, the same run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// A length: often small, sometimes at a border of the MTU.
    fn length(&mut self, most: usize) -> usize {
        let len = match self.below(4) {
            0 => self.below(65),
            1 => (self.below(8) * 1024 + self.below(3)).saturating_sub(1),
            _ => self.below(most + 1),
        };
        len.min(most)
    }
}

/// A request under way: what a read must bring, and where it was to go.
struct Pending {
    wr_id: u64,
    signaled: bool,
    read: Option<(usize, Vec<u8>)>,
}

/// One direction, seen by an oracle.
#[derive(Default)]
struct Direction {
    /// What the region at the far end holds once everything posted is done.
    region: Vec<u8>,
    pending: VecDeque<Pending>,
    /// What the far end will receive: bytes (none for a write's immediate), immediate, solicited.
    messages: VecDeque<(Option<Vec<u8>>, Option<u32>, bool)>,
    posted: usize,
    completed: usize,
    receives: u64,
    reads_since_fence: bool,
}

struct Run {
    pair: Pair<ModelBus>,
    random: Random,
    directions: [Direction; 2],
    what: String,
}

impl Run {
    fn post(&mut self, near: usize) {
        let random = &mut self.random;
        let d = &mut self.directions[near];
        let far = self.pair.ends[1 - near].mr;
        let wr_id = d.posted as u64;
        let place = SOURCE + d.posted % PLACES * PLACE;
        let kind = random.below(10);
        let is_read = (7..9).contains(&kind);
        let len = random.length(PLACE);
        let offset = random.below(REGION - len + 1);
        let address = far.address + offset as u64;
        let inline = !is_read && len <= 400 && random.below(2) == 0;
        let imm = (random.below(2) == 0).then(|| random.next() as u32);
        let solicited = random.below(4) == 0;
        let data = if is_read { vec![0xaa; len] } else { random.bytes(len) };
        self.pair.fill(near, place, &data);

        // The place in up to five pieces, some of them empty.
        let mut cuts: Vec<usize> = (0..random.below(5)).map(|_| random.below(len + 1)).collect();
        cuts.extend([0, len]);
        cuts.sort_unstable();
        let sges: Vec<Sge> =
            cuts.windows(2).map(|w| self.pair.ends[near].sge(place + w[0], w[1] - w[0])).collect();

        let fence = d.reads_since_fence || random.below(10) == 0;
        let (op, read) = match kind {
            0..=2 => {
                d.messages.push_back((Some(data.clone()), imm, solicited));
                (SendOp::Send { imm }, None)
            }
            3..=6 => {
                d.region[offset..offset + len].copy_from_slice(&data);
                if imm.is_some() {
                    d.messages.push_back((None, imm, solicited));
                }
                (SendOp::Write { address, rkey: far.key, imm }, None)
            }
            7..9 => {
                let expected = d.region[offset..offset + len].to_vec();
                (SendOp::Read { address, rkey: far.key }, Some((place, expected)))
            }
            _ => (SendOp::Nop, None),
        };
        d.reads_since_fence = is_read || (d.reads_since_fence && !fence);
        let signaled = is_read || random.below(3) > 0 || d.posted + 1 == REQUESTS;
        let payload: &[Sge] = if op == SendOp::Nop { &[] } else { &sges };
        let request = SendRequest { signaled, solicited, fence, ..SendRequest::new(wr_id, op, payload) };
        let request = if inline && op != SendOp::Nop { request.inline(&data) } else { request };
        d.pending.push_back(Pending { wr_id, signaled, read });
        d.posted += 1;
        self.pair.send(near, &request);
    }

    fn post_receive(&mut self, near: usize) {
        let d = &mut self.directions[near];
        let at = RECEIVES + d.receives as usize % POSTED * RECEIVE;
        let cut = self.random.below(RECEIVE + 1);
        let end = &mut self.pair.ends[1 - near];
        let sges = [end.sge(at, cut), end.sge(at + cut, RECEIVE - cut)];
        assert_eq!(end.qp.post_recv(d.receives, &sges), Ok(()));
        d.receives += 1;
    }

    fn poll(&mut self, near: usize) {
        while let Some((wr_id, completion)) = self.pair.try_sent(near) {
            assert_eq!(completion.status, Ok(()), "{}", self.what);
            let d = &mut self.directions[near];
            loop {
                let done = d.pending.pop_front().expect("a completion belongs to a request");
                d.completed += 1;
                if done.wr_id == wr_id {
                    assert!(done.signaled, "{}: an unsignalled request was reported", self.what);
                    if let Some((place, expected)) = done.read {
                        let got = self.pair.ends[near].bytes(place, expected.len());
                        assert!(got == expected, "{}: read {wr_id} was garbled", self.what);
                    }
                    break;
                }
                assert!(!done.signaled, "{}: request {} was not reported", self.what, done.wr_id);
            }
        }
        while let Some((wr_id, completion)) = self.pair.try_received(1 - near) {
            let (data, imm, solicited) =
                self.directions[near].messages.pop_front().expect("a message that was sent");
            assert_eq!((completion.status, completion.imm), (Ok(()), imm), "{}", self.what);
            assert_eq!(completion.solicited, solicited, "{}", self.what);
            if let Some(data) = data {
                assert_eq!(completion.byte_len as usize, data.len(), "{}", self.what);
                let at = RECEIVES + wr_id as usize % POSTED * RECEIVE;
                assert!(self.pair.ends[1 - near].bytes(at, data.len()) == data, "{}: garbled", self.what);
            }
            self.post_receive(near);
        }
    }
}

fn run(faults: Option<Faults>, seed: u64) {
    let what = format!("seed {seed}, {faults:?}");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let rts = RtsAttr { timeout: 9, initiator_reads: 1 << random.below(5), ..RtsAttr::default() };
    let memory = SOURCE + PLACES * PLACE;
    let options = Options { rts, memory, mtu: 1 + random.below(5) as u8, rnr_timer: 3, ..Options::default() };
    let pair = match faults {
        Some(faults) => linked(&options, faults, seed),
        None => loopback(&options),
    };
    let mut run = Run { pair, random, directions: Default::default(), what };
    for near in 0..2 {
        run.directions[near].region = vec![0; REGION];
        // Receives are sometimes late: the sender meets "not ready".
        (0..run.random.below(POSTED) + 1).for_each(|_| run.post_receive(near));
    }
    while run.directions.iter().any(|d| d.completed < REQUESTS || !d.messages.is_empty()) {
        for near in 0..2 {
            let d = &run.directions[near];
            if d.posted < REQUESTS && d.pending.len() < PLACES - 1 && run.random.below(4) > 0 {
                // The ring holds 256 blocks; a request takes at most 8.
                run.post(near);
            }
            run.poll(near);
        }
        run.pair.hcas[0].wait(None);
    }
    for near in 0..2 {
        let held = run.pair.ends[1 - near].bytes(0, REGION);
        assert!(held == run.directions[near].region, "{}: the region differs", run.what);
        run.pair.hcas[0].wait(None);
        assert_eq!((run.pair.try_sent(near), run.pair.try_received(near)), (None, None), "{}", run.what);
    }
    close(run.pair);
}

#[test]
pub(crate) fn loopback_at_random() {
    (1..=6).for_each(|seed| run(None, seed));
}

#[test]
pub(crate) fn link_at_random() {
    (1..=6).for_each(|seed| run(Some(Faults::default()), seed));
}

#[test]
pub(crate) fn lossy_link_at_random() {
    let faults = Faults { loss: 0.02, duplicate: 0.01, corrupt: 0.01, ..Faults::default() };
    (1..=12).for_each(|seed| run(Some(faults.clone()), seed));
}
