//! ConnectX-6 Dx with one port of 100 Gb/s, PCIe Gen4 x16: a ConnectX-5, and what came with its successors.
//!
//! Identity is that of real cards (pci.ids, mstflint's list of devices). A real ConnectX-6 Dx has Ethernet ports only; this one
//! may have an InfiniBand port, too, so that programs find what came with it on either link layer. Of what else real ones have
//! its capability pages announce nothing: see "what does not" in `docs/src/features.md`.

use hca_spec::caps::{
    DeviceMemory, EthernetOffloads, General, General2, Odp, OdpScheme, Qos, Roce, memic_operation,
    object_type, steering_format,
};

use hca_spec::crypto::Crypto;
use hca_spec::definer::FORMATS;
use hca_spec::sched::{element, tsar};

use super::{FirmwareVersion, Pci, PciLink, PciSpeed, Personality, connectx5};

use crate::limits::LOG_MAX_QUEUE_GROUPS;
use crate::steering::{MOST_DEFINERS, Offer};

/// log2 of the bytes of memory that drivers write entries of flow tables into: four domains of mlx5dv at once, each of which
/// takes 64 MiB of it.
const LOG_STEERING_ICM: u32 = 28;
/// Where it begins. Addresses have 40 bits; an estimate, real ones differ from start to start.
pub(crate) const STEERING_ICM: u64 = 0x10_0000_0000;
/// The same of lists of changes: as many as entries can name with 16 bits.
const LOG_LIST_ICM: u32 = 22;
const LIST_ICM: u64 = 0x20_0000_0000;
/// The same of patterns. Nothing names what is in it: the driver wants to see the memory before it writes entries at all.
const LOG_PATTERN_ICM: u32 = 20;
const PATTERN_ICM: u64 = 0x28_0000_0000;
/// log2 of the smallest piece of each, in bytes.
const LOG_ICM_PIECE: u32 = 12;

/// log2 of the streams that an initiator of dynamic connections may have at once, and of those in error. Estimate.
const LOG_STREAMS: u32 = 5;

/// log2 of the keys that data is encrypted with. Estimate.
const LOG_DATA_KEYS: u32 = 12;

/// log2 of the meters of flows. Estimate.
const LOG_METERS: u32 = 12;
/// Registers that they write colors into: C0 to C5, those that entries can change. Estimate.
const COLOR_REGISTERS: u32 = 0x3f;

/// Page faults that name keys and addresses, if a driver asks for them: an option ([`Config::memory_page_faults`](crate::Config)). What may
/// meet a page is on from the start: drivers read it and don't ask for it (mlx5 driver, `handle_hca_cap_odp`). No public list of adapters says
/// which have the scheme: that this one does, and that it is for the transports of the other scheme, is an estimate.
fn faults_of_memory(initial: &mut Odp, most: &mut Odp) {
    let (transport, memory) = (*most.transport(), most.memory_mut());
    memory.set(OdpScheme::PAGE_PREFETCH, 1);
    for field in OdpScheme::TRANSPORTS {
        memory.set(field, transport.get(field));
    }
    *initial.memory_mut() = *most.memory();
    most.set(Odp::MEM_PAGE_FAULT, 1);
}

