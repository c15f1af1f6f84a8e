//! Captures in the pcapng format, which Wireshark and tshark open.
//!
//! Source: draft-ietf-opsawg-pcapng, sections 4.1 (section header), 4.2 (interface description), 4.3 (enhanced
//! packet). Packets begin with the LRH and end with the VCRC, behind a header of the Extensible Record Format (link
//! type 197, "ERF types reference guide": type 21), as `ibdump` writes them: LINKTYPE_INFINIBAND (247) has a number
//! but Wireshark 4.4 does not read it. Frames of Ethernet ports begin with the destination's address and end with the
//! FCS (link type 1), which the interface's description says. The writer is our own because three kinds of blocks are all it takes, and the
//! stable release of the crate that is widely used for this (pcap-file 2) does not honour the resolution of times.

use std::io::{self, Write};

use hca_model::trace::Captured;
use hca_model::{PortKind, PortRef, Start};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_ERF: u16 = 197;
/// ERF: bytes of the header, and "InfiniBand, from LRH to VCRC".
const ERF_HEADER: usize = 16;
const ERF_INFINIBAND: u8 = 21;
/// ERF flags: records are as long as their packets.
const ERF_VARYING: u8 = 4;
/// Options: end, and by block the ones we use.
const OPT_END: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const IF_FCSLEN: u16 = 13;
/// Bytes of an Ethernet frame's FCS.
const FCS: u8 = 4;
const EPB_FLAGS: u16 = 2;
/// Times are in units of 10^-9 s.
const NANOSECONDS: u8 = 9;
/// [`EPB_FLAGS`]: direction.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A port that is captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The port.
    pub port: PortRef,
    /// Its link layer.
    pub kind: PortKind,
    /// Its name.
    pub name: String,
}

/// Writes packets as they come.
pub struct Writer<W: Write> {
    out: W,
    /// The ports that are captured; a port's place is its interface.
    ports: Vec<(PortRef, PortKind)>,
    /// Where times are counted from.
    from: Start,
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(&(value.len() as u16).to_le_bytes());
    body.extend_from_slice(value);
    pad(body);
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Seconds with 32 bits behind the point.
fn erf_time(ns: u64) -> u64 {
    const NS_PER_S: u64 = 1_000_000_000;
    ((ns / NS_PER_S) << 32) | (((ns % NS_PER_S) << 32) / NS_PER_S)
}

impl<W: Write> Writer<W> {
    /// Starts a capture of these ports.
    ///
    /// # Errors
    /// Writing failed.
    pub fn new(out: W, ports: &[Interface]) -> io::Result<Self> {
        let mut writer =
            Self { out, ports: ports.iter().map(|p| (p.port, p.kind)).collect(), from: Start::default() };
        let mut body = Vec::new();
        body.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        // Version 1.0; the section's length is not known.
        body.extend_from_slice(&[1, 0, 0, 0]);
        body.extend_from_slice(&u64::MAX.to_le_bytes());
        option(&mut body, SHB_USERAPPL, b"softhca");
        option(&mut body, OPT_END, &[]);
        writer.block(SECTION_HEADER, &body)?;
        for Interface { kind, name, .. } in ports {
            let mut body = Vec::new();
            let link = match kind {
                PortKind::InfiniBand => LINKTYPE_ERF,
                PortKind::Ethernet => LINKTYPE_ETHERNET,
            };
            body.extend_from_slice(&link.to_le_bytes());
            // Reserved; no limit on the length of a packet.
            body.extend_from_slice(&[0; 6]);
            option(&mut body, IF_NAME, name.as_bytes());
            option(&mut body, IF_TSRESOL, &[NANOSECONDS]);
            if *kind == PortKind::Ethernet {
                option(&mut body, IF_FCSLEN, &[FCS]);
            }
            option(&mut body, OPT_END, &[]);
            writer.block(INTERFACE, &body)?;
        }
        Ok(writer)
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        // Type, and the length on both sides of the body.
        let length = (body.len() as u32 + 12).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&length)?;
        self.out.write_all(body)?;
        self.out.write_all(&length)
    }

    /// The start of time moved.
    pub fn start_moved(&mut self, start: Start) {
        self.from = start;
    }

