//! Registers of a port that is Ethernet, read and written by ACCESS_REGISTER.
//!
//! Source: PRM "Port registers"; bits of later adapters from the mlx5 driver's use (`inc/port.h`, `mlx5_ifc.h`).

use crate::layout::layout;

layout! {
    /// PMTU: largest frames in bytes, header, a VLAN tag and frame check sequence included.
    pub struct Pmtu[0x10] {
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// What the port can do.
        MAX_MTU: 0x4 [31:16];
        /// What software wants.
        ADMIN_MTU: 0x8 [31:16];
        /// What holds.
        OPER_MTU: 0xc [31:16];
    }

    /// PTYS: rates; of Ethernet, bits of [`eth_proto`]; of InfiniBand, widths and speeds apart.
    pub struct Ptys[0x40] {
        /// 1 = software has switched negotiation off.
        AN_DISABLE_ADMIN: 0x0 [30:30];
        /// 1 = software can.
        AN_DISABLE_CAP: 0x0 [29:29];
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// Link layer: 1 InfiniBand, 4 Ethernet.
        PROTO_MASK: 0x0 [2:0];
        /// Negotiation: 0 unavailable, 1 complete, 2 failed, 3 link up, 4 link down.
        AN_STATUS: 0x4 [31:28];
        /// Rate that holds, in 100 Mb/s.
        DATA_RATE_OPER: 0x4 [15:0];
        /// Rates that the port can do, in another code; 0 = that code is not used.
        EXT_ETH_PROTO_CAPABILITY: 0x8 [31:0];
        /// Rates that the port can do.
        ETH_PROTO_CAPABILITY: 0xc [31:0];
        /// Widths that the port can do: a bit for each of 1x, 2x, 4x, 8x and 12x.
        IB_LINK_WIDTH_CAPABILITY: 0x10 [31:16];
        /// Speeds that the port can do: a bit for each of SDR, DDR, QDR, FDR10, FDR, EDR and HDR.
        IB_PROTO_CAPABILITY: 0x10 [15:0];
        /// Rates that software wants.
        ETH_PROTO_ADMIN: 0x18 [31:0];
        /// Widths that software wants.
        IB_LINK_WIDTH_ADMIN: 0x1c [31:16];
        /// Speeds that software wants.
        IB_PROTO_ADMIN: 0x1c [15:0];
        /// The rate that holds; 0 = the link is down.
        ETH_PROTO_OPER: 0x24 [31:0];
        /// The width that holds; 0 = the link is down.
        IB_LINK_WIDTH_OPER: 0x28 [31:16];
        /// The speed that holds.
        IB_PROTO_OPER: 0x28 [15:0];
        /// Kind of connector; 0 = not known.
        CONNECTOR_TYPE: 0x2c [3:0];
        /// Rates that the other end has told of.
        ETH_PROTO_LP_ADVERTISE: 0x30 [31:0];
    }

    /// PFCC: flow control.
    pub struct Pfcc[0x20] {
        /// Who divides the receive buffers: [`PFCC_BY_FIRMWARE`], [`PFCC_BY_SOFTWARE`]; 0 = not told.
        BUF_OWNERSHIP: 0x0 [27:26];
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// 1 = [`Pfcc::DEVICE_STALL_MINOR_WATERMARK`] is written.
        MINOR_STALL_MASK: 0x0 [3:3];
        /// 1 = [`Pfcc::DEVICE_STALL_CRITICAL_WATERMARK`] is written.
        CRITICAL_STALL_MASK: 0x0 [2:2];
        /// Priorities whose bits of [`Pfcc::PFCTX`] are written.
        PRIO_MASK_TX: 0x4 [23:16];
        /// Priorities whose bits of [`Pfcc::PFCRX`] are written.
        PRIO_MASK_RX: 0x4 [7:0];
        /// 1 = PAUSE is sent.
        PPTX: 0x8 [31:31];
        /// 1 = PAUSE is sent, as negotiation found.
        APTX: 0x8 [30:30];
        /// 1 = [`Pfcc::PPTX`] is not written.
        PPTX_MASK_N: 0x8 [29:29];
        /// Bit n: PFC is sent for priority n.
        PFCTX: 0x8 [23:16];
        /// 1 = PAUSE is heeded.
        PPRX: 0xc [31:31];
        /// 1 = PAUSE is heeded, as negotiation found.
        APRX: 0xc [30:30];
        /// 1 = [`Pfcc::PPRX`] is not written.
        PPRX_MASK_N: 0xc [29:29];
        /// Bit n: PFC is heeded for priority n.
        PFCRX: 0xc [23:16];
        /// So many ms the port may ask its peer to wait, until that is counted; 0: for ever.
        DEVICE_STALL_MINOR_WATERMARK: 0x10 [31:16];
        /// So many ms the port asks its peer to wait at most; 0: for ever.
        DEVICE_STALL_CRITICAL_WATERMARK: 0x10 [15:0];
    }

    /// PBMC: receive buffers, ten of [`PbmcBuffer`] from [`PBMC_BUFFERS`] on. Sizes in cells of 128 bytes.
    pub struct Pbmc[0x6c] {
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// Quanta of 512 bit times for which a peer is asked to wait.
        XOFF_TIMER_VALUE: 0x4 [31:16];
        /// Quanta after which a peer that is to wait still is asked again.
        XOFF_REFRESH: 0x4 [15:0];
        /// When the port's memory counts as full.
        FULLNESS_THRESHOLD: 0x8 [22:16];
        /// The port's memory.
        PORT_BUFFER_SIZE: 0x8 [15:0];
    }

    /// A buffer in [`Pbmc`].
    pub struct PbmcBuffer[0x8] {
        /// 1 = frames that there is no room for are dropped, and nobody is asked to wait.
        LOSSY: 0x0 [25:25];
        /// 1 = it may use memory that buffers share.
        EPSB: 0x0 [24:24];
        /// How much it has.
        CELLS: 0x0 [15:0];
        /// The peer is asked to wait when more than that is taken.
        XOFF_THRESHOLD: 0x4 [31:16];
        /// The peer is let go on when no more than that is taken.
        XON_THRESHOLD: 0x4 [15:0];
    }

    /// PPTB: buffers of priorities.
    pub struct Pptb[0xc] {
        /// Whom it holds for: 0 = all frames, 1 = those to one station, 2 = those to groups.
        MM: 0x0 [29:28];
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// 1 = [`Pptb::CTRL_BUFF`] is written.
        CM: 0x0 [9:9];
        /// 1 = [`Pptb::UNTAGGED_BUFF`] is written.
        UM: 0x0 [8:8];
        /// Priorities whose buffers are written.
        PM: 0x0 [7:0];
        /// The buffer of priority n in bits 4n+3 to 4n.
        PRIO_X_BUFF: 0x4 [31:0];
        /// The same of priorities 8 to 15.
        PM_MSB: 0x8 [31:24];
        /// The buffer of frames of MAC control.
        CTRL_BUFF: 0x8 [7:4];
        /// The buffer of frames without a tag.
        UNTAGGED_BUFF: 0x8 [3:0];
    }

    /// PMLP: lanes of a port and of its module.
    pub struct Pmlp[0x40] {
        /// 1 = the lanes of both directions are told apart.
        RXTX: 0x0 [31:31];
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// Lanes.
        WIDTH: 0x0 [7:0];
        /// The first lane's lane in the module; those of the next lanes follow in the next words.
        LANE0_TX_LANE: 0x4 [19:16];
        /// The first lane's module.
        LANE0_MODULE: 0x4 [7:0];
    }

    /// PPLR: ways of a port back to itself, a bit each.
    pub struct Pplr[0x8] {
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// What there is.
        LB_CAP: 0x4 [27:16];
        /// What is wanted, one at most.
        LB_EN: 0x4 [11:0];
    }

    /// PDDR: what the physical layer of a port does; a page begins at [`PDDR_PAGE`].
    pub struct Pddr[0x100] {
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// Page: [`pddr_page`].
        PAGE_SELECT: 0x4 [7:0];
    }

    /// Page of [`Pddr`]: operation. Rates, and widths above speeds, are in the codes of PTYS.
    pub struct PddrOperation[0x20] {
        /// 1 InfiniBand, 4 Ethernet.
        PROTO_ACTIVE: 0x0 [23:20];
        /// State of the machine that manages the layer: 0 disabled, 2 polling, 3 up.
        PHY_MNGR_FSM_STATE: 0x4 [31:24];
        /// State of the negotiation of Ethernet: 1 transmitter off, 2 abilities are looked for, 6 up.
        ETH_AN_FSM_STATE: 0x4 [23:16];
        /// State of the training of InfiniBand: 0 disabled, 1 polling, 7 up.
        IB_PHY_FSM_STATE: 0x4 [15:8];
        /// What is wanted.
        PHY_MANAGER_LINK_ENABLED: 0x8 [31:0];
        /// The same.
        CORE_TO_PHY_LINK_ENABLED: 0xc [31:0];
        /// What port and cable can do.
        CABLE_PROTO_CAP: 0x10 [31:0];
        /// What holds.
        LINK_ACTIVE: 0x14 [31:0];
    }

    /// Page of [`Pddr`]: why a link is down.
    pub struct PddrTrouble[0xf8] {
        /// Kind of code that is asked for.
        GROUP_OPCODE: 0x0 [15:0];
        /// 0 = nothing is wrong, 1 = the port was switched off, 2 = nobody answers; [`crate::module::module_trouble`].
        STATUS_OPCODE: 0x4 [15:0];
        /// The same in words, from here on.
        STATUS_MESSAGE: 0xc [31:0];
    }

    /// SLTP: the transmitter of a lane.
    pub struct Sltp[0x4c] {
        /// Version of the layout: 0 = of chips like ConnectX-4.
        VERSION: 0x0 [27:24];
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// Lane.
        LANE: 0x0 [11:8];
    }

    /// SLRG: the receiver of a lane.
    pub struct Slrg[0x28] {
        /// Version of the layout.
        VERSION: 0x0 [27:24];
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// Lane.
        LANE: 0x0 [11:8];
    }

    /// MLCR: the light by which a person finds the port.
    pub struct Mlcr[0xc] {
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// How long it shines from now on, in seconds; 0: not at all, 0xffff: until it is switched off.
        BEACON_DURATION: 0x4 [15:0];
        /// How long it still shines, in the same code.
        BEACON_REMAIN: 0x8 [15:0];
    }

    /// MCIA: memory of a module.
    pub struct Mcia[0x10] {
        /// Module.
        MODULE: 0x0 [23:16];
        /// See `mcia_status`.
        STATUS: 0x0 [7:0];
        /// Its address on the module's bus.
        I2C_DEVICE_ADDRESS: 0x4 [31:24];
        /// Page.
        PAGE_NUMBER: 0x4 [23:16];
        /// Address in the page.
        DEVICE_ADDRESS: 0x4 [15:0];
        /// Bytes.
        LENGTH: 0x8 [15:0];
    }

    /// ROCE_ACCL: timers and restarts of RoCE, of the whole adapter.
    pub struct RoceAccl[0x80] {
        /// Read: 1 = [`RoceAccl::ROCE_SLOW_RESTART_IDLE_EN`] can be set. Written: it is.
        ROCE_SLOW_RESTART_IDLE_FIELD_SELECT: 0x0 [3:3];
        /// The same of [`RoceAccl::ROCE_SLOW_RESTART_EN`].
        ROCE_SLOW_RESTART_FIELD_SELECT: 0x0 [2:2];
        /// The same of [`RoceAccl::ROCE_TX_WINDOW_EN`].
        ROCE_TX_WINDOW_FIELD_SELECT: 0x0 [1:1];
        /// The same of [`RoceAccl::ROCE_ADP_RETRANS_EN`].
        ROCE_ADP_RETRANS_FIELD_SELECT: 0x0 [0:0];
        /// 1 = queue pairs send slower after they had nothing to send.
        ROCE_SLOW_RESTART_IDLE_EN: 0x4 [3:3];
        /// 1 = queue pairs send slower when they send again.
        ROCE_SLOW_RESTART_EN: 0x4 [2:2];
        /// 1 = queue pairs have no more than a window under way.
        ROCE_TX_WINDOW_EN: 0x4 [1:1];
        /// 1 = queue pairs wait for answers as long as these usually take.
        ROCE_ADP_RETRANS_EN: 0x4 [0:0];
    }

    /// MNVDA: a lasting setting; its data follows.
    pub struct Mnvda[0xc] {
        /// 1 = it may be overwritten.
        OVER_EN: 0x0 [25:25];
        /// 1 = it may be read.
        RD_EN: 0x0 [24:24];
        /// Version of the setting's layout.
        VERSION: 0x0 [15:12];
        /// Which of its values: 0 = from the next start on, 1 = now, 2 = as delivered.
        ACCESS_MODE: 0x0 [23:22];
        /// Bytes of data.
        LENGTH: 0x0 [8:0];
        /// Whose setting it is: 0 = the adapter's, 1 = a port's, 3 = a function's.
        TYPE_CLASS: 0x4 [31:24];
        /// Which setting, and for which port or function.
        PARAMETER: 0x4 [23:0];
    }

    /// The lasting setting [`setting::PCI`]: functions on the bus.
    pub struct NvGlobalPciConf[0xc] {
        /// 1 = what is said of virtual functions counts.
        SRIOV_VALID: 0x0 [31:31];
        /// 1 = each function has a number of its own.
        PER_PF_TOTAL_VF: 0x0 [14:14];
        /// 1 = there are virtual functions.
        SRIOV_EN: 0x4 [31:31];
        /// How many.
        TOTAL_VFS: 0x4 [15:0];
    }

    /// What [`setting::PCI`] may say, read only: [`setting::PCI_CAPABILITIES`].
    pub struct NvGlobalPciCap[0x14] {
        /// 1 = [`NvGlobalPciCap::MAX_VFS_PER_PF`] counts.
        MAX_VFS_PER_PF_VALID: 0x0 [31:31];
        /// 1 = there can be virtual functions.
        SRIOV_SUPPORT: 0x4 [31:31];
        /// Most of them.
        MAX_VFS_PER_PF: 0x4 [15:0];
    }

    /// The lasting setting [`setting::SOFTWARE_OFFLOADS`].
    pub struct NvSwOffloadConf[0x8] {
        /// 1 = user contexts can be made.
        UCTX_EN: 0x0 [8:8];
        /// When completions are compressed: 0 = if the bus is busy, 1 = always.
        CQE_COMPRESSION: 0x0 [2:0];
    }

    /// PCMR: checks of the port.
    pub struct Pcmr[0xc] {
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// 1 = the check of frame check sequences can be switched off.
        FCS_CAP: 0x4 [1:1];
        /// 1 = it is on.
        FCS_CHK: 0x8 [1:1];
    }

    /// PCAM: which registers of ports there are, and which features of them.
    pub struct Pcam[0x50] {
        /// Group of features.
        FEATURE_GROUP: 0x0 [23:16];
        /// Group of registers: 0 = 0x5000 to 0x507f.
        ACCESS_REG_GROUP: 0x0 [7:0];
        /// Registers 0x5040 to 0x507f, bit n = 0x5040 + n.
        PORT_ACCESS_REG_CAP_MASK_H: 0x8 u64;
        /// Registers 0x5000 to 0x503f, bit n = 0x5000 + n.
        PORT_ACCESS_REG_CAP_MASK_L: 0x10 u64;
        /// Features, upper half.
        FEATURE_CAP_MASK_H: 0x28 u64;
        /// Features, lower half.
        FEATURE_CAP_MASK_L: 0x30 u64;
    }

    /// PPLM: forward error correction. Bits of [`fec`].
    pub struct Pplm[0x50] {
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// What holds; 0 = the link is down.
        FEC_MODE_ACTIVE: 0xc [23:0];
        /// What there is at 56 Gb/s.
        FEC_OVERRIDE_CAP_56G: 0x10 [19:16];
        /// What there is at 100 Gb/s.
        FEC_OVERRIDE_CAP_100G: 0x10 [15:12];
        /// What there is at 50 Gb/s.
        FEC_OVERRIDE_CAP_50G: 0x10 [11:8];
        /// What there is at 25 Gb/s.
        FEC_OVERRIDE_CAP_25G: 0x10 [7:4];
        /// What there is at 10 and 40 Gb/s.
        FEC_OVERRIDE_CAP_10G_40G: 0x10 [3:0];
        /// What software wants at 56 Gb/s; 0 = the port chooses.
        FEC_OVERRIDE_ADMIN_56G: 0x14 [19:16];
        /// The same at 100 Gb/s.
        FEC_OVERRIDE_ADMIN_100G: 0x14 [15:12];
        /// The same at 50 Gb/s.
        FEC_OVERRIDE_ADMIN_50G: 0x14 [11:8];
        /// The same at 25 Gb/s.
        FEC_OVERRIDE_ADMIN_25G: 0x14 [7:4];
        /// The same at 10 and 40 Gb/s.
        FEC_OVERRIDE_ADMIN_10G_40G: 0x14 [3:0];
    }

    /// QTCT: the traffic class of a priority.
    pub struct Qtct[0x8] {
        /// Port.
        PORT_NUMBER: 0x0 [23:16];
        /// Priority.
        PRIO: 0x0 [2:0];
        /// Its traffic class.
        TCLASS: 0x4 [2:0];
    }

    /// A traffic class in [`Qetcr`], and what holds for all of them.
    pub struct EtsClass[0x8] {
        /// 1 = the group is written.
        G: 0x0 [31:31];
        /// 1 = the share is written.
        B: 0x0 [30:30];
        /// 1 = the limit is written.
        R: 0x0 [29:29];
        /// Group: a higher one comes first.
        GROUP: 0x0 [19:16];
        /// Share of what its group gets, percent.
        BW_ALLOCATION: 0x0 [6:0];
        /// Unit of the limit: 0 = there is none, 3 = 100 Mb/s, 4 = 1 Gb/s.
        MAX_BW_UNITS: 0x4 [19:16];
        /// The limit.
        MAX_BW_VALUE: 0x4 [7:0];
    }

    /// QETCR: which traffic class sends next (802.1Q enhanced transmission selection). Eight [`EtsClass`] from
    /// [`QETCR_CLASSES`] on, and one for the whole port, which has a limit only.
    pub struct Qetcr[0x50] {
        /// Port.
        PORT_NUMBER: 0x0 [23:16];
    } views {
        /// Of the whole port.
        port, port_mut: 0x48 EtsClass;
    }

    /// QPTS: by what a port tells the priority of frames that arrive.
    pub struct Qpts[0x8] {
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
        /// 1 = the VLAN tag, 2 = DSCP.
        TRUST_STATE: 0x4 [2:0];
    }

    /// QPDPM: the priority of each DSCP: 64 times 16 bits from [`QPDPM_PRIORITIES`] on, bit 15 = it is written.
    pub struct Qpdpm[0x84] {
        /// Port.
        LOCAL_PORT: 0x0 [23:16];
    }

    /// QCAM: which registers of priorities there are, and which features of them.
    pub struct Qcam[0x48] {
        /// Group of features.
        FEATURE_GROUP: 0x0 [23:16];
        /// Group of registers: 0 = 0x4000 to 0x407f.
        ACCESS_REG_GROUP: 0x0 [7:0];
        /// Registers 0x4040 to 0x407f, bit n = 0x4040 + n.
        QOS_ACCESS_REG_CAP_MASK_H: 0x8 u64;
        /// Registers 0x4000 to 0x403f, bit n = 0x4000 + n.
        QOS_ACCESS_REG_CAP_MASK_L: 0x10 u64;
        /// Features, upper half.
        QOS_FEATURE_CAP_MASK_H: 0x28 u64;
        /// Features, lower half.
        QOS_FEATURE_CAP_MASK_L: 0x30 u64;
    }
}

