//! A server without a socket: its front end is a queue in this process, and speaks no protocol.
//!
//! [`Direct::start`] serves a topology; [`Direct::bus`] attaches a host, whose memory the adapter maps by a descriptor or
//! reaches by questions. The bus is one for our driver.

use hca_driver::arena::Arena;
use hca_driver::{Bus, Dma};
use hca_server::engine::{Engine, Role};
use hca_server::front_end::{Endpoint, FrontEnd, Watch};
use hca_server::memory::{Backing, MapError, Peer, Range, RemoteAnswer, RemoteError, RemoteMemory, Window};
use hca_server::pci::Space;
use hca_server::pci::msix::Signal;
use hca_server::recording::Options;
use hca_server::topology::Topology;
use hca_spec::{be32, put_be32};
use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a host's memory.
pub const MEMORY: usize = 8 << 20;
/// Where it begins on the adapter's bus: above 4 GiB, so that high address words matter.
pub const WINDOW: u64 = 0x1_0000_0000;
/// MSI-X vectors that a host connects.
pub const VECTORS: u16 = 4;
/// Configuration space: command register, with memory space and bus master enabled.
const COMMAND: (u64, [u8; 2]) = (4, [6, 0]);
/// Requests handled in one turn.
const BUDGET: usize = 16;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn event() -> EventFd {
    EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("an event descriptor")
}

/// What a host asks for.
enum Request {
    Attach(Arc<Host>),
    Detach,
    Read(Space, u64, usize),
    Write(Space, u64, Vec<u8>),
    Map(Window, Backing),
    Unmap(Range),
    Connect(u16, Arc<Vector>),
    Disconnect(u16),
    Reset,
}

/// What it gets.
enum Answer {
    Done,
    Data(Vec<u8>),
    Refused(MapError),
}

/// The front end of one adapter.
struct Queue {
    requests: Receiver<(Request, Sender<Answer>)>,
    wake: Arc<EventFd>,
    more: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl FrontEnd for Queue {
    fn watch<'a>(&'a self, add: &mut dyn FnMut(Watch<'a>)) {
        add(Watch { fd: self.wake.as_fd(), events: PollFlags::POLLIN });
    }

    fn has_work(&self) -> bool {
        self.more
    }

    fn serve(&mut self, _ready: &[bool], endpoint: &mut Endpoint<'_>) {
        // Emptied before the queue is looked at: what comes later wakes again.
        let _ = self.wake.read();
        for _ in 0..BUDGET {
            let Ok((request, asker)) = self.requests.try_recv() else {
                self.more = false;
                return;
            };
            let answer = perform(request, endpoint);
            endpoint.count_messages(1);
            // Who does not wait for the answer is gone.
            let _ = asker.send(answer);
        }
        self.more = true;
    }

    fn take_out(&mut self, endpoint: &mut Endpoint<'_>, reason: &str) {
        if endpoint.is_attached() {
            endpoint.detach(reason);
        }
    }
}

fn perform(request: Request, endpoint: &mut Endpoint<'_>) -> Answer {
    let mapped = |result: Result<(), MapError>| result.map_or_else(Answer::Refused, |()| Answer::Done);
    match request {
        Request::Attach(host) => endpoint.attach(Some(host), Peer::default()),
        Request::Detach => endpoint.detach("it has said so"),
        Request::Read(space, offset, len) => {
            let mut data = vec![0; len];
            endpoint.read(space, offset, &mut data);
            return Answer::Data(data);
        }
        Request::Write(space, offset, data) => endpoint.write(space, offset, &data),
        Request::Map(window, backing) => return mapped(endpoint.map(window, backing)),
        Request::Unmap(range) => return mapped(endpoint.unmap(range)),
        Request::Connect(vector, signal) => {
            endpoint.connect(vector.into(), Some(Box::new(signal))).expect("there is such a vector");
        }
        Request::Disconnect(vector) => endpoint.connect(vector.into(), None).expect("there is such a vector"),
        Request::Reset => endpoint.reset(),
    }
    Answer::Done
}

/// Counts interrupts of a vector.
#[derive(Debug, Default)]
struct Vector {
    count: Mutex<u64>,
    told: Condvar,
}

impl Signal for Vector {
    fn signal(&self) -> io::Result<()> {
        *lock(&self.count) += 1;
        self.told.notify_all();
        Ok(())
    }
}

/// How the adapter reaches a host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The server maps it.
    Descriptor,
    /// The server maps it, and there is a window beside it that nobody uses and that is not mapped: inputs are planned.
    Beside,
    /// The server asks for each access, and has the answer at once.
    Questions,
    /// The server asks for each access. A thread of the host performs them in their order, and answers out of order.
    Later,
}

