//! A million queue pairs and a million completion queues, made and destroyed through our driver over a vfio-user
//! socket: the server's memory returns to where it was.
//!
//! [`churn`] works over any bus, [`run`] starts a server of its own and reads the memory of its process.

use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Bus, Config, Dma, Eq, Error, Hca};
use hca_spec::cmd::{CreateCqIn, CreateQpIn, ObjectIn, ObjectOut};
use hca_spec::command::Opcode;
use hca_spec::ids::Pd;
use hca_spec::qpc::{Qpc, RqType};
use hca_spec::queue::Cqc;
use serde_json::json;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::Process;

/// Event queue entries.
const EQES: u32 = 64;
/// MSI-X vector of the event queue that nothing is ever sent to.
const VECTOR: u16 = 1;
/// Most anonymous memory in KiB that the server may hold more after it all than before.
pub const SLACK_KIB: u64 = 4096;

/// Kinds of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Completion queues.
    Cq,
    /// Queue pairs, in RESET.
    Qp,
}

/// What the objects stand on: an event queue, a domain and pages, shared by all of them.
pub struct Ground<B: Bus> {
    eq: Eq<B::Dma>,
    pd: Pd,
    ring: B::Dma,
    record: B::Dma,
    /// A completion queue that the queue pairs report to.
    cqn: u32,
}

impl<B: Bus> Ground<B> {
    /// Makes it.
    ///
    /// # Errors
    /// A command failed.
    pub fn new(hca: &mut Hca<B>) -> Result<Self, Error> {
        let eq = hca.create_eq(EQES, VECTOR)?;
        let pd = hca.alloc_pd()?;
        let memory = |hca: &mut Hca<B>| hca.bus_mut().dma_alloc(4096, 4096).ok_or(Error::OutOfMemory);
        let (ring, record) = (memory(hca)?, memory(hca)?);
        let mut ground = Self { eq, pd, ring, record, cqn: 0 };
        ground.cqn = create(hca, &ground, Kind::Cq, 1)?.first().copied().unwrap_or_default();
        Ok(ground)
    }

    /// Destroys it.
    ///
    /// # Errors
    /// A command failed.
    pub fn destroy(self, hca: &mut Hca<B>) -> Result<(), Error> {
        destroy(hca, Kind::Cq, &[self.cqn])?;
        hca.dealloc_pd(self.pd)?;
        hca.destroy_eq(self.eq)
    }

    fn input(&self, kind: Kind, uar: u32) -> Vec<u8> {
        let mut input = match kind {
            Kind::Cq => {
                let mut create = CreateCqIn::new();
                let cqc = create.cqc_mut();
                cqc.set(Cqc::LOG_CQ_SIZE, 6).set(Cqc::UAR_PAGE, uar);
                cqc.set(Cqc::C_EQN, self.eq.number().0.into()).set(Cqc::DBR_ADDR, self.record.bus_address());
                create.bytes().to_vec()
            }
            Kind::Qp => {
                let mut create = CreateQpIn::new();
                let qpc = create.qpc_mut();
                qpc.set(Qpc::PD, self.pd.0).set(Qpc::CQN_SND, self.cqn).set(Qpc::CQN_RCV, self.cqn);
                qpc.set(Qpc::LOG_SQ_SIZE, 4).set(Qpc::LOG_RQ_SIZE, 4).set(Qpc::UAR_PAGE, uar);
                qpc.set(Qpc::RQ_TYPE, RqType::Own as u32).set(Qpc::DBR_ADDR, self.record.bus_address());
                create.bytes().to_vec()
            }
        };
        input.extend(self.ring.bus_address().to_be_bytes());
        input
    }
}

/// Executes a command for each input, many at a time; gives the outputs in order.
fn pipeline<B: Bus>(
    hca: &mut Hca<B>,
    opcode: Opcode,
    mut inputs: impl Iterator<Item = Vec<u8>>,
    mut done: impl FnMut(&[u8]),
) -> Result<(), Error> {
    loop {
        let some = inputs.by_ref().take(hca.command_slots());
        let slots = hca.begin_all(opcode, 0, some, ObjectOut::SIZE)?;
        if slots.is_empty() {
            return Ok(());
        }
        for slot in slots {
            done(&hca.finish(slot)?);
        }
    }
}

/// Makes `count` objects; gives their numbers.
///
/// # Errors
/// A command failed.
pub fn create<B: Bus>(
    hca: &mut Hca<B>,
    ground: &Ground<B>,
    kind: Kind,
    count: u32,
) -> Result<Vec<u32>, Error> {
    let opcode = match kind {
        Kind::Cq => Opcode::CreateCq,
        Kind::Qp => Opcode::CreateQp,
    };
    let input = ground.input(kind, hca.uar().0);
    let mut numbers = Vec::with_capacity(count as usize);
    pipeline(hca, opcode, (0..count).map(|_| input.clone()), |out| {
        numbers.push(ObjectOut::from_prefix_or_zero(out).get(ObjectOut::NUMBER));
    })?;
    Ok(numbers)
}

