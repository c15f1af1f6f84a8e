//! The attacker: a guest that has brought its adapter up, with objects of every kind, and then does anything.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hca_spec::command::{
    CommandEntry, ENTRY_TYPE_PCIE, INLINE, INLINE_INPUT, INLINE_OUTPUT, MAILBOX_DATA, MailboxBlock,
    OWNERSHIP_BYTE,
};
use hca_spec::ids::Lid;
use hca_spec::init_segment::InitSegment;
use hca_spec::qpc::ServiceType;
use hca_spec::uar::{PAGE_SIZE, SEND_DOORBELL};
use hca_spec::wqe::WQEBB;
use nix::sys::eventfd::EventFd;

use super::line::{Closed, DMA_MAP, DMA_UNMAP, Line, NO_REPLY, REGION_READ, REGION_WRITE, RESET, SET_IRQS};
use super::memory::Memory;
use crate::fuzz::commands::{self, LOG_SEND};
use crate::fuzz::memory::{COMMANDS, FIRMWARE_PAGES, FIRMWARE_SIZE, INPUT, MAILBOX, OUTPUT, SIZE};
use crate::fuzz::objects::{Executor, Objects, QueuePair, bring_up};
use crate::fuzz::two_adapters::RECV_BYTES;
use crate::raw::{access, dma_map, dma_unmap, eventfd, set_irqs};

/// BAR0 and configuration space.
pub const BAR0: u32 = 0;
/// The same.
pub const CONFIG: u32 = 7;
/// Configuration space: command register, with memory space and bus master enabled.
const COMMAND: (u64, [u8; 2]) = (4, [6, 0]);
/// MSI-X, and vectors that are connected.
pub const MSIX: u32 = 2;
const VECTORS: u32 = 4;
/// SET_IRQS: one event descriptor for each vector.
pub const CONNECT: u32 = 0x24;
/// Reads of a register until a command is answered.
const TURNS: u32 = 200_000;
/// Connections that are tried while the server is still busy with the one before, [`PAUSE`] apart.
const TRIES: u32 = 3000;
const PAUSE: Duration = Duration::from_millis(5);

/// What the guest has posted to a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct Posted {
    /// Basic blocks.
    pub send: u16,
    /// Requests.
    pub receive: u16,
}

/// The guest.
pub struct Guest {
    socket: PathBuf,
    seed: u64,
    /// The LID of its port.
    pub home: Lid,
    /// The connection.
    pub line: Line,
    /// Its memory.
    pub memory: Memory,
    /// What its adapter has.
    pub objects: Objects,
    /// Valid commands about them.
    pub templates: Vec<Vec<u8>>,
    /// What it has posted to each queue pair.
    pub posted: Vec<Posted>,
    /// It has done what may have taken its adapter down: it had better begin anew before long.
    pub spoilt: bool,
    /// Events of the adapter go to these.
    _events: Vec<EventFd>,
}

