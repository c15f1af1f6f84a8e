//! Golden bytes.

use super::*;

/// Byte places the mlx5 driver and rdma-core's `smpquery` read.
#[test]
fn golden_port_info() {
    let mut p = PortInfo::new();
    p.set(PortInfo::LID, 1).set(PortInfo::PORT_STATE, 4).set(PortInfo::PORT_PHYSICAL_STATE, 5);
    p.set(PortInfo::LINK_WIDTH_ACTIVE, 2).set(PortInfo::LMC, 1).set(PortInfo::LINK_SPEED_ACTIVE, 4);
    p.set(PortInfo::NEIGHBOR_MTU, 5).set(PortInfo::VL_CAP, 4).set(PortInfo::MTU_CAP, 5);
    p.set(PortInfo::GUID_CAP, 8).set(PortInfo::SUBNET_TIMEOUT, 18).set(PortInfo::P_KEY_VIOLATIONS, 3);
    let b = p.bytes();
    assert_eq!((b[16], b[17]), (0, 1));
    assert_eq!((b[31] & 15, b[32] & 15, b[33] >> 4, b[34] & 7, b[35] >> 4), (2, 4, 5, 1, 4));
    assert_eq!((b[36] >> 4, b[37] >> 4, b[41] & 15), (5, 4, 5));
    assert_eq!((b[47], b[50], b[51] & 31), (3, 8, 18));
}

#[test]
fn golden_port_info_of_a_switch() {
    let mut p = PortInfo::new();
    p.set(PortInfo::VL_STALL_COUNT, 7).set(PortInfo::HOQ_LIFE, 0x12).set(PortInfo::OPERATIONAL_VLS, 4);
    p.set(PortInfo::PARTITION_ENFORCEMENT_INBOUND, 1).set(PortInfo::FILTER_RAW_OUTBOUND, 1);
    p.set(PortInfo::CLIENT_REREGISTER, 1).set(PortInfo::SUBNET_TIMEOUT, 18);
    p.set(PortInfo::LINK_SPEED_EXT_ACTIVE, 2).set(PortInfo::LINK_SPEED_EXT_SUPPORTED, 3);
    p.set(PortInfo::LINK_SPEED_EXT_ENABLED, 31);
    let b = p.bytes();
    assert_eq!((b[42], b[43], b[51], b[62], b[63]), (0xf2, 0x49, 0x92, 0x23, 31));
}

/// Byte places that OpenSM and infiniband-diags read.
#[test]
fn golden_switch_info() {
    let mut s = SwitchInfo::new();
    s.set(SwitchInfo::LINEAR_FDB_CAP, 0xc000).set(SwitchInfo::MULTICAST_FDB_CAP, 0x1000);
    s.set(SwitchInfo::LINEAR_FDB_TOP, 0x12).set(SwitchInfo::DEFAULT_MULTICAST_NOT_PRIMARY_PORT, 0xff);
    s.set(SwitchInfo::LIFE_TIME_VALUE, 0x12).set(SwitchInfo::PORT_STATE_CHANGE, 1);
    s.set(SwitchInfo::OPTIMIZED_SL_TO_VL, 1).set(SwitchInfo::PARTITION_ENFORCEMENT_CAP, 32);
    s.set(SwitchInfo::INBOUND_ENFORCEMENT_CAP, 1).set(SwitchInfo::ENHANCED_PORT0, 1);
    s.set(SwitchInfo::MULTICAST_FDB_TOP, 0xc00f);
    let golden =
        [0xc0, 0, 0, 0, 0x10, 0, 0, 0x12, 0, 0, 0xff, 0x95, 0, 0, 0, 32, 0x88, 0, 0xc0, 0x0f, 0, 0, 0, 0];
    assert_eq!(s.bytes()[..24], golden);
}

#[test]
fn golden_notice() {
    let mut n = Notice::new();
    n.set(Notice::GENERIC, 1).set(Notice::TYPE, notice_type::URGENT).set(Notice::PRODUCER_TYPE, 2);
    n.set(Notice::TRAP_NUMBER, trap::LINK_STATE).set(Notice::ISSUER_LID, 7).set(Notice::SWITCH_LID, 7);
    assert_eq!(n.bytes()[..12], [0x81, 0, 0, 2, 0, 128, 0, 7, 0, 0, 0, 7]);
    n = Notice::new();
    n.set(Notice::LID, 5).set(Notice::OTHER_LOCAL_CHANGES, 1).set(Notice::CAPABILITY_MASK, 0x0102_0304);
    n.set(Notice::CHANGE_FLAGS, 1).set(Notice::CAPABILITY_MASK2, 0x30);
    assert_eq!(n.bytes()[10..24], [0, 0, 0, 5, 0, 1, 1, 2, 3, 4, 0, 1, 0, 0x30]);
    n = Notice::new();
    n.set(Notice::LID, 5).set(Notice::DR_SLID, 6).set(Notice::METHOD, 2).set(Notice::ATTRIBUTE_ID, 0x15);
    n.set(Notice::ATTRIBUTE_MODIFIER, 1).set(Notice::M_KEY, 9);
    n.set(Notice::DR_NOTICE, 1).set(Notice::DR_HOP_COUNT, 3);
    let golden = [0, 5, 0, 6, 2, 0, 0, 0x15, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0x83];
    assert_eq!(n.bytes()[12..34], golden);
    n = Notice::new();
    n.set(Notice::LID, 1).set(Notice::LID2, 2).set(Notice::KEY, 0x8001).set(Notice::SL, 3);
    n.set(Notice::QP1, 0x10).set(Notice::QP2, 0x11);
    assert_eq!(n.bytes()[12..28], [0, 1, 0, 2, 0, 0, 0x80, 1, 0x30, 0, 0, 0x10, 0, 0, 0, 0x11]);
}

#[test]
fn golden_counters() {
    let mut c = PortCounters::new();
    c.set(PortCounters::PORT_SELECT, 1).set(PortCounters::LINK_DOWNED, 2);
    c.set(PortCounters::RCV_SWITCH_RELAY_ERRORS, 3).set(PortCounters::COUNTER_SELECT2, 1);
    c.set(PortCounters::VL15_DROPPED, 4).set(PortCounters::XMIT_WAIT, 5);
    let b = c.bytes();
    assert_eq!((b[1], b[7], b[13], b[18], b[23], b[43]), (1, 2, 3, 1, 4, 5));
}

#[test]
fn golden_node_info() {
    let mut n = NodeInfo::new();
    n.set(NodeInfo::NODE_GUID, 0x0102_0304_0506_0708).set(NodeInfo::PARTITION_CAP, 32);
    n.set(NodeInfo::DEVICE_ID, 0x1013).set(NodeInfo::VENDOR_ID, 0x2c9).set(NodeInfo::LOCAL_PORT_NUM, 1);
    let b = n.bytes();
    assert_eq!(b[12..20], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b[28..32], [0, 32, 0x10, 0x13]);
    assert_eq!(b[36..40], [1, 0, 2, 0xc9]);
}
