//! Memory without a descriptor: the device asks the client by messages, and goes on.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::{self, Raw, Server, dma_map, dma_unmap};
use hca_model::{Answer, Asked, DeferredReads, DmaError};
use hca_server::memory::{
    Backing, HostMemory, MemoryError, Peer, Range, RemoteAnswer, RemoteError, RemoteMemory, Window,
};
use hca_server::vfio_user::connection::Connection;
use hca_server::vfio_user::turn::Turn;
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

/// Gives it a mapped window as well, from 0x1000 on; returns the file.
fn map_file(memory: &HostMemory) -> File {
    let file = common::memfd(0x1000);
    let fd = file.try_clone().unwrap().into();
    let window = Window { iova: 0x1000, size: 0x1000, readable: true, writable: true };
    memory.map(window, Backing::File { fd, offset: 0 }).unwrap();
    file
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

/// The next answer to what was asked by messages. Commands on the way are kept.
fn answer(connection: &Mutex<Connection>, commands: &mut Vec<u16>) -> RemoteAnswer {
    loop {
        if let Some(answer) = connection.next_answer() {
            return answer;
        }
        match connection.lock().unwrap().next_command(&mut Turn::default()) {
            Ok(Some(message)) => commands.push(message.header.id),
            Ok(None) => std::thread::yield_now(),
            Err(why) => panic!("{why}"),
        }
    }
}

/// The next answer that the model gets.
fn model_answer(memory: &HostMemory, connection: &Mutex<Connection>) -> Answer {
    loop {
        if let Some(answer) = memory.next_answer() {
            return answer;
        }
        assert!(connection.lock().unwrap().next_command(&mut Turn::default()).unwrap().is_none());
        memory.take_answers();
        std::thread::yield_now();
    }
}

#[test]
fn reads_and_writes_arrive() {
    // 10 bytes in steps of 4: three messages each.
    let (memory, connection, stream) = setup(4);
    let client = client(stream, 6);
    assert_eq!(memory.ask(7, BASE + 3, 10), Asked::OnItsWay);
    let data = Ok(vec![3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(model_answer(&memory, &connection), Answer::Read { ticket: 7, data });
    memory.write(BASE + 1, &[0xee; 10]).unwrap();
    assert!(memory.is_writing());
    let (after, _stream) = client.join().unwrap();
    assert_eq!(after[0], 0);
    assert_eq!(after[1..11], [0xee; 10]);
    assert_eq!(after[11], 11);
    while memory.is_writing() {
        assert!(connection.lock().unwrap().next_command(&mut Turn::default()).unwrap().is_none());
        memory.take_answers();
    }
    assert_eq!(memory.read(BASE, &mut [0]), Err(MemoryError::Deferred(BASE)));
}

#[test]
fn commands_in_between_are_not_lost() {
    let (_memory, connection, mut stream) = setup(1 << 20);
    connection.read(5, BASE, 2).unwrap();
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
    let mut commands = Vec::new();
    let answer = answer(&connection, &mut commands);
    assert_eq!(answer, RemoteAnswer { ticket: 5, result: Ok(vec![1, 2]) });
    assert_eq!(commands, [7, 8]);
    let _stream = client.join().unwrap();
}

/// Answers may come in any order.
#[test]
fn answers_overtake_each_other() {
    let (memory, connection, mut stream) = setup(1 << 20);
    for ticket in 0..3 {
        assert_eq!(memory.ask(ticket, BASE + ticket, 1), Asked::OnItsWay);
    }
    let asked = [(); 3].map(|()| request(&mut stream));
    for at in [2, 0, 1] {
        reply(&mut stream, &asked[at], &[at as u8]);
        let expected = Answer::Read { ticket: at as u64, data: Ok(vec![at as u8]) };
        assert_eq!(model_answer(&memory, &connection), expected);
    }
}

#[test]
fn refusals_and_nonsense_are_errors() {
    let (memory, connection, mut stream) = setup(1 << 20);
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
        let mut write = request(&mut stream);
        write.command = DMA_WRITE;
        let mut error = Raw::header(write.id, write.command, 16, 1 | 1 << 5);
        error[12..16].copy_from_slice(&(Errno::EFAULT as u32).to_ne_bytes());
        stream.write_all(&error).unwrap();
        stream
    });
    let read = || {
        connection.read(3, BASE, 2)?;
        answer(&connection, &mut Vec::new()).result
    };
    assert_eq!(read(), Err(RemoteError::Refused(Errno::EFAULT)));
    for _ in 0..3 {
        assert_eq!(read(), Err(RemoteError::Malformed));
    }
    // A write that was posted is refused later.
    memory.write(BASE, &[1, 2]).unwrap();
    let failed = Answer::WriteFailed(DmaError { iova: BASE, len: 2 });
    assert_eq!(model_answer(&memory, &connection), failed);
    assert_eq!(memory.failed_accesses(), 1);
    drop(client.join().unwrap());
    assert_eq!(connection.read(3, BASE, 2), Err(RemoteError::Lost));
}

#[test]
fn a_silent_client_is_given_up() {
    let (memory, connection, stream) = setup(1 << 20);
    connection.lock().unwrap().dma_timeout = Duration::from_millis(1);
    let timed_out = Err(RemoteError::TimedOut);
    let mut failed = 0;
    for i in 0..20 {
        let asked = connection.write(i, BASE, &[1]);
        if asked == Ok(()) {
            assert_eq!(answer(&connection, &mut Vec::new()).result, timed_out);
            failed += 1;
        } else {
            assert_eq!(asked, Err(RemoteError::TimedOut));
        }
    }
    assert_eq!(failed, 4);
    assert_eq!(memory.ask(1, BASE, 1), Asked::Failed(DmaError { iova: BASE, len: 1 }));
    // After a few the server stops asking: not all 20 requests were sent.
    stream.set_nonblocking(true).unwrap();
    let mut sent = Vec::new();
    let _ = (&stream).read_to_end(&mut sent);
    assert_eq!(sent.len(), 4 * 33);
}

/// Answers that dribble in don't give an access more time: it has one deadline.
#[test]
fn an_access_has_one_deadline() {
    let (memory, connection, mut stream) = setup(4);
    connection.lock().unwrap().dma_timeout = Duration::from_millis(30);
    assert_eq!(memory.ask(1, BASE, 4000), Asked::OnItsWay);
    // One of its thousand messages every millisecond.
    let client = std::thread::spawn(move || {
        for answered in 0..1000 {
            let r = request(&mut stream);
            std::thread::sleep(Duration::from_millis(1));
            let size = 32 + 4;
            let mut out = Raw::header(r.id, r.command, size, 1);
            out.extend_from_slice(&[r.address.to_ne_bytes(), r.count.to_ne_bytes()].concat());
            out.extend_from_slice(&[0; 4]);
            if stream.write_all(&out).is_err() {
                return answered;
            }
        }
        1000
    });
    let answer = model_answer(&memory, &connection);
    assert_eq!(answer, Answer::Read { ticket: 1, data: Err(DmaError { iova: BASE, len: 4000 }) });
    drop((memory, connection));
    assert!((1..1000).contains(&client.join().unwrap()));
}

/// What was asked before the client was given up fails with it.
#[test]
fn all_that_waits_for_a_silent_client_fails() {
    let (memory, connection, _stream) = setup(1 << 20);
    connection.lock().unwrap().dma_timeout = Duration::from_millis(1);
    for ticket in 0..30 {
        assert_eq!(memory.ask(ticket, BASE, 8), Asked::OnItsWay);
    }
    for _ in 0..30 {
        let Answer::Read { data, .. } = model_answer(&memory, &connection) else { panic!("a read") };
        assert_eq!(data, Err(DmaError { iova: BASE, len: 8 }));
    }
    assert_eq!(memory.deadline(), None);
}

/// A bounded number of reads is under way; writes are taken, and the adapter is told to begin nothing new.
#[test]
fn what_is_under_way_is_bounded() {
    let (memory, _connection, stream) = setup(1 << 20);
    let asked = (0..1000).take_while(|ticket| memory.ask(*ticket, BASE, 8) == Asked::OnItsWay).count();
    assert!((1..=64).contains(&asked), "{asked}");
    let written = (0..1000).take_while(|_| memory.takes_writes() && memory.write(BASE, &[1]).is_ok()).count();
    assert!((1..=256).contains(&written), "{written}");
    drop(stream);
}

/// Writes become visible in their order, be the memory mapped or not, and reads don't pass them.
#[test]
fn writes_keep_their_order() {
    let (memory, connection, mut stream) = setup(1 << 20);
    let file = map_file(&memory);
    let byte = |at| {
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, at).unwrap();
        byte[0]
    };
    memory.write(BASE, &[1]).unwrap();
    memory.write(0x1000, &[2, 2]).unwrap();
    memory.write(BASE + 1, &[3]).unwrap();
    memory.write(0x1001, &[4]).unwrap();
    // The host sees the first one only; the adapter sees all of its own.
    assert_eq!(byte(0), 0);
    let mut two = [0; 2];
    memory.read(0x1000, &mut two).unwrap();
    assert_eq!(two, [2, 4]);
    assert_eq!(memory.ask(1, BASE + 1, 1), Asked::Busy, "it would pass a write");
    let first = request(&mut stream);
    assert_eq!((first.address, &first.data[..]), (BASE, &[1][..]));
    reply(&mut stream, &first, &[]);
    let take = || {
        assert!(connection.lock().unwrap().next_command(&mut Turn::default()).unwrap().is_none());
        memory.take_answers();
    };
    while byte(0) == 0 {
        take();
    }
    assert_eq!((byte(0), byte(1)), (2, 2));
    assert_eq!(memory.ask(1, BASE + 1, 1), Asked::OnItsWay);
    let second = request(&mut stream);
    assert_eq!((second.address, &second.data[..]), (BASE + 1, &[3][..]));
    assert_eq!(request(&mut stream).command, DMA_READ);
    reply(&mut stream, &second, &[]);
    while memory.is_writing() {
        take();
    }
    assert_eq!(byte(1), 4);
}