/// An access that the adapter asks for.
#[derive(Debug)]
enum Access {
    Read(usize),
    Write(Vec<u8>),
}

/// What the adapter asked for and what was answered.
#[derive(Debug, Default)]
struct Questions {
    /// A thread performs them.
    later: bool,
    /// Nothing is performed for now.
    withheld: bool,
    /// The host is gone.
    over: bool,
    /// Ticket, place, access.
    waiting: VecDeque<(u64, u64, Access)>,
    answers: VecDeque<RemoteAnswer>,
}

/// A host's memory.
#[derive(Debug)]
struct Host {
    file: File,
    arena: Mutex<Arena>,
    questions: Mutex<Questions>,
    /// Wakes the host's thread.
    asked: Condvar,
    /// Wakes the server.
    wake: Arc<EventFd>,
    count: AtomicU64,
    /// Set when the window was taken away.
    closed: AtomicBool,
    /// Questions after that.
    late: AtomicU64,
}

impl Host {
    fn new(wake: Arc<EventFd>) -> Host {
        let file = File::from(memfd_create(c"hca-tests", MFdFlags::MFD_CLOEXEC).expect("a memory file"));
        file.set_len(MEMORY as u64).expect("its size");
        Host {
            file,
            arena: Mutex::new(Arena::new(MEMORY)),
            questions: Mutex::default(),
            asked: Condvar::new(),
            wake,
            count: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            late: AtomicU64::new(0),
        }
    }

    /// The server asks.
    fn ask(&self, ticket: u64, iova: u64, access: Access) -> Result<(), RemoteError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.closed.load(Ordering::SeqCst) {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        let at = iova.checked_sub(WINDOW).ok_or(RemoteError::Lost)?;
        let mut questions = lock(&self.questions);
        questions.waiting.push_back((ticket, at, access));
        match questions.later {
            true => self.asked.notify_one(),
            false => self.perform(&mut questions),
        }
        Ok(())
    }

    /// Performs the access that has waited longest.
    fn perform(&self, questions: &mut Questions) {
        let Some((ticket, at, access)) = questions.waiting.pop_front() else { return };
        let result = match access {
            Access::Read(len) => {
                let mut bytes = vec![0; len];
                self.file.read_exact_at(&mut bytes, at).map(|()| bytes)
            }
            Access::Write(data) => self.file.write_all_at(&data, at).map(|()| Vec::new()),
        };
        let answer = RemoteAnswer { ticket, result: result.map_err(|_| RemoteError::Lost) };
        // Answers may overtake each other, accesses not.
        match questions.later && ticket.is_multiple_of(3) {
            true => questions.answers.push_front(answer),
            false => questions.answers.push_back(answer),
        }
    }

    /// Performs what waits, one after the other, until the host is gone.
    fn work(&self) {
        let mut questions = lock(&self.questions);
        while !questions.over {
            if questions.withheld || questions.waiting.is_empty() {
                questions = self.asked.wait(questions).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            self.perform(&mut questions);
            drop(questions);
            let _ = self.wake.write(1);
            std::thread::yield_now();
            questions = lock(&self.questions);
        }
    }
}

impl RemoteMemory for Host {
    fn read(&self, ticket: u64, iova: u64, len: usize) -> Result<(), RemoteError> {
        self.ask(ticket, iova, Access::Read(len))
    }

    fn write(&self, ticket: u64, iova: u64, data: &[u8]) -> Result<(), RemoteError> {
        self.ask(ticket, iova, Access::Write(data.to_vec()))
    }

