//! A guest's work requests: more of them than anybody else would post, and longer ones.

use std::time::Duration;

use hca_driver::vfio_user::VfioUserBus;
use hca_driver::wqe::SendOp;
use hca_driver::{Bus, Error, SendRequest, Sge};
use hca_spec::qpc::ServiceType;

use super::Row;
use super::stage::{Attacker, Failure};
use crate::pair::{Options, Pair};

/// The cases.
pub const ROWS: &[Row] = &[
    Row::new("guest: 1000 writes of 1 MiB with one doorbell, MTU 256", small_packets),
    Row::new("guest: 2000 writes of 1 MiB with one doorbell, MTU 4096", |a| burst(a, 5, 2000)),
    Row::new("guest: 4000 writes of 1 MiB with one doorbell, captured", |a| burst(a, 5, 4000))
        .with(&["--pcap", "@/capture.pcapng"]),
    Row::new("guest: RDMA reads of 1 MiB, queue full", |a| {
        flood(a, &bulk(), |pair, i| {
            let (near, far) = ([pair.ends[0].sge(0, BULK)], pair.ends[1].mr);
            pair.ends[0].qp.queue_send(&SendRequest::read(i, &near, far.address, far.key))
        })
    }),
    Row::new("guest: atomics, queue full", |a| {
        flood(a, &small(), |pair, i| {
            let (near, far) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
            let op = SendOp::FetchAdd { address: far.address, rkey: far.key, add: 1 };
            pair.ends[0].qp.queue_send(&SendRequest::new(i, op, &near))
        })
    }),
    Row::new("guest: NOPs, queue of 32768", |a| {
        flood(a, &Options { send_blocks: 32768, cqes: 32768, ..Options::default() }, |pair, i| {
            pair.ends[0].qp.queue_send(&SendRequest::new(i, SendOp::Nop, &[]).signal_each(i, 64))
        })
    }),
    Row::new("guest: UC messages of 1 byte, queue full", |a| {
        flood(a, &Options { service: ServiceType::Uc, ..small() }, |pair, i| {
            let far = pair.ends[1].mr;
            let op = SendOp::Write { address: far.address, rkey: far.key, imm: None };
            pair.ends[0].qp.queue_send(&SendRequest::new(i, op, &[]).inline(&[1]))
        })
    }),
    Row::new("guest: messages of 1 GiB out of 2 MiB pages", huge),
    Row::new("guest: WQEs of 60 pieces of 1 byte, queue full", |a| {
        flood(a, &Options { send_blocks: 8192, ..small() }, |pair, i| {
            let (pieces, far) = (pieces(pair, 1), pair.ends[1].mr);
            pair.ends[0].qp.queue_send(&SendRequest::write(i, &pieces, far.address, far.key))
        })
    }),
    Row::new("guest: completion queue that overflows, over and over", overflow),
];

/// Bytes of a long message.
const BULK: usize = 1 << 20;
/// Most pieces of a write: what a WQE has room for.
pub const PIECES: usize = 60;

/// Queue pairs for long messages at the smallest MTU.
fn bulk() -> Options {
    Options { memory: BULK, mtu: 1, send_blocks: 1024, cqes: 1024, ..Options::default() }
}

/// Queue pairs for short messages.
fn small() -> Options {
    Options { send_blocks: 4096, cqes: 4096, ..Options::default() }
}

/// [`PIECES`] pieces of an end's memory.
fn pieces(pair: &Pair<VfioUserBus>, len: usize) -> [Sge; PIECES] {
    std::array::from_fn(|i| pair.ends[0].sge(i * 64, len))
}

/// A request that is signalled only sometimes.
trait Signalled {
    /// Signalled if its number is a multiple of `step`.
    fn signal_each(self, number: u64, step: u64) -> Self;
}

impl Signalled for SendRequest<'_> {
    fn signal_each(self, number: u64, step: u64) -> Self {
        Self { signaled: number.is_multiple_of(step), ..self }
    }
}

/// Takes the completions that are there; gives how many there were, and how many were errors.
pub fn take(pair: &mut Pair<VfioUserBus>) -> (u64, u64) {
    let (mut done, mut errors) = (0, 0);
    while let Some((_, completion)) = pair.try_sent(0) {
        done += 1;
        errors += u64::from(completion.status.is_err());
    }
    (done, errors)
}

