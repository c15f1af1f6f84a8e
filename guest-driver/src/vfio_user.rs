//! A back end over a vfio-user socket: the adapter is a server process, memory is a memfd it maps.
//!
//! The protocol is spoken by the crate `vfio_user`'s client, which is not ours. Registers are
//! region accesses, interrupts are event descriptors connected to MSI-X vectors.
//!
//! A register access can't return an error of the socket: reads return all ones from then on, as on a
//! real bus, and [`VfioUserBus::error`] has the reason.

use crate::arena::Arena;
use crate::bus::{Bus, Dma};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::boxed::Box;
use std::error::Error;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::string::{String, ToString};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::Client;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

/// Where the DMA window begins on the adapter's bus: above 4 GiB, so that high address words matter.
const WINDOW: u64 = 0x1_0000_0000;
/// Configuration space: command register.
const PCI_COMMAND: u64 = 4;
/// Command register: memory space and bus master enabled.
const PCI_COMMAND_ENABLED: u16 = 0b110;
/// How long [`Bus::wait`] sleeps for an interrupt at most.
const WAIT_MS: u16 = 1;

/// An adapter behind a vfio-user socket.
pub struct VfioUserBus {
    client: Client,
    window: Arc<Window>,
    events: Vec<EventFd>,
    interrupts: Vec<u64>,
    error: Option<String>,
}

struct Window {
    memory: GuestMemoryMmap,
    arena: Mutex<Arena>,
}

/// Memory that the server maps too.
pub struct WindowMemory {
    window: Arc<Window>,
    start: usize,
    size: usize,
}

impl VfioUserBus {
    /// Connects to the server at `socket`, with `memory` bytes of DMA memory and `vectors` MSI-X vectors.
    ///
    /// # Errors
    /// The socket, the server's answers, or memory.
    pub fn connect(socket: &Path, memory: usize, vectors: u16) -> Result<Self, Box<dyn Error>> {
        let size = memory.next_multiple_of(crate::PAGE_SIZE);
        let file = File::from(memfd_create(c"hca-driver", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(size as u64)?;
        let mut client = Client::new(socket)?;
        client.dma_map(0, WINDOW, size as u64, file.as_raw_fd())?;
        let range = (GuestAddress(0), size, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range])?;
        let window = Arc::new(Window { memory, arena: Mutex::new(Arena::new(size)) });
        let mut bus = Self { client, window, events: Vec::new(), interrupts: Vec::new(), error: None };
        bus.connect_vectors(vectors)?;
        bus.client.region_write(
            VFIO_PCI_CONFIG_REGION_INDEX,
            PCI_COMMAND,
            &PCI_COMMAND_ENABLED.to_le_bytes(),
        )?;
        Ok(bus)
    }

    fn connect_vectors(&mut self, vectors: u16) -> Result<(), Box<dyn Error>> {
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        for vector in 0..vectors {
            let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
            let fds: [RawFd; 1] = [event.as_fd().as_raw_fd()];
            self.client.set_irqs(VFIO_PCI_MSIX_IRQ_INDEX, flags, vector.into(), 1, &fds)?;
            self.events.push(event);
            self.interrupts.push(0);
        }
        Ok(())
    }

    /// The first error on the socket, if there was one.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// How often `vector` fired so far.
    pub fn interrupts(&mut self, vector: u16) -> u64 {
        let vector = usize::from(vector);
        let (Some(event), Some(count)) = (self.events.get(vector), self.interrupts.get_mut(vector)) else {
            return 0;
        };
        // An error is "would block": it did not fire since.
        *count += event.read().unwrap_or(0);
        *count
    }

    /// The function's configuration space.
    pub fn config_read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), String> {
        self.client.region_read(VFIO_PCI_CONFIG_REGION_INDEX, offset, data).map_err(|e| e.to_string())
    }

    /// Resets the function.
    pub fn reset(&mut self) -> Result<(), String> {
        self.client.reset().map_err(|e| e.to_string())
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if self.error.is_none()
            && let Err(e) = self.client.region_write(VFIO_PCI_BAR0_REGION_INDEX, offset, data)
        {
            self.error = Some(e.to_string());
        }
    }
}

impl Bus for VfioUserBus {
    type Dma = WindowMemory;

    fn mmio_read32(&mut self, offset: u64) -> u32 {
        let mut word = [0xff; 4];
        if self.error.is_none()
            && let Err(e) = self.client.region_read(VFIO_PCI_BAR0_REGION_INDEX, offset, &mut word)
        {
            self.error = Some(e.to_string());
            return u32::MAX;
        }
        u32::from_be_bytes(word)
    }

    fn mmio_write32(&mut self, offset: u64, value: u32) {
        self.write(offset, &value.to_be_bytes());
    }

    fn mmio_write64(&mut self, offset: u64, value: u64) {
        self.write(offset, &value.to_be_bytes());
    }

    fn dma_alloc(&mut self, size: usize, align: usize) -> Option<WindowMemory> {
        let start = self.window.arena.lock().unwrap_or_else(PoisonError::into_inner).alloc(size, align)?;
        let mut memory = WindowMemory { window: self.window.clone(), start, size };
        memory.write(0, &std::vec![0; size]);
        Some(memory)
    }

    fn wait(&mut self, vector: Option<u16>) {
        match vector.and_then(|v| self.events.get(usize::from(v))) {
            Some(event) => {
                let mut fds = [PollFd::new(event.as_fd(), PollFlags::POLLIN)];
                // Interrupted or timed out: the caller polls again anyway.
                let _ = poll(&mut fds, PollTimeout::from(WAIT_MS));
                self.interrupts(vector.unwrap_or(0));
            }
            None => std::thread::yield_now(),
        }
    }

    fn vectors(&self) -> u16 {
        self.events.len() as u16
    }
}

impl WindowMemory {
    fn at(&self, offset: usize, len: usize) -> GuestAddress {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.size), "access beyond the allocation");
        GuestAddress((self.start + offset) as u64)
    }
}

impl Dma for WindowMemory {
    fn bus_address(&self) -> u64 {
        WINDOW + self.start as u64
    }

    fn read(&self, offset: usize, buf: &mut [u8]) {
        let at = self.at(offset, buf.len());
        self.window.memory.read_slice(buf, at).expect("the window is mapped whole");
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        let at = self.at(offset, data.len());
        self.window.memory.write_slice(data, at).expect("the window is mapped whole");
    }

    fn load32(&self, offset: usize) -> u32 {
        let at = self.at(offset, 4);
        u32::from_be(self.window.memory.load(at, Ordering::Acquire).expect("the window is mapped whole"))
    }

    fn store32(&mut self, offset: usize, value: u32) {
        let at = self.at(offset, 4);
        self.window.memory.store(value.to_be(), at, Ordering::Release).expect("the window is mapped whole");
    }
}

impl Drop for WindowMemory {
    fn drop(&mut self) {
        self.window.arena.lock().unwrap_or_else(PoisonError::into_inner).free(self.start, self.size);
    }
}
