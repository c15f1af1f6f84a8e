//! Work queue entries.

use hca_firmware::commands::Fixture;
use hca_firmware::object::Kind;
use hca_model::Ps;
use hca_spec::bsf::SetPsv;
use hca_spec::command::Opcode;
use hca_spec::mkc::Mkc;
use hca_spec::qpc::ServiceType;
use hca_spec::uar::{CQ_DOORBELL, PAGE_SIZE};
use hca_spec::wqe::{
    AtomicMasks, AtomicSeg, Ctrl, Data, Datagram, RemoteAddr, SendOpcode, TERMINATE_LKEY, UmrCtrl, WQEBB,
    XrcSeg, umr_mask,
};
use hca_spec::xrq::{Rendezvous, TagHeader, TagSeg};

use super::commands::{self, DC_KEY, LOG_RECV, Q_KEY};
use super::feed::Feed;
use super::memory;
use super::objects::{Objects, QueuePair};
use super::two_adapters::TwoAdapters;

/// Steps of one input.
const MOST: usize = 96;
/// Opcodes of send WQEs, and one that does not exist.
const OPCODES: [u8; SendOpcode::ALL.len() + 1] = {
    let mut all = [0x7f; SendOpcode::ALL.len() + 1];
    let mut i = 0;
    while i < SendOpcode::ALL.len() {
        all[i] = SendOpcode::ALL[i] as u8;
        i += 1;
    }
    all
};

/// What the guest has posted to a queue pair.
#[derive(Clone, Copy, Default)]
struct Posted {
    send: u16,
    receive: u16,
}

/// Posts work requests made of `data`, rings doorbells, and lets commands interfere.
///
/// # Panics
/// If the adapter does, or does not work afterwards.
pub fn wqe(data: &[u8]) {
    let mut feed = Feed::new(data);
    let mut adapters = TwoAdapters::new();
    let templates = commands::templates(&adapters.objects);
    let mut posted = vec![Posted::default(); adapters.objects.qps.len()];
    if feed.one_in(2) {
        adapters.post_receives();
        posted.iter_mut().for_each(|p| p.receive = 1 << LOG_RECV);
    }
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        let i = feed.below(posted.len());
        let qp = adapters.objects.qps[i];
        match feed.below(16) {
            0..6 => {
                let wqe = send(&mut feed, &adapters.objects, qp, posted[i].send);
                posted[i].send = adapters.post(qp, posted[i].send, &wqe);
                if feed.one_in(2) {
                    adapters.ring(qp, posted[i].send);
                }
            }
            6..9 => {
                let wqe = receive(&mut feed, &adapters.objects, posted[i].receive);
                let slot = u64::from(posted[i].receive) % (1 << LOG_RECV);
                posted[i].receive = posted[i].receive.wrapping_add(1);
                let (queue, record) = match qp.shared {
                    Some(n) => (memory::srq(n), memory::record(1 + n)),
                    None => (qp.buffer, qp.record),
                };
                adapters.ram().put(queue + slot * WQEBB as u64, &wqe);
                adapters.ram().put(record, &u32::from(posted[i].receive).to_be_bytes());
            }
            9 => {
                // A record that says anything.
                let counter = if feed.one_in(2) { feed.u16() } else { posted[i].send };
                adapters.ring(qp, counter);
                posted[i].send = counter;
            }
            10 => {
                let input = match feed.below(6) {
                    0 => commands::object(Opcode::ToErrQp, qp.number),
                    1 => {
                        posted[i] = Posted::default();
                        adapters.ram().put(qp.record, &[0; 8]);
                        commands::object(Opcode::ToRstQp, qp.number)
                    }
                    2 => adapters.objects.transition(
                        feed.pick(&[Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp]),
                        i,
                    ),
                    _ => {
                        posted[i] = Posted::default();
                        adapters.reconnect(i);
                        continue;
                    }
                };
                adapters.command(feed.u8(), &input, 16);
            }
            11 => {
                let mut input = commands::pick(&mut feed, &templates);
                feed.mutate(&mut input, 3);
                adapters.command(feed.u8(), &input, 0x200);
            }
            12 => {
                let mut doorbell = [0; 8];
                doorbell[0] = feed.u8() & 0x31;
                doorbell[2..4].copy_from_slice(&feed.u16().to_be_bytes());
                doorbell[4..].copy_from_slice(&adapters.objects.cq.to_be_bytes());
                let offset = u64::from(adapters.objects.uar) * PAGE_SIZE + CQ_DOORBELL;
                adapters.write(offset, &doorbell);
            }
            13 => {
                // The guest reads its completions, or pretends to.
                let consumer = u32::from(feed.u16());
                adapters.ram().put(memory::record(0), &consumer.to_be_bytes());
            }
            14 => {
                let at = u64::from(feed.u32()) % memory::SIZE as u64;
                let len = feed.below(64);
                adapters.ram().put(at, feed.bytes(len));
            }
            _ => {
                let by = Ps::from_ns(u64::from(feed.u16()) * u64::from(feed.u8()));
                adapters.advance(by);
            }
        }
    }
    adapters.advance(Ps::from_ms(5));
    adapters.assert_alive();
}

