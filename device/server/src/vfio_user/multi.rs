//! Several writes to registers in one message ("VFIO_USER_REGION_WRITE_MULTI"): checked as a whole, done some in each turn of the client.

use nix::errno::Errno;
use vfio_bindings::bindings::vfio;

use super::connection::Message;
use super::session::{Backend, check_access};
use super::wire::{Fields, Header, Payload};

/// Writes of one message that are done in a turn: QEMU gathers 200 at most (`VFIO_USER_MULTI_MAX`). A message has as many as it has room for,
/// some 43,000, and none of them looks at the clock.
const MOST_WRITES: usize = 256;
/// Bytes of one write: where, in which region, how many bytes, and 8 of data.
const WRITE_LEN: usize = 24;
/// Bytes before the first: their number.
const FIXED_LEN: usize = 8;

/// A message of writes, all of which may be done. Some are not done yet.
#[derive(Debug)]
pub struct Writes {
    /// Of the message.
    pub(super) header: Header,
    payload: Vec<u8>,
    /// Writes of the message, which is as long as they need.
    count: usize,
    /// How many of them are done.
    done: usize,
}

impl Writes {
    /// Takes a message, and does nothing yet. All or nothing: a bad entry must not leave the ones before it done and unreported.
    ///
    /// # Errors
    /// `EINVAL`: it is shorter than its writes, has descriptors, or one of the writes lies outside; `EPERM`: of a region that isn't written.
    pub(super) fn check(message: Message, backend: &impl Backend) -> Result<Writes, Errno> {
        let Message { header, payload, fds, .. } = message;
        if !fds.is_empty() {
            return Err(Errno::EINVAL);
        }
        let mut fields = Fields(&payload);
        let count = usize::try_from(fields.u64()?).map_err(|_| Errno::EINVAL)?;
        let list = fields.bytes(count.checked_mul(WRITE_LEN).ok_or(Errno::EINVAL)?)?;
        for write in list.chunks_exact(WRITE_LEN) {
            let (region, offset, data) = parse(write)?;
            let len = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
            check_access(backend, region, offset, len, vfio::VFIO_REGION_INFO_FLAG_WRITE)?;
        }
        Ok(Writes { header, payload, count, done: 0 })
    }

    /// Does the next of them, as many as a turn has. `None`: there are more; else what is answered.
    pub(super) fn go_on(&mut self, backend: &mut impl Backend) -> Option<Result<Vec<u8>, Errno>> {
        let list = self.payload.get(FIXED_LEN..).unwrap_or_default();
        let left = self.count.saturating_sub(self.done);
        for write in list.chunks_exact(WRITE_LEN).skip(self.done).take(left.min(MOST_WRITES)) {
            let written = parse(write).and_then(|(region, at, data)| backend.region_write(region, at, data));
            if let Err(errno) = written {
                return Some(Err(errno));
            }
        }
        self.done = self.done.saturating_add(left.min(MOST_WRITES));
        (self.done >= self.count).then(|| Ok(Payload::default().u64(self.count as u64).0))
    }
}

