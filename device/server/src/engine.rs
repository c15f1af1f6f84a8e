//! The event loop: one thread that serves every front end and runs the model.
//!
//! Each round: wait for descriptors or for the model's next event; let front ends do what their hosts ask for;
//! run the model up to a quantum ahead; signal the interrupts it raised. Nothing in a round
//! blocks on a host: what an adapter asks of memory without a descriptor is answered in a later round.

mod exchange;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use hca_model::link::LinkMessage;
use hca_model::{Disposal, Effect, HcaId, LinkOffer, TunnelEvent, TunnelId, World};
use hca_trace::Observer;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use serde_json::{Value, json};

use crate::closer::Closer;
use crate::counters;
use crate::diagnoses::Diagnoses;
use crate::faults::Faults;
use crate::front_end::FrontEnd;
use crate::function::{Endpoint, Function};
use crate::inspect;
use crate::links::Links;
use crate::listener::Listener;
use crate::model;
use crate::operator::Operator;
use crate::outside::{self, Outsides};
use crate::pacing::Pacer;
use crate::recording::{self, Header, Record, Recorder, Seam};
use crate::rounds::Rounds;
use crate::scrape;
use crate::slots::Slots;
use crate::steps;
use crate::topology::{Hca, Part, Topology, Worker};
use crate::trim::Trim;
use crate::tunnel::keys::Keys;
use crate::tunnel::{Event, Tunnels};
use crate::workers::Joints;

/// How long a store to a BlueFlame register waits for the one that continues it. A guest's stores come 5 to 20 us
/// apart; whoever rings a plain doorbell pays this.
const COMBINE_WAIT: Duration = Duration::from_micros(50);

/// One adapter with its front end.
#[derive(Debug)]
struct Slot {
    function: Function,
    front_end: Box<dyn FrontEnd>,
    /// Stores of the host that wait for their continuation.
    combining: Option<Combining>,
}

/// Stores to BlueFlame registers that wait for their continuation.
#[derive(Debug, Clone, Copy)]
struct Combining {
    /// Stores seen so far.
    stores: u64,
    /// When they are given up.
    until: Instant,
}

/// Which part of a topology an engine serves.
#[derive(Debug, Clone, Default)]
pub struct Role {
    /// The process of the topology, if it has any.
    pub process: Option<String>,
    /// What it shares with others; needed if a link joins it to another.
    pub keys: Keys,
}

/// Everything the server has.
pub struct Engine {
    world: World,
    links: Links,
    tunnels: Option<Tunnels>,
    /// Links to other software.
    outsides: Option<Outsides>,
    /// Links to other workers.
    joints: Option<Joints>,
    pacer: Pacer,
    rounds: Rounds,
    slots: Vec<Slot>,
    operator: Operator,
    stop: OwnedFd,
    trim: Trim,
    observer: Option<Observer>,
    diagnoses: Diagnoses,
    faults: Faults,
    notes: Slots,
    /// Names of the adapters, and bytes of each in a capture; until there is an observer.
    captures: Vec<(String, u64)>,
    /// Whether what reaches the adapters is recorded.
    seam: Seam,
}

impl Engine {
    /// Builds the model, and a front end for each adapter.
    ///
    /// `front_end` makes that of an adapter. `control` is where the control socket is to be, if there shall be one. The
    /// engine ends when `stop` becomes readable.
    ///
    /// # Errors
    /// If the model refuses the topology, a front end can't be made, a socket can't be had, or a key is missing.
    pub fn new(
        topology: &Topology,
        role: &Role,
        mut front_end: impl FnMut(&Hca) -> anyhow::Result<Box<dyn FrontEnd>>,
        control: Option<&Path>,
        stop: OwnedFd,
    ) -> anyhow::Result<Engine> {
        let part = topology.part(role.process.as_deref())?;
        let tunnels = Tunnels::open(&part, &topology.fabric.tunnel, &role.keys)?;
        let outsides = Outsides::open(&part)?;
        let operator = Operator::new(control.map(Listener::bind).transpose()?);
        let pacer = Pacer::new(&topology.time);
        let pacer = if outsides.is_some() { pacer.with_strangers() } else { pacer };
        Ok(Engine {
            tunnels,
            outsides,
            operator,
            ..Engine::build(topology, &part, &mut front_end, pacer, stop)?
        })
    }