fn key(feed: &mut Feed<'_>, o: &Objects) -> u32 {
    match feed.below(32) {
        0 => feed.u32(),
        i @ 1..8 => o.keys[i % o.keys.len()],
        i => o.keys[i & 1],
    }
}

fn address(feed: &mut Feed<'_>) -> u64 {
    match feed.below(32) {
        0 => feed.u64(),
        1 => u64::MAX - u64::from(feed.u8()),
        _ => memory::DATA + u64::from(feed.u32()) % (memory::DATA_LEN - 0x8000),
    }
}

fn length(feed: &mut Feed<'_>) -> u32 {
    match feed.below(32) {
        0 => feed.u32(),
        1 => 0,
        2 => feed.pick(&[1 << 30, (1 << 30) + 1, 0x7fff_ffff]),
        3..12 => feed.pick(&[1023, 1024, 1025, 2048, 4096]),
        12 => u32::from(feed.u16()),
        _ => u32::from(feed.u16()) % 1500,
    }
}

fn data(feed: &mut Feed<'_>, o: &Objects) -> Data {
    let mut segment = Data::new();
    segment.set(Data::BYTE_COUNT, length(feed)).set(Data::LKEY, key(feed, o));
    segment.set(Data::ADDRESS, address(feed));
    segment
}

