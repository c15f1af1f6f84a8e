//! Numbers that name things, each its own type.

use core::fmt;

macro_rules! id {
    ($($(#[$m:meta])* $name:ident($int:ty) $fmt:literal;)*) => {$(
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $fmt, ")"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $fmt, self.0)
            }
        }
    )*};
}

id! {
    /// Queue pair number, 24 bits.
    Qpn(u32) "{:#x}";
    /// Completion queue number, 24 bits.
    Cqn(u32) "{:#x}";
    /// Event queue number, 8 bits.
    Eqn(u8) "{}";
    /// Shared receive queue number (basic, XRC or RMP), 24 bits.
    Srqn(u32) "{:#x}";
    /// Receive queue number (RQ), 24 bits; a number space of its own.
    Rqn(u32) "{:#x}";
    /// Protection domain number, 24 bits.
    Pd(u32) "{:#x}";
    /// XRC domain number, 24 bits.
    Xrcd(u32) "{:#x}";
    /// UAR page index: the page lies at BAR0 + index * 4096.
    UarIndex(u32) "{:#x}";
    /// A full memory key: index in bits 31..8, variant in bits 7..0.
    Mkey(u32) "{:#010x}";
    /// Local identifier of a port (IBTA 4.1.3).
    Lid(u16) "{:#x}";
}

impl Mkey {
    /// Joins a table index (24 bits) and a variant.
    pub const fn new(index: u32, variant: u8) -> Self {
        Self(index << 8 | variant as u32)
    }

    /// The index into the memory key table.
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The variant byte, which must match the context's.
    pub const fn variant(self) -> u8 {
        self.0 as u8
    }
}

impl Lid {
    /// The permissive LID: "whoever receives this" (IBTA 4.1.3).
    pub const PERMISSIVE: Lid = Lid(0xffff);

    /// Whether the LID is in the multicast range 0xC000..=0xFFFE.
    pub const fn is_multicast(self) -> bool {
        self.0 >= 0xc000 && self.0 != 0xffff
    }
}

/// Packet sequence number: 24 bits, compared modulo 2^24 (IBTA 9.7.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Takes the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The 24-bit value.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `n` packets later.
    #[allow(clippy::should_implement_trait, reason = "modulo 2^24, and of a plain count")]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// The following PSN.
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The preceding PSN.
    pub const fn prev(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// How far `self` lies after `other`: -2^23..2^23 (negative = before).
    pub const fn since(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

/// Global identifier of a port (IBTA 4.1.1): 8 bytes subnet prefix, 8 bytes interface GUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Joins a subnet prefix and an interface identifier.
    pub const fn new(prefix: u64, guid: u64) -> Self {
        Self((((prefix as u128) << 64) | guid as u128).to_be_bytes())
    }

    /// Whether this is `other`, or the same port's with the prefix that every subnet has beside its own (IBTA 4.1.1).
    pub const fn is_or_defaults_to(self, other: Self) -> bool {
        const DEFAULT_PREFIX: u64 = 0xfe80 << 48;
        let (own, other) = (u128::from_be_bytes(self.0), u128::from_be_bytes(other.0));
        own == other || (own as u64 == other as u64 && (own >> 64) as u64 == DEFAULT_PREFIX)
    }

    /// Whether this is a multicast GID (first byte 0xff).
    pub const fn is_multicast(self) -> bool {
        self.0[0] == 0xff
    }
}

impl fmt::Display for Gid {
    /// As an IPv6 address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({:032x})", u128::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn psn_wraps_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(last.next().since(last), 1);
        assert_eq!(last.since(last.next()), -1);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0).prev(), last);
    }

    proptest! {
        /// Numbers are compared by the shorter way around the circle of 2^24 (IBTA 9.7.1).
        #[test]
        fn psn_distance_undoes_addition(start: u32, n in 0u32..1 << 23) {
            let a = Psn::new(start);
            let b = a.add(n);
            prop_assert_eq!(b.since(a), n as i32);
            prop_assert_eq!(a.since(b), -(n as i32));
            prop_assert!(b.get() <= 0xff_ffff);
        }

        /// Against plain arithmetic on wide numbers.
        #[test]
        fn psn_agrees_with_wide_numbers(a in 0i64..1 << 24, b in 0i64..1 << 24) {
            const CIRCLE: i64 = 1 << 24;
            let mut distance = a - b;
            if distance >= CIRCLE / 2 {
                distance -= CIRCLE;
            } else if distance < -CIRCLE / 2 {
                distance += CIRCLE;
            }
            prop_assert_eq!(i64::from(Psn::new(a as u32).since(Psn::new(b as u32))), distance);
        }

        #[test]
        fn psn_steps(start: u32, n: u32, m: u32) {
            let psn = Psn::new(start);
            prop_assert_eq!(psn.next().prev(), psn);
            prop_assert_eq!(psn.prev().next(), psn);
            prop_assert_eq!(psn.next(), psn.add(1));
            prop_assert_eq!(psn.add(n).add(m), psn.add(n.wrapping_add(m)));
            prop_assert_eq!(psn.add(1 << 24), psn);
            prop_assert_eq!(Psn::new(psn.get() | 0xff00_0000), psn, "only 24 bits count");
        }

        /// In any half of the circle the order is a total one.
        #[test]
        fn psn_order_is_transitive(start: u32, steps: [u16; 3]) {
            let a = Psn::new(start);
            let [x, y, z] = steps.map(|s| a.add(s.into()));
            let before = |p: Psn, q: Psn| q.since(p) > 0;
            prop_assert!(!(before(x, y) && before(y, z)) || before(x, z));
            prop_assert!(x == y || before(x, y) != before(y, x));
        }
    }

    #[test]
    fn mkey_parts() {
        let key = Mkey::new(0x1234, 0x56);
        assert_eq!((key.0, key.index(), key.variant()), (0x12_3456, 0x1234, 0x56));
    }
}
