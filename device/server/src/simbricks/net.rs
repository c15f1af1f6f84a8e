//! A cable of the model over a channel: packets, credits and light as packets of a network link.
//!
//! What a packet holds is what passes between two workers ([`crate::workers`]); its time is that of the channel.

use hca_model::Ps;
use hca_model::link::LinkMessage;
use hca_model::link_layer::eth::MAX_FRAME;

use super::LinkError;
use super::channel::{Channel, Heard};
use crate::workers::{line, wire};

/// Bytes that a message has besides a packet, at most.
const AROUND: usize = 64;
/// Bytes of the longest message. No packet is longer than the longest frame.
pub const LONGEST: usize = MAX_FRAME + AROUND;

/// An end of a cable whose other end is in another process.
#[derive(Debug)]
pub struct NetLink {
    channel: Channel,
    /// Room for a message that came, and for what is behind the packet of one that leaves.
    buffer: Vec<u8>,
    end: Vec<u8>,
}

impl NetLink {
    /// Over that channel.
    pub fn new(channel: Channel) -> Self {
        Self { channel, buffer: Vec::new(), end: Vec::new() }
    }

    /// The time that was told and heard.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The same, to tell.
    pub fn channel_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// A message leaves; it is at the far side's connector at `at`, and none follows that is there earlier.
    ///
    /// # Errors
    /// See [`Channel::send`].
    pub fn send(&mut self, at: Ps, message: LinkMessage) -> Result<(), LinkError> {
        let packet = wire::write(&mut self.end, at.0, message);
        self.channel.send(at, &[&packet, &self.end])
    }

    /// The next message, and when it is at this side's connector.
    ///
    /// # Errors
    /// The peer does not keep to the protocol.
    pub fn take(&mut self) -> Result<Option<(Ps, LinkMessage)>, LinkError> {
        let Heard::Packet(at) = self.channel.take(&mut self.buffer)? else { return Ok(None) };
        let len = self.buffer.len();
        let (_, message) = wire::read(&mut self.buffer).ok_or(LinkError::Message(len))?;
        Ok(Some((at, line::within_bounds(message))))
    }
}
