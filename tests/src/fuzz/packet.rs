//! Packets.

use hca_model::Ps;
use hca_model::link_layer::Packet;
use hca_model::wire::MAX_PAYLOAD;
use hca_spec::ids::{Lid, Qpn};
use hca_spec::qpc::ServiceType;
use hca_spec::wire::{
    Bth, DcEth, Deth, GRH_NXT_IBA, Grh, ICRC_SIZE, LNH_BTH, LNH_GRH, Lrh, Operation, Reth, Transport,
    VCRC_SIZE,
};

use super::commands::{DC_KEY, Q_KEY};
use super::feed::Feed;
use super::memory;
use super::objects::Objects;
use super::two_adapters::{TwoAdapters, VICTIM};

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
    let mut adapters = TwoAdapters::new();
    adapters.post_receives();
    let mut psns = vec![0; adapters.objects.qps.len()];
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        let packet = if feed.one_in(8) {
            let len = feed.below(128);
            Packet::from_bytes(feed.bytes(len).to_vec())
        } else {
            let packet = build(&mut feed, &adapters.objects, adapters.objects.lid, &mut psns);
            if let Ok((_, repr, payload)) = packet.parse() {
                assert!(payload.len() <= MAX_PAYLOAD, "{repr:?}");
            }
            packet
        };
        let now = adapters.now();
        adapters.world.inject_packet(now, VICTIM, packet);
        let by = Ps::from_ns(feed.u8().into());
        adapters.advance(by);
        if feed.one_in(16) {
            let i = feed.below(psns.len());
            psns[i] = 0;
            adapters.reconnect(i);
        }
    }
    adapters.advance(Ps::from_ms(5));
    adapters.assert_alive();
}

/// A packet with good checksums: headers that mostly fit together, seldom anything. `psns` are what the
/// queue pairs expect next if everything before was taken. It goes to the LID of `o`, and says that it comes from `source`.
pub(crate) fn build(feed: &mut Feed<'_>, o: &Objects, source: Lid, psns: &mut [u32]) -> Packet {
    let global = feed.one_in(4);
    let i = feed.below(o.qps.len());
    let qp = o.qps[i];
    let transport = match qp.service {
        ServiceType::Uc => Transport::Uc,
        ServiceType::Xrc => Transport::Xrc,
        ServiceType::Dci => Transport::Dc,
        service if service.is_datagram() => Transport::Ud,
        _ => Transport::Rc,
    };
    let operation = match feed.below(4) {
        _ if transport == Transport::Dc && psns[i] == 0 => Operation::Connect as u8,
        0 => feed.u8() & 0x1f,
        1 if transport != Transport::Ud => {
            feed.pick(&[0x00, 0x01, 0x02, 0x06, 0x07, 0x08, 0x0c, 0x11, 0x13, 0x14])
        }
        _ => feed.pick(&[0x04, 0x05]),
    };
    let mut bth = Bth::new();
    bth.set(Bth::OPCODE, (transport as u32) << 5 | u32::from(operation)).set(Bth::P_KEY, 0xffff);
    let number = match (feed.below(32), qp.service) {
        (0, _) => feed.u32(),
        (1, _) => 0,
        (2, _) => 0xff_ffff,
        (_, ServiceType::Qp1) => 1,
        (_, ServiceType::Dci) if !(0x0d..=0x12).contains(&operation) => o.dct,
        _ => qp.number,
    };
    bth.set(Bth::DEST_QP, Qpn(number).0);
    let psn = match feed.below(16) {
        0 => feed.u32(),
        1 => psns[i].wrapping_add(feed.u8().into()).wrapping_sub(4),
        _ => {
            psns[i] += 1;
            psns[i] - 1
        }
    };
    bth.set(Bth::PSN, psn).set(Bth::ACK_REQ, feed.u8().into()).set(Bth::SE, feed.u8().into());
    let payload = match feed.below(4) {
        0 => 0,
        1 => feed.below(64),
        2 => 1024,
        _ => usize::from(feed.u16()) % 4200,
    };
    bth.set(Bth::PAD_CNT, if feed.one_in(8) { feed.u8().into() } else { payload.wrapping_neg() as u32 & 3 });
    if feed.one_in(16) {
        feed.mutate(bth.bytes_mut(), 2);
    }
    let mut body = Vec::new();
    if transport == Transport::Ud {
        let mut deth = Deth::new();
        let key = if qp.service == ServiceType::Qp1 { 0x8001_0000 } else { Q_KEY };
        deth.set(Deth::Q_KEY, if feed.one_in(8) { feed.u32() } else { key }).set(Deth::SRC_QP, feed.u32());
        body.extend_from_slice(deth.bytes());
    }
    if transport == Transport::Dc && !(0x0d..=0x12).contains(&operation) {
        let mut eth = DcEth::new();
        eth.set(DcEth::ACCESS_KEY, DC_KEY).set(DcEth::SESSION, feed.below(8) as u32 / 7);
        eth.set(DcEth::SRC_QP, qp.number);
        if feed.one_in(16) {
            feed.mutate(eth.bytes_mut(), 2);
        }
        body.extend_from_slice(eth.bytes());
    }
    if transport == Transport::Xrc {
        body.extend_from_slice(&o.srqs[1].to_be_bytes());
    }
    if matches!(operation, 0x06 | 0x0a | 0x0b | 0x0c | 0x13 | 0x14) {
        let mut reth = Reth::new();
        reth.set(Reth::VA, (memory::DATA + u64::from(feed.u16())) & !7)
            .set(Reth::R_KEY, o.keys[feed.below(4)]);
        let len = if operation == 0x06 { 3000 } else { payload as u32 };
        reth.set(Reth::DMA_LEN, if feed.one_in(8) { feed.u32() } else { len });
        if feed.one_in(8) {
            feed.mutate(reth.bytes_mut(), 1);
        }
        body.extend_from_slice(reth.bytes());
        if operation >= 0x13 {
            body.extend_from_slice(&feed.u64().to_be_bytes());
            body.extend_from_slice(&feed.u32().to_be_bytes());
        }
    }
    if matches!(operation, 0x03 | 0x05 | 0x09 | 0x0b | 0x0d..=0x12 | 0x16 | 0x17) {
        let word = if feed.one_in(2) { o.keys[feed.below(4)] } else { feed.u32() };
        body.extend_from_slice(&word.to_be_bytes());
    }
    let carries = !matches!(operation, 0x0c | 0x11..=0x14 | 0x18 | 0x19) || feed.one_in(8);
    let more = if carries { payload } else { 0 };
    let filled = feed.bytes(more.min(16)).to_vec();
    body.extend_from_slice(&filled);
    body.resize((body.len() + more - filled.len()).next_multiple_of(4), 0);

    let mut bytes = Vec::new();
    let words = Lrh::SIZE + if global { Grh::SIZE } else { 0 } + Bth::SIZE + body.len() + ICRC_SIZE;
    let mut lrh = Lrh::new();
    lrh.set(Lrh::LNH, if global { LNH_GRH } else { LNH_BTH }).set(Lrh::DLID, o.lid.0.into());
    lrh.set(Lrh::SLID, source.0.into()).set(Lrh::PKT_LEN, (words / 4) as u32);
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
pub fn seal(bytes: &mut Vec<u8>, global: bool) {
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
        let o = TwoAdapters::new().objects;
        let good = (0..200).filter(|seed| {
            let bytes = super::super::feed::seeded(*seed, 64);
            build(&mut Feed::new(&bytes), &o, o.lid, &mut [0; 16]).parse().is_ok()
        });
        assert!(good.count() > 100, "most packets never reach a queue pair");
    }
}