    /// Writes a packet; one of a port that is not captured is left out.
    ///
    /// # Errors
    /// Writing failed.
    pub fn packet(&mut self, captured: Captured) -> io::Result<()> {
        let Some(interface) = self.ports.iter().position(|p| p.0 == captured.port) else { return Ok(()) };
        let kind = self.ports.get(interface).map_or(PortKind::InfiniBand, |p| p.1);
        let Captured { at, sent, packet, .. } = captured;
        let (ns, bytes) = (self.from.absolute_ns(at), packet.into_bytes());
        let length = bytes.len() + if kind == PortKind::InfiniBand { ERF_HEADER } else { 0 };
        let mut body = Vec::with_capacity(length + 40);
        body.extend_from_slice(&(interface as u32).to_le_bytes());
        body.extend_from_slice(&((ns >> 32) as u32).to_le_bytes());
        body.extend_from_slice(&(ns as u32).to_le_bytes());
        // Captured and original length.
        body.extend_from_slice(&(length as u32).to_le_bytes());
        body.extend_from_slice(&(length as u32).to_le_bytes());
        if kind == PortKind::InfiniBand {
            body.extend_from_slice(&erf_time(ns).to_le_bytes());
            body.extend_from_slice(&[ERF_INFINIBAND, ERF_VARYING]);
            body.extend_from_slice(&(length as u16).to_be_bytes());
            // Lost packets: none.
            body.extend_from_slice(&[0; 2]);
            body.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        }
        body.extend_from_slice(&bytes);
        pad(&mut body);
        option(&mut body, EPB_FLAGS, &if sent { OUTBOUND } else { INBOUND }.to_le_bytes());
        option(&mut body, OPT_END, &[]);
        self.block(ENHANCED_PACKET, &body)
    }

    /// Where it writes.
    pub fn out(&self) -> &W {
        &self.out
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// Writing failed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use hca_model::link_layer::Packet;
    use hca_model::{HcaId, Ps};

    use super::*;

    #[test]
    fn blocks_are_as_the_draft_says() {
        let mut out = Vec::new();
        let mut writer = Writer::new(
            &mut out,
            &[Interface { port: HcaId(3).into(), kind: PortKind::InfiniBand, name: "a/hca0:1".into() }],
        )
        .unwrap();
        let packet = Packet::from_bytes(vec![7; 5]);
        writer
            .packet(Captured {
                at: Ps(0x1_0000_0002 * 1000),
                port: HcaId(3).into(),
                sent: false,
                packet: packet.clone(),
            })
            .unwrap();
        writer.packet(Captured { at: Ps(0), port: HcaId(0).into(), sent: true, packet }).unwrap();
        let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap());
        let mut blocks = Vec::new();
        let mut at = 0;
        while at < out.len() {
            let len = word(at + 4) as usize;
            assert_eq!(word(at + len - 4) as usize, len, "the length stands at both ends");
            blocks.push((word(at), at));
            at += len;
        }
        assert_eq!(at, out.len());
        let kinds: Vec<u32> = blocks.iter().map(|b| b.0).collect();
        assert_eq!(
            kinds,
            [SECTION_HEADER, INTERFACE, ENHANCED_PACKET],
            "a port that is not captured is left out"
        );
        assert_eq!(word(blocks[0].1 + 8), BYTE_ORDER);
        assert_eq!(word(blocks[1].1 + 8), 197);
        let epb = blocks[2].1;
        let ns = 0x1_0000_0002_u64;
        assert_eq!((word(epb + 12), word(epb + 16)), ((ns >> 32) as u32, ns as u32));
        assert_eq!((word(epb + 8), word(epb + 20), word(epb + 24)), (0, 21, 21));
        // ERF: 4.294967298 s, type, flags, record length, losses, wire length.
        assert_eq!(word(epb + 32), 4);
        assert_eq!(out[epb + 36..epb + 44], [21, 4, 0, 21, 0, 0, 0, 5]);
        assert_eq!(&out[epb + 44..epb + 52], [7, 7, 7, 7, 7, 0, 0, 0]);
        assert_eq!(word(epb + 56), INBOUND);
    }
}