/// Unmapping does what was written before, and fails what is read.
#[test]
fn nothing_follows_an_unmap() {
    let (memory, connection, mut stream) = setup(1 << 20);
    let file = map_file(&memory);
    assert_eq!(memory.ask(9, BASE, 4), Asked::OnItsWay);
    memory.write(BASE, &[1]).unwrap();
    memory.write(0x1000, &[2]).unwrap();
    memory.unmap(Range::All).unwrap();
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 0).unwrap();
    assert_eq!(byte, [2]);
    let gone = Answer::Read { ticket: 9, data: Err(DmaError { iova: BASE, len: 4 }) };
    assert_eq!(memory.next_answer(), Some(gone));
    let (read, write) = (request(&mut stream), request(&mut stream));
    reply(&mut stream, &read, &[1, 2, 3, 4]);
    reply(&mut stream, &write, &[]);
    while memory.is_writing() {
        assert!(connection.lock().unwrap().next_command(&mut Turn::default()).unwrap().is_none());
        memory.take_answers();
    }
    assert_eq!(memory.next_answer(), None, "what came too late is for nobody");
    assert!(memory.answers_at_once(BASE, 4), "with an error");
}

/// Physical address of the command queue, and the command doorbell.
const COMMAND_QUEUE: u64 = 0x10;
const COMMAND_DOORBELL: u64 = 0x18;

