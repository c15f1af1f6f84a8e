//! A packet as a frame of Ethernet: bytes, tags and priorities, and whether a port's transport takes it.

use hca_firmware::Port;
use hca_firmware::port::classes::{Classes, Trust};
use hca_spec::ether::FCS_SIZE;
use hca_spec::ids::{Gid, Qpn};

use super::{Body, Due, Form, Packet};
use crate::link_layer::eth;
use crate::link_layer::path::{LinkAddress, Path};
use crate::wire::ethernet::Headers;

impl Packet {
    /// Takes bytes as they came from an Ethernet link, with their FCS; nothing is checked before [`Packet::parse`].
    pub fn from_frame_bytes(bytes: Vec<u8>) -> Self {
        let (address, _) = eth::frame::peek(&bytes);
        let path = Path { link: LinkAddress::Eth(address), grh: None };
        Self(Box::new(Body { len: bytes.len(), data: bytes, path, ..Body::default() }))
    }

    /// Makes a frame of bytes from the destination's address on, without FCS: it is padded if it is too short, and good.
    pub fn frame(bytes: Vec<u8>) -> Self {
        let mut packet = Self::from_frame_bytes(eth::frame::of_bytes(bytes));
        packet.0.form = Form::Bytes(Due::Link);
        packet
    }

    /// The same, sent by a queue of that transport domain, which counts where the frame comes back to its adapter, and of that
    /// priority.
    pub(crate) fn frame_of(bytes: Vec<u8>, domain: u32, priority: u8) -> Self {
        let mut packet = Self::frame(bytes);
        packet.0.domain = Some(domain);
        if let LinkAddress::Eth(address) = &mut packet.0.path.link {
            address.queued(priority);
        }
        packet
    }

    /// It leaves its port for a link: the priority that it was queued with stays behind.
    #[inline]
    pub(crate) fn forget_queue(&mut self) {
        if let LinkAddress::Eth(address) = &mut self.0.path.link {
            address.queue = None;
        }
    }

    /// It came to a port with those traffic classes: what priority it has there.
    pub(crate) fn prioritise(&mut self, classes: &Classes) {
        let point = if classes.trust == Trust::CodePoint { self.code_point() } else { None };
        if let LinkAddress::Eth(address) = &mut self.0.path.link {
            let tag = address.tci.map(|_| address.tagged_priority());
            address.queue = point.map(|point| classes.priority(tag, Some(point)));
        }
    }

    /// The code point of its IP header, if it has one.
    fn code_point(&self) -> Option<u8> {
        const SHIFT: u32 = 2;
        match (self.0.form, &self.0.path.link) {
            (_, LinkAddress::Ib(_)) => None,
            (Form::Built, LinkAddress::Eth(address)) => match address.wrapping {
                eth::Wrapping::V2 { .. } => self.0.path.grh.map(|grh| grh.tclass >> SHIFT),
                _ => None,
            },
            (_, LinkAddress::Eth(_)) => Headers::parse(&self.0.data)?.ip.map(|ip| ip.dscp),
        }
    }

    /// The transport domain of the queue that sent it, of a frame that never left its adapter.
    pub(crate) fn domain(&self) -> Option<u32> {
        self.0.domain
    }

    /// Says which queue pair made it.
    #[inline]
    pub(crate) fn set_sender(&mut self, qpn: Qpn) {
        self.0.sender = Some(qpn);
    }

    /// The queue pair that made it, of a transport packet that a queue pair made and that is still at its adapter.
    pub(crate) fn sender(&self) -> Option<Qpn> {
        self.0.sender
    }

    /// It is on a link: who gets it knows nothing of its sender's queue.
    pub(crate) fn forget_domain(&mut self) {
        self.0.domain = None;
    }

    /// Whether it is a frame, of the transport or not.
    #[inline]
    pub(crate) fn is_frame(&self) -> bool {
        matches!(self.0.path.link, LinkAddress::Eth(_))
    }

    /// Whether it is a frame for the next MAC itself, unchecked.
    pub(crate) fn is_control(&self) -> bool {
        self.is_frame() && !self.is_built() && eth::pause::is_control(&self.0.data)
    }

    /// What a frame of MAC control asks for.
    pub(crate) fn pause(&self) -> Option<eth::pause::Pause> {
        let frame = if self.is_frame() && !self.is_built() { eth::frame::body(&self.0.data) } else { &[] };
        eth::pause::Pause::of_frame(frame)
    }

    /// The bytes of a frame from the destination's address on, without FCS. `None`: it is no frame, or not a good one.
    pub fn into_frame(mut self) -> Option<Vec<u8>> {
        if !self.is_frame() || self.check_link().is_err() {
            return None;
        }
        self.be_bytes();
        let mut bytes = std::mem::take(&mut self.0.data);
        bytes.truncate(bytes.len().saturating_sub(FCS_SIZE));
        Some(bytes)
    }

    /// A frame from the destination's address on, without FCS; nothing of what is no frame.
    pub(crate) fn as_frame(&mut self) -> &[u8] {
        self.be_bytes();
        match &self.0.path.link {
            LinkAddress::Ib(_) => &[],
            LinkAddress::Eth(_) => eth::frame::body(&self.0.data),
        }
    }

    /// The same once its bytes are there: nothing before [`Packet::as_frame`] was called.
    pub(crate) fn frame_bytes(&self) -> &[u8] {
        match (&self.0.path.link, self.0.form) {
            (LinkAddress::Ib(_), _) | (_, Form::Built) => &[],
            (LinkAddress::Eth(_), _) => eth::frame::body(&self.0.data),
        }
    }

    /// Whether it comes back to its port, whatever that has of RoCE.
    pub(crate) fn is_forced(&self) -> bool {
        self.0.path.is_forced()
    }

    /// Whether an adapter's transport takes it that comes to a port of its: everything on InfiniBand; on Ethernet what is for
    /// one of the port's RoCE addresses, or for a group that `attached` knows. What is not is a frame for others.
    pub(crate) fn is_transport_for(&self, port: &Port, attached: impl FnOnce(&Gid) -> bool) -> bool {
        let (address, dgid) = match (self.0.form, &self.0.path.link) {
            (_, LinkAddress::Ib(_)) => return true,
            (Form::Built, LinkAddress::Eth(address)) => (*address, self.0.path.grh.map(|grh| grh.dgid)),
            (_, LinkAddress::Eth(_)) => eth::frame::peek(&self.0.data),
        };
        let Some(dgid) = dgid.filter(|_| address.wrapping != eth::Wrapping::Frame) else { return false };
        match address.dmac.is_group() {
            true => attached(&dgid),
            false => address.reaches(&dgid, port),
        }
    }

    /// The addresses on Ethernet as they stand there, unchecked; zeroes if the frame is too short, and of what is no frame.
    #[inline]
    pub fn eth(&self) -> eth::Address {
        match &self.0.path.link {
            LinkAddress::Ib(_) => eth::Address::default(),
            LinkAddress::Eth(address) => *address,
        }
    }
}
