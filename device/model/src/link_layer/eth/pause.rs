//! MAC control: frames by which a receiver stops who sends to it.
//!
//! Source: IEEE 802.3 annex 31A and 31B (PAUSE), 802.1Q clause 36 and 802.3 annex 31D (priority-based flow control).

use hca_firmware::port::Ethernet;
use hca_firmware::port::ethernet::PriorityCounters;
use hca_spec::ether::{ADDRESSES_SIZE, ethertype};

use super::Mac;
use crate::ground::rate::LineRate;
use crate::ground::time::Ps;
use crate::link_layer::ib::egress::Egress;

/// Priorities.
pub(crate) const PRIORITIES: usize = 8;
/// Where frames of MAC control go: the next station, whoever it is.
const DESTINATION: Mac = Mac([0x01, 0x80, 0xc2, 0x00, 0x00, 0x01]);
const PAUSE: u16 = 0x0001;
const PRIORITY_PAUSE: u16 = 0x0101;
/// Where the type stands, and what follows it.
const TYPE_AT: usize = ADDRESSES_SIZE;
/// Bits of a quantum.
const QUANTUM: u64 = 512;

/// What a receiver asks for: how long the priorities of `lanes` are to wait, in quanta of 512 bit times; 0: they may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pause {
    /// It names priorities (PFC); otherwise it is for all.
    pub(crate) by_priority: bool,
    /// Bit n: priority n.
    pub(crate) lanes: u8,
    pub(crate) quanta: [u16; PRIORITIES],
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}

/// Whether a frame is one of MAC control: it goes no further than the next station.
pub(crate) fn is_control(frame: &[u8]) -> bool {
    be16(frame, TYPE_AT) == Some(ethertype::MAC_CONTROL)
}

impl Pause {
    /// Everything waits so long.
    pub(crate) const fn all(quanta: u16) -> Self {
        Self { by_priority: false, lanes: u8::MAX, quanta: [quanta; PRIORITIES] }
    }

    /// What a frame of MAC control asks for; `None`: something else.
    pub(crate) fn of_frame(frame: &[u8]) -> Option<Self> {
        const OPERANDS: usize = TYPE_AT + 4;
        if !is_control(frame) {
            return None;
        }
        match be16(frame, TYPE_AT + 2)? {
            PAUSE => Some(Self::all(be16(frame, OPERANDS)?)),
            PRIORITY_PAUSE => {
                let lanes = be16(frame, OPERANDS)? as u8;
                let mut quanta = [0; PRIORITIES];
                for (i, quantum) in quanta.iter_mut().enumerate() {
                    *quantum = be16(frame, OPERANDS + 2 + 2 * i)?;
                }
                Some(Self { by_priority: true, lanes, quanta })
            }
            _ => None,
        }
    }

    /// The frame that asks for it.
    pub(crate) fn frame(&self, from: Mac) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&DESTINATION.0);
        bytes.extend_from_slice(&from.0);
        bytes.extend_from_slice(&ethertype::MAC_CONTROL.to_be_bytes());
        if self.by_priority {
            bytes.extend_from_slice(&PRIORITY_PAUSE.to_be_bytes());
            bytes.extend_from_slice(&u16::from(self.lanes).to_be_bytes());
            self.quanta.iter().for_each(|quantum| bytes.extend_from_slice(&quantum.to_be_bytes()));
        } else {
            bytes.extend_from_slice(&PAUSE.to_be_bytes());
            bytes.extend_from_slice(&self.quanta[0].to_be_bytes());
        }
        bytes
    }

    /// How long so many quanta are on a link of that rate.
    pub(crate) fn quanta(quanta: u16, line: LineRate) -> Ps {
        Ps(line.bit_times(QUANTUM).0.saturating_mul(quanta.into()))
    }

    /// How long each priority that it names waits on a link of that rate.
    pub(crate) fn times(self, line: LineRate) -> impl Iterator<Item = (u8, Ps)> {
        let time = move |quanta: u16| Self::quanta(quanta, line);
        let named = move |lane: &u8| self.lanes >> lane & 1 == 1;
        let quanta = self.quanta;
        (0..PRIORITIES as u8)
            .filter(named)
            .map(move |lane| (lane, time(quanta.get(usize::from(lane)).copied().unwrap_or(0))))
    }
}

/// A direction of a priority that was to wait until `was` is to wait until `until`: how long it does, and that it began to.
pub(crate) fn count_pause(counters: &mut PriorityCounters, now: Ps, was: Ps, until: Ps) {
    counters.pause = counters.pause.wrapping_add(1);
    // What was counted before of the time to come is not waited for.
    let (more, less) = (until.since(now).0, was.since(now).0);
    counters.pause_duration = counters.pause_duration.wrapping_add(more).wrapping_sub(less);
    let begins = was <= now && until > now;
    counters.pause_transition = counters.pause_transition.wrapping_add(u64::from(begins));
}

