//! Simulations that are cut at random: processes with any nodes, hosts apart from their switch too, in circles or not. What happens is what
//! happens in one process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hca_bench::cluster::{self, Address, Driven, Hashes, Member, Operation, Pattern, Plan, Transport};
use hca_model::{HcaId, Ps};
use hca_server::sim::Partition;
use hca_server::topology::Topology;
use hca_spec::ids::Lid;
use hca_tests::seeded::Random;

/// Long, since nobody waits for it unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where the nodes of a simulation are.
struct Cut {
    processes: usize,
    /// The process of each switch, and the switch that it hangs on; the process of each host, and its switch.
    switches: Vec<(usize, usize)>,
    hosts: Vec<(usize, usize)>,
}

impl Cut {
    fn random(random: &mut Random) -> Self {
        let processes = 2 + random.below(4);
        let switches = (0..2 + random.below(4)).map(|n| (random.below(processes), random.below(n.max(1))));
        let switches: Vec<_> = switches.collect();
        let hosts = (0..3 + random.below(4)).map(|_| (random.below(processes), random.below(switches.len())));
        let hosts = hosts.collect();
        Self { processes, switches, hosts }
    }

    /// The topology; `trunks`: more keys of the cables between switches.
    fn topology(&self, trunks: &str) -> Topology {
        let mut text = "[fabric]\ntraining_ms = 0\nseed = 5\n".to_owned();
        (0..self.processes).for_each(|process| text += &format!("[[process]]\nname = \"p{process}\"\n"));
        let mut ports = vec![0; self.switches.len()];
        let mut links = 0;
        let mut port = |switch: usize| {
            ports[switch] += 1;
            format!("s{switch}/{}", ports[switch])
        };
        let mut link = |(a, b): (String, String), (here, there): (usize, usize), more: &str| {
            links += 1;
            let cut = format!("simbricks = \"listen:{links}.sock\"\n");
            let cut = if here == there { "" } else { &cut };
            format!("[[link]]\nbetween = [\"{a}\", \"{b}\"]\n{more}{cut}")
        };
        for (switch, (process, to)) in self.switches.iter().enumerate() {
            text += &format!("[[switch]]\nname = \"s{switch}\"\nports = 16\nprocess = \"p{process}\"\n");
            if switch > 0 {
                text += &link((port(switch), port(*to)), (*process, self.switches[*to].0), trunks);
            }
        }
        for (host, (process, switch)) in self.hosts.iter().enumerate() {
            text += &format!("[[host]]\nname = \"h{host}\"\nprocess = \"p{process}\"\n[[host.hca]]\n");
            let ends = (format!("h{host}/hca0"), port(*switch));
            text += &link(ends, (*process, self.switches[*switch].0), "");
        }
        Topology::parse("random", &text).unwrap_or_else(|why| panic!("{why}\n{text}"))
    }

    /// What the hosts of a process do, or all hosts.
    fn plan(&self, process: Option<usize>, pattern: Pattern, size: usize) -> Plan {
        let here = self.hosts.iter().enumerate().filter(|(_, (of, _))| process.is_none_or(|p| p == *of));
        let member = |(place, (number, _)): (usize, (usize, _))| Member {
            hca: HcaId(place),
            number,
            name: format!("h{number}/hca0"),
        };
        Plan {
            members: here.enumerate().map(member).collect(),
            addresses: (1..).take(self.hosts.len()).map(|lid| Address::Lid(Lid(lid))).collect(),
            pattern,
            peers: None,
            targets: 1,
            depth: 4,
            operation: Operation::Send,
            transport: Transport::Rc,
            messages: 2,
            size,
            start: Ps::from_ms(1),
            until: Ps::from_ms(3),
            timeout: 4,
            step: Ps::from_us(1),
            hash: true,
            observation: hca_trace::Options::default(),
        }
    }
}

/// Runs a process, or all.
fn run(topology: &Topology, process: Option<usize>, plan: &Plan, dir: &Path) -> Hashes {
    let name = process.map(|process| format!("p{process}"));
    let part = Partition::new(topology, name.as_deref(), dir, PATIENCE).expect("a part");
    let (world, run_until, finish) = (Partition::world, Partition::run_until, Partition::finish);
    let engine = Box::new(Driven { part, world, run_until, finish });
    let (report, engine) = cluster::run(engine, plan, || Ok(()), &mut |_| {}).expect("it comes to its end");
    engine.finish().expect("its end is said");
    report.hashes.expect("hashes")
}

fn folder(number: u64) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("softhca-parts-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn what_happens_does_not_depend_on_the_cut() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let cut = Cut::random(&mut random);
        let trunks = random.pick(&["", "", "loss = 0.01\nreorder = 0.02\ndelay_us = 2\n", "width = 1\n"]);
        let topology = cut.topology(trunks);
        let pattern = random.pick(&[Pattern::AllToAll, Pattern::Incast, Pattern::Ring]);
        let size = 1 + random.below(9000);
        let dir = folder(seed);
        let whole = run(&topology, None, &cut.plan(None, pattern, size), &dir);
        assert!(whole.counts.iter().all(|count| *count > 0), "{seed}: {whole:?}");
        let parts: Vec<Hashes> = std::thread::scope(|scope| {
            let of = |process: usize| {
                let (topology, dir, plan) = (&topology, &dir, cut.plan(Some(process), pattern, size));
                scope.spawn(move || run(topology, Some(process), &plan, dir))
            };
            let threads: Vec<_> = (0..cut.processes).map(of).collect();
            threads.into_iter().map(|thread| thread.join().expect("a part ends")).collect()
        });
        assert_eq!(parts.into_iter().fold(Hashes::default(), Hashes::and), whole, "{seed}");
        std::fs::remove_dir_all(dir).expect("the folder goes");
    }
}