/// [`Pfcc::BUF_OWNERSHIP`]: the firmware divides the receive buffers.
pub const PFCC_BY_FIRMWARE: u32 = 1;
/// The same: software does.
pub const PFCC_BY_SOFTWARE: u32 = 2;

/// Where the buffers begin in [`Pbmc`].
pub const PBMC_BUFFERS: usize = 0xc;

/// Where a page begins in [`Pddr`].
pub const PDDR_PAGE: usize = 0x8;

/// Values of [`Pddr::PAGE_SELECT`].
pub mod pddr_page {
    /// [`super::PddrOperation`].
    pub const OPERATION: u32 = 0;
    /// [`super::PddrTrouble`].
    pub const TROUBLE: u32 = 1;
    /// [`crate::module::PddrModule`].
    pub const MODULE: u32 = 3;
    /// [`crate::module::PddrDown`].
    pub const DOWN: u32 = 6;
}

/// [`Ptys::PROTO_MASK`]: Ethernet.
pub const PROTO_ETHERNET: u32 = 4;
/// Where the bytes of a module's memory begin in [`Mcia`].
pub const MCIA_DATA: usize = 0x10;

/// Values of [`Mcia::STATUS`].
pub mod mcia_status {
    /// It was read.
    pub const GOOD: u32 = 0;
    /// The module has no memory.
    pub const NO_MEMORY: u32 = 1;
    /// There is no module.
    pub const NOT_CONNECTED: u32 = 3;
    /// Nothing answers on the module's bus.
    pub const BUS_ERROR: u32 = 9;
}

