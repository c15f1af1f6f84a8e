//! The PCI Express function: configuration space, capabilities, MSI-X.
//!
//! What a function shows is in the personality of its adapter ([`hca_model::personality`]); what its registers do is here.
//! [`config`] is a table-driven register file (value, writable bits, bits cleared by writing 1),
//! [`caps`] the capabilities, [`aer`] what they say of errors, [`report`] what the guest can read of diagnoses, `vpd` product data, [`rom`] the expansion ROM, [`msix`] the vectors with table and PBA. None of
//! them knows a front end or the moving parts of the model.
//!
//! Source: "PCI Express Base Specification" 3.0 (`PCIe` and the section in comments).
//!
//! Not implemented: SR-IOV, ATS, INTx.

use serde::{Deserialize, Serialize};

pub mod aer;
pub mod caps;
pub mod config;
pub mod msix;
pub mod report;
pub mod rom;
pub mod rules;
mod vpd;

/// Number of the BAR of the MSI-X table and the PBA. BAR0 of a real card has them behind the initialization
/// segment; here they have a BAR of their own, so that nothing in BAR0 has to be carved out.
pub const MSIX_BAR: u32 = 2;
/// Bytes of BAR2.
pub const BAR2_SIZE: u64 = 8 << 10;
/// Offset of the MSI-X table in BAR2.
pub const MSIX_TABLE_OFFSET: u64 = 0;
/// Offset of the pending bit array in BAR2, on a page of its own.
pub const MSIX_PBA_OFFSET: u64 = 0x1000;
/// Bytes of configuration space.
pub const CONFIG_SIZE: usize = 4096;

/// An address space of the function, as software reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Space {
    /// Configuration space.
    Config,
    /// BAR0: the initialization segment and the UAR pages.
    Bar0,
    /// BAR2: the MSI-X table and the PBA.
    Bar2,
    /// The expansion ROM.
    Rom,
}