impl Guest {
    /// Connects, and brings the adapter up. Its queue pairs are connected to each other at `lid`.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn new(socket: &Path, seed: u64, lid: Lid) -> Self {
        let connected = (0..TRIES).find_map(|_| {
            let line = Line::connect(socket, seed).ok();
            if line.is_none() {
                std::thread::sleep(PAUSE);
            }
            line
        });
        let line = connected.expect("the server takes the attacker's next connection");
        let (memory, objects) = (Memory::default(), Objects::default());
        let mut guest = Self {
            socket: socket.to_path_buf(),
            seed,
            home: lid,
            line,
            memory,
            objects,
            templates: Vec::new(),
            posted: Vec::new(),
            spoilt: false,
            _events: Vec::new(),
        };
        guest.start();
        guest
    }

    /// Connects anew and brings the adapter up again.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn again(&mut self) {
        // An adapter has one client.
        self.line.close();
        let (socket, seed) = (self.socket.clone(), self.seed.wrapping_add(1));
        *self = Self::new(&socket, seed, self.home);
    }

    /// Resets the function and brings the adapter up again. False if the server has closed the connection, as it may after
    /// what was said before.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn reset(&mut self) -> bool {
        if self.line.call(RESET, &[], &[], Some(&self.memory)).is_err() {
            return false;
        }
        self.memory = Memory::default();
        // After a reset the connection has no nonsense before it any more, but what it has mapped.
        if self.line.call(DMA_UNMAP, &dma_unmap(2, 0, 0), &[], Some(&self.memory)).is_err() {
            return false;
        }
        self.start();
        true
    }

    fn start(&mut self) {
        self.introduce().expect("the server keeps a connection that says nothing wrong");
        bring_up(self);
        let home = self.home;
        let mut objects = Objects::create(self, home);
        objects.add(self, ServiceType::Qp0);
        self.templates = commands::templates(&objects);
        self.posted = vec![Posted::default(); objects.qps.len()];
        self.objects = objects;
        self.spoilt = false;
    }

    /// Memory, interrupts, bus mastering, and where the command queue is.
    fn introduce(&mut self) -> Result<(), Closed> {
        let [near, firmware] = self.memory.descriptors();
        for (iova, size, fd) in [(0, SIZE as u64, near), (FIRMWARE_PAGES, FIRMWARE_SIZE, firmware)] {
            let reply = self.line.call(DMA_MAP, &dma_map(iova, size, 0), &[fd], Some(&self.memory))?;
            assert_eq!(reply.error, 0, "the attacker's memory at {iova:#x}");
        }
        let events: Vec<_> = (0..VECTORS).map(|_| eventfd()).collect();
        let fds: Vec<RawFd> = events.iter().map(|event| event.as_fd().as_raw_fd()).collect();
        self.line.call(SET_IRQS, &set_irqs(CONNECT, MSIX, 0, VECTORS, &[]), &fds, Some(&self.memory))?;
        self._events = events;
        self.write(CONFIG, COMMAND.0, &COMMAND.1)?;
        self.write(BAR0, InitSegment::CMDQ_PHY_ADDR_HIGH.offset() as u64, &[0; 4])?;
        self.write(BAR0, InitSegment::CMDQ_PHY_ADDR_LOW.offset() as u64, &(COMMANDS as u32).to_be_bytes())
    }

    /// Writes a region, and does not wait.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Closed> {
        let payload = [access(region, offset, data.len() as u32), data.to_vec()].concat();
        self.line.say(REGION_WRITE, &payload, (&[], NO_REPLY), Some(&self.memory)).map(drop)
    }

    /// Reads a region; the answer is for nobody.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<(), Closed> {
        self.line.say(REGION_READ, &access(region, offset, count), (&[], 0), Some(&self.memory)).map(drop)
    }

    /// A turn of the server: it has answered.
    ///
    /// # Errors
    /// The connection is closed.
    ///
    /// # Panics
    /// If it does not answer for a minute.
    pub fn turn(&mut self) -> Result<(), Closed> {
        self.line.call(REGION_READ, &access(BAR0, 0, 4), &[], Some(&self.memory)).map(drop)
    }

    /// Writes `data` into a chain of mailboxes for `len` bytes from `at` on; returns its address.
    fn chain(&self, at: u64, data: &[u8], len: usize) -> u64 {
        let count = len.div_ceil(MAILBOX_DATA) as u64;
        for i in 0..count {
            let mut block = MailboxBlock::new();
            let piece = data.chunks(MAILBOX_DATA).nth(i as usize).unwrap_or_default();
            block.bytes_mut()[..piece.len()].copy_from_slice(piece);
            let next = if i + 1 < count { at + (i + 1) * MAILBOX } else { 0 };
            block.set(MailboxBlock::NEXT, next).set(MailboxBlock::BLOCK_NUMBER, i as u32);
            self.memory.put(at + i * MAILBOX, block.bytes());
        }
        if count > 0 { at } else { 0 }
    }

    /// Puts a command into a slot and hands it over, and does not wait.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn command(&mut self, slot: u8, input: &[u8], output_len: usize) -> Result<(), Closed> {
        let (inline, rest) = input.split_at(input.len().min(INLINE));
        let mut entry = CommandEntry::new();
        entry.set(CommandEntry::TYPE, ENTRY_TYPE_PCIE).set(CommandEntry::INPUT_LENGTH, input.len() as u32);
        entry.set(CommandEntry::INPUT_MAILBOX, self.chain(INPUT, rest, rest.len()));
        let more = output_len.saturating_sub(INLINE);
        entry.set(CommandEntry::OUTPUT_MAILBOX, self.chain(OUTPUT, &[], more));
        entry.set(CommandEntry::OUTPUT_LENGTH, output_len as u32).set(CommandEntry::OWNERSHIP, 1);
        entry.bytes_mut()[INLINE_INPUT..INLINE_INPUT + inline.len()].copy_from_slice(inline);
        let slot = slot % 32;
        self.memory.put(entry_of(slot), entry.bytes());
        let bit = (1u32 << slot).to_be_bytes();
        self.write(BAR0, InitSegment::COMMAND_DOORBELL_VECTOR.offset() as u64, &bit)
    }

    /// Executes a command, and looks for its answer in so many turns of the server.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn execute_in(
        &mut self,
        turns: u32,
        input: &[u8],
        output_len: usize,
    ) -> Result<Option<Vec<u8>>, Closed> {
        self.command(0, input, output_len)?;
        for _ in 0..turns {
            self.turn()?;
            let status = self.memory.take(entry_of(0) + OWNERSHIP_BYTE as u64, 1)[0];
            if status & 1 != 0 {
                continue;
            }
            let mut output = self.memory.take(entry_of(0) + INLINE_OUTPUT as u64, INLINE);
            for i in 0..output_len.saturating_sub(INLINE).div_ceil(MAILBOX_DATA) {
                output.extend_from_slice(&self.memory.take(OUTPUT + i as u64 * MAILBOX, MAILBOX_DATA));
            }
            output.truncate(output_len);
            return Ok(Some(output).filter(|_| status == 0));
        }
        Ok(None)
    }

    /// Posts a send WQE (whole basic blocks), without ringing.
    pub fn post(&mut self, i: usize, wqe: &[u8]) {
        let QueuePair { buffer, own_receive_queue, .. } = self.objects.qps[i];
        let base = buffer + if own_receive_queue { RECV_BYTES } else { 0 };
        for block in wqe.chunks(WQEBB) {
            let slot = u64::from(self.posted[i].send) % (1 << LOG_SEND);
            self.memory.put(base + slot * WQEBB as u64, block);
            self.posted[i].send = self.posted[i].send.wrapping_add(1);
        }
    }

    /// Announces send WQEs up to `counter`: doorbell record, then doorbell.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn ring(&mut self, qp: QueuePair, counter: u16) -> Result<(), Closed> {
        self.memory.put(qp.record + 4, &u32::from(counter).to_be_bytes());
        let mut doorbell = [0; 8];
        doorbell[4..].copy_from_slice(&(qp.number << 8).to_be_bytes());
        self.write(BAR0, u64::from(self.objects.uar) * PAGE_SIZE + SEND_DOORBELL, &doorbell)
    }
}

impl Executor for Guest {
    fn execute(&mut self, input: &[u8], output_len: usize) -> Vec<u8> {
        let answer = self.execute_in(TURNS, input, output_len);
        let answer = answer.expect("the server keeps a connection that says nothing wrong");
        answer.expect("the attacker's adapter answers a command after it was reset")
    }
}

fn entry_of(slot: u8) -> u64 {
    COMMANDS + u64::from(slot) * CommandEntry::SIZE as u64
}
