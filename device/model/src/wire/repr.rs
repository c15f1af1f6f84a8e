//! The transport headers of a packet as plain values, and which of them an opcode carries.

use std::ops::Range;

use hca_spec::ids::{Mkey, Psn, Qpn, Srqn};
use hca_spec::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, DcEth, Deth, ICRC_SIZE, Ieth, ImmDt, MasksEth, Operation, Reth,
    Transport, XrcEth,
};

use super::{MAX_PAYLOAD, Malformed};

/// What a packet's headers say from the BTH on.
///
/// The opcode alone decides which extended headers travel ([`ExtendedHeaders`]); an extended header that the
/// opcode wants and the `Repr` lacks travels as zeros, one that the opcode doesn't know is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Transport half of the opcode.
    pub transport: Transport,
    /// Operation half of the opcode.
    pub operation: Operation,
    /// Solicited event.
    pub solicited: bool,
    /// Migration state: true = migrated.
    pub migrated: bool,
    /// Partition key.
    pub pkey: u16,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// Acknowledge request.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
    /// Datagram header.
    pub deth: Option<DethRepr>,
    /// RDMA header.
    pub reth: Option<RethRepr>,
    /// Atomic header.
    pub atomic: Option<AtomicRepr>,
    /// ACK header.
    pub aeth: Option<AethRepr>,
    /// Atomic ACK header: the value before the operation.
    pub atomic_ack: Option<u64>,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key to invalidate.
    pub ieth: Option<Mkey>,
    /// The XRC shared receive queue.
    pub xrceth: Option<Srqn>,
    /// Dynamic connection header.
    pub dceth: Option<DcEthRepr>,
}

/// Dynamic connection extended transport header ([`DcEth`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DcEthRepr {
    /// Access key.
    pub access_key: u64,
    /// Number of the connection.
    pub session: u32,
    /// The initiator.
    pub src_qp: Qpn,
}

/// Datagram extended transport header (IBTA vol 1 9.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DethRepr {
    /// Q_Key.
    pub q_key: u32,
    /// Source queue pair.
    pub src_qp: Qpn,
}

/// RDMA extended transport header (IBTA vol 1 9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RethRepr {
    /// Virtual address.
    pub va: u64,
    /// Remote key.
    pub rkey: Mkey,
    /// Length of the whole message in bytes.
    pub len: u32,
}

/// Atomic extended transport header (IBTA vol 1 9.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicRepr {
    /// Virtual address.
    pub va: u64,
    /// Remote key.
    pub rkey: Mkey,
    /// Value to swap in or to add.
    pub swap_add: u64,
    /// Value to compare with.
    pub compare: u64,
    /// Of a masked atomic.
    pub masks: Option<Masks>,
}

impl AtomicRepr {
    /// Bytes of the operand, 8 at most.
    pub fn size(&self) -> usize {
        self.masks.map_or(8, |masks| 1 << masks.log_size.min(3))
    }
}

/// The bytes of an operand of that size, of its value in host order.
pub(crate) fn operand_of(value: &[u8; 8], size: usize) -> &[u8] {
    value.get(..size).unwrap_or(value)
}

/// The operand of so many bytes as it is in packets.
pub(crate) fn network_order(value: u64, size: usize) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    bytes.len().checked_sub(size).and_then(|first| bytes.get(first..)).unwrap_or(&bytes).to_vec()
}

/// What a masked atomic has beside ([`MasksEth`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Masks {
    /// Compare and swap: bits that are swapped.
    pub swap: u64,
    /// Compare and swap: bits that are compared.
    pub compare: u64,
    /// log2 of the operand's bytes.
    pub log_size: u8,
}

/// ACK extended transport header (IBTA vol 1 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AethRepr {
    /// Syndrome, see [`hca_spec::wire::aeth`].
    pub syndrome: u8,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

impl Default for Repr {
    /// An RC send-only packet with every number zero and the default partition's full-member key.
    fn default() -> Self {
        Self {
            transport: Transport::Rc,
            operation: Operation::SendOnly,
            solicited: false,
            migrated: false,
            pkey: 0xffff,
            dest_qp: Qpn(0),
            ack_req: false,
            psn: Psn::new(0),
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            ieth: None,
            xrceth: None,
            dceth: None,
        }
    }
}

