//! Simulations that are cut at random: processes with any nodes, hosts apart from their switch too, in circles or not. What happens is what
//! happens in one process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hca_bench::cluster::{self, Address, Driven, Hashes, Member, Operation, Pattern, Plan, Transport};
use hca_model::{FirmwareConfig, HcaId, PortKind, Ps};
use hca_server::sim::Partition;
use hca_server::topology::Topology;
use hca_spec::ids::Lid;
use hca_tests::seeded::Random;

/// Long, since nobody waits for it unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where the nodes of a simulation are.
struct Cut {
    processes: usize,
    kind: PortKind,
    /// Further cables between switches, of Ethernet: any may be there.
    more: Vec<(usize, usize)>,
    /// The process of each switch, and the switch that it hangs on; the process of each host, and its switch.
    switches: Vec<(usize, usize)>,
    hosts: Vec<(usize, usize)>,
    /// More keys of the hosts' adapters.
    adapters: String,
}

impl Cut {
    fn random(random: &mut Random, kind: PortKind) -> Self {
        let processes = 2 + random.below(4);
        let switches = (0..2 + random.below(4)).map(|n| (random.below(processes), random.below(n.max(1))));
        let switches: Vec<_> = switches.collect();
        let hosts = (0..3 + random.below(4)).map(|_| (random.below(processes), random.below(switches.len())));
        let hosts = hosts.collect();
        let more = match kind {
            PortKind::InfiniBand => 0,
            PortKind::Ethernet => random.below(4),
        };
        let more = (0..more).map(|_| {
            let (a, step) = (random.below(switches.len()), 1 + random.below(switches.len() - 1));
            (a, (a + step) % switches.len())
        });
        let more = more.collect();
        Self { processes, kind, more, switches, hosts, adapters: String::new() }
    }