    fn next_answer(&self) -> Option<RemoteAnswer> {
        lock(&self.questions).answers.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn memory_lost(&self) {
        panic!("the host keeps its memory");
    }
}

/// The other end of a [`Queue`].
#[derive(Clone)]
struct Line {
    requests: Sender<(Request, Sender<Answer>)>,
    wake: Arc<EventFd>,
}

impl Line {
    fn ask(&self, request: Request) -> Answer {
        let (asker, answer) = channel();
        self.requests.send((request, asker)).expect("the server runs");
        self.wake.write(1).expect("the server is woken");
        answer.recv().expect("the server answers")
    }
}

/// A running server; stopped and checked when dropped.
pub struct Direct {
    lines: Vec<Line>,
    stop: EventFd,
    thread: Option<JoinHandle<Engine>>,
}

impl Direct {
    /// Serves the topology of that TOML text. Some adapters may have another front end: `other` makes it. What reaches all of them may
    /// be recorded.
    pub fn start_with(
        text: &str,
        other: impl Fn(&hca_server::topology::Hca) -> Option<Box<dyn FrontEnd>>,
        recording: Option<&Path>,
    ) -> Direct {
        let mut topology = Topology::parse("test", text).expect("the topology is valid");
        topology.draw_management_key().expect("random numbers");
        let stop = event();
        let stop_too: OwnedFd = stop.as_fd().try_clone_to_owned().expect("a descriptor");
        let mut lines = Vec::new();
        let front_end = |hca: &hca_server::topology::Hca| -> anyhow::Result<Box<dyn FrontEnd>> {
            let (sender, requests) = channel();
            let wake = Arc::new(event());
            lines.push(Line { requests: sender, wake: Arc::clone(&wake) });
            Ok(other(hca).unwrap_or_else(|| Box::new(Queue { requests, wake, more: false })))
        };
        let mut engine =
            Engine::new(&topology, &Role::default(), front_end, None, stop_too).expect("it starts");
        if let Some(file) = recording {
            let options = Options { file: file.to_owned(), limit: None };
            engine.record(&options, (&topology, text), None).expect("the file is made");
        }
        let thread = std::thread::spawn(move || {
            engine.run().expect("the server runs");
            engine.end_recording();
            engine
        });
        Direct { lines, stop, thread: Some(thread) }
    }

    /// Serves the topology of that TOML text.
    pub fn start(topology: &str) -> Direct {
        Self::start_with(topology, |_| None, None)
    }

    /// The same, and what reaches its adapters is recorded in that file.
    pub fn start_recorded(topology: &str, file: &Path) -> Direct {
        Self::start_with(topology, |_| None, Some(file))
    }

    /// Attaches a host to the adapter of that place in the topology.
    pub fn bus(&self, place: usize, kind: Kind) -> DirectBus {
        let line = self.lines[place].clone();
        let host = Arc::new(Host::new(Arc::clone(&line.wake)));
        lock(&host.questions).later = kind == Kind::Later;
        let worker = (kind == Kind::Later).then(|| {
            let host = Arc::clone(&host);
            std::thread::spawn(move || host.work())
        });
        line.ask(Request::Attach(Arc::clone(&host)));
        let mut bus = DirectBus { line, host, vectors: Vec::new(), worker };
        bus.map(kind).expect("the window is mapped");
        for vector in 0..VECTORS {
            let signal = Arc::new(Vector::default());
            bus.line.ask(Request::Connect(vector, Arc::clone(&signal)));
            bus.vectors.push(signal);
        }
        bus.write(Space::Config, COMMAND.0, &COMMAND.1);
        bus
    }

    /// Stops the server and asks what is left, as its control socket would answer.
    pub fn stop(mut self, question: &str) -> serde_json::Value {
        let mut engine = self.join();
        engine.answer(question, &serde_json::Value::Null).expect("it answers")
    }

    fn join(&mut self) -> Engine {
        self.stop.write(1).expect("the server is told");
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("the server does not panic")
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.join();
        }
    }
}

/// An adapter of a [`Direct`] server; its host goes when this is dropped.
pub struct DirectBus {
    line: Line,
    host: Arc<Host>,
    vectors: Vec<Arc<Vector>>,
    /// Performs what the adapter asks for.
    worker: Option<JoinHandle<()>>,
}

impl DirectBus {
    /// Reads an address space of the function.
    pub fn read(&self, space: Space, offset: u64, len: usize) -> Vec<u8> {
        match self.line.ask(Request::Read(space, offset, len)) {
            Answer::Data(data) => data,
            Answer::Done | Answer::Refused(_) => unreachable!("a read has data"),
        }
    }

    /// Writes an address space of the function.
    pub fn write(&self, space: Space, offset: u64, data: &[u8]) {
        self.line.ask(Request::Write(space, offset, data.to_vec()));
    }

    /// Makes the host's memory accessible.
    ///
    /// # Errors
    /// The server refused.
    pub fn map(&self, kind: Kind) -> Result<(), MapError> {
        let window = Window { iova: WINDOW, size: MEMORY as u64, readable: true, writable: true };
        let backing = match kind {
            Kind::Questions | Kind::Later => Backing::Remote,
            Kind::Descriptor | Kind::Beside => {
                let fd = self.host.file.as_fd().try_clone_to_owned().expect("a descriptor");
                Backing::File { fd, offset: 0 }
            }
        };
        self.host.closed.store(false, Ordering::SeqCst);
        if kind == Kind::Beside {
            let beside = Window { iova: WINDOW + MEMORY as u64, ..window };
            refusal(self.line.ask(Request::Map(beside, Backing::Remote)))?;
        }
        refusal(self.line.ask(Request::Map(window, backing)))
    }

