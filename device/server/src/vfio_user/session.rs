//! What each message means: checks every field, calls the [`Backend`], builds the reply.

use std::sync::Mutex;
use std::time::Duration;

use nix::errno::Errno;
use vfio_bindings::bindings::vfio;

use super::connection::{Connection, ConnectionError, Message};
use super::descriptor::Descriptor;
use super::multi::Writes;
use super::turn::Turn;
use super::version::{self, ClientCaps};
use super::wire::{Fields, Header, Kind, MAX_DATA_XFER, Payload, command};
use crate::memory::{Backing, Range, Window};
use crate::sync::lock;

/// Number of regions of a PCI device (`VFIO_PCI_NUM_REGIONS`).
pub const NUM_REGIONS: u32 = vfio::VFIO_PCI_NUM_REGIONS;
/// Number of interrupt types of a PCI device (`VFIO_PCI_NUM_IRQS`).
pub const NUM_IRQS: u32 = vfio::VFIO_PCI_NUM_IRQS;

/// Size and permissions of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Bytes; 0 if the region doesn't exist.
    pub size: u64,
    /// `VFIO_REGION_INFO_FLAG_*`.
    pub flags: u32,
}

/// Count and properties of an interrupt type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqInfo {
    /// Number of interrupts of this type; 0 if there is none.
    pub count: u32,
    /// `VFIO_IRQ_INFO_*`.
    pub flags: u32,
}

/// The verb of SET_IRQS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// Hold interrupts back.
    Mask,
    /// Let them through again.
    Unmask,
    /// Raise them, or say what to signal when they are raised.
    Trigger,
}

/// The object of SET_IRQS.
#[derive(Debug)]
pub enum IrqData {
    /// Act on the whole range. With a count of 0 and [`IrqAction::Trigger`]: disable the type.
    All,
    /// Act where the byte is not 0; one byte per interrupt of the range.
    Some(Vec<bool>),
    /// Connect one event descriptor to each interrupt of the range; none at all: disconnect them.
    Eventfds(Vec<Descriptor>),
}

/// A checked SET_IRQS message. `start + count` doesn't overflow; [`Backend::set_irqs`] checks it
/// against the number of interrupts.
#[derive(Debug)]
pub struct SetIrqs {
    /// Interrupt type (`VFIO_PCI_*_IRQ_INDEX`).
    pub index: u32,
    /// First interrupt of the range.
    pub start: u32,
    /// Number of interrupts.
    pub count: u32,
    /// Verb.
    pub action: IrqAction,
    /// Object.
    pub data: IrqData,
}

/// The device behind a session. Every error becomes an error reply with that errno.
pub trait Backend {
    /// The client has negotiated a version; DMA windows and interrupts may follow.
    fn attach(&mut self, caps: &ClientCaps);
    /// Size and flags of region `index`, below [`NUM_REGIONS`].
    fn region_info(&self, index: u32) -> RegionInfo;
    /// Count and flags of interrupt type `index`, below [`NUM_IRQS`].
    fn irq_info(&self, index: u32) -> IrqInfo;
    /// Reads a region; the range lies inside it.
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;
    /// Writes a region; the range lies inside it.
    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;
    /// Makes client memory accessible.
    fn dma_map(&mut self, window: Window, backing: Backing) -> Result<(), Errno>;
    /// Makes client memory inaccessible: no access happens after the return.
    fn dma_unmap(&mut self, range: Range) -> Result<(), Errno>;
    /// Acts on interrupts.
    fn set_irqs(&mut self, set: SetIrqs) -> Result<(), Errno>;
    /// Resets the device.
    fn reset(&mut self) -> Result<(), Errno>;
    /// Whether these files of the client's memory can be taken now. While they can't, none is offered to [`Backend::dma_map`], and
    /// the client waits: it is asked again, for the same.
    fn takes_files(&mut self, files: &[Descriptor]) -> bool;
    /// What the model's events took of the host's time so far, which is not the client's.
    fn events_took(&self) -> Duration;
    /// Why this client can't be served at all, if so: everything but DMA windows gets this errno.
    fn rejection(&self) -> Option<Errno>;
}

/// Protocol state of one connection.
#[derive(Debug, Default)]
pub struct Session {
    caps: Option<ClientCaps>,
}

/// What to do with the connection after a message.
#[derive(Debug)]
pub enum Verdict {
    /// Go on.
    Continue,
    /// Go on with that message in the client's next turn: it has had what a turn has, and no reply yet.
    Unfinished(Writes),
    /// Flush the replies and close, for this reason.
    Disconnect(String),
}

