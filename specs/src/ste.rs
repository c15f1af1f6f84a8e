//! Entries of flow tables that drivers write into the adapter's memory themselves (software steering), in the format of the
//! ConnectX-6 Dx.
//!
//! A packet is at one entry at a time. An entry compares a *tag*, 16 bytes that its lookup type makes of the packet, under a
//! mask; on a miss the packet goes to the entry at the miss address. On a hit the actions are done and the packet goes to a table
//! of 2^n entries: to the entry there whose number is the remainder of a CRC-32 of the next lookup type's tag, of which a
//! mask says the bytes.
//!
//! Source: mlx5dv (rdma-core, `providers/mlx5/dr_ste_v1.c`, `mlx5_ifc.h`, field use). The public manual does not have it.

use crate::layout::layout;

layout! {
    /// An entry, 64 bytes.
    pub struct Ste[0x40] {
        /// [`entry_format`]: with [`Ste::MATCH_DEFINER`] the lookup type, see [`lookup`].
        ENTRY_FORMAT: 0x0 [31:24];
        /// Flow counter; 0 = none.
        COUNTER_ID: 0x0 [23:0];
        /// What of the packet is compared.
        MATCH_DEFINER: 0x4 [15:8];
        /// Where a packet goes on a miss, bits 39..32.
        MISS_ADDRESS_39_32: 0x4 [7:0];
        /// Bits 31..6.
        MISS_ADDRESS_31_6: 0x8 [31:6];
        /// 1 = a packet whose tag is the same misses.
        MATCH_POLARITY: 0x8 [4:4];
        /// The packet is parsed again after the actions.
        REPARSE: 0x8 [3:3];
        /// Lookup type of the next table, low byte.
        HASH_DEFINER: 0xc [15:8];
        /// Where the next table begins, and how many entries it has: bits 39..32.
        NEXT_TABLE_39_32: 0xc [7:0];
        /// Bits 31..5. The lowest bit that is set is the number of entries, the bits above it the address; both without the
        /// lowest 5 bits of an address.
        NEXT_TABLE_31_5: 0x10 [31:5];
        /// Bytes of the next table's tag that make its hash: the first is the highest bit. Not in entries of the format `MATCH`.
        BYTE_MASK: 0x14 [31:16];
        /// Lookup type of the next table, high byte. Not in entries of the format `MATCH`.
        NEXT_ENTRY_FORMAT: 0x14 [15:15];
    }

    /// The first word of an action; others follow as its kind says ([`action`]).
    pub struct SteAction[12] {
        /// [`action`].
        ACTION_ID: 0x0 [31:24];
        /// Flow tag.
        FLOW_TAG: 0x0 [23:0];
        /// List of changes: their number.
        LIST_LENGTH: 0x0 [23:16];
        /// Where it is, in units of 64 bytes from the begin of the memory for lists.
        LIST_POINTER: 0x0 [15:0];
        /// Header removal and insertion: where it begins ([`anchor`]).
        START_ANCHOR: 0x0 [21:16];
        /// Removal of headers: where it ends.
        END_ANCHOR: 0x0 [13:8];
        /// It takes a tunnel off.
        DECAP: 0x0 [3:3];
        /// Removal by size, insertion: how many units of 2 bytes behind the anchor.
        START_OFFSET: 0x0 [15:9];
        /// Removal by size: how many units of 2 bytes.
        REMOVE_SIZE: 0x0 [5:0];
        /// Insertion of a context's header: how many units of 2 bytes.
        INSERT_SIZE: 0x0 [8:3];
        /// [`insert`].
        INSERT_ATTRIBUTES: 0x0 [2:0];
        /// The context; the bytes of an insertion; the number of a set and an add.
        DATA: 0x4 [31:0];
        /// Set, add, copy: the word that is written ([`word`]).
        DESTINATION: 0x0 [23:16];
        /// Its lowest bit that is written, plus 32.
        DESTINATION_SHIFT: 0x0 [13:8];
        /// How many bits.
        LENGTH: 0x0 [5:0];
        /// Copy: the word that is read.
        SOURCE: 0x4 [23:16];
        /// Its lowest bit that is read, plus 32.
        SOURCE_SHIFT: 0x4 [13:8];
    }
}

