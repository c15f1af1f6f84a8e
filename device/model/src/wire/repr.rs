//! The headers of a packet as plain values, and which of them an opcode carries.

use hca_spec::ids::{Gid, Lid, Mkey, Psn, Qpn, Srqn};
use hca_spec::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, DcEth, Deth, GRH_NXT_IBA, Grh, ICRC_SIZE, Ieth, ImmDt, LNH_BTH,
    LNH_GRH, Lrh, Operation, Reth, Transport, XrcEth,
};

/// What a packet's headers say.
///
/// The opcode alone decides which extended headers travel ([`Carried`]); an extended header that the
/// opcode wants and the `Repr` lacks travels as zeros, one that the opcode doesn't know is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Service level, 0..=15.
    pub sl: u8,
    /// Virtual lane, 0..=15; 15 is management.
    pub vl: u8,
    /// Destination LID.
    pub dlid: Lid,
    /// Source LID.
    pub slid: Lid,
    /// Global route header, if one travels.
    pub grh: Option<GrhRepr>,
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

/// Global route header (IBTA vol 1 8.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GrhRepr {
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
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
            sl: 0,
            vl: 0,
            dlid: Lid(0),
            slid: Lid(0),
            grh: None,
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

/// Which extended headers and whether payload an opcode carries (IBTA vol 1 table 38; XRC: annex A14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Carried {
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
}

impl Carried {
    /// What `operation` on `transport` carries, or `None` if there is no such opcode.
    pub const fn by(transport: Transport, operation: Operation) -> Option<Self> {
        use Operation as O;
        let exists = match transport {
            Transport::Rc | Transport::Xrc => !matches!(operation, O::Connect | O::Disconnect),
            Transport::Dc => true,
            // Sends and writes only.
            Transport::Uc => (operation as u8) <= O::WriteOnlyImm as u8,
            Transport::Ud => matches!(operation, O::SendOnly | O::SendOnlyImm),
        };
        if !exists {
            return None;
        }
        let read_response = matches!(
            operation,
            O::ReadResponseFirst | O::ReadResponseMiddle | O::ReadResponseLast | O::ReadResponseOnly
        );
        let atomic = matches!(operation, O::CompareSwap | O::FetchAdd);
        let acknowledge = matches!(operation, O::Acknowledge | O::AtomicAcknowledge);
        let bare = matches!(operation, O::ReadRequest | O::Connect | O::Disconnect);
        Some(Self {
            dceth: matches!(transport, Transport::Dc) && !operation.is_response(),
            xrceth: matches!(transport, Transport::Xrc) && !operation.is_response(),
            deth: matches!(transport, Transport::Ud),
            reth: matches!(operation, O::WriteFirst | O::WriteOnly | O::WriteOnlyImm | O::ReadRequest),
            atomic,
            aeth: acknowledge || (read_response && !matches!(operation, O::ReadResponseMiddle)),
            atomic_ack: matches!(operation, O::AtomicAcknowledge),
            imm: matches!(operation, O::SendLastImm | O::SendOnlyImm | O::WriteLastImm | O::WriteOnlyImm),
            ieth: matches!(operation, O::SendLastInval | O::SendOnlyInval),
            payload: !atomic && !acknowledge && !bare,
        })
    }

    /// Bytes of the extended transport headers.
    pub const fn size(self) -> usize {
        self.dceth as usize * DcEth::SIZE
            + self.xrceth as usize * XrcEth::SIZE
            + self.deth as usize * Deth::SIZE
            + self.reth as usize * Reth::SIZE
            + self.atomic as usize * AtomicEth::SIZE
            + self.aeth as usize * Aeth::SIZE
            + self.atomic_ack as usize * AtomicAckEth::SIZE
            + self.imm as usize * ImmDt::SIZE
            + self.ieth as usize * Ieth::SIZE
    }
}

/// Takes header after header off the front of a packet.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `n` bytes, or `None` if there are fewer.
    pub(super) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
}

/// Writes header after header to the front of a packet.
pub(super) struct Writer<'a>(pub(super) &'a mut [u8]);

impl Writer<'_> {
    /// Writes the next bytes; what does not fit is dropped.
    #[inline]
    pub(super) fn put<const N: usize>(&mut self, bytes: &[u8; N]) {
        if let Some((next, rest)) = std::mem::take(&mut self.0).split_first_chunk_mut() {
            *next = *bytes;
            self.0 = rest;
        }
    }
}

impl Repr {
    /// Bytes of all headers: LRH, GRH, BTH and the extended ones.
    pub fn header_size(&self) -> usize {
        let grh = if self.grh.is_some() { Grh::SIZE } else { 0 };
        let carried = Carried::by(self.transport, self.operation).unwrap_or_default();
        Lrh::SIZE + grh + Bth::SIZE + carried.size()
    }