/// A message that was taken and is not answered; all that came behind it waits.
#[derive(Debug)]
pub enum Held {
    /// Until it can be handled ([`Backend::takes_files`]).
    Whole(Message),
    /// Until its client's next turn.
    Writes(Writes),
}

impl Session {
    /// True once the version is negotiated, that is once the backend is attached.
    pub fn is_attached(&self) -> bool {
        self.caps.is_some()
    }

    /// Handles one message and puts its reply, if it wants one, into `reply`.
    pub fn handle(&mut self, message: Message, backend: &mut impl Backend, reply: &mut Vec<u8>) -> Verdict {
        let header = message.header;
        if header.kind() == Kind::Unknown {
            *reply = header.error_reply(Errno::EINVAL);
            return Verdict::Disconnect(format!("unknown message type (flags {:#x})", header.flags));
        }
        if self.caps.is_none() || header.command == command::VERSION {
            return self.negotiate(&message, backend, reply);
        }
        let result = match message.fault {
            Some(errno) => Err(errno),
            None => match backend.rejection() {
                Some(errno) if !matches!(header.command, command::DMA_MAP | command::DMA_UNMAP) => Err(errno),
                _ if header.command == command::REGION_WRITE_MULTI => match Writes::check(message, backend) {
                    Ok(writes) => return go_on(writes, backend, reply),
                    Err(errno) => Err(errno),
                },
                _ => dispatch(message, backend),
            },
        };
        answer(&header, result, reply);
        Verdict::Continue
    }

    fn negotiate(&mut self, message: &Message, backend: &mut impl Backend, reply: &mut Vec<u8>) -> Verdict {
        let header = message.header;
        let result = if header.command != command::VERSION {
            Err((Errno::EINVAL, format!("command {} before version negotiation", header.command)))
        } else if self.caps.is_some() {
            Err((Errno::EINVAL, "version negotiated twice".into()))
        } else if let Some(errno) = message.fault {
            Err((errno, "version message too long".into()))
        } else {
            version::parse(&message.payload)
        };
        match result {
            Ok(caps) => {
                self.caps = Some(caps);
                backend.attach(&caps);
                *reply = header.reply(&version::reply(&caps));
                Verdict::Continue
            }
            Err((errno, reason)) => {
                *reply = header.error_reply(errno);
                Verdict::Disconnect(reason)
            }
        }
    }
}

/// Goes on with a message that was begun; puts its reply, if it wants one, into `reply` when it is done.
fn go_on(mut writes: Writes, backend: &mut impl Backend, reply: &mut Vec<u8>) -> Verdict {
    match writes.go_on(backend) {
        None => Verdict::Unfinished(writes),
        Some(result) => {
            answer(&writes.header, result, reply);
            Verdict::Continue
        }
    }
}

/// Puts the reply of a message into `reply`, if it wants one.
fn answer(header: &Header, result: Result<Vec<u8>, Errno>, reply: &mut Vec<u8>) {
    if let Err(errno) = result {
        tracing::debug!(command = header.command, id = header.id, "message refused: {errno}");
    }
    if !header.no_reply() {
        *reply = match result {
            Ok(payload) => header.reply(&payload),
            Err(errno) => header.error_reply(errno),
        };
    }
}

/// Performs a command; the result is the payload of its reply.
fn dispatch(message: Message, backend: &mut impl Backend) -> Result<Vec<u8>, Errno> {
    let Message { header, payload, fds, .. } = message;
    let mut fields = Fields(&payload);
    let f = &mut fields;
    let takes_fds = matches!(header.command, command::DMA_MAP | command::DEVICE_SET_IRQS);
    if !fds.is_empty() && !takes_fds {
        return Err(Errno::EINVAL);
    }
    match header.command {
        command::DMA_MAP => dma_map(f, fds, backend),
        command::DMA_UNMAP => dma_unmap(f, backend),
        command::DEVICE_GET_INFO => {
            let _argsz = f.u32()?;
            Ok(Payload::default()
                .u32(16)
                .u32(vfio::VFIO_DEVICE_FLAGS_RESET | vfio::VFIO_DEVICE_FLAGS_PCI)
                .u32(NUM_REGIONS)
                .u32(NUM_IRQS)
                .0)
        }
        command::DEVICE_GET_REGION_INFO => region_info(f, backend),
        command::DEVICE_GET_IRQ_INFO => irq_info(f, backend),
        command::DEVICE_SET_IRQS => set_irqs(f, fds, backend),
        command::REGION_READ => region_read(f, backend),
        command::REGION_WRITE => region_write(f, backend),
        command::DEVICE_RESET => backend.reset().map(|()| Vec::new()),
        // REGION_IO_FDS, migration features, and whatever a later version brings.
        _ => Err(Errno::ENOTSUP),
    }
}