    /// The engine of a worker, with its links to others. Model time began at `began`.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub(crate) fn worker(
        topology: &Topology,
        worker: &Worker,
        mut front_end: impl FnMut(&Hca) -> anyhow::Result<Box<dyn FrontEnd>>,
        joints: Joints,
        began: Instant,
        stop: OwnedFd,
    ) -> anyhow::Result<Engine> {
        let part = topology.part_of(worker)?;
        let pacer = Pacer::since(began, &topology.time);
        let mut engine = Engine::build(topology, &part, &mut front_end, pacer, stop)?;
        let workers = topology.workers();
        if let Some(place) = workers.iter().position(|one| one == worker) {
            engine.faults.set_place(place, workers.len());
        }
        engine.world.set_trains_out(true);
        Ok(Engine { joints: Some(joints), ..engine })
    }

    /// Model time has gone on for so long already, as the host counts it: for who looks at a server that is old. Before it serves.
    pub fn set_age(&mut self, age: Duration) {
        self.pacer.set_age(age);
    }

    fn build(
        topology: &Topology,
        part: &Part<'_>,
        front_end: &mut dyn FnMut(&Hca) -> anyhow::Result<Box<dyn FrontEnd>>,
        pacer: Pacer,
        stop: OwnedFd,
    ) -> anyhow::Result<Engine> {
        let (mut world, links) = steps::world(topology, part)?;
        let faults = Faults::new(topology, part, &mut world);
        let mut slots = Vec::new();
        let functions = steps::functions(part).into_iter().zip(part.hcas()).enumerate();
        for (number, (function, (_, hca))) in functions {
            let closer = Closer::default();
            world.dispose(HcaId(number), Disposal::by(move |objects| closer.give_objects(objects)));
            slots.push(Slot { function, front_end: front_end(hca)?, combining: None });
        }
        Ok(Engine {
            world,
            links,
            tunnels: None,
            outsides: None,
            joints: None,
            pacer,
            rounds: Rounds::new(&topology.time),
            slots,
            operator: Operator::default(),
            stop,
            trim: Trim::default(),
            observer: None,
            diagnoses: Diagnoses::default(),
            faults,
            notes: Slots::default(),
            captures: part
                .hcas()
                .map(|(host, hca)| (format!("{}/{}", host.name, hca.name), hca.capture_bytes))
                .collect(),
            seam: Seam::Off,
        })
    }

    /// Records all that reaches the adapters, from power-on: to be called before anything is served. `text` is that of the topology,
    /// whose management key [is drawn](Topology::draw_management_key).
    ///
    /// # Errors
    /// The file can't be made.
    pub fn record(
        &mut self,
        options: &recording::Options,
        (topology, text): (&Topology, &str),
        process: Option<&str>,
    ) -> anyhow::Result<()> {
        let adapters = self.slots.iter().map(|slot| slot.function.name().to_owned()).collect();
        let header = Header {
            softhca: env!("CARGO_PKG_VERSION").into(),
            topology: text.into(),
            process: process.map(str::to_owned),
            check: self.world.is_checked(),
            m_key: topology.management_key(),
            adapters,
        };
        let seam = Seam::Records(Recorder::begin(options, &header)?);
        // Payload is read when it is sent, whether somebody looks at packets or not.
        self.world.set_trains(false);
        self.world.hash_trace();
        self.slots.iter_mut().for_each(|slot| slot.function.set_seam(seam.clone()));
        self.pacer.set_seam(seam.clone());
        self.seam = seam;
        Ok(())
    }

    /// Ends the recording, if there is one. Returns what is to be printed of it.
    pub fn end_recording(&mut self) -> Vec<String> {
        match std::mem::take(&mut self.seam) {
            Seam::Records(recorder) => recorder.end(&self.world),
            _ => Vec::new(),
        }
    }

    /// Looks on as the options ask for.
    ///
    /// # Errors
    /// A file can't be made, or there is no port of a name that was given.
    pub fn observe(&mut self, options: &hca_trace::Options) -> anyhow::Result<()> {
        let mut observer = Observer::new(options, &mut self.world)?;
        observer.set_quotas(std::mem::take(&mut self.captures));
        self.observer = Some(observer);
        Ok(())
    }

    /// Offers metrics at an address. Returns its port, if it has one.
    ///
    /// # Errors
    /// The address can't be had; the message names it.
    pub fn offer_metrics(&mut self, address: &scrape::Address) -> anyhow::Result<Option<u16>> {
        self.operator.offer_metrics(address)
    }

    /// Ends the files of what was looked at. Returns what is to be printed of it.
    ///
    /// # Errors
    /// Writing failed.
    pub fn end_observing(&mut self) -> anyhow::Result<Vec<String>> {
        let links = self.links.list(&self.world, |link| self.is_joined(link));
        let Some(mut observer) = self.observer.take() else { return Ok(Vec::new()) };
        observer.note(self.world.now(), HcaId(0), "links", &links)?;
        observer.finish(&mut self.world)
    }

    /// Takes what was diagnosed, and writes it into the trace.
    ///
    /// # Errors
    /// Writing failed.
    fn take_diagnoses(&mut self) -> anyhow::Result<()> {
        let before = self.diagnoses.count();
        self.seam.may_come(|| Record::Diagnose);
        steps::check(&mut self.world, self.slots.iter_mut().map(|slot| &mut slot.function));
        let Self { world, observer, slots, .. } = self;
        let mut written = Ok(());
        self.diagnoses.take(world, |diagnosis, said| {
            if let Some(slot) = slots.get_mut(diagnosis.function.hca.0) {
                slot.function.diagnosed(&diagnosis.saying.to_string());
            }
            if let (Some(observer), Ok(())) = (observer.as_mut(), &written) {
                written = observer.note(diagnosis.at, diagnosis.function.hca, "diagnosis", said);
            }
        });
        self.seam.has_come(self.diagnoses.count() > before);
        written
    }

    fn look(&mut self) {
        let written = self.take_diagnoses();
        if let Some(observer) = &mut self.observer
            && let Err(why) = written.and_then(|()| observer.take(&mut self.world))
        {
            tracing::error!("{why:#}: nothing more is written");
            self.observer = None;
        }
        let news = self.observer.as_mut().map(Observer::news).unwrap_or_default();
        news.into_iter().for_each(|line| tracing::warn!("{line}"));
        if let Seam::Records(recorder) = &self.seam {
            recorder.look(&self.world).into_iter().for_each(|line| tracing::warn!("{line}"));
        }
    }

    /// Serves until told to stop.
    ///
    /// # Errors
    /// If the system refuses to wait; errors of hosts only end their connections.
    pub fn run(&mut self) -> anyhow::Result<()> {
        let mut more = false;
        loop {
            let timeout = if more || self.has_work() { Some(Duration::ZERO) } else { self.sleep() };
            let may_sleep = timeout != Some(Duration::ZERO) && self.joints.as_ref().is_none_or(Joints::sleep);
            let ready = self.wait(if may_sleep { timeout } else { Some(Duration::ZERO) }).context("poll")?;
            self.joints.iter().for_each(Joints::wake);
            if ready.stop {
                self.tunnels.iter_mut().for_each(Tunnels::close);
                return Ok(());
            }
            self.rounds.begin();
            self.pacer.begin_round();
            if self.pacer.move_start(&mut self.world)
                && let Some(observer) = &mut self.observer
            {
                observer.start_moved(&self.world);
            }
            let left = self.serve_hosts(&ready);
            if ready.operator || self.operator.has_work() {
                self.serve_operator();
            }
            let waiting = self.take_from_tunnels() | self.take_from_outside(ready.outside);
            let Some(heard) = self.take_from_workers(ready.joints) else { return Ok(()) };
            self.end_combining();
            self.take_answers();
            more = self.pacer.run(&mut self.world) || waiting || heard || left;
            self.signal();
            for slot in &mut self.slots {
                self.notes.take(&mut self.world, &mut slot.function);
            }
            // Of a host that answers in the same breath there may be answers now.
            more |= self.take_answers();
            self.look();
            self.give_to_tunnels();
            self.give_to_workers();
            self.trim.look(model::objects(&self.world, self.slots.len()));
            self.rounds.end();
        }
    }

    /// How long there is nothing to do if no descriptor has something; `None`: for ever.
    fn sleep(&self) -> Option<Duration> {
        let until = self.slots.iter().filter_map(|slot| slot.combining).map(|c| c.until).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let tunnels = self.tunnels.as_ref().map(Tunnels::sleep);
        let outsides = self.outsides.as_ref().and_then(Outsides::sleep);
        let answers = self.slots.iter().filter_map(|slot| slot.function.deadline()).min();
        let answers = answers.map(|until| until.saturating_duration_since(Instant::now()));
        left.into_iter()
            .chain(answers)
            .chain(self.operator.sleep())
            .chain(self.pacer.sleep(&self.world))
            .chain(self.seam.recorder().and_then(Recorder::sleep))
            .chain(tunnels)
            .chain(outsides)
            .min()
    }

    /// Lets adapters go on for whose accesses to memory without a descriptor answers came. Returns true if there are any.
    ///
    /// An answer that is here goes before what is due and has not run: no timer runs out for what only the server was late with.
    fn take_answers(&mut self) -> bool {
        let mut any = false;
        for slot in &mut self.slots {
            if slot.function.take_answers() {
                any = true;
                let now = self.pacer.arrival(&self.world);
                self.world.memory_changed(now, slot.function.place());
            }
        }
        any
    }

    /// Lets the model have what came by tunnels. Returns true if more waits.
    fn take_from_tunnels(&mut self) -> bool {
        let Some(tunnels) = &mut self.tunnels else { return false };
        let (events, more) = tunnels.run();
        if !events.is_empty() {
            self.seam.keep(|| Record::Arrivals);
            let now = self.pacer.catch_up(&mut self.world);
            for (link, event) in events {
                let tunnel = TunnelId(usize::from(link));
                match event {
                    Event::Packet(bytes) => {
                        self.seam.keep(|| Record::Packet { link, data: bytes.clone() });
                        self.world.tunnel_receive(now, tunnel, bytes);
                    }
                    Event::Light(light) => {
                        self.seam.keep(|| Record::light(link, light));
                        self.world.tunnel_link(now, tunnel, light.and_then(model::port_link));
                    }
                    Event::Joined | Event::Lost(_) => {}
                }
            }
        }
        more
    }

    /// Lets the model have what came from other software. Returns true if more waits.
    fn take_from_outside(&mut self, ready: bool) -> bool {
        let Some(outsides) = &mut self.outsides else { return false };
        let (events, more) = outsides.run(ready);
        if !events.is_empty() {
            self.seam.keep(|| Record::Frames);
            let now = self.pacer.arrival(&self.world);
            for (link, event) in events {
                let tunnel = TunnelId(usize::from(link));
                match event {
                    outside::Event::Frame(frame) => {
                        self.seam.keep(|| Record::Frame { link, data: frame.clone() });
                        self.world.tunnel_frame(now, tunnel, frame);
                    }
                    outside::Event::Light(lit) => {
                        let light = self.links.of_tunnel(link).filter(|_| lit).map(model::full_light);
                        self.seam.keep(|| Record::light(link, light.map(model::light)));
                        self.world.tunnel_link(now, tunnel, light);
                    }
                }
            }
        }
        more
    }

    /// Sends what the model has for other processes, and for other software.
    fn give_to_tunnels(&mut self) {
        let Self { tunnels, outsides, world, seam, .. } = self;
        if tunnels.is_none() && outsides.is_none() {
            return;
        }
        seam.may_come(|| Record::Drain);
        let leaving = steps::leaving(world, seam);
        seam.has_come(false);
        for TunnelEvent { tunnel, message, .. } in leaving {
            let Ok(link) = u16::try_from(tunnel.0) else { continue };
            if let Some(outsides) = outsides.as_mut().filter(|outsides| outsides.has(link)) {
                match message {
                    // What was spoiled on the way is lost on the other side's wire.
                    LinkMessage::Packet(packet) => {
                        if let Some(frame) = packet.packet.into_frame() {
                            outsides.send(link, frame);
                        }
                    }
                    // Nobody outside sees light, or counts credits.
                    LinkMessage::Light(_) | LinkMessage::Credit { .. } => {}
                }
                continue;
            }
            let Some(tunnels) = tunnels else { continue };
            match message {
                LinkMessage::Packet(packet) => tunnels.send(link, packet.packet.into_bytes()),
                LinkMessage::Light(light) => {
                    let port = light.offer.and_then(LinkOffer::best);
                    tunnels.set_light(link, port.map(model::light));
                }
                // Other processes keep time by other clocks: no credits pass between them.
                LinkMessage::Credit { .. } => {}
            }
        }
        tunnels.iter_mut().for_each(Tunnels::flush);
        outsides.iter_mut().for_each(Outsides::flush);
    }

    /// Gives up stores that were not continued in time: they are doorbells.
    fn end_combining(&mut self) {
        for (i, slot) in self.slots.iter_mut().enumerate() {
            let Some(stores) = self.world.combining(HcaId(i)) else {
                slot.combining = None;
                continue;
            };
            let now = Instant::now();
            match slot.combining {
                Some(c) if c.stores == stores && c.until <= now => {
                    self.seam.keep(|| Record::StoresEnd { hca: i as u16 });
                    let now = self.pacer.catch_up(&mut self.world);
                    self.world.flush_stores(now, HcaId(i));
                    slot.combining = None;
                }
                Some(c) if c.stores == stores => {}
                _ => slot.combining = Some(Combining { stores, until: now + COMBINE_WAIT }),
            }
        }
    }

    fn has_work(&self) -> bool {
        self.slots.iter().any(|slot| slot.front_end.has_work()) || self.operator.has_request()
    }

    /// Waits for something to do.
    fn wait(&self, timeout: Option<Duration>) -> nix::Result<Ready> {
        let mut fds = vec![PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
        if let Some(tunnels) = &self.tunnels {
            fds.push(PollFd::new(tunnels.as_fd(), PollFlags::POLLIN));
        }
        let joints_begin = fds.len();
        if let Some(joints) = &self.joints {
            joints.watch(&mut |fd| fds.push(PollFd::new(fd, PollFlags::POLLIN)));
        }
        let tunnels_end = fds.len();
        if let Some(outsides) = &self.outsides {
            outsides.watch(&mut |fd, events| fds.push(PollFd::new(fd, events)));
        }
        let outsides_end = fds.len();
        self.operator.watch(|fd, events| fds.push(PollFd::new(fd, events)));
        let operator_end = fds.len();
        let mut counts = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            let before = fds.len();
            slot.front_end.watch(&mut |watch| fds.push(PollFd::new(watch.fd, watch.events)));
            counts.push(before - operator_end..fds.len() - operator_end);
        }
        match ppoll(&mut fds, timeout.map(TimeSpec::from_duration), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        let events: Vec<bool> = fds.iter().map(|fd| fd.revents().is_some_and(|e| !e.is_empty())).collect();
        let any = |range| events.get::<std::ops::Range<usize>>(range).is_some_and(|e| e.contains(&true));
        Ok(Ready {
            stop: any(0..1),
            // Tunnels, and rings of other workers, are looked at in every round.
            joints: any(joints_begin..tunnels_end),
            outside: any(tunnels_end..outsides_end),
            operator: any(outsides_end..operator_end),
            hosts: events.get(operator_end..).unwrap_or_default().to_vec(),
            counts,
        })
    }

    /// Lets front ends work that have something to do. Returns true if there was no time for some.
    fn serve_hosts(&mut self, ready: &Ready) -> bool {
        let Self { slots, world, pacer, rounds, .. } = self;
        rounds.serve(slots.len(), |i| {
            let (slot, fds) = (slots.get_mut(i)?, ready.counts.get(i)?);
            let ready = ready.hosts.get(fds.clone()).unwrap_or_default();
            let busy = ready.contains(&true) || slot.front_end.has_work();
            busy.then(|| {
                let (began, events) = (Instant::now(), pacer.took());
                slot.front_end.serve(ready, &mut Endpoint::new(&mut slot.function, world, pacer));
                // The model's events are everybody's.
                began.elapsed().saturating_sub(pacer.took().saturating_sub(events))
            })
        })
    }

    fn serve_operator(&mut self) {
        let mut operator = std::mem::take(&mut self.operator);
        operator.serve(|cmd, request| self.answer(cmd, request));
        self.operator = operator;
    }

    /// What the control socket answers to a request: see [`crate::control`].
    ///
    /// # Errors
    /// What is wrong with the request, as text.
    pub fn answer(&mut self, cmd: &str, request: &Value) -> Result<Value, String> {
        if cmd == "link" || cmd == "fault" {
            self.seam.keep(|| Record::Control { request: request.to_string() });
            let now = self.pacer.catch_up(&mut self.world);
            return steps::operate(&mut self.world, (&mut self.links, &mut self.faults), now, request);
        }
        let of_each = |what: &dyn Fn(usize, &Slot) -> Value| {
            let hcas = self.slots.iter().enumerate().map(|(i, slot)| {
                let mut value = what(i, slot);
                if let Some(map) = value.as_object_mut() {
                    map.insert("name".into(), slot.function.name().into());
                    map.insert("attached".into(), slot.function.is_attached().into());
                }
                value
            });
            json!({ "hcas": hcas.collect::<Vec<_>>() })
        };
        match cmd {
            "ping" => Ok(json!({})),
            "resources" => Ok(of_each(&|i, _| model::resources(&self.world, HcaId(i)))),
            "stat" | "totals" => {
                let of = if cmd == "stat" { counters::counters } else { counters::totals };
                let mut all = of_each(&|i, _| of(&self.world, HcaId(i)));
                if let Some(map) = all.as_object_mut() {
                    let time = self.world.start().absolute_ns(self.world.now());
                    map.insert("time_ns".into(), time.into());
                    map.insert("lag_ns".into(), self.pacer.lag(&self.world).as_ns().into());
                    map.insert("engine".into(), self.rounds.report());
                    map.insert("waiting_events".into(), self.world.waiting_events().into());
                    let events = self.world.events_of_each().into_iter().map(counters::events);
                    let hcas = map.get_mut("hcas").and_then(Value::as_array_mut);
                    for (hca, events) in hcas.into_iter().flatten().zip(events) {
                        if let Some(hca) = hca.as_object_mut() {
                            hca.insert("events".into(), events);
                        }
                    }
                    map.insert("switches".into(), counters::switches(&self.world));
                    if let Some(outsides) = &self.outsides {
                        map.insert("outsides".into(), outsides.metrics());
                    }
                    if let Some(observer) = &self.observer {
                        map.insert("recordings".into(), observer.status());
                    }
                    if let Some(recorder) = self.seam.recorder() {
                        map.insert("recording".into(), recorder.status());
                    }
                }
                Ok(all)
            }
            "diagnoses" => {
                if let Err(why) = self.take_diagnoses() {
                    tracing::error!("{why:#}: nothing more is written");
                    self.observer = None;
                }
                Ok(self.diagnoses.answer(&self.world, request))
            }
            "coverage" => match self.observer.as_ref().and_then(Observer::coverage) {
                Some(coverage) => Ok(json!({ "coverage": coverage.json() })),
                None => Err("nothing is collected: start the server with --coverage".into()),
            },
            "slots" => Ok(self.notes.answer(&self.world, request)),
            "slot" => self.take_out(request),
            "inspect" => inspect::answer(&self.world, request),
            "links" => Ok(self.links.list(&self.world, |link| self.is_joined(link))),
            "metrics" => {
                let mut all = of_each(&|i, slot| {
                    let mut value = json!(slot.function.metrics());
                    if let Some(map) = value.as_object_mut() {
                        map.insert("dma_errors".into(), slot.function.dma_errors().into());
                        map.insert("diagnoses".into(), self.world.diagnoses(HcaId(i)).into());
                    }
                    value
                });
                if let (Some(map), Some(tunnels)) = (all.as_object_mut(), &self.tunnels) {
                    map.insert("tunnels".into(), tunnels.metrics());
                }
                if let (Some(map), Some(joints)) = (all.as_object_mut(), &self.joints) {
                    map.insert("joints".into(), joints.metrics());
                }
                Ok(all)
            }
            other => Err(format!(
                "unknown cmd {other:?}: ping, resources, metrics, stat, totals, diagnoses, inspect, coverage, fault, slots, slot, links or link are known"
            )),
        }
    }

    /// An adapter is out of its slot, says whoever has that: its host is let go of, and it has no power.
    fn take_out(&mut self, request: &Value) -> Result<Value, String> {
        let word = |key: &str| request.get(key).and_then(Value::as_str);
        let (Some(at), Some("empty")) = (word("at"), word("state")) else {
            return Err("slot: \"at\" is needed, and \"state\":\"empty\"".into());
        };
        let Self { slots, world, pacer, .. } = self;
        let Some(slot) = slots.iter_mut().find(|slot| slot.function.name() == at) else {
            return Err(format!("at: {at} is not served here"));
        };
        let Slot { function, front_end, .. } = slot;
        front_end.take_out(&mut Endpoint::new(function, world, pacer), "taken out of its slot");
        Ok(json!({}))
    }

    /// Whether the far side of a link that leaves this process is there.
    fn is_joined(&self, link: u16) -> bool {
        self.tunnels.as_ref().is_some_and(|tunnels| tunnels.is_joined(link))
            || self.outsides.as_ref().is_some_and(|outsides| outsides.is_lit(link))
            || self.joints.as_ref().is_some_and(|joints| joints.is_joined(link))
    }

    /// Delivers the interrupts the model has raised.
    fn signal(&mut self) {
        if !self.world.has_effects() {
            return;
        }
        self.seam.keep(|| Record::Signal);
        for effect in self.world.drain() {
            let Effect::Msix { hca, .. } = effect;
            let function = self.slots.get_mut(hca.0).map(|slot| &mut slot.function);
            steps::deliver(&mut self.world, function, effect);
        }
    }
}

/// What `poll` found.
struct Ready {
    stop: bool,
    /// Other workers' bells, or the supervisor.
    joints: bool,
    /// Other software.
    outside: bool,
    operator: bool,
    /// One flag for each descriptor of the front ends, in the order of the slots.
    hosts: Vec<bool>,
    /// Which of them are whose.
    counts: Vec<std::ops::Range<usize>>,
}
