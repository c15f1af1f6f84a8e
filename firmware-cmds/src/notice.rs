//! Traps: what a node tells its subnet manager unasked, again and again until it has been heard.
//!
//! A notice is raised; the clock is looked at ([`Notices::next`]); the trap is sent, at most one in
//! SubnetTimeOut; TrapRepress with its transaction id ends it. The specification names no end for a manager that
//! never answers; here a notice is given up after [`SENDINGS`]: a manager that comes later looks for itself.
//!
//! Source: IBTA 13.4.9 (traps), 14.2.5.1 (notices and traps of subnet management), 14.2.5.6 (SubnetTimeOut).

use std::collections::VecDeque;

use hca_spec::ids::Lid;
use hca_spec::mad::{
    CLASS_SUBN_DIRECTED, CLASS_SUBN_LID_ROUTED, METHOD_TRAP, Mad, Notice, PortInfo, RETURN_PATH, attr,
    notice_type, trap,
};

use crate::datagram::Address;
use crate::port::Port;

/// LID of a subnet manager that is no node of the subnet and looks at ports by itself: no trap is sent to it.
pub const BUILT_IN_MANAGER: Lid = Lid(0xbfff);
/// How often a trap is sent at most.
const SENDINGS: u8 = 10;
/// Notices that wait at most; further ones are dropped, as their news is old by then.
const WAITING: usize = 16;
/// Unit of SubnetTimeOut in picoseconds.
const TIMEOUT_UNIT: u64 = 4_096_000;

/// ProducerType: a channel adapter.
pub(crate) const ADAPTER: u32 = 1;
/// ProducerType: a switch.
pub(crate) const SWITCH: u32 = 2;

#[derive(Debug, Clone, PartialEq)]
struct Waiting {
    notice: Notice,
    transaction: u64,
    sendings: u8,
}

/// The notices of a node that its subnet manager has not heard.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Notices {
    waiting: VecDeque<Waiting>,
    transactions: u64,
    /// No trap before that moment, in picoseconds.
    not_before: u64,
}

impl Notices {
    /// A notice of this node. Nothing happens while no manager is known. The same news again starts anew.
    pub(crate) fn raise(&mut self, port: &Port, notice: Notice) {
        let manager = Lid(port.info.get(PortInfo::MASTER_SM_LID) as u16);
        // A port on Ethernet has no LID, and nobody gives it a manager's.
        if manager.0 == 0 || manager == BUILT_IN_MANAGER || port.lid().0 == 0 {
            return;
        }
        // There is one state of local changes; of other traps, different details are different news.
        let same = |w: &Waiting| {
            let number = w.notice.get(Notice::TRAP_NUMBER);
            let replaced = number == trap::LOCAL_CHANGES && number == notice.get(Notice::TRAP_NUMBER);
            replaced || w.notice == notice
        };
        self.waiting.retain(|w| !same(w));
        if self.waiting.len() < WAITING {
            self.transactions = self.transactions.wrapping_add(1);
            let waiting = Waiting { notice, transaction: self.transactions, sendings: 0 };
            self.waiting.push_back(waiting);
        }
    }

    /// A TrapRepress came: that notice was heard.
    pub(crate) fn repress(&mut self, mad: &Mad) {
        self.waiting.retain(|w| {
            w.transaction != mad.get(Mad::TRANSACTION_ID)
                || w.notice.get(Notice::TRAP_NUMBER) != mad.notice().get(Notice::TRAP_NUMBER)
        });
    }

    /// Time starts later by so many picoseconds.
    pub(crate) fn rebase(&mut self, by: u64) {
        self.not_before = self.not_before.saturating_sub(by);
    }

    /// When [`Notices::next`] has something, in picoseconds; 0 = at once.
    pub(crate) fn at(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.not_before)
    }

    /// The trap to send at `now`, by the port with the node's LID.
    pub(crate) fn next(&mut self, port: &Port, now: u64) -> Option<(Address, Mad)> {
        if now < self.not_before {
            return None;
        }
        let mut waiting = self.waiting.pop_front()?;
        self.not_before = now.saturating_add(TIMEOUT_UNIT << port.info.get(PortInfo::SUBNET_TIMEOUT));
        let mut m = Mad::new();
        m.set(Mad::BASE_VERSION, 1).set(Mad::CLASS_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED);
        m.set(Mad::METHOD, METHOD_TRAP).set(Mad::ATTRIBUTE_ID, attr::NOTICE);
        m.set(Mad::TRANSACTION_ID, waiting.transaction);
        *m.notice_mut() = waiting.notice;
        m.notice_mut().set(Notice::ISSUER_LID, port.lid().0.into());
        waiting.sendings += 1;
        if waiting.sendings < SENDINGS {
            self.waiting.push_back(waiting);
        }
        let manager = Lid(port.info.get(PortInfo::MASTER_SM_LID) as u16);
        let sl = port.info.get(PortInfo::MASTER_SM_SL) as u8;
        Some((Address { sl, ..Address::smp(port.lid(), manager) }, m))
    }
}