/// Which extended headers and whether payload an opcode carries (IBTA vol 1 table 38; XRC: annex A14). What follows the BTH of a reserved
/// opcode nobody knows: it counts as payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExtendedHeaders {
    /// Dynamic connection header.
    pub dceth: bool,
    /// XRC header.
    pub xrceth: bool,
    /// Datagram header.
    pub deth: bool,
    /// RDMA header.
    pub reth: bool,
    /// Atomic header.
    pub atomic: bool,
    /// Header of a masked atomic.
    pub masks: bool,
    /// ACK header.
    pub aeth: bool,
    /// Atomic ACK header.
    pub atomic_ack: bool,
    /// Immediate data.
    pub imm: bool,
    /// Invalidate header.
    pub ieth: bool,
    /// Payload, which may still be empty.
    pub payload: bool,
    /// Bytes of the extended headers, all together.
    bytes: u8,
}

/// Opcodes that a BTH has room for.
const OPCODES: usize = 1 << 8;

/// What each opcode carries, worked out once.
static BY_OPCODE: [Option<ExtendedHeaders>; OPCODES] = ExtendedHeaders::of_all();

impl ExtendedHeaders {
    /// What `operation` on `transport` carries. `None`: it is dropped in silence, as the transport has no such opcode and answers nothing.
    #[inline]
    pub fn by(transport: Transport, operation: Operation) -> Option<Self> {
        BY_OPCODE.get(operation.on(transport) as usize).copied().flatten()
    }

    #[allow(clippy::indexing_slicing, reason = "at compile time")]
    const fn of_all() -> [Option<Self>; OPCODES] {
        let mut all = [None; OPCODES];
        let mut opcode = 0;
        while opcode < OPCODES {
            if let Some(transport) = Transport::from_opcode(opcode as u32) {
                all[opcode] = Self::of(transport, Operation::from_opcode(opcode as u32));
            }
            opcode += 1;
        }
        all
    }

    const fn of(transport: Transport, operation: Operation) -> Option<Self> {
        use Operation as O;
        let known = operation.exists_on(transport);
        if !known && !transport.is_reliable() {
            return None;
        }
        let read_response = matches!(
            operation,
            O::ReadResponseFirst | O::ReadResponseMiddle | O::ReadResponseLast | O::ReadResponseOnly
        );
        let atomic = operation.is_atomic();
        let acknowledge = matches!(operation, O::Acknowledge | O::AtomicAcknowledge);
        let bare = matches!(operation, O::ReadRequest | O::Connect | O::Disconnect);
        let mut extended = Self {
            dceth: matches!(transport, Transport::Dc) && !operation.is_response(),
            xrceth: known && matches!(transport, Transport::Xrc) && !operation.is_response(),
            deth: matches!(transport, Transport::Ud),
            reth: matches!(operation, O::WriteFirst | O::WriteOnly | O::WriteOnlyImm | O::ReadRequest),
            atomic,
            masks: operation.is_masked(),
            aeth: acknowledge || (read_response && !matches!(operation, O::ReadResponseMiddle)),
            atomic_ack: matches!(operation, O::AtomicAcknowledge),
            imm: matches!(operation, O::SendLastImm | O::SendOnlyImm | O::WriteLastImm | O::WriteOnlyImm),
            ieth: matches!(operation, O::SendLastInval | O::SendOnlyInval),
            payload: !known || !atomic && !acknowledge && !bare,
            bytes: 0,
        };
        // All of them together have far less than 256.
        extended.bytes = extended.sum() as u8;
        Some(extended)
    }

    /// Bytes from BTH to ICRC, with `padded` bytes of payload and pad.
    pub(crate) const fn bytes_from_bth(self, padded: usize) -> usize {
        Bth::SIZE + self.size() + padded + ICRC_SIZE
    }

    /// Bytes of the extended transport headers.
    pub const fn size(self) -> usize {
        self.bytes as usize
    }

