//! What entries of flow tables do to packets beside sending them on: contexts of headers that are put before packets, lists of
//! changes of fields, samplers, meters, and memory that drivers write entries into themselves ([`crate::ste`]).
//!
//! Source: mlx5 driver and mlx5dv (`mlx5_ifc.h`, field use); the public manual has the commands about reformat and modify
//! header contexts.

use crate::layout::layout;

layout! {
    /// ALLOC_PACKET_REFORMAT_CONTEXT input; the header follows, [`PacketReformat::DATA`] bytes into the context.
    pub struct AllocPacketReformatContextIn[0x24] {
    } views {
        /// The context.
        context, context_mut: 0x1c PacketReformat;
    }

    /// QUERY_PACKET_REFORMAT_CONTEXT output; the header follows as above.
    pub struct QueryPacketReformatOut[0x24] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The context.
        context, context_mut: 0x1c PacketReformat;
    }

    /// Head of a packet reformat context: the header begins in its last 2 bytes.
    pub struct PacketReformat[8] {
        /// What is done: [`reformat`].
        REFORMAT_TYPE: 0x0 [31:24];
        /// Bytes of the header.
        REFORMAT_DATA_SIZE: 0x0 [9:0];
    }

    /// Output of ALLOC_PACKET_REFORMAT_CONTEXT and ALLOC_MODIFY_HEADER_CONTEXT, and input of the other commands about them.
    pub struct RewriteContext[0x10] {
        /// The context's number.
        NUMBER: 0x8 [31:0];
    }

    /// ALLOC_MODIFY_HEADER_CONTEXT input; [`FieldAction`]s follow.
    pub struct AllocModifyHeaderContextIn[0x10] {
        /// Tables whose entries may name it: [`crate::flow::TableType`].
        TABLE_TYPE: 0xc [31:24];
        /// Number of actions.
        NUM_OF_ACTIONS: 0xc [7:0];
    }

    /// A change of a field, 8 bytes.
    pub struct FieldAction[8] {
        /// [`field_action`].
        ACTION_TYPE: 0x0 [31:28];
        /// Set, add: the field ([`crate::rewrite::field`]); copy: the one that is copied.
        FIELD: 0x0 [27:16];
        /// Set: the lowest bit of the field that is set; copy: that is copied.
        OFFSET: 0x0 [12:8];
        /// Set, copy: how many bits; 0 = 32.
        LENGTH: 0x0 [4:0];
        /// Set, add: the number.
        DATA: 0x4 [31:0];
        /// Copy: the field that is copied to.
        DST_FIELD: 0x4 [27:16];
        /// Copy: its lowest bit that is written.
        DST_OFFSET: 0x4 [12:8];
    }

    /// CREATE_GENERAL_OBJECT input of memory for entries; QUERY_GENERAL_OBJECT output has the object at the same place.
    pub struct SwIcmIn[0x50] {
        /// log2 of its bytes.
        LOG_SW_ICM_SIZE: 0x18 [7:0];
        /// Where it lies: within what the capabilities say.
        SW_ICM_START_ADDR: 0x20 u64;
    }

    /// CREATE_GENERAL_OBJECT input of a sampler, and QUERY_GENERAL_OBJECT output.
    pub struct SamplerIn[0x38] {
        /// Type of the tables: [`crate::flow::TableType`].
        TABLE_TYPE: 0x18 [31:24];
        /// The level that it counts as.
        LEVEL: 0x18 [23:16];
        /// Tables may be of any level.
        IGNORE_FLOW_LEVEL: 0x18 [0:0];
        /// One of so many packets is copied.
        SAMPLE_RATIO: 0x1c [31:0];
        /// The table that copies go to.
        SAMPLE_TABLE_ID: 0x20 [23:0];
        /// The table that all packets go to.
        DEFAULT_TABLE_ID: 0x24 [23:0];
        /// Query: where entries that drivers write send packets that are received.
        ICM_ADDRESS_RX: 0x28 u64;
        /// The same of packets that are sent.
        ICM_ADDRESS_TX: 0x30 u64;
    }

    /// CREATE_GENERAL_OBJECT and MODIFY_GENERAL_OBJECT input of a flow meter, and QUERY_GENERAL_OBJECT output.
    ///
    /// A rate is 10^9 mantissa / 2^exponent bytes a second, a burst mantissa * 2^exponent bytes (mlx5 driver,
    /// `en/tc/meter.c`).
    pub struct FlowMeterIn[0x90] {
        /// What a modification changes ([`meter_field`]), low half.
        MODIFY_FIELD_SELECT: 0x14 [31:0];
        /// Packets are metered.
        ACTIVE: 0x18 [31:31];
        /// The register C that the color is written into.
        RETURN_REG_ID: 0x18 [27:24];
        /// Type of the table: [`crate::flow::TableType`].
        TABLE_TYPE: 0x18 [23:16];
        /// The table that all packets go on to.
        DESTINATION_TABLE_ID: 0x1c [23:0];
        /// The parameters are valid.
        VALID: 0x30 [31:31];
        /// What the committed bucket has no room for goes into the excess bucket.
        BUCKET_OVERFLOW: 0x30 [30:30];
        /// The color that packets have when they come ([`meter_color`]).
        START_COLOR: 0x30 [29:28];
        /// A green packet is taken off both buckets.
        BOTH_BUCKETS_ON_GREEN: 0x30 [27:27];
        /// What is counted: [`meter_mode`].
        METER_MODE: 0x30 [25:24];
        /// Size of the committed bucket.
        CBS_EXPONENT: 0x38 [28:24];
        /// Its mantissa.
        CBS_MANTISSA: 0x38 [23:16];
        /// The committed rate.
        CIR_EXPONENT: 0x38 [12:8];
        /// Its mantissa.
        CIR_MANTISSA: 0x38 [7:0];
        /// Size of the excess bucket.
        EBS_EXPONENT: 0x40 [28:24];
        /// Its mantissa.
        EBS_MANTISSA: 0x40 [23:16];
        /// The rate that fills the excess bucket.
        EIR_EXPONENT: 0x40 [12:8];
        /// Its mantissa.
        EIR_MANTISSA: 0x40 [7:0];
        /// Query: where entries that drivers write send packets that are received.
        ICM_ADDRESS_RX: 0x80 u64;
        /// The same of packets that are sent.
        ICM_ADDRESS_TX: 0x88 u64;
    }

    /// CREATE_GENERAL_OBJECT input of a definer, and QUERY_GENERAL_OBJECT output.
    pub struct DefinerIn[0x90] {
        /// Which fields a tag has: [`crate::definer::FORMATS`].
        FORMAT_ID: 0x20 [15:0];
    }
}

