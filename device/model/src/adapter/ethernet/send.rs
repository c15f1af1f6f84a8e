//! Frames that a send queue sends: a WQE's data gathered, cut and finished, and its completion.

use std::ops::Range;

use hca_firmware::transport::Tis;
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::ether::FCS_SIZE;
use hca_spec::flow::TableType;
use hca_spec::ids::Qpn;
use hca_spec::rules;
use hca_spec::wire::Operation;

use crate::adapter::core::Core;
use crate::adapter::flush::Failed;
use crate::adapter::state::frames::Begun;
use crate::engines::mkey::{Fault, TURN_STEPS};
use crate::engines::nic::Refused;
use crate::engines::nic::segment::{Lso, MAX_DATA};
use crate::engines::nic::transmit::{Finish, InlineMode};
use crate::engines::nic::wqe::{EthWqe, Frame, Work};
use crate::engines::pieces::{Piece, spans};
use crate::engines::qp::QueuePair;
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::event::{Event, Status};
use crate::ground::time::Ps;
use crate::link_layer::{MAX_FRAME, Packet};
use crate::wire::ethernet::Headers;

/// The longest frame that is made, without FCS: what a port sends is no longer, and may be shorter.
const LONGEST: usize = MAX_FRAME - FCS_SIZE;
/// Where a TIS's user priority stands: software gives it times two.
const TIS_PRIORITY: u32 = 1;

/// Why a WQE is not carried out: a mistake in it, or memory that can't be read.
enum Stopped {
    Refused(Refused),
    Fault(Fault),
}

impl From<Refused> for Stopped {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Fault> for Stopped {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A frame that was made, and which part of a WQE's data it has.
struct Built<'w> {
    frame: &'w Frame,
    offset: u64,
    len: usize,
    bytes: Vec<u8>,
}

/// When things happen to the frames of a WQE.
struct Times {
    /// The unit is done with the last.
    free: Ps,
    /// The last one leaves.
    departs: Ps,
}

/// What a turn of a send queue came to.
enum Turn {
    /// Frames were made, or there were none.
    Made(Times),
    /// Nothing: they go where the port has no room. The queue waits for that.
    Waits,
}

/// Frames of a WQE that are made and sent in one turn: LSO may ask for 2^18, which would take a second. A WQE of the mlx5 driver with
/// 64 KiB of data and an MSS of 1448 has 46. What a turn costs besides is their data, at most 256 KiB
/// ([`crate::engines::nic::segment::MAX_DATA`]).
const TURN: u64 = 64;
/// The same where frames that are sent pass flow tables, which may make 256 copies of each.
const TURN_STEERED: u64 = 4;

/// Frames up to the one whose steps are enough.
fn taken<'w>(
    frames: impl Iterator<Item = Result<(Built<'w>, u32), Stopped>>,
) -> Result<Vec<Built<'w>>, Stopped> {
    let mut all = Vec::new();
    for frame in frames {
        let (built, steps) = frame?;
        all.push(built);
        if steps > TURN_STEPS {
            break;
        }
    }
    Ok(all)
}