impl Ste {
    /// Where the actions begin, and how many bytes they have: of entries that compare under a mask.
    pub const ACTIONS: usize = 0x18;
    /// The same of entries of the format `MATCH`.
    pub const MATCH_ACTIONS: usize = 0x14;
    /// Where they end.
    pub const ACTIONS_END: usize = 0x20;
    /// Where the mask begins.
    pub const MASK: usize = 0x20;
    /// Where the tag begins.
    pub const TAG: usize = 0x30;
    /// Where the tag of entries of the format `MATCH` begins: their mask is that of the definer.
    pub const MATCH_TAG: usize = 0x20;
    /// Bytes of mask and tag.
    pub const TAG_SIZE: usize = 0x10;
}

/// Values of [`Ste::ENTRY_FORMAT`]; those up to 3 compare under a mask, and are the high byte of a lookup type.
pub mod entry_format {
    /// Compares what a definer object says ([`crate::definer`]). A table that it sends packets to has entries of this format,
    /// too.
    pub const MATCH: u32 = 4;
    /// In place of a definer's number: there is none, and everything hits.
    pub const NO_DEFINER: u32 = 0x0f;
}

/// Lookup types: what makes a tag. Those of layers have a second type for the headers inside a tunnel.
#[allow(missing_docs, reason = "the names say it")]
pub mod lookup {
    /// Inner layer 2, and the network of the tunnel.
    pub const L2_TUNNEL: u32 = 0x0002;
    pub const L2_DESTINATION: u32 = 0x0003;
    pub const L2_DESTINATION_INNER: u32 = 0x0004;
    pub const L2_SOURCE: u32 = 0x0005;
    pub const L2_SOURCE_INNER: u32 = 0x0006;
    pub const IPV4_5_TUPLE: u32 = 0x0007;
    pub const IPV4_5_TUPLE_INNER: u32 = 0x0008;
    pub const L4: u32 = 0x0009;
    pub const L4_INNER: u32 = 0x000a;
    pub const L2_BOTH: u32 = 0x000b;
    pub const L2_BOTH_INNER: u32 = 0x000c;
    pub const IPV4_MISC: u32 = 0x000d;
    /// The first 8 bytes of a tunnel's header.
    pub const TUNNEL_HEADER_8: u32 = 0x000e;
    /// Also what stands where nothing is compared.
    pub const IPV4_MISC_INNER: u32 = 0x000f;
    pub const ROCE: u32 = 0x0103;
    pub const SOURCE_QUEUE: u32 = 0x0104;
    pub const IPV6_DESTINATION: u32 = 0x0107;
    pub const IPV6_DESTINATION_INNER: u32 = 0x0108;
    pub const IPV6_SOURCE: u32 = 0x0109;
    pub const IPV6_SOURCE_INNER: u32 = 0x010a;
    pub const GRE: u32 = 0x010d;
    pub const METADATA: u32 = 0x010e;
    pub const REGISTERS_0: u32 = 0x010f;
    pub const REGISTERS_1: u32 = 0x0110;
    /// Further fields of TCP; ICMP.
    pub const L4_MISC: u32 = 0x0113;
    pub const L4_MISC_INNER: u32 = 0x0114;
    /// The first 16 bytes of a tunnel's header.
    pub const TUNNEL_HEADER_16: u32 = 0x0117;
}

/// Values of [`SteAction::ACTION_ID`]: those that take one word, and those that take two.
#[allow(missing_docs, reason = "the names say it")]
pub mod action {
    pub const NOP: u32 = 0x00;
    pub const COPY: u32 = 0x05;
    pub const SET: u32 = 0x06;
    pub const ADD: u32 = 0x07;
    pub const REMOVE_BY_SIZE: u32 = 0x08;
    pub const REMOVE_HEADERS: u32 = 0x09;
    pub const INSERT_INLINE: u32 = 0x0a;
    pub const INSERT_POINTER: u32 = 0x0b;
    pub const FLOW_TAG: u32 = 0x0c;
    pub const MODIFY_LIST: u32 = 0x0f;

    /// Words that an action of that kind takes; `None`: there is no such kind here.
    pub const fn words(id: u32) -> Option<usize> {
        match id {
            NOP | REMOVE_BY_SIZE | REMOVE_HEADERS | FLOW_TAG | MODIFY_LIST => Some(1),
            COPY | SET | ADD | INSERT_INLINE | INSERT_POINTER => Some(2),
            _ => None,
        }
    }
}

/// Values of [`SteAction::START_ANCHOR`] and [`SteAction::END_ANCHOR`].
pub mod anchor {
    /// The frame's begin.
    pub const START: u32 = 0x00;
    /// The first VLAN tag.
    pub const FIRST_VLAN: u32 = 0x02;
    /// The IP header.
    pub const IP: u32 = 0x07;
    /// The frame inside a tunnel.
    pub const INNER_MAC: u32 = 0x13;
    /// The IP header inside a tunnel.
    pub const INNER_IP: u32 = 0x19;
}