impl DefinerIn {
    /// Where the mask over words 11 to 8 of a tag begins, of formats that have more than eight, and its bytes.
    pub const LONG_MASK: core::ops::Range<usize> = 0x64..0x70;
    /// The same of words 7 to 0.
    pub const MASK: core::ops::Range<usize> = 0x70..0x90;
}

/// Bits of [`FlowMeterIn::MODIFY_FIELD_SELECT`].
#[allow(missing_docs, reason = "the names say it")]
pub mod meter_field {
    pub const ACTIVE: u32 = 1 << 0;
    pub const CBS: u32 = 1 << 1;
    pub const CIR: u32 = 1 << 2;
    pub const EBS: u32 = 1 << 3;
    pub const EIR: u32 = 1 << 4;
}

/// Values of [`FlowMeterIn::START_COLOR`], and what meters write.
#[allow(missing_docs, reason = "the names say it")]
pub mod meter_color {
    pub const RED: u32 = 0;
    pub const YELLOW: u32 = 1;
    pub const GREEN: u32 = 2;
}

/// Values of [`FlowMeterIn::METER_MODE`].
pub mod meter_mode {
    /// Bytes behind layer 2.
    pub const IP_LENGTH: u32 = 0;
    /// Bytes of the frame with its check sequence.
    pub const WITH_L2: u32 = 1;
    /// The same with preamble and gap.
    pub const WITH_L2_AND_GAP: u32 = 2;
    /// Packets: each counts as 128 bytes.
    pub const PACKETS: u32 = 3;
}

impl PacketReformat {
    /// Where in the context the header begins.
    pub const DATA: usize = 6;
}

/// Values of [`PacketReformat::REFORMAT_TYPE`].
pub mod reformat {
    /// A header is put before the frame, which makes it the payload of a tunnel.
    pub const L2_TO_L2_TUNNEL: u32 = 2;
    /// The tunnel is taken off a datagram that was in it, and a header of layer 2 put before that.
    pub const L3_TUNNEL_TO_L2: u32 = 3;
    /// A header takes the place of layer 2, which makes the datagram the payload of a tunnel.
    pub const L2_TO_L3_TUNNEL: u32 = 4;
}

