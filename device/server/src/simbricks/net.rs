//! A cable of the model over a channel: what passes there is a packet of a network link each.
//!
//! What a packet holds depends on who is at the other end ([`Framing`]). Messages of the model, which are packets, credits and light, are those
//! that pass between two workers ([`crate::workers`]); their time is that of the channel. Others know of Ethernet frames alone.

use hca_model::Ps;
use hca_model::link::{LinkMessage, LinkPacket, Session};
use hca_model::link_layer::MAX_FRAME;
use hca_model::link_layer::Packet;

use super::LinkError;
use super::channel::{Channel, Heard};
use super::ether::{HEADER, Stations};
use crate::workers::line;
use crate::workers::wire::{self, Behind, Leaving};

/// Bytes that a message has besides a packet, at most.
const AROUND: usize = 64;
/// Bytes of the longest message. No packet is longer than the longest frame. It is the same of all links: a switch may copy what one brings
/// into the ring of another without looking.
pub const LONGEST: usize = MAX_FRAME + AROUND + HEADER;
/// Bytes of a frame with an MTU of 1500 and a VLAN tag, without FCS: what others' entries have room for.
const USUAL: usize = 1518;
/// Bytes of FCS, which a frame has on the model's links and not here.
const FCS: usize = 4;
/// Two addresses and a type: without them nothing is a frame.
const SHORTEST: usize = 14;
/// A MAC that sends pads to so many bytes, without FCS (IEEE 802.3 3.2.8). Other software does not.
const PADDED: usize = 60;

/// What packets of a link hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Messages of the model.
    Raw,
    /// The same, each in an Ethernet frame between these stations: something may be between that knows no other.
    Ethernet(Stations),
    /// Ethernet frames: the other end is not of the model.
    Frames,
}

impl Framing {
    /// Bytes that an entry of the peer's has room for at least.
    pub fn least(self) -> usize {
        match self {
            Framing::Raw | Framing::Ethernet(_) => LONGEST,
            Framing::Frames => USUAL,
        }
    }

    /// What came as a packet of a link; `None`: it is for somebody else. `bytes` may be anything afterwards.
    ///
    /// # Errors
    /// The peer does not keep to the protocol.
    pub fn read(self, bytes: &mut Vec<u8>) -> Result<Option<LinkMessage>, LinkError> {
        if let Framing::Ethernet(stations) = self
            && !stations.unwrap(bytes)?
        {
            return Ok(None);
        }
        let len = bytes.len();
        if self == Framing::Frames {
            if !(SHORTEST..=MAX_FRAME - FCS).contains(&len) {
                return Err(LinkError::Frame(len));
            }
            bytes.resize(len.max(PADDED), 0);
            let packet = Packet::frame(std::mem::take(bytes));
            // Whole frames come, at the time at which all of them is there.
            let packet = LinkPacket { packet, tail: Ps::ZERO, credits: 0, session: Session::default() };
            return Ok(Some(LinkMessage::Packet(packet)));
        }
        let (_, message) = wire::read_bytes(bytes).ok_or(LinkError::Message(len))?;
        Ok(Some(line::within_bounds(message)))
    }
}

/// An end of a cable whose other end is in another process.
#[derive(Debug)]
pub struct NetLink {
    channel: Channel,
    framing: Framing,
    /// Room for a message that came, and for one that leaves.
    buffer: Vec<u8>,
    leaving: Vec<u8>,
}

impl NetLink {
    /// Over that channel.
    pub fn new(channel: Channel, framing: Framing) -> Self {
        Self { channel, framing, buffer: Vec::new(), leaving: Vec::new() }
    }

    /// The time that was told and heard.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The same, to tell.
    pub fn channel_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// When the other end has a message whose first byte is at its connector at `at`. Others take whole frames.
    pub fn whole(&self, at: Ps, message: &LinkMessage) -> Ps {
        match message {
            LinkMessage::Packet(packet) if self.framing == Framing::Frames => at + packet.tail,
            _ => at,
        }
    }

    /// Writes a message down.
    fn put(&mut self, at: Ps, message: LinkMessage) {
        self.leaving.clear();
        Leaving::new(at.0, message).put(&mut Behind::new(&mut self.leaving));
    }

    /// A message leaves; the far side has it at `at` ([`NetLink::whole`]), and none follows that it has earlier.
    ///
    /// # Errors
    /// See [`Channel::send`].
    pub fn send(&mut self, at: Ps, message: LinkMessage) -> Result<(), LinkError> {
        match self.framing {
            Framing::Raw => {
                self.put(at, message);
                self.channel.send(at, &[&self.leaving])
            }
            Framing::Ethernet(stations) => {
                self.put(at, message);
                let len = self.leaving.len();
                let around = stations.around(len);
                let (header, pad) = around.ok_or(LinkError::TooLong { len, room: self.channel.room() })?;
                self.channel.send(at, &[&header, &self.leaving, &[0; PADDED][..pad.min(PADDED)]])
            }
            Framing::Frames => match message {
                // One that was spoiled on the way is dropped: here nobody would see that it was.
                LinkMessage::Packet(packet) => match packet.packet.into_frame() {
                    Some(frame) => self.channel.send(at, &[&frame]),
                    None => Ok(()),
                },
                // The other end has no such thing.
                LinkMessage::Credit { .. } | LinkMessage::Light(_) => Ok(()),
            },
        }
    }

    /// The next message, and when it is at this side's connector.
    ///
    /// # Errors
    /// The peer does not keep to the protocol.
    pub fn take(&mut self) -> Result<Option<(Ps, LinkMessage)>, LinkError> {
        while let Heard::Packet(at) = self.channel.take(&mut self.buffer)? {
            if let Some(message) = self.framing.read(&mut self.buffer)? {
                return Ok(Some((at, message)));
            }
        }
        Ok(None)
    }
}
