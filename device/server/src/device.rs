//! One adapter as a vfio-user device: PCI function, interrupts and guest memory around the model.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use hca_model::{HcaId, World};
use nix::errno::Errno;
use vfio_bindings::bindings::vfio;

use crate::memory::{HostMemory, Peer};
use crate::metrics::Metrics;
use crate::pacing::Pacer;
use crate::pci::config::{ConfigSpace, PortType};
use crate::pci::msix::{Msix, Raised};
use crate::pci::{BAR0_REGION, BAR0_SIZE, BAR2_REGION, BAR2_SIZE, CONFIG_SIZE, MSIX_VECTORS};
use crate::vfio_user::link::Link;
use crate::vfio_user::lock;
use crate::vfio_user::session::{
    Backend, DmaUnmap, DmaWindow, IrqAction, IrqData, IrqInfo, RegionInfo, SetIrqs,
};
use crate::vfio_user::version::ClientCaps;

/// Largest access handed to the model in one piece; it never crosses a multiple of this. A
/// BlueFlame write of a client that can send it whole stays whole.
const MMIO_CHUNK: u64 = 64;

/// State of one adapter's front end.
#[derive(Debug)]
pub struct Device {
    hca: HcaId,
    config: ConfigSpace,
    msix: Msix,
    memory: Arc<HostMemory>,
    /// What happened so far.
    pub metrics: Metrics,
}

impl Device {
    /// The front end of adapter `hca`.
    pub fn new(hca: HcaId, port_type: PortType) -> Device {
        Device {
            hca,
            config: ConfigSpace::new(port_type),
            msix: Msix::default(),
            memory: Arc::new(HostMemory::new()),
            metrics: Metrics::default(),
        }
    }

    /// Number of DMA accesses that failed.
    pub fn dma_errors(&self) -> u64 {
        self.memory.failed_accesses()
    }

    /// The model raises an interrupt. A message interrupt is a memory write: without bus
    /// mastering it waits.
    pub fn raise(&mut self, vector: u16) {
        let raised = if self.config.may_master() { self.msix.raise(vector) } else { self.msix.hold(vector) };
        let counter = match raised {
            Raised::Signalled => &mut self.metrics.interrupts,
            Raised::Pending => &mut self.metrics.interrupts_held,
            Raised::Dropped => &mut self.metrics.interrupts_dropped,
        };
        *counter += 1;
    }

    /// The client is gone: the adapter is reset and lets go of everything of the client's.
    ///
    /// The model is not brought to the present first: what is due until then would find no memory, and
    /// peers would hear of access errors from a host that has only fallen silent.
    pub fn disconnect(&mut self, world: &mut World) {
        world.detach(world.now(), self.hca);
        self.memory.set_bus_master(false);
        self.memory.disconnect();
        self.config.reset();
        self.msix.reset();
        self.msix.disconnect_all();
    }
}

/// A device while a message of its client is handled.
pub(crate) struct Attached<'a> {
    pub(crate) device: &'a mut Device,
    pub(crate) world: &'a mut World,
    pub(crate) pacer: &'a mut Pacer,
    pub(crate) link: &'a Arc<Mutex<Link>>,
    pub(crate) peer: Peer,
}

impl Attached<'_> {
    /// Configuration has changed: lets DMA through or stops it.
    fn follow_config(&mut self) {
        let may_master = self.device.config.may_master();
        self.device.memory.set_bus_master(may_master);
        if may_master {
            self.device.msix.deliver_all();
        }
    }

    /// Resets what the model has of the function. Configuration space is reset by the caller.
    fn reset_function(&mut self) {
        let now = self.pacer.catch_up(self.world);
        self.world.reset(now, self.device.hca);
        // Interrupts raised before the reset must not arrive after it.
        self.device.msix.reset();
        self.follow_config();
        self.device.metrics.resets += 1;
    }
}