    /// The topology; `trunks`: more keys of the cables between switches; `keys`: of the switches.
    fn topology(&self, trunks: &str, keys: &str) -> Topology {
        let mut text = "[fabric]\ntraining_ms = 0\nseed = 5\n".to_owned();
        (0..self.processes).for_each(|process| text += &format!("[[process]]\nname = \"p{process}\"\n"));
        let [switch_kind, port_type] = match self.kind {
            PortKind::InfiniBand => ["", ""],
            PortKind::Ethernet => ["type = \"eth\"\n", "port_type = \"eth\"\n"],
        };
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
            text += &format!(
                "[[switch]]\nname = \"s{switch}\"\nports = 16\nprocess = \"p{process}\"\n{switch_kind}{keys}"
            );
            if switch > 0 {
                text += &link((port(switch), port(*to)), (*process, self.switches[*to].0), trunks);
            }
        }
        for (a, b) in &self.more {
            text += &link((port(*a), port(*b)), (self.switches[*a].0, self.switches[*b].0), trunks);
        }
        for (host, (process, switch)) in self.hosts.iter().enumerate() {
            text += &format!("[[host]]\nname = \"h{host}\"\nprocess = \"p{process}\"\n[[host.hca]]\n");
            text += &format!("{port_type}{}", self.adapters);
            let ends = (format!("h{host}/hca0"), port(*switch));
            text += &link(ends, (*process, self.switches[*switch].0), "");
        }
        Topology::parse("random", &text).unwrap_or_else(|why| panic!("{why}\n{text}"))
    }

    /// What the hosts of a process do, or all hosts.
    fn plan(&self, topology: &Topology, process: Option<usize>, (pattern, size): (Pattern, usize)) -> Plan {
        let here = self.hosts.iter().enumerate().filter(|(_, (of, _))| process.is_none_or(|p| p == *of));
        let member = |(place, (number, _)): (usize, (usize, _))| Member {
            hca: HcaId(place),
            number,
            name: format!("h{number}/hca0"),
        };
        Plan {
            members: here.enumerate().map(member).collect(),
            addresses: topology.hcas().zip(1..).map(|((_, hca), lid)| self.address(hca.guid, lid)).collect(),
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

    fn address(&self, guid: u64, lid: u16) -> Address {
        match self.kind {
            PortKind::InfiniBand => Address::Lid(Lid(lid)),
            PortKind::Ethernet => Address::Mac(FirmwareConfig::with_guid(guid).mac_of_port(1)),
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

fn folder(kind: PortKind, number: u64) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("softhca-parts-{}-{kind:?}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Runs each process in a thread of its own: the sum of what happened.
fn in_parts(cut: &Cut, topology: &Topology, what: (Pattern, usize), dir: &Path) -> Hashes {
    let parts: Vec<Hashes> = std::thread::scope(|scope| {
        let of = |process: usize| {
            let plan = cut.plan(topology, Some(process), what);
            scope.spawn(move || run(topology, Some(process), &plan, dir))
        };
        let threads: Vec<_> = (0..cut.processes).map(of).collect();
        threads.into_iter().map(|thread| thread.join().expect("a part ends")).collect()
    });
    parts.into_iter().fold(Hashes::default(), Hashes::and)
}

/// Cuts at random, of fabrics of that kind, whose switches have one of these more keys.
fn does_not_depend_on_the_cut(kind: PortKind, keys: &[&str]) {
    let mut differ = 0;
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let cut = Cut::random(&mut random, kind);
        let trunks = random.pick(&["", "", "loss = 0.01\nreorder = 0.02\ndelay_us = 2\n", "width = 1\n"]);
        let pattern = random.pick(&[Pattern::AllToAll, Pattern::Incast, Pattern::Ring]);
        let what = (pattern, 1 + random.below(9000));
        let topology = cut.topology(trunks, random.pick(keys));
        let dir = folder(kind, seed);
        let of_all = |topology: &Topology| run(topology, None, &cut.plan(topology, None, what), &dir);
        let whole = of_all(&topology);
        assert!(whole.counts.iter().all(|count| *count > 0), "{kind:?} {seed}: {whole:?}");
        differ += usize::from(keys.len() > 1 && of_all(&cut.topology(trunks, "")) != whole);
        assert_eq!(in_parts(&cut, &topology, what, &dir), whole, "{kind:?} {seed}");
        std::fs::remove_dir_all(dir).expect("the folder goes");
    }
    assert!(keys.len() < 2 || differ > 0, "more keys make no difference");
}

#[test]
fn what_happens_does_not_depend_on_the_cut() {
    does_not_depend_on_the_cut(PortKind::InfiniBand, &[""]);
}

/// Switches with several ways between them, some of which ask their peers to wait: they have room for few frames, or for none but those that come after
/// they have asked.
#[test]
fn what_happens_on_ethernet_does_not_depend_on_the_cut() {
    const KEYS: [&str; 3] =
        ["", "pause = true\nbuffer = \"64K\"\n", "pause = true\nbuffer = \"64K\"\nheadroom = \"8K\"\n"];
    does_not_depend_on_the_cut(PortKind::Ethernet, &KEYS);
}

/// All send to one, whose adapter takes frames out of its port's memory slower than they come, by 8 lanes of PCIe: it asks its switch to
/// wait. The cables between switch and adapters are cut, or the switch and the slow one are in one process.
#[test]
fn a_slow_adapter_asks_at_a_cut_as_it_does_in_one_process() {
    let dir = folder(PortKind::Ethernet, 100);
    let what = (Pattern::Incast, 200_000);
    for hosts in [vec![(1, 0), (2, 0), (3, 0), (1, 0)], vec![(0, 0), (2, 0), (3, 0), (1, 0)]] {
        let cut = Cut {
            processes: 4,
            kind: PortKind::Ethernet,
            more: Vec::new(),
            switches: vec![(0, 0)],
            hosts,
            adapters: "profile = \"connectx3\"\n".to_owned(),
        };
        let topology = cut.topology("", "pause = true\n");
        let whole = run(&topology, None, &cut.plan(&topology, None, what), &dir);
        assert_eq!(in_parts(&cut, &topology, what, &dir), whole);
    }
    std::fs::remove_dir_all(dir).expect("the folder goes");
}
