//! Functions of an adapter: which numbers each has.
//!
//! A packet names a queue pair and no function, so that numbers of queue pairs are the chip's: each function hands out some of
//! them. All other numbers are the function's own.

use std::fmt;

use hca_spec::ids::Qpn;

/// log2 of the numbers of queue pairs, DC targets included, that a function has.
const LOG_QPNS: u32 = 22;

/// Names a function of an adapter, from 0. The first is there always, and manages the ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FunctionId(pub u8);

impl FunctionId {
    /// The one that an adapter always has.
    pub const FIRST: Self = Self(0);
    /// Most functions of an adapter: as many as there are numbers of queue pairs for.
    pub const COUNT: usize = 1 << (24 - LOG_QPNS);

    /// The first of the numbers of queue pairs that the function has.
    pub const fn first_qpn(self) -> Qpn {
        Qpn((self.0 as u32) << LOG_QPNS)
    }

    /// The function that has that number. The special queue pairs 0 and 1 are the first function's.
    #[inline]
    pub const fn of_qpn(qpn: Qpn) -> Self {
        Self((qpn.0 >> LOG_QPNS) as u8)
    }
}

impl fmt::Display for FunctionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Functions of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Functions(u8);

impl Functions {
    fn bit(function: FunctionId) -> u8 {
        1u8.checked_shl(function.0.into()).unwrap_or(0)
    }

    pub(crate) fn set(&mut self, function: FunctionId, is: bool) {
        match is {
            true => self.0 |= Self::bit(function),
            false => self.0 &= !Self::bit(function),
        }
    }

    /// Whether it is one of them.
    pub fn has(self, function: FunctionId) -> bool {
        self.0 & Self::bit(function) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = FunctionId> {
        (0..FunctionId::COUNT as u8).map(FunctionId).filter(move |function| self.has(*function))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_of_one_function() {
        assert_eq!(FunctionId::COUNT, 4);
        for number in 0..FunctionId::COUNT as u8 {
            let function = FunctionId(number);
            let Qpn(first) = function.first_qpn();
            assert_eq!(FunctionId::of_qpn(Qpn(first)), function);
            assert_eq!(FunctionId::of_qpn(Qpn(first + (1 << LOG_QPNS) - 1)), function);
        }
    }
}
