//! Metrics for Prometheus: what `softhca stat` says, as a page of text over HTTP.
//!
//! ```text
//! listener ─▶ a few clients ─▶ http: a request, whole ─▶ page: families with their samples ─▶ its bytes, and the end
//! ```
//!
//! It listens on a loopback address or a Unix socket ([`Address`]). Nothing here blocks: a turn of the engine accepts
//! some connections and reads what is there; a page is made anew when the last one is old, whoever asks how often.

mod address;
mod families;
mod http;
mod page;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::poll::PollFlags;

pub use self::address::Address;
pub(crate) use self::page::{Source, page};
use crate::listener::Listener;

/// Connections at a time: when another comes, the oldest gives way.
const MOST_CLIENTS: usize = 16;
/// Connections accepted in a turn.
const ACCEPTED: usize = 4;
/// Longest request: a scraper's has some 400 bytes.
const MOST_REQUEST: usize = 8 << 10;
/// Bytes of a page that a client is sent in a turn.
const TURN: usize = 256 << 10;
/// From the connection to the last byte of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody is accepted when that has failed.
const SHUT: Duration = Duration::from_secs(1);
/// A page is good for so long: four a second are made at most.
const FRESH: Duration = Duration::from_millis(250);

#[derive(Debug)]
enum Door {
    Tcp(TcpListener),
    Unix(Listener),
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Debug)]
struct Client {
    stream: Stream,
    since: Instant,
    request: Vec<u8>,
    /// What is sent, and how much of it was.
    answer: Option<(Arc<[u8]>, usize)>,
}

/// Those who ask for metrics.
#[derive(Debug)]
pub(crate) struct Scrapes {
    door: Door,
    /// There were no descriptors left: nobody is accepted before.
    shut_until: Option<Instant>,
    clients: Vec<Client>,
    page: Option<(Instant, Arc<[u8]>)>,
    /// Pages that were sent.
    served: u64,
}

impl Scrapes {
    /// Listens.
    ///
    /// # Errors
    /// The address can't be had; the message names it.
    pub(crate) fn listen(address: &Address) -> anyhow::Result<Scrapes> {
        let door = match address {
            Address::Tcp(at) => {
                let listener = TcpListener::bind(at).with_context(|| format!("--metrics {at}"))?;
                listener.set_nonblocking(true)?;
                Door::Tcp(listener)
            }
            Address::Unix(path) => Door::Unix(Listener::bind(path)?),
        };
        Ok(Scrapes { door, shut_until: None, clients: Vec::new(), page: None, served: 0 })
    }

    /// Where it listens, if that is a port.
    pub(crate) fn port(&self) -> Option<u16> {
        match &self.door {
            Door::Tcp(listener) => listener.local_addr().ok().map(|at| at.port()),
            Door::Unix(_) => None,
        }
    }

    /// Names the descriptors to wait for.
    pub(crate) fn watch<'a>(&'a self, mut add: impl FnMut(BorrowedFd<'a>, PollFlags)) {
        if self.shut_until.is_none() {
            add(self.door.as_fd(), PollFlags::POLLIN);
        }
        for client in &self.clients {
            let events = if client.answer.is_some() { PollFlags::POLLOUT } else { PollFlags::POLLIN };
            add(client.stream.as_fd(), events);
        }
    }

    /// How long until somebody's time is over.
    pub(crate) fn sleep(&self) -> Option<Duration> {
        let ends = self.clients.iter().map(|client| client.since + PATIENCE);
        let next = ends.chain(self.shut_until).min();
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// How many pages were sent.
    pub(crate) fn served(&self) -> u64 {
        self.served
    }

    /// Takes what there is, and answers. `make` makes a page.
    pub(crate) fn serve(&mut self, make: impl FnOnce(&Self) -> String) {
        self.accept();
        let mut make = Some(make);
        let mut clients = std::mem::take(&mut self.clients);
        clients.retain_mut(|client| {
            if client.since.elapsed() >= PATIENCE {
                return false;
            }
            if client.answer.is_none() {
                match client.receive(self.door.is_tcp()) {
                    http::State::Half => return true,
                    http::State::Ended => return false,
                    http::State::Refused(answer) => client.answer = Some((answer.into(), 0)),
                    http::State::Asked { head } => {
                        let page = self.fresh(&mut make);
                        let text = if head { Arc::from(http::head_of(&page)) } else { page };
                        client.answer = Some((text, 0));
                        self.served += 1;
                    }
                }
            }
            client.send()
        });
        self.clients = clients;
    }

    fn fresh(&mut self, make: &mut Option<impl FnOnce(&Self) -> String>) -> Arc<[u8]> {
        let old = self.page.as_ref().filter(|(made, _)| made.elapsed() < FRESH);
        let page = match (old, make.take()) {
            (None, Some(make)) => http::found(&make(self)).into(),
            // In one turn it is made once.
            _ => return self.page.as_ref().map_or_else(|| Arc::from(&[][..]), |(_, page)| Arc::clone(page)),
        };
        self.page = Some((Instant::now(), Arc::clone(&page)));
        page
    }

    fn accept(&mut self) {
        if self.shut_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.shut_until = None;
        for _ in 0..ACCEPTED {
            let stream = match self.door.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                Err(_) => {
                    self.shut_until = Some(Instant::now() + SHUT);
                    return;
                }
            };
            if self.clients.len() >= MOST_CLIENTS {
                self.clients.remove(0);
            }
            let (since, request) = (Instant::now(), Vec::new());
            self.clients.push(Client { stream, since, request, answer: None });
        }
    }
}