    const fn sum(self) -> usize {
        self.dceth as usize * DcEth::SIZE
            + self.xrceth as usize * XrcEth::SIZE
            + self.deth as usize * Deth::SIZE
            + self.reth as usize * Reth::SIZE
            + self.atomic as usize * AtomicEth::SIZE
            + self.masks as usize * MasksEth::SIZE
            + self.aeth as usize * Aeth::SIZE
            + self.atomic_ack as usize * AtomicAckEth::SIZE
            + self.imm as usize * ImmDt::SIZE
            + self.ieth as usize * Ieth::SIZE
    }
}

/// Takes header after header off the front of a packet.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `n` bytes, or `None` if there are fewer.
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
}

/// Writes header after header to the front of a packet.
pub(crate) struct Writer<'a>(pub(crate) &'a mut [u8]);

impl Writer<'_> {
    /// Writes the next bytes; what does not fit is dropped.
    #[inline]
    pub(crate) fn put<const N: usize>(&mut self, bytes: &[u8; N]) {
        if let Some((next, rest)) = std::mem::take(&mut self.0).split_first_chunk_mut() {
            *next = *bytes;
            self.0 = rest;
        }
    }
}

impl Repr {
    /// Bytes of its headers, the BTH and the extended ones.
    pub fn header_size(&self) -> usize {
        Bth::SIZE + ExtendedHeaders::by(self.transport, self.operation).unwrap_or_default().size()
    }

    pub(crate) fn bth(&self, pad: usize) -> Bth {
        let mut bth = Bth::new();
        bth.set(Bth::OPCODE, self.operation.on(self.transport))
            .set(Bth::SE, self.solicited.into())
            .set(Bth::M, self.migrated.into())
            .set(Bth::PAD_CNT, pad as u32)
            .set(Bth::BECN, matches!(self.transport, Transport::Cnp).into())
            .set(Bth::P_KEY, self.pkey.into())
            .set(Bth::DEST_QP, self.dest_qp.0)
            .set(Bth::ACK_REQ, self.ack_req.into())
            .set(Bth::PSN, self.psn.get());
        bth
    }

    /// What of it travels; `None`: its transport does not have its operation.
    pub(crate) fn as_sent(&self) -> Option<Self> {
        let mut travels = *self;
        self.copy_as_sent(ExtendedHeaders::by(self.transport, self.operation)?, &mut travels);
        Some(travels)
    }

    /// Puts what of it travels into `into`: the extended headers that the opcode carries and no others, and of numbers
    /// as many bits as their fields have. Parsed packets give that.
    pub(crate) fn copy_as_sent(&self, extended: ExtendedHeaders, into: &mut Self) {
        const BITS_24: u32 = 0xff_ffff;
        fn only<T: Default>(field: &mut Option<T>, travels: bool) {
            if field.is_some() != travels {
                *field = travels.then(T::default);
            }
        }
        *into = *self;
        into.dest_qp.0 &= BITS_24;
        only(&mut into.deth, extended.deth);
        only(&mut into.reth, extended.reth);
        only(&mut into.atomic, extended.atomic);
        only(&mut into.aeth, extended.aeth);
        only(&mut into.atomic_ack, extended.atomic_ack);
        only(&mut into.imm, extended.imm);
        only(&mut into.ieth, extended.ieth);
        only(&mut into.xrceth, extended.xrceth);
        only(&mut into.dceth, extended.dceth);
        if let Some(atomic) = &mut into.atomic {
            only(&mut atomic.masks, extended.masks);
        }
        if let Some(deth) = &mut into.deth {
            deth.src_qp.0 &= BITS_24;
        }
        if let Some(aeth) = &mut into.aeth {
            aeth.msn &= BITS_24;
        }
        if let Some(srqn) = &mut into.xrceth {
            srqn.0 &= BITS_24;
        }
        if let Some(dceth) = &mut into.dceth {
            dceth.src_qp.0 &= BITS_24;
        }
    }

