//! What engines tell the units of host memory and of WQEs.

/// A range of host memory under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the memory key.
    pub key: u32,
    /// Where it begins.
    pub va: u64,
    /// Bytes.
    pub len: usize,
    /// log2 of the key's page size; `None`: it needs no translation.
    pub page: Option<u32>,
}

/// What a [`crate::units::WqeCache`] knows a WQE by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub(crate) set: usize,
    /// Basic blocks that had been put into the set, this one among them.
    pub(crate) at: u64,
}