/// Values of [`Mnvda::TYPE_CLASS`].
pub mod class {
    /// The adapter's.
    pub const ADAPTER: u32 = 0;
    /// A port's, whose number is in bits 23..16 of the parameter.
    pub const PORT: u32 = 1;
}

/// Lasting settings: parameters of [`Mnvda`]; but for the last one with class 0.
pub mod setting {
    /// [`crate::management::NvBaseMacGuid`].
    pub const ADDRESSES: u32 = 0x2;
    /// [`crate::management::NvBaseMacGuidCap`].
    pub const ADDRESS_NUMBERS: u32 = 0x3;
    /// [`super::NvGlobalPciConf`].
    pub const PCI: u32 = 0x80;
    /// [`super::NvGlobalPciCap`].
    pub const PCI_CAPABILITIES: u32 = 0x81;
    /// [`super::NvSwOffloadConf`].
    pub const SOFTWARE_OFFLOADS: u32 = 0x10a;
    /// Of a port: [`crate::management::NvVpiLinkType`].
    pub const LINK_TYPE: u32 = 0x12;
}

/// Where the classes begin in [`Qetcr`].
pub const QETCR_CLASSES: usize = 0x8;
/// Where the priorities begin in [`Qpdpm`].
pub const QPDPM_PRIORITIES: usize = 0x4;
/// [`Qpts::TRUST_STATE`]: the VLAN tag.
pub const TRUST_PCP: u32 = 1;
/// [`Qpts::TRUST_STATE`]: DSCP.
pub const TRUST_DSCP: u32 = 2;

