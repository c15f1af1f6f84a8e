//! What the attacker's guest does in one step, made of that step's bytes alone.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use hca_firmware::commands::TimeClass;
use hca_spec::cmd::ModifyQpIn;
use hca_spec::command::{CommandEntry, Opcode};
use hca_spec::ids::Lid;
use hca_spec::init_segment::InitSegment;
use hca_spec::qpc::{Qpc, ServiceType};
use hca_spec::wqe::{CE_ALWAYS, Ctrl, Data, Datagram, RemoteAddr, SendOpcode, WQEBB};

use super::guest::{BAR0, CONFIG, CONNECT, Guest, MSIX, Posted};
use super::line::{
    Closed, DMA_MAP, DMA_UNMAP, NO_REPLY, REGION_READ, REGION_WRITE, RESET, SET_IRQS, VERSION,
};
use super::victim::Guessed;
use crate::fuzz::commands::{self, LOG_RECV};
use crate::fuzz::feed::Feed;
use crate::fuzz::{management, memory, mmio, wqe};
use crate::raw::{access, dma_map, dma_unmap, eventfd, memfd, set_irqs};

/// Q_Key of QP1 (IBTA 16.1).
const GSI_QKEY: u32 = 0x8001_0000;
/// Where a datagram that is sent lies.
const MAD: u64 = memory::DATA + 0x1_8000;
/// Pages of windows that come and go, and where they are. The attacker's memory is below.
const PAGE: u64 = memory::PAGE;
const ELSEWHERE: u64 = 1 << 33;
/// Regions and interrupt indices of a vfio PCI device, and one more.
const REGIONS: usize = 10;
const INDICES: usize = 6;
/// Turns of the server in which a command is done if the adapter is well.
const PATIENCE: u32 = 200;

