//! Faults on script joined: which there are, and what happens at its time or behind a reset.

use hca_spec::init_segment::NIC_INTERFACE_DISABLED;

use super::{Class, Event, World};
use crate::faults::{
    Fault, FaultId, FaultReport, Lasting, PacketAction, Restart, Script, TimeAction, What, flip_bits,
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
#[derive(Debug, Clone)]
pub(super) enum Due {
    /// A fault whose time has come.
    Fault(FaultId),
    /// A look at firmware that fails.
    Firmware,
    /// The cable of a link is put in again.
    Replug(usize),
    /// A packet that comes late by that port.
    Packet(u8, Box<Packet>),
}

impl World {
    /// From now on that goes wrong at an adapter. `None`: there is no such adapter.
    pub fn add_fault(&mut self, now: Ps, hca: HcaId, fault: Fault) -> Option<FaultId> {
        self.settle_all();
        self.now = self.now.max(now);
        let (time, id) = (matches!(fault.what, What::Time { .. }), FaultId(self.faults_added));
        let at = fault.trigger.from;
        self.chip_mut(hca)?.script.get_or_insert_default().add(id, fault);
        self.faults_added = self.faults_added.wrapping_add(1);
        if time {
            self.push_due(at, hca, Due::Fault(id));
        }
        self.allow_trains();
        Some(id)
    }

    /// That does not go wrong any more; what has gone wrong stays so. `false`: there is no such fault.
    pub fn remove_fault(&mut self, id: FaultId) -> bool {
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
            Due::Replug(link) => self.set_cable(now, link, true),
            Due::Packet(port, packet) => {
                self.script(hca).map(Script::came);
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
                if self.script(hca).is_some_and(Script::holds) {
                    self.push_due(at + by, hca, Due::Packet(port, Box::new(packet)));
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
        self.settle(at.hca);
        self.act(self.now, at, |function, now| function.happen(now, action));
        match action {
            TimeAction::Ail(_) => self.look_at_firmware(at.hca),
            TimeAction::Unplug { port, lasting } => {
                let Some(link) = self.link_of(PortRef::of_hca(at.hca, *port)) else { return };
                self.set_cable(self.now, link, false);
                if let Lasting::For(time) = lasting {
                    self.push_due(self.now + *time, at.hca, Due::Replug(link));
                }
            }
            TimeAction::Away(_)
            | TimeAction::Event { .. }
            | TimeAction::Pages(_)
            | TimeAction::Interrupt(_) => {}
        }
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