/// Kinds of forward error correction in [`Pplm`], a bit each.
pub mod fec {
    /// None.
    pub const NONE: u32 = 1 << 0;
    /// BASE-R (IEEE 802.3 clause 74).
    pub const FIRECODE: u32 = 1 << 1;
    /// Reed-Solomon (528, 514) (IEEE 802.3 clauses 91 and 108).
    pub const RS_528_514: u32 = 1 << 2;
}

/// Bits of [`Pcam::FEATURE_CAP_MASK_L`].
pub mod pcam_feature {
    /// [`crate::port_counters::ppcnt_group::PHYSICAL_STATISTICS`].
    pub const PHYSICAL_STATISTICS: u64 = 1 << 0;
    /// [`super::Pfcc`] has watermarks, and parts of it can be written.
    pub const PFCC_MASK: u64 = 1 << 9;
    /// [`crate::port_counters::ppcnt_group::ETHERNET_EXTENDED`] has a histogram of sizes that were sent.
    pub const SIZES_SENT: u64 = 1 << 12;
    /// [`super::Pfcc::BUF_OWNERSHIP`].
    pub const BUFFER_OWNERSHIP: u64 = 1 << 44;
}

/// Rates of [`Ptys`], a bit each.
pub mod eth_proto {
    /// 10GBASE-CX4, four lanes of 2.5 Gb/s.
    pub const CX4_10G: u32 = 1 << 2;
    /// 10GBASE-KX4.
    pub const KX4_10G: u32 = 1 << 3;
    /// 10GBASE-KR, one lane.
    pub const KR_10G: u32 = 1 << 4;
    /// 40GBASE-CR4.
    pub const CR4_40G: u32 = 1 << 6;
    /// 40GBASE-KR4.
    pub const KR4_40G: u32 = 1 << 7;
    /// 56 Gb/s, four lanes, the vendor's.
    pub const R4_56G: u32 = 1 << 8;
    /// 10GBASE-CR.
    pub const CR_10G: u32 = 1 << 12;
    /// 10GBASE-SR.
    pub const SR_10G: u32 = 1 << 13;
    /// 40GBASE-SR4.
    pub const SR4_40G: u32 = 1 << 15;
    /// 50 Gb/s, two lanes of fibre.
    pub const SR2_50G: u32 = 1 << 18;
    /// 100GBASE-CR4.
    pub const CR4_100G: u32 = 1 << 20;
    /// 100GBASE-SR4.
    pub const SR4_100G: u32 = 1 << 21;
    /// 100GBASE-KR4.
    pub const KR4_100G: u32 = 1 << 22;
    /// 25GBASE-CR.
    pub const CR_25G: u32 = 1 << 27;
    /// 25GBASE-KR.
    pub const KR_25G: u32 = 1 << 28;
    /// 25GBASE-SR.
    pub const SR_25G: u32 = 1 << 29;
    /// 50 Gb/s, two lanes of copper.
    pub const CR2_50G: u32 = 1 << 30;
    /// 50 Gb/s, two lanes of a backplane.
    pub const KR2_50G: u32 = 1 << 31;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_rates() {
        let mut p = Ptys::new();
        p.set(Ptys::LOCAL_PORT, 1).set(Ptys::PROTO_MASK, PROTO_ETHERNET).set(Ptys::DATA_RATE_OPER, 1000);
        p.set(Ptys::ETH_PROTO_CAPABILITY, eth_proto::KR2_50G).set(Ptys::ETH_PROTO_OPER, eth_proto::CR4_100G);
        let b = p.bytes();
        assert_eq!(b[..8], [0, 1, 0, 4, 0, 0, 3, 0xe8]);
        assert_eq!((b[0xc], b[0x25]), (0x80, 0x10));
    }