/// Values of [`FieldAction::ACTION_TYPE`].
pub mod field_action {
    /// Bits of a field are set.
    pub const SET: u32 = 1;
    /// A number is added to a field.
    pub const ADD: u32 = 2;
    /// Bits of a field are copied to another one.
    pub const COPY: u32 = 3;
}

/// Fields that can be changed ([`FieldAction::FIELD`]).
#[allow(missing_docs, reason = "the names say it")]
pub mod field {
    pub const SMAC_47_16: u32 = 0x01;
    pub const SMAC_15_0: u32 = 0x02;
    pub const ETHERTYPE: u32 = 0x03;
    pub const DMAC_47_16: u32 = 0x04;
    pub const DMAC_15_0: u32 = 0x05;
    pub const IP_DSCP: u32 = 0x06;
    pub const TCP_FLAGS: u32 = 0x07;
    pub const TCP_SPORT: u32 = 0x08;
    pub const TCP_DPORT: u32 = 0x09;
    pub const IPV4_TTL: u32 = 0x0a;
    pub const UDP_SPORT: u32 = 0x0b;
    pub const UDP_DPORT: u32 = 0x0c;
    /// The first of four words of the source address.
    pub const SIPV6_127_96: u32 = 0x0d;
    /// The first of four words of the destination address.
    pub const DIPV6_127_96: u32 = 0x11;
    pub const SIPV4: u32 = 0x15;
    pub const DIPV4: u32 = 0x16;
    pub const FIRST_VID: u32 = 0x17;
    pub const IPV6_HOPLIMIT: u32 = 0x47;
    pub const METADATA_REG_A: u32 = 0x49;
    pub const METADATA_REG_B: u32 = 0x50;
    /// Register C0; the others, up to C7, follow.
    pub const METADATA_REG_C_0: u32 = 0x51;
    pub const TCP_SEQ_NUM: u32 = 0x59;
    pub const TCP_ACK_NUM: u32 = 0x5b;
    pub const IP_ECN: u32 = 0x73;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_contexts() {
        let mut a = AllocPacketReformatContextIn::new();
        a.context_mut().set(PacketReformat::REFORMAT_TYPE, reformat::L2_TO_L3_TUNNEL);
        a.context_mut().set(PacketReformat::REFORMAT_DATA_SIZE, 50);
        assert_eq!(a.bytes()[0x1c..], [4, 0, 0, 50, 0, 0, 0, 0]);
        let mut set = FieldAction::new();
        set.set(FieldAction::ACTION_TYPE, field_action::SET).set(FieldAction::FIELD, field::METADATA_REG_C_0);
        set.set(FieldAction::OFFSET, 4).set(FieldAction::LENGTH, 8).set(FieldAction::DATA, 0x1234_5678);
        assert_eq!(*set.bytes(), [0x10, 0x51, 4, 8, 0x12, 0x34, 0x56, 0x78]);
        let mut modify = AllocModifyHeaderContextIn::new();
        modify
            .set(AllocModifyHeaderContextIn::TABLE_TYPE, 1)
            .set(AllocModifyHeaderContextIn::NUM_OF_ACTIONS, 2);
        assert_eq!(modify.bytes()[0xc..], [1, 0, 0, 2]);
    }

    #[test]
    fn golden_objects() {
        let mut s = SamplerIn::new();
        s.set(SamplerIn::LEVEL, 63).set(SamplerIn::IGNORE_FLOW_LEVEL, 1).set(SamplerIn::SAMPLE_RATIO, 4);
        s.set(SamplerIn::SAMPLE_TABLE_ID, 0x11).set(SamplerIn::DEFAULT_TABLE_ID, 0x22);
        assert_eq!(s.bytes()[0x18..0x28], [0, 63, 0, 1, 0, 0, 0, 4, 0, 0, 0, 0x11, 0, 0, 0, 0x22]);
        let mut i = SwIcmIn::new();
        i.set(SwIcmIn::LOG_SW_ICM_SIZE, 22).set(SwIcmIn::SW_ICM_START_ADDR, 0x10_0000_0000);
        assert_eq!(i.bytes()[0x18..0x28], [0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0]);
    }
}
