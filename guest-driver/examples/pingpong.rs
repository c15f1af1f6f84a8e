//! Two queue pairs of type RC play ping-pong, then one writes into the other's memory and reads it back.
//!
//! ```text
//! cargo softhca serve --socket /tmp/hca.sock           # in one terminal
//! cargo pingpong /tmp/hca.sock                         # in another
//! ```
//!
//! With one socket both ends are on one adapter. With two they are on two, which have to be linked:
//!
//! ```text
//! cargo softhca serve --topology two-hosts --run-dir /tmp/pair
//! cargo pingpong /tmp/pair/a-hca0.sock /tmp/pair/b-hca0.sock
//! ```
//!
//! Everything here is what a verbs program does; the calls of this crate are named as the verbs are. Bring-up itself is
//! in the example `bringup`.

use std::error::Error;
use std::path::{Path as FilePath, PathBuf};

use hca_driver::vfio_user::{VfioUserBus, WindowMemory};
use hca_driver::{
    Access, Bus, Completion, Config, Cq, CqConfig, Dma, Hca, InitAttr, Mr, PAGE_SIZE, Path, Qp, QpConfig,
    RtrAttr, RtsAttr, SendRequest, Sge,
};
use hca_spec::caps::General;
use hca_spec::ids::Pd;
use hca_spec::mad::{PortInfo, port_state};

/// Messages in each direction.
const ROUNDS: u64 = 1000;
/// Bytes of a message.
const MESSAGE: usize = 64;
/// DMA memory of each adapter's driver: most of it is lent to the firmware.
const MEMORY: usize = 16 << 20;
/// The adapter's port.
const PORT: u8 = 1;
/// How often to look at something before giving up.
const POLLS: u32 = 10_000_000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Adapter = Hca<VfioUserBus>;

/// One end of the connection: what a program keeps of it.
struct End {
    /// Which adapter.
    hca: usize,
    pd: Pd,
    cq: Cq<WindowMemory>,
    qp: Qp<WindowMemory>,
    memory: WindowMemory,
    mr: Mr,
}

impl End {
    /// Domain, registered memory, a completion queue, a queue pair in RESET.
    fn create(hcas: &mut [Adapter], index: usize) -> Result<Self> {
        let which = index % hcas.len();
        let hca = &mut hcas[which];
        // Keys and queue pairs work together only within one protection domain.
        let pd = hca.alloc_pd()?;
        // Any memory that the adapter can reach; on a real machine pinned pages and their bus addresses.
        let memory = hca.bus_mut().dma_alloc(PAGE_SIZE, PAGE_SIZE).ok_or("no DMA memory")?;
        // The peer may read and write it, if it knows the key.
        let mr = hca.register(pd, &memory, PAGE_SIZE, Access::ALL)?;
        // One completion queue for both directions. Without an event queue of its own it is polled.
        let cq = hca.create_cq(CqConfig::new(64))?;
        let qp = hca.create_qp(&QpConfig::rc(pd, &cq, &cq))?;
        Ok(Self { hca: which, pd, cq, qp, memory, mr })
    }

    /// RESET -> INIT -> RTR -> RTS. Both ends need the peer's LID and queue pair number, which real programs exchange
    /// over a socket or by the connection manager.
    fn connect(&mut self, hcas: &mut [Adapter], peer: &RtrAttr) -> Result<()> {
        let hca = &mut hcas[self.hca];
        hca.qp_to_init(&mut self.qp, &InitAttr::default())?;
        hca.qp_to_rtr(&mut self.qp, peer)?;
        hca.qp_to_rts(&mut self.qp, &RtsAttr::default())?;
        Ok(())
    }

    /// A piece of this end's memory, for work requests.
    fn piece(&self, offset: usize, len: usize) -> [Sge; 1] {
        [Sge { address: self.mr.address + offset as u64, len: len as u32, key: self.mr.key }]
    }

    /// Waits for the next completion, which must be a good one, and returns it with the number of its work request.
    fn completion(&mut self, hcas: &mut [Adapter]) -> Result<(u64, Completion)> {
        for _ in 0..POLLS {
            if let Some(completion) = self.cq.poll() {
                if let Err(failure) = completion.status {
                    return Err(format!("QP {}: {failure:?}", completion.qpn).into());
                }
                // A completion names a place in a queue; the driver knows which request was there.
                let number = self.qp.finish(&completion).ok_or("a completion of nothing that was posted")?;
                return Ok((number, completion));
            }
            hcas[self.hca].wait(None);
        }
        Err("no completion".into())
    }

    /// Everything back, in the opposite order.
    fn destroy(self, hcas: &mut [Adapter]) -> Result<()> {
        let hca = &mut hcas[self.hca];
        hca.destroy_qp(self.qp)?;
        hca.destroy_cq(self.cq)?;
        hca.deregister(self.mr)?;
        hca.dealloc_pd(self.pd)?;
        Ok(())
    }
}