    pub(super) fn lrh(&self, bytes_to_icrc: usize) -> Lrh {
        let mut lrh = Lrh::new();
        lrh.set(Lrh::VL, self.vl.into())
            .set(Lrh::SL, self.sl.into())
            .set(Lrh::LNH, if self.grh.is_some() { LNH_GRH } else { LNH_BTH })
            .set(Lrh::DLID, self.dlid.0.into())
            .set(Lrh::PKT_LEN, (bytes_to_icrc / 4) as u32)
            .set(Lrh::SLID, self.slid.0.into());
        lrh
    }

    pub(super) fn bth(&self, pad: usize) -> Bth {
        let mut bth = Bth::new();
        bth.set(Bth::OPCODE, self.operation.on(self.transport))
            .set(Bth::SE, self.solicited.into())
            .set(Bth::M, self.migrated.into())
            .set(Bth::PAD_CNT, pad as u32)
            .set(Bth::P_KEY, self.pkey.into())
            .set(Bth::DEST_QP, self.dest_qp.0)
            .set(Bth::ACK_REQ, self.ack_req.into())
            .set(Bth::PSN, self.psn.get());
        bth
    }

    /// Puts what of it travels into `into`: the extended headers that the opcode carries and no others, and of numbers
    /// as many bits as their fields have. Parsed packets give that.
    /// What of it travels; `None`: its transport does not have its operation.
    pub(crate) fn carried(&self) -> Option<Self> {
        let mut travels = *self;
        self.put_carried(Carried::by(self.transport, self.operation)?, &mut travels);
        Some(travels)
    }

