//! Packets on script: those that came over a link to an adapter, chosen by their headers.

use hca_spec::ids::{Psn, Qpn};
use hca_spec::wire::{Bth, Operation, Transport};

use super::{Fired, Random, Script, What};
use crate::ground::event::Seam;
use crate::ground::time::Ps;

/// What a packet's headers have to have: all that is said. Whatever it says of the BTH, a packet without one does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// The port that it came by.
    pub port: Option<u8>,
    /// The BTH's opcode (IBTA vol 1, table 38).
    pub opcode: Option<u8>,
    /// The queue pair that it is for.
    pub qpn: Option<Qpn>,
    /// Its sequence number.
    pub psn: Option<Psn>,
}

/// What goes wrong with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketAction {
    /// It is lost.
    Lose,
    /// It comes so much later; others overtake it. If too many come late at once it is lost.
    Late(Ps),
    /// It comes twice.
    Twice,
    /// So many of its bits, of headers or payload, are flipped on the way: its checksums are wrong.
    Corrupt(u32),
}

impl Header {
    /// Whether a packet has it.
    fn is_of(&self, port: u8, bth: Option<&Bth>) -> bool {
        let Self { port: wanted, opcode, qpn, psn } = self;
        let asks = opcode.is_some() || qpn.is_some() || psn.is_some();
        wanted.is_none_or(|wanted| wanted == port)
            && (!asks
                || bth.is_some_and(|bth| {
                    opcode.is_none_or(|opcode| u32::from(opcode) == bth.get(Bth::OPCODE))
                        && qpn.is_none_or(|qpn| qpn.0 == bth.get(Bth::DEST_QP))
                        && psn.is_none_or(|psn| psn == Psn::new(bth.get(Bth::PSN)))
                }))
    }
}

impl Script {
    /// Whether something goes wrong with packets.
    pub(crate) fn is_about_packets(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.fault.what, What::Packet { .. }))
    }

    /// A packet came over a link; `bth`: its transport header, if it has one.
    pub(crate) fn packet(
        &mut self,
        now: Ps,
        port: u8,
        bth: Option<&Bth>,
    ) -> Option<(Fired, PacketAction, Random<'_>)> {
        let object = bth.map_or(0, |bth| bth.get(Bth::OPCODE));
        self.first(now, (Seam::Packet, object), |what| match what {
            What::Packet { header, action } if header.is_of(port, bth) => Some(*action),
            _ => None,
        })
    }
}

/// The BTH's opcode by the names of transport and operation: `rc-send-only`, `ud-send-only-imm`, `rc-acknowledge`, `cnp`.
pub fn packet_named(name: &str) -> Option<u8> {
    (0..=u8::MAX).find(|opcode| {
        let operation = Operation::from_opcode((*opcode).into());
        match Transport::from_opcode((*opcode).into()).filter(|_| !operation.is_reserved()) {
            Some(Transport::Cnp) => operation == Operation::SendMiddle && name == "cnp",
            None => false,
            Some(transport) => hyphened(&format!("{transport:?}{operation:?}")) == name,
        }
    })
}

/// Words that begin with capitals, in small letters with hyphens between them.
fn hyphened(words: &str) -> String {
    let mut text = String::new();
    for letter in words.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let known = [
            ("rc-send-only", 0x04),
            ("rc-acknowledge", 0x11),
            ("uc-write-last-imm", 0x29),
            ("ud-send-only", 0x64),
            ("xrc-read-request", 0xac),
            ("cnp", 0x81),
        ];
        for (name, opcode) in known {
            assert_eq!(packet_named(name), Some(opcode), "{name}");
        }
        assert_eq!(packet_named("send-only"), None);
    }

    #[test]
    fn headers() {
        let mut bth = Bth::new();
        bth.set(Bth::OPCODE, 0x11).set(Bth::DEST_QP, 0x41).set(Bth::PSN, 7);
        let any = Header::default();
        assert!(any.is_of(1, Some(&bth)) && any.is_of(1, None));
        let one = Header { port: Some(1), opcode: Some(0x11), qpn: Some(Qpn(0x41)), psn: Some(Psn::new(7)) };
        assert!(one.is_of(1, Some(&bth)) && !one.is_of(2, Some(&bth)) && !one.is_of(1, None));
        for other in [
            Header { opcode: Some(0x10), ..one },
            Header { qpn: Some(Qpn(0x40)), ..one },
            Header { psn: Some(Psn::new(8)), ..one },
        ] {
            assert!(!other.is_of(1, Some(&bth)), "{other:?}");
        }
    }
}
