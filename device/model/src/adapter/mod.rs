//! One adapter: register accesses and events in, effects out.

pub(crate) mod agent;
mod answers;
pub(crate) mod command;
pub(crate) mod completion;
mod congestion;
pub(crate) mod core;
mod datagram;
pub(crate) mod doorbells;
mod dynamic;
mod ethernet;
pub(crate) mod events;
mod flush;
mod groups;
mod inflow;
mod local;
pub(crate) mod management;
mod memory;
pub(crate) mod outflow;
mod paging;
mod parked;
mod plan;
pub(crate) mod port;
mod queue_pair;
mod receive;
mod receive_queue;
mod requests;
mod respond;
pub(crate) mod running;
mod scripted;
mod send;
pub(crate) mod state;
mod streams;
mod tags;
mod tracer;
pub(crate) mod watch;

use std::sync::Arc;

use hca_firmware::{Config, FunctionId};
use hca_spec::ids::{Cqn, Qpn};
use hca_spec::init_segment;
use hca_spec::qpc::Qpc;
use hca_spec::queue::Cqc;
use hca_spec::rules;
use hca_spec::tracer::tracer_event;
use hca_spec::uar::{
    CQ_DOORBELL, EQ_ARM, EQ_UPDATE, PAGE_SIZE, RECORDLESS_DOORBELL, SEND_DOORBELL, SEND_DOORBELL_STEP,
};
use hca_spec::wire::{Bth, Operation};
use hca_spec::{be32, uar};

pub(crate) use crate::adapter::core::Executor;
use crate::adapter::core::nobodys_doorbell;
use crate::adapter::ethernet::{Way, count_frame};
use crate::adapter::state::chip::Chip;
use crate::adapter::state::event::{Arrived, HcaEvent};
use crate::adapter::state::function::Function;
use crate::engines::blueflame::{Block, Combiner};
use crate::engines::mkey::span;
use crate::engines::qp::datagram::MULTICAST_QP;
use crate::engines::qp::replies::Expected;
use crate::engines::qp::send::{copy_blocks, copy_index, names_wqe};
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::dma::NoMemory;
use crate::ground::event::Event;
use crate::ground::time::Ps;
use crate::ground::timing::{Timing, takes_receive};
use crate::link_layer::Packet;
use crate::units::Inbound;
use crate::wire::Repr;

/// One adapter: a chip with its ports, and the functions that hosts see of it.
pub(crate) struct Hca {
    pub(crate) chip: Chip,
    /// By [`FunctionId`]. The first is there always; it manages the ports.
    pub(crate) functions: Vec<Function>,
}

/// What accesses to registers are about.
const BAR0: Subject = Subject::new("BAR", 0);

/// Whether a store to BAR0 at that offset sets the adapter to work: the command doorbell, and whatever is in UAR pages.
pub fn is_doorbell(offset: u64) -> bool {
    offset == init_segment::InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64 || offset >= PAGE_SIZE
}

/// The UAR page of that offset in BAR0.
fn uar_of(offset: u64) -> Subject {
    Subject::new("UAR page", u32::try_from(offset / PAGE_SIZE).unwrap_or(u32::MAX))
}

/// A doorbell in a page that is not allocated.
fn not_allocated(offset: u64) -> Finding {
    let found = format!("a doorbell at offset {:#x}, and the page is not allocated", offset % PAGE_SIZE);
    Finding::new(uar_of(offset), "doorbell", found, "a page of ALLOC_UAR", &rules::UAR_ALLOCATED)
}

impl Hca {
    pub(crate) fn new(name: String, config: Config, timing: Arc<Timing>) -> Self {
        // What the capabilities say of the clock is what the clock does.
        let timer_khz = u32::try_from(timing.timer_khz()).unwrap_or(u32::MAX);
        let config = Config { function: FunctionId::FIRST, timer_khz, ..config };
        Self { functions: vec![Function::new(config.clone())], chip: Chip::new(name, config, timing) }
    }

