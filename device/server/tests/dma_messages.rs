//! Memory without a descriptor: the device asks the client by messages.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use common::Raw;
use hca_server::memory::{Backing, HostMemory, MemoryError, Peer, RemoteError, Window};
use hca_server::vfio_user::connection::Connection;
use nix::errno::Errno;

const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;
const BASE: u64 = 0xf000_0000;
const SIZE: u64 = 0x10_0000;

/// A window reached by messages, and the client's end of the connection.
fn setup(max_data_xfer: usize) -> (HostMemory, Arc<Mutex<Connection>>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut connection = Connection::new(ours).unwrap();
    connection.max_data_xfer = max_data_xfer;
    let connection = Arc::new(Mutex::new(connection));
    let memory = HostMemory::new();
    memory.connect(Some(connection.clone()), Peer::default());
    memory.set_bus_master(true);
    let window = Window { iova: BASE, size: SIZE, readable: true, writable: true };
    memory.map(window, Backing::Remote).unwrap();
    (memory, connection, theirs)
}

struct Request {
    id: u16,
    command: u16,
    address: u64,
    count: u64,
    data: Vec<u8>,
}

fn request(stream: &mut UnixStream) -> Request {
    let mut head = [0; 32];
    stream.read_exact(&mut head).unwrap();
    let size = u32::from_ne_bytes(head[4..8].try_into().unwrap());
    let mut data = vec![0; size as usize - 32];
    stream.read_exact(&mut data).unwrap();
    Request {
        id: u16::from_ne_bytes([head[0], head[1]]),
        command: u16::from_ne_bytes([head[2], head[3]]),
        address: u64::from_ne_bytes(head[16..24].try_into().unwrap()),
        count: u64::from_ne_bytes(head[24..32].try_into().unwrap()),
        data,
    }
}

fn reply(stream: &mut UnixStream, request: &Request, data: &[u8]) {
    let size = 32 + data.len() as u32;
    let mut out = Raw::header(request.id, request.command, size, 1);
    out.extend_from_slice(&request.address.to_ne_bytes());
    out.extend_from_slice(&request.count.to_ne_bytes());
    out.extend_from_slice(data);
    stream.write_all(&out).unwrap();
}

/// Serves `count` requests from a memory of `SIZE` bytes and returns it.
fn client(mut stream: UnixStream, count: usize) -> JoinHandle<(Vec<u8>, UnixStream)> {
    std::thread::spawn(move || {
        let mut memory: Vec<u8> = (0..SIZE).map(|i| i as u8).collect();
        for _ in 0..count {
            let r = request(&mut stream);
            let at = (r.address - BASE) as usize;
            let len = r.count as usize;
            match r.command {
                DMA_READ => reply(&mut stream, &r, &memory[at..at + len]),
                DMA_WRITE => {
                    memory[at..at + len].copy_from_slice(&r.data);
                    reply(&mut stream, &r, &[]);
                }
                other => panic!("command {other}"),
            }
        }
        (memory, stream)
    })
}

#[test]
fn reads_and_writes_arrive() {
    // 10 bytes in steps of 4: three messages each.
    let (memory, _connection, stream) = setup(4);
    let client = client(stream, 6);
    let mut buf = [0; 10];
    memory.read(BASE + 3, &mut buf).unwrap();
    assert_eq!(buf, [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    memory.write(BASE + 1, &[0xee; 10]).unwrap();
    let (after, _stream) = client.join().unwrap();
    assert_eq!(after[0], 0);
    assert_eq!(after[1..11], [0xee; 10]);
    assert_eq!(after[11], 11);
}

#[test]
fn commands_in_between_are_not_lost() {
    let (memory, connection, mut stream) = setup(1 << 20);
    let client = std::thread::spawn(move || {
        let r = request(&mut stream);
        // Two commands and an answer to nothing overtake the answer.
        for id in [7, 8] {
            stream.write_all(&Raw::header(id, 13, 16, 0)).unwrap();
        }
        stream.write_all(&Raw::header(99, DMA_READ, 16, 1)).unwrap();
        reply(&mut stream, &r, &[1, 2]);
        stream
    });
    let mut buf = [0; 2];
    memory.read(BASE, &mut buf).unwrap();
    assert_eq!(buf, [1, 2]);
    let _stream = client.join().unwrap();
    let mut connection = connection.lock().unwrap();
    assert!(connection.has_queued());
    let ids: Vec<u16> =
        std::iter::from_fn(|| connection.next_command().unwrap()).map(|m| m.header.id).collect();
    assert_eq!(ids, [7, 8]);
}

#[test]
fn refusals_and_nonsense_are_errors() {
    let (memory, _connection, mut stream) = setup(1 << 20);
    let client = std::thread::spawn(move || {
        let r = request(&mut stream);
        let mut error = Raw::header(r.id, r.command, 16, 1 | 1 << 5);
        error[12..16].copy_from_slice(&(Errno::EFAULT as u32).to_ne_bytes());
        stream.write_all(&error).unwrap();
        // Too few bytes; another address; no payload at all.
        let r = request(&mut stream);
        reply(&mut stream, &r, &[1]);
        let mut r = request(&mut stream);
        r.address += 1;
        reply(&mut stream, &r, &[1, 2]);
        let r = request(&mut stream);
        stream.write_all(&Raw::header(r.id, r.command, 16, 1)).unwrap();
        stream
    });
    let mut buf = [0; 2];
    let mut read = || memory.read(BASE, &mut buf).unwrap_err();
    let refused = RemoteError::Refused(Errno::EFAULT);
    assert_eq!(read(), MemoryError::Remote(refused));
    for _ in 0..3 {
        assert_eq!(read(), MemoryError::Remote(RemoteError::Malformed));
    }
    drop(client.join().unwrap());
    assert_eq!(read(), MemoryError::Remote(RemoteError::Lost));
}

#[test]
fn a_silent_client_is_given_up() {
    let (memory, _connection, stream) = setup(1 << 20);
    let timed_out = MemoryError::Remote(RemoteError::TimedOut);
    for _ in 0..20 {
        assert_eq!(memory.write(BASE, &[1]), Err(timed_out));
    }
    // After a few the server stops asking: not all 20 requests were sent.
    stream.set_nonblocking(true).unwrap();
    let mut sent = Vec::new();
    let _ = (&stream).read_to_end(&mut sent);
    assert!(sent.len() < 20 * 33, "{}", sent.len());
    assert_eq!(sent.len() % 33, 0);
}
