//! Register accesses.

use hca_model::Ps;
use hca_spec::command::CommandEntry;
use hca_spec::init_segment::InitSegment;
use hca_spec::uar::{CQ_DOORBELL, EQ_ARM, EQ_UPDATE, PAGE_SIZE, SEND_DOORBELL, SEND_DOORBELL_STEP};
use hca_spec::wqe::{CE_ALWAYS, Ctrl};

use super::commands;
use super::feed::Feed;
use super::memory;
use super::objects::Objects;
use super::two_adapters::{TwoAdapters, VICTIM};

/// Steps of one input.
const MOST: usize = 128;

/// Reads and writes BAR0, and memory that the adapter looks at, as `data` says.
///
/// # Panics
/// If the adapter does, or does not work afterwards.
pub fn mmio(data: &[u8]) {
    let mut feed = Feed::new(data);
    let mut adapters = TwoAdapters::new();
    let templates = commands::templates(&adapters.objects);
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        match feed.below(9) {
            0 => {
                let offset = offset(&mut feed, &adapters.objects);
                let mut buf = vec![0; feed.below(70)];
                let now = adapters.now();
                adapters.world.mmio_read(now, VICTIM, offset, &mut buf);
            }
            1..4 => {
                let offset = offset(&mut feed, &adapters.objects);
                let len = if feed.one_in(4) { feed.below(70) } else { feed.pick(&[4, 8]) };
                let mut value = feed.bytes(len).to_vec();
                value.resize(len, 0);
                if len == 8 && feed.one_in(2) {
                    // The object of a doorbell that exists.
                    let number = feed.pick(&[adapters.objects.cq, adapters.objects.qps[0].number << 8]);
                    value[4..].copy_from_slice(&number.to_be_bytes());
                }
                adapters.write(offset, &value);
            }
            4 => {
                // Rubbish, or a valid command with a few changed bytes, in the command queue.
                let slot = feed.below(32) as u64;
                let at = memory::COMMANDS + slot * CommandEntry::SIZE as u64;
                let mut entry = adapters.ram().take(at, CommandEntry::SIZE);
                feed.mutate(&mut entry, 8);
                adapters.ram().put(at, &entry);
                ring(&mut adapters, 1 << slot);
            }
            5 => {
                let mut input = commands::pick(&mut feed, &templates);
                feed.mutate(&mut input, 3);
                adapters.command(feed.u8(), &input, usize::from(feed.u16()));
            }
            6 => {
                let at = u64::from(feed.u32()) % memory::SIZE as u64;
                let len = feed.below(64);
                let bytes = feed.bytes(len);
                adapters.ram().put(at, bytes);
            }
            7 => blueflame(&mut feed, &mut adapters),
            _ => {
                let by = Ps::from_ns(feed.u16().into());
                adapters.advance(by);
            }
        }
    }
    adapters.assert_alive();
}

/// A WQE, or a part of one, that comes with its doorbell; the record may count it.
fn blueflame(feed: &mut Feed<'_>, adapters: &mut TwoAdapters) {
    let Stores { record, pieces } = stores(feed, &adapters.objects);
    if let Some((at, value)) = record {
        adapters.ram().put(at, &value);
    }
    for (at, piece) in pieces {
        adapters.write(at, &piece);
    }
}

/// What a program stores to the BlueFlame register of a queue pair.
pub(crate) struct Stores {
    /// Address and value of the doorbell record, if it is written first.
    pub(crate) record: Option<(u64, [u8; 4])>,
    /// Offsets in BAR0, and bytes.
    pub(crate) pieces: Vec<(u64, Vec<u8>)>,
}

/// Stores of a WQE, or of a part of one.
pub(crate) fn stores(feed: &mut Feed<'_>, o: &Objects) -> Stores {
    let qp = o.qps[feed.below(o.qps.len())];
    let index = u16::from(feed.u8() % 4);
    let mut ctrl = Ctrl::new();
    ctrl.set(Ctrl::OPCODE, feed.u8().into()).set(Ctrl::WQE_INDEX, index.into());
    ctrl.set(Ctrl::QPN, qp.number).set(Ctrl::DS, u32::from(feed.u8()) % 0x40).set(Ctrl::CE, CE_ALWAYS);
    let mut copy = ctrl.bytes().to_vec();
    let len = feed.below(256);
    copy.extend_from_slice(feed.bytes(len));
    copy.resize(copy.len().next_multiple_of(4), 0);
    let record = (!feed.one_in(4))
        .then(|| (qp.record + 4, u32::from(index.wrapping_add(feed.u8().into())).to_be_bytes()));
    let half = if feed.one_in(2) { SEND_DOORBELL_STEP } else { 0 };
    let at = u64::from(o.uar) * PAGE_SIZE + SEND_DOORBELL + half;
    let pieces = copy.chunks(8).enumerate().map(|(i, piece)| (at + 8 * i as u64, piece.to_vec())).collect();
    Stores { record, pieces }
}

fn ring(adapters: &mut TwoAdapters, bits: u32) {
    adapters.write(InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64, &bits.to_be_bytes());
}

/// An offset: seldom anything, mostly a register or a doorbell.
pub(crate) fn offset(feed: &mut Feed<'_>, o: &Objects) -> u64 {
    let uar = u64::from(o.uar) * PAGE_SIZE;
    match feed.below(8) {
        0 => feed.u64(),
        1 => u64::from(feed.u32()),
        2 => u64::from(feed.u16()),
        3 => feed.pick(&[0x10, 0x14, 0x18]),
        4 => uar + u64::from(feed.u16()) % PAGE_SIZE,
        _ => {
            let half = feed.pick(&[0, 0, 0, 4]);
            uar + half + feed.pick(&[CQ_DOORBELL, EQ_ARM, EQ_UPDATE, SEND_DOORBELL, SEND_DOORBELL + 0x100])
        }
    }
}