    #[test]
    fn golden_flow_control() {
        let mut p = Pfcc::new();
        p.set(Pfcc::PRIO_MASK_TX, 0xff).set(Pfcc::PPTX, 1).set(Pfcc::PFCRX, 8).set(Pfcc::PPRX_MASK_N, 1);
        assert_eq!(p.bytes()[4..0x10], [0, 0xff, 0, 0, 0x80, 0, 0, 0, 0x20, 8, 0, 0]);
    }

    #[test]
    fn golden_others() {
        let mut p = Pcam::new();
        p.set(Pcam::PORT_ACCESS_REG_CAP_MASK_L, 1 << 8);
        assert_eq!(p.bytes()[0x16], 1, "PPCNT where drivers look for it");
        let mut p = Pmtu::new();
        p.set(Pmtu::MAX_MTU, 10000).set(Pmtu::OPER_MTU, 1522);
        assert_eq!(p.bytes()[4..], [0x27, 0x10, 0, 0, 0, 0, 0, 0, 5, 0xf2, 0, 0]);
        let mut p = Pmlp::new();
        p.set(Pmlp::WIDTH, 4).set(Pmlp::LANE0_TX_LANE, 1);
        assert_eq!((p.bytes()[3], p.bytes()[5]), (4, 1));
        let mut p = Mcia::new();
        p.set(Mcia::STATUS, mcia_status::NO_MEMORY).set(Mcia::I2C_DEVICE_ADDRESS, 0x50).set(Mcia::LENGTH, 48);
        assert_eq!(p.bytes()[..0xc], [0, 0, 0, 1, 0x50, 0, 0, 0, 0, 0, 0, 48]);
        let mut p = Pcmr::new();
        p.set(Pcmr::FCS_CHK, 1);
        assert_eq!(p.bytes()[8..], [0, 0, 0, 2]);
        let mut p = PddrOperation::new();
        p.set(PddrOperation::PROTO_ACTIVE, 1).set(PddrOperation::PHY_MNGR_FSM_STATE, 3);
        assert_eq!(p.bytes()[..8], [0, 0x10, 0, 0, 3, 0, 0, 0]);
    }