/// Destroys objects.
///
/// # Errors
/// A command failed.
pub fn destroy<B: Bus>(hca: &mut Hca<B>, kind: Kind, numbers: &[u32]) -> Result<(), Error> {
    let opcode = match kind {
        Kind::Cq => Opcode::DestroyCq,
        Kind::Qp => Opcode::DestroyQp,
    };
    let input = |number: &u32| ObjectIn::new().set(ObjectIn::NUMBER, *number).bytes().to_vec();
    pipeline(hca, opcode, numbers.iter().map(input), |_| ())
}

/// Makes and destroys `total` objects, `live` at a time.
///
/// # Errors
/// A command failed.
pub fn churn<B: Bus>(
    hca: &mut Hca<B>,
    ground: &Ground<B>,
    kind: Kind,
    total: u32,
    live: u32,
) -> Result<(), Error> {
    let mut left = total;
    while left > 0 {
        let numbers = create(hca, ground, kind, left.min(live))?;
        left -= numbers.len() as u32;
        destroy(hca, kind, &numbers)?;
    }
    Ok(())
}

/// How many objects.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Queue pairs, and as many completion queues.
    pub total: u32,
    /// Of those, how many exist at a time.
    pub live: u32,
}

impl Plan {
    /// The whole million.
    pub const MILLION: Self = Self { total: 1_000_000, live: 50_000 };
}

/// What it took.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The plan that was followed.
    pub plan: Plan,
    /// Host time for all of it.
    pub time: Duration,
    /// The server's anonymous memory before, in KiB.
    pub before_kib: u64,
    /// With [`Plan::live`] queue pairs and as many completion queues.
    pub peak_kib: u64,
    /// After everything was destroyed.
    pub after_kib: u64,
}

impl Report {
    /// Whether the memory came back.
    pub fn passed(&self) -> bool {
        self.after_kib <= self.before_kib + SLACK_KIB
    }

    /// Objects made and destroyed per second.
    pub fn per_second(&self) -> f64 {
        f64::from(self.plan.total) * 2.0 / self.time.as_secs_f64()
    }

    /// For programs.
    pub fn to_json(&self) -> serde_json::Value {
        json!({
            "queue_pairs": self.plan.total, "completion_queues": self.plan.total, "live": self.plan.live,
            "seconds": self.time.as_secs_f64(), "objects_per_second": self.per_second(),
            "server_kib": { "before": self.before_kib, "peak": self.peak_kib, "after": self.after_kib },
            "passed": self.passed(),
        })
    }
}

/// Ends the server when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the plan against the server program at `server`.
///
/// # Errors
/// The server, its socket, or a command.
pub fn run(server: &Path, plan: Plan) -> Result<Report, Box<dyn std::error::Error>> {
    let socket = std::env::temp_dir().join(format!("hca-million-{}.sock", std::process::id()));
    let child = Command::new(server)
        .arg("serve")
        .arg("--socket")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let process = Process(child.id());
    let ended = Ended(child);
    let start = Instant::now();
    while !socket.exists() {
        if start.elapsed() > Duration::from_secs(20) {
            return Err("the server does not open its socket".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // The firmware's tables of `live` queue pairs and completion queues lie in memory of the host.
    let memory = (64 << 20) + plan.live as usize * 4096;
    // Polled: an event for each command would double the traffic on the socket.
    let config = Config { command_events: false, ..Config::default() };
    let mut hca = Hca::open(VfioUserBus::connect(&socket, memory, 2)?, config)?;
    let ground = Ground::new(&mut hca)?;
    // As many as ever will be at a time, once: what the host gives to the firmware stays with it.
    let peak = |hca: &mut Hca<VfioUserBus>| -> Result<u64, Box<dyn std::error::Error>> {
        let cqs = create(hca, &ground, Kind::Cq, plan.live)?;
        let qps = create(hca, &ground, Kind::Qp, plan.live)?;
        let kib = process.anonymous_kib()?;
        destroy(hca, Kind::Qp, &qps)?;
        destroy(hca, Kind::Cq, &cqs)?;
        Ok(kib)
    };
    let start_kib = process.anonymous_kib()?;
    peak(&mut hca)?;
    let before_kib = process.anonymous_kib()?.min(start_kib + SLACK_KIB);
    let start = Instant::now();
    churn(&mut hca, &ground, Kind::Qp, plan.total, plan.live)?;
    churn(&mut hca, &ground, Kind::Cq, plan.total, plan.live)?;
    let time = start.elapsed();
    let after_kib = process.anonymous_kib()?;
    let peak_kib = peak(&mut hca)?;
    ground.destroy(&mut hca)?;
    let bus = hca.close()?;
    if let Some(why) = bus.error() {
        return Err(why.into());
    }
    drop(ended);
    let _ = std::fs::remove_file(&socket);
    let _ = std::fs::remove_file(socket.with_extension("sock.control"));
    Ok(Report { plan, time, before_kib, peak_kib, after_kib })
}
