//! The front end: a socket per adapter, one client at a time.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::poll::PollFlags;

use super::backend::Device;
use super::connection::Connection;
use super::session::{Session, serve};
use crate::front_end::{Endpoint, FrontEnd, Watch};
use crate::listener::Listener;
use crate::memory::Peer;
use crate::sync::lock;

/// Messages of one client handled before the others get their turn.
const MESSAGE_BUDGET: usize = 128;

/// One adapter's socket and the client that is connected to it.
#[derive(Debug)]
pub struct VfioUser {
    listener: Listener,
    client: Option<Client>,
    /// Of each client, if it is not as usual.
    dma_timeout: Option<Duration>,
}

/// A connected client.
#[derive(Debug)]
struct Client {
    /// The socket of `connection`, to be polled.
    stream: Arc<UnixStream>,
    connection: Arc<Mutex<Connection>>,
    session: Session,
    peer: Peer,
}

impl VfioUser {
    /// Listens at `socket`.
    ///
    /// # Errors
    /// The socket can't be had; the message names it.
    pub fn listen(socket: &Path) -> anyhow::Result<VfioUser> {
        Ok(VfioUser { listener: Listener::bind(socket)?, client: None, dma_timeout: None })
    }

    /// The same; `time`: how long a client may leave DMA messages without any answer before an access fails.
    pub fn with_dma_timeout(self, time: Duration) -> VfioUser {
        VfioUser { dma_timeout: Some(time), ..self }
    }

    /// Handles what the client has sent; ends the connection if it is over.
    fn serve_client(&mut self, endpoint: &mut Endpoint<'_>) {
        let Some(client) = &mut self.client else {
            return;
        };
        let mut device = Device { endpoint, connection: &client.connection, peer: client.peer.clone() };
        match serve(&client.connection, &mut client.session, &mut device, MESSAGE_BUDGET) {
            Ok(handled) => endpoint.count_messages(handled as u64),
            Err(reason) => {
                if client.session.is_attached() {
                    endpoint.detach(&reason);
                } else {
                    tracing::info!("{}: connection refused: {reason}", endpoint.name());
                }
                self.client = None;
            }
        }
    }

    fn accept(&mut self, endpoint: &mut Endpoint<'_>) {
        while let Some(stream) = self.listener.accept() {
            // The end of the previous connection may not have been noticed yet.
            self.serve_client(endpoint);
            match &self.client {
                Some(old) if old.session.is_attached() => {
                    tracing::warn!(
                        "{}: second client refused: one is attached already ({})",
                        endpoint.name(),
                        self.listener.path().display()
                    );
                }
                // One that hasn't said a word yet gives way.
                _ => match Client::new(stream, self.dma_timeout) {
                    Ok(client) => self.client = Some(client),
                    Err(e) => tracing::warn!("{}: connection lost: {e}", endpoint.name()),
                },
            }
        }
    }
}

impl FrontEnd for VfioUser {
    fn watch<'a>(&'a self, add: &mut dyn FnMut(Watch<'a>)) {
        add(Watch { fd: self.listener.as_fd(), events: PollFlags::POLLIN });
        if let Some(client) = &self.client {
            let congested = lock(&client.connection).is_congested();
            let events = if congested { PollFlags::POLLOUT } else { PollFlags::POLLIN };
            add(Watch { fd: client.stream.as_fd(), events });
        }
    }

    fn has_work(&self) -> bool {
        false
    }

    fn serve(&mut self, ready: &[bool], endpoint: &mut Endpoint<'_>) {
        let [connecting, sent] = [0, 1].map(|i| ready.get(i).copied().unwrap_or(false));
        if sent {
            self.serve_client(endpoint);
        }
        if connecting {
            self.accept(endpoint);
        }
    }
}

impl Client {
    fn new(stream: UnixStream, dma_timeout: Option<Duration>) -> io::Result<Client> {
        let peer = Peer::of(&stream);
        let mut connection = Connection::new(stream)?;
        connection.dma_timeout = dma_timeout.unwrap_or(connection.dma_timeout);
        Ok(Client {
            stream: connection.stream(),
            connection: Arc::new(Mutex::new(connection)),
            session: Session::default(),
            peer,
        })
    }
}