/// A send WQE, whole basic blocks.
pub(crate) fn send(feed: &mut Feed<'_>, o: &Objects, qp: QueuePair, index: u16) -> Vec<u8> {
    let opcode = match qp.service {
        ServiceType::RegUmr if !feed.one_in(4) => SendOpcode::Umr as u8,
        _ if qp.shared == Some(3) && !feed.one_in(4) => SendOpcode::TagMatching as u8,
        service if service.is_datagram() && !feed.one_in(4) => feed.pick(&[0x0a, 0x0b]),
        _ if feed.one_in(4) => feed.pick(&OPCODES),
        _ => feed.pick(&[0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12]),
    };
    let mut body = Vec::new();
    let (mut imm, mut opmod) = (feed.u32(), 0);
    match SendOpcode::from_bits(opcode.into()) {
        Some(SendOpcode::Umr) => {
            imm = key(feed, o);
            umr(feed, o, &mut body);
        }
        Some(SendOpcode::LocalInval | SendOpcode::SendInval) => imm = key(feed, o),
        Some(SendOpcode::TagMatching) => body.extend_from_slice(tag_change(feed).bytes()),
        Some(SendOpcode::SetPsv) if !feed.one_in(4) => {
            let mut new = SetPsv::new();
            new.set(SetPsv::PSV, o.fixture.number(Kind::Psv)).set(SetPsv::VALUE, feed.u64());
            body.extend_from_slice(new.bytes());
        }
        Some(SendOpcode::Send | SendOpcode::SendImm) if qp.service == ServiceType::Rc && feed.one_in(2) => {
            tag_headers(feed, o, &mut body);
        }
        _ => {}
    }
    if opcode != SendOpcode::Umr as u8 {
        if qp.service.is_datagram() {
            let mut av = Datagram::new();
            av.set(Datagram::QKEY, Q_KEY).set(Datagram::RLID, o.lid.0.into()).set(Datagram::EXT, 1);
            let peer = o.qps[feed.below(o.qps.len())].number;
            av.set(Datagram::DQPN, peer).set(Datagram::GRH, u32::from(feed.one_in(2)));
            if feed.one_in(4) {
                feed.mutate(av.bytes_mut(), 2);
            }
            body.extend_from_slice(av.bytes());
        } else if qp.service == ServiceType::Dci {
            let mut av = Datagram::new();
            av.set(Datagram::DC_KEY, DC_KEY).set(Datagram::RLID, o.lid.0.into()).set(Datagram::DQPN, o.dct);
            av.set(Datagram::EXT, 1).set(Datagram::GRH, u32::from(feed.one_in(8)));
            if feed.one_in(8) {
                feed.mutate(av.bytes_mut(), 2);
            }
            let short = av.get(Datagram::EXT) == 0;
            body.extend_from_slice(if short { &av.bytes()[..16] } else { av.bytes() });
        } else if qp.service == ServiceType::Xrc {
            body.extend_from_slice(XrcSeg::new().set(XrcSeg::SRQN, o.srqs[1]).bytes());
        }
        if (0x08..0x0a).contains(&opcode) || (0x10..0x16).contains(&opcode) {
            let mut remote = RemoteAddr::new();
            remote.set(RemoteAddr::VA, address(feed) & !7).set(RemoteAddr::RKEY, key(feed, o));
            body.extend_from_slice(remote.bytes());
        }
        if (0x11..0x16).contains(&opcode) {
            body.extend_from_slice(AtomicSeg::new().set(AtomicSeg::SWAP_ADD, feed.u64()).bytes());
            let mut bytes = 8;
            if SendOpcode::from_bits(opcode.into()).is_some_and(SendOpcode::is_masked) {
                (opmod, bytes) = feed.pick(&[(8, 4), (9, 8), (9, 8), (9, 4), (10, 16), (0, 8)]);
                if opcode == SendOpcode::AtomicMaskedCs as u8 && opmod == 9 {
                    let mut masks = AtomicMasks::new();
                    masks.set(AtomicMasks::SWAP, feed.u64()).set(AtomicMasks::COMPARE, u64::from(feed.u8()));
                    body.extend_from_slice(masks.bytes());
                }
            }
            let mut operand = data(feed, o);
            body.extend_from_slice(operand.set(Data::BYTE_COUNT, bytes).bytes());
        } else {
            for _ in 0..feed.below(4) {
                if feed.one_in(4) {
                    let len = feed.below(48);
                    body.extend_from_slice(&(1u32 << 31 | len as u32).to_be_bytes());
                    body.extend_from_slice(feed.bytes(len));
                    body.resize(body.len().next_multiple_of(Data::SIZE), 0);
                } else {
                    body.extend_from_slice(data(feed, o).bytes());
                }
            }
        }
    }
    let mut ctrl = Ctrl::new();
    ctrl.set(Ctrl::WQE_INDEX, index.into()).set(Ctrl::OPCODE, opcode.into()).set(Ctrl::QPN, qp.number);
    ctrl.set(Ctrl::DS, ((Ctrl::SIZE + body.len()) / 16) as u32).set(Ctrl::IMM, imm);
    ctrl.set(Ctrl::OPMOD, opmod);
    ctrl.set(Ctrl::CE, feed.u8().into()).set(Ctrl::SE, feed.u8().into());
    if feed.one_in(8) {
        ctrl.set(Ctrl::FM, feed.u8().into());
    }
    let mut wqe = [&ctrl.bytes()[..], &body].concat();
    if feed.one_in(8) {
        feed.mutate(&mut wqe, 3);
    }
    wqe.resize(wqe.len().next_multiple_of(WQEBB), 0);
    wqe
}

/// A change of a list of tags, of which there are few.
fn tag_change(feed: &mut Feed<'_>) -> TagSeg {
    let mut change = TagSeg::new();
    change.set(TagSeg::OPCODE, feed.below(4) as u32).set(TagSeg::CQE_REQ, u32::from(feed.one_in(2)));
    change.set(TagSeg::INDEX, feed.below(1 << Fixture::LOG_LIST) as u32);
    change.set(TagSeg::SW_CNT_VALID, u32::from(feed.one_in(2))).set(TagSeg::SW_CNT, feed.below(8) as u32);
    change.set(TagSeg::TAG, feed.below(4) as u64).set(TagSeg::MASK, feed.pick(&[0, 3, u64::MAX]));
    if feed.one_in(8) {
        feed.mutate(change.bytes_mut(), 2);
    }
    change
}