    /// One more function of the same kind. `None`: there are as many as there can be.
    pub(crate) fn add_function(&mut self) -> Option<FunctionId> {
        let function = FunctionId(u8::try_from(self.functions.len()).ok()?);
        let config = self.functions.first()?.state.fw.config();
        if usize::from(function.0) >= FunctionId::COUNT {
            return None;
        }
        self.functions.push(Function::new(Config { function, ..config.clone() }));
        self.chip.functions += 1;
        Some(function)
    }

    /// The same, a virtual one: the first function has to enable it.
    pub(crate) fn add_virtual_function(&mut self) -> Option<FunctionId> {
        let function = self.add_function()?;
        self.chip.managed.add_virtual_function(function);
        Some(function)
    }

    #[inline]
    pub(crate) fn function(&self, id: FunctionId) -> Option<&Function> {
        self.functions.get(usize::from(id.0))
    }

    pub(crate) fn function_mut(&mut self, id: FunctionId) -> Option<&mut Function> {
        self.functions.get_mut(usize::from(id.0))
    }

    /// What carries out what that function does.
    #[inline]
    pub(crate) fn executor(&mut self, id: FunctionId) -> Option<Executor<'_>> {
        let function = self.functions.get_mut(usize::from(id.0))?;
        Some(function.executor(&mut self.chip, id))
    }

    pub(crate) fn detach(&mut self, now: Ps, id: FunctionId) {
        self.reset(now, id);
        if let Some(mut executor) = self.executor(id) {
            executor.attach(Arc::new(NoMemory));
        }
    }

    /// The adapter's firmware starts, with what is in flash; that is more than a reset. Only the first function has it start.
    pub(crate) fn restart(&mut self, now: Ps, id: FunctionId) {
        if id != FunctionId::FIRST {
            return self.reset(now, id);
        }
        self.chip.restart();
        let kind = self.chip.managed.kind();
        for function in &mut self.functions {
            function.state.fw.restart(kind);
            function.reset(self.chip.managed.firmware_version());
        }
        self.start(now);
    }

    /// Function level reset: back to power-on. The function that manages the ports takes the chip along, and the links
    /// train again, and its virtual functions; what other functions have made stays.
    pub(crate) fn reset(&mut self, now: Ps, id: FunctionId) {
        let version = self.chip.managed.firmware_version();
        let Some(function) = self.function_mut(id) else { return };
        function.reset(version);
        if let Some(mut executor) = self.executor(id) {
            executor.core.trace_reset(now);
        }
        self.chip.managed.virtual_functions.function_reset(id);
        if id == FunctionId::FIRST {
            let gone = self.chip.managed.drop_virtual_functions();
            self.chip.reset();
            self.start(now);
            for function in gone {
                if let Some(mut executor) = self.executor(function) {
                    executor.taken_away(now);
                }
            }
        }
        let mut effects = Vec::new();
        self.chip.managed.sync_reset.function_reset(id, &mut effects);
        if let Some(mut executor) = self.executor(id) {
            executor.apply(now, effects);
        }
    }

    /// The links start to train.
    pub(crate) fn start(&mut self, now: Ps) {
        let Chip { timing, managed, out, .. } = &mut self.chip;
        let at = now + timing.link_training();
        out.events.extend(managed.numbers().map(|port| (at, HcaEvent::LinkUp(port))));
    }

    /// A queue pair of the first function sends no run any more.
    pub(crate) fn end_run(&mut self, qpn: Qpn) {
        let Some(function) = self.functions.first_mut() else { return };
        function.state.runs.end();
        if let Some(qp) = function.qps.get_mut(qpn.0) {
            qp.run = None;
        }
    }

    /// A packet arrived at a port. Returns which function it is for, and when its place in the input buffer is free.
    #[inline(always)]
    pub(crate) fn arrive(&mut self, now: Ps, port: u8, packet: Packet) -> (FunctionId, Ps) {
        let (id, copy) = match self.functions.len() {
            1 => (FunctionId::FIRST, None),
            _ => self.destination(port, &packet),
        };
        let free = self.executor(id).map_or(now, |mut executor| executor.arrive(now, port, packet));
        if let Some(copy) = copy {
            let others = (1..self.chip.functions).map(FunctionId);
            let of = |id| (free, id, HcaEvent::Receive(copy.clone()));
            self.chip.out.rare().for_others.extend(others.map(of));
        }
        (id, free)
    }

    /// The function that a packet is for, and if it is for all of them a copy for the others. What is for no function that
    /// there is goes to the first, which drops it.
    #[cold]
    fn destination(&self, port: u8, packet: &Packet) -> (FunctionId, Option<Arrived>) {
        let qpn = Qpn(packet.bth().get(Bth::DEST_QP));
        if qpn == MULTICAST_QP {
            return (FunctionId::FIRST, Arrived::check(port, packet.clone()).ok());
        }
        let id = FunctionId::of_qpn(qpn);
        (if self.function(id).is_some() { id } else { FunctionId::FIRST }, None)
    }
}

