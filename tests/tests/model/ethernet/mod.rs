//! Ethernet: frames from queue to queue, flow tables, links and switches, RoCE.

pub(crate) mod bounds;
pub(crate) mod buffers;
pub(crate) mod classes;
pub(crate) mod congestion;
pub(crate) mod dcqcn;
pub(crate) mod drivers;
pub(crate) mod flow;
pub(crate) mod frames;
pub(crate) mod groups;
pub(crate) mod links;
pub(crate) mod loss;
pub(crate) mod merge;
pub(crate) mod mtu;
pub(crate) mod own_frames;
pub(crate) mod pools;
pub(crate) mod queues;
pub(crate) mod roce;
pub(crate) mod sending;
pub(crate) mod strides;
pub(crate) mod tables;
