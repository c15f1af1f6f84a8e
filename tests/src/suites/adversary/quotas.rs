//! A guest with a quota in the topology that takes all it can get: the server's memory grows by the quota and by
//! [`SERVER_KIB`], which is what serving takes whatever a guest does.

use std::time::Duration;

use hca_driver::qp::{Path, QpConfig};
use hca_driver::{Access, Bus, Dma, InitAttr, RtrAttr, RtsAttr, SendRequest};
use hca_server::control;
use hca_spec::command::Status;
use hca_spec::ids::{Mkey, Qpn};

use super::stage::{Attacker, Driver, Failure, MEMORY, Setting};
use super::{Row, work};
use crate::million::{Ground, Kind, create};
use crate::pair::{Options, PORT};

/// The cases.
pub const ROWS: &[Row] = &[
    quota("guest with icm = \"32M\": completion queues until no more are given", ICM, 32 << 10, |a| {
        filled(a, |hca, ground| create(hca, ground, Kind::Cq, SOME).map(|made| made.len()))
    }),
    quota("guest with icm = \"32M\": queue pairs until no more are given", ICM, 32 << 10, |a| {
        filled(a, |hca, ground| create(hca, ground, Kind::Qp, SOME).map(|made| made.len()))
    }),
    quota("guest with icm = \"32M\": keys of 4096 pages until no more are given", ICM, 32 << 10, keys),
    quota("guest with events = 1024: 2048 queue pairs whose timers run", EVENTS, KIB_OF_EVENTS, timers),
    quota("guest with capture = \"16M\": bursts of 4000 writes of 1 MiB, captured", CAPTURE, 0, captured)
        .with(&["--pcap", "@/capture.pcapng", "--pcap-port", "a/hca0"]),
];

/// What the server's memory may grow by beside a quota, in KiB: connections of two clients, queues of their adapters, what the
/// allocator keeps.
pub const SERVER_KIB: u64 = 32 << 10;
/// What [`EVENTS`] allows, a KiB each.
const KIB_OF_EVENTS: u64 = LIMIT;
const LIMIT: u64 = 1024;
/// Bytes of [`CAPTURE`], and what a capture file has beside packets: its head, and those that were gathered when it was full.
const CAPTURED: u64 = 16 << 20;
const BESIDE: u64 = 2 << 20;
/// Objects of one go.
const SOME: u32 = 1024;
/// More than any quota here: then there is none.
const FAR_TOO_MANY: usize = 600_000;

const ICM: &str =
    "[[host]]\nname = \"a\"\n[[host.hca]]\nicm = \"32M\"\n[[host]]\nname = \"v\"\n[[host.hca]]\n";
const EVENTS: &str =
    "[[host]]\nname = \"a\"\n[[host.hca]]\nevents = 1024\n[[host]]\nname = \"v\"\n[[host.hca]]\n";
const CAPTURE: &str =
    "[[host]]\nname = \"a\"\n[[host.hca]]\ncapture = \"16M\"\n[[host]]\nname = \"v\"\n[[host.hca]]\n";

/// A case with a quota that is worth `kib` of the server's memory.
const fn quota(name: &'static str, topology: &'static str, kib: u64, attack: super::Attack) -> Row {
    let row = Row::new(name, attack).within(kib + SERVER_KIB);
    Row { setting: Setting { topology: Some(topology), ..row.setting }, ..row }
}

/// Makes objects until the adapter is full, and keeps them.
fn filled(
    attacker: &Attacker,
    some: impl Fn(&mut Driver, &Ground<hca_driver::vfio_user::VfioUserBus>) -> Result<usize, hca_driver::Error>,
) -> Result<String, Failure> {
    let mut hca = attacker.driver(8 * MEMORY)?;
    let ground = Ground::new(&mut hca)?;
    until_refused(attacker, || some(&mut hca, &ground))
}

