//! The way of a packet through the tables of a type: from the root, by entries and misses, to where it ends.

use hca_spec::flow::{TableType, action};

use super::Steering;
use super::key::{MatchValue, WORDS};
use super::table::{Deed, Destination, Miss};

/// Tables that a packet and its copies pass at most. Levels rise, so a packet alone passes no more; copies, and entries that
/// ignore levels, could pass any number.
pub const MOST_TABLES: u32 = 256;
/// Look-ups for a packet and its copies at most, one for each criteria of each table: some hundred microseconds.
pub const MOST_LOOKUPS: u32 = 4096;
/// Copies of a packet at most: each costs as much as a packet.
pub const MOST_COPIES: usize = 256;

/// Where a packet, or a copy of it, goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// To that TIR.
    Tir(u32),
    /// Out by the port: what is sent.
    Wire,
    /// To the transport: RoCE packets that are received.
    Transport,
    /// To the NIC's tables, as if it were no RoCE packet.
    Onward,
}

/// A packet that left the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Where to.
    pub to: Target,
    /// The flow tag of the last entry that set one; 0 if none did.
    pub tag: u32,
}

/// What became of a packet. It can be used again for the next, which then allocates nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The packet and its copies, in the order of destinations.
    pub deliveries: Vec<Delivery>,
    /// Copies that an entry dropped.
    pub dropped: u32,
    /// Copies that no entry matched, in tables whose type drops them: `rx_steer_missed_packets`.
    pub missed: u32,
    /// Tables that the packet and its copies passed.
    pub tables: u32,
    /// Whether the packet met [`MOST_TABLES`], [`MOST_LOOKUPS`] or [`MOST_COPIES`]: what was still to be done was not.
    pub overrun: bool,
}

impl Verdict {
    fn clear(&mut self) {
        self.deliveries.clear();
        (self.dropped, self.missed, self.tables, self.overrun) = (0, 0, 0, false);
    }
}

/// A walk under way.
struct Walk<'a> {
    steering: &'a Steering,
    packet: &'a MatchValue,
    octets: u64,
    kind: TableType,
    tables: u32,
    lookups: u32,
    room: [u32; WORDS],
    verdict: &'a mut Verdict,
}

impl Steering {
    /// Takes a packet of `octets` through the tables of a type and says in `verdict` what becomes of it. Counters of the
    /// entries on its way count it. A type without a root does what it does when nothing matches.
    pub fn walk(&self, kind: TableType, packet: &MatchValue, octets: u64, verdict: &mut Verdict) {
        verdict.clear();
        let (tables, lookups) = (MOST_TABLES, MOST_LOOKUPS);
        let mut walk =
            Walk { steering: self, packet, octets, kind, tables, lookups, room: [0; WORDS], verdict };
        match self.root(kind) {
            Some(root) => walk.enter(root, 0),
            None => walk.miss(0),
        }
        walk.verdict.tables = MOST_TABLES - walk.tables;
    }
}

impl Walk<'_> {
    /// The packet enters a table with the tag that it has. Calls itself for copies: at most [`MOST_TABLES`] deep.
    fn enter(&mut self, table: u32, tag: u32) {
        let mut next = table;
        // Misses lead from table to table.
        loop {
            let Some(table) = self.steering.tables.get(next) else { return self.miss(tag) };
            let Some(tables) = self.tables.checked_sub(1) else {
                self.verdict.overrun = true;
                return;
            };
            self.tables = tables;
            let found = table.find(self.packet, &mut self.room, &mut self.lookups);
            if self.lookups == 0 {
                self.verdict.overrun = true;
                return;
            }
            match (found, table.miss) {
                (Some(entry), _) => return self.follow(&entry.what, tag),
                (None, Miss::Table(other)) => next = other,
                (None, Miss::Default) => return self.miss(tag),
                (None, Miss::SwitchDomain) => return self.deliver(Target::Onward, tag),
            }
        }
    }

    /// What an entry does.
    fn follow(&mut self, what: &Deed, tag: u32) {
        let tag = if what.tag == 0 { tag } else { what.tag };
        if what.action & action::COUNT != 0 {
            what.counters.iter().for_each(|id| self.steering.counters.count(*id, self.octets));
        }
        if what.action & action::DROP != 0 {
            self.verdict.dropped += 1;
        } else if what.action & action::ALLOW != 0 {
            self.by_default(tag);
        } else {
            for destination in &what.destinations {
                if self.verdict.overrun {
                    return;
                }
                match *destination {
                    Destination::Tir(tirn) => self.deliver(Target::Tir(tirn), tag),
                    Destination::Uplink => self.deliver(Target::Wire, tag),
                    Destination::Table(table) => self.enter(table, tag),
                }
            }
        }
    }

    fn deliver(&mut self, to: Target, tag: u32) {
        if self.verdict.deliveries.len() < MOST_COPIES {
            self.verdict.deliveries.push(Delivery { to, tag });
        } else {
            self.verdict.overrun = true;
        }
    }

    /// Nothing matched.
    fn miss(&mut self, tag: u32) {
        self.by_default(tag);
    }

    /// What packets of the type do when tables say nothing else. Of what a sniffer copies nothing is left: the original goes
    /// its own way.
    fn by_default(&mut self, tag: u32) {
        match self.kind {
            TableType::NicTx | TableType::RdmaTx => self.deliver(Target::Wire, tag),
            TableType::RdmaRx => self.deliver(Target::Transport, tag),
            TableType::NicRx => self.verdict.missed += 1,
            _ => {}
        }
    }
}