/// A client that maps its memory without a descriptor and has rung for a command: the server has asked for the entry.
fn asking(server: &Server, host: &str) -> (Raw, Request) {
    let mut raw = server.client(host);
    raw.call(2, &dma_map(BASE, SIZE, 0)).ok();
    raw.region_write(7, 4, &[6, 0]).ok();
    raw.region_write(0, COMMAND_QUEUE, &(BASE >> 32).to_be_bytes()[4..]).ok();
    raw.region_write(0, COMMAND_QUEUE + 4, &(BASE as u32).to_be_bytes()).ok();
    let doorbell =
        raw.message(10, &[&common::access(0, COMMAND_DOORBELL, 4)[..], &1u32.to_be_bytes()].concat(), 0);
    raw.stream.write_all(&doorbell).unwrap();
    // The reply to the doorbell, and the question, in any order.
    let (mut asked, mut told) = (None, false);
    while asked.is_none() || !told {
        let message = raw.reply().unwrap();
        match message.command {
            DMA_READ => {
                let number = |at: usize| u64::from_ne_bytes(message.payload[at..at + 8].try_into().unwrap());
                let (id, command) = (message.id, message.command);
                asked = Some(Request { id, command, address: number(0), count: number(8), data: Vec::new() });
            }
            10 => told = true,
            other => panic!("message {other}"),
        }
    }
    let asked = asked.unwrap();
    assert_eq!((asked.address, asked.count), (BASE, 64));
    (raw, asked)
}

/// A client that does not answer: it and others are served all the same, and it can go.
#[test]
fn a_question_without_an_answer_holds_nobody() {
    let server = Server::start(&["a", "b"]);
    let (mut silent, asked) = asking(&server, "a");
    let mut other = server.client("b");
    for _ in 0..100 {
        assert_eq!(other.identity(), common::IDENTITY);
        other.region_read(0, 0, 4).ok();
    }
    // Its own registers answer, too; the answer comes in single bytes.
    assert_eq!(silent.identity(), common::IDENTITY);
    silent.region_read(0, 0, 4).ok();
    let mut bytes = Raw::header(asked.id, asked.command, 32 + 64, 1);
    bytes.extend_from_slice(&asked.address.to_ne_bytes());
    bytes.extend_from_slice(&asked.count.to_ne_bytes());
    bytes.extend_from_slice(&[0; 64]);
    for byte in bytes {
        silent.stream.write_all(&[byte]).unwrap();
        assert_eq!(other.identity(), common::IDENTITY);
    }
    // Software owns the entry: a diagnosis, once the answer was taken.
    while server.ask("metrics")["hcas"][0]["diagnoses"] == 0 {
        assert_eq!(other.identity(), common::IDENTITY);
    }
    drop(silent);
    // Another one asks and goes without an answer; the next client finds the adapter as after power-on.
    let (silent, _) = asking(&server, "a");
    drop(silent);
    let again = loop {
        let mut raw = Raw::connect(&server.socket("a"));
        let hello = raw.message(1, &[&[0; 4][..], b"{}\0"].concat(), 0);
        raw.stream.write_all(&hello).unwrap();
        if raw.reply().is_ok() {
            break raw;
        }
    };
    drop(again);
}

/// Memory that goes while an answer is awaited: the unmap is answered at once, the command fails.
#[test]
fn an_unmap_is_answered_while_a_question_is_open() {
    let server = Server::start(&["a"]);
    let (mut raw, asked) = asking(&server, "a");
    raw.call(3, &dma_unmap(0, BASE, SIZE)).ok();
    while server.ask("metrics")["hcas"][0]["diagnoses"] == 0 {
        assert_eq!(raw.identity(), common::IDENTITY);
    }
    // What comes too late is for nobody.
    reply(&mut raw.stream, &asked, &[0xff; 64]);
    assert_eq!(raw.identity(), common::IDENTITY);
}