    #[test]
    fn golden_priorities() {
        let mut q = Qtct::new();
        q.set(Qtct::PRIO, 7).set(Qtct::TCLASS, 5);
        assert_eq!(*q.bytes(), [0, 0, 0, 7, 0, 0, 0, 5]);
        let mut c = EtsClass::new();
        c.set(EtsClass::G, 1).set(EtsClass::GROUP, 7).set(EtsClass::BW_ALLOCATION, 100);
        c.set(EtsClass::MAX_BW_UNITS, 3).set(EtsClass::MAX_BW_VALUE, 25);
        assert_eq!(*c.bytes(), [0x80, 7, 0, 100, 0, 3, 0, 25]);
        let mut q = Qetcr::new();
        q.port_mut().set(EtsClass::R, 1);
        assert_eq!((q.bytes()[QETCR_CLASSES + 8 * 8], q.bytes().len()), (0x20, 0x50));
        let mut q = Qpts::new();
        q.set(Qpts::LOCAL_PORT, 1).set(Qpts::TRUST_STATE, TRUST_DSCP);
        assert_eq!(*q.bytes(), [0, 1, 0, 0, 0, 0, 0, 2]);
        let mut q = Qcam::new();
        q.set(Qcam::QOS_ACCESS_REG_CAP_MASK_L, 1 << 2 | 1 << 0x13);
        assert_eq!(q.bytes()[0x14..0x18], [0, 8, 0, 4], "QPTS and QPDPM where drivers look for them");
    }

    #[test]
    fn golden_error_correction() {
        let mut p = Pplm::new();
        p.set(Pplm::FEC_MODE_ACTIVE, fec::RS_528_514).set(Pplm::FEC_OVERRIDE_CAP_100G, 5);
        p.set(Pplm::FEC_OVERRIDE_ADMIN_10G_40G, 3);
        assert_eq!(p.bytes()[0xc..0x18], [0, 0, 0, 4, 0, 0, 0x50, 0, 0, 0, 0, 3]);
    }
}
