//! The adapter as a VFIO device: regions, interrupt types and errno values around an [`Endpoint`].

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use vfio_bindings::bindings::vfio;

use super::connection::Connection;
use super::descriptor::Descriptor;
use super::eventfd::EventFd;
use super::look::Look;
use super::session::{Backend, IrqAction, IrqData, IrqInfo, RegionInfo, SetIrqs};
use super::version::ClientCaps;
use crate::function::Endpoint;
use crate::memory::{Backing, MapError, Peer, Range, Window};
use crate::pci::Space;
use crate::pci::msix::{NoSuchVector, Signal};
use crate::sync::lock;

/// An endpoint while messages of its client are handled.
pub(super) struct Device<'a, 'b> {
    pub(super) endpoint: &'a mut Endpoint<'b>,
    pub(super) connection: &'a Arc<Mutex<Connection>>,
    pub(super) peer: &'a Peer,
    pub(super) look: &'a mut Look,
}

/// The address space behind a region; `None` if the region doesn't exist.
fn space(region: u32) -> Option<Space> {
    match region {
        vfio::VFIO_PCI_BAR0_REGION_INDEX => Some(Space::Bar0),
        vfio::VFIO_PCI_BAR2_REGION_INDEX => Some(Space::Bar2),
        vfio::VFIO_PCI_ROM_REGION_INDEX => Some(Space::Rom),
        vfio::VFIO_PCI_CONFIG_REGION_INDEX => Some(Space::Config),
        _ => None,
    }
}

impl From<MapError> for Errno {
    fn from(error: MapError) -> Errno {
        match error {
            MapError::Overlap => Errno::EEXIST,
            MapError::TooMany => Errno::ENOSPC,
            MapError::Misfit | MapError::Partial => Errno::EINVAL,
            MapError::NotShared => Errno::EPERM,
            MapError::NotMemory => Errno::ENODEV,
            MapError::Lost => Errno::EFAULT,
            MapError::System(errno) => errno,
        }
    }
}

impl From<NoSuchVector> for Errno {
    fn from(_: NoSuchVector) -> Errno {
        Errno::EINVAL
    }
}

impl Device<'_, '_> {
    fn connect(&mut self, vector: u32, signal: Option<Box<dyn Signal>>) -> Result<(), Errno> {
        Ok(self.endpoint.connect(vector, signal)?)
    }
}

impl Backend for Device<'_, '_> {
    fn attach(&mut self, caps: &ClientCaps) {
        lock(self.connection).max_data_xfer = caps.max_data_xfer;
        let connection = Arc::clone(self.connection);
        self.endpoint.attach(Some(connection), self.peer.clone());
        // QEMU keeps device control as it reads it now, never looks again, and lets messages about errors pass by that copy
        // (pcie_aer_msg_alldev). It resets the function before a guest starts.
        self.endpoint.enable_reports();
    }

    fn events_took(&self) -> Duration {
        self.endpoint.events_took()
    }

    fn region_info(&self, index: u32) -> RegionInfo {
        let Some(space) = space(index) else { return RegionInfo::default() };
        let flags = match space {
            Space::Rom => vfio::VFIO_REGION_INFO_FLAG_READ,
            _ => vfio::VFIO_REGION_INFO_FLAG_READ | vfio::VFIO_REGION_INFO_FLAG_WRITE,
        };
        match self.endpoint.size(space) {
            0 => RegionInfo::default(),
            size => RegionInfo { size, flags },
        }
    }

    fn irq_info(&self, index: u32) -> IrqInfo {
        let count = match index {
            vfio::VFIO_PCI_MSIX_IRQ_INDEX => u32::from(self.endpoint.vectors()),
            // Accepted and never raised: QEMU warns about devices without it.
            vfio::VFIO_PCI_ERR_IRQ_INDEX => 1,
            _ => return IrqInfo::default(),
        };
        // Without NORESIZE, QEMU adds vectors one by one instead of tearing all down each time.
        IrqInfo { count, flags: vfio::VFIO_IRQ_INFO_EVENTFD }
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.endpoint.read(space(region).ok_or(Errno::EINVAL)?, offset, data);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.endpoint.write(space(region).ok_or(Errno::EINVAL)?, offset, data);
        Ok(())
    }

    fn dma_map(&mut self, window: Window, backing: Backing) -> Result<(), Errno> {
        Ok(self.endpoint.map(window, backing)?)
    }

    fn dma_unmap(&mut self, range: Range) -> Result<(), Errno> {
        Ok(self.endpoint.unmap(range)?)
    }

    fn set_irqs(&mut self, set: SetIrqs) -> Result<(), Errno> {
        let available = self.irq_info(set.index).count;
        let end = set.start.checked_add(set.count).ok_or(Errno::EINVAL)?;
        if end > available {
            return Err(Errno::EINVAL);
        }
        if set.index != vfio::VFIO_PCI_MSIX_IRQ_INDEX {
            // Error interrupts are accepted and never raised; there is nothing to connect.
            return Ok(());
        }
        let range = set.start..end;
        match (set.action, set.data) {
            (IrqAction::Trigger, IrqData::All) if range.is_empty() => {
                (0..available).try_for_each(|vector| self.connect(vector, None))
            }
            (IrqAction::Trigger, IrqData::Eventfds(fds)) => {
                let fds = fds.into_iter().map(Descriptor::into_event).collect::<Result<Vec<_>, _>>()?;
                let mut fds = fds.into_iter();
                range.into_iter().try_for_each(|vector| {
                    let signal = fds.next().map(|fd| Box::new(EventFd(fd)) as Box<dyn Signal>);
                    self.connect(vector, signal)
                })
            }
            (_, IrqData::Eventfds(_)) => Err(Errno::ENOTSUP),
            (action, data) => {
                let chosen = |i: usize| match &data {
                    IrqData::Some(which) => which.get(i).copied().unwrap_or(false),
                    _ => true,
                };
                for (i, vector) in range.enumerate().filter(|(i, _)| chosen(*i)) {
                    match action {
                        IrqAction::Mask => self.endpoint.mask(vector, true)?,
                        IrqAction::Unmask => self.endpoint.mask(vector, false)?,
                        IrqAction::Trigger => {
                            let raised = self.endpoint.trigger(vector);
                            tracing::debug!("client triggers vector {vector} ({i}): {raised:?}");
                        }
                    }
                }
                Ok(())
            }
        }
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.endpoint.reset();
        Ok(())
    }

    fn takes_files(&mut self, files: &[Descriptor]) -> bool {
        // Of more than one nothing comes.
        self.look.is_done(self.peer, files.first().and_then(Descriptor::memory))
    }

    fn rejection(&self) -> Option<Errno> {
        // The adapter could do nothing for such a guest: better that it doesn't start.
        self.endpoint.memory_is_private().then_some(Errno::EPERM)
    }
}