fn generic(producer: u32, kind: u32, number: u32) -> Notice {
    let mut n = Notice::new();
    n.set(Notice::GENERIC, 1).set(Notice::TYPE, kind).set(Notice::PRODUCER_TYPE, producer);
    n.set(Notice::TRAP_NUMBER, number);
    n
}

/// Trap 128: a link of the switch came or went.
pub(crate) fn link_state(switch: Lid) -> Notice {
    let mut n = generic(SWITCH, notice_type::URGENT, trap::LINK_STATE);
    n.set(Notice::SWITCH_LID, switch.0.into());
    n
}

/// Trap 144: the capability mask changed, or, with `description`, NodeDescription.
pub(crate) fn local_changes(port: &Port, description: bool) -> Notice {
    let mut n = generic(ADAPTER, notice_type::INFORMATIONAL, trap::LOCAL_CHANGES);
    n.set(Notice::LID, port.lid().0.into());
    n.set(Notice::CAPABILITY_MASK, port.info.get(PortInfo::CAPABILITY_MASK));
    n.set(Notice::CAPABILITY_MASK2, port.info.get(PortInfo::CAPABILITY_MASK2));
    if description {
        n.set(Notice::OTHER_LOCAL_CHANGES, 1).set(Notice::CHANGE_FLAGS, 1);
    }
    n
}

/// Trap 256: an SMP from `slid` did not know the M_Key.
pub(crate) fn bad_management_key(producer: u32, slid: Lid, mad: &Mad) -> Notice {
    let mut n = generic(producer, notice_type::SECURITY, trap::BAD_M_KEY);
    n.set(Notice::LID, slid.0.into()).set(Notice::METHOD, mad.get(Mad::METHOD));
    n.set(Notice::ATTRIBUTE_ID, mad.get(Mad::ATTRIBUTE_ID));
    n.set(Notice::ATTRIBUTE_MODIFIER, mad.get(Mad::ATTRIBUTE_MODIFIER));
    n.set(Notice::M_KEY, mad.get(Mad::M_KEY));
    if mad.get(Mad::MGMT_CLASS) == CLASS_SUBN_DIRECTED {
        let hops = mad.get(Mad::HOP_COUNT);
        n.set(Notice::DR_SLID, mad.get(Mad::DR_SLID)).set(Notice::DR_NOTICE, 1);
        n.set(Notice::DR_HOP_COUNT, hops);
        let room = n.bytes_mut().iter_mut().skip(Notice::DR_RETURN_PATH);
        // Hop 0 has no port.
        let path = mad.bytes().iter().skip(RETURN_PATH + 1).take(hops as usize);
        let fits = room.zip(path).map(|(to, from)| *to = *from).count();
        n.set(Notice::DR_PATH_TRUNCATED, (fits < hops as usize).into());
    }
    n
}

/// What a packet with a wrong P_Key or Q_Key said of itself: traps 257 and 258.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyViolation {
    /// The P_Key or Q_Key.
    pub key: u32,
    /// It was the Q_Key.
    pub q_key: bool,
    /// Source LID.
    pub slid: Lid,
    /// Destination LID.
    pub dlid: Lid,
    /// Service level.
    pub sl: u8,
    /// Source queue pair, 0 if the packet does not say.
    pub source_qp: u32,
    /// Destination queue pair.
    pub qp: u32,
}

