//! State machines of an adapter.

pub(crate) mod blueflame;
pub(crate) mod compress;
pub(crate) mod cq;
pub(crate) mod eq;
pub(crate) mod mkey;
pub(crate) mod qp;
pub(crate) mod registers;
pub(crate) mod signature;
pub(crate) mod view;
