//! The sending side of an adapter's port, whatever its link layer.

use hca_firmware::port::Ethernet;
use hca_firmware::{Port, PortKind};

use super::{Leaving, Lifted, Packet, eth, ib};
use crate::ground::epoch::Rebase;
use crate::ground::rate::LineRate;
use crate::ground::time::Ps;

/// Lanes that a link has at most. Each holds back what is sent on it by itself: those of InfiniBand are the virtual lanes.
pub(crate) const LANES: usize = 16;

/// Bytes of a credit (IBTA vol 1 7.9.4.3).
pub(crate) const BLOCK: usize = 64;

/// Credits that a packet of so many bytes takes, where its lane has credits.
pub(crate) fn blocks(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BLOCK)).unwrap_or(u32::MAX)
}

/// A packet on its way over the link. `H` is what it keeps occupied until it has left.
#[derive(Debug)]
pub(crate) struct Sent<H> {
    /// When its first byte leaves.
    pub(crate) start: Ps,
    /// When its last byte has left.
    pub(crate) end: Ps,
    pub(crate) packet: Packet,
    pub(crate) hold: H,
}

/// What became of packets.
#[derive(Debug)]
pub(crate) enum Outcome<H> {
    Sent(Sent<H>),
    /// Too old, or its link went down.
    Discarded {
        at: Ps,
        hold: H,
    },
}

/// What a port does next.
pub(crate) enum Next<H> {
    /// Something became of a packet.
    Outcome(Outcome<H>),
    /// Nothing before then, or before something changes.
    Wait(Wait),
}

/// When a port is to be looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wait {
    /// Something is ready then, or too old.
    pub(crate) until: Option<Ps>,
    /// Credits arrive then that are waited for: [`Outlet::credits_arrive`].
    pub(crate) credits: Option<Ps>,
}

/// Where a packet goes that comes to its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fate {
    /// The lane that it is on.
    pub(crate) lane: u8,
    /// It is for the port itself: it comes back without having been on the link.
    pub(crate) own: bool,
    /// The port and the lane let it leave now.
    pub(crate) may_leave: bool,
    /// The port lets a packet of its length pass: one that is longer is discarded. InfiniBand's are as long as drivers make them.
    pub(crate) fits: bool,
}

/// The sending side of an adapter's port: what waits for its link, and what holds that back.
#[derive(Debug)]
pub(crate) enum Outlet {
    /// InfiniBand.
    Ib(ib::outlet::IbOutlet),
    /// Ethernet.
    Eth(eth::outlet::EthOutlet),
}

