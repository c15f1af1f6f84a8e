//! Frames that a send queue sends: a WQE's data gathered, cut and finished, and its completion.

use hca_firmware::transport::Tis;
use hca_spec::cqe::{Cqe, CqeOpcode, Syndrome};
use hca_spec::ether::FCS_SIZE;
use hca_spec::ids::Qpn;
use hca_spec::wire::Operation;

use crate::adapter::core::Core;
use crate::engines::mkey::Fault;
use crate::engines::nic::Refused;
use crate::engines::nic::segment::Lso;
use crate::engines::nic::transmit::{Finish, InlineMode};
use crate::engines::nic::wqe::{EthWqe, Frame, Work};
use crate::engines::qp::QueuePair;
use crate::engines::qp::pieces::spans;
use crate::ground::event::{Event, Status};
use crate::ground::time::Ps;
use crate::link_layer::Packet;
use crate::wire::ethernet::Headers;

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

impl Core<'_> {
    /// Carries out a WQE of a send queue that sends frames. Returns when the next may follow; none: the queue is in error.
    ///
    /// What it costs is the WQE's data, at most 256 KiB ([`crate::engines::nic::segment::MAX_DATA`]).
    pub(crate) fn send_frames(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        wqe: Result<EthWqe, (u16, Refused)>,
    ) -> Option<Ps> {
        let (index, opcode) = match &wqe {
            Ok(wqe) => (wqe.index, wqe.opcode),
            Err((index, _)) => (*index, 0),
        };
        let done = match &wqe {
            Ok(wqe) => self.send_all(now, qp, wqe),
            Err((_, refused)) => Err(Stopped::Refused(*refused)),
        };
        let times = match done {
            Ok(times) => times,
            Err(stopped) => {
                self.frames_failed(now, qp, (index, opcode), &stopped);
                return None;
            }
        };
        self.note(times.departs, Event::Done { qpn: qp.qpn, index, status: Status(None) });
        if wqe.is_ok_and(|wqe| wqe.signaled) {
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
                self.diagnose(now, format_args!("SQ {}: send WQE {index}: {refused}", qp.qpn));
                refused.syndrome
            }
            Stopped::Fault(fault) => {
                self.diagnose(now, format_args!("SQ {}: send WQE {index}: {fault}", qp.qpn));
                Syndrome::LocalProtection
            }
        };
        self.complete_send_error(now, qp, index, opcode.into(), syndrome);
        self.fail_sends(now, qp, None);
    }

    fn send_all(&mut self, now: Ps, qp: &mut QueuePair, wqe: &EthWqe) -> Result<Times, Stopped> {
        let Some(tis) =
            qp.frames.and_then(|queue| queue.tis).and_then(|tis| self.function.fw.icm.tiss.get(tis))
        else {
            return Err(Refused::malformed("the queue has no TIS: it sends nothing").into());
        };
        let tis = *tis;
        let mtu = self.chip.managed.port(qp.port()).and_then(|port| port.ethernet());
        let max_frame = usize::from(mtu.map_or(0, |ethernet| ethernet.mtu)).saturating_sub(FCS_SIZE);
        let mut times = Times { free: now, departs: now };
        let (qpn, index, opcode) = (qp.qpn, wqe.index, wqe.opcode);
        tracing::trace!(hca = self.chip.name, %now, "SQ {qpn}: WQE {index}, opcode {opcode:#x}, {} frames", wqe.frames());
        // All or none: nothing is sent of a WQE that completes with error.
        let (wqe_time, one) = (self.chip.timing.wqe(), self.chip.timing.frame());
        let further = if matches!(wqe.work, Work::Lso { .. }) { self.chip.timing.segment() } else { one };
        let mut service = wqe_time + one;
        let mut sent = 0u64;
        for built in self.build_frames(qp, wqe, max_frame)? {
            sent = sent.saturating_add((built.bytes.len() + FCS_SIZE) as u64);
            times = self.send_frame(now, qp, (wqe.index, service), built, &tis);
            service = further;
        }
        if let Some(pause) = self.pace(qp.qpn, sent)
            && let Some(queue) = &mut qp.frames
        {
            queue.not_before = now + pause;
        }
        Ok(times)
    }

    /// How long a queue that keeps to a rate waits when it has sent so many bytes.
    fn pace(&self, sqn: Qpn, bytes: u64) -> Option<Ps> {
        /// Picoseconds of a bit at 1 kb/s.
        const BIT: u64 = 1_000_000_000;
        let options = self.function.fw.icm.qps.get(sqn.0)?.send_only?;
        let rate = self.function.fw.icm.rate(options.rate_limit)?;
        bytes.saturating_mul(8 * BIT).checked_div(rate.into()).map(Ps)
    }

    /// Gathers and finishes the frames of a WQE.
    fn build_frames<'w>(
        &self,
        qp: &QueuePair,
        wqe: &'w EthWqe,
        max_frame: usize,
    ) -> Result<Vec<Built<'w>>, Stopped> {
        let whole = |frame: &'w Frame| {
            let bytes = self.whole_frame(qp, frame, max_frame)?;
            Ok(Built { frame, offset: 0, len: frame.data as usize, bytes })
        };
        match &wqe.work {
            Work::Nop | Work::Umr => Ok(Vec::new()),
            Work::Frame(frame) => Ok(vec![whole(frame)?]),
            Work::Frames(frames) => frames.iter().map(whole).collect(),
            Work::Lso { mss, frame } => {
                let lso = Lso::new(&frame.header, frame.data, *mss, frame.checksums)?;
                if lso.frame_len(0) > max_frame {
                    return Err(Refused::length("LSO whose frames are longer than the port's MTU").into());
                }
                let cut = |i| {
                    let range = lso.data(i);
                    let (offset, len) = (range.start, range.end.saturating_sub(range.start) as usize);
                    let mut bytes = self.gathered(qp, frame, offset, len)?;
                    lso.finish(i, &mut bytes);
                    Ok(Built { frame, offset, len, bytes })
                };
                (0..lso.frames()).map(cut).collect()
            }
        }
    }

    /// The inline header, and `len` bytes of data from `offset` on, with room for what is added to them.
    fn gathered(&self, qp: &QueuePair, frame: &Frame, offset: u64, len: usize) -> Result<Vec<u8>, Fault> {
        const ADDED: usize = 16;
        let header = frame.header.len();
        let mut bytes = Vec::with_capacity(header.saturating_add(len).max(64) + ADDED);
        bytes.extend_from_slice(&frame.header);
        bytes.resize(header.saturating_add(len), 0);
        let data = bytes.get_mut(header..).unwrap_or_default();
        let found = self.keyed().gather(qp.accessor(), &frame.pieces, offset, data)?;
        found.ignore("frames have no signatures");
        Ok(bytes)
    }

    /// A frame that is not cut, finished.
    fn whole_frame(&self, qp: &QueuePair, frame: &Frame, max_frame: usize) -> Result<Vec<u8>, Stopped> {
        frame.check(max_frame)?;
        let mut bytes = self.gathered(qp, frame, 0, frame.data as usize)?;
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
        Finish { checksums: frame.checksums, vlan: frame.vlan, max_frame }.apply(&mut bytes)?;
        Ok(bytes)
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
        let packet = Packet::frame_of(bytes, tis.td, tis.prio >> TIS_PRIORITY);
        let free = self.chip.units.send(now, qp.qpn.0, service);
        let data = spans(&self.function.fw.icm, &frame.pieces, offset, len);
        let ready = self.chip.units.gather(now, qp.qpn.0, free, data);
        let finished = self.chip.units.frame_out(now, ready, lookups);
        let departs = self.chip.units.depart(qp.qpn.0, finished);
        let (qpn, psn, operation) = (qp.qpn, qp.requester.next_psn, Operation::SendOnly);
        let bytes = packet.len() as u32;
        self.note_job(now, free, service, Event::Build { qpn, index, psn, operation, bytes });
        // Copies leave at once: what makes them is behind the pipeline.
        for _ in 1..copies {
            self.launch(departs, qp.port(), operation, packet.clone());
        }
        if copies > 0 {
            qp.lane = self.launch(departs, qp.port(), operation, packet);
        }
        Times { free, departs }
    }
}
