//! The front end: accesses of a host, as they are due, become calls of the endpoint.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::poll::PollFlags;

use super::device::{Asked, Clock, DeviceLink};
use super::intro::{Bar, DeviceIntro};
use super::message::MSIX_ON;
use crate::front_end::{Endpoint, FrontEnd, Watch};
use crate::memory::{Backing, MapError, Peer, Window};
use crate::pci::caps::MSIX_ENABLE;
use crate::pci::config::{COMMAND_BUS_MASTER, COMMAND_MEMORY, reg};
use crate::pci::msix::Signal;
use crate::pci::{BAR2_SIZE, MSIX_BAR, MSIX_PBA_OFFSET, MSIX_TABLE_OFFSET, Space};
use crate::simbricks::LinkError;

/// Of capabilities: that of MSI-X (PCIe 7.7.2), and how many a function may have at most.
const MSIX_CAPABILITY: u8 = 0x11;
const CAPABILITIES: usize = 48;
/// Accesses of one call of [`FrontEnd::serve`].
const MOST: usize = 4096;

/// Who is told of a vector.
#[derive(Debug)]
struct Vector {
    link: Arc<DeviceLink>,
    number: u16,
}

impl Signal for Vector {
    fn signal(&self) -> io::Result<()> {
        self.link.interrupt(self.number).map_err(|why| io::Error::new(io::ErrorKind::BrokenPipe, why))
    }
}

/// An adapter at a PCI Express link of SimBricks.
#[derive(Debug)]
pub struct PcieFrontEnd {
    link: Arc<DeviceLink>,
    /// Its socket, to be waited for.
    socket: OwnedFd,
    clock: Clock,
}

/// What the adapter says of itself.
pub(crate) fn describe(endpoint: &mut Endpoint<'_>) -> DeviceIntro {
    let mut head = [0; 64];
    endpoint.read(Space::Config, 0, &mut head);
    let byte = |at: usize| head.get(at).copied().unwrap_or_default();
    let half = |at: usize| u16::from_le_bytes([byte(at), byte(at + 1)]);
    // Of memory: bit 2 says that it has 64 bits, bit 3 that it may be prefetched (PCIe 7.5.1.2.1).
    let kind = |register| match byte(register) & 0x0c {
        0x0c => Bar::WIDE | Bar::PREFETCHABLE,
        0x04 => Bar::WIDE,
        0x08 => Bar::PREFETCHABLE,
        _ => 0,
    };
    let mut bars = [Bar::default(); 6];
    let own = Bar { len: endpoint.size(Space::Bar0), flags: kind(reg::BAR0) };
    let table = Bar { len: BAR2_SIZE, flags: kind(reg::BAR2) | Bar::DUMMY };
    for (place, bar) in [(0, own), (MSIX_BAR as usize, table)] {
        if let Some(to) = bars.get_mut(place) {
            *to = bar;
        }
    }
    DeviceIntro {
        bars,
        ids: [half(reg::VENDOR), half(reg::DEVICE)],
        class: [byte(reg::CLASS + 2), byte(reg::CLASS + 1), byte(reg::REVISION), byte(reg::CLASS)],
        msi: 0,
        msix: endpoint.vectors(),
        msix_bars: [MSIX_BAR as u8; 2],
        msix_offsets: [MSIX_TABLE_OFFSET as u32, MSIX_PBA_OFFSET as u32],
        msix_capability: 0,
    }
}

fn config16(endpoint: &mut Endpoint<'_>, at: usize) -> u16 {
    let mut half = [0; 2];
    endpoint.read(Space::Config, at as u64, &mut half);
    u16::from_le_bytes(half)
}

/// Where the control register of MSI-X is.
fn msix_control(endpoint: &mut Endpoint<'_>) -> Option<usize> {
    let mut at = usize::from(config16(endpoint, reg::CAPABILITIES) & 0xff);
    for _ in 0..CAPABILITIES {
        let [id, next] = config16(endpoint, at).to_le_bytes();
        if id == MSIX_CAPABILITY {
            return Some(at + 2);
        }
        at = usize::from(next);
        if at == 0 {
            break;
        }
    }
    None
}