    pub(super) fn put_carried(&self, carried: Carried, into: &mut Self) {
        const BITS_4: u8 = 0xf;
        const BITS_20: u32 = 0xf_ffff;
        const BITS_24: u32 = 0xff_ffff;
        fn only<T: Default>(field: &mut Option<T>, travels: bool) {
            if field.is_some() != travels {
                *field = travels.then(T::default);
            }
        }
        *into = *self;
        into.sl &= BITS_4;
        into.vl &= BITS_4;
        into.dest_qp.0 &= BITS_24;
        if let Some(grh) = &mut into.grh {
            grh.flow_label &= BITS_20;
        }
        only(&mut into.deth, carried.deth);
        only(&mut into.reth, carried.reth);
        only(&mut into.atomic, carried.atomic);
        only(&mut into.aeth, carried.aeth);
        only(&mut into.atomic_ack, carried.atomic_ack);
        only(&mut into.imm, carried.imm);
        only(&mut into.ieth, carried.ieth);
        only(&mut into.xrceth, carried.xrceth);
        only(&mut into.dceth, carried.dceth);
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

    /// Writes the extended headers that the opcode carries, in the order they travel.
    pub(super) fn write_extended(&self, carried: Carried, out: &mut Writer<'_>) {
        if carried.dceth {
            let d = self.dceth.unwrap_or_default();
            let mut eth = DcEth::new();
            eth.set(DcEth::ACCESS_KEY, d.access_key).set(DcEth::SESSION, d.session);
            out.put(eth.set(DcEth::SRC_QP, d.src_qp.0).bytes());
        }
        if carried.xrceth {
            let srq = self.xrceth.unwrap_or_default();
            out.put(XrcEth::new().set(XrcEth::XRC_SRQ, srq.0).bytes());
        }
        if carried.deth {
            let d = self.deth.unwrap_or_default();
            out.put(Deth::new().set(Deth::Q_KEY, d.q_key).set(Deth::SRC_QP, d.src_qp.0).bytes());
        }
        if carried.reth {
            let r = self.reth.unwrap_or_default();
            let mut reth = Reth::new();
            reth.set(Reth::VA, r.va).set(Reth::R_KEY, r.rkey.0).set(Reth::DMA_LEN, r.len);
            out.put(reth.bytes());
        }
        if carried.atomic {
            let a = self.atomic.unwrap_or_default();
            let mut eth = AtomicEth::new();
            eth.set(AtomicEth::VA, a.va).set(AtomicEth::R_KEY, a.rkey.0);
            eth.set(AtomicEth::SWAP_ADD, a.swap_add).set(AtomicEth::COMPARE, a.compare);
            out.put(eth.bytes());
        }
        if carried.aeth {
            let a = self.aeth.unwrap_or_default();
            out.put(Aeth::new().set(Aeth::SYNDROME, a.syndrome.into()).set(Aeth::MSN, a.msn).bytes());
        }
        if carried.atomic_ack {
            out.put(&self.atomic_ack.unwrap_or_default().to_be_bytes());
        }
        if carried.imm {
            out.put(&self.imm.unwrap_or_default().to_be_bytes());
        }
        if carried.ieth {
            out.put(&self.ieth.unwrap_or_default().0.to_be_bytes());
        }
    }

    /// Takes the extended headers that the opcode carries; `None` if the packet ends before they do.
    pub(super) fn read_extended(&mut self, carried: Carried, from: &mut Reader<'_>) -> Option<()> {
        if carried.dceth {
            let d = DcEth::from_prefix_or_zero(from.take(DcEth::SIZE)?);
            self.dceth = Some(DcEthRepr {
                access_key: d.get(DcEth::ACCESS_KEY),
                session: d.get(DcEth::SESSION),
                src_qp: Qpn(d.get(DcEth::SRC_QP)),
            });
        }
        if carried.xrceth {
            let eth = XrcEth::from_prefix_or_zero(from.take(XrcEth::SIZE)?);
            self.xrceth = Some(Srqn(eth.get(XrcEth::XRC_SRQ)));
        }
        if carried.deth {
            let d = Deth::from_prefix_or_zero(from.take(Deth::SIZE)?);
            self.deth = Some(DethRepr { q_key: d.get(Deth::Q_KEY), src_qp: Qpn(d.get(Deth::SRC_QP)) });
        }
        if carried.reth {
            let r = Reth::from_prefix_or_zero(from.take(Reth::SIZE)?);
            self.reth = Some(RethRepr {
                va: r.get(Reth::VA),
                rkey: Mkey(r.get(Reth::R_KEY)),
                len: r.get(Reth::DMA_LEN),
            });
        }
        if carried.atomic {
            let a = AtomicEth::from_prefix_or_zero(from.take(AtomicEth::SIZE)?);
            self.atomic = Some(AtomicRepr {
                va: a.get(AtomicEth::VA),
                rkey: Mkey(a.get(AtomicEth::R_KEY)),
                swap_add: a.get(AtomicEth::SWAP_ADD),
                compare: a.get(AtomicEth::COMPARE),
            });
        }
        if carried.aeth {
            let a = Aeth::from_prefix_or_zero(from.take(Aeth::SIZE)?);
            self.aeth = Some(AethRepr { syndrome: a.get(Aeth::SYNDROME) as u8, msn: a.get(Aeth::MSN) });
        }
        if carried.atomic_ack {
            let a = AtomicAckEth::from_prefix_or_zero(from.take(AtomicAckEth::SIZE)?);
            self.atomic_ack = Some(a.get(AtomicAckEth::ORIGINAL));
        }
        if carried.imm {
            let i = ImmDt::from_prefix_or_zero(from.take(ImmDt::SIZE)?);
            self.imm = Some(i.get(ImmDt::DATA));
        }
        if carried.ieth {
            let i = Ieth::from_prefix_or_zero(from.take(Ieth::SIZE)?);
            self.ieth = Some(Mkey(i.get(Ieth::R_KEY)));
        }
        Some(())
    }
}

impl GrhRepr {
    /// The header of a packet with `bytes_after` bytes from BTH to ICRC.
    pub(super) fn grh(&self, bytes_after: usize) -> Grh {
        const IP_VERSION: u32 = 6;
        let mut grh = Grh::new();
        grh.set(Grh::IP_VER, IP_VERSION)
            .set(Grh::TCLASS, self.tclass.into())
            .set(Grh::FLOW_LABEL, self.flow_label)
            .set(Grh::PAY_LEN, bytes_after as u32)
            .set(Grh::NXT_HDR, GRH_NXT_IBA)
            .set(Grh::HOP_LMT, self.hop_limit.into());
        let halves = |gid: Gid| {
            let all = u128::from_be_bytes(gid.0);
            ((all >> 64) as u64, all as u64)
        };
        let (sgid, dgid) = (halves(self.sgid), halves(self.dgid));
        grh.set(Grh::SGID_H, sgid.0)
            .set(Grh::SGID_L, sgid.1)
            .set(Grh::DGID_H, dgid.0)
            .set(Grh::DGID_L, dgid.1);
        grh
    }

    pub(super) fn from_grh(grh: &Grh) -> Self {
        Self {
            tclass: grh.get(Grh::TCLASS) as u8,
            flow_label: grh.get(Grh::FLOW_LABEL),
            hop_limit: grh.get(Grh::HOP_LMT) as u8,
            sgid: Gid::new(grh.get(Grh::SGID_H), grh.get(Grh::SGID_L)),
            dgid: Gid::new(grh.get(Grh::DGID_H), grh.get(Grh::DGID_L)),
        }
    }

    /// The 40 bytes a UD receiver finds in front of the payload (IBTA vol 1 11.4.1.2), for a packet
    /// with `bytes_after` bytes from BTH to ICRC.
    pub fn to_bytes(&self, bytes_after: usize) -> [u8; Grh::SIZE] {
        *self.grh(bytes_after).bytes()
    }
}

/// Bytes from BTH to ICRC of a packet whose headers are `carried`, with `padded` bytes of payload and pad.
pub(super) const fn bytes_from_bth(carried: Carried, padded: usize) -> usize {
    Bth::SIZE + carried.size() + padded + ICRC_SIZE
}
