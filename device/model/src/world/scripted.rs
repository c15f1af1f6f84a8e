//! Faults on script joined: which there are, and what happens at its time or behind a reset.

use hca_firmware::FunctionId;
use hca_firmware::pcie::ErrorMessage;
use hca_spec::ids::Lid;
use hca_spec::init_segment::NIC_INTERFACE_DISABLED;
use hca_spec::mad::{METHOD_GET, METHOD_SET, Mad, PortInfo, attr};

use super::manager::smp;
use super::{Class, Event, World};
use crate::faults::{
    Fault, FaultId, FaultReport, Lasting, PacketAction, PcieEvent, PcieLink, Place, PortChange, Restart,
    Script, SlotEvent, TimeAction, What, flip_bits,
};
use crate::ground::node::{FunctionRef, HcaId, PortRef};
use crate::ground::random::SplitMix64;
use crate::ground::time::Ps;
use crate::link_layer::Packet;

/// How often firmware that fails is looked at, whether the driver has asked for a reset.
const LOOK: Ps = Ps::from_ms(10);
/// The register of the driver's mode, and where that is in it.
const MODE: (u64, u32) = (0x14, 8);

/// Something on script that is due.
#[derive(Debug)]
pub(super) enum Due {
    /// A fault whose time has come.
    Fault(FaultId),
    /// A look at firmware that fails.
    Firmware,
    /// The cable of a link is put in again at that end.
    Replug(usize, PortRef),
    /// What is in the cage of a port can be used again.
    Mend(u8),
    /// The chip is as hot as at rest.
    Cool,
    /// A link has its lanes back.
    Widen(usize),
    /// The PCI Express link is as it should be.
    Retrain,
    /// The adapter is put into its slot again.
    Insert,
    /// A packet that comes late by that port.
    Packet(u8, Box<Packet>, Place),
}

impl World {
    /// From now on that goes wrong at an adapter. `None`: there is no such adapter.
    pub fn add_fault(&mut self, now: Ps, hca: HcaId, fault: Fault) -> Option<FaultId> {
        self.rouse();
        self.settle_all();
        self.now = self.now.max(now);
        let (time, id) = (matches!(fault.what, What::Time { .. }), FaultId(self.faults_added));
        let of_memory = matches!(fault.what, What::Dma { .. });
        let at = fault.trigger.from;
        self.chip_mut(hca)?.script.get_or_insert_default().add(id, fault);
        self.faults_added = self.faults_added.wrapping_add(1);
        if of_memory {
            let functions = self.chip(hca).map_or(0, |chip| chip.functions);
            for function in (0..functions).map(FunctionId) {
                self.act(self.now, FunctionRef { hca, function }, |function, _| function.spoil_memory());
            }
        }
        if time {
            self.push_due(at, hca, Due::Fault(id));
        }
        self.allow_trains_at(hca);
        Some(id)
    }

    /// That does not go wrong any more; what has gone wrong stays so. `false`: there is no such fault.
    pub fn remove_fault(&mut self, id: FaultId) -> bool {
        self.rouse();
        self.hcas.iter_mut().any(|hca| hca.chip.script.as_mut().is_some_and(|script| script.remove(id)))
    }

    /// All faults, with the adapters at which they happen.
    pub fn faults(&self) -> Vec<(HcaId, FaultReport)> {
        let of = |(i, script): (usize, &Script)| {
            script.reports().map(|report| (HcaId(i), report)).collect::<Vec<_>>()
        };
        let scripts = self.hcas.iter().map(|hca| hca.chip.script.as_deref());
        scripts.enumerate().filter_map(|(i, script)| Some((i, script?))).flat_map(of).collect()
    }

    /// Whether a function is off the bus on script: its configuration is all ones, and what is written there is lost.
    pub fn is_off_the_bus(&self, now: Ps, at: impl Into<FunctionRef>) -> bool {
        let script = self.chip(at.into().hca).and_then(|chip| chip.script.as_deref());
        script.is_some_and(|script| script.is_away(now.max(self.now)))
    }

    /// Whether something is on script for the adapter of a function.
    pub fn is_scripted(&self, at: impl Into<FunctionRef>) -> bool {
        self.chip(at.into().hca).is_some_and(|chip| chip.script.is_some())
    }

    /// What the PCI registers of a function have to say of what happened on script since the last call.
    pub fn take_pcie_events(&mut self, at: impl Into<FunctionRef>) -> Vec<PcieEvent> {
        self.rouse();
        self.script(at.into().hca).map(|script| script.pcie.take()).unwrap_or_default()
    }

    /// A function sent a message about an error to the root complex: its firmware counts them.
    pub fn sent_error_message(&mut self, at: impl Into<FunctionRef>, message: ErrorMessage) {
        if let Some(chip) = self.chip_mut(at.into().hca) {
            chip.managed.pcie.sent(message);
        }
    }