/// Functions that every link layer has, and how to get there.
macro_rules! of_all {
    ($($(#[$doc:meta])* fn $name:ident(&mut self $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        impl Outlet {$(
            $(#[$doc])*
            #[inline]
            pub(crate) fn $name(&mut self $(, $arg: $kind)*) $(-> $result)? {
                match self {
                    Self::Ib(room) => room.egress.$name($($arg),*),
                    Self::Eth(room) => room.egress.$name($($arg),*),
                }
            }
        )*}
    };
}

of_all! {
    /// A cable is plugged in, or its link trained to this.
    fn plug(&mut self, line: LineRate);
    /// The link trained: the peer's buffers are empty, with room for so many bytes in each lane; `None`: without end.
    fn train(&mut self, room: Option<usize>);
    /// The link went down: everything that waits is discarded.
    fn clear(&mut self, now: Ps) -> Vec<Outcome<()>>;
    /// Every packet that waits has its payload's bytes itself from now on.
    fn fetch_payload(&mut self);
    /// Takes a packet that may leave from `ready` on, on the lane that it is on; it is discarded if it is still here when it
    /// `dies`. An error if there is no room.
    fn push(&mut self, ready: Ps, dies: Ps, packet: Packet, hold: ()) -> Result<(), ()>;
    /// Credits of a lane arrive at `at`. Says when to call [`Outlet::credits_arrive`], if a packet waits for them.
    fn credit(&mut self, now: Ps, lane: u8, n: u32, at: Ps) -> Option<Ps>;
    /// Credits that were waited for arrive at `now`. Says whether the first packet of a lane has enough since this moment, so
    /// that it may leave; otherwise, when to come again.
    fn credits_arrive(&mut self, now: Ps) -> Result<(), Option<Ps>>;
    /// The peer asks to wait, or lets go on. Says when to call [`Outlet::credits_arrive`], if a packet waits for that.
    fn heed(&mut self, now: Ps, pause: eth::pause::Pause, port: &mut Ethernet) -> Option<Ps>;
    /// A packet of so many bytes is being made for a lane.
    fn reserve(&mut self, lane: u8, bytes: usize);
    /// It is there, or will not come.
    fn unreserve(&mut self, lane: u8, bytes: usize);
    /// Nothing that is being made will come.
    fn forget_reserved(&mut self);
    /// Symbol times of the link for which packets were ready and had no credits since the last call.
    fn take_waits(&mut self) -> u64;
    /// One more comes, at `now`, to those that were taken out, of `len` bytes.
    fn push_lifted(&mut self, lifted: &mut Lifted, now: Ps, len: usize);
    /// The first of those leaves at `now`, if it can.
    fn next_lifted(&mut self, lifted: &mut Lifted, now: Ps) -> Leaving;
    /// Whether the first of those leaves at `now`, and the next one when the link is free again. If not, they may do so yet.
    fn may_leave_lifted(&mut self, lifted: &Lifted, now: Ps) -> bool;
    /// It does. Returns when the link is free again.
    fn leave_lifted(&mut self, lifted: &mut Lifted, now: Ps) -> Ps;
    /// Whether packets that leave from now on, `gap` apart, find as many credits as the one that left at `now`; the last that are known
    /// to come do at `last`.
    fn has_regular_credits(&mut self, lifted: &Lifted, now: Ps, gap: Ps, last: Ps) -> bool;
    /// So many packets have left, `gap` apart, the last at `now`; so many have come; for each that left one is being made, and credits
    /// came.
    fn turned_over(&mut self, lifted: &mut Lifted, at: (Ps, Ps), left_and_joined: [usize; 2]);
    /// The same as [`Outlet::credit`] while what waits is taken out.
    fn credit_lifted(&mut self, now: Ps, lifted: &Lifted, n: u32, at: Ps) -> Option<Ps>;
    /// Sends the next packet, if one can leave up to `horizon` with the credits that are here at `now`.
    fn next(&mut self, now: Ps, horizon: Ps) -> Next<()>;
}

impl Outlet {
    /// Of a port of that kind; so many datagrams that manage the network may wait.
    pub(crate) fn new(kind: PortKind, management: usize) -> Self {
        match kind {
            PortKind::InfiniBand => Self::Ib(ib::outlet::IbOutlet::new(management)),
            PortKind::Ethernet => Self::Eth(eth::outlet::EthOutlet::default()),
        }
    }

    /// Puts a packet on the lane by which it leaves the port, and returns that.
    #[inline]
    pub(crate) fn choose_lane(&self, port: &Port, packet: &mut Packet) -> u8 {
        match self {
            Self::Ib(_) => ib::outlet::choose_lane(port, packet),
            Self::Eth(_) => packet.lane(),
        }
    }

    /// Whether a packet is for the port itself.
    #[inline]
    pub(crate) fn keeps(&self, port: &Port, packet: &Packet) -> bool {
        match self {
            Self::Ib(_) => ib::outlet::keeps(port, packet),
            Self::Eth(_) => eth::outlet::keeps(port, packet),
        }
    }

    /// Whether a frame of these bytes, from the destination's address on, that a queue of that priority sends is for the port itself, and
    /// which lane it is on. An InfiniBand port has no queues that send frames.
    pub(crate) fn foresee(&self, port: &Port, frame: &[u8], priority: u8) -> (bool, u8) {
        match self {
            Self::Ib(_) => (false, 0),
            Self::Eth(_) => eth::outlet::foresee(port, frame, priority),
        }
    }

    /// Puts a packet that comes to the port on its lane, and says where it goes; whether there is a cable is not asked.
    #[inline(always)]
    pub(crate) fn admit(&self, port: &Port, packet: &mut Packet) -> Fate {
        match self {
            Self::Ib(room) => room.admit(port, packet),
            Self::Eth(room) => room.admit(port, packet),
        }
    }

    /// Follows what software set of the port.
    pub(crate) fn configure(&mut self, port: &Port) {
        match self {
            Self::Ib(room) => room.configure(port),
            Self::Eth(room) => room.configure(port),
        }
    }

    /// Back to power-on: what waits is gone.
    pub(crate) fn reset(&mut self) {
        drop(self.clear(Ps::ZERO));
        self.forget_reserved();
        match self {
            Self::Ib(room) => room.reset(),
            Self::Eth(_) => {}
        }
    }

    /// What packets occupy of the link, if a cable is in.
    pub(crate) fn line(&self) -> Option<LineRate> {
        match self {
            Self::Ib(room) => room.egress.line(),
            Self::Eth(room) => room.egress.line(),
        }
    }

    /// Sends a packet that comes at `now` and waits for nothing, on the lane that it is on. Returns it otherwise: then it is to
    /// be pushed.
    #[inline]
    pub(crate) fn pass(&mut self, now: Ps, packet: Packet) -> Result<Sent<()>, Packet> {
        let egress = match self {
            Self::Ib(room) => &mut room.egress,
            Self::Eth(room) => &mut room.egress,
        };
        egress.pass(now, packet, ()).map_err(|(packet, ())| packet)
    }

    /// Whether something waits.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        match self {
            Self::Ib(room) => room.egress.is_waiting(),
            Self::Eth(room) => room.egress.is_waiting(),
        }
    }

    /// Whether a sender may make another packet for a lane: less than `limit` bytes wait there or are being made.
    #[inline]
    pub(crate) fn has_room(&self, lane: u8, limit: usize) -> bool {
        match self {
            Self::Ib(room) => room.egress.has_room(lane, limit),
            Self::Eth(room) => room.egress.has_room(lane, limit),
        }
    }

    /// Whether a packet that comes to a lane now only makes its queue longer: others wait there, and the link is busy. Says
    /// until when.
    #[inline]
    pub(crate) fn is_behind(&self, now: Ps, lane: u8) -> Option<Ps> {
        match self {
            Self::Ib(room) => room.egress.is_behind(now, lane),
            Self::Eth(room) => room.egress.is_behind(now, lane),
        }
    }

    /// The same as [`Outlet::is_behind`] while what waits is taken out.
    #[inline]
    pub(crate) fn lifted_until(&self, lifted: &Lifted, now: Ps) -> Option<Ps> {
        match self {
            Self::Ib(room) => room.egress.lifted_until(lifted, now),
            Self::Eth(room) => room.egress.lifted_until(lifted, now),
        }
    }

    /// Takes out what waits for a lane: see [`Lifted`].
    pub(crate) fn lift(
        &mut self,
        lane: u8,
        (count, len): (usize, usize),
        belongs: impl FnMut(&Packet) -> bool,
        take: impl FnMut(Packet),
    ) -> Option<Lifted> {
        match self {
            Self::Ib(room) => room.egress.lift(lane, (count, len), belongs, take),
            Self::Eth(room) => room.egress.lift(lane, (count, len), belongs, take),
        }
    }

    /// Puts it back, each packet as `make` makes it of its place.
    pub(crate) fn lower(&mut self, lifted: Lifted, make: impl FnMut(usize) -> Option<Packet>) {
        match self {
            Self::Ib(room) => room.egress.lower(lifted, make),
            Self::Eth(room) => room.egress.lower(lifted, make),
        }
    }

    /// Of the packets that wait, the first that is such.
    pub(crate) fn first(&self, such: impl Fn(&Packet) -> bool) -> Option<&Packet> {
        match self {
            Self::Ib(room) => room.egress.first(such),
            Self::Eth(room) => room.egress.first(such),
        }
    }
}

impl Rebase for Outlet {
    fn rebase(&mut self, by: Ps) {
        match self {
            Self::Ib(room) => room.egress.rebase(by),
            Self::Eth(room) => room.egress.rebase(by),
        }
    }
}