/// Values of [`SteAction::INSERT_ATTRIBUTES`].
pub mod insert {
    /// The packet becomes the payload of a tunnel: lengths and checksums of the header are filled in.
    pub const ENCAP: u32 = 1;
}

/// Words that actions read and write ([`SteAction::DESTINATION`]).
#[allow(missing_docs, reason = "the names say it")]
pub mod word {
    pub const DMAC_47_16: u32 = 0x00;
    /// The rest of the destination address, and the ethertype.
    pub const DMAC_15_0_ETHERTYPE: u32 = 0x01;
    /// The first tag, in the low half.
    pub const FIRST_TAG: u32 = 0x02;
    pub const SMAC_47_16: u32 = 0x08;
    /// The rest of the source address, in the high half.
    pub const SMAC_15_0: u32 = 0x09;
    /// DSCP, ECN, time to live.
    pub const L3: u32 = 0x0e;
    /// Ports.
    pub const L4: u32 = 0x18;
    /// Flags of TCP, in the high half.
    pub const TCP_FLAGS: u32 = 0x19;
    pub const IPV4_SOURCE: u32 = 0x40;
    pub const IPV4_DESTINATION: u32 = 0x41;
    /// The first of four.
    pub const IPV6_DESTINATION: u32 = 0x44;
    /// The first of four.
    pub const IPV6_SOURCE: u32 = 0x4c;
    pub const TCP_SEQUENCE: u32 = 0x5e;
    pub const TCP_ACKNOWLEDGED: u32 = 0x5f;
    /// No completion of ours shows it.
    pub const REGISTER_B: u32 = 0x7b;
    /// The sender's metadata.
    pub const REGISTER_A: u32 = 0x7c;
    pub const REGISTER_C_4: u32 = 0x8c;
    pub const REGISTER_C_5: u32 = 0x8d;
    pub const REGISTER_C_2: u32 = 0x8e;
    pub const REGISTER_C_3: u32 = 0x8f;
    pub const REGISTER_C_0: u32 = 0x90;
    pub const REGISTER_C_1: u32 = 0x91;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_entry() {
        let mut s = Ste::new();
        s.set(Ste::ENTRY_FORMAT, 1).set(Ste::COUNTER_ID, 0x1_0203).set(Ste::MATCH_DEFINER, 0x0f);
        s.set(Ste::MISS_ADDRESS_39_32, 0x12).set(Ste::MISS_ADDRESS_31_6, 0x345_6789 >> 2);
        s.set(Ste::HASH_DEFINER, 5).set(Ste::NEXT_TABLE_39_32, 0x10).set(Ste::NEXT_TABLE_31_5, 3);
        s.set(Ste::BYTE_MASK, 0xfc00).set(Ste::NEXT_ENTRY_FORMAT, 1);
        assert_eq!(s.bytes()[..8], [1, 1, 2, 3, 0, 0, 0x0f, 0x12]);
        assert_eq!(s.bytes()[0xc..0x18], [0, 0, 5, 0x10, 0, 0, 0, 0x60, 0xfc, 0, 0x80, 0]);
    }

    #[test]
    fn golden_actions() {
        let mut a = SteAction::new();
        a.set(SteAction::ACTION_ID, action::SET).set(SteAction::DESTINATION, word::REGISTER_C_0);
        a.set(SteAction::DESTINATION_SHIFT, 32 + 8).set(SteAction::LENGTH, 16).set(SteAction::DATA, 0x1234);
        assert_eq!(a.bytes()[..8], [6, 0x90, 40, 16, 0, 0, 0x12, 0x34]);
        let mut a = SteAction::new();
        a.set(SteAction::ACTION_ID, action::INSERT_POINTER).set(SteAction::INSERT_SIZE, 25);
        a.set(SteAction::INSERT_ATTRIBUTES, insert::ENCAP).set(SteAction::DATA, 7);
        assert_eq!(a.bytes()[..8], [0x0b, 0, 0, 25 << 3 | 1, 0, 0, 0, 7]);
        let mut a = SteAction::new();
        a.set(SteAction::ACTION_ID, action::REMOVE_HEADERS).set(SteAction::END_ANCHOR, anchor::INNER_MAC);
        a.set(SteAction::DECAP, 1);
        assert_eq!(a.bytes()[..4], [9, 0, 0x13, 8]);
    }
}
