//! The way of a packet through the tables of a type: from the root, by entries and misses, to where it ends.

use hca_spec::flow::{TableType, action};

use super::Steering;
use super::entry::{Landing, Met, landing};
use super::frame::{Frame, Passing};
use super::key::WORDS;
use super::rewrite::decapsulate;
use super::table::{Deed, Destination, Miss};

/// Tables that a packet and its copies pass at most. Levels rise, so a packet alone passes no more; copies, and entries that
/// ignore levels, could pass any number.
pub const MOST_TABLES: u32 = 256;
/// Look-ups for a packet and its copies at most, one for each criteria of each table, and one for each entry that a driver wrote
/// itself: some hundred microseconds.
pub const MOST_LOOKUPS: u32 = 4096;
/// Times that a packet and its copies are changed at most: each may cost as much as a copy of the longest frame.
pub const MOST_CHANGES: u32 = 256;
/// Changes in lists that drivers wrote, of a packet and its copies, at most: lists have up to 255, and each may move all of the frame.
pub(super) const MOST_LISTED: u32 = 1024;
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Where to.
    pub to: Target,
    /// The flow tag of the last entry that set one; 0 if none did.
    pub tag: u32,
    /// What entries made of it. `None`: it is as it came.
    pub frame: Option<Vec<u8>>,
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
    /// Whether the packet met [`MOST_TABLES`], [`MOST_LOOKUPS`], [`MOST_CHANGES`] or [`MOST_COPIES`]: what was still to be done was not.
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
    kind: TableType,
    now: u128,
    tables: u32,
    lookups: u32,
    changes: u32,
    listed: u32,
    room: [u32; WORDS],
    verdict: &'a mut Verdict,
}

impl Steering {
    /// Takes a frame through the tables of a type and says in `verdict` what becomes of it. Counters of the entries on its way
    /// count it. A type without a root does what it does when nothing matches.
    pub fn walk(&self, kind: TableType, frame: &Frame<'_>, verdict: &mut Verdict) {
        verdict.clear();
        let value = frame.sight.key.lay_out();
        let packet = Passing::new(frame, &value);
        let (tables, lookups) = (MOST_TABLES, MOST_LOOKUPS);
        let (changes, listed) = (MOST_CHANGES, MOST_LISTED);
        let now = frame.now;
        let mut walk =
            Walk { steering: self, kind, now, tables, lookups, changes, listed, room: [0; WORDS], verdict };
        match self.root(kind) {
            Some(root) => walk.enter(root, packet),
            None => walk.miss(packet),
        }
        walk.verdict.tables = MOST_TABLES - walk.tables;
    }
}