/// Region, offset and bytes of a write.
fn parse(write: &[u8]) -> Result<(u32, u64, &[u8]), Errno> {
    let mut fields = Fields(write);
    let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
    let data = fields.bytes(usize::try_from(count).map_err(|_| Errno::EINVAL)?)?;
    Ok((region, offset, data))
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::super::connection::Connection;
    use super::super::descriptor::Descriptor;
    use super::super::session::{Held, IrqInfo, RegionInfo, Session, SetIrqs, serve};
    use super::super::turn::Turn;
    use super::super::version::ClientCaps;
    use super::super::wire::{HEADER_LEN, command};
    use super::*;
    use crate::memory::{Backing, Range, Window};

    /// Region 0 is written and read, region 1 only read; both have 4 KiB.
    #[derive(Default)]
    struct Registers {
        written: Vec<(u64, Vec<u8>)>,
    }

    impl Backend for Registers {
        fn attach(&mut self, _: &ClientCaps) {}
        fn region_info(&self, index: u32) -> RegionInfo {
            let write = if index == 0 { vfio::VFIO_REGION_INFO_FLAG_WRITE } else { 0 };
            RegionInfo { size: 4096, flags: vfio::VFIO_REGION_INFO_FLAG_READ | write }
        }
        fn irq_info(&self, _: u32) -> IrqInfo {
            IrqInfo::default()
        }
        fn region_read(&mut self, _: u32, _: u64, _: &mut [u8]) -> Result<(), Errno> {
            Ok(())
        }
        fn region_write(&mut self, _: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
            self.written.push((offset, data.to_vec()));
            Ok(())
        }
        fn dma_map(&mut self, _: Window, _: Backing) -> Result<(), Errno> {
            Ok(())
        }
        fn dma_unmap(&mut self, _: Range) -> Result<(), Errno> {
            Ok(())
        }
        fn set_irqs(&mut self, _: SetIrqs) -> Result<(), Errno> {
            Ok(())
        }
        fn reset(&mut self) -> Result<(), Errno> {
            Ok(())
        }
        fn takes_files(&mut self, _: &[Descriptor]) -> bool {
            true
        }
        fn events_took(&self) -> Duration {
            Duration::ZERO
        }
        fn rejection(&self) -> Option<Errno> {
            None
        }
    }

    /// A client and what serves it.
    struct Both {
        client: UnixStream,
        connection: Mutex<Connection>,
        session: Session,
        held: Option<Held>,
        registers: Registers,
    }

    impl Both {
        fn new() -> Both {
            let (ours, client) = UnixStream::pair().unwrap();
            client.set_nonblocking(true).unwrap();
            let connection = Mutex::new(Connection::new(ours).unwrap());
            let (session, registers) = (Session::default(), Registers::default());
            let mut both = Both { client, connection, session, held: None, registers };
            both.say(command::VERSION, &[0; 4]);
            both.turn();
            assert!(both.reply().is_some());
            both
        }

        fn say(&mut self, command: u16, payload: &[u8]) {
            let header = Header::request(1, command, payload.len());
            self.client.write_all(&header.encode()).unwrap();
            self.client.write_all(payload).unwrap();
        }

        fn turn(&mut self) {
            let Both { connection, session, held, registers, .. } = self;
            serve(connection, session, registers, held, &mut Turn::default()).unwrap();
        }

        /// Header and payload of the next reply, if one is there.
        fn reply(&mut self) -> Option<(Header, Vec<u8>)> {
            let mut head = [0; HEADER_LEN];
            match self.client.read_exact(&mut head) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
                read => read.unwrap(),
            }
            let header = Header::decode(&head);
            let mut payload = vec![0; header.size as usize - HEADER_LEN];
            self.client.read_exact(&mut payload).unwrap();
            Some((header, payload))
        }
    }

    fn write(offset: u64, region: u32, value: u64) -> Payload {
        Payload::default().u64(offset).u32(region).u32(8).u64(value)
    }

    /// A message of so many writes; the value says which of them it is.
    fn message(writes: u64) -> Vec<u8> {
        let all = (0..writes).flat_map(|i| write(i % 512 * 8, 0, i).0);
        writes.to_ne_bytes().into_iter().chain(all).collect()
    }

    /// Each turn does some, in their order, and others have theirs between; there is one reply, and what came behind waits for it.
    #[test]
    fn a_long_message_takes_several_turns() {
        let (mut one, mut other) = (Both::new(), Both::new());
        one.say(command::REGION_WRITE_MULTI, &message(1000));
        one.say(command::REGION_WRITE, &write(8, 0, 1000).0);
        for turn in 1..=3 {
            one.turn();
            assert_eq!((one.registers.written.len(), one.reply()), (turn * MOST_WRITES, None));
            other.say(command::REGION_READ, &Payload::default().u64(0).u32(0).u32(4).0);
            other.turn();
            assert!(other.reply().is_some());
        }
        one.turn();
        let reply = one.reply().unwrap();
        assert_eq!((reply.0.is_error(), reply.1), (false, 1000u64.to_ne_bytes().to_vec()));
        assert_eq!(one.reply().unwrap().0.command, command::REGION_WRITE);
        assert_eq!(one.reply(), None);
        let values = one.registers.written.iter().map(|(_, data)| data.as_slice());
        assert!(values.eq((0..=1000u64).map(u64::to_ne_bytes)));
    }

    /// What fills a turn is answered in it.
    #[test]
    fn a_turn_is_enough_for_what_is_usual() {
        let mut one = Both::new();
        for writes in [0, 1, MOST_WRITES as u64] {
            one.say(command::REGION_WRITE_MULTI, &message(writes));
            one.turn();
            assert_eq!(one.reply().unwrap().1, writes.to_ne_bytes());
        }
    }

    /// The whole message is looked at before its first write, however far behind that the bad one is.
    #[test]
    fn a_bad_write_leaves_all_undone() {
        let mut one = Both::new();
        let bad = [
            (write(4089, 0, 0), Errno::EINVAL),
            (write(0, 1, 0), Errno::EPERM),
            (Payload::default().u64(0).u32(0).u32(9).u64(0), Errno::EINVAL),
        ];
        for (write, errno) in bad {
            let mut payload = message(1000);
            payload.splice(payload.len() - WRITE_LEN.., write.0);
            one.say(command::REGION_WRITE_MULTI, &payload);
            one.turn();
            assert_eq!(one.reply().unwrap().0.error, errno as u32);
        }
        let short = message(1000);
        one.say(command::REGION_WRITE_MULTI, &short[..short.len() - 1]);
        one.say(command::REGION_WRITE_MULTI, &[u64::MAX.to_ne_bytes(), [0; 8]].concat());
        one.turn();
        assert_eq!([one.reply().unwrap().0.error, one.reply().unwrap().0.error], [Errno::EINVAL as u32; 2]);
        assert!(one.registers.written.is_empty());
    }
}