impl<H> Egress<H> {
    /// The station at the other end of the link asks the port to wait, or lets it go on: counts that, and waits for what the port
    /// heeds. Says when to call [`Egress::credits_arrive`], if a packet waits for that.
    ///
    /// A PAUSE frame is counted for every priority: so do adapters whose driver reads it in the counters of priority 0.
    #[must_use]
    pub(crate) fn heed(&mut self, now: Ps, pause: Pause, port: &mut Ethernet) -> Option<Ps> {
        let (heeds, counters) = (port.pause, &mut port.counters.rx);
        counters.control = counters.control.wrapping_add(1);
        counters.pause = counters.pause.wrapping_add(u64::from(!pause.by_priority));
        let mut look = None;
        for (lane, time) in pause.times(self.line()?) {
            let heeded = match pause.by_priority {
                true => heeds.pfc_rx >> lane & 1 == 1,
                false => heeds.rx,
            };
            let was = self.paused_until(lane);
            let until = if heeded { now + time } else { was };
            if let Some(of) = counters.priorities.get_mut(usize::from(lane)) {
                count_pause(of, now, was, until);
            }
            if heeded {
                look = self.pause(now, lane, until).or(look);
            }
        }
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::rate::LinkRate;

    /// Both kinds of pause stop what the port heeds, and are counted for each priority.
    #[test]
    fn pauses_are_heeded_and_counted() {
        let line = LineRate::new(LinkRate::Edr, 4).on_ethernet();
        let quantum = Ps(5120);
        let mut port = Ethernet::new([2; 6]);
        let mut egress = Egress::<()>::default();
        egress.plug(line);
        port.pause.pfc_rx = 0b10;
        let pfc = |lanes, quanta| Pause { by_priority: true, lanes, quanta: [quanta; 8] };
        let now = Ps(1_000_000);
        assert_eq!(egress.heed(now, pfc(0b11, 100), &mut port), None, "nothing waits");
        assert_eq!((egress.paused_until(0), egress.paused_until(1)), (Ps::ZERO, now + quantum.times(100)));
        // Half of it was waited for, then it goes on, twice.
        let later = now + quantum.times(50);
        for _ in 0..2 {
            let _ = egress.heed(later, pfc(0b10, 0), &mut port);
        }
        let [unheeded, heeded, ..] = port.counters.rx.priorities;
        assert_eq!((unheeded.pause, unheeded.pause_duration, unheeded.pause_transition), (1, 0, 0));
        assert_eq!((heeded.pause, heeded.pause_duration, heeded.pause_transition), (3, 50 * quantum.0, 1));
        // PAUSE is for all, if it is heeded.
        let _ = egress.heed(later, Pause::all(2), &mut port);
        port.pause.rx = false;
        let _ = egress.heed(later, Pause::all(9), &mut port);
        let rx = &port.counters.rx;
        assert_eq!((rx.control, rx.pause, egress.paused_until(7)), (5, 2, later + quantum.times(2)));
        assert!(rx.priorities.iter().all(|p| p.pause_duration % quantum.0 == 0 && p.pause >= 2));
    }

    #[test]
    fn frames_and_back() {
        let by_priority =
            Pause { by_priority: true, lanes: 0b1000_0001, quanta: [1, 2, 3, 4, 5, 6, 7, 0xffff] };
        for pause in [Pause::all(0), Pause::all(0xffff), by_priority] {
            let frame = pause.frame(Mac([2, 0, 0, 0, 0, 1]));
            assert!(is_control(&frame));
            assert_eq!(Pause::of_frame(&frame), Some(pause));
            for len in 0..frame.len() {
                assert_eq!(Pause::of_frame(&frame[..len]), None);
            }
        }
        let mut other = Pause::all(9).frame(Mac([2; 6]));
        other[15] = 2;
        assert_eq!((is_control(&other), Pause::of_frame(&other)), (true, None));
        other[12] = 8;
        assert!(!is_control(&other));
    }

    #[test]
    fn a_quantum_is_512_bit_times() {
        let line = LineRate::new(LinkRate::Edr, 4).on_ethernet();
        let times: Vec<_> = Pause { by_priority: true, lanes: 0b110, quanta: [100; 8] }.times(line).collect();
        // 100 Gb/s: 5.12 ns.
        assert_eq!(times, [(1, Ps(512_000)), (2, Ps(512_000))]);
    }
}