fn dma_map(f: &mut Fields<'_>, fds: Vec<Descriptor>, backend: &mut impl Backend) -> Result<Vec<u8>, Errno> {
    let (_argsz, flags) = (f.u32()?, f.u32()?);
    let offset = f.u64()?;
    let window = Window {
        iova: f.u64()?,
        size: f.u64()?,
        readable: flags & vfio::VFIO_DMA_MAP_FLAG_READ != 0,
        writable: flags & vfio::VFIO_DMA_MAP_FLAG_WRITE != 0,
    };
    let known = vfio::VFIO_DMA_MAP_FLAG_READ | vfio::VFIO_DMA_MAP_FLAG_WRITE;
    let mut fds = fds.into_iter();
    let fd = fds.next();
    if fds.next().is_some() || flags & !known != 0 || window.size == 0 {
        return Err(Errno::EINVAL);
    }
    // The end of the address space itself is a legal end.
    if window.iova.checked_add(window.size - 1).is_none() {
        return Err(Errno::EOVERFLOW);
    }
    let backing = match fd {
        Some(fd) => Backing::File { fd: fd.into_memory()?, offset },
        None => Backing::Remote,
    };
    backend.dma_map(window, backing)?;
    Ok(Vec::new())
}

fn dma_unmap(f: &mut Fields<'_>, backend: &mut impl Backend) -> Result<Vec<u8>, Errno> {
    let (_argsz, flags) = (f.u32()?, f.u32()?);
    let (iova, size) = (f.u64()?, f.u64()?);
    let range = match flags {
        vfio::VFIO_DMA_UNMAP_FLAG_ALL if iova == 0 && size == 0 => Range::All,
        0 if size > 0 && iova.checked_add(size - 1).is_some() => Range::Part { iova, size },
        // Dirty page bitmaps belong to migration, which is not offered.
        _ => return Err(Errno::EINVAL),
    };
    backend.dma_unmap(range)?;
    Ok(Payload::default().u32(24).u32(flags).u64(iova).u64(size).0)
}

fn region_info(f: &mut Fields<'_>, backend: &mut impl Backend) -> Result<Vec<u8>, Errno> {
    let (_argsz, _flags, index) = (f.u32()?, f.u32()?, f.u32()?);
    if index >= NUM_REGIONS {
        return Err(Errno::EINVAL);
    }
    let info = backend.region_info(index);
    Ok(Payload::default().u32(32).u32(info.flags).u32(index).u32(0).u64(info.size).u64(0).0)
}

fn irq_info(f: &mut Fields<'_>, backend: &mut impl Backend) -> Result<Vec<u8>, Errno> {
    let (_argsz, _flags, index) = (f.u32()?, f.u32()?, f.u32()?);
    if index >= NUM_IRQS {
        return Err(Errno::EINVAL);
    }
    let info = backend.irq_info(index);
    Ok(Payload::default().u32(16).u32(info.flags).u32(index).u32(info.count).0)
}

fn set_irqs(f: &mut Fields<'_>, fds: Vec<Descriptor>, backend: &mut impl Backend) -> Result<Vec<u8>, Errno> {
    let (_argsz, flags) = (f.u32()?, f.u32()?);
    let (index, start, count) = (f.u32()?, f.u32()?, f.u32()?);
    let known = vfio::VFIO_IRQ_SET_DATA_TYPE_MASK | vfio::VFIO_IRQ_SET_ACTION_TYPE_MASK;
    if index >= NUM_IRQS || start.checked_add(count).is_none() || flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let action = match flags & vfio::VFIO_IRQ_SET_ACTION_TYPE_MASK {
        vfio::VFIO_IRQ_SET_ACTION_MASK => IrqAction::Mask,
        vfio::VFIO_IRQ_SET_ACTION_UNMASK => IrqAction::Unmask,
        vfio::VFIO_IRQ_SET_ACTION_TRIGGER => IrqAction::Trigger,
        _ => return Err(Errno::EINVAL),
    };
    let length = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    let data = match flags & vfio::VFIO_IRQ_SET_DATA_TYPE_MASK {
        vfio::VFIO_IRQ_SET_DATA_NONE if fds.is_empty() => IrqData::All,
        vfio::VFIO_IRQ_SET_DATA_BOOL if fds.is_empty() => {
            IrqData::Some(f.bytes(length)?.iter().map(|&b| b != 0).collect())
        }
        // No descriptor at all disconnects the range; else each interrupt must have one.
        vfio::VFIO_IRQ_SET_DATA_EVENTFD if fds.is_empty() => IrqData::Eventfds(Vec::new()),
        vfio::VFIO_IRQ_SET_DATA_EVENTFD if fds.len() == length => IrqData::Eventfds(fds),
        _ => return Err(Errno::EINVAL),
    };
    backend.set_irqs(SetIrqs { index, start, count, action, data })?;
    Ok(Vec::new())
}