/// Keeps the send queue of end 0 full while the attack lasts. `queue` queues request number so and so.
///
/// # Errors
/// The adapter does not come up, a request can't be built, or none was done.
pub fn flood(
    attacker: &Attacker,
    options: &Options,
    mut queue: impl FnMut(&mut Pair<VfioUserBus>, u64) -> Result<(), Error>,
) -> Result<String, Failure> {
    let mut pair = attacker.pair(options)?;
    let (mut posted, mut done) = (0, 0);
    for _ in attacker.rounds() {
        loop {
            match queue(&mut pair, posted) {
                Ok(()) => posted += 1,
                Err(Error::QueueFull) => break,
                Err(error) => return Err(error.into()),
            }
        }
        pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
        std::thread::sleep(Duration::from_millis(1));
        let (more, errors) = take(&mut pair);
        if errors > 0 {
            return Err(format!("{errors} of {more} requests failed").into());
        }
        done += more;
    }
    if done == 0 {
        return Err("no request was done".into());
    }
    Ok(format!("{posted} requests posted, {done} completions"))
}

/// The writes of one doorbell in packets that are as small as they can be.
///
/// # Errors
/// The adapter does not come up.
pub fn small_packets(attacker: &Attacker) -> Result<String, Failure> {
    burst(attacker, 1, 1000)
}

/// One doorbell for `count` writes.
///
/// # Errors
/// The adapter does not come up.
pub fn burst(attacker: &Attacker, mtu: u8, count: u64) -> Result<String, Failure> {
    let mut pair = attacker.pair(&Options { mtu, send_blocks: 4096, cqes: 4096, ..bulk() })?;
    let (mut bursts, mut done) = (0, 0);
    for _ in attacker.rounds() {
        if done == bursts * count {
            for i in 0..count {
                let (near, far) = ([pair.ends[0].sge(0, BULK)], pair.ends[1].mr);
                pair.ends[0].qp.queue_send(&SendRequest::write(i, &near, far.address, far.key))?;
            }
            pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
            bursts += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
        done += take(&mut pair).0;
    }
    Ok(format!("{bursts} bursts of {count}, {done} writes done"))
}

/// Messages of 1 GiB, the longest that the adapter has, between the same two megabytes: all pages of a key are one.
fn huge(attacker: &Attacker) -> Result<String, Failure> {
    const PAGE: u32 = 21;
    const PAGES: usize = 512;
    const LEN: u64 = (PAGES as u64) << PAGE;
    let mut pair = attacker.pair(&Options { mtu: 5, ..bulk() })?;
    let mut keys = Vec::new();
    let mut memories = Vec::new();
    for end in 0..2 {
        let memory = pair.hcas[0].bus_mut().dma_alloc(1 << PAGE, 1 << PAGE).ok_or("no memory")?;
        let page = hca_driver::Dma::bus_address(&memory);
        let (pd, access) = (pair.ends[end].pd, hca_driver::Access::ALL);
        keys.push(pair.hcas[0].register_pages(pd, &vec![page; PAGES], PAGE, 0, LEN, access)?);
        memories.push(memory);
    }
    let near = [Sge { address: 0, len: LEN as u32, key: keys[0].key }];
    let (mut posted, mut done, mut errors) = (0, 0, 0);
    for _ in attacker.rounds() {
        while posted < done + 16 {
            pair.ends[0].qp.queue_send(&SendRequest::write(posted, &near, 0, keys[1].key))?;
            posted += 1;
        }
        pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
        std::thread::sleep(Duration::from_millis(1));
        let (more, bad) = take(&mut pair);
        (done, errors) = (done + more, errors + bad);
    }
    match errors {
        0 => Ok(format!("{posted} messages posted, {done} done")),
        _ => Err(format!("{errors} messages failed").into()),
    }
}

/// More completions than a queue has room for: an error of the queue and of what completes to it, and all anew.
fn overflow(attacker: &Attacker) -> Result<String, Failure> {
    let options = Options { cqes: 64, send_blocks: 1024, ..Options::default() };
    let mut hca = vec![attacker.driver(super::stage::MEMORY)?];
    let mut rounds = 0;
    for round in attacker.rounds() {
        let mut pair = Pair::connect(hca, &options)?;
        for i in 0..1024 {
            pair.ends[0].qp.queue_send(&SendRequest::new(i, SendOp::Nop, &[]))?;
        }
        pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
        std::thread::sleep(Duration::from_millis(5));
        for end in pair.ends {
            pair.hcas[0].destroy_qp(end.qp)?;
            pair.hcas[0].destroy_cq(end.send_cq)?;
            pair.hcas[0].destroy_cq(end.recv_cq)?;
            pair.hcas[0].deregister(end.mr)?;
        }
        hca = pair.hcas;
        rounds = round + 1;
    }
    Ok(format!("{rounds} times"))
}
