//! The management key of a port, and its lease.
//!
//! Source: IBTA 14.2.4 (M_Key: what its protection leaves open, violations, lease).

use hca_spec::mad::PortInfo;

use super::Port;

/// Picoseconds of a second: the unit of M_KeyLeasePeriod.
const SECOND: u64 = 1_000_000_000_000;

/// What a datagram's M_Key opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyCheck {
    /// Everything.
    Open,
    /// What the protection leaves to those without the key.
    Tolerated,
    /// Nothing: the datagram is dropped, the violation was counted.
    Refused,
}

/// How long the key still protects a port whose manager seems to be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Lease {
    /// Nobody has tried with a wrong key.
    #[default]
    Idle,
    /// Somebody has; the time runs from the next look at the clock.
    Starts,
    /// It ends at that moment, in picoseconds.
    Ends(u64),
}

impl Port {
    /// Checks an SMP's key. A port without a key is open.
    pub(crate) fn check_key(&mut self, key: u64, get: bool) -> KeyCheck {
        let own = self.info.get(PortInfo::M_KEY);
        if own == 0 || own == key {
            // Its manager is there.
            self.lease = Lease::Idle;
            return KeyCheck::Open;
        }
        // Protection 0 and 1: Gets pass (IBTA 14.2.4.1).
        if get && self.info.get(PortInfo::M_KEY_PROTECT) <= 1 {
            return KeyCheck::Tolerated;
        }
        let n = self.info.get(PortInfo::M_KEY_VIOLATIONS);
        self.info.set(PortInfo::M_KEY_VIOLATIONS, (n + 1).min(0xffff));
        if self.info.get(PortInfo::M_KEY_LEASE_PERIOD) != 0 && self.lease == Lease::Idle {
            self.lease = Lease::Starts;
        }
        KeyCheck::Refused
    }

    /// Gives the port the key of the fabric's owner, whatever it had: it can be read by all but for the key itself, and set
    /// by those who know it. The key has no lease.
    pub(crate) fn protect(&mut self, key: u64) {
        self.info.set(PortInfo::M_KEY, key).set(PortInfo::M_KEY_PROTECT, 1);
        self.info.set(PortInfo::M_KEY_LEASE_PERIOD, 0);
        self.lease = Lease::Idle;
    }

    /// Whether the key is shown to who asked: to all with protection 0, else to those who know it.
    pub(crate) fn shows_key(&self, check: KeyCheck) -> bool {
        check == KeyCheck::Open || self.info.get(PortInfo::M_KEY_PROTECT) == 0
    }

    /// When the lease wants a look at the clock, in picoseconds; 0 = at once.
    pub(crate) fn lease_at(&self) -> Option<u64> {
        match self.lease {
            Lease::Idle => None,
            Lease::Starts => Some(0),
            Lease::Ends(at) => Some(at),
        }
    }

    /// Time starts later by so many picoseconds.
    pub(crate) fn rebase(&mut self, by: u64) {
        if let Lease::Ends(at) = &mut self.lease {
            *at = at.saturating_sub(by);
        }
    }

    /// Lets the lease's time pass. When it ends, the key does not protect any more, so that a new manager can read
    /// it.
    pub(crate) fn tend_lease(&mut self, now: u64) {
        let period = u64::from(self.info.get(PortInfo::M_KEY_LEASE_PERIOD));
        match self.lease {
            Lease::Starts => self.lease = Lease::Ends(now.saturating_add(period * SECOND)),
            Lease::Ends(at) if at <= now => {
                self.lease = Lease::Idle;
                self.info.set(PortInfo::M_KEY_PROTECT, 0);
            }
            Lease::Ends(_) | Lease::Idle => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;

    fn locked(protect: u32, lease: u32) -> Port {
        let mut p = Port::new(Role::Adapter, 1, 1, "");
        p.info.set(PortInfo::M_KEY, 7).set(PortInfo::M_KEY_PROTECT, protect);
        p.info.set(PortInfo::M_KEY_LEASE_PERIOD, lease);
        p
    }

    /// IBTA table 103: without the key, by protection.
    #[test]
    fn protection() {
        use KeyCheck::{Open, Refused, Tolerated};
        for (protect, get, set, shown) in [
            (0, Tolerated, Refused, true),
            (1, Tolerated, Refused, false),
            (2, Refused, Refused, false),
            (3, Refused, Refused, false),
        ] {
            let mut p = locked(protect, 0);
            assert_eq!((p.check_key(8, true), p.check_key(8, false)), (get, set), "{protect}");
            assert_eq!((p.check_key(7, false), p.shows_key(Open), p.shows_key(get)), (Open, true, shown));
            let refused = [get, set].iter().filter(|c| **c == Refused).count();
            assert_eq!(p.info.get(PortInfo::M_KEY_VIOLATIONS), refused as u32);
            assert_eq!(p.lease_at(), None, "a lease of 0 never ends");
        }
        assert_eq!(Port::new(Role::Adapter, 1, 1, "").check_key(8, false), Open);
    }

    #[test]
    fn a_lease_ends() {
        let mut p = locked(2, 3);
        p.check_key(8, false);
        assert_eq!(p.lease_at(), Some(0));
        p.tend_lease(5);
        assert_eq!(p.lease_at(), Some(3 * SECOND + 5));
        p.check_key(7, true);
        assert_eq!(p.lease_at(), None, "the manager is there");
        p.check_key(8, false);
        p.tend_lease(5);
        p.tend_lease(3 * SECOND + 4);
        assert_eq!(p.check_key(8, true), KeyCheck::Refused);
        p.tend_lease(3 * SECOND + 5);
        assert_eq!((p.check_key(8, true), p.check_key(8, false)), (KeyCheck::Tolerated, KeyCheck::Refused));
    }
}
