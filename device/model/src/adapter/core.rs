//! The executor: a function and the chip that it is on ([`crate::adapter::state`]), to be worked on; and what everything that it does needs: looking,
//! scheduling, diagnosing, reading.

use std::collections::BTreeMap;

use hca_firmware::FunctionId;
use hca_spec::eqe::EventType;
use hca_spec::ids::Pd;
use hca_spec::rules;

use super::state::chip::Chip;
use super::state::event::HcaEvent;
use super::state::function::{Function, FunctionState, HostSide};
use crate::engines::mkey::Fault;
use crate::engines::qp::QueuePair;
use crate::engines::qp::dct::Peer;
use crate::engines::qp::run::Half;
use crate::engines::view::View;
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::dma::DmaError;
use crate::ground::slots::Slots;
use crate::ground::time::Ps;

/// A function and the chip that it is on, but for queue pairs: those are apart, so that one can be worked on with this.
pub(crate) struct Core<'a> {
    pub(crate) chip: &'a mut Chip,
    pub(crate) function: &'a mut FunctionState,
    /// Which function it is.
    pub(crate) id: FunctionId,
}

/// Carries out what one function does: the function, and the chip that it is on.
pub(crate) struct Executor<'a> {
    pub(crate) core: Core<'a>,
    pub(crate) side: &'a mut HostSide,
    pub(crate) qps: &'a mut Slots<QueuePair>,
    pub(crate) dc_responders: &'a mut BTreeMap<Peer, QueuePair>,
}

impl Function {
    /// What carries out what it does, on its chip.
    #[inline(always)]
    pub(crate) fn executor<'a>(&'a mut self, chip: &'a mut Chip, id: FunctionId) -> Executor<'a> {
        let Self { state, side, qps, dc_responders, epoch: _ } = self;
        Executor { core: Core { chip, function: state, id }, side, qps, dc_responders }
    }
}

/// A doorbell of an object that is not there.
pub(crate) fn nobodys_doorbell(subject: Subject, field: &'static str) -> Finding {
    let found = format!("{:#x}: there is none, or none any more", subject.number());
    Finding::new(subject, field, found, "an object that exists", &rules::DOORBELL_OBJECT)
}

impl Core<'_> {
    /// Begins a run of packets of a queue pair with the next one of that half, if there can be one.
    #[inline(always)]
    pub(crate) fn begin_run(&mut self, qp: &mut QueuePair, half: Half) {
        let may_run = match half {
            Half::Requester => qp.may_run(),
            Half::Responder => qp.may_run_responses(),
        };
        if may_run && self.function.runs.may_begin((qp.qpn, half)) {
            let (view, memory, keys) = (self.view(), &self.function.memory, self.function.key_changes);
            qp.run = match half {
                Half::Requester => qp.plan_run(&view, memory, keys),
                Half::Responder => qp.plan_response_run(&view, memory, keys),
            };
            if qp.run.is_some() {
                self.function.runs.begin((qp.qpn, half));
            }
        }
    }

    /// What engines may look at.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        let pages = self.event_queue_for(EventType::PageFault).is_some();
        View::new(&self.function.fw, &self.chip.managed, pages, self.function.faults_told)
    }

    #[inline(always)]
    pub(crate) fn schedule(&mut self, at: Ps, event: HcaEvent) {
        self.chip.out.events.push((at, event));
    }

    /// Schedules what a port does: that goes on whatever becomes of this function, and is the first one's, which manages
    /// the ports.
    #[inline]
    pub(crate) fn schedule_port(&mut self, at: Ps, event: HcaEvent) {
        self.schedule_for(at, FunctionId::FIRST, event);
    }

    /// Schedules what that function does.
    #[inline(always)]
    pub(crate) fn schedule_for(&mut self, at: Ps, function: FunctionId, event: HcaEvent) {
        match function == self.id {
            true => self.chip.out.events.push((at, event)),
            false => self.chip.out.rare().for_others.push((at, function, event)),
        }
    }

    /// The functions beside this one.
    pub(crate) fn others(&self) -> impl Iterator<Item = FunctionId> + use<> {
        let own = self.id;
        (0..self.chip.functions).map(FunctionId).filter(move |id| *id != own)
    }

    /// Records a guest's mistake in plain words.
    pub(crate) fn diagnose(&mut self, now: Ps, text: std::fmt::Arguments<'_>) {
        self.function.diagnoses.refused(now, text, &self.chip.name);
    }

    /// Records a guest's mistake that breaks a rule, and that the adapter has answered.
    #[cold]
    pub(crate) fn answer_mistake(&mut self, now: Ps, finding: impl FnOnce() -> Finding) {
        self.function.diagnoses.answered(now, finding, &self.chip.name);
    }

    /// Records an access that was refused: by a queue pair, at that place of what it did.
    #[cold]
    pub(crate) fn fault(
        &mut self,
        now: Ps,
        subject: Subject,
        place: std::fmt::Arguments<'_>,
        pd: Pd,
        fault: &Fault,
    ) {
        let FunctionState { diagnoses, fw, .. } = &mut *self.function;
        diagnoses.answered(now, || fault.explained(subject, place, &fw.icm, pd), &self.chip.name);
    }

    /// Whether a read is answered now: the input that is carried out may go on with it.
    pub(crate) fn is_there(&self, iova: u64, len: usize) -> bool {
        self.function.outstanding.as_ref().is_none_or(|outstanding| outstanding.is_there(iova, len))
    }

    pub(crate) fn read<const N: usize>(&self, iova: u64) -> Result<[u8; N], DmaError> {
        let mut bytes = [0; N];
        self.function.memory.read(iova, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn read_be32(&self, iova: u64) -> Result<u32, DmaError> {
        self.read(iova).map(u32::from_be_bytes)
    }
}