impl Core<'_> {
    /// Carries out a WQE of a send queue that sends frames: as much as one turn may. Returns when the next turn is; none: nothing
    /// waits, or the queue is in error.
    ///
    /// Of a WQE that completes with error nothing is sent, unless it is found out after its first turn.
    pub(crate) fn send_frames(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        wqe: Result<EthWqe, (u16, Refused)>,
    ) -> Option<Ps> {
        match wqe {
            Ok(wqe) => self.send_turn_of(now, qp, Begun { wqe, frames: 0, bytes: 0 }),
            Err((index, refused)) => {
                self.frames_failed(now, qp, (index, 0), &Stopped::Refused(refused));
                None
            }
        }
    }

    /// Goes on with a WQE that was begun. None: there is none; else when the next turn is, as in [`Core::send_frames`].
    pub(crate) fn go_on_with_frames(&mut self, now: Ps, qp: &mut QueuePair) -> Option<Option<Ps>> {
        qp.frames?;
        let begun = self.function.frames.begun.remove(qp.qpn.0)?;
        Some(self.send_turn_of(now, qp, *begun))
    }

    /// Index and opcode of a WQE that was begun, with which nobody goes on.
    pub(crate) fn abandon_frames(&mut self, qp: &QueuePair) -> Option<Failed> {
        qp.frames?;
        let begun = self.function.frames.begun.remove(qp.qpn.0)?;
        let EthWqe { index, opcode, quiet, .. } = begun.wqe;
        Some(Failed { index, opcode: opcode.into(), quiet })
    }

    fn send_turn_of(&mut self, now: Ps, qp: &mut QueuePair, mut begun: Begun) -> Option<Ps> {
        let (index, opcode) = (begun.wqe.index, begun.wqe.opcode);
        let times = match self.send_some(now, qp, &mut begun) {
            Ok(Turn::Made(times)) => times,
            Ok(Turn::Waits) => {
                self.function.frames.begun.insert(qp.qpn.0, Box::new(begun));
                return Some(now);
            }
            Err(stopped) => {
                self.frames_failed(now, qp, (index, opcode), &stopped);
                return None;
            }
        };
        if begun.frames < begun.wqe.frames() {
            self.function.frames.begun.insert(qp.qpn.0, Box::new(begun));
            return Some(times.free);
        }
        if let Some(pause) = self.pace(qp.qpn, begun.bytes)
            && let Some(queue) = &mut qp.frames
        {
            queue.not_before = now + pause;
        }
        self.group_sent(now, qp.group, begun.bytes);
        self.note(times.departs, Event::Done { qpn: qp.qpn, index, status: Status(None) });
        if begun.wqe.signaled {
            let due = times.departs + self.chip.units.completion_latency();
            let mut cqe = qp.cqe(CqeOpcode::Req, index);
            cqe.set(Cqe::SEND_WQE_OPCODE, opcode.into());
            self.complete_at(due, qp, cqe, Vec::new());
        }
        (qp.sends() && !qp.sq.is_empty()).then_some(times.free + self.chip.units.pause())
    }

    fn frames_failed(&mut self, now: Ps, qp: &mut QueuePair, (index, opcode): (u16, u8), stopped: &Stopped) {
        let syndrome = match stopped {
            Stopped::Refused(refused) => {
                let subject = Subject::new("SQ", qp.qpn.0);
                self.answer_mistake(now, || {
                    let expected = "what the queue and the port allow";
                    let found = format!("WQE {index}: {refused}");
                    Finding::new(subject, "send WQE", found, expected, &rules::WQE_FORMAT)
                });
                refused.syndrome
            }
            Stopped::Fault(fault) => {
                let subject = Subject::new("SQ", qp.qpn.0);
                self.fault(now, subject, format_args!("send WQE {index}"), qp.accessor().pd, fault);
                Syndrome::LocalProtection
            }
        };
        self.complete_send_error(now, qp, Failed::by_itself(index, opcode.into()), syndrome);
        self.fail_sends(now, qp, None);
    }

    fn send_some(&mut self, now: Ps, qp: &mut QueuePair, begun: &mut Begun) -> Result<Turn, Stopped> {
        let Begun { wqe, frames, bytes } = begun;
        let Some(tis) =
            qp.frames.and_then(|queue| queue.tis).and_then(|tis| self.function.fw.icm.tiss.get(tis))
        else {
            return Err(Refused::malformed("the queue has no TIS: it sends nothing").into());
        };
        let tis = *tis;
        let mut times = Times { free: now, departs: now };
        let (wqe_time, one) = (self.chip.timing.wqe(), self.chip.timing.frame());
        let further = if matches!(wqe.work, Work::Lso { .. }) { self.chip.timing.segment() } else { one };
        let mut service = further;
        if *frames == 0 {
            let (qpn, index, opcode) = (qp.qpn, wqe.index, wqe.opcode);
            tracing::trace!(hca = self.chip.name, %now, "SQ {qpn}: WQE {index}, opcode {opcode:#x}, {} frames", wqe.frames());
            service = wqe_time + one;
        }
        let range = self.frames_of_turn(wqe, *frames);
        let built = self.build_frames(qp, wqe, range)?;
        // The turn was for the lane of what was sent last.
        let priority = tis.prio >> TIS_PRIORITY;
        let bytes_of = built.iter().map(|built| built.bytes.as_slice());
        if let Some(lane) = self.lane_without_room(qp.port(), priority, bytes_of) {
            qp.lane = lane;
            return Ok(Turn::Waits);
        }
        for built in built {
            *frames = frames.saturating_add(1);
            *bytes = bytes.saturating_add((built.bytes.len() + FCS_SIZE) as u64);
            times = self.send_frame(now, qp, (wqe.index, service), built, &tis);
            service = further;
        }
        Ok(Turn::Made(times))
    }

    /// Which frames of a WQE a turn sends at most, if so many were sent.
    fn frames_of_turn(&self, wqe: &EthWqe, sent: u64) -> Range<u64> {
        let steered = self.function.fw.icm.steering.root(TableType::NicTx).is_some();
        let most = if steered { TURN_STEERED } else { TURN };
        sent..sent.saturating_add(most).min(wqe.frames())
    }

    /// The data of the frames that the next turn sends: lists, and a place in each. `wqe` is the one at the head of the queue,
    /// unless one was begun.
    pub(crate) fn plan_turn(&self, qp: &QueuePair, wqe: Option<&EthWqe>) -> Vec<(Vec<Piece>, u64, usize)> {
        let begun = self.function.frames.begun.get(qp.qpn.0);
        let Some((wqe, sent)) = begun.map(|begun| (&begun.wqe, begun.frames)).or(wqe.map(|wqe| (wqe, 0)))
        else {
            return Vec::new();
        };
        let of = |frame: &Frame, offset: u64, len: u64| (frame.pieces.clone(), offset, len as usize);
        let range = self.frames_of_turn(wqe, sent);
        match &wqe.work {
            Work::Nop | Work::Umr => Vec::new(),
            Work::Frame(frame) => vec![of(frame, 0, frame.data.min(MAX_DATA))],
            Work::Frames(frames) => {
                let (first, count) = (range.start as usize, range.end.saturating_sub(range.start) as usize);
                let frames = frames.iter().skip(first).take(count);
                frames.map(|frame| of(frame, 0, frame.data.min(MAX_DATA))).collect()
            }
            Work::Lso { mss, frame } => {
                let (data, mss) = (frame.data.min(MAX_DATA), u64::from(*mss).max(1));
                let at = |n: u64| n.saturating_mul(mss).min(data);
                range.map(|n| of(frame, at(n), at(n.saturating_add(1)).saturating_sub(at(n)))).collect()
            }
        }
    }

    /// Whether a WQE of a send queue was begun.
    pub(crate) fn has_begun(&self, qp: &QueuePair) -> bool {
        qp.frames.is_some() && self.function.frames.begun.get(qp.qpn.0).is_some()
    }

    /// The lane that a send queue waits for before it has sent something.
    pub(crate) fn first_lane(&self, qp: &QueuePair) -> u8 {
        let tis = qp.frames.and_then(|queue| queue.tis).and_then(|tis| self.function.fw.icm.tiss.get(tis));
        tis.map_or(0, |tis| tis.prio >> TIS_PRIORITY)
    }

    /// How long a queue that keeps to a rate waits when it has sent so many bytes.
    fn pace(&self, sqn: Qpn, bytes: u64) -> Option<Ps> {
        /// Picoseconds of a bit at 1 kb/s.
        const BIT: u64 = 1_000_000_000;
        let options = self.function.fw.icm.qps.get(sqn.0)?.send_only?;
        let rate = self.function.fw.icm.rate(options.rate_limit)?;
        bytes.saturating_mul(8 * BIT).checked_div(rate.into()).map(Ps)
    }

    /// Gathers and finishes frames of a WQE: those of `range`, or fewer if their keys are long to walk, but one at least.
    fn build_frames<'w>(
        &mut self,
        qp: &QueuePair,
        wqe: &'w EthWqe,
        range: Range<u64>,
    ) -> Result<Vec<Built<'w>>, Stopped> {
        let mut steps = 0u32;
        let mut whole = |frame: &'w Frame| {
            let (bytes, looked_at) = self.whole_frame(qp, frame)?;
            steps = steps.saturating_add(looked_at);
            Ok((Built { frame, offset: 0, len: frame.data as usize, bytes }, steps))
        };
        match &wqe.work {
            Work::Nop | Work::Umr => Ok(Vec::new()),
            Work::Frame(frame) => Ok(vec![whole(frame)?.0]),
            Work::Frames(frames) => {
                let (first, count) = (range.start as usize, range.end.saturating_sub(range.start) as usize);
                taken(frames.iter().skip(first).take(count).map(whole))
            }
            Work::Lso { mss, frame } => {
                let vxlan = self.function.fw.icm.steering.vxlan;
                let lso = Lso::new(&frame.header, frame.data, *mss, frame.checksums, &vxlan)?;
                if lso.frame_len(0) > LONGEST {
                    return Err(Refused::length("LSO whose frames are longer than any port's").into());
                }
                taken(range.map(|i| {
                    let range = lso.data(i);
                    let (offset, len) = (range.start, range.end.saturating_sub(range.start) as usize);
                    let (mut bytes, looked_at) = self.gathered(qp, frame, offset, len)?;
                    steps = steps.saturating_add(looked_at);
                    lso.finish(i, &mut bytes);
                    Ok((Built { frame, offset, len, bytes }, steps))
                }))
            }
        }
    }

    /// The inline header, and `len` bytes of data from `offset` on, with room for what is added to them; and how many entries of
    /// indirect keys were looked at.
    fn gathered(
        &mut self,
        qp: &QueuePair,
        frame: &Frame,
        offset: u64,
        len: usize,
    ) -> Result<(Vec<u8>, u32), Fault> {
        const ADDED: usize = 16;
        let header = frame.header.len();
        let mut bytes = Vec::with_capacity(header.saturating_add(len).max(64) + ADDED);
        bytes.extend_from_slice(&frame.header);
        bytes.resize(header.saturating_add(len), 0);
        let data = bytes.get_mut(header..).unwrap_or_default();
        let mut keyed = self.keyed();
        let found = keyed.gather(qp.accessor(), &frame.pieces, offset, data)?;
        found.ignore("frames have no signatures");
        Ok((bytes, keyed.looked_at()))
    }

    /// A frame that is not cut, finished, and how many entries of indirect keys were looked at.
    fn whole_frame(&mut self, qp: &QueuePair, frame: &Frame) -> Result<(Vec<u8>, u32), Stopped> {
        frame.check(LONGEST)?;
        let (mut bytes, looked_at) = self.gathered(qp, frame, 0, frame.data as usize)?;
        let mode = qp.frames.and_then(|queue| InlineMode::from_bits(queue.inline_mode.into()));
        let mode = mode.unwrap_or_default();
        if mode != InlineMode::None
            && let Some(headers) = Headers::parse(&bytes)
            && !mode.is_satisfied(frame.header.len(), &headers)
        {
            return Err(Refused::malformed(
                "the inline header is shorter than the queue's inline mode asks for",
            )
            .into());
        }
        let vxlan_ports = self.function.fw.icm.steering.vxlan;
        Finish { checksums: frame.checksums, vlan: frame.vlan, max_frame: LONGEST, vxlan_ports }
            .apply(&mut bytes)?;
        Ok((bytes, looked_at))
    }

    /// Takes a frame to the port; `service`: how long it keeps a unit busy.
    fn send_frame(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        (index, service): (u16, Ps),
        built: Built<'_>,
        tis: &Tis,
    ) -> Times {
        let Built { frame, offset, len, bytes } = built;
        let (copies, lookups) = self.leaves(now, qp.port(), (qp.qpn, frame.metadata), &bytes);
        let of = |bytes: Vec<u8>| Packet::frame_of(bytes, tis.td, tis.prio >> TIS_PRIORITY);
        let packet = of(bytes);
        let free = self.chip.units.send(now, qp.qpn.0, service);
        let data = spans(&self.function.fw.icm, &frame.pieces, offset, len);
        let ready = self.chip.units.gather(now, qp.qpn.0, free, data);
        let finished = self.chip.units.frame_out(now, ready, lookups);
        let departs = self.chip.units.depart(qp.qpn.0, finished);
        let (qpn, psn, operation) = (qp.qpn, qp.requester.next_psn, Operation::SendOnly);
        let bytes = packet.len() as u32;
        self.note_job(now, free, service, Event::Build { qpn, index, psn, operation, bytes });
        // Copies leave at once: what makes them is behind the pipeline.
        let mut packet = Some(packet);
        let count = copies.len();
        for (i, changed) in copies.into_iter().enumerate() {
            let leaving = match changed {
                Some(bytes) => Some(of(bytes)),
                None if i + 1 == count => packet.take(),
                None => packet.clone(),
            };
            match leaving {
                // What tables send elsewhere than where the queue has waited for room.
                Some(leaving) if lookups.tables > 0 && !self.takes_frame(qp.port(), &leaving) => {
                    self.discarded_by_tables(qp.port());
                }
                Some(leaving) => qp.lane = self.launch(departs, qp.port(), operation, leaving),
                None => {}
            }
        }
        Times { free, departs }
    }
}
