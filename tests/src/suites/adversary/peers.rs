//! A guest's connections to peers that don't answer, refuse, or aren't there: what the transport does about that, over and
//! over.

use std::time::Duration;

use hca_driver::qp::{Path, QpConfig};
use hca_driver::vfio_user::VfioUserBus;
use hca_driver::wqe::SendOp;
use hca_driver::{Access, DctConfig, Error, InitAttr, RtrAttr, RtsAttr, ScatterToCqe, SendRequest, Target};
use hca_spec::ids::{Mkey, Qpn};

use super::Row;
use super::stage::{Attacker, Driver, Failure, MEMORY};
use crate::pair::{End, Options, PORT, Pair};

/// The cases.
pub const ROWS: &[Row] = &[
    Row::new("guest: 10 RC queue pairs whose peer is never ready, retried for ever", never_ready),
    Row::new("guest: 32 queue pairs that retry to nobody, shortest timeout", nobody),
    Row::new("guest: 1 MiB writes with an ACK timeout shorter than they take", impatient),
    Row::new("guest: 64 queue pairs to the error state with full queues", flushed),
    Row::new("guest: writes with wrong keys, connected anew each time", refused),
    Row::new("guest: DC initiators that change their target with each request", dynamic),
];

/// The shortest RNR timer: 0.01 ms (IBTA table 45).
const SHORTEST_RNR: u8 = 1;

/// Two queue pairs that are connected to each other.
type Ends = [End<VfioUserBus>; 2];

/// `count` pairs of queue pairs of one adapter.
///
/// # Errors
/// The adapter does not come up, or a command failed.
pub fn several(attacker: &Attacker, count: usize, options: &Options) -> Result<(Driver, Vec<Ends>), Failure> {
    let mut hca = attacker.driver(MEMORY)?;
    let mut all = Vec::new();
    for _ in 0..count {
        let Pair { mut hcas, ends } = Pair::connect(vec![hca], options)?;
        hca = hcas.remove(0);
        all.push(ends);
    }
    Ok((hca, all))
}

/// There is no receive request, and never will be.
///
/// # Errors
/// The adapter does not come up, or a send ended.
pub fn never_ready(attacker: &Attacker) -> Result<String, Failure> {
    let rts = RtsAttr { rnr_retries: 7, ..RtsAttr::default() };
    let options = Options { rts, rnr_timer: SHORTEST_RNR, ..Options::default() };
    let (mut hca, mut all) = several(attacker, 10, &options)?;
    for [near, _] in &mut all {
        let sge = [near.sge(0, 8)];
        near.qp.post_send(hca.bus_mut(), &SendRequest::send(1, &sge))?;
    }
    attacker.rounds().for_each(|_| std::thread::sleep(Duration::from_millis(10)));
    match all.iter_mut().any(|[near, _]| near.send_cq.poll().is_some()) {
        true => Err("a send ended, though nobody receives".into()),
        false => Ok("10 sends that wait".to_owned()),
    }
}

/// Queue pairs to a number that nobody has; whoever gives up begins again.
fn nobody(attacker: &Attacker) -> Result<String, Failure> {
    /// 4.096 us * 2.
    const SHORTEST: u8 = 1;
    let (mut hca, mut all) = several(attacker, 32, &Options::default())?;
    let lid = hca.lid(PORT)?;
    let rts = RtsAttr { timeout: SHORTEST, retries: 7, ..RtsAttr::default() };
    let (mut again, mut idle) = (0, vec![true; all.len()]);
    for _ in attacker.rounds() {
        for ([near, _], idle) in all.iter_mut().zip(&mut idle) {
            *idle |= near.send_cq.poll().is_some();
            if !std::mem::take(idle) {
                continue;
            }
            hca.qp_to_reset(&mut near.qp)?;
            hca.qp_to_init(&mut near.qp, &InitAttr::default())?;
            hca.qp_to_rtr(&mut near.qp, &RtrAttr::new(Qpn(0xff_fff0), Path::lid(lid)))?;
            hca.qp_to_rts(&mut near.qp, &rts)?;
            let sge = [near.sge(0, 8192)];
            for i in 0..32 {
                let write = SendRequest::write(i, &sge, 0, Mkey(0x100));
                near.qp.queue_send(&write)?;
            }
            near.qp.ring_doorbell(hca.bus_mut());
            again += 1;
        }
    }
    Ok(format!("{again} times given up"))
}

