//! The hardware's own moving parts of an object, kept by the object's number.

/// By object number; memory only for those that are there.
pub(crate) use hca_firmware::sparse::Sparse as Slots;