impl Executor<'_> {
    /// Nothing more comes to the stores that wait.
    pub(crate) fn flush_stores(&mut self, now: Ps) {
        let blocks = self.side.combiner.flush();
        self.rung(now, blocks);
    }

    fn read_registers(&mut self, now: Ps, offset: u64, buf: &mut [u8]) {
        // A read pushes posted writes ahead of it.
        self.flush_stores(now);
        let device = &self.core.function.fw.icm.device_memory;
        if device.is_at(offset) {
            if !device.load(offset, buf) {
                buf.fill(0);
            }
            return;
        }
        self.core.note_registers(now, offset, buf.len(), false);
        let time = (self.core.chip.start, now);
        self.side.registers.read(time, &self.core.chip.timing, offset, buf);
    }

    #[inline]
    fn store(&mut self, now: Ps, offset: u64, data: &[u8]) {
        let device = &self.core.function.fw.icm.device_memory;
        if device.is_at(offset) {
            if !device.store(offset, data) {
                self.core.answer_mistake(now, || {
                    let found = format!("{} bytes at {offset:#x}", data.len());
                    let expected = "a piece of device memory (ALLOC_MEMIC), or 1 byte that increments there (MODIFY_MEMIC)";
                    Finding::new(BAR0, "access", found, expected, &rules::DOORBELL_PLACE)
                });
            }
            return;
        }
        if !offset.is_multiple_of(4) || !data.len().is_multiple_of(4) {
            let len = data.len();
            return self.core.answer_mistake(now, || {
                let found = format!("{len} bytes at {offset:#x}");
                Finding::new(BAR0, "access", found, "4 or 8 bytes at a multiple of 4", &rules::REGISTER_WIDTH)
            });
        }
        let uar_page = offset >= init_segment::SIZE.next_multiple_of(PAGE_SIZE as usize) as u64;
        if self.core.function.fw.blueflame() {
            let mut blocks = Vec::new();
            if uar_page && Combiner::covers(offset) {
                for (i, word) in data.as_chunks::<4>().0.iter().enumerate() {
                    self.side.combiner.store(offset.wrapping_add(4 * i as u64), *word, &mut blocks);
                }
                return self.rung(now, blocks);
            }
            match uar_page {
                true => self.side.combiner.flush_page(offset, &mut blocks),
                false => blocks = self.side.combiner.flush(),
            }
            self.rung(now, blocks);
        }
        if uar_page && data.len() == 8 {
            return self.doorbell64(now, offset, be32(data, 0), be32(data, 4));
        }
        for (i, word) in data.chunks_exact(4).enumerate() {
            let (at, value) = (offset.wrapping_add(4 * i as u64), be32(word, 0));
            if uar_page {
                self.doorbell32(now, at, value);
            } else {
                self.core.note_registers(now, at, word.len(), true);
                if let Some(bits) = self.side.registers.write(at, value) {
                    self.command_doorbell(now, bits);
                }
            }
        }
    }

    /// Decodes a 32-bit write to a UAR page: an EQ doorbell, or half of a 64-bit one.
    fn doorbell32(&mut self, now: Ps, offset: u64, value: u32) {
        match offset % PAGE_SIZE {
            EQ_ARM | EQ_UPDATE => self.eq_doorbell(now, offset, value),
            low if low % 8 == 0 => self.side.half = Some((offset, value)),
            _ => match self.side.half.take() {
                Some((at, first)) if at + 4 == offset => self.doorbell64(now, at, first, value),
                _ => self.core.answer_mistake(now, || {
                    let page = uar_of(offset);
                    let found =
                        format!("a second half at offset {:#x}, and no first half", offset % PAGE_SIZE);
                    let expected = "8 bytes at once, or both halves in order";
                    Finding::new(page, "doorbell", found, expected, &rules::DOORBELL_WHOLE)
                }),
            },
        }
    }

    /// Whether an object's doorbell may be rung in the UAR page of `offset`: it has one page, so that a program can't
    /// ring for objects of the kernel or of other programs (PRM "UAR Page Format"). `page` is `None` if there is no
    /// such object, which is then reported elsewhere.
    pub(crate) fn may_ring(
        &mut self,
        now: Ps,
        page: Option<u32>,
        offset: u64,
        kind: &'static str,
        number: u32,
    ) -> bool {
        let here = u32::try_from(offset / PAGE_SIZE).unwrap_or(u32::MAX);
        match page {
            Some(page) if page != here => {
                self.core.answer_mistake(now, || {
                    let (found, expected) =
                        (format!("a doorbell in page {here:#x}"), format!("page {page:#x}"));
                    Finding::new(Subject::new(kind, number), "uar_page", found, expected, &rules::UAR_OWN)
                });
                false
            }
            _ => true,
        }
    }

    /// Whether the driver has disabled the function. It has let go of nothing by itself then: what is rung is no mistake.
    pub(crate) fn is_disabled(&self) -> bool {
        self.side.registers.mode() == init_segment::NIC_INTERFACE_DISABLED
    }

    /// Decodes a 64-bit write to a UAR page: CQ arm or send doorbell.
    fn doorbell64(&mut self, now: Ps, offset: u64, first: u32, second: u32) {
        let index = u32::try_from(offset / PAGE_SIZE).unwrap_or(u32::MAX);
        if self.core.function.fw.icm.uars.get(index).is_none() {
            if self.is_disabled() {
                return;
            }
            return self.core.answer_mistake(now, || not_allocated(offset));
        }
        match offset % PAGE_SIZE {
            CQ_DOORBELL => {
                let mut db = uar::CqDoorbell::new();
                db.bytes_mut()[..4].copy_from_slice(&first.to_be_bytes());
                let solicited = db.get(uar::CqDoorbell::SOLICITED) == 1;
                let consumer = db.get(uar::CqDoorbell::CONSUMER_INDEX);
                let cqn = Cqn(second & 0xff_ffff);
                let page = self.core.function.fw.icm.cqs.get(cqn.0).map(|cq| cq.ctx.get(Cqc::UAR_PAGE));
                if self.may_ring(now, page, offset, "CQ", cqn.0) {
                    let sequence = db.get(uar::CqDoorbell::CMD_SN) as u8;
                    self.core.note(now, Event::Armed { cqn, consumer, sequence, solicited });
                    self.core.cq_arm(now, cqn, consumer, solicited);
                }
            }
            at if at >= RECORDLESS_DOORBELL && at % SEND_DOORBELL_STEP == 0 => {
                if at >= SEND_DOORBELL {
                    self.side.rests.begin(offset);
                }
                if let Some(qpn) = self.rings_for(now, offset, second) {
                    let begin = (u64::from(first) << 32 | u64::from(second)).to_be_bytes();
                    if !self.counts_itself(qpn, &begin) && at < SEND_DOORBELL {
                        return self.core.answer_mistake(now, || {
                            let expected = "from 0x800 on, as the queue pair has a doorbell record";
                            let found = format!("{at:#x}");
                            Finding::new(Subject::qp(qpn), "offset", found, expected, &rules::DOORBELL_PLACE)
                        });
                    }
                    let at = self.core.chip.units.store(now, 8);
                    let blocks = if names_wqe(&begin) { copy_blocks(&begin) } else { 0 };
                    let event = Event::Doorbell { qpn, index: copy_index(&begin), blocks };
                    self.core.note_job(now, at, self.core.chip.timing.doorbell(), event);
                    self.core.ring(at, qpn, HcaEvent::SendDoorbell(qpn));
                }
            }
            _ if self.side.rests.goes_on(offset) => {}
            at => {
                self.core.answer_mistake(now, || {
                    let expected = "0x20, 0x40 and 0x48, or from 0x800 in steps of 0x100";
                    Finding::new(
                        uar_of(offset),
                        "offset",
                        format!("{at:#x}"),
                        expected,
                        &rules::DOORBELL_PLACE,
                    )
                });
            }
        }
    }

    /// Stores to send registers are complete: each block is the copy of a WQE, or a doorbell.
    fn rung(&mut self, now: Ps, blocks: Vec<Block>) {
        for block in blocks {
            let (at, bytes) = (block.at, &block.bytes);
            match block.copy() {
                Some(copy) => {
                    if let Some(qpn) = self.send_register(now, at, be32(copy, 4)) {
                        self.counts_itself(qpn, copy);
                        let time = self.core.chip.units.store(now, copy.len());
                        let (index, took) = (copy_index(copy), self.core.chip.timing.doorbell());
                        self.core.note_job(now, time, took, Event::BlueFlame { qpn, index });
                        self.core.ring(time, qpn, HcaEvent::BlueFlame(qpn, copy.into()));
                    }
                }
                None if bytes.len() < 8 => self.doorbell32(now, at, be32(bytes, 0)),
                None => self.doorbell64(now, at, be32(bytes, 0), be32(bytes, 4)),
            }
        }
    }

    /// The queue pair that a store to a send register names by the second word of its WQE, if it may be rung there.
    #[inline]
    fn send_register(&mut self, now: Ps, offset: u64, second: u32) -> Option<Qpn> {
        let index = u32::try_from(offset / PAGE_SIZE).unwrap_or(u32::MAX);
        if self.core.function.fw.icm.uars.get(index).is_none() {
            self.core.answer_mistake(now, || not_allocated(offset));
            return None;
        }
        self.rings_for(now, offset, second)
    }

    /// The same of a page that is allocated.
    #[inline]
    fn rings_for(&mut self, now: Ps, offset: u64, second: u32) -> Option<Qpn> {
        let qpn = Qpn(second >> 8);
        let page = self.core.function.fw.icm.qps.get(qpn.0).map(|qp| qp.ctx.get(Qpc::UAR_PAGE));
        if page.is_none() {
            self.core.answer_mistake(now, || nobodys_doorbell(Subject::qp(qpn), "qpn"));
            return None;
        }
        self.may_ring(now, page, offset, "QP", qpn.0).then_some(qpn)
    }

    /// The begin of a WQE came with its doorbell: a send queue without a doorbell record goes up to its end. Returns whether it has none.
    fn counts_itself(&mut self, qpn: Qpn, begin: &[u8]) -> bool {
        let Some(qp) = self.qps.get_mut(qpn.0) else { return false };
        let end = copy_index(begin).wrapping_add(copy_blocks(begin));
        // One that says nothing new is late.
        let is_new = |than: u16| end.wrapping_sub(than) < 1 << 15;
        if !names_wqe(begin) {
            qp.sq.rung = None;
        } else if qp.sq.rung.is_none_or(is_new) {
            qp.sq.rung = Some(end);
        }
        if !qp.params.has_record && is_new(qp.sq.posted) {
            qp.sq.posted = end;
        }
        !qp.params.has_record
    }

    /// A packet arrived at a port. Returns when its place in the input buffer is free.
    #[inline(always)]
    pub(crate) fn arrive(&mut self, now: Ps, port: u8, mut packet: Packet) -> Ps {
        self.prioritise(port, &mut packet);
        if self.is_down_for(&packet) {
            let nic = &mut self.core.function.fw.nic;
            nic.received_down = nic.received_down.wrapping_add(1);
            return now;
        }
        if !self.is_for_transport(port, &packet) {
            return self.arrive_frame(now, port, packet);
        }
        if self.core.looks_at_arrivals() && !self.goes_up(now, port, &packet) {
            return now;
        }
        match self.take_in(now, port, packet) {
            Ok((at, arrived)) => {
                self.core.schedule(at, HcaEvent::Receive(arrived));
                at
            }
            Err(at) => at,
        }
    }

    /// Whether the adapter takes no such packets.
    #[inline]
    fn is_down_for(&self, packet: &Packet) -> bool {
        packet.is_frame() && self.core.function.fw.nic.is_down() && !packet.is_control()
    }

    /// Puts a frame that arrives at a port on the priority that it has there.
    #[inline]
    fn prioritise(&self, port: u8, packet: &mut Packet) {
        if let Some(ethernet) = self.core.chip.managed.port(port).and_then(|port| port.ethernet()) {
            packet.prioritise(&ethernet.classes);
        }
    }

    /// Whether a packet that arrives at a port goes to the transport, past all tables.
    #[inline]
    pub(crate) fn hands_up(&self, port: u8, packet: &mut Packet) -> bool {
        self.prioritise(port, packet);
        !self.is_down_for(packet) && self.is_for_transport(port, packet) && !self.core.looks_at_arrivals()
    }

    /// The same without the event: returns the packet, and when it has passed the receive pipeline.
    ///
    /// # Errors
    /// It was dropped; its place is free then.
    #[inline(always)]
    pub(crate) fn take_in(&mut self, now: Ps, port: u8, packet: Packet) -> Result<(Ps, Arrived), Ps> {
        self.count_arrival(now, port, &packet);
        match Arrived::check(port, packet) {
            Ok(arrived) => {
                let (operation, payload) = (arrived.repr().operation, arrived.payload().len());
                let service = self.core.chip.timing.receive(operation, payload);
                let at = self.receive_time(now, arrived.repr(), payload, service);
                self.core.note_received(now, at, service, arrived.packet());
                Ok((at, arrived))
            }
            Err((packet, why)) => {
                self.note_drop(now, &packet, format_args!("{why}"));
                // What only the transport's header checks see is dropped in silence.
                if let Some((port, counter)) = self.core.chip.managed.port_mut(port).zip(why.counter()) {
                    counter.count(&mut port.counters);
                }
                Err(now)
            }
        }
    }

    /// A data packet arrived by a link at a port that takes no data yet (IBTA vol 1 7.2.7, Initialize).
    pub(crate) fn arrive_too_soon(&mut self, now: Ps, port: u8, packet: &Packet) {
        self.count_arrival(now, port, packet);
        self.note_drop(now, packet, format_args!("the port is not active"));
    }

    #[inline(always)]
    fn count_arrival(&mut self, now: Ps, port: u8, packet: &Packet) {
        self.core.capture(now, port, false, packet);
        if let Some(port) = self.core.chip.managed.port_mut(port) {
            match packet.is_multicast() {
                true => port.counters.rcv_multicast(packet.len()),
                false => port.counters.rcv(packet.len()),
            }
            count_frame(port, packet, Way::In { transport: true });
        }
    }

    fn note_drop(&mut self, now: Ps, packet: &Packet, why: std::fmt::Arguments<'_>) {
        tracing::debug!(hca = self.core.chip.name, %now, "packet dropped: {why}");
        self.core.note_dropped(now, packet);
    }

    /// When what a packet that arrives does is done and, if it writes, visible to the host.
    #[inline(always)]
    fn receive_time(&mut self, now: Ps, repr: &Repr, payload: usize, service: Ps) -> Ps {
        let core = &mut self.core;
        let hands_on = repr.operation.is_answered_by_itself();
        let mut inbound = Inbound { bytes: payload, hands_on, ..Inbound::default() };
        match repr.operation {
            operation if takes_receive(operation) => {
                (inbound.takes_receive, inbound.completes) = (true, true);
            }
            Operation::WriteFirst | Operation::WriteOnly => {
                inbound.to = repr.reth.map(|reth| span(&core.function.fw.icm, reth.rkey, reth.va, payload));
            }
            operation if operation.is_response() => {
                if let Some(qp) = self.qps.get(repr.dest_qp.0) {
                    let Expected { bytes, to, completes, wqe } =
                        qp.expect_response(&core.view(), repr, payload);
                    inbound = Inbound { bytes, to, completes, wqe, ..inbound };
                }
            }
            _ => {}
        }
        core.chip.units.receive(now, repr.dest_qp.0, service, inbound)
    }

    #[inline(always)]
    pub(crate) fn handle(&mut self, now: Ps, event: HcaEvent) {
        match self.core.chip.script.is_some() {
            false => self.handle_now(now, event),
            true => self.handle_on_script(now, event),
        }
        let entries = self.core.function.walked.charge();
        if entries > 0 {
            self.core.chip.units.walk(now, entries);
        }
        self.go_on_with_requests(now);
    }

    pub(crate) fn handle_now(&mut self, now: Ps, event: HcaEvent) {
        if self.core.function.outstanding.is_some() && !std::mem::take(&mut self.side.planned) {
            return self.plan_first(now, event);
        }
        match event {
            HcaEvent::Command(slot) => self.command(now, slot),
            HcaEvent::FetchCommand(fetch) => self.fetch_command(now, *fetch),
            HcaEvent::ExecuteCommand(mut fetch) => self.execute_command(now, &mut fetch),
            HcaEvent::CommandDone(output) => self.command_done(now, output),
            HcaEvent::SendDoorbell(qpn) => self.send_doorbell(now, qpn),
            HcaEvent::BlueFlame(qpn, copy) => self.blueflame(now, qpn, copy),
            turn @ (HcaEvent::SendTurn(_) | HcaEvent::ResponseTurn(_) | HcaEvent::DynamicTurn(_)) => {
                self.try_turn(now, turn);
            }
            HcaEvent::DynamicIdle(peer) => self.dynamic_idle(now, peer),
            HcaEvent::DynamicDrain(drain) => self.dynamic_drain(now, drain),
            HcaEvent::DynamicFault(told) => self.dynamic_fault(now, told),
            HcaEvent::AckTimeout(qpn) => self.ack_timeout(now, qpn),
            HcaEvent::ErrorPoll(qpn) => self.error_poll(now, qpn),
            HcaEvent::RnrTimeout(qpn, generation) => self.rnr_timeout(now, qpn, generation),
            HcaEvent::Receive(arrived) => {
                self.receive(now, &arrived);
                arrived.retire();
            }
            HcaEvent::ReceiveCopy(qpn, arrived) => {
                self.receive_copy(now, qpn, &arrived);
                arrived.retire();
            }
            HcaEvent::QueueFrame(queued) => self.queue_frame(now, *queued),
            HcaEvent::MergeFrame(frame) => self.merge_frame(now, *frame),
            HcaEvent::MergeTimeout(rqn, number) => self.merge_timeout(now, rqn, number),
            HcaEvent::FlushFrames(rqn) => self.core.flush_more(now, rqn),
            HcaEvent::Depart(departing) => self.depart(now, departing),
            HcaEvent::Sent(qpn) => self.sent(now, qpn),
            HcaEvent::CqModeration(cqn, generation) => self.core.cq_moderation(now, cqn, generation),
            HcaEvent::CqSession(cqn, generation) => self.core.cq_session(now, cqn, generation),
            HcaEvent::Interrupt(vector) => self.interrupt(now, vector),
            HcaEvent::Scripted(held) => self.release(now, *held),
            HcaEvent::PortTurn(port) => self.port_turn(now, port),
            HcaEvent::GroupTurn => self.core.group_turn(now),
            HcaEvent::Resume => self.resume(now),
            HcaEvent::Answer(port, packet) => {
                self.core.note_sent(now, &packet);
                self.core.transmit(now, port, Operation::SendOnly, packet);
            }
            HcaEvent::AgentPoll(port) => self.agent_poll(now, port),
            HcaEvent::LinkUp(port) => self.core.chip.out.port_changed(port, false),
            HcaEvent::PortChange(port, sub_type) => self.core.push_port_change(now, port, sub_type),
            HcaEvent::Module(port, change) => self.core.push_module_event(now, port, change),
            HcaEvent::Heat(sensors) => self.core.push_temperature_warning(now, sensors),
            HcaEvent::Traces => self.core.write_traces(now),
            HcaEvent::TakenAway => self.taken_away(now),
            HcaEvent::SyncReset(what) => self.core.push_sync_reset(now, what),
            HcaEvent::SyncResetLate(wait) => self.sync_reset_late(now, wait),
            HcaEvent::TracerFree => self.core.tracer_event(now, tracer_event::OWNERSHIP),
        }
    }
}