/// Checks an access against its region. Returns the length as a buffer size.
pub(super) fn check_access(
    backend: &impl Backend,
    region: u32,
    offset: u64,
    count: u32,
    permission: u32,
) -> Result<usize, Errno> {
    let len = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    if region >= NUM_REGIONS || len > MAX_DATA_XFER {
        return Err(Errno::EINVAL);
    }
    let info = backend.region_info(region);
    let end = offset.checked_add(u64::from(count)).ok_or(Errno::EINVAL)?;
    if end > info.size {
        return Err(Errno::EINVAL);
    }
    if info.flags & permission == 0 {
        return Err(Errno::EPERM);
    }
    Ok(len)
}

fn region_read(f: &mut Fields<'_>, backend: &mut impl Backend) -> Result<Vec<u8>, Errno> {
    let (offset, region, count) = (f.u64()?, f.u32()?, f.u32()?);
    let permission = vfio::VFIO_REGION_INFO_FLAG_READ;
    let len = check_access(backend, region, offset, count, permission)?;
    let mut reply = Payload::default().u64(offset).u32(region).u32(count).0;
    let fixed = reply.len();
    reply.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    reply.resize(fixed + len, 0);
    let data = reply.get_mut(fixed..).ok_or(Errno::EINVAL)?;
    backend.region_read(region, offset, data)?;
    Ok(reply)
}

fn region_write(f: &mut Fields<'_>, backend: &mut impl Backend) -> Result<Vec<u8>, Errno> {
    let (offset, region, count) = (f.u64()?, f.u32()?, f.u32()?);
    let permission = vfio::VFIO_REGION_INFO_FLAG_WRITE;
    let len = check_access(backend, region, offset, count, permission)?;
    let data = f.bytes(len)?;
    backend.region_write(region, offset, data)?;
    Ok(Payload::default().u64(offset).u32(region).u32(count).0)
}

/// Takes commands off the connection and handles them, as many as the turn allows. Returns the number handled.
///
/// `held` is a message that was taken and waits, with all that came behind it.
/// `connection` is locked anew for each step, since a command may make the device send DMA messages
/// over the same connection.
///
/// # Errors
/// A [`ConnectionError`] or [`Verdict::Disconnect`] as text: the connection is over.
pub fn serve(
    connection: &Mutex<Connection>,
    session: &mut Session,
    backend: &mut impl Backend,
    held: &mut Option<Held>,
    turn: &mut Turn,
) -> Result<usize, String> {
    let say = |e: ConnectionError| e.to_string();
    let mut done = 0;
    let mut reply = Vec::new();
    while turn.goes_on() {
        let message = match held.take() {
            Some(held) => held,
            None => {
                let mut connection = lock(connection);
                connection.flush().map_err(say)?;
                if connection.is_congested() {
                    return Ok(done);
                }
                match connection.next_command(turn).map_err(say)? {
                    Some(message) => Held::Whole(message),
                    None => return Ok(done),
                }
            }
        };
        reply.clear();
        let before = backend.events_took();
        let verdict = match message {
            Held::Writes(writes) => go_on(writes, backend, &mut reply),
            Held::Whole(message) => {
                let hands_over = message.header.command == command::DMA_MAP && !message.fds.is_empty();
                if hands_over && session.is_attached() && !backend.takes_files(&message.fds) {
                    *held = Some(Held::Whole(message));
                    return Ok(done);
                }
                session.handle(message, backend, &mut reply)
            }
        };
        turn.excuse(backend.events_took().saturating_sub(before));
        if !reply.is_empty() {
            lock(connection).send(&reply).map_err(say)?;
        }
        match verdict {
            Verdict::Continue => done += 1,
            Verdict::Unfinished(writes) => {
                *held = Some(Held::Writes(writes));
                turn.end();
            }
            Verdict::Disconnect(reason) => return Err(reason),
        }
    }
    Ok(done)
}