/// Each write is sent again while its first try is under way.
fn impatient(attacker: &Attacker) -> Result<String, Failure> {
    const LEN: usize = 1 << 20;
    let rts = RtsAttr { timeout: 1, retries: 7, ..RtsAttr::default() };
    let options = Options { rts, memory: LEN, mtu: 1, ..Options::default() };
    let (mut hca, mut all) = several(attacker, 4, &options)?;
    let mut connected = 0;
    for _ in attacker.rounds() {
        for ends in &mut all {
            let far = ends[1].mr;
            let sge = [ends[0].sge(0, LEN)];
            let mut failed = false;
            while let Some(completion) = ends[0].send_cq.poll() {
                ends[0].qp.finish(&completion);
                failed |= completion.status.is_err();
            }
            if failed {
                reconnect(&mut hca, ends, &options)?;
                connected += 1;
            }
            while ends[0].qp.queue_send(&SendRequest::write(1, &sge, far.address, far.key)).is_ok() {}
            ends[0].qp.ring_doorbell(hca.bus_mut());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(format!("connected anew {connected} times"))
}

/// Takes both ends to RESET and connects them again.
fn reconnect(hca: &mut Driver, ends: &mut Ends, options: &Options) -> Result<(), Error> {
    let lid = hca.lid(PORT)?;
    let numbers = [ends[1].qp.number(), ends[0].qp.number()];
    for (end, peer) in ends.iter_mut().zip(numbers) {
        hca.qp_to_reset(&mut end.qp)?;
        hca.qp_to_init(&mut end.qp, &InitAttr { access: options.queue_access, ..InitAttr::default() })?;
        let rtr = RtrAttr { mtu: options.mtu, ..RtrAttr::new(peer, Path::lid(lid)) };
        hca.qp_to_rtr(&mut end.qp, &rtr)?;
        hca.qp_to_rts(&mut end.qp, &options.rts)?;
    }
    Ok(())
}

/// Everything that is posted completes in error at once.
fn flushed(attacker: &Attacker) -> Result<String, Failure> {
    const REQUESTS: u32 = 1024;
    let options =
        Options { send_blocks: REQUESTS, recv_requests: REQUESTS, cqes: REQUESTS, ..Options::default() };
    let (mut hca, mut all) = several(attacker, 64, &options)?;
    let mut flushed = 0;
    for _ in attacker.rounds() {
        for ends in &mut all {
            let sge = [ends[0].sge(0, 64)];
            while ends[0].qp.post_recv(1, &sge).is_ok() {}
            while ends[0].qp.queue_send(&SendRequest::send(1, &sge)).is_ok() {}
            ends[0].qp.ring_doorbell(hca.bus_mut());
            hca.qp_to_error(&mut ends[0].qp)?;
        }
        for ends in &mut all {
            while ends[0].send_cq.poll().is_some() || ends[0].recv_cq.poll().is_some() {
                flushed += 1;
            }
            reconnect(&mut hca, ends, &options)?;
        }
    }
    match flushed {
        0 => Err("nothing was flushed".into()),
        n => Ok(format!("{n} requests ended")),
    }
}

/// The responder refuses, both ends are in error, and all begins anew: each time with events and diagnoses.
fn refused(attacker: &Attacker) -> Result<String, Failure> {
    let (mut hca, mut all) = several(attacker, 16, &Options::default())?;
    let mut errors = 0;
    for _ in attacker.rounds() {
        for ends in &mut all {
            let (sge, far) = ([ends[0].sge(0, 64)], ends[1].mr);
            ends[0].qp.post_send(hca.bus_mut(), &SendRequest::write(1, &sge, far.address, Mkey(7)))?;
        }
        for ends in &mut all {
            errors += std::iter::from_fn(|| ends[0].send_cq.poll()).count();
            reconnect(&mut hca, ends, &Options::default())?;
        }
        while hca.poll_event()?.is_some() {}
    }
    match errors {
        0 => Err("nothing was refused".into()),
        n => Ok(format!("{n} errors")),
    }
}

/// Each request connects to another target.
fn dynamic(attacker: &Attacker) -> Result<String, Failure> {
    const KEY: u64 = 77;
    const TARGETS: usize = 64;
    const INITIATORS: usize = 16;
    let mut pair = attacker.pair(&Options { cqes: 1 << 14, ..Options::default() })?;
    let (pd, cq, far) = (pair.ends[1].pd, pair.ends[1].recv_cq.number(), pair.ends[1].mr);
    let srq = pair.hcas[0].create_srq(pd, 31, 2)?.number();
    let lid = pair.hcas[0].lid(PORT)?;
    let mut targets = Vec::new();
    for _ in 0..TARGETS {
        let config = DctConfig {
            pd,
            cq,
            srq,
            access_key: KEY,
            access: Access::ALL,
            mtu: 3,
            rnr_timer: SHORTEST_RNR,
            scatter_to_cqe: ScatterToCqe::Off,
        };
        let dct = pair.hcas[0].create_dct(&config)?;
        targets.push(Target { dctn: dct.number(), access_key: KEY, lid, gid: None, roce: None });
    }
    let mut initiators = Vec::new();
    for _ in 0..INITIATORS {
        let config = QpConfig::dci(pair.ends[0].pd, &pair.ends[0].send_cq);
        let mut qp = pair.hcas[0].create_qp(&config)?;
        pair.hcas[0].qp_to_init(&mut qp, &InitAttr::default())?;
        pair.hcas[0].dci_to_rtr(&mut qp, 3)?;
        pair.hcas[0].qp_to_rts(&mut qp, &RtsAttr::default())?;
        initiators.push(qp);
    }
    let (mut posted, mut done) = (0usize, 0);
    let sge = [pair.ends[0].sge(0, 8)];
    for _ in attacker.rounds() {
        for qp in &mut initiators {
            let op = SendOp::Write { address: far.address, rkey: far.key, imm: None };
            let request = |n: usize| SendRequest::new(n as u64, op, &sge).to_target(targets[n % TARGETS]);
            while qp.queue_send(&request(posted)).is_ok() {
                posted += 1;
            }
            qp.ring_doorbell(pair.hcas[0].bus_mut());
        }
        std::thread::sleep(Duration::from_millis(1));
        while let Some(completion) = pair.ends[0].send_cq.poll() {
            if let Some(qp) = initiators.iter_mut().find(|qp| qp.number() == completion.qpn) {
                qp.finish(&completion);
            }
            if completion.status.is_err() {
                return Err(format!("{completion:?}").into());
            }
            done += 1;
        }
    }
    match done {
        0 => Err("no request was done".into()),
        _ => Ok(format!("{posted} requests posted, {done} done")),
    }
}