impl Walk<'_> {
    /// Takes one of a budget. `None`: there is none left, and the walk ends.
    fn take(budget: &mut u32, verdict: &mut Verdict) -> Option<()> {
        Self::take_some(budget, 1, verdict)
    }

    /// The same for so many of it.
    fn take_some(budget: &mut u32, count: u32, verdict: &mut Verdict) -> Option<()> {
        match budget.checked_sub(count) {
            Some(left) => {
                *budget = left;
                Some(())
            }
            None => {
                verdict.overrun = true;
                None
            }
        }
    }

    /// The packet enters a table. Calls itself for copies: at most [`MOST_TABLES`] deep.
    fn enter(&mut self, table: u32, packet: Passing<'_>) {
        let mut next = table;
        // Misses lead from table to table.
        loop {
            let Some(table) = self.steering.tables.get(next) else { return self.miss(packet) };
            let Some(()) = Self::take(&mut self.tables, self.verdict) else { return };
            if let Some(address) = table.software {
                return self.land(address, packet);
            }
            let found = table.find(packet.value(), &mut self.room, &mut self.lookups);
            if self.lookups == 0 {
                self.verdict.overrun = true;
                return;
            }
            match (found, table.miss) {
                (Some(entry), _) => return self.follow(&entry.what, packet),
                (None, Miss::Table(other)) => next = other,
                (None, Miss::Default) => return self.miss(packet),
                (None, Miss::SwitchDomain) => return self.deliver(Target::Onward, packet),
            }
        }
    }

    /// The packet goes to an address: from entry to entry that drivers wrote, until it is elsewhere.
    fn land(&mut self, address: u64, mut packet: Passing<'_>) {
        let mut address = address;
        loop {
            let at = match landing(self.steering, address) {
                Landing::Entry(at) => at,
                Landing::Tir(tirn) => return self.deliver(Target::Tir(tirn), packet),
                Landing::Table(table) => return self.enter(table, packet),
                Landing::Sampler(number) => return self.sample(number, packet),
                Landing::Meter(number) => return self.meter(number, packet),
                Landing::Allow => return self.by_default(packet),
                Landing::Drop => {
                    self.verdict.dropped += 1;
                    return;
                }
            };
            let Some(()) = Self::take(&mut self.lookups, self.verdict) else { return };
            let Some(met) = Met::at(self.steering, at, &packet) else {
                self.verdict.dropped += 1;
                return;
            };
            if !met.hit {
                address = met.miss();
                continue;
            }
            let counter = met.counter();
            if counter != 0 {
                self.steering.counters.count(counter, packet.octets());
            }
            if met.acts() {
                let Some(()) = Self::take(&mut self.changes, self.verdict) else { return };
                let Some(()) = Self::take_some(&mut self.listed, met.listed(), self.verdict) else { return };
                met.act(self.steering, &mut packet);
            }
            address = met.next(self.steering, &packet);
        }
    }

    /// The packet goes on, and now and then a copy of it elsewhere.
    fn sample(&mut self, number: u32, packet: Passing<'_>) {
        let Some(sampler) = self.steering.sampler(number) else { return self.miss(packet) };
        if sampler.takes() {
            self.enter(sampler.copies, packet.clone());
        }
        if !self.verdict.overrun {
            self.enter(sampler.all, packet);
        }
    }

    /// The packet gets a color, and goes on.
    fn meter(&mut self, number: u32, mut packet: Passing<'_>) {
        let Some(meter) = self.steering.meter(number) else { return self.miss(packet) };
        let color = meter.mark(self.now, packet.octets(), packet.sight());
        if let Some(register) = packet.registers.c.get_mut(meter.register as usize) {
            *register = color;
        }
        self.enter(meter.table, packet);
    }

    /// What an entry does.
    fn follow(&mut self, what: &Deed, mut packet: Passing<'_>) {
        if what.tag != 0 {
            packet.tag = what.tag;
        }
        if what.action & action::COUNT != 0 {
            what.counters.iter().for_each(|id| self.steering.counters.count(*id, packet.octets()));
        }
        if what.action & action::DROP != 0 {
            self.verdict.dropped += 1;
            return;
        }
        if what.action & (action::DECAP | action::MODIFY_HEADER | action::REFORMAT) != 0 {
            let Some(()) = Self::take(&mut self.changes, self.verdict) else { return };
            self.change(what, &mut packet);
        }
        if what.action & action::ALLOW != 0 {
            return self.by_default(packet);
        }
        let Some((last, others)) = what.destinations.split_last() else { return };
        for destination in others {
            if self.verdict.overrun {
                return;
            }
            self.go(*destination, packet.clone());
        }
        if !self.verdict.overrun {
            self.go(*last, packet);
        }
    }

    /// A tunnel is taken off, then fields are changed, then a header is put before.
    fn change(&mut self, what: &Deed, packet: &mut Passing<'_>) {
        if what.action & action::DECAP != 0 {
            decapsulate(packet);
        }
        if what.action & action::MODIFY_HEADER != 0
            && let Some(changes) = self.steering.header_changes(what.header)
        {
            changes.apply(packet);
        }
        if what.action & action::REFORMAT != 0
            && let Some(context) = self.steering.reformat(what.reformat)
        {
            context.apply(packet);
        }
    }

    fn go(&mut self, destination: Destination, packet: Passing<'_>) {
        match destination {
            Destination::Tir(tirn) => self.deliver(Target::Tir(tirn), packet),
            Destination::Uplink => self.deliver(Target::Wire, packet),
            Destination::Table(table) => self.enter(table, packet),
            Destination::Sampler(number) => self.sample(number, packet),
        }
    }

    fn deliver(&mut self, to: Target, packet: Passing<'_>) {
        if self.verdict.deliveries.len() < MOST_COPIES {
            self.verdict.deliveries.push(Delivery { to, tag: packet.tag, frame: packet.changed() });
        } else {
            self.verdict.overrun = true;
        }
    }

    /// Nothing matched.
    fn miss(&mut self, packet: Passing<'_>) {
        self.by_default(packet);
    }

    /// What packets of the type do when tables say nothing else. Of what a sniffer copies nothing is left: the original goes
    /// its own way.
    fn by_default(&mut self, packet: Passing<'_>) {
        match self.kind {
            TableType::NicTx | TableType::RdmaTx => self.deliver(Target::Wire, packet),
            TableType::RdmaRx => self.deliver(Target::Transport, packet),
            TableType::NicRx => self.verdict.missed += 1,
            _ => {}
        }
    }
}
