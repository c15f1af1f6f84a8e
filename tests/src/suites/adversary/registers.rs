//! A guest's registers: doorbells of all kinds, interrupts, resets, and how a host attaches and leaves.

use std::time::Duration;

use hca_driver::wqe::SendOp;
use hca_driver::{Bus, CqConfig, SendRequest};
use hca_spec::init_segment::InitSegment;
use hca_spec::qpc::QpState;

use super::Row;
use super::stage::{ATTACKER, Attacker, Failure, MEMORY};
use super::work::take;
use crate::pair::{Options, Pair};
use crate::raw::{access, set_irqs};

/// The cases.
pub const ROWS: &[Row] = &[
    Row::new("guest: doorbells that announce nothing", |a| {
        doorbells(a, |pair, _| pair.ends[0].qp.number().0)
    }),
    Row::new("guest: doorbells of queue pairs that don't exist", |a| {
        doorbells(a, |_, i| 0xff_0000 | i as u32)
    }),
    Row::new("guest: doorbells of all command slots without commands", empty_slots),
    Row::new("guest: halves of BlueFlame writes", halves),
    Row::new("guest: reads of 1 MiB of registers", |a| piped(a, REGION_READ, &access(0, 0, 1 << 20), 8)),
    Row::new("guest: reads of one register, 1000 at a time", |a| {
        piped(a, REGION_READ, &access(0, 0, 4), 1000)
    }),
    Row::new("guest: writes of 1 MiB of doorbells", |a| {
        piped(a, REGION_WRITE, &[access(0, 0x1000, 1 << 20), vec![0x5a; 1 << 20]].concat(), 4)
    }),
    Row::new("guest: bus mastering off and on", |a| piped(a, WRITE_MULTI, &mastering(), 500)),
    Row::new("guest: all vectors triggered, 500 times at a time", |a| {
        piped(a, SET_IRQS, &set_irqs(0x21, 2, 0, 64, &[]), 500)
    }),
    Row::new("guest: a completion, an event and an interrupt for each request", interrupts),
    Row::new("guest: resets, one after another", resets),
    Row::new("guest: reset as soon as the adapter is up", up_and_reset),
    Row::new("guest: attached and gone, over and over", attached),
];

/// Where in a UAR page doorbells of send queues are, and how long a page is.
const DOORBELL: u64 = 0x800;
const PAGE: u64 = 4096;
/// vfio-user commands.
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const WRITE_MULTI: u16 = 15;

/// Two writes of the PCI command register: memory space alone, and with bus mastering.
fn mastering() -> Vec<u8> {
    let write = |value: u64| [access(7, 4, 2), value.to_le_bytes().to_vec()].concat();
    [2u64.to_ne_bytes().to_vec(), write(0b010), write(0b110)].concat()
}

/// Doorbells without a request behind them; `number` says whose.
fn doorbells(
    attacker: &Attacker,
    number: impl Fn(&Pair<hca_driver::vfio_user::VfioUserBus>, u64) -> u32,
) -> Result<String, Failure> {
    let mut pair = attacker.pair(&Options::default())?;
    let uar = u64::from(pair.hcas[0].uar().0) * PAGE;
    let mut rung = 0;
    for i in attacker.rounds() {
        // Control segment: index and opcode, then queue pair and size.
        let (index, qpn) = ((i & 0xffff) << 8, number(&pair, i & 0xffff));
        let doorbell = index << 32 | u64::from(qpn) << 8 | 1;
        pair.hcas[0].bus_mut().mmio_write64(uar + DOORBELL, doorbell);
        rung += 1;
    }
    Ok(format!("{rung} doorbells"))
}

fn empty_slots(attacker: &Attacker) -> Result<String, Failure> {
    let mut hca = attacker.driver(MEMORY)?;
    let register = InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64;
    let mut rung = 0;
    for _ in attacker.rounds() {
        hca.bus_mut().mmio_write32(register, u32::MAX);
        rung += 1;
    }
    Ok(format!("{rung} doorbells"))
}

