//! What it costs, and gives, to keep tenants apart: `cargo bench -p hca-tests --bench tenants`.
//!
//! The same work over sockets, with one process for all hosts and with a process for each of them, in turns. Payload is what
//! clients saw done in a second of the wall clock, so other load counts; ratios of one run are what to compare. Beside it stands what of the
//! processors a message took: of the server, all its processes together, and of the clients, as the system's scheduler counts it; and how many
//! cores both had. Where both of two cores are busy, clients are what limits the row.
//!
//! | row | what |
//! |---|---|
//! | one | one tenant writes 64 KiB after 64 KiB within its own adapter |
//! | two | two tenants do, at the same time: the sum |
//! | two, small | the same with 8 bytes |
//! | between | one tenant writes 1 MiB after 1 MiB to another over a link; beside a copy of 1 MiB in this process |
//! | between, small | the same with 8 bytes, one after the other |
//!
//! An argument behind `--` that is the name of a row selects it; more of them select more.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Config, Hca, RtsAttr, SendRequest};
use hca_server::vfio_user::VfioUser;
use hca_server::workers::{self, Program};
use hca_tests::pair::{Options, Pair, wait_active};
use hca_tests::served::{Served, THREAD};
use nix::sys::eventfd::EventFd;

const TOPOLOGY: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n\
                        [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n";
/// The argument that makes this program a worker.
const WORKER: &str = "worker";

fn main() {
    if std::env::args().nth(1).as_deref() == Some(WORKER) {
        let inbox = std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor");
        let never = EventFd::new().expect("an event").as_fd().try_clone_to_owned().expect("a descriptor");
        return workers::run(
            inbox,
            never,
            false,
            |listener| Ok(Box::new(VfioUser::on(listener))),
            |_| Ok(()),
        )
        .expect("the worker serves");
    }
    let quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    let (turns, time) = if quick { (1, Duration::from_millis(200)) } else { (5, Duration::from_secs(2)) };
    let rows: [(&str, usize, u64, Run); 5] = [
        ("one", 64 << 10, 16, |served, work, cost| own(served, &["a"], work, cost)),
        ("two", 64 << 10, 16, |served, work, cost| own(served, &["a", "b"], work, cost)),
        ("two, small", 8, 64, |served, work, cost| own(served, &["a", "b"], work, cost)),
        ("between", 1 << 20, 8, between),
        ("between, small", 8, 1, between),
    ];
    println!(
        "{:<16} {:>16} {:>16} {:>8}   processor for a message: server, clients (cores of both)",
        "row", "one process", "one each", "ratio"
    );
    let named: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let selected = |name: &str| named.is_empty() || named.iter().any(|row| row == name);
    for (name, size, batch, run) in rows.into_iter().filter(|(name, ..)| selected(name)) {
        let mut rates = [Vec::new(), Vec::new()];
        let mut costs = [Cost::default(); 2];
        for _ in 0..turns {
            for (apart, (rates, cost)) in rates.iter_mut().zip(&mut costs).enumerate() {
                let served = match apart {
                    0 => Served::start(TOPOLOGY),
                    _ => Served::apart(TOPOLOGY, program()),
                };
                rates.push(run(&served, &Work { size, batch, time }, cost));
            }
        }
        let [one, each] = rates.map(median);
        let shown = |rate: f64| match size {
            8 => format!("{:.1} k/s", rate / 1e3),
            _ => format!("{:.3} GiB/s", rate * size as f64 / (1u64 << 30) as f64),
        };
        let [cost, apart] = costs.map(|cost| cost.to_string());
        println!("{name:<16} {:>16} {:>16} {:>8.2}   {cost}; {apart}", shown(one), shown(each), each / one);
        if name == "between" {
            let copied = copies(size, time);
            println!(
                "{:<16} {:>16} {:>16} {:>8.3}",
                "  of memcpy",
                shown(copied),
                shown(each),
                each / copied
            );
        }
    }
}

type Run = fn(&Served, &Work, &mut Cost) -> f64;

/// What messages took of the processors.
#[derive(Clone, Copy, Default)]
struct Cost {
    server: Duration,
    clients: Duration,
    wall: Duration,
    messages: u64,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / self.messages as f64;
        let cores = (self.server + self.clients).as_secs_f64() / self.wall.as_secs_f64();
        write!(f, "{:.1} us, {:.1} us ({cores:.2})", each(self.server), each(self.clients))
    }
}

/// What a task had of the processors so far, by its file `schedstat` (proc(5)).
fn spent(task: &str) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{task}/schedstat")).unwrap_or_default();
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// What the server has had so far, its thread here and all workers; and the clients, which are the other threads.
fn spent_by(workers: &[u64]) -> (Duration, Duration) {
    let (mut server, mut clients) = (Duration::ZERO, Duration::ZERO);
    for task in std::fs::read_dir("/proc/self/task").expect("proc(5)").flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let own = if name.trim_end() == THREAD { &mut server } else { &mut clients };
        *own += spent(&format!("self/task/{}", task.file_name().display()));
    }
    server += workers.iter().map(|pid| spent(&format!("{pid}/task/{pid}"))).sum::<Duration>();
    (server, clients)
}

