//! Elements that queues are scheduled by: a tree whose leaves are groups of queues; and queue pairs that address vectors are mapped to.
//!
//! Both are general objects; elements have commands of their own, too, with the same context. Source: `mlx5dv_sched_node_create(3)`,
//! `mlx5dv_map_ah_to_qp(3)`, mlx5dv and the mlx5 driver (field use: `qos.c`, `rl.c`); the public manual has neither.

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

    /// What is said of an element: the part that its general object and its commands have in common.
    pub struct SchedulingContext[0x40] {
        /// What it is: see [`element`].
        ELEMENT_TYPE: 0x0 [31:24];
        /// Nodes: what they do with their children ([`tsar`]).
        TSAR_TYPE: 0x4 [23:16];
        /// The node above it; 0 = none.
        PARENT_ELEMENT_ID: 0x8 [31:0];
        /// Its weight among the children of its parent; 0 = the smallest.
        BW_SHARE: 0x14 [31:0];
        /// The rate that it keeps to, Mb/s; 0 = none.
        MAX_AVERAGE_BW: 0x18 [31:0];
    }

    /// CREATE_SCHEDULING_ELEMENT input.
    pub struct CreateSchedulingElementIn[0x80] {
        /// Whose queues the tree is of: [`HIERARCHY_NIC`].
        SCHEDULING_HIERARCHY: 0x8 [31:24];
    } views {
        /// The element.
        context, context_mut: 0x20 SchedulingContext;
    }

    /// CREATE_SCHEDULING_ELEMENT output.
    pub struct CreateSchedulingElementOut[0x40] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
        /// The element's number.
        SCHEDULING_ELEMENT_ID: 0x10 [31:0];
    }

    /// DESTROY_SCHEDULING_ELEMENT and QUERY_SCHEDULING_ELEMENT input.
    pub struct SchedulingElementIn[0x40] {
        /// Whose queues the tree is of: [`HIERARCHY_NIC`].
        SCHEDULING_HIERARCHY: 0x8 [31:24];
        /// The element's number.
        SCHEDULING_ELEMENT_ID: 0xc [31:0];
    }

    /// QUERY_SCHEDULING_ELEMENT output.
    pub struct QuerySchedulingElementOut[0x80] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The element.
        context, context_mut: 0x20 SchedulingContext;
    }

    /// MODIFY_SCHEDULING_ELEMENT input.
    pub struct ModifySchedulingElementIn[0x80] {
        /// Whose queues the tree is of: [`HIERARCHY_NIC`].
        SCHEDULING_HIERARCHY: 0x8 [31:24];
        /// The element's number.
        SCHEDULING_ELEMENT_ID: 0xc [31:0];
        /// Fields that change ([`field`]).
        MODIFY_BITMASK: 0x14 [31:0];
    } views {
        /// Their values. The rest is not looked at: drivers leave it zero.
        context, context_mut: 0x20 SchedulingContext;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A general object has the context at 0x30, commands have it at 0x20.
    #[test]
    fn golden_context() {
        let mut input = CreateSchedulingElementIn::new();
        input.set(CreateSchedulingElementIn::SCHEDULING_HIERARCHY, HIERARCHY_NIC);
        let context = input.context_mut();
        context.set(SchedulingContext::ELEMENT_TYPE, element::QUEUE_GROUP);
        context.set(SchedulingContext::PARENT_ELEMENT_ID, 0x102).set(SchedulingContext::BW_SHARE, 7);
        context.set(SchedulingContext::MAX_AVERAGE_BW, 0x300);
        let bytes = input.bytes();
        assert_eq!((bytes[8], bytes[0x20]), (3, 4));
        assert_eq!(
            (&bytes[0x28..0x2c], &bytes[0x34..0x3c]),
            (&[0, 0, 1, 2][..], &[0, 0, 0, 7, 0, 0, 3, 0][..])
        );
        let mut object = SchedulingElement::new();
        object.bytes_mut()[0x30..0x70].copy_from_slice(context_of(&input).bytes());
        assert_eq!(object.get(SchedulingElement::ELEMENT_TYPE), element::QUEUE_GROUP);
        assert_eq!(object.get(SchedulingElement::PARENT_ELEMENT_ID), 0x102);
        assert_eq!(object.get(SchedulingElement::BW_SHARE), 7);
        assert_eq!(object.get(SchedulingElement::MAX_AVERAGE_BW), 0x300);
        let mut change = ModifySchedulingElementIn::new();
        change.set(ModifySchedulingElementIn::SCHEDULING_ELEMENT_ID, 0x105);
        change.set(ModifySchedulingElementIn::MODIFY_BITMASK, 3);
        assert_eq!(change.bytes()[0xc..0x18], [0, 0, 1, 5, 0, 0, 0, 0, 0, 0, 0, 3]);
        let mut made = CreateSchedulingElementOut::new();
        made.set(CreateSchedulingElementOut::SCHEDULING_ELEMENT_ID, 0x105);
        assert_eq!(made.bytes()[0x10..0x14], [0, 0, 1, 5]);
    }

    fn context_of(input: &CreateSchedulingElementIn) -> &SchedulingContext {
        input.context()
    }
}