    /// Takes it away again.
    ///
    /// # Errors
    /// The server refused.
    pub fn unmap(&self, range: Range) -> Result<(), MapError> {
        let answer = refusal(self.line.ask(Request::Unmap(range)));
        // What the adapter asked for came before its answer, and a host takes one after the other.
        let mut questions = lock(&self.host.questions);
        while !questions.waiting.is_empty() {
            self.host.perform(&mut questions);
        }
        drop(questions);
        self.host.closed.store(answer.is_ok(), Ordering::SeqCst);
        answer
    }

    /// Leaves what the adapter asks for without an answer, or answers again ([`Kind::Later`]).
    pub fn withhold(&self, withheld: bool) {
        lock(&self.host.questions).withheld = withheld;
        self.host.asked.notify_one();
    }

    /// How many accesses of the adapter wait for the host.
    pub fn waiting(&self) -> usize {
        lock(&self.host.questions).waiting.len()
    }

    /// Nobody is told of a vector any more.
    pub fn disconnect(&self, vector: u16) {
        self.line.ask(Request::Disconnect(vector));
    }

    /// Resets the function.
    pub fn reset(&self) {
        self.line.ask(Request::Reset);
    }

    /// How often the adapter asked for memory, and how often of that after the window was taken away.
    pub fn questions(&self) -> (u64, u64) {
        (self.host.count.load(Ordering::Relaxed), self.host.late.load(Ordering::Relaxed))
    }

    /// How often `vector` fired so far.
    pub fn interrupts(&self, vector: u16) -> u64 {
        self.vectors.get(usize::from(vector)).map_or(0, |v| *lock(&v.count))
    }

    /// All of the host's memory.
    pub fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; MEMORY];
        self.host.file.read_exact_at(&mut bytes, 0).expect("memory");
        bytes
    }
}

fn refusal(answer: Answer) -> Result<(), MapError> {
    match answer {
        Answer::Refused(why) => Err(why),
        Answer::Done | Answer::Data(_) => Ok(()),
    }
}

impl Drop for DirectBus {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.line.ask(Request::Detach);
        }
        lock(&self.host.questions).over = true;
        self.host.asked.notify_one();
        if let Some(worker) = self.worker.take() {
            let worker = worker.join();
            assert!(worker.is_ok() || std::thread::panicking(), "the host's thread panicked");
        }
    }
}

impl Bus for DirectBus {
    type Dma = HostMemory;

    fn mmio_read32(&mut self, offset: u64) -> u32 {
        be32(&self.read(Space::Bar0, offset, 4), 0)
    }

    fn mmio_write32(&mut self, offset: u64, value: u32) {
        self.write(Space::Bar0, offset, &value.to_be_bytes());
    }

    fn mmio_write64(&mut self, offset: u64, value: u64) {
        self.write(Space::Bar0, offset, &value.to_be_bytes());
    }

    fn dma_alloc(&mut self, size: usize, align: usize) -> Option<HostMemory> {
        let start = lock(&self.host.arena).alloc(size, align)?;
        let mut memory = HostMemory { host: Arc::clone(&self.host), start, size };
        memory.write(0, &vec![0; size]);
        Some(memory)
    }

    fn wait(&mut self, vector: Option<u16>) {
        if let Some(vector) = vector.and_then(|v| self.vectors.get(usize::from(v))) {
            let count = lock(&vector.count);
            // It may have fired before: the caller polls again anyway.
            let waited = vector.told.wait_timeout(count, Duration::from_millis(1));
            if waited.is_ok_and(|(_, waited)| !waited.timed_out()) {
                return;
            }
        }
        // Who counts how often it waits counts turns of the server, however late the machine gives it one.
        self.read(Space::Config, 0, 1);
    }

    fn vectors(&self) -> u16 {
        VECTORS
    }
}

/// A piece of a host's memory.
pub struct HostMemory {
    host: Arc<Host>,
    start: usize,
    size: usize,
}

impl HostMemory {
    fn at(&self, offset: usize, len: usize) -> u64 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.size), "access beyond the allocation");
        (self.start + offset) as u64
    }
}

impl Dma for HostMemory {
    fn bus_address(&self) -> u64 {
        WINDOW + self.start as u64
    }

    fn read(&self, offset: usize, buf: &mut [u8]) {
        self.host.file.read_exact_at(buf, self.at(offset, buf.len())).expect("memory");
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        self.host.file.write_all_at(data, self.at(offset, data.len())).expect("memory");
    }

    fn load32(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        self.read(offset, &mut word);
        be32(&word, 0)
    }

    fn store32(&mut self, offset: usize, value: u32) {
        let mut word = [0; 4];
        put_be32(&mut word, 0, value);
        self.write(offset, &word);
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        lock(&self.host.arena).free(self.start, self.size);
    }
}
