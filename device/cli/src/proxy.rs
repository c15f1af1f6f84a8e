//! `softhca sim-proxy`: takes links of a simulation to another machine.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use hca_server::sandbox::{self, Connects};
use hca_server::simbricks::{Role, proxy};

use crate::confine::Confinement;
use crate::log;

/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);

/// Take network links of SimBricks to another machine, over TCP to another proxy there
#[derive(Debug, Args)]
#[command(after_help = "Example, with simbricks = \"listen:ab.sock\" in far.toml:\n  \
    left$  softhca sim --topology far.toml --process left --run-dir /tmp/far &\n  \
    left$  softhca sim-proxy --listen 192.0.2.1:7000 connect:/tmp/far/ab.sock\n  \
    right$ softhca sim-proxy --connect 192.0.2.1:7000 listen:/tmp/far/ab.sock &\n  \
    right$ softhca sim --topology far.toml --process right --run-dir /tmp/far\n\n\
    What passes is not secret, and nobody is asked who he is: use a network of your own, or a tunnel.\n\
    Exit code: 0 when all links have ended, 1 if the other proxy ended before.")]
pub(crate) struct Arguments {
    /// Wait there for the other proxy
    #[arg(long, value_name = "IP:PORT", required_unless_present = "connect", conflicts_with = "connect")]
    listen: Option<SocketAddr>,
    /// Connect to the other proxy
    #[arg(long, value_name = "IP:PORT")]
    connect: Option<SocketAddr>,
    /// What it does at the socket of each link: connect:PATH where a simulation listens, listen:PATH where one connects. The other proxy
    /// has as many, in the same order
    #[arg(value_name = "LINK", required = true, value_parser = end)]
    links: Vec<proxy::End>,
    /// How many seconds to wait for the other proxy and the simulations
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    patience: u64,
    #[command(flatten)]
    confinement: Confinement,
}

/// Understands a link.
///
/// # Errors
/// What is possible, as text.
fn end(text: &str) -> Result<proxy::End, String> {
    match text.split_once(':').filter(|(_, path)| !path.is_empty()) {
        Some(("listen", path)) => Ok(proxy::End { role: Role::Listen, path: path.into() }),
        Some(("connect", path)) => Ok(proxy::End { role: Role::Connect, path: path.into() }),
        _ => Err("must be listen:PATH or connect:PATH".into()),
    }
}

/// Carries links until they end.
///
/// # Errors
/// The other proxy or a simulation is not there, or ended before its time.
pub(crate) fn run(args: &Arguments, log: &mut log::End) -> anyhow::Result<()> {
    args.confinement.begin_alone(None)?;
    let patience = Duration::from_secs(args.patience);
    let until = Instant::now() + patience;
    let stream = match (args.listen, args.connect) {
        (Some(at), _) => accept(at, until)?,
        (None, Some(to)) => connect(to, until)?,
        (None, None) => anyhow::bail!("--listen or --connect is needed"),
    };
    // Everything is open then.
    let ready = || {
        args.confinement.enter(sandbox::Role::Worker, &[], false, Connects::default())?;
        Ok(log.begin()?)
    };
    proxy::run(&args.links, stream, patience, ready)
}

fn accept(at: SocketAddr, until: Instant) -> anyhow::Result<TcpStream> {
    let listener = TcpListener::bind(at).with_context(|| format!("{at}: can't listen there"))?;
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(why) => return Err(why).with_context(|| format!("{at}")),
        }
        anyhow::ensure!(Instant::now() < until, "{at}: no other proxy has connected");
        std::thread::sleep(RETRY);
    }
}

fn connect(to: SocketAddr, until: Instant) -> anyhow::Result<TcpStream> {
    loop {
        match TcpStream::connect_timeout(&to, until.saturating_duration_since(Instant::now()).max(RETRY)) {
            Ok(stream) => return Ok(stream),
            Err(why) if Instant::now() >= until => {
                return Err(why).with_context(|| format!("{to}: no other proxy is there"));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}
