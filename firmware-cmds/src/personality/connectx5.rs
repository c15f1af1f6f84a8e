//! ConnectX-5 VPI with one EDR port, PCIe Gen3 x16: a ConnectX-4, device memory, masked atomics, and shared receive queues that match tags.
//!
//! Identity is that of real cards (pci.ids, mstflint's list of devices). Of what else came with the ConnectX-5 its capability
//! pages announce nothing: DC with more than one port, headers that rules rewrite, enhanced multi-packet sends.

use hca_spec::caps::{
    Atomic, DeviceMemory, EthernetOffloads, General, atomic_operations, inline_mode, uctx_cap,
};

use super::{FirmwareVersion, Pci, Personality, connectx4};

/// Bytes of BAR0, at its end, that pieces of device memory are mapped by: as many as there are of the memory.
const WINDOW: u32 = 256 << 10;
/// Bytes of the largest piece, as `ibv_devinfo -v` shows them of real cards.
const LARGEST: u32 = 128 << 10;

/// log2 of the entries of a list of tags, as `ibv_devinfo -v` shows them of real cards.
const LOG_TAGS: u32 = 7;
/// log2 of the number of queues that match them: an estimate. All shared receive queues are in one table.
const LOG_XRQS: u32 = 18;

/// The whole of it.
pub(super) fn personality() -> Personality {
    let like = connectx4::personality();
    let mut capabilities = like.capabilities;
    for general in [&mut capabilities.general, &mut capabilities.ethernet.general] {
        general.set(General::DEVICE_MEMORY, 1);
        // Drivers are asked before the firmware starts again, and can let go fast.
        general.set(General::PCI_SYNC_FOR_FW_UPDATE_EVENT, 1).set(General::GENERAL_NOTIFICATION_EVENT, 1);
        general.set(General::FAST_TEARDOWN, 1);
        // Permissions that keys have: writes and reads stay in order all the same.
        general.set(General::RELAXED_ORDERING_WRITE, 1).set(General::RELAXED_ORDERING_READ, 1);
        general.set(General::RELAXED_ORDERING_WRITE_UMR, 1).set(General::RELAXED_ORDERING_READ_UMR, 1);
        // Programs that talk to the firmware by fwctl. That later firmware has it is known; of which version on is not.
        general.set(General::UCTX_CAP, general.get(General::UCTX_CAP) | uctx_cap::TOOLS_RESOURCES);
        general.set(General::TAG_MATCHING, 1).set(General::RNDV_OFFLOAD_RC, 1);
        general.set(General::LOG_TAG_MATCHING_LIST_SZ, LOG_TAGS).set(General::LOG_MAX_XRQ, LOG_XRQS);
    }
    // Masked atomics, of 4 and 8 bytes.
    let atomic = &mut capabilities.atomic;
    atomic.set(Atomic::ATOMIC_OPERATIONS, atomic_operations::PLAIN | atomic_operations::MASKED);
    atomic.set(Atomic::ATOMIC_SIZE_QP, 1 << 2 | 1 << 3).set(Atomic::ATOMIC_SIZE_DC, 1 << 2 | 1 << 3);
    // Frames need no headers inline (`mlx5_query_min_inline`, field use).
    capabilities.ethernet.offloads.set(EthernetOffloads::WQE_INLINE_MODE, inline_mode::NOT_REQUIRED);
    capabilities.device_memory = device_memory(like.pci.bar0_size);
    Personality {
        name: "connectx5",
        pci: Pci {
            device: 0x1017,
            // A card with a single port of 100 Gb/s (pci.ids).
            subsystem: 0x0006,
            ..like.pci
        },
        // One that ConnectX-5 adapters run.
        version: FirmwareVersion { major: 16, minor: 28, subminor: 2006 },
        hardware_id: 0x20d,
        product: "softhca ConnectX-5 VPI adapter card, EDR IB and 100GbE, single-port QSFP28, PCIe3.0 x16",
        part_number: "SHC555A-ECAT",
        board_id: "SHC_0000000010",
        capabilities,
        // Programs for a ConnectX-5 count on 8 to 64 strides (UCX, Caladan).
        few_strides: true,
        timing: "connectx5",
        ..like
    }
}

/// Memory that lies behind the doorbells.
fn device_memory(bar0_size: u64) -> DeviceMemory {
    let mut c = DeviceMemory::new();
    c.set(DeviceMemory::MEMIC, 1).set(DeviceMemory::LOG_MIN_MEMIC_ALLOC_SIZE, 6);
    // 64 << 6: a page.
    c.set(DeviceMemory::LOG_MAX_MEMIC_ADDR_ALIGNMENT, 6);
    c.set(DeviceMemory::MEMIC_BAR_START_ADDR, bar0_size.saturating_sub(WINDOW.into()));
    c.set(DeviceMemory::MEMIC_BAR_SIZE, WINDOW).set(DeviceMemory::MAX_MEMIC_SIZE, LARGEST);
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a ConnectX-4 has not, and later ones have.
    #[test]
    fn relaxed_ordering_by_kind() {
        for (kind, expected) in [("connectx4", 0), ("connectx5", 1), ("connectx6dx", 1)] {
            let capabilities = &Personality::named(kind).expect("a kind").capabilities;
            for general in [&capabilities.general, &capabilities.ethernet.general] {
                for field in [
                    General::RELAXED_ORDERING_WRITE,
                    General::RELAXED_ORDERING_READ,
                    General::RELAXED_ORDERING_WRITE_UMR,
                    General::RELAXED_ORDERING_READ_UMR,
                ] {
                    assert_eq!(general.get(field), expected, "{kind} {}", field.name());
                }
            }
        }
    }
}