/// Stores that look like the beginning of a WQE whose end never comes.
fn halves(attacker: &Attacker) -> Result<String, Failure> {
    let mut pair = attacker.pair(&Options::default())?;
    let uar = u64::from(pair.hcas[0].uar().0) * PAGE;
    let qpn = pair.ends[0].qp.number().0;
    let mut stores = 0;
    for i in attacker.rounds() {
        let first = (i & 0xffff) << 40 | u64::from(qpn) << 8 | 4;
        pair.hcas[0].bus_mut().mmio_write64(uar + DOORBELL, first);
        pair.hcas[0].bus_mut().mmio_write64(uar + DOORBELL + 8, i);
        stores += 2;
    }
    Ok(format!("{stores} stores"))
}

/// The same message, `count` times before any answer is read.
fn piped(attacker: &Attacker, command: u16, payload: &[u8], count: usize) -> Result<String, Failure> {
    let mut raw = attacker.raw();
    let mut answers = 0;
    for _ in attacker.rounds() {
        let mut stream = raw.stream.try_clone()?;
        let messages: Vec<u8> = (0..count).flat_map(|_| raw.message(command, payload, 0)).collect();
        // Answers are read meanwhile: nobody is to say that this client leaves them.
        let sender = std::thread::spawn(move || std::io::Write::write_all(&mut stream, &messages));
        for _ in 0..count {
            raw.reply()?;
            answers += 1;
        }
        sender.join().map_err(|_| "the sender panicked")??;
    }
    Ok(format!("{answers} answers"))
}

fn interrupts(attacker: &Attacker) -> Result<String, Failure> {
    let mut pair = attacker.pair(&Options { send_blocks: 1024, cqes: 1024, ..Options::default() })?;
    let mut eq = pair.hcas[0].create_eq(4096, 1)?;
    let mut cq = pair.hcas[0].create_cq(CqConfig { entries: 1024, eq: Some(eq.number()) })?;
    pair.hcas[0].remap_cq(&pair.ends[0].send_cq, eq.number())?;
    cq.arm(pair.hcas[0].bus_mut(), false);
    for _ in attacker.rounds() {
        let Pair { hcas, ends } = &mut pair;
        ends[0].send_cq.event_taken();
        ends[0].send_cq.arm(hcas[0].bus_mut(), false);
        while eq.poll().is_some() {}
        eq.arm(hcas[0].bus_mut());
        let request = SendRequest::new(1, SendOp::Nop, &[]);
        if ends[0].qp.queue_send(&request).is_ok() {
            ends[0].qp.ring_doorbell(hcas[0].bus_mut());
        }
        take(&mut pair);
    }
    match pair.hcas[0].bus_mut().interrupts(1) {
        0 => Err("no interrupt came".into()),
        count => Ok(format!("{count} interrupts")),
    }
}

fn resets(attacker: &Attacker) -> Result<String, Failure> {
    let mut bus = attacker.bus(ATTACKER, MEMORY)?;
    let mut done = 0;
    for _ in attacker.rounds() {
        bus.reset()?;
        done += 1;
    }
    Ok(format!("{done} resets"))
}

fn up_and_reset(attacker: &Attacker) -> Result<String, Failure> {
    let mut done = 0;
    for _ in attacker.rounds() {
        let pair = attacker.pair(&Options::default())?;
        if pair.ends[0].qp.state() != QpState::Rts {
            return Err("not connected".into());
        }
        for mut hca in pair.hcas {
            hca.bus_mut().reset()?;
        }
        done += 1;
    }
    Ok(format!("{done} times"))
}

fn attached(attacker: &Attacker) -> Result<String, Failure> {
    let (mut done, mut refused) = (0, 0);
    for _ in attacker.rounds() {
        // The end of the one before may not have been noticed.
        match attacker.bus(ATTACKER, MEMORY) {
            Ok(_) => done += 1,
            Err(_) => refused += 1,
        }
        if refused > done + 1000 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    match done {
        0 => Err("not once".into()),
        _ => Ok(format!("{done} times, {refused} refused")),
    }
}