    /// Writes BTH and the extended headers that the opcode carries, of a packet with so many bytes of payload.
    pub(crate) fn write(&self, extended: ExtendedHeaders, payload: usize, out: &mut Writer<'_>) {
        out.put(self.bth(payload.next_multiple_of(4) - payload).bytes());
        self.write_extended(extended, out);
    }

    /// The headers of a packet with that BTH and `rest` between it and the ICRC, and where in `rest` the payload is, without
    /// pad (IBTA vol 1 9.6.1.1: the checks that need no queue pair). `len`: bytes of the whole packet, for diagnoses.
    pub(crate) fn read(bth: &Bth, rest: &[u8], len: usize) -> Result<(Self, Range<usize>), Malformed> {
        let mut repr = Self::of_bth(bth)?;
        let opcode = Malformed::Opcode(bth.get(Bth::OPCODE) as u8);
        let extended = ExtendedHeaders::by(repr.transport, repr.operation).ok_or(opcode)?;
        let mut reader = Reader(rest);
        repr.read_extended(extended, &mut reader).ok_or(Malformed::Truncated { len })?;
        let padded = reader.0.len();
        let pad = bth.get(Bth::PAD_CNT) as usize;
        let payload = padded.checked_sub(pad).ok_or(Malformed::Pad { pad, len: padded })?;
        let max = if extended.payload { MAX_PAYLOAD } else { 0 };
        if payload > max || (max == 0 && pad != 0) {
            return Err(Malformed::Payload { operation: repr.operation, len: payload, max });
        }
        let start = rest.len().saturating_sub(padded);
        Ok((repr, start..start.saturating_add(payload)))
    }

    fn of_bth(bth: &Bth) -> Result<Self, Malformed> {
        let version = bth.get(Bth::TVER) as u8;
        if version != 0 {
            return Err(Malformed::TransportVersion(version));
        }
        let opcode = bth.get(Bth::OPCODE);
        let unknown = Malformed::Opcode(opcode as u8);
        Ok(Self {
            transport: Transport::from_opcode(opcode).ok_or(unknown)?,
            operation: Operation::from_opcode(opcode),
            solicited: bth.get(Bth::SE) == 1,
            migrated: bth.get(Bth::M) == 1,
            pkey: bth.get(Bth::P_KEY) as u16,
            dest_qp: Qpn(bth.get(Bth::DEST_QP)),
            ack_req: bth.get(Bth::ACK_REQ) == 1,
            psn: Psn::new(bth.get(Bth::PSN)),
            ..Self::default()
        })
    }

    /// Writes the extended headers that the opcode carries, in the order they travel.
    fn write_extended(&self, extended: ExtendedHeaders, out: &mut Writer<'_>) {
        if extended.dceth {
            let d = self.dceth.unwrap_or_default();
            let mut eth = DcEth::new();
            eth.set(DcEth::ACCESS_KEY, d.access_key).set(DcEth::SESSION, d.session);
            out.put(eth.set(DcEth::SRC_QP, d.src_qp.0).bytes());
        }
        if extended.xrceth {
            let srq = self.xrceth.unwrap_or_default();
            out.put(XrcEth::new().set(XrcEth::XRC_SRQ, srq.0).bytes());
        }
        if extended.deth {
            let d = self.deth.unwrap_or_default();
            out.put(Deth::new().set(Deth::Q_KEY, d.q_key).set(Deth::SRC_QP, d.src_qp.0).bytes());
        }
        if extended.reth {
            let r = self.reth.unwrap_or_default();
            let mut reth = Reth::new();
            reth.set(Reth::VA, r.va).set(Reth::R_KEY, r.rkey.0).set(Reth::DMA_LEN, r.len);
            out.put(reth.bytes());
        }
        if extended.atomic {
            let a = self.atomic.unwrap_or_default();
            let mut eth = AtomicEth::new();
            eth.set(AtomicEth::VA, a.va).set(AtomicEth::R_KEY, a.rkey.0);
            eth.set(AtomicEth::SWAP_ADD, a.swap_add).set(AtomicEth::COMPARE, a.compare);
            out.put(eth.bytes());
            if extended.masks {
                let m = a.masks.unwrap_or_default();
                let mut eth = MasksEth::new();
                eth.set(MasksEth::SWAP, m.swap).set(MasksEth::COMPARE, m.compare);
                out.put(eth.set(MasksEth::LOG_SIZE, m.log_size.into()).bytes());
            }
        }
        if extended.aeth {
            let a = self.aeth.unwrap_or_default();
            out.put(Aeth::new().set(Aeth::SYNDROME, a.syndrome.into()).set(Aeth::MSN, a.msn).bytes());
        }
        if extended.atomic_ack {
            out.put(&self.atomic_ack.unwrap_or_default().to_be_bytes());
        }
        if extended.imm {
            out.put(&self.imm.unwrap_or_default().to_be_bytes());
        }
        if extended.ieth {
            out.put(&self.ieth.unwrap_or_default().0.to_be_bytes());
        }
    }