impl PcieFrontEnd {
    /// Of that link: the host is there, and reaches all of its memory by it. The protocol says nothing of bus mastering and memory
    /// space: both are on.
    ///
    /// # Errors
    /// The memory can't be had.
    pub(crate) fn attach(
        link: Arc<DeviceLink>,
        clock: Clock,
        endpoint: &mut Endpoint<'_>,
    ) -> Result<Self, AttachError> {
        endpoint.attach(None, Peer::default());
        let all = Window { iova: 0, size: u64::MAX, readable: true, writable: true };
        endpoint.map(all, Backing::Standing(link.clone()))?;
        let command = COMMAND_MEMORY | COMMAND_BUS_MASTER;
        endpoint.write(Space::Config, reg::COMMAND as u64, &command.to_le_bytes());
        for number in 0..endpoint.vectors() {
            let signal = Vector { link: Arc::clone(&link), number };
            let _ = endpoint.connect(number.into(), Some(Box::new(signal)));
        }
        control(endpoint, 0);
        let socket = link.lock().watch().try_clone_to_owned()?;
        Ok(Self { link, socket, clock })
    }

    /// The link.
    pub(crate) fn link(&self) -> &Arc<DeviceLink> {
        &self.link
    }

    fn carry_out(&self, asked: Asked, endpoint: &mut Endpoint<'_>) -> Result<(), LinkError> {
        let wrong = |bar, offset, len| Err(LinkError::Access { bar, offset, len });
        match asked {
            Asked::Read { bar, offset, len, .. } if bar != 0 => wrong(bar, offset, len),
            Asked::Write { bar, offset, data, .. } if bar != 0 => wrong(bar, offset, data.len() as u16),
            Asked::Read { id, offset, len, .. } => {
                let mut data = vec![0; len.into()];
                endpoint.read(Space::Bar0, offset, &mut data);
                self.link.answer(id, Some(&data));
                Ok(())
            }
            Asked::Write { id, offset, data, .. } => {
                endpoint.write(Space::Bar0, offset, &data);
                if let Some(id) = id {
                    self.link.answer(id, None);
                }
                Ok(())
            }
            Asked::Control { flags } => {
                control(endpoint, flags);
                Ok(())
            }
            Asked::Ended => {
                endpoint.detach("it has ended its simulation");
                Ok(())
            }
        }
    }

    /// Serves what is due.
    ///
    /// # Errors
    /// The host has asked for what there is not.
    fn serve_due(&mut self, endpoint: &mut Endpoint<'_>) -> Result<(), LinkError> {
        for _ in 0..MOST {
            let Some(asked) = self.link.next(self.clock.now()) else { break };
            self.carry_out(asked, endpoint)?;
        }
        Ok(())
    }
}

/// The host has these kinds of interrupts on: vectors wait until MSI-X is.
fn control(endpoint: &mut Endpoint<'_>, flags: u64) {
    let on = flags & MSIX_ON != 0;
    if let Some(at) = msix_control(endpoint) {
        let control = if on { MSIX_ENABLE } else { 0 };
        endpoint.write(Space::Config, at as u64, &control.to_le_bytes());
    }
    for vector in 0..endpoint.vectors() {
        let _ = endpoint.mask(vector.into(), !on);
    }
}

/// Why an adapter can't be attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// Its host's memory can't be had.
    #[error("memory: {0}")]
    Memory(#[from] MapError),
    /// There are no more descriptors.
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
}

impl FrontEnd for PcieFrontEnd {
    fn watch<'a>(&'a self, add: &mut dyn FnMut(Watch<'a>)) {
        add(Watch { fd: self.socket.as_fd(), events: PollFlags::POLLIN });
    }

    fn has_work(&self) -> bool {
        self.link.first().is_some_and(|first| first <= self.clock.now())
    }

    /// A host that asks for what there is not is detached.
    fn serve(&mut self, _ready: &[bool], endpoint: &mut Endpoint<'_>) {
        if let Err(why) = self.serve_due(endpoint) {
            endpoint.detach(&why.to_string());
            self.link.fail(why);
        }
    }

    /// The channel stays: SimBricks has no message that says so.
    fn take_out(&mut self, endpoint: &mut Endpoint<'_>, reason: &str) {
        endpoint.detach(reason);
    }
}