/// Keys, each with a list of its own, over one page.
fn keys(attacker: &Attacker) -> Result<String, Failure> {
    const PAGES: usize = 4096;
    let mut hca = attacker.driver(8 * MEMORY)?;
    let pd = hca.alloc_pd()?;
    let page = hca.bus_mut().dma_alloc(4096, 4096).ok_or("no memory")?;
    let pages = vec![page.bus_address(); PAGES];
    until_refused(attacker, || {
        hca.register_pages(pd, &pages, 12, 0, (PAGES * 4096) as u64, Access::ALL).map(|_| 1)
    })
}

/// Goes on until the adapter says that it is full, and waits until the attack is over: what was made is there all the while.
fn until_refused(
    attacker: &Attacker,
    mut some: impl FnMut() -> Result<usize, hca_driver::Error>,
) -> Result<String, Failure> {
    let mut made = 0;
    let rounds = attacker.rounds();
    let refused = loop {
        match some() {
            Ok(more) => made += more,
            Err(why) => break why,
        }
        if made > FAR_TOO_MANY {
            return Err(format!("{made} were made, and no end").into());
        }
    };
    if refused.status() != Some(Status::ExceedLimit) {
        return Err(format!("refused after {made}: {refused}").into());
    }
    rounds.for_each(|_| std::thread::sleep(Duration::from_millis(10)));
    Ok(format!("refused after some {made}"))
}

/// Each queue pair sends to nobody, and waits for an answer: that is an event each.
fn timers(attacker: &Attacker) -> Result<String, Failure> {
    const QUEUE_PAIRS: usize = 2048;
    /// 4.096 us * 2^20: nobody gives up meanwhile.
    const LONG: u8 = 20;
    /// Each may have a packet on its way, and what it does next, when the bound is met.
    const OF_WORK: u64 = 64;
    let mut pair = attacker.pair(&Options { cqes: 1 << 14, ..Options::default() })?;
    let lid = pair.hcas[0].lid(PORT)?;
    let config = QpConfig::rc(pair.ends[0].pd, &pair.ends[0].send_cq, &pair.ends[0].recv_cq);
    let mut queue_pairs = Vec::new();
    for _ in 0..QUEUE_PAIRS {
        let hca = &mut pair.hcas[0];
        let mut qp = hca.create_qp(&config)?;
        hca.qp_to_init(&mut qp, &InitAttr::default())?;
        hca.qp_to_rtr(&mut qp, &RtrAttr::new(Qpn(0xff_fff0), Path::lid(lid)))?;
        hca.qp_to_rts(&mut qp, &RtsAttr { timeout: LONG, ..RtsAttr::default() })?;
        queue_pairs.push(qp);
    }
    let sge = [pair.ends[0].sge(0, 64)];
    for qp in &mut queue_pairs {
        qp.post_send(pair.hcas[0].bus_mut(), &SendRequest::write(1, &sge, 0, Mkey(0x100)))?;
    }
    let (mut most, mut held) = (0, 0);
    for _ in attacker.rounds() {
        let stat = control::query(&attacker.control(), "stat")?;
        let events = |name: &str| stat["hcas"][0]["events"][name].as_u64().ok_or("no count of events");
        (most, held) = (events("waiting")?.max(most), events("doorbells_held")?);
        std::thread::sleep(Duration::from_millis(50));
    }
    match (most, held) {
        (_, 0) => Err(format!("{most} events wait, and no doorbell").into()),
        (most, _) if most > LIMIT + LIMIT / 64 + OF_WORK => Err(format!("{most} events wait").into()),
        _ => Ok(format!("{most} events waited, {held} doorbells were held")),
    }
}

/// What is in the capture's file has a bound.
fn captured(attacker: &Attacker) -> Result<String, Failure> {
    let did = work::burst(attacker, 5, 4000)?;
    let file = std::fs::metadata(attacker.dir().join("capture.pcapng"))?.len();
    match file {
        file if file > CAPTURED + BESIDE => Err(format!("the capture has {} MiB", file >> 20).into()),
        file if file < CAPTURED / 2 => Err(format!("the capture has {file} bytes only").into()),
        file => Ok(format!("{did}; the capture has {} KiB", file >> 10)),
    }
}
