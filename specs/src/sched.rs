//! Elements that queues are scheduled by: a tree whose leaves are groups of queues; and queue pairs that address vectors are mapped to.
//!
//! Both are general objects. Source: `mlx5dv_sched_node_create(3)`, `mlx5dv_map_ah_to_qp(3)`, and mlx5dv (field use); the public manual has neither.

use crate::layout::layout;

layout! {
    /// An element: input of CREATE_GENERAL_OBJECT and MODIFY_GENERAL_OBJECT, output of QUERY_GENERAL_OBJECT.
    pub struct SchedulingElement[0x90] {
        /// MODIFY: fields that change ([`field`]).
        MODIFY_FIELD_SELECT: 0x10 u64;
        /// Whose queues the tree is of: [`HIERARCHY_NIC`].
        SCHEDULING_HIERARCHY: 0x18 [31:24];
        /// What it is: see [`element`].
        ELEMENT_TYPE: 0x30 [31:24];
        /// Nodes: what they do with their children ([`tsar`]).
        TSAR_TYPE: 0x34 [23:16];
        /// The node above it; 0 = none.
        PARENT_ELEMENT_ID: 0x38 [31:0];
        /// Its weight among the children of its parent; 0 = the smallest.
        BW_SHARE: 0x44 [31:0];
        /// The rate that it keeps to, Mb/s; 0 = none.
        MAX_AVERAGE_BW: 0x48 [31:0];
    }

    /// A mapping: input of CREATE_GENERAL_OBJECT, output of QUERY_GENERAL_OBJECT.
    pub struct AvQpMapping[0x50] {
        /// The queue pair that congestion control is taken from.
        QPN: 0x1c [23:0];
    } views {
        /// Where packets go that it is for.
        vector, vector_mut: 0x20 crate::wqe::Datagram;
    }
}

/// [`SchedulingElement::SCHEDULING_HIERARCHY`]: queues of the NIC.
pub const HIERARCHY_NIC: u32 = 3;

/// Kinds of elements.
pub mod element {
    /// A node.
    pub const TSAR: u32 = 0;
    /// A leaf: a group of queues.
    pub const QUEUE_GROUP: u32 = 4;
}

/// What nodes do with their children.
pub mod tsar {
    /// They take turns by their weights.
    pub const DWRR: u32 = 0;
}

/// Bits of [`SchedulingElement::MODIFY_FIELD_SELECT`].
pub mod field {
    /// The weight.
    pub const BW_SHARE: u64 = 1 << 0;
    /// The rate.
    pub const MAX_AVERAGE_BW: u64 = 1 << 1;
}
