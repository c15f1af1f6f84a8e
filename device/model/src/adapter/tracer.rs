//! The firmware's tracer carried out ([`hca_firmware::Tracer`]): when its blocks are written into the host's memory, and the event
//! that tells of them.

use std::fmt::Arguments;

use hca_firmware::tracer::{Block, Message, Soon};
use hca_spec::eqe::{Eqe, EventType};
use hca_spec::ids::{Mkey, Qpn};
use hca_spec::mkc::Mkc;
use hca_spec::tracer::tracer_event;

use super::core::Core;
use super::state::event::HcaEvent;
use crate::engines::mkey::{Access, Accessor, Fault};
use crate::ground::diagnosis::Subject;
use crate::ground::region::Payload;
use crate::ground::time::Ps;

/// How long messages wait for others that fill a block: an estimate. It bounds what tracing costs a host to an event a second,
/// and one for 256 messages.
const WHILE: Ps = Ps::from_ms(1000);

/// The firmware itself is no queue pair.
const NOBODY: Qpn = Qpn(0);

impl Core<'_> {
    /// What happens from here on has this time in traces.
    #[inline]
    pub(crate) fn trace_time(&mut self, now: Ps) {
        let ticks = self.chip.start.ticks(now, self.chip.timing.timer_khz());
        self.chip.managed.tracer.set_time(ticks);
    }

    /// The firmware did something.
    pub(crate) fn trace(&mut self, now: Ps, message: Message) {
        self.trace_time(now);
        self.chip.managed.tracer.record(message);
        self.plan_traces(now);
    }

    /// If messages wait for somebody, they are written: soon, or at once.
    pub(crate) fn plan_traces(&mut self, now: Ps) {
        if let Some((owner, soon)) = self.chip.managed.tracer.wants() {
            let at = if soon == Soon::Now { now } else { now + WHILE };
            self.schedule_for(at, owner, HcaEvent::Traces);
        }
    }

    /// Writes what waits, if it is this function that gets it, and tells of it: at most 512 messages, in half as many blocks.
    pub(crate) fn write_traces(&mut self, now: Ps) {
        let Some((owner, key)) = self.chip.managed.tracer.target() else { return };
        if owner != self.id {
            return;
        }
        while let Some(block) = self.chip.managed.tracer.block() {
            if let Err(fault) = self.write_block(Mkey(key), &block) {
                self.chip.managed.tracer.not_written();
                let place = format_args!("block of traces at byte {:#x} of the buffer", block.offset);
                self.firmware_fault(now, Mkey(key), place, &fault);
                break;
            }
        }
        self.tell_of_traces(now);
    }

    fn write_block(&mut self, key: Mkey, block: &Block) -> Result<(), Fault> {
        let start = self.function.fw.icm.mkeys.get(key.index()).map_or(0, |k| k.ctx.get(Mkc::START_ADDR));
        let va = start.wrapping_add(block.offset);
        self.write_by_key(key, va, &block.bytes)
    }

    /// Writes bytes for the firmware, under a key that it was given.
    pub(crate) fn write_by_key(&mut self, key: Mkey, va: u64, bytes: &[u8]) -> Result<(), Fault> {
        let who = self.domain_of(key);
        let errors = self.keyed().write(who, key, va, Payload::Bytes(bytes), Access::LocalWrite)?;
        errors.ignore("the firmware writes through no signatures");
        Ok(())
    }

    /// What the firmware could not write.
    pub(crate) fn firmware_fault(&mut self, now: Ps, key: Mkey, place: Arguments<'_>, fault: &Fault) {
        let domain = self.domain_of(key).pd;
        self.fault(now, Subject::new("key", key.0), place, domain, fault);
    }

    /// The firmware is of every domain: who names a key to it has it.
    fn domain_of(&self, key: Mkey) -> Accessor {
        let pd = self.function.fw.icm.mkeys.get(key.index()).map_or(0, |k| k.ctx.get(Mkc::PD));
        Accessor { qpn: NOBODY, pd: hca_spec::ids::Pd(pd), rlky: false }
    }

    /// The event that tells of blocks, if it is armed and there are some.
    pub(crate) fn tell_of_traces(&mut self, now: Ps) {
        if self.chip.managed.tracer.tells() {
            self.tracer_event(now, tracer_event::TRACES);
        }
    }

    /// An event about the tracer.
    pub(crate) fn tracer_event(&mut self, now: Ps, sub_type: u8) {
        let mut eqe = Eqe::new();
        eqe.set(Eqe::SUB_TYPE, sub_type.into());
        self.push_event(now, EventType::DeviceTracer, &mut eqe);
    }

    /// This function is reset: the tracer is free if it had it.
    pub(crate) fn trace_reset(&mut self, now: Ps) {
        self.trace_time(now);
        if self.chip.managed.tracer.function_reset(self.id) {
            self.tracer_is_free(now);
        }
        self.plan_traces(now);
    }

    /// Nobody has the tracer any more: other functions may take it.
    pub(crate) fn tracer_is_free(&mut self, now: Ps) {
        for other in self.others() {
            self.schedule_for(now, other, HcaEvent::TracerFree);
        }
    }
}
