//! Frames that arrive at a port: whose they are, and whether they are good.

use hca_spec::flow::TableType;

use super::count::{Way, count_frame};
use super::steer::Came;
use crate::adapter::core::Executor;
use crate::ground::time::Ps;
use crate::link_layer::Packet;
use crate::wire::Malformed;

impl Executor<'_> {
    /// A frame for the MAC itself: the peer asks to wait, or lets go on.
    fn mac_control(&mut self, now: Ps, port: u8, packet: &Packet) {
        let chip = &mut *self.core.chip;
        let Some(pause) = packet.pause() else { return };
        let Some(ethernet) = chip.managed.port_mut(port).and_then(|p| p.ethernet_mut()) else { return };
        let Some(out) = chip.ports.get_mut(port) else { return };
        if let Some(at) = out.outlet.heed(now, pause, ethernet) {
            chip.out.credit_turn(port, at);
        }
        self.port_turn(now, port);
    }

    /// Whether what arrives is for the transport: everything on InfiniBand; on Ethernet what is for a RoCE address of the port
    /// while RoCE is enabled, or for a group with members, and is no longer than the port lets pass.
    #[inline]
    pub(crate) fn is_for_transport(&self, port: u8, packet: &Packet) -> bool {
        if !packet.is_frame() {
            return true;
        }
        let function = &self.core.function.fw;
        let Some(own) = self.core.chip.managed.port(port) else { return true };
        if packet.len() > own.longest() {
            return false;
        }
        let attached =
            |gid: &_| function.icm.mcgs.iter().any(|group| group.gid == *gid && !group.qps.is_empty());
        packet.is_forced() || function.nic.roce_enabled && packet.is_transport_for(own, attached)
    }

    /// A frame arrived at a port that is not for the transport, or is too long for the port. Returns when its place in the input buffer is free.
    pub(crate) fn arrive_frame(&mut self, now: Ps, port: u8, packet: Packet) -> Ps {
        self.core.capture(now, port, false, &packet);
        let Some(own) = self.core.chip.managed.port_mut(port) else { return now };
        let fits = packet.len() <= own.longest();
        let Some(ethernet) = own.ethernet_mut() else { return now };
        let wrong = packet.check_link().err();
        let counters = &mut ethernet.counters;
        let dropped = match wrong {
            Some(Malformed::Truncated { .. }) => Some(&mut counters.undersize),
            Some(_) => Some(&mut counters.fcs_errors),
            None if !fits => Some(&mut counters.oversize),
            None => None,
        };
        if let Some(counter) = dropped {
            *counter = counter.wrapping_add(1);
            counters.rx.errors = counters.rx.errors.wrapping_add(1);
            match wrong {
                Some(why) => self.note_drop(now, &packet, format_args!("{why}")),
                None => self.note_drop(now, &packet, format_args!("the frame is longer than the port's MTU")),
            }
            return now;
        }
        if packet.is_control() {
            self.mac_control(now, port, &packet);
            return now;
        }
        count_frame(own, &packet, Way::In { transport: false });
        self.core.sniff(now, (TableType::SnifferRx, port), &packet);
        self.steer(now, Came { port, copied: false }, packet)
    }
}