/// The whole of it.
pub(super) fn personality() -> Personality {
    let like = connectx5::personality();
    let mut capabilities = like.capabilities;
    let ethernet = &mut capabilities.ethernet;
    ethernet.steering = Offer::connectx6dx();
    // Flow tables in memory that drivers write: how they come to that memory, and what its entries look like.
    let general = &mut ethernet.general;
    let objects = general.get(General::GENERAL_OBJ_TYPES);
    let more = [
        object_type::SW_ICM,
        object_type::FLOW_SAMPLER,
        object_type::FLOW_METER,
        object_type::MATCH_DEFINER,
        object_type::SCHEDULING_ELEMENT,
    ];
    let more = more.iter().fold(0, |bits, kind| bits | 1 << kind);
    general.set(General::GENERAL_OBJ_TYPES, objects | more);
    let formats = FORMATS.iter().fold(0, |bits, format| bits | 1 << format);
    general.set(General::MATCH_DEFINER_FORMAT_SUPPORTED, formats);
    general.set(General::MAX_NUM_MATCH_DEFINER, MOST_DEFINERS);
    general.set(General::STEERING_FORMAT_VERSION, steering_format::CONNECTX_6_DX);
    // As a public dump of a real one's capabilities says: drivers put tags into the headers inline. WQEs that ask for a tag have it all the same.
    ethernet.offloads.set(EthernetOffloads::WQE_VLAN_INSERT, 0);
    // A public dump of a real one's capabilities has it. Drivers ask for it; ports that contexts and vectors name count in any case.
    ethernet.roce.set(Roce::SW_R_ROCE_SRC_UDP_PORT, 1);
    // Trees of nodes and groups of queues.
    let qos = &mut ethernet.qos;
    qos.set(Qos::PACKET_PACING_UID, 1).set(Qos::NIC_SQ_SCHEDULING, 1).set(Qos::NIC_QP_SCHEDULING, 1);
    qos.set(Qos::NIC_BW_SHARE, 1).set(Qos::NIC_RATE_LIMIT, 1);
    qos.set(Qos::LOG_MAX_QOS_NIC_QUEUE_GROUP, LOG_MAX_QUEUE_GROUPS);
    qos.set(Qos::NIC_ELEMENT_TYPE, 1 << element::TSAR | 1 << element::QUEUE_GROUP);
    qos.set(Qos::NIC_TSAR_TYPE, 1 << tsar::DWRR);
    qos.set(Qos::FLOW_METER_OLD, 1).set(Qos::FLOW_METER, 1).set(Qos::LOG_MAX_FLOW_METER, LOG_METERS);
    qos.set(Qos::FLOW_METER_REG_ID, COLOR_REGISTERS);
    for general in [&mut capabilities.general, &mut ethernet.general] {
        general.set(General::QPC_EXTENSION, 1);
        let objects = general.get(General::GENERAL_OBJ_TYPES);
        let more = 1 << object_type::AV_QP_MAPPING | 1 << object_type::DEK;
        general.set(General::GENERAL_OBJ_TYPES, objects | more);
        general.set(General::CRYPTO, 1).set(General::AES_XTS_MULTI_BLOCK_BE_TWEAK, 1);
        general.set(General::LOG_MAX_DCI_STREAM_CHANNELS, LOG_STREAMS);
        general.set(General::LOG_MAX_DCI_ERRORED_STREAMS, LOG_STREAMS);
    }
    faults_of_memory(&mut capabilities.odp_initial, &mut capabilities.odp);
    capabilities.crypto.set(Crypto::LOG_MAX_NUM_DEKS, LOG_DATA_KEYS);
    let more = &mut capabilities.general_2;
    more.set(General2::SEND_DBR_MODE_NO_DBR_EXT, 1);
    more.set(General2::LOG_MAX_SEND_DBR_LESS_QP_SQ, capabilities.general.get(General::LOG_MAX_QP));
    let memory = &mut capabilities.device_memory;
    // Of single bytes: nothing public says in which order an operation takes the bytes of a wider access.
    memory.set(DeviceMemory::MEMIC_INCREMENT_SIZES, 1).set(DeviceMemory::MEMIC_TEST_AND_SET_SIZES, 1);
    let operations = 1 << memic_operation::INCREMENT | 1 << memic_operation::TEST_AND_SET;
    memory.set(DeviceMemory::MEMIC_OPERATIONS, operations);
    memory.set(DeviceMemory::STEERING_SW_ICM_START_ADDRESS, STEERING_ICM);
    memory.set(DeviceMemory::LOG_STEERING_SW_ICM_SIZE, LOG_STEERING_ICM);
    memory.set(DeviceMemory::HEADER_MODIFY_SW_ICM_START_ADDRESS, LIST_ICM);
    memory.set(DeviceMemory::LOG_HEADER_MODIFY_SW_ICM_SIZE, LOG_LIST_ICM);
    memory.set(DeviceMemory::HEADER_MODIFY_PATTERN_SW_ICM_START_ADDRESS, PATTERN_ICM);
    memory.set(DeviceMemory::LOG_HEADER_MODIFY_PATTERN_SW_ICM_SIZE, LOG_PATTERN_ICM);
    memory.set(DeviceMemory::LOG_SW_ICM_ALLOC_GRANULARITY, LOG_ICM_PIECE);
    Personality {
        name: "connectx6dx",
        pci: Pci {
            device: 0x101d,
            // A card with a single port of 100 Gb/s: estimate, pci.ids has none of that kind.
            subsystem: 0x0042,
            link: PciLink { speed: PciSpeed::Gen4, ..like.pci.link },
            ..like.pci
        },
        // One that ConnectX-6 Dx adapters run.
        version: FirmwareVersion { major: 22, minor: 28, subminor: 2006 },
        hardware_id: 0x212,
        product: "softhca ConnectX-6 Dx adapter card, 100GbE, single-port QSFP56, PCIe4.0 x16",
        part_number: "SHC623105AN-CDA",
        board_id: "SHC_0000000536",
        capabilities,
        timing: "connectx6dx",
        ..like
    }
}
