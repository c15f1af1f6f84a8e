//! A guest on an Ethernet port: malformed work requests, large sends, flow tables, storms; and software at the end of a link.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use hca_driver::eth::{
    Destination, FlowEntry, FrameRequest, FrameWork, Mac, QueueState, Rq, RqConfig, Sq, SqConfig, Tir,
    TransportDomain,
};
use hca_driver::vfio_user::WindowMemory;
use hca_driver::{Access, Bus, Cq, CqConfig, Dma, Error, Mr, Sge};
use hca_spec::flow::{MatchLayers, MatchParam, TableType, criteria};
use hca_spec::ids::{Mkey, Pd};
use hca_spec::mkc::AccessMode;

use super::Row;
use super::keys::made;
use super::stage::{ATTACKER, Attacker, BYSTANDER, Driver, Failure, MEMORY, driver};
use crate::frames::{framed, plain};
use crate::pair::pattern;
use hca_driver::umr::pieces;

/// The cases.
pub const ROWS: &[Row] = &[
    Row::new("guest, Ethernet: malformed WQEs", malformed).ethernet(),
    Row::new("guest, Ethernet: LSO of 256 KiB with an MSS of 1 byte, queue full", |a| {
        large_sends(a, |station| Ok(station.sge(0, LARGE)))
    })
    .ethernet(),
    Row::new("guest, Ethernet: the same out of a key of 65536 pieces", |a| {
        large_sends(a, |station| {
            let key = station.scattered()?;
            Ok(Sge { address: 0, len: PIECES as u32 * 4, key })
        })
    })
    .ethernet(),
    Row::new(
        "guest, Ethernet: each frame to 63 queues, 63 times, whose requests are keys of 65536 pieces",
        copies,
    )
    .ethernet(),
    Row::new("guest, Ethernet: frames through 64 levels of tables with 30 criteria each", levels).ethernet(),
    Row::new("guest, Ethernet: a flow table filled to the brim, and emptied", filled).ethernet(),
    Row::new("guest, Ethernet: receive queues of 32768 requests, failed over and over", failing).ethernet(),
    Row::new("guest, Ethernet: PAUSE of all priorities, as fast as it can", |a| {
        storm(a, |_, station| {
            // 802.3 annex 31B: opcode 1, all quanta; and the same by priority (opcode 0x0101).
            let control = Mac([1, 0x80, 0xc2, 0, 0, 1]);
            let all = [&[0, 1, 0xff, 0xff][..], &[0; 42]].concat();
            let each = [&[1, 1, 0, 0xff][..], &[0xff; 16], &[0; 26]].concat();
            [all, each].iter().map(|payload| framed(control, station.mac, None, 0x8808, payload)).collect()
        })
    })
    .ethernet(),
    Row::new("guest, Ethernet: broadcasts of 64 bytes, as fast as it can", |a| {
        storm(a, |_, station| vec![plain(Mac([0xff; 6]), station.mac, &[0; 46])])
    })
    .ethernet(),
    Row::new("guest, Ethernet: frames with the victim's address as source, to all", |a| {
        storm(a, |attacker, _| vec![plain(Mac([0xff; 6]), attacker.victim_mac(), &[0; 46])])
    })
    .ethernet(),
    Row::new("guest, Ethernet: frames to and from ever new addresses", |a| {
        storm(a, |_, _| {
            let address = |n: usize, kind| Mac([2, kind, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
            (0..4096).map(|n| plain(address(n, 1), address(n, 2), &[0; 46])).collect()
        })
    })
    .ethernet(),
    Row::new("guest, Ethernet: long frames to the victim's address", |a| {
        storm(a, |attacker, station| vec![plain(attacker.victim_mac(), station.mac, &[0; 1486])])
    })
    .ethernet(),
    Row::new("outside: frames of any bytes to the server's socket, as fast as they go", rubbish).outside(),
    Row::new("outside: broadcasts of 1514 bytes, as fast as they go", |a| {
        let frame = plain(Mac([0xff; 6]), Mac([2, 0, 0, 0, 0, 9]), &[0; 1500]);
        datagrams(a, move |_| frame.clone())
    })
    .outside(),
];

/// Bytes of the largest send.
const LARGE: usize = 1 << 18;
/// Pieces of the longest list.
const PIECES: usize = 1 << 16;
/// Basic blocks of a send queue.
const BLOCKS: u32 = 4096;

/// The attacker's queues.
struct Station {
    hca: Driver,
    mac: Mac,
    pd: Pd,
    domain: TransportDomain,
    cq: Cq<WindowMemory>,
    sq: Sq<WindowMemory>,
    memory: WindowMemory,
    mr: Mr,
}

impl Station {
    /// On the attacker's adapter, or the bystander's.
    fn on(attacker: &Attacker, host: &str) -> Result<Self, Failure> {
        let mut hca = driver(attacker.bus(host, 2 * MEMORY)?)?;
        let mac = hca.mac()?;
        let (pd, domain) = (hca.alloc_pd()?, hca.alloc_transport_domain()?);
        let cq = hca.create_cq(CqConfig::new(2 * BLOCKS))?;
        let memory = hca.bus_mut().dma_alloc(LARGE, 4096).ok_or("no memory")?;
        let mr = hca.register(pd, &memory, LARGE, Access::LOCAL_WRITE)?;
        let tis = hca.create_tis(domain, 0)?;
        let config = SqConfig { blocks: BLOCKS, ..SqConfig::new(tis, pd, &cq) };
        let mut sq = hca.create_sq(&config)?;
        hca.modify_sq(&mut sq, QueueState::Ready)?;
        while !hca.vport_is_up()? {
            hca.wait(None);
        }
        Ok(Self { hca, mac, pd, domain, cq, sq, memory, mr })
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { address: self.mr.address + at as u64, len: len as u32, key: self.mr.key }
    }

    /// A key of so many pieces of four bytes.
    fn scattered(&mut self) -> Result<Mkey, Failure> {
        let list = pieces(&vec![self.sge(0, 4); PIECES]);
        Ok(made(&mut self.hca, self.pd, AccessMode::Klm, &list, PIECES as u64 * 4)?)
    }

    /// Completions that came: all, and errors.
    fn sent(&mut self) -> (u64, u64) {
        let (mut done, mut errors) = (0, 0);
        while let Some(completion) = self.cq.poll() {
            if self.sq.finish(&completion).is_some() {
                done += 1;
                errors += u64::from(completion.status.is_err());
            }
        }
        (done, errors)
    }

    /// Posts `request` until the queue is full.
    fn fill(&mut self, request: &FrameRequest<'_>) -> Result<(), Error> {
        loop {
            match self.sq.post(self.hca.bus_mut(), request) {
                Ok(()) => {}
                Err(Error::QueueFull) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The send queue begins anew.
    fn again(&mut self) -> Result<(), Error> {
        while self.cq.poll().is_some() {}
        if self.hca.modify_sq(&mut self.sq, QueueState::Reset).is_err() {
            // The adapter took it to error by itself.
            self.hca.sq_state(&mut self.sq)?;
            self.hca.modify_sq(&mut self.sq, QueueState::Reset)?;
        }
        self.hca.modify_sq(&mut self.sq, QueueState::Ready)
    }

    /// A receive queue of so many requests, each of which lies at `place`; and a TIR that leads to it.
    fn receives(
        &mut self,
        requests: u32,
        place: Sge,
    ) -> Result<(Rq<WindowMemory>, Cq<WindowMemory>, Tir), Failure> {
        let cq = self.hca.create_cq(CqConfig::new(2 * requests))?;
        let config = RqConfig { requests, sges: 1, ..RqConfig::new(self.pd, &cq) };
        let mut rq = self.hca.create_rq(&config)?;
        self.hca.modify_rq(&mut rq, QueueState::Ready)?;
        for i in 0..requests {
            rq.post(i.into(), &[place])?;
        }
        let tir = self.hca.create_direct_tir(self.domain, rq.number())?;
        Ok((rq, cq, tir))
    }
}

/// WQEs of noise that say how long they are, and some whose opcode is right.
fn malformed(attacker: &Attacker) -> Result<String, Failure> {
    const OPCODES: [u8; 6] = [0x00, 0x0a, 0x0e, 0x25, 0x29, 0x0d];
    let mut station = Station::on(attacker, ATTACKER)?;
    let (mut posted, mut errors) = (0u64, 0);
    for round in attacker.rounds() {
        let noise = pattern(round + 1, 1024);
        let units = usize::from(noise[0] % 63) + 1;
        let mut wqe = noise[..(units * 16).next_multiple_of(64)].to_vec();
        let number = station.sq.number().0;
        wqe[3] = OPCODES[usize::from(noise[1]) % OPCODES.len()];
        wqe[1..3].copy_from_slice(&station.sq.next_index().to_be_bytes());
        wqe[4..8].copy_from_slice(&(number << 8 | units as u32).to_be_bytes());
        wqe[11] = 8;
        match station.sq.post_raw(station.hca.bus_mut(), round, &wqe) {
            Ok(()) => posted += 1,
            Err(Error::QueueFull) => {
                std::thread::sleep(Duration::from_millis(1));
                errors += station.sent().1;
                station.again()?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(format!("{posted} posted, {errors} errors seen"))
}

/// A TCP header to cut by.
fn tcp(to: Mac, from: Mac) -> Vec<u8> {
    let mut header = framed(to, from, None, 0x0800, &[0; 40]);
    header[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    header[46] = 5 << 4;
    header.truncate(54);
    header
}

fn large_sends(
    attacker: &Attacker,
    data: impl FnOnce(&mut Station) -> Result<Sge, Failure>,
) -> Result<String, Failure> {
    let mut station = Station::on(attacker, ATTACKER)?;
    let data = [data(&mut station)?];
    let header = tcp(Mac([0xff; 6]), station.mac);
    let mut done = 0;
    for _ in attacker.rounds() {
        station.fill(&FrameRequest::new(1, &header, &data).work(FrameWork::Large { mss: 1 }))?;
        std::thread::sleep(Duration::from_millis(1));
        let (more, errors) = station.sent();
        if errors > 0 {
            return Err(format!("{errors} sends failed").into());
        }
        done += more;
    }
    Ok(format!("{done} sends"))
}

/// Entries that lead to tables, whose entries lead to queues: 63 times 63 copies were it not for their bound.
fn copies(attacker: &Attacker) -> Result<String, Failure> {
    const WIDTH: usize = 63;
    let mut station = Station::on(attacker, ATTACKER)?;
    let key = station.scattered()?;
    // The last pieces of the list: all of them are walked.
    let place = Sge { address: (PIECES as u64 - 512) * 4, len: 2048, key };
    let (mut queues, mut to) = (Vec::new(), Vec::new());
    for _ in 0..WIDTH {
        let (rq, cq, tir) = station.receives(64, place)?;
        station.hca.allow_own_frames(tir, true, true)?;
        to.push(Destination::Tir(tir));
        queues.push((rq, cq));
    }
    let nothing = MatchParam::new();
    let mut tables = Vec::new();
    for level in [66, 64] {
        let count = if level == 66 { WIDTH } else { 1 };
        let mut made = Vec::new();
        for _ in 0..count {
            let table = station.hca.create_flow_table(TableType::NicRx, level, 0, None)?;
            let group = station.hca.create_flow_group(table, 0..=0, 0, &nothing)?;
            let entry = FlowEntry { value: &nothing, destinations: &to, counters: &[], tag: 1 };
            station.hca.set_flow_entry(group, 0, &entry)?;
            made.push(Destination::Table(table));
            tables.push(table);
        }
        to = made;
    }
    if let Some(root) = tables.last() {
        station.hca.set_flow_root(*root)?;
    }
    let frame = plain(station.mac, station.mac, &[0; 1000]);
    station.memory.write(0, &frame);
    let data = [station.sge(0, frame.len())];
    let (mut done, mut received) = (0, 0);
    for _ in attacker.rounds() {
        station.fill(&FrameRequest::new(1, &[], &data))?;
        std::thread::sleep(Duration::from_millis(1));
        done += station.sent().0;
        for (rq, cq) in &mut queues {
            while let Some(completion) = cq.poll() {
                if let Some(request) = rq.finish(&completion) {
                    rq.post(request, &[place])?;
                    received += 1;
                }
            }
        }
    }
    match received {
        0 => Err("no copy arrived".into()),
        _ => Ok(format!("{done} sent, {received} received")),
    }
}

/// Tables that lead to the next by what matches nothing, each with groups of different criteria with an entry each.
fn levels(attacker: &Attacker) -> Result<String, Failure> {
    const LEVELS: u8 = 64;
    const CRITERIA: u32 = 30;
    let mut station = Station::on(attacker, ATTACKER)?;
    let mut next = None;
    for level in (0..LEVELS).rev() {
        let table = station.hca.create_flow_table(TableType::NicTx, level, 5, next)?;
        for place in 0..CRITERIA {
            let mut mask = MatchParam::new();
            mask.outer_mut().set(MatchLayers::DMAC_47_16, 1 << place);
            let group = station.hca.create_flow_group(table, place..=place, criteria::OUTER, &mask)?;
            // Bits of an address that nobody has.
            let entry = FlowEntry { value: &mask, destinations: &[], counters: &[], tag: 0 };
            station.hca.set_flow_entry(group, place, &entry)?;
        }
        next = Some(table);
    }
    if let Some(root) = next {
        station.hca.set_flow_root(root)?;
    }
    let frame = plain(Mac([0; 6]), station.mac, &[0; 46]);
    station.memory.write(0, &frame);
    let data = [station.sge(0, frame.len())];
    let mut done = 0;
    for _ in attacker.rounds() {
        station.fill(&FrameRequest::new(1, &[], &data))?;
        std::thread::sleep(Duration::from_millis(1));
        done += station.sent().0;
    }
    Ok(format!("{done} frames"))
}

/// As many entries as there may be, for which no time would be enough: for ten times as long as other attacks.
fn filled(attacker: &Attacker) -> Result<String, Failure> {
    const PLACES: u32 = 1 << 20;
    const ROUNDS: usize = 8;
    let mut station = Station::on(attacker, ATTACKER)?;
    let table = station.hca.create_flow_table(TableType::NicRx, 64, 20, None)?;
    let mut mask = MatchParam::new();
    mask.outer_mut().set(MatchLayers::DMAC_47_16, u32::MAX);
    let group = station.hca.create_flow_group(table, 0..=PLACES - 1, criteria::OUTER, &mask)?;
    let mut place = 0;
    for _ in 0..ROUNDS {
        for _ in attacker.rounds() {
            let mut value = MatchParam::new();
            value.outer_mut().set(MatchLayers::DMAC_47_16, place);
            let entry = FlowEntry { value: &value, destinations: &[], counters: &[], tag: 0 };
            if place == PLACES || station.hca.set_flow_entry(group, place, &entry).is_err() {
                break;
            }
            place += 1;
        }
    }
    // Whoever goes away with them: all at once.
    drop(station);
    Ok(format!("{place} entries"))
}

/// Each time all requests are flushed.
fn failing(attacker: &Attacker) -> Result<String, Failure> {
    const REQUESTS: u32 = 1 << 15;
    let mut station = Station::on(attacker, ATTACKER)?;
    let place = station.sge(0, 64);
    let (mut rq, mut cq, _) = station.receives(REQUESTS, place)?;
    let mut flushed = 0u64;
    for _ in attacker.rounds() {
        station.hca.modify_rq(&mut rq, QueueState::Error)?;
        while cq.poll().is_some() {
            flushed += 1;
        }
        station.hca.modify_rq(&mut rq, QueueState::Reset)?;
        station.hca.modify_rq(&mut rq, QueueState::Ready)?;
        for i in 0..REQUESTS {
            rq.post(i.into(), &[place])?;
        }
    }
    match flushed {
        0 => Err("nothing was flushed".into()),
        _ => Ok(format!("{flushed} requests flushed")),
    }
}

/// Frames as fast as a queue takes them; a bystander's queue takes what comes its way.
fn storm(
    attacker: &Attacker,
    frames: impl Fn(&Attacker, &Station) -> Vec<Vec<u8>>,
) -> Result<String, Failure> {
    let bystander = Station::on(attacker, BYSTANDER)?;
    let sent = storm_from(attacker, frames);
    drop(bystander);
    sent
}

/// The same, whoever takes them.
fn storm_from(
    attacker: &Attacker,
    frames: impl Fn(&Attacker, &Station) -> Vec<Vec<u8>>,
) -> Result<String, Failure> {
    let mut station = Station::on(attacker, ATTACKER)?;
    let frames = frames(attacker, &station);
    let mut pieces = Vec::new();
    let mut at = 0;
    for frame in &frames {
        if at + frame.len() > LARGE {
            break;
        }
        station.memory.write(at, frame);
        pieces.push(station.sge(at, frame.len()));
        at += frame.len();
    }
    let (mut done, mut posted) = (0, 0usize);
    for _ in attacker.rounds() {
        loop {
            let data = [pieces[posted % pieces.len()]];
            match station.sq.post(station.hca.bus_mut(), &FrameRequest::new(1, &[], &data)) {
                Ok(()) => posted += 1,
                Err(Error::QueueFull) => break,
                Err(error) => return Err(error.into()),
            }
        }
        std::thread::sleep(Duration::from_millis(1));
        let (more, errors) = station.sent();
        if errors > 0 {
            return Err(format!("{errors} frames failed").into());
        }
        done += more;
    }
    match done {
        0 => Err("no frame was sent".into()),
        _ => Ok(format!("{done} frames")),
    }
}

/// Frames to another host, whose worker stands still: they wait for it, or are dropped.
///
/// # Errors
/// An adapter does not come up, or no frame was sent.
pub fn to_one_that_stands(attacker: &Attacker) -> Result<String, Failure> {
    let bystander = Station::on(attacker, BYSTANDER)?;
    let worker = attacker.worker(BYSTANDER).ok_or("the bystander has no worker")?;
    worker.stop()?;
    let sent = storm_from(attacker, |_, station| vec![plain(bystander.mac, station.mac, &[0; 1486])]);
    worker.go_on()?;
    sent
}

/// Datagrams to the server's end of the link; `make` gives number so and so.
fn datagrams(attacker: &Attacker, make: impl Fn(u64) -> Vec<u8>) -> Result<String, Failure> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(attacker.outside())?;
    socket.set_nonblocking(true)?;
    let mut sent = 0u64;
    for round in attacker.rounds() {
        match socket.send(&make(round)) {
            Ok(_) => sent += 1,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(error) => return Err(error.into()),
        }
    }
    match sent {
        0 => Err("no frame was sent".into()),
        _ => Ok(format!("{sent} frames")),
    }
}

/// Frames of any length and bytes; half of them with a type that is parsed further.
fn rubbish(attacker: &Attacker) -> Result<String, Failure> {
    const TYPES: [u16; 6] = [0x0800, 0x86dd, 0x8100, 0x8915, 0x8808, 0x88a8];
    datagrams(attacker, |n| {
        let noise = pattern(n + 1, 64);
        let len = usize::from(u16::from_le_bytes([noise[0], noise[1]])) % 10_100;
        let mut frame = pattern(n, len);
        if let Some(kind) = frame.get_mut(12..14)
            && n % 2 == 0
        {
            kind.copy_from_slice(&TYPES[usize::from(noise[2]) % TYPES.len()].to_be_bytes());
        }
        frame
    })
}