/// The processes of a server that is several.
fn workers(served: &Served) -> Vec<u64> {
    let engines = &served.ask("stat")["engine"];
    let each = engines.as_object().into_iter().flat_map(|all| all.values());
    each.filter_map(|engine| engine.get("pid")?.as_u64()).collect()
}

/// Does that, and adds what it took.
fn measured(served: &Served, cost: &mut Cost, work: impl FnOnce() -> (f64, u64)) -> f64 {
    let workers = workers(served);
    let (began, (server, clients)) = (Instant::now(), spent_by(&workers));
    let (rate, messages) = work();
    let (server_then, clients_then) = spent_by(&workers);
    cost.server += server_then.saturating_sub(server);
    cost.clients += clients_then.saturating_sub(clients);
    cost.wall += began.elapsed();
    cost.messages += messages;
    rate
}

/// What a tenant does.
struct Work {
    /// Bytes of a message.
    size: usize,
    /// Messages before it waits for the last one.
    batch: u64,
    time: Duration,
}

fn program() -> Program {
    Program {
        file: std::env::current_exe().expect("this program's file"),
        arguments: vec![WORKER.into()],
        helper: None,
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Copies of so many bytes in a second.
fn copies(size: usize, time: Duration) -> f64 {
    let (from, mut to) = (vec![1u8; size], vec![0u8; size]);
    let (begin, mut count) = (Instant::now(), 0u64);
    while begin.elapsed() < time {
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        count += 1;
    }
    count as f64 / begin.elapsed().as_secs_f64()
}

fn open(served: &Served, host: &str) -> Hca<VfioUserBus> {
    let mut hca = Hca::open(served.bus(host), Config::default()).expect("the adapter comes up");
    wait_active(&mut hca).expect("the port comes up");
    hca
}

fn connect(hcas: Vec<Hca<VfioUserBus>>, work: &Work) -> Pair<VfioUserBus> {
    let rts = RtsAttr { timeout: 18, ..RtsAttr::default() };
    let memory = work.size.max(4096);
    Pair::connect(hcas, &Options { memory, mtu: 5, rts, ..Options::default() }).expect("connected")
}

/// Messages in a second, and how many there were.
fn rate(pair: &mut Pair<VfioUserBus>, work: &Work) -> (f64, u64) {
    let (far, sge) = (pair.ends[1].mr, [pair.ends[0].sge(0, work.size)]);
    let (begin, mut done) = (Instant::now(), 0);
    while begin.elapsed() < work.time {
        for i in 0..work.batch {
            let end = &mut pair.ends[0];
            let request = SendRequest::write(i, &sge, far.address, far.key);
            let request = if i + 1 == work.batch { request } else { request.unsignaled() };
            end.qp.queue_send(&request).expect("room");
        }
        let home = pair.ends[0].home;
        pair.ends[0].qp.ring_doorbell(pair.hcas[home].bus_mut());
        loop {
            match pair.try_sent(0) {
                Some((_, completion)) => break assert_eq!(completion.status, Ok(())),
                // Whoever looks all the time takes a core from those who work.
                None => std::thread::sleep(Duration::from_micros(20)),
            }
        }
        done += work.batch;
    }
    (done as f64 / begin.elapsed().as_secs_f64(), done)
}

/// Tenants with traffic of their own: the sum. What a tenant's thread took is counted until it ends.
fn own(served: &Served, hosts: &[&str], work: &Work, cost: &mut Cost) -> f64 {
    let mut pairs: Vec<_> = hosts.iter().map(|host| connect(vec![open(served, host)], work)).collect();
    let barrier = Barrier::new(hosts.len() + 1);
    std::thread::scope(|scope| {
        let tenant = |pair| {
            scope.spawn(|| {
                let done = rate(pair, work);
                // Until everybody was looked at.
                barrier.wait();
                barrier.wait();
                done
            })
        };
        let tenants: Vec<_> = pairs.iter_mut().map(tenant).collect();
        let mut rates = 0.0;
        measured(served, cost, || {
            barrier.wait();
            (0.0, 0)
        });
        barrier.wait();
        for (rate, done) in tenants.into_iter().map(|tenant| tenant.join().expect("a tenant")) {
            rates += rate;
            cost.messages += done;
        }
        rates
    })
}

/// One tenant writes to another.
fn between(served: &Served, work: &Work, cost: &mut Cost) -> f64 {
    let mut pair = connect(vec![open(served, "a"), open(served, "b")], work);
    measured(served, cost, || rate(&mut pair, work))
}