impl Backend for Attached<'_> {
    fn attach(&mut self, caps: &ClientCaps) {
        lock(self.link).max_data_xfer = caps.max_data_xfer;
        let link = Arc::clone(self.link);
        self.device.memory.connect(Some(link), self.peer);
        let memory: Arc<HostMemory> = Arc::clone(&self.device.memory);
        self.world.attach(self.device.hca, memory);
    }

    fn region_info(&self, index: u32) -> RegionInfo {
        let size = match index {
            BAR0_REGION => BAR0_SIZE,
            BAR2_REGION => BAR2_SIZE,
            vfio::VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_SIZE as u64,
            _ => return RegionInfo::default(),
        };
        RegionInfo { size, flags: vfio::VFIO_REGION_INFO_FLAG_READ | vfio::VFIO_REGION_INFO_FLAG_WRITE }
    }

    fn irq_info(&self, index: u32) -> IrqInfo {
        let count = match index {
            vfio::VFIO_PCI_MSIX_IRQ_INDEX => u32::from(MSIX_VECTORS),
            // Accepted and never raised: QEMU warns about devices without it.
            vfio::VFIO_PCI_ERR_IRQ_INDEX => 1,
            _ => return IrqInfo::default(),
        };
        // Without NORESIZE, QEMU adds vectors one by one instead of tearing all down each time.
        IrqInfo { count, flags: vfio::VFIO_IRQ_INFO_EVENTFD }
    }

    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.device.metrics.region_reads += 1;
        match region {
            BAR0_REGION => {
                let now = self.pacer.catch_up(self.world);
                let (mut at, mut rest) = (offset, data);
                while !rest.is_empty() {
                    let len = piece(at, rest.len());
                    let (head, tail) =
                        std::mem::take(&mut rest).split_at_mut_checked(len).unwrap_or_default();
                    self.world.mmio_read(now, self.device.hca, at, head);
                    at = at.saturating_add(len as u64);
                    rest = tail;
                }
            }
            BAR2_REGION => self.device.msix.read(offset, data),
            vfio::VFIO_PCI_CONFIG_REGION_INDEX => {
                let at = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
                self.device.config.software_read(at, data);
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.device.metrics.region_writes += 1;
        match region {
            BAR0_REGION => {
                let now = self.pacer.catch_up(self.world);
                let (mut at, mut rest) = (offset, data);
                while !rest.is_empty() {
                    let (head, tail) = rest.split_at_checked(piece(at, rest.len())).unwrap_or_default();
                    self.world.mmio_write(now, self.device.hca, at, head);
                    at = at.saturating_add(head.len() as u64);
                    rest = tail;
                }
            }
            BAR2_REGION => self.device.msix.write(offset, data),
            vfio::VFIO_PCI_CONFIG_REGION_INDEX => {
                let at = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
                let effects = self.device.config.write(at, data);
                if effects.reset {
                    tracing::debug!("function level reset");
                    self.reset_function();
                }
                self.follow_config();
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    fn dma_map(&mut self, window: DmaWindow, fd: Option<OwnedFd>) -> Result<(), Errno> {
        self.device.memory.map(window, fd)
    }

    fn dma_unmap(&mut self, what: DmaUnmap) -> Result<(), Errno> {
        self.device.memory.unmap(what)
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
        let msix = &mut self.device.msix;
        match (set.action, set.data) {
            (IrqAction::Trigger, IrqData::All) if range.is_empty() => {
                (0..available).try_for_each(|vector| msix.connect(vector, None))
            }
            (IrqAction::Trigger, IrqData::Eventfds(fds)) => {
                let mut fds = fds.into_iter();
                range.into_iter().try_for_each(|vector| msix.connect(vector, fds.next()))
            }
            (_, IrqData::Eventfds(_)) => Err(Errno::ENOTSUP),
            (action, data) => {
                let chosen = |i: usize| match &data {
                    IrqData::Some(which) => which.get(i).copied().unwrap_or(false),
                    _ => true,
                };
                for (i, vector) in range.enumerate().filter(|(i, _)| chosen(*i)) {
                    match action {
                        IrqAction::Mask => msix.mask(vector, true)?,
                        IrqAction::Unmask => msix.mask(vector, false)?,
                        IrqAction::Trigger => {
                            let raised = msix.raise(u16::try_from(vector).unwrap_or(u16::MAX));
                            tracing::debug!("client triggers vector {vector} ({i}): {raised:?}");
                        }
                    }
                }
                Ok(())
            }
        }
    }

    fn reset(&mut self) -> Result<(), Errno> {
        tracing::debug!("device reset");
        self.device.config.reset();
        self.reset_function();
        Ok(())
    }

    fn rejection(&self) -> Option<Errno> {
        // The adapter could do nothing for such a guest: better that it doesn't start.
        self.device.memory.is_private().then_some(Errno::EPERM)
    }
}

/// Length of the first piece of an access to BAR0 that has `left` bytes to go.
fn piece(at: u64, left: usize) -> usize {
    let room = MMIO_CHUNK - at % MMIO_CHUNK;
    usize::try_from(room).unwrap_or(left).min(left)
}
