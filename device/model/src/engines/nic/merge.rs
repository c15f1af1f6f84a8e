//! Merging of received segments (LRO): segments of a TCP flow that follow each other become one long one.
//!
//! A session begins with a segment of data, and takes those that continue it: the same addresses, tags, ports, options and
//! queue, the next sequence number. It ends with one that is pushed, when it would become too long, when its time is up, and
//! before anything else of its flow. What comes out has the headers of the first segment, as they came, and the data of all;
//! the completion says what the last acknowledged, how many there were, and what their data sums up to.
//!
//! Source: PRM "Large Receive Offload"; the mlx5 driver (`en_rx.c`, `mlx5e_lro_update_hdr`: what software makes of it).

use hca_spec::ether::{Tcp, tcp_flags};

use super::receive::{Merged, Steered};
use super::transmit::check;
use crate::ground::epoch::Rebase;
use crate::ground::time::Ps;
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{Fragment, Headers, IpVersion, Layer4};

/// Sessions of a receive queue: with one more, the oldest ends. An estimate; 16 x 64 KiB are what a queue keeps at most.
pub(crate) const SESSIONS: usize = 16;
/// Segments of a session: their number has a byte in completions.
const SEGMENTS: u8 = u8::MAX;

/// What a receiver merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MergeRules {
    /// TCP over IPv4.
    pub(crate) v4: bool,
    /// TCP over IPv6.
    pub(crate) v6: bool,
    /// The longest IP payload: TCP header and data, bytes.
    pub(crate) most: u32,
    /// How long a session lasts.
    pub(crate) timeout: Ps,
}

/// A segment that may be merged.
#[derive(Debug, Clone, Copy)]
struct Segment {
    sequence: u32,
    acknowledged: u32,
    window: u16,
    pushed: bool,
    ttl: u8,
    /// Where its TCP header begins, its data begins, and its data ends.
    l4: usize,
    data: usize,
    end: usize,
}

impl Segment {
    /// What a frame's segment is, if it is one of plain data: no fragment, no IP options, no flags but ACK and PSH, and right.
    fn of(frame: &[u8], headers: &Headers) -> Option<Self> {
        let (ip, l4) = (headers.ip?, headers.l4?);
        let Layer4::Tcp { flags, header, .. } = headers.layer4 else { return None };
        if ip.options || ip.fragment != Fragment::Whole || !ip.complete {
            return None;
        }
        const PLAIN: u32 = tcp_flags::ACK | tcp_flags::PSH;
        if u32::from(flags) & !PLAIN != 0 || u32::from(flags) & tcp_flags::ACK == 0 {
            return None;
        }
        let data = l4.checked_add(header).filter(|data| header >= Tcp::SIZE && *data < ip.end)?;
        let checked = check(frame, headers);
        let tcp = Tcp::from_prefix_or_zero(frame.get(l4..)?);
        (checked.l3 && checked.l4 && tcp.get(Tcp::URGENT) == 0).then(|| Self {
            sequence: tcp.get(Tcp::SEQUENCE),
            acknowledged: tcp.get(Tcp::ACKNOWLEDGEMENT),
            window: tcp.get(Tcp::WINDOW) as u16,
            pushed: u32::from(flags) & tcp_flags::PSH != 0,
            ttl: ip.ttl,
            l4,
            data,
            end: ip.end,
        })
    }

    fn len(&self) -> usize {
        self.end.saturating_sub(self.data)
    }
}

/// What comes out of the merging: one frame, of one segment or of many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Its bytes, without FCS.
    pub(crate) frame: Vec<u8>,
    /// Its headers; of merged segments those of the first.
    pub(crate) headers: Headers,
    /// What was found out about it, and of its segments.
    pub(crate) steered: Steered,
}

/// Segments that follow each other.
#[derive(Debug)]
struct Session {
    /// The first frame, and the data of the others behind its datagram.
    frame: Vec<u8>,
    /// Where the data ends.
    end: usize,
    headers: Headers,
    steered: Steered,
    /// The last one.
    last: Segment,
    /// The sequence number that continues it.
    next: u32,
    count: u8,
    ttl: u8,
    /// Sum of all data.
    sum: Sum,
    /// Which session it is.
    number: u32,
}

/// Whether two frames are of one flow, in that direction.
fn is_same_flow(a: &Headers, b: &Headers) -> bool {
    let addresses = |h: &Headers| h.ip.map(|ip| (ip.version, ip.source, ip.destination));
    let ports = |h: &Headers| match h.layer4 {
        Layer4::Tcp { source, destination, .. } => Some((source, destination)),
        _ => None,
    };
    ports(a).is_some() && ports(a) == ports(b) && addresses(a) == addresses(b) && a.tags() == b.tags()
}

impl Session {
    fn begin(frame: &[u8], headers: &Headers, steered: Steered, of: Segment, number: u32) -> Self {
        Self {
            frame: frame.to_vec(),
            end: of.end,
            headers: *headers,
            steered,
            next: of.sequence.wrapping_add(of.len() as u32),
            count: 1,
            ttl: of.ttl,
            sum: Sum::of(frame.get(of.data..of.end).unwrap_or_default()),
            last: of,
            number,
        }
    }

