//! Kinds of objects, and what names one.

/// Kinds of objects that commands make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is named by its object")]
pub enum Kind {
    Eq,
    Cq,
    Qp,
    /// A send queue on its own (CREATE_SQ).
    Sq,
    /// A basic shared receive queue.
    Srq,
    XrcSrq,
    /// A receive memory pool.
    Rmp,
    /// A shared receive queue with tag matching.
    Xrq,
    Dct,
    /// A receive queue on its own (CREATE_RQ).
    Rq,
    /// A table of receive queues.
    Rqt,
    /// A transport interface of receivers.
    Tir,
    /// A transport interface of senders.
    Tis,
    Mkey,
    Pd,
    Xrcd,
    TransportDomain,
    Uar,
    QCounter,
    Psv,
    UserContext,
    Umem,
    /// A general object of any type: reserved QP numbers, memory for entries of flow tables, samplers.
    GeneralObject,
    FlowTable,
    FlowGroup,
    /// A flow counter, or a bulk of them.
    FlowCounter,
    /// A header that entries of flow tables put before packets.
    ReformatContext,
    /// A list of changes that entries of flow tables make.
    HeaderContext,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 28] = [
        Self::Eq,
        Self::Cq,
        Self::Qp,
        Self::Sq,
        Self::Srq,
        Self::XrcSrq,
        Self::Rmp,
        Self::Xrq,
        Self::Dct,
        Self::Rq,
        Self::Rqt,
        Self::Tir,
        Self::Tis,
        Self::Mkey,
        Self::Pd,
        Self::Xrcd,
        Self::TransportDomain,
        Self::Uar,
        Self::QCounter,
        Self::Psv,
        Self::UserContext,
        Self::Umem,
        Self::GeneralObject,
        Self::FlowTable,
        Self::FlowGroup,
        Self::FlowCounter,
        Self::ReformatContext,
        Self::HeaderContext,
    ];

    /// Its name, as messages have it.
    pub const fn name(self) -> &'static str {
        self.names().0
    }

    /// The field that holds a number of this kind.
    pub const fn number_field(self) -> &'static str {
        self.names().1
    }

    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Eq => ("EQ", "eqn"),
            Self::Cq => ("CQ", "cqn"),
            Self::Qp => ("QP", "qpn"),
            Self::Sq => ("SQ", "sqn"),
            Self::Srq => ("SRQ", "srqn"),
            Self::XrcSrq => ("XRC SRQ", "xrc_srqn"),
            Self::Rmp => ("RMP", "rmpn"),
            Self::Xrq => ("XRQ", "xrqn"),
            Self::Dct => ("DCT", "dctn"),
            Self::Rq => ("RQ", "rqn"),
            Self::Rqt => ("RQT", "rqtn"),
            Self::Tir => ("TIR", "tirn"),
            Self::Tis => ("TIS", "tisn"),
            Self::Mkey => ("mkey", "mkey_index"),
            Self::Pd => ("PD", "pd"),
            Self::Xrcd => ("XRCD", "xrcd"),
            Self::TransportDomain => ("transport domain", "transport_domain"),
            Self::Uar => ("UAR page", "uar"),
            Self::QCounter => ("Q counter set", "counter_set_id"),
            Self::Psv => ("PSV", "psvn"),
            Self::UserContext => ("user context", "uid"),
            Self::Umem => ("user memory", "umem_id"),
            Self::GeneralObject => ("general object", "obj_id"),
            Self::FlowTable => ("flow table", "table_id"),
            Self::FlowGroup => ("flow group", "group_id"),
            Self::FlowCounter => ("flow counter", "flow_counter_id"),
            Self::ReformatContext => ("reformat context", "packet_reformat_id"),
            Self::HeaderContext => ("list of changes", "modify_header_id"),
        }
    }

    /// The kind with whose numbers objects of this kind are numbered, in one table with them.
    pub const fn numbered_as(self) -> Self {
        match self {
            Self::Sq => Self::Qp,
            Self::XrcSrq | Self::Rmp | Self::Xrq => Self::Srq,
            other => other,
        }
    }

    /// Bits of a command's word that hold a number of this kind.
    pub const fn number_mask(self) -> u32 {
        match self {
            Self::Eq | Self::QCounter => 0xff,
            Self::UserContext => 0xffff,
            _ => 0xff_ffff,
        }
    }

    /// Bytes of ICM that an object takes, without page lists and translations.
    ///
    /// At least what the server itself keeps for it, once it is in use: so the pages that a host gives, which have a bound
    /// ([`crate::Config::icm_pages`]), bound the memory that its objects cost others. `tests/tests/memory` measures that.
    pub const fn icm_bytes(self) -> u64 {
        match self {
            // Context, responder resources, alternate context.
            Self::Qp | Self::Sq => 3072,
            Self::Eq | Self::Cq | Self::Srq | Self::XrcSrq | Self::Rmp | Self::Dct | Self::Rq => 512,
            // Its list has 2^7 entries at most, each of 60 pieces of memory at most.
            Self::Xrq => 16384 + (128 * 60 * 48),
            Self::Tir => 256,
            Self::FlowTable | Self::FlowGroup => 1024,
            Self::Mkey => 192,
            Self::Uar | Self::QCounter => 0,
            _ => 64,
        }
    }
}

/// An object of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Object {
    /// Its kind, or the one as which it is numbered.
    pub(crate) kind: Kind,
    pub(crate) number: u32,
}

impl Object {
    pub(crate) const fn new(kind: Kind, number: u32) -> Self {
        Self { kind: kind.numbered_as(), number }
    }
}