    /// What happened to the adapter of a function in its slot since the last call.
    pub fn take_slot_events(&mut self, at: impl Into<FunctionRef>) -> Vec<SlotEvent> {
        self.script(at.into().hca).map(|script| script.pcie.take_slot()).unwrap_or_default()
    }

    /// Whether the last two have something to say.
    pub fn has_pcie_news(&self, at: impl Into<FunctionRef>) -> bool {
        let script = self.chip(at.into().hca).and_then(|chip| chip.script.as_deref());
        script.is_some_and(|script| script.pcie.has_news())
    }

    /// What the PCI Express link of an adapter trained to on script; `None`: to what it should.
    pub fn pcie_link(&self, at: impl Into<FunctionRef>) -> Option<PcieLink> {
        let script = self.chip(at.into().hca)?.script.as_deref()?;
        script.pcie.link.as_ref().map(|(link, _)| *link)
    }

    fn script(&mut self, hca: HcaId) -> Option<&mut Script> {
        self.chip_mut(hca)?.script.as_deref_mut()
    }

    fn push_due(&mut self, at: Ps, hca: HcaId, due: Due) {
        let source = self.source(Class::Node, PortRef::of_hca(hca, 0));
        self.heap.push(at.max(self.now), source, Event::Script { hca, due });
    }

    /// Something on script is due.
    #[cold]
    pub(super) fn script_due(&mut self, hca: HcaId, due: Due) {
        let now = self.now;
        match due {
            Due::Fault(id) => {
                let found = self.script(hca).and_then(|script| script.time(now, id));
                let Some((fired, action, next)) = found else { return };
                let at = FunctionRef::from(hca);
                self.act(now, at, |function, now| {
                    function.core.say_fault(now, &fired, format_args!("{action:?}"));
                });
                self.happen(at, &action);
                if let Some(next) = next {
                    self.push_due(next, hca, Due::Fault(id));
                }
            }
            Due::Firmware => {
                let Some(script) = self.script(hca) else { return };
                match script.firmware.look(now) {
                    Some(restart) => self.restart(hca, restart),
                    None => self.look_at_firmware(hca),
                }
            }
            Due::Replug(link, port) => self.set_cable_at(now, link, Some(port), true),
            Due::Mend(port) => self.set_module(hca, port, None),
            Due::Cool => self.act(now, hca.into(), |function, now| function.heat(now, None)),
            Due::Widen(link) => self.set_lanes(now, link, None),
            Due::Retrain => {
                if let Some(chip) = self.chip_mut(hca) {
                    chip.retrain(None);
                }
            }
            Due::Insert => {
                let action = TimeAction::Slot { event: SlotEvent::Inserted, back: None };
                self.happen(FunctionRef::from(hca), &action);
            }
            Due::Packet(port, packet, place) => {
                place.free();
                self.arrive_checked(now, hca, port, *packet);
            }
        }
    }

    /// A packet came over a link to a port of an adapter that has a script. Returns what is taken of it now, if it is.
    #[cold]
    pub(super) fn script_packet(&mut self, at: Ps, hca: HcaId, port: u8, packet: Packet) -> Option<Packet> {
        let bth = packet.transport_header();
        let (fired, action, mut random) = match self.script(hca)?.packet(at, port, bth.as_ref()) {
            Some((fired, action, random)) => (fired, action, SplitMix64(random.next())),
            None => return Some(packet),
        };
        self.act(at, hca.into(), |function, now| {
            function.core.say_fault(now, &fired, format_args!("{action:?}"));
        });
        match action {
            PacketAction::Lose => None,
            PacketAction::Late(by) => {
                if let Some(place) = self.script(hca).and_then(|script| script.late_packets.take()) {
                    self.push_due(at + by, hca, Due::Packet(port, Box::new(packet), place));
                }
                None
            }
            PacketAction::Twice => {
                self.arrive_checked(at, hca, port, packet.clone());
                Some(packet)
            }
            PacketAction::Corrupt(bits) => {
                Some(packet.with_changed_bytes(|bytes| flip_bits(bytes, bits, &mut random)))
            }
        }
    }