impl Client {
    fn receive(&mut self, tcp: bool) -> http::State {
        let mut chunk = [0; 2048];
        // What comes beyond the longest request is not read.
        while self.request.len() < MOST_REQUEST {
            match self.stream.read(&mut chunk) {
                Ok(0) => return http::State::Ended,
                Ok(n) => self.request.extend_from_slice(chunk.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return http::State::Ended,
            }
        }
        http::judge(&self.request, MOST_REQUEST, tcp)
    }

    /// Returns false when all is sent, or nobody takes it.
    fn send(&mut self) -> bool {
        let Some((answer, sent)) = &mut self.answer else { return true };
        let end = answer.len().min(*sent + TURN);
        while *sent < end {
            match self.stream.write(answer.get(*sent..end).unwrap_or_default()) {
                Ok(0) => return false,
                Ok(n) => *sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        *sent < answer.len()
    }
}

impl Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Door::Tcp(listener) => listener.as_fd(),
            Door::Unix(listener) => listener.as_fd(),
        }
    }

    fn is_tcp(&self) -> bool {
        matches!(self, Door::Tcp(_))
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    /// It can't be had: no descriptors are left, or it is gone.
    fn accept(&self) -> io::Result<Option<Stream>> {
        let stream = match self {
            Door::Tcp(listener) => match listener.accept() {
                Ok((stream, _)) => Stream::Tcp(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e),
            },
            // It ends connections that it has no descriptors for.
            Door::Unix(listener) => match listener.accept() {
                Some(stream) => Stream::Unix(stream),
                None => return Ok(None),
            },
        };
        match &stream {
            Stream::Tcp(stream) => stream.set_nonblocking(true)?,
            Stream::Unix(stream) => stream.set_nonblocking(true)?,
        }
        Ok(Some(stream))
    }
}

impl Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }

    fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(chunk),
            Stream::Unix(stream) => stream.read(chunk),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// Scrapes, where they are, and how many pages were made.
    struct Scene {
        scrapes: Scrapes,
        at: std::net::SocketAddr,
        made: Cell<usize>,
    }

    impl Scene {
        fn new() -> Scene {
            let scrapes = Scrapes::listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
            let at = ([127, 0, 0, 1], scrapes.port().unwrap()).into();
            Scene { scrapes, at, made: Cell::new(0) }
        }

        fn connect(&self) -> TcpStream {
            TcpStream::connect(self.at).unwrap()
        }

        fn turn(&mut self) {
            let Scene { scrapes, made, .. } = self;
            scrapes.serve(|_| {
                made.set(made.get() + 1);
                "softhca_a 1\n".repeat(100_000)
            });
        }

        /// Takes turns until the client has its answer.
        fn answer(&mut self, mut client: TcpStream) -> String {
            client.set_nonblocking(true).unwrap();
            let (mut text, mut chunk) = (Vec::new(), [0; 1 << 16]);
            loop {
                self.turn();
                match client.read(&mut chunk) {
                    Ok(0) => return String::from_utf8(text).unwrap(),
                    Ok(n) => text.extend_from_slice(&chunk[..n]),
                    Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
                }
            }
        }
    }

    #[test]
    fn a_page_is_made_for_all_who_ask_at_that_time() {
        let mut scene = Scene::new();
        for made in [1, 1, 2] {
            if let Some((since, _)) = &mut scene.scrapes.page {
                // As if no time had passed since then, or all that a page is good for.
                *since = if made == 1 { Instant::now() + FRESH } else { Instant::now() - FRESH };
            }
            let mut client = scene.connect();
            client.write_all(GET).unwrap();
            let answer = scene.answer(client);
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\nsofthca_a 1\n"));
            assert_eq!(scene.made.get(), made);
        }
        assert_eq!(scene.scrapes.served(), 3);
    }

    #[test]
    fn clients_are_few_and_the_oldest_gives_way() {
        let mut scene = Scene::new();
        let silent: Vec<_> = (0..3 * MOST_CLIENTS).map(|_| scene.connect()).collect();
        (0..3 * MOST_CLIENTS).for_each(|_| scene.turn());
        assert_eq!(scene.scrapes.clients.len(), MOST_CLIENTS);
        let mut client = scene.connect();
        client.write_all(GET).unwrap();
        assert!(scene.answer(client).starts_with("HTTP/1.1 200"));
        drop(silent);
    }

    #[test]
    fn whoever_takes_too_long_is_gone() {
        let mut scene = Scene::new();
        let mut slow = scene.connect();
        slow.write_all(&GET[..5]).unwrap();
        while scene.scrapes.clients.is_empty() {
            scene.turn();
        }
        assert!(scene.scrapes.sleep().is_some_and(|left| !left.is_zero()));
        scene.scrapes.clients[0].since -= PATIENCE;
        assert_eq!(scene.scrapes.sleep(), Some(Duration::ZERO));
        scene.turn();
        assert!(scene.scrapes.clients.is_empty() && scene.scrapes.sleep().is_none());
    }

    #[test]
    fn a_request_without_an_end_is_refused() {
        let mut scene = Scene::new();
        let mut client = scene.connect();
        client.write_all(&[b'x'; MOST_REQUEST]).unwrap();
        assert!(scene.answer(client).starts_with("HTTP/1.1 431"));
    }

    #[test]
    fn a_turn_sends_so_much() {
        let mut scene = Scene::new();
        let mut client = scene.connect();
        client.write_all(GET).unwrap();
        while scene.made.get() == 0 {
            scene.turn();
        }
        let sent = scene.scrapes.clients[0].answer.as_ref().map(|(_, sent)| *sent);
        assert!(sent.is_some_and(|sent| sent <= TURN), "{sent:?}");
    }
}