    /// Whether a segment continues it, so that what comes out has no more than `most` bytes of IP payload.
    fn continues(&self, frame: &[u8], headers: &Headers, of: &Segment, steered: &Steered, most: u32) -> bool {
        let class = |h: &Headers| h.ip.map(|ip| (ip.dscp, ip.ecn, ip.flow_label));
        let (l4, first) = (self.last.l4, self.last.data);
        // Options, timestamps among them: all that stands between the header's end and the data.
        let options = l4.saturating_add(Tcp::SIZE)..first;
        let payload = self.end.saturating_sub(l4).saturating_add(of.len());
        of.sequence == self.next
            && self.count < SEGMENTS
            && payload <= most as usize
            && *steered == self.steered
            && (headers.dmac, headers.smac) == (self.headers.dmac, self.headers.smac)
            && class(headers) == class(&self.headers)
            && of.l4 == l4
            && of.data == first
            && frame.get(options.clone()) == self.frame.get(options)
    }

    fn append(&mut self, frame: &[u8], of: Segment) {
        let data = frame.get(of.data..of.end).unwrap_or_default();
        let is_odd = self.end.saturating_sub(self.last.data) % 2 == 1;
        let sum = Sum::of(data);
        self.sum = self.sum.and(if is_odd { sum.shifted() } else { sum });
        // Padding behind the first one's datagram.
        self.frame.truncate(self.end);
        self.frame.extend_from_slice(data);
        self.end = self.frame.len();
        self.next = self.next.wrapping_add(of.len() as u32);
        self.count = self.count.saturating_add(1);
        self.ttl = self.ttl.min(of.ttl);
        self.last = of;
    }

    fn end(self) -> Delivered {
        let merged = (self.count > 1).then_some(Merged {
            segments: self.count,
            pushed: self.last.pushed,
            acknowledged: self.last.acknowledged,
            window: self.last.window,
            ttl: self.ttl,
            sum: self.sum,
        });
        let mut headers = self.headers;
        if let Some(ip) = &mut headers.ip {
            ip.end = self.end;
        }
        Delivered { frame: self.frame, headers, steered: Steered { merged, ..self.steered } }
    }
}

/// What a frame brings about.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// What comes out, in order: two sessions at most.
    pub(crate) out: Vec<Delivered>,
    /// The frame goes on as it is, behind them.
    pub(crate) passes: bool,
    /// A session began: its number, to be told when its time is up.
    pub(crate) began: Option<u32>,
}

/// The sessions of a receive queue.
#[derive(Debug, Default)]
pub(crate) struct Merging {
    /// The oldest first.
    sessions: Vec<Session>,
    /// Sessions that there were.
    count: u32,
    /// When all that came out is in its queue.
    pub(crate) due: Ps,
}

impl Merging {
    /// Takes a frame. Its cost is that of its bytes, and of looking at [`SESSIONS`] sessions.
    pub(crate) fn take(
        &mut self,
        frame: &[u8],
        headers: &Headers,
        steered: Steered,
        rules: &MergeRules,
    ) -> Turn {
        let mut turn = Turn::default();
        let wanted = headers.ip.is_some_and(|ip| match ip.version {
            IpVersion::V4 => rules.v4,
            IpVersion::V6 => rules.v6,
        });
        let segment = Segment::of(frame, headers).filter(|_| wanted);
        let known = self.sessions.iter().position(|session| is_same_flow(&session.headers, headers));
        if let Some((of, session)) = segment.zip(known.and_then(|place| self.sessions.get_mut(place)))
            && session.continues(frame, headers, &of, &steered, rules.most)
        {
            session.append(frame, of);
            if of.pushed {
                turn.out.extend(known.map(|place| self.sessions.remove(place).end()));
            }
            return turn;
        }
        // What does not continue its flow's session comes behind it.
        turn.out.extend(known.map(|place| self.sessions.remove(place).end()));
        let fits = |of: &Segment| of.end.saturating_sub(of.l4) <= rules.most as usize;
        match segment.filter(|of| !of.pushed && fits(of)) {
            Some(of) => {
                if self.sessions.len() >= SESSIONS {
                    turn.out.push(self.sessions.remove(0).end());
                }
                self.count = self.count.wrapping_add(1);
                self.sessions.push(Session::begin(frame, headers, steered, of, self.count));
                turn.began = Some(self.count);
            }
            None => turn.passes = true,
        }
        turn
    }

    /// The time of a session is up: what comes out, if it is there still.
    pub(crate) fn expire(&mut self, number: u32) -> Option<Delivered> {
        let place = self.sessions.iter().position(|session| session.number == number)?;
        Some(self.sessions.remove(place).end())
    }
}

impl Rebase for Merging {
    fn rebase(&mut self, by: Ps) {
        let Self { sessions: _, count: _, due } = self;
        due.rebase(by);
    }
}

#[cfg(test)]
mod tests;