    fn happen(&mut self, at: FunctionRef, action: &TimeAction) {
        self.fetch_payloads(at.hca);
        self.act(self.now, at, |function, now| function.happen(now, action));
        match action {
            TimeAction::Ail(_) => self.look_at_firmware(at.hca),
            TimeAction::Unplug { port, lasting } => {
                let port = PortRef::of_hca(at.hca, *port);
                let Some(link) = self.link_of(port) else { return };
                self.set_cable_at(self.now, link, Some(port), false);
                if let Lasting::For(time) = lasting {
                    self.push_due(self.now + *time, at.hca, Due::Replug(link, port));
                }
            }
            TimeAction::Module { port, error, lasting } => {
                self.set_module(at.hca, *port, Some(*error));
                if let Lasting::For(time) = lasting {
                    self.push_due(self.now + *time, at.hca, Due::Mend(*port));
                }
            }
            TimeAction::Heat { lasting: Some(time), .. } => {
                self.push_due(self.now + *time, at.hca, Due::Cool);
            }
            TimeAction::Retrain { lasting: Some(time), .. } => {
                self.push_due(self.now + *time, at.hca, Due::Retrain);
            }
            TimeAction::Slot { back: Some(time), .. } => {
                self.push_due(self.now + *time, at.hca, Due::Insert);
            }
            TimeAction::Degrade { port, lanes, lasting } => {
                let Some(link) = self.link_of(PortRef::of_hca(at.hca, *port)) else { return };
                self.set_lanes(self.now, link, Some(*lanes));
                if let Some(time) = lasting {
                    self.push_due(self.now + *time, at.hca, Due::Widen(link));
                }
            }
            TimeAction::Port { port, change } => self.change_port(at.hca, *port, *change),
            TimeAction::Away(_)
            | TimeAction::Heat { lasting: None, .. }
            | TimeAction::Retrain { lasting: None, .. }
            | TimeAction::Slot { back: None, .. }
            | TimeAction::PcieError { .. }
            | TimeAction::Event { .. }
            | TimeAction::Pages(_)
            | TimeAction::Interrupt(_) => {}
        }
    }

    /// A subnet manager changes something at a port: SMPs with the key of the built-in one.
    fn change_port(&mut self, hca: HcaId, port: u8, change: PortChange) {
        /// Entries of a block of the P_Key table.
        const PKEYS: u16 = 32;
        let (now, key) = (self.now, self.management_key.unwrap_or_default());
        let (attribute, modifier) = match change {
            PortChange::Pkey { index, pkey } => {
                self.change_partition(PortRef::of_hca(hca, port), index, pkey);
                (attr::PKEY_TABLE, u32::from(index / PKEYS))
            }
            PortChange::Lid(lid) => {
                self.lids_on_script.insert((hca, port), Lid(lid));
                (attr::PORT_INFO, port.into())
            }
            PortChange::GidPrefix(_) => (attr::PORT_INFO, port.into()),
        };
        let Some(node) = self.hcas.get_mut(hca.0) else { return };
        let mut effects = Vec::new();
        let mut get = smp(METHOD_GET, attribute, modifier);
        get.set(Mad::M_KEY, key);
        let Some(mut set) = node.chip.managed.mad(port, &get, &mut effects) else { return };
        set.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0).set(Mad::M_KEY, key);
        if let PortChange::Pkey { index, pkey } = change {
            let entries = set.smp_data_mut().bytes_mut().as_chunks_mut::<2>().0;
            let entry = entries.get_mut(usize::from(index % PKEYS));
            entry.into_iter().for_each(|entry| *entry = pkey.to_be_bytes());
        } else {
            let info = set.port_info_mut();
            info.set(PortInfo::PORT_STATE, 0).set(PortInfo::PORT_PHYSICAL_STATE, 0);
            info.set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
            match change {
                PortChange::Lid(lid) => _ = info.set(PortInfo::LID, lid.into()),
                PortChange::GidPrefix(prefix) => _ = info.set(PortInfo::GID_PREFIX, prefix),
                PortChange::Pkey { .. } => {}
            }
        }
        let answer = node.chip.managed.mad(port, &set, &mut effects);
        let status = answer.map_or(u32::MAX, |answer| answer.get(Mad::STATUS));
        if status != 0 {
            tracing::info!(hca = self.name(hca), "port {port} does not take {change:?}: status {status:#x}");
        }
        self.apply(hca, port, now, effects);
    }

    /// Firmware that fails is looked at soon.
    fn look_at_firmware(&mut self, hca: HcaId) {
        let now = self.now;
        let Some(script) = self.script(hca).filter(|script| script.firmware.is_ill()) else { return };
        let at = script.firmware.until().min(now + LOOK);
        self.push_due(at, hca, Due::Firmware);
    }

    /// Firmware that failed starts again, as from power-on.
    fn restart(&mut self, hca: HcaId, restart: Restart) {
        let at = FunctionRef::from(hca);
        tracing::info!(hca = self.name(hca), now = %self.now, "the firmware starts again ({restart:?})");
        self.reset_function(self.now, at);
        // So that the driver sees that it has to begin anew.
        let (register, shift) = MODE;
        let disabled = (NIC_INTERFACE_DISABLED << shift).to_be_bytes();
        self.act(self.now, at, |function, now| function.mmio_write(now, register, &disabled));
    }

    /// A function was reset: what goes wrong then.
    pub(super) fn script_reset(&mut self, at: FunctionRef) {
        let now = self.now;
        let Some((fired, action)) = self.script(at.hca).and_then(|script| script.reset(now)) else { return };
        self.act(now, at, |function, now| {
            function.core.say_fault(now, &fired, format_args!("{action:?}"));
        });
        self.happen(at, &action);
    }
}