    /// Takes the extended headers that the opcode carries; `None` if the packet ends before they do.
    fn read_extended(&mut self, extended: ExtendedHeaders, from: &mut Reader<'_>) -> Option<()> {
        if extended.dceth {
            let d = DcEth::from_prefix_or_zero(from.take(DcEth::SIZE)?);
            self.dceth = Some(DcEthRepr {
                access_key: d.get(DcEth::ACCESS_KEY),
                session: d.get(DcEth::SESSION),
                src_qp: Qpn(d.get(DcEth::SRC_QP)),
            });
        }
        if extended.xrceth {
            let eth = XrcEth::from_prefix_or_zero(from.take(XrcEth::SIZE)?);
            self.xrceth = Some(Srqn(eth.get(XrcEth::XRC_SRQ)));
        }
        if extended.deth {
            let d = Deth::from_prefix_or_zero(from.take(Deth::SIZE)?);
            self.deth = Some(DethRepr { q_key: d.get(Deth::Q_KEY), src_qp: Qpn(d.get(Deth::SRC_QP)) });
        }
        if extended.reth {
            let r = Reth::from_prefix_or_zero(from.take(Reth::SIZE)?);
            self.reth = Some(RethRepr {
                va: r.get(Reth::VA),
                rkey: Mkey(r.get(Reth::R_KEY)),
                len: r.get(Reth::DMA_LEN),
            });
        }
        if extended.atomic {
            let a = AtomicEth::from_prefix_or_zero(from.take(AtomicEth::SIZE)?);
            self.atomic = Some(AtomicRepr {
                va: a.get(AtomicEth::VA),
                rkey: Mkey(a.get(AtomicEth::R_KEY)),
                swap_add: a.get(AtomicEth::SWAP_ADD),
                compare: a.get(AtomicEth::COMPARE),
                masks: None,
            });
        }
        if let Some(atomic) = self.atomic.as_mut().filter(|_| extended.masks) {
            let m = MasksEth::from_prefix_or_zero(from.take(MasksEth::SIZE)?);
            atomic.masks = Some(Masks {
                swap: m.get(MasksEth::SWAP),
                compare: m.get(MasksEth::COMPARE),
                log_size: m.get(MasksEth::LOG_SIZE) as u8,
            });
        }
        if extended.aeth {
            let a = Aeth::from_prefix_or_zero(from.take(Aeth::SIZE)?);
            self.aeth = Some(AethRepr { syndrome: a.get(Aeth::SYNDROME) as u8, msn: a.get(Aeth::MSN) });
        }
        if extended.atomic_ack {
            let a = AtomicAckEth::from_prefix_or_zero(from.take(AtomicAckEth::SIZE)?);
            self.atomic_ack = Some(a.get(AtomicAckEth::ORIGINAL));
        }
        if extended.imm {
            let i = ImmDt::from_prefix_or_zero(from.take(ImmDt::SIZE)?);
            self.imm = Some(i.get(ImmDt::DATA));
        }
        if extended.ieth {
            let i = Ieth::from_prefix_or_zero(from.take(Ieth::SIZE)?);
            self.ieth = Some(Mkey(i.get(Ieth::R_KEY)));
        }
        Some(())
    }
}