impl KeyViolation {
    pub(crate) fn notice(&self) -> Notice {
        let number = if self.q_key { trap::BAD_Q_KEY } else { trap::BAD_P_KEY };
        let mut n = generic(ADAPTER, notice_type::SECURITY, number);
        n.set(Notice::LID, self.slid.0.into()).set(Notice::LID2, self.dlid.0.into());
        n.set(Notice::KEY, self.key).set(Notice::SL, self.sl.into());
        n.set(Notice::QP1, self.source_qp).set(Notice::QP2, self.qp);
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::Role;
    use hca_spec::mad::METHOD_TRAP_REPRESS;

    /// SubnetTimeOut 18: 4.096 us * 2^18.
    const INTERVAL: u64 = 1_073_741_824_000;

    fn port() -> Port {
        let mut p = Port::new(Role::Adapter, 1, 1, "");
        p.info.set(PortInfo::LID, 5).set(PortInfo::MASTER_SM_LID, 9).set(PortInfo::MASTER_SM_SL, 3);
        p
    }

    #[test]
    fn a_trap_is_repeated_until_it_is_heard() {
        let (p, mut n) = (port(), Notices::default());
        assert_eq!((n.at(), n.next(&p, 0)), (None, None));
        n.raise(&p, local_changes(&p, false));
        assert_eq!(n.at(), Some(0));
        let (address, first) = n.next(&p, 100).unwrap();
        assert_eq!(address, Address { sl: 3, ..Address::smp(Lid(5), Lid(9)) });
        assert_eq!(first.bytes()[..4], [1, 1, 1, 5]);
        assert_eq!((first.get(Mad::ATTRIBUTE_ID), first.notice().get(Notice::ISSUER_LID)), (2, 5));
        assert_eq!((n.at(), n.next(&p, 99 + INTERVAL)), (Some(100 + INTERVAL), None), "not more often");
        assert_eq!(n.next(&p, 100 + INTERVAL), Some((address, first)));
        let mut heard = first;
        heard.set(Mad::METHOD, METHOD_TRAP_REPRESS).set(Mad::TRANSACTION_ID, 77);
        n.repress(&heard);
        assert!(n.at().is_some(), "another transaction");
        heard.set(Mad::TRANSACTION_ID, first.get(Mad::TRANSACTION_ID));
        n.repress(&heard);
        assert_eq!(n.at(), None);
    }

    #[test]
    fn nobody_listens() {
        let (p, mut n) = (port(), Notices::default());
        n.raise(&p, link_state(Lid(5)));
        let times = (1..100).filter(|i| n.next(&p, i * INTERVAL).is_some()).count();
        assert_eq!((times, n.at()), (usize::from(SENDINGS), None));
        for manager in [0, BUILT_IN_MANAGER.0] {
            let mut alone = port();
            alone.info.set(PortInfo::MASTER_SM_LID, manager.into());
            n.raise(&alone, link_state(Lid(5)));
            assert_eq!(n.at(), None, "no manager that listens");
        }
    }

    #[test]
    fn news_take_turns() {
        let (mut p, mut n) = (port(), Notices::default());
        n.raise(&p, local_changes(&p, false));
        n.raise(&p, link_state(Lid(5)));
        p.change_capabilities(2, 2);
        n.raise(&p, local_changes(&p, false));
        let numbers: Vec<_> = (0..4)
            .filter_map(|i| n.next(&p, i * INTERVAL))
            .map(|(_, m)| (m.notice().get(Notice::TRAP_NUMBER), m.notice().get(Notice::CAPABILITY_MASK) & 2))
            .collect();
        assert_eq!(numbers, [(128, 0), (144, 2), (128, 0), (144, 2)], "only the newest of local changes");
        for qp in 0..100 {
            let bad =
                KeyViolation { key: 1, q_key: false, slid: Lid(1), dlid: Lid(5), sl: 0, source_qp: 2, qp };
            n.raise(&p, bad.notice());
        }
        assert_eq!(n.waiting.len(), WAITING);
    }

    #[test]
    fn details_of_a_bad_key() {
        let mut m = Mad::new();
        m.set(Mad::MGMT_CLASS, CLASS_SUBN_DIRECTED).set(Mad::METHOD, 2).set(Mad::ATTRIBUTE_ID, 0x15);
        m.set(Mad::HOP_COUNT, 40).set(Mad::M_KEY, 3).set(Mad::DR_SLID, 0xffff);
        m.bytes_mut()[RETURN_PATH + 1..].fill(4);
        let n = bad_management_key(SWITCH, Lid::PERMISSIVE, &m);
        assert_eq!(n.bytes()[..6], [0x82, 0, 0, 2, 1, 0]);
        assert_eq!((n.get(Notice::DR_PATH_TRUNCATED), n.get(Notice::DR_HOP_COUNT)), (1, 40));
        assert_eq!((n.bytes()[33], n.bytes()[34], n.bytes()[63]), (0xc0 | 40, 4, 4));
        m.set(Mad::HOP_COUNT, 30);
        assert_eq!(bad_management_key(SWITCH, Lid(1), &m).get(Notice::DR_PATH_TRUNCATED), 0);
    }
}