/// Waits until a subnet manager has made the port active; returns the way to it.
fn way_to(hca: &mut Adapter) -> Result<Path> {
    for _ in 0..POLLS {
        if hca.port_info(PORT)?.get(PortInfo::PORT_STATE) == port_state::ACTIVE {
            return Ok(Path::lid(hca.lid(PORT)?));
        }
        hca.wait(None);
    }
    Err("the port does not become active".into())
}

/// Plays between the adapters behind the sockets, one or two.
///
/// # Errors
/// A socket, a command that is refused, a work request that fails.
pub fn run(sockets: &[PathBuf]) -> Result<()> {
    let open = |socket: &PathBuf| -> Result<Adapter> {
        let bus = VfioUserBus::connect(FilePath::new(socket), MEMORY, 1)?;
        Ok(Hca::open(bus, Config::default())?)
    };
    let mut hcas = sockets.iter().map(open).collect::<Result<Vec<_>>>()?;
    if hcas.is_empty() {
        return Err("no adapter".into());
    }
    let [mut a, mut b] = [End::create(&mut hcas, 0)?, End::create(&mut hcas, 1)?];
    let (to_a, to_b) = (way_to(&mut hcas[a.hca])?, way_to(&mut hcas[b.hca])?);
    let (at_a, at_b) = (RtrAttr::new(b.qp.number(), to_b), RtrAttr::new(a.qp.number(), to_a));
    a.connect(&mut hcas, &at_a)?;
    b.connect(&mut hcas, &at_b)?;
    println!("a: QP {} at LID {}    b: QP {} at LID {}", a.qp.number(), to_a.lid, b.qp.number(), to_b.lid);

    // Ping-pong. A receive request must be there before the message comes, or the peer waits and repeats (RNR).
    let khz = u64::from(hcas[a.hca].caps().get(General::DEVICE_FREQUENCY_KHZ));
    let (mut first, mut last) = (None, 0);
    for round in 0..ROUNDS {
        for sends in [true, false] {
            let (from, to) = if sends { (&mut a, &mut b) } else { (&mut b, &mut a) };
            let (message, buffer) = (0, MESSAGE);
            from.memory.write(message, &[round as u8; MESSAGE]);
            let receive = to.piece(buffer, MESSAGE);
            to.qp.post_recv(round, &receive)?;
            let send = from.piece(message, MESSAGE);
            from.qp.post_send(hcas[from.hca].bus_mut(), &SendRequest::send(round, &send))?;
            let (number, received) = to.completion(&mut hcas)?;
            let mut got = [0; MESSAGE];
            to.memory.read(buffer, &mut got);
            if (number, received.byte_len as usize, got) != (round, MESSAGE, [round as u8; MESSAGE]) {
                return Err(format!("round {round}: another message came").into());
            }
            // The sender's completion says that the peer has it.
            let (_, sent) = from.completion(&mut hcas)?;
            first.get_or_insert(received.timestamp);
            last = sent.timestamp;
        }
    }
    // Completions carry the adapter's clock, which shows model time.
    let ticks = last.saturating_sub(first.unwrap_or(last));
    let ns = u128::from(ticks) * 1_000_000 / u128::from(khz.max(1)) / u128::from(2 * ROUNDS - 1);
    println!(
        "{ROUNDS} rounds of {MESSAGE} bytes: {ns} ns of adapter time between messages, this program's part included"
    );

    // RDMA: a writes into b's memory and reads it back; b does not take part.
    a.memory.write(0, b"written by a, never received by b");
    let (near, far) = (a.piece(0, MESSAGE), b.mr);
    a.qp.post_send(hcas[a.hca].bus_mut(), &SendRequest::write(1, &near, far.address + 1024, far.key))?;
    a.completion(&mut hcas)?;
    let back = a.piece(2048, MESSAGE);
    a.qp.post_send(hcas[a.hca].bus_mut(), &SendRequest::read(2, &back, far.address + 1024, far.key))?;
    a.completion(&mut hcas)?;
    let mut got = [0; MESSAGE];
    a.memory.read(2048, &mut got);
    println!("RDMA write and read: {:?}", String::from_utf8_lossy(&got[..33]));

    a.destroy(&mut hcas)?;
    b.destroy(&mut hcas)?;
    for hca in hcas {
        hca.close()?;
    }
    println!("closed");
    Ok(())
}

// A test of the workspace includes this file and calls `run` by itself.
#[allow(dead_code, reason = "see above")]
fn main() -> Result<()> {
    let sockets: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if sockets.is_empty() || sockets.len() > 2 {
        return Err("usage: pingpong SOCKET [SOCKET]".into());
    }
    run(&sockets)
}
