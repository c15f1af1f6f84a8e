//! The PCI Express function: configuration space, capabilities, MSI-X.
//!
//! [`config`] is a table-driven register file (value, writable bits, bits cleared by writing 1),
//! [`caps`] the capabilities of a ConnectX-4, [`msix`] the vectors with table and PBA. None of
//! them knows a front end or the model.
//!
//! Source: "PCI Express Base Specification" 3.0 ("PCIe \<section\>" in comments); identity and
//! placement of the capabilities as real ConnectX-4 VPI cards show in `lspci` (field use).
//!
//! Not implemented: vital product data, SR-IOV, ATS, expansion ROM, INTx.

pub mod caps;
pub mod config;
pub mod msix;
mod vsc;

/// PCI vendor id of Mellanox.
pub const VENDOR_ID: u16 = 0x15b3;
/// PCI device id of the ConnectX-4 physical function.
pub const DEVICE_ID: u16 = 0x1013;
/// Subsystem id of the ConnectX-4 VPI card with a single EDR port (pci.ids).
pub const SUBSYSTEM_ID: u16 = 0x0033;

/// Bytes of BAR0, which has the initialization segment and the UAR pages: 8192 pages of 4 KiB.
pub const BAR0_SIZE: u64 = 32 << 20;
/// Number of the BAR of the MSI-X table and the PBA. BAR0 of a real card has them behind the initialization
/// segment; here they have a BAR of their own, so that nothing in BAR0 has to be carved out.
pub const MSIX_BAR: u32 = 2;
/// Bytes of BAR2.
pub const BAR2_SIZE: u64 = 8 << 10;
/// Offset of the MSI-X table in BAR2.
pub const MSIX_TABLE_OFFSET: u64 = 0;
/// Offset of the pending bit array in BAR2, on a page of its own.
pub const MSIX_PBA_OFFSET: u64 = 0x1000;
/// Number of MSI-X vectors.
pub const MSIX_VECTORS: u16 = 64;
/// Bytes of configuration space.
pub const CONFIG_SIZE: usize = 4096;

/// An address space of the function, as software reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Configuration space.
    Config,
    /// BAR0: the initialization segment and the UAR pages.
    Bar0,
    /// BAR2: the MSI-X table and the PBA.
    Bar2,
}

impl Space {
    /// Its size in bytes.
    pub const fn size(self) -> u64 {
        match self {
            Space::Config => CONFIG_SIZE as u64,
            Space::Bar0 => BAR0_SIZE,
            Space::Bar2 => BAR2_SIZE,
        }
    }
}
