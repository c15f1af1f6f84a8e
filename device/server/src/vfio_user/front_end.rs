//! The front end: a socket per adapter, one client at a time.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::backend::Device;
use super::connection::{Connection, MAX_CLOSING};
use super::descriptor;
use super::look::Look;
use super::session::{Held, Session, serve};
use super::turn::Turn;
use crate::closer::Closer;
use crate::front_end::{Endpoint, FrontEnd, Watch};
use crate::listener::Listener;
use crate::log::Source;
use crate::memory::Peer;
use crate::sync::lock;

/// Connections accepted in a turn: each may end one that has not said a word.
const CONNECTIONS: usize = 8;

/// One adapter's socket and the client that is connected to it.
#[derive(Debug)]
pub struct VfioUser {
    listener: Listener,
    client: Option<Client>,
    /// Of each client, if it is not as usual.
    dma_timeout: Option<Duration>,
    /// Closes clients' descriptors.
    closer: Closer,
    pub(super) look: Look,
    log: Source,
}

/// A connected client.
#[derive(Debug)]
struct Client {
    /// The socket of `connection`, to be polled.
    stream: Arc<UnixStream>,
    connection: Arc<Mutex<Connection>>,
    session: Session,
    peer: Peer,
    /// A message that waits.
    held: Option<Held>,
}

impl VfioUser {
    /// Listens at `socket`.
    ///
    /// # Errors
    /// The socket can't be had; the message names it.
    pub fn listen(socket: &Path) -> anyhow::Result<VfioUser> {
        Ok(VfioUser::on(Listener::bind(socket)?))
    }

    /// Has its clients from there.
    pub fn on(listener: Listener) -> VfioUser {
        descriptor::prepare();
        VfioUser {
            listener,
            client: None,
            dma_timeout: None,
            closer: Closer::default(),
            look: Look::default(),
            log: Source::default(),
        }
    }

    /// The same; `time`: how long a client may take for a DMA access before it fails.
    pub fn with_dma_timeout(self, time: Duration) -> VfioUser {
        VfioUser { dma_timeout: Some(time), ..self }
    }

    /// Handles what the client has sent; ends the connection if it is over.
    fn serve_client(&mut self, endpoint: &mut Endpoint<'_>, turn: &mut Turn) {
        let Some(client) = &mut self.client else {
            return;
        };
        let Client { connection, session, peer, held, .. } = client;
        let mut device = Device { endpoint, connection, peer, look: &mut self.look };
        match serve(connection, session, &mut device, held, turn) {
            Ok(handled) => endpoint.count_messages(handled as u64),
            Err(reason) => self.end_client(endpoint, &reason),
        }
    }

    /// Ends the connection if the client has closed it, whatever it has sent before that was not handled in its turn.
    fn end_if_gone(&mut self, endpoint: &mut Endpoint<'_>) {
        let Some(client) = &self.client else { return };
        let mut fds = [PollFd::new(client.stream.as_fd(), PollFlags::empty())];
        let polled = poll(&mut fds, PollTimeout::ZERO);
        let gone = |fd: &PollFd<'_>| fd.revents().is_some_and(|e| e.contains(PollFlags::POLLHUP));
        if polled.is_ok() && fds.iter().any(gone) {
            self.end_client(endpoint, "closed by the client");
        }
    }

    fn end_client(&mut self, endpoint: &mut Endpoint<'_>, reason: &str) {
        if self.client.take().is_some_and(|client| client.session.is_attached()) {
            endpoint.detach(reason);
        } else {
            let name = endpoint.name();
            self.log.say(|| tracing::info!("{name}: connection refused: {reason}"));
        }
        self.look.forget();
    }

    fn accept(&mut self, endpoint: &mut Endpoint<'_>, turn: &mut Turn) {
        for _ in 0..CONNECTIONS {
            let Some(stream) = self.listener.accept() else { return };
            // The end of the previous connection may not have been noticed yet.
            self.serve_client(endpoint, turn);
            self.end_if_gone(endpoint);
            let (name, path) = (endpoint.name(), self.listener.path().display());
            if self.closer.pending() > MAX_CLOSING {
                self.log.say(|| {
                    tracing::warn!("{name}: client refused: descriptors of one before it won't close")
                });
                continue;
            }
            match &self.client {
                Some(old) if old.session.is_attached() => {
                    self.log.say(|| {
                        tracing::warn!("{name}: second client refused: one is attached already ({path})")
                    });
                }
                // One that hasn't said a word yet gives way.
                _ => match Client::new(stream, self.dma_timeout, &self.closer) {
                    Ok(client) => {
                        self.client = Some(client);
                        self.look.forget();
                    }
                    Err(e) => self.log.say(|| tracing::warn!("{name}: connection lost: {e}")),
                },
            }
        }
    }
}

impl FrontEnd for VfioUser {
    fn watch<'a>(&'a self, add: &mut dyn FnMut(Watch<'a>)) {
        add(Watch { fd: self.listener.as_fd(), events: PollFlags::POLLIN });
        // A client that waits for its mappings or files to be looked at is not listened to.
        self.look.watch(add);
        if let Some(client) = self.client.as_ref().filter(|_| !self.look.is_open()) {
            let congested = lock(&client.connection).is_congested();
            let events = if congested { PollFlags::POLLOUT } else { PollFlags::POLLIN };
            add(Watch { fd: client.stream.as_fd(), events });
        }
    }

    fn has_work(&self) -> bool {
        // Of what is held, only that waits for nothing but a turn.
        self.client.as_ref().is_some_and(|client| matches!(client.held, Some(Held::Writes(_))))
    }

    fn serve(&mut self, ready: &[bool], endpoint: &mut Endpoint<'_>) {
        let (connecting, others) = ready.split_first().map_or((false, ready), |(first, rest)| (*first, rest));
        // Whoever else connects: it is one turn.
        let mut turn = Turn::default();
        if others.contains(&true) || self.has_work() {
            self.serve_client(endpoint, &mut turn);
        }
        if connecting {
            self.accept(endpoint, &mut turn);
        }
    }

    fn take_out(&mut self, endpoint: &mut Endpoint<'_>, reason: &str) {
        if self.client.is_some() {
            self.end_client(endpoint, reason);
        }
    }
}

impl Client {
    fn new(stream: UnixStream, dma_timeout: Option<Duration>, closer: &Closer) -> io::Result<Client> {
        let mut connection = Connection::new(stream)?;
        let stream = connection.stream();
        let peer = Peer::of(&stream);
        connection.closer = closer.clone();
        connection.dma_timeout = dma_timeout.unwrap_or(connection.dma_timeout);
        Ok(Client {
            stream,
            connection: Arc::new(Mutex::new(connection)),
            session: Session::default(),
            peer,
            held: None,
        })
    }
}
