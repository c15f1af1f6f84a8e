//! Packets.

use hca_model::Ps;
use hca_model::wire::{MAX_PAYLOAD, Packet};
use hca_spec::ids::Qpn;
use hca_spec::wire::{Bth, Deth, GRH_NXT_IBA, Grh, ICRC_SIZE, LNH_BTH, LNH_GRH, Lrh, Reth, VCRC_SIZE};
use hca_spec::wqe::{Data, WQEBB};

use super::commands::{LOG_RECV, Q_KEY};
use super::feed::Feed;
use super::memory;
use super::objects::Objects;
use super::rig::{Rig, VICTIM};

/// Packets of one input.
const MOST: usize = 64;

/// Parses `data` as a packet, then sends an adapter packets made of it: some as they are, some with
/// good checksums.
///
/// # Panics
/// If the parser or the adapter does, or the adapter does not work afterwards.
pub fn packet(data: &[u8]) {
    let _ = Packet::from_bytes(data.to_vec()).parse();
    let mut feed = Feed::new(data);
    let mut rig = Rig::new();
    post_receives(&rig);
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        let packet = if feed.one_in(8) {
            let len = feed.below(128);
            Packet::from_bytes(feed.bytes(len).to_vec())
        } else {
            let packet = build(&mut feed, &rig.objects);
            if let Ok((repr, payload)) = packet.parse() {
                assert!(payload.len() <= MAX_PAYLOAD, "{repr:?}");
            }
            packet
        };
        let now = rig.now();
        rig.world.inject_packet(now, VICTIM, packet);
        let by = Ps::from_ns(feed.u8().into());
        rig.advance(by);
    }
    rig.advance(Ps::from_ms(5));
    rig.assert_alive();
}

/// Every queue pair has receives, of 64 KiB of data each.
fn post_receives(rig: &Rig) {
    for qp in rig.objects.qps.iter().filter(|q| q.own_receive_queue) {
        for i in 0..1u64 << LOG_RECV {
            let mut data = Data::new();
            data.set(Data::BYTE_COUNT, 0x10000).set(Data::LKEY, rig.objects.keys[1]);
            data.set(Data::ADDRESS, memory::DATA);
            let mut wqe = data.bytes().to_vec();
            wqe.extend_from_slice(Data::new().set(Data::LKEY, hca_spec::wqe::TERMINATE_LKEY).bytes());
            rig.ram().put(qp.buffer + i * WQEBB as u64, &wqe);
        }
        rig.ram().put(qp.record, &(1u32 << LOG_RECV).to_be_bytes());
    }
}

/// A packet with arbitrary headers and good checksums.
fn build(feed: &mut Feed<'_>, o: &Objects) -> Packet {
    let global = feed.one_in(4);
    let mut bth = Bth::new();
    bth.set(Bth::OPCODE, feed.u8().into()).set(Bth::P_KEY, 0xffff);
    let number = match feed.below(16) {
        0 => feed.u32(),
        1 => 0,
        2 => 1,
        3 => 0xff_ffff,
        i => o.qps[i % o.qps.len()].number,
    };
    bth.set(Bth::DEST_QP, Qpn(number).0);
    // Mostly near what is expected.
    let psn = if feed.one_in(8) { feed.u32() } else { u32::from(feed.u8()) % 8 };
    bth.set(Bth::PSN, psn).set(Bth::ACK_REQ, feed.u8().into()).set(Bth::PAD_CNT, feed.u8().into());
    if feed.one_in(8) {
        feed.mutate(bth.bytes_mut(), 2);
    }
    let mut body = Vec::new();
    match feed.below(4) {
        0 => {
            let mut deth = Deth::new();
            deth.set(Deth::Q_KEY, feed.pick(&[Q_KEY, 0x8001_0000, 0])).set(Deth::SRC_QP, feed.u32());
            body.extend_from_slice(deth.bytes());
        }
        1 | 2 => {
            let mut reth = Reth::new();
            reth.set(Reth::VA, memory::DATA + u64::from(feed.u16())).set(Reth::R_KEY, o.keys[feed.below(4)]);
            reth.set(Reth::DMA_LEN, if feed.one_in(8) { feed.u32() } else { feed.u16().into() });
            feed.mutate(reth.bytes_mut(), 1);
            body.extend_from_slice(reth.bytes());
        }
        _ => {}
    }
    let more = match feed.below(4) {
        0 => 0,
        1 => feed.below(64),
        2 => 1024,
        _ => usize::from(feed.u16()) % 4200,
    };
    let filled = feed.bytes(more.min(32)).to_vec();
    body.extend_from_slice(&filled);
    body.resize((body.len() + more - filled.len()).next_multiple_of(4), 0);

    let mut bytes = Vec::new();
    let words = Lrh::SIZE + if global { Grh::SIZE } else { 0 } + Bth::SIZE + body.len() + ICRC_SIZE;
    let mut lrh = Lrh::new();
    lrh.set(Lrh::LNH, if global { LNH_GRH } else { LNH_BTH }).set(Lrh::DLID, o.lid.0.into());
    lrh.set(Lrh::SLID, o.lid.0.into()).set(Lrh::PKT_LEN, (words / 4) as u32);
    if feed.one_in(16) {
        feed.mutate(lrh.bytes_mut(), 2);
    }
    bytes.extend_from_slice(lrh.bytes());
    if global {
        let mut grh = Grh::new();
        grh.set(Grh::IP_VER, 6).set(Grh::NXT_HDR, GRH_NXT_IBA);
        grh.set(Grh::PAY_LEN, (Bth::SIZE + body.len() + ICRC_SIZE) as u32);
        if feed.one_in(8) {
            feed.mutate(grh.bytes_mut(), 2);
        }
        bytes.extend_from_slice(grh.bytes());
    }
    bytes.extend_from_slice(bth.bytes());
    bytes.extend_from_slice(&body);
    seal(&mut bytes, global);
    Packet::from_bytes(bytes)
}

/// Appends ICRC and VCRC (IBTA vol 1 7.8), bit by bit: independent of the model's tables.
fn seal(bytes: &mut Vec<u8>, global: bool) {
    let mut covered = bytes.clone();
    let bth = if global {
        covered[..Lrh::SIZE].fill(0xff);
        // Traffic class, flow label, hop limit.
        covered[Lrh::SIZE] |= 0x0f;
        covered[Lrh::SIZE + 1..Lrh::SIZE + 4].fill(0xff);
        covered[Lrh::SIZE + 7] = 0xff;
        Lrh::SIZE + Grh::SIZE
    } else {
        covered[0] |= 0xf0;
        Lrh::SIZE
    };
    covered[bth + 4] = 0xff;
    let icrc = reflected(&covered, 0xedb8_8320, 0xffff_ffff) ^ 0xffff_ffff;
    bytes.extend_from_slice(&icrc.to_le_bytes()[..ICRC_SIZE]);
    let vcrc = reflected(bytes, 0xd008, 0xffff) ^ 0xffff;
    bytes.extend_from_slice(&vcrc.to_le_bytes()[..VCRC_SIZE]);
}

/// The remainder of a bit-reflected CRC.
fn reflected(bytes: &[u8], polynomial: u32, seed: u32) -> u32 {
    bytes.iter().fold(seed, |mut crc, byte| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { polynomial } else { 0 };
        }
        crc
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_packets_are_taken() {
        let o = Rig::new().objects;
        let good = (0..200).filter(|seed| {
            let bytes = super::super::feed::seeded(*seed, 64);
            build(&mut Feed::new(&bytes), &o).parse().is_ok()
        });
        assert!(good.count() > 20, "most packets never reach a queue pair");
    }
}