/// What the guest has done, and whether the server has closed its connection at that.
pub type Did = (&'static str, Result<(), Closed>);

/// Does one thing. `victim` is whom it would like to hit.
pub fn step(guest: &mut Guest, feed: &mut Feed<'_>, victim: &[Guessed; 2]) -> Did {
    match feed.below(40) {
        0..7 => ("a command", command(guest, feed)),
        7 => ("an entry of the command queue", entry(guest, feed)),
        8..14 => ("a work request", send(guest, feed)),
        14..17 => ("a receive request", receive(guest, feed)),
        17..20 => ("a doorbell", doorbell(guest, feed)),
        20 => ("a doorbell record", record(guest, feed)),
        21 => ("a store of BlueFlame", blueflame(guest, feed)),
        22 | 23 => ("a queue pair's state", state(guest, feed)),
        24 => ("a management datagram to its own firmware", to_firmware(guest, feed)),
        25 | 26 => ("a management datagram to others", to_others(guest, feed, victim)),
        27..30 => ("a register", register(guest, feed)),
        30 => ("its configuration space", config(guest, feed)),
        31 => ("its memory", scribble(guest, feed)),
        32..34 => ("a window of memory", window(guest, feed)),
        34 => ("event descriptors", interrupts(guest, feed)),
        35..37 => ("a message", message(guest, feed)),
        37 => ("its address", address(guest, feed, victim)),
        38 => ("a message of rubbish", rubbish(guest, feed)),
        _ => ("nothing", Ok(())),
    }
}

fn command(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let mut input = commands::pick(feed, &guest.templates);
    guest.spoilt |= commands::row_of(&input).is_some_and(|command| command.time == TimeClass::Lifecycle);
    match feed.below(12) {
        0 => input.truncate(usize::from(feed.u16()) % (input.len() + 1)),
        1 => input.resize(input.len() + usize::from(feed.u8()) * 16, feed.u8()),
        _ => {}
    }
    // Mostly the fields, seldom the opcode.
    let fixed = if feed.one_in(8) { 0 } else { 6 };
    if let Some(fields) = input.get_mut(fixed..) {
        let n = if feed.one_in(2) { fields.len().min(0x60) } else { fields.len() };
        feed.mutate(&mut fields[..n], 3);
    }
    let output = if feed.one_in(4) { usize::from(feed.u16()) } else { 0x400 };
    guest.command(feed.u8(), &input, output)?;
    // The next command's mailboxes are the same memory.
    if feed.one_in(2) { guest.turn() } else { Ok(()) }
}

fn entry(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let slot = feed.below(32);
    let at = memory::COMMANDS + (slot * CommandEntry::SIZE) as u64;
    let mut entry = guest.memory.take(at, CommandEntry::SIZE);
    feed.mutate(&mut entry, 8);
    if let Some(ownership) = entry.last_mut() {
        *ownership |= 1;
    }
    guest.memory.put(at, &entry);
    let bits = if feed.one_in(8) { feed.u32() } else { 1 << slot };
    guest.write(BAR0, InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64, &bits.to_be_bytes())
}

fn send(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let i = feed.below(guest.posted.len());
    let qp = guest.objects.qps[i];
    for _ in 0..=feed.below(8) {
        let wqe = wqe::send(feed, &guest.objects, qp, guest.posted[i].send);
        guest.post(i, &wqe);
    }
    match feed.below(4) {
        0 => Ok(()),
        _ => guest.ring(qp, guest.posted[i].send),
    }
}

fn receive(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let i = feed.below(guest.posted.len());
    let qp = guest.objects.qps[i];
    let (queue, record) = match i {
        6 => (memory::srq(0), memory::record(1)),
        7 => (memory::srq(1), memory::record(2)),
        10 => (memory::srq(2), memory::record(3)),
        _ => (qp.buffer, qp.record),
    };
    for _ in 0..=feed.below(8) {
        let wqe = wqe::receive(feed, &guest.objects, guest.posted[i].receive);
        let slot = u64::from(guest.posted[i].receive) % (1 << LOG_RECV);
        guest.posted[i].receive = guest.posted[i].receive.wrapping_add(1);
        guest.memory.put(queue + slot * WQEBB as u64, &wqe);
    }
    guest.memory.put(record, &u32::from(guest.posted[i].receive).to_be_bytes());
    Ok(())
}

fn doorbell(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let offset = mmio::offset(feed, &guest.objects);
    let len = if feed.one_in(4) { feed.below(70) } else { feed.pick(&[4, 8]) };
    let mut value = feed.bytes(len).to_vec();
    value.resize(len, 0);
    if len == 8 && feed.one_in(2) {
        let qp = guest.objects.qps[feed.below(guest.posted.len())].number << 8;
        let number = feed.pick(&[guest.objects.cq, guest.objects.eq << 24, qp]);
        value[4..].copy_from_slice(&number.to_be_bytes());
    }
    guest.write(BAR0, offset, &value)
}

/// A record that says anything, and its doorbell; or the guest pretends to have read completions.
fn record(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    if feed.one_in(2) {
        guest.memory.put(memory::record(0), &u32::from(feed.u16()).to_be_bytes());
        return Ok(());
    }
    let i = feed.below(guest.posted.len());
    guest.posted[i].send = feed.u16();
    guest.ring(guest.objects.qps[i], guest.posted[i].send)
}

fn blueflame(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let mmio::Stores { record, pieces } = mmio::stores(feed, &guest.objects);
    if let Some((at, value)) = record {
        guest.memory.put(at, &value);
    }
    pieces.into_iter().try_for_each(|(at, piece)| guest.write(BAR0, at, &piece))
}

fn state(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let i = feed.below(guest.posted.len());
    let number = guest.objects.qps[i].number;
    let up = [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp];
    let inputs = match feed.below(6) {
        0 => vec![commands::object(Opcode::ToErrQp, number)],
        1 => vec![guest.objects.transition(feed.pick(&up), i)],
        _ => {
            guest.posted[i] = Posted::default();
            guest.memory.put(guest.objects.qps[i].record, &[0; 8]);
            let reset = commands::object(Opcode::ToRstQp, number);
            [reset].into_iter().chain(up.map(|opcode| guest.objects.transition(opcode, i))).collect()
        }
    };
    // Mostly one after the other.
    let turns = if feed.one_in(8) { 0 } else { PATIENCE };
    inputs.into_iter().try_for_each(|input| guest.execute_in(turns, &input, 16).map(drop))
}

/// MAD_IFC, as a guest's kernel asks its own firmware.
fn to_firmware(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let mut input = commands::mad_ifc(&management::datagram(feed));
    if feed.one_in(8) {
        feed.mutate(&mut input[..16], 2);
    }
    guest.command(feed.u8(), &input, 0x110)
}

/// By QP0, QP1 or another one.
fn to_others(guest: &mut Guest, feed: &mut Feed<'_>, victim: &[Guessed; 2]) -> Result<(), Closed> {
    let of = |service| guest.objects.qps.iter().position(|qp| qp.service == service);
    let service = feed.pick(&[ServiceType::Qp0, ServiceType::Qp0, ServiceType::Qp1, ServiceType::Ud]);
    let Some(i) = of(service) else { return Ok(()) };
    let qp = guest.objects.qps[i];
    guest.memory.put(MAD, management::datagram(feed).bytes());
    let mut to = Datagram::new();
    let lids = [victim[0].lid, victim[1].lid, Lid::PERMISSIVE, Lid(1), Lid(2), Lid(0xc000), Lid(feed.u16())];
    to.set(Datagram::RLID, feed.pick(&lids).0.into()).set(Datagram::EXT, 1);
    to.set(Datagram::QKEY, feed.pick(&[GSI_QKEY, 0, commands::Q_KEY]));
    let numbers = [0, 1, 1, victim[0].qpn.0];
    to.set(Datagram::DQPN, if service == ServiceType::Qp0 { 0 } else { feed.pick(&numbers) });
    let mut data = Data::new();
    data.set(Data::BYTE_COUNT, 256).set(Data::LKEY, guest.objects.keys[1]).set(Data::ADDRESS, MAD);
    let mut ctrl = Ctrl::new();
    ctrl.set(Ctrl::OPCODE, SendOpcode::Send as u32).set(Ctrl::WQE_INDEX, guest.posted[i].send.into());
    ctrl.set(Ctrl::QPN, qp.number).set(Ctrl::CE, CE_ALWAYS);
    let body = [&to.bytes()[..], data.bytes()].concat();
    ctrl.set(Ctrl::DS, ((Ctrl::SIZE + body.len()) / 16) as u32);
    let mut wqe = [&ctrl.bytes()[..], &body].concat();
    wqe.resize(wqe.len().next_multiple_of(WQEBB), 0);
    for _ in 0..=feed.below(16) {
        guest.post(i, &wqe);
    }
    guest.ring(qp, guest.posted[i].send)
}

/// A reliable or unreliable connection that is none: to the victim's queue pair, with its key and the right address.
///
/// # Errors
/// The server has closed the connection.
pub fn forged(guest: &mut Guest, feed: &mut Feed<'_>, victim: &[Guessed; 2]) -> Result<(), Closed> {
    let i = feed.below(4);
    let (qp, target) = (guest.objects.qps[i], feed.pick(victim));
    guest.posted[i] = Posted::default();
    guest.memory.put(qp.record, &[0; 8]);
    let mut objects = guest.objects.clone();
    objects.lid = target.lid;
    let up = [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp];
    let up = up.map(|opcode| {
        let mut input = commands::modify_qp(&objects, opcode, &qp, target.qpn.0);
        let mut modify = ModifyQpIn::from_prefix_or_zero(&input);
        // What the victim's queue pair expects next, or nearly.
        let psn = target.psn.wrapping_add(if feed.one_in(2) { 0 } else { u32::from(feed.u8() & 7) });
        modify.qpc_mut().set(Qpc::NEXT_SEND_PSN, psn & 0xff_ffff);
        input[..ModifyQpIn::SIZE].copy_from_slice(modify.bytes());
        input
    });
    for input in [commands::object(Opcode::ToRstQp, qp.number)].into_iter().chain(up) {
        guest.execute_in(PATIENCE, &input, 16)?;
    }
    let mut remote = RemoteAddr::new();
    remote.set(RemoteAddr::VA, target.address + u64::from(feed.u16())).set(RemoteAddr::RKEY, target.key.0);
    let mut data = Data::new();
    data.set(Data::BYTE_COUNT, u32::from(feed.u8()) + 1).set(Data::LKEY, guest.objects.keys[1]);
    data.set(Data::ADDRESS, memory::DATA);
    let mut ctrl = Ctrl::new();
    let opcode = feed.pick(&[SendOpcode::RdmaWrite, SendOpcode::RdmaWrite, SendOpcode::RdmaRead]);
    ctrl.set(Ctrl::OPCODE, opcode as u32).set(Ctrl::QPN, qp.number).set(Ctrl::CE, CE_ALWAYS);
    ctrl.set(Ctrl::DS, 3);
    let mut wqe = [&ctrl.bytes()[..], remote.bytes(), data.bytes()].concat();
    wqe.resize(wqe.len().next_multiple_of(WQEBB), 0);
    for n in 0..=feed.below(32) {
        ctrl.set(Ctrl::WQE_INDEX, n as u32);
        wqe[..Ctrl::SIZE].copy_from_slice(ctrl.bytes());
        guest.post(i, &wqe);
    }
    guest.ring(qp, guest.posted[i].send)
}

fn register(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let offset = mmio::offset(feed, &guest.objects);
    let count = if feed.one_in(8) { feed.u32() % (2 << 20) } else { feed.below(70) as u32 };
    guest.read(BAR0, offset, count)
}

fn config(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let offset = if feed.one_in(4) { feed.u16().into() } else { u64::from(feed.u8()) };
    if feed.one_in(2) {
        return guest.read(CONFIG, offset, feed.pick(&[1, 2, 4, 4, 64, 4096]));
    }
    guest.spoilt = true;
    let len = feed.pick(&[1, 2, 4, 4, 8]);
    let mut value = feed.bytes(len).to_vec();
    value.resize(len, 0);
    guest.write(CONFIG, offset, &value)
}

fn scribble(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let at = u64::from(feed.u32()) % memory::SIZE as u64;
    let len = feed.below(256);
    guest.memory.put(at, feed.bytes(len));
    Ok(())
}

/// A number that is a page's, or nearly, or anything.
fn place(feed: &mut Feed<'_>) -> u64 {
    match feed.below(8) {
        0 => feed.u64(),
        1 => u64::from(feed.u32()),
        2 => u64::MAX - u64::from(feed.u16()),
        3 => u64::from(feed.u8()) * PAGE,
        4 => memory::FIRMWARE_PAGES + u64::from(feed.u16()) * PAGE,
        _ => ELSEWHERE + u64::from(feed.u8()) * PAGE,
    }
}

fn window(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let iova = place(feed);
    let size = if feed.one_in(4) { place(feed) } else { PAGE * (1 + u64::from(feed.u8() % 64)) };
    if feed.one_in(3) {
        let flags = feed.pick(&[0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
        guest.spoilt |= flags > 1;
        let payload = dma_unmap(flags, iova, size);
        return guest.line.say(DMA_UNMAP, &payload, (&[], 0), Some(&guest.memory)).map(drop);
    }
    let offset = if feed.one_in(4) { place(feed) } else { 0 };
    let mut payload = dma_map(iova, size, offset);
    if feed.one_in(8) {
        feed.mutate(&mut payload, 3);
    }
    let file = memfd(if feed.one_in(4) { place(feed) >> 24 } else { size & 0xff_ffff });
    let event = eventfd();
    let fds: &[RawFd] = match feed.below(8) {
        0..2 => &[],
        2 => &[event.as_fd().as_raw_fd()],
        3 => &[file.as_raw_fd(), file.as_raw_fd()],
        _ => &[file.as_raw_fd()],
    };
    guest.line.say(DMA_MAP, &payload, (fds, 0), Some(&guest.memory))?;
    if feed.one_in(4) {
        // Sealed against nothing: it goes under the mapping.
        let _ = file.set_len(u64::from(feed.u8()) * PAGE / 16);
    }
    Ok(())
}

fn interrupts(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let events: Vec<_> = (0..feed.below(17)).map(|_| eventfd()).collect();
    let file = memfd(PAGE);
    let mut fds: Vec<RawFd> = events.iter().map(|event| event.as_fd().as_raw_fd()).collect();
    if feed.one_in(8) {
        fds.push(file.as_raw_fd());
    }
    let flags = if feed.one_in(4) { feed.u8().into() } else { feed.pick(&[CONNECT, 0x21, 0x22]) };
    let index = if feed.one_in(4) { feed.below(INDICES) as u32 } else { MSIX };
    let (start, count) = match feed.below(4) {
        0 => (feed.u32(), feed.u32()),
        _ => (feed.below(64) as u32, fds.len() as u32),
    };
    let len = feed.below(20);
    let payload = set_irqs(flags, index, start, count, feed.bytes(len));
    guest.line.say(SET_IRQS, &payload, (&fds, 0), Some(&guest.memory)).map(drop)
}

/// A well-formed header, and a payload that is nearly right or not at all.
fn message(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    let command = match feed.below(8) {
        0 => u16::from(feed.u8()),
        1 => VERSION,
        2 => RESET,
        _ => 2 + feed.below(14) as u16,
    };
    guest.spoilt |= command == RESET;
    let len = feed.below(64);
    let mut payload = match command {
        REGION_READ | REGION_WRITE => {
            let (region, offset) = (feed.below(REGIONS) as u32, u64::from(feed.u16()));
            [access(region, offset, feed.below(80) as u32), feed.bytes(len).to_vec()].concat()
        }
        _ => feed.bytes(len).to_vec(),
    };
    if feed.one_in(2) {
        // Small numbers lead further than large ones.
        payload.iter_mut().enumerate().filter(|(i, _)| i % 4 != 0).for_each(|(_, byte)| *byte &= 1);
    }
    // "Reply" and "error" too, to nothing.
    let flags = feed.pick(&[0, 0, 0, NO_REPLY, NO_REPLY, 1, 1 | 1 << 5, 2]);
    guest.line.say(command, &payload, (&[], flags), Some(&guest.memory)).map(drop)
}

/// Where the queue pairs' next connections lead.
fn address(guest: &mut Guest, feed: &mut Feed<'_>, victim: &[Guessed; 2]) -> Result<(), Closed> {
    let (own, other) = (guest.home, Lid(feed.u16()));
    guest.objects.lid = feed.pick(&[own, own, victim[0].lid, victim[1].lid, Lid(0xc000), other]);
    Ok(())
}

/// Bytes that are no message, or only the beginning of one: seldom, for it is the end of the connection.
fn rubbish(guest: &mut Guest, feed: &mut Feed<'_>) -> Result<(), Closed> {
    if !feed.one_in(8) {
        return Ok(());
    }
    let len = feed.below(100);
    let bytes = feed.bytes(len).to_vec();
    guest.line.babble(&bytes, Some(&guest.memory))
}