/// The headers of a message with a tag, inline.
fn tag_headers(feed: &mut Feed<'_>, o: &Objects, body: &mut Vec<u8>) {
    let mut first = TagHeader::new();
    first.set(TagHeader::OPCODE, feed.below(5) as u32).set(TagHeader::TAG, feed.below(4) as u64);
    let mut second = Rendezvous::new();
    second.set(Rendezvous::VA, address(feed)).set(Rendezvous::RKEY, key(feed, o));
    second.set(Rendezvous::LEN, length(feed));
    let headers = [first.bytes().as_slice(), second.bytes()].concat();
    body.extend_from_slice(&(1u32 << 31 | headers.len() as u32).to_be_bytes());
    body.extend_from_slice(&headers);
    body.resize(body.len().next_multiple_of(Data::SIZE), 0);
}

/// UMR control, memory key context, and a data segment or inline translations.
fn umr(feed: &mut Feed<'_>, o: &Objects, body: &mut Vec<u8>) {
    let mut ctrl = UmrCtrl::new();
    let inline = feed.one_in(2);
    ctrl.set(UmrCtrl::INLINE, inline.into()).set(UmrCtrl::XLT_OCTOWORDS, feed.u8().into());
    let masks = [umr_mask::FREE, umr_mask::PD, umr_mask::KEY, umr_mask::LEN | umr_mask::START_ADDR, !0];
    ctrl.set(UmrCtrl::MKEY_MASK, feed.pick(&masks));
    if feed.one_in(4) {
        ctrl.set(UmrCtrl::TRANSLATION_OFFSET_EN, 1).set(UmrCtrl::XLT_OFFSET, feed.u8().into());
    }
    let mut mkc = Mkc::new();
    mkc.set(Mkc::PD, o.pd)
        .set(Mkc::LR, 1)
        .set(Mkc::LW, 1)
        .set(Mkc::RR, 1)
        .set(Mkc::RW, 1)
        .set(Mkc::UMR_EN, 1);
    mkc.set(Mkc::START_ADDR, memory::DATA).set(Mkc::LEN, memory::DATA_LEN).set(Mkc::LOG_PAGE_SIZE, 12);
    mkc.set(Mkc::QPN, hca_spec::mkc::ANY_QP).set(Mkc::FREE, u32::from(feed.one_in(4)));
    if feed.one_in(4) {
        feed.mutate(mkc.bytes_mut(), 2);
        feed.mutate(ctrl.bytes_mut(), 1);
    }
    body.extend_from_slice(ctrl.bytes());
    body.extend_from_slice(mkc.bytes());
    if inline {
        for _ in 0..feed.below(8) {
            let page = memory::DATA + u64::from(feed.u8()) * memory::PAGE % memory::DATA_LEN;
            body.extend_from_slice(&(page | 3).to_be_bytes());
        }
        body.resize(body.len().next_multiple_of(64), 0);
    } else {
        body.extend_from_slice(data(feed, o).bytes());
    }
}

/// A receive WQE, one stride; of a shared queue, its first segment names the next.
pub(crate) fn receive(feed: &mut Feed<'_>, o: &Objects, index: u16) -> Vec<u8> {
    let mut wqe = Vec::new();
    if feed.one_in(2) {
        wqe.extend_from_slice(&u32::from((index + 1) % (1 << LOG_RECV)).to_be_bytes());
        wqe.resize(Data::SIZE, 0);
    }
    for _ in 0..feed.below(4) {
        wqe.extend_from_slice(data(feed, o).bytes());
    }
    let mut end = Data::new();
    wqe.extend_from_slice(end.set(Data::LKEY, TERMINATE_LKEY).bytes());
    if feed.one_in(8) {
        feed.mutate(&mut wqe, 2);
    }
    wqe.resize(WQEBB, 0);
    wqe
}
