use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use hca_model::link::{Light, LinkMessage};
use hca_model::{HcaId, Ps};
use proptest::prelude::*;

use super::Partition;
use crate::simbricks::{self, Framing, NetLink, Open, Role, net};
use crate::topology::Topology;

const PATIENCE: Duration = Duration::from_secs(60);

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("softhca-sim-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Two hosts, each with a switch, in two processes.
fn topology(trunk: &str) -> Topology {
    let mut text =
        "[fabric]\ntraining_ms = 0\n[[process]]\nname = \"p\"\n[[process]]\nname = \"q\"\n".to_owned();
    for (host, process) in [("a", "p"), ("b", "q")] {
        text += &format!(
            "[[host]]\nname = \"{host}\"\nprocess = \"{process}\"\n[[host.hca]]\n\
             [[switch]]\nname = \"s{host}\"\nprocess = \"{process}\"\nports = 4\n\
             [[link]]\nbetween = [\"{host}/hca0\", \"s{host}/1\"]\n"
        );
    }
    text += &format!("[[link]]\nbetween = [\"sa/2\", \"sb/2\"]\n{trunk}\n");
    Topology::parse("t", &text).unwrap()
}

/// What was seen at the port of the first adapter of a partition.
fn outcome(partition: &mut Partition) -> (u64, u64) {
    let world = partition.world();
    world.start_trace(0);
    world.trace().unwrap().of_node(HcaId(0))
}

#[test]
fn parts_go_together_and_links_train_across_them() {
    let topology = topology("simbricks = \"listen:trunk.sock\"");
    let dir = folder("train");
    let run = |process: &'static str, (topology, dir): (Topology, PathBuf)| {
        std::thread::spawn(move || {
            let mut part = Partition::new(&topology, Some(process), &dir, PATIENCE).unwrap();
            part.world().start_trace(0);
            part.run_until(Ps::from_us(50), &|| Ps::ZERO).unwrap();
            assert_eq!(part.reached(), Ps::from_us(50));
            let trunk = part.world().link_is_up(1);
            let events = part.world().trace().unwrap().of_node(HcaId(0));
            part.finish().unwrap();
            (trunk, events)
        })
    };
    let ends = ["p", "q"].map(|process| run(process, (topology.clone(), dir.clone())));
    let [p, q] = ends.map(|end| end.join().unwrap());
    assert!(p.0 && q.0, "the trunk is up at both ends");
    let mut whole = Partition::new(&topology, None, &dir, PATIENCE).unwrap();
    whole.world().start_trace(0);
    whole.run_until(Ps::from_us(50), &|| Ps::ZERO).unwrap();
    let of = |part: &mut Partition, hca| part.world().trace().unwrap().of_node(HcaId(hca));
    assert_eq!([p.1, q.1], [of(&mut whole, 0), of(&mut whole, 1)]);
}

/// One process between two others has nothing to do but to pass on what they promise each other. Nobody looks of himself whether there is
/// something: all come to the end if each is woken for what it waits for.
#[test]
fn who_sleeps_is_woken_over_others() {
    const MIDDLE: &str = "q";
    let mut text = "[fabric]\ntraining_ms = 0\n".to_owned();
    for process in ["p", MIDDLE, "r"] {
        text += &format!("[[process]]\nname = \"{process}\"\n");
        text += &format!("[[switch]]\nname = \"s{process}\"\nprocess = \"{process}\"\nports = 4\n");
        if process != MIDDLE {
            text += &format!(
                "[[host]]\nname = \"{process}\"\nprocess = \"{process}\"\n[[host.hca]]\n\
                 [[link]]\nbetween = [\"{process}/hca0\", \"s{process}/1\"]\n\
                 [[link]]\nbetween = [\"s{process}/2\", \"s{MIDDLE}/{}\"]\nsimbricks = \"listen:{process}.sock\"\n",
                if process == "p" { 1 } else { 2 }
            );
        }
    }
    let topology = Topology::parse("t", &text).unwrap();
    let dir = folder("chain");
    let run = |process: &'static str| {
        let (topology, dir) = (topology.clone(), dir.clone());
        std::thread::spawn(move || {
            let mut part = Partition::new(&topology, Some(process), &dir, PATIENCE).unwrap();
            part.nap = Duration::from_secs(3600);
            // At the ends something may be done at each step, and in the middle seldom.
            let step = match process {
                "p" => Ps::from_ns(10),
                MIDDLE => Ps::from_us(50),
                _ => Ps::from_ns(30),
            };
            while part.reached() < Ps::from_us(200) {
                let until = part.reached() + step;
                part.run_until(until, &|| until).unwrap();
            }
            part.finish().unwrap();
        })
    };
    ["p", MIDDLE, "r"].map(run).into_iter().for_each(|end| end.join().unwrap());
}

/// Parts, as many as have a first neighbour, and one more; a switch and a host each. Cables of `more` join any two, and so may close circles.
fn parts(first: &[usize], more: &[(usize, usize)]) -> Topology {
    let mut text = "[fabric]\ntraining_ms = 0\n".to_owned();
    let count = first.len() + 1;
    for part in 0..count {
        text += &format!(
            "[[process]]\nname = \"p{part}\"\n[[switch]]\nname = \"s{part}\"\nprocess = \"p{part}\"\nports = 16\n\
             [[host]]\nname = \"h{part}\"\nprocess = \"p{part}\"\n[[host.hca]]\n\
             [[link]]\nbetween = [\"h{part}/hca0\", \"s{part}/1\"]\n"
        );
    }
    let mut ports = vec![1; count];
    let mut port = |part: usize| {
        ports[part] += 1;
        ports[part]
    };
    let tree = first.iter().zip(1..).map(|(to, part)| (*to % part, part));
    let others = more.iter().map(|(a, b)| (a % count, b % count)).filter(|(a, b)| a != b);
    for (number, (a, b)) in tree.chain(others).enumerate() {
        text += &format!(
            "[[link]]\nbetween = [\"s{a}/{}\", \"s{b}/{}\"]\nsimbricks = \"listen:{number}.sock\"\n",
            port(a),
            port(b)
        );
    }
    Topology::parse("t", &text).unwrap()
}

/// Runs all parts of a topology up to a time. Returns the most steps that one took.
fn steps(name: &str, topology: &Topology, count: usize, until: Ps) -> u64 {
    let dir = folder(name);
    let run = |part: usize| {
        let (topology, dir) = (topology.clone(), dir.clone());
        std::thread::spawn(move || {
            let mut part = Partition::new(&topology, Some(&format!("p{part}")), &dir, PATIENCE).unwrap();
            part.run_until(until, &|| until).unwrap();
            let steps = part.steps();
            part.finish().unwrap();
            steps
        })
    };
    let ends: Vec<_> = (0..count).map(run).collect();
    ends.into_iter().map(|end| end.join().unwrap()).max().unwrap()
}

/// A name, the first neighbour of each part, and more cables ([`parts`]).
type Shape = (&'static str, &'static [usize], &'static [(usize, usize)]);

/// Where links close a circle, each promise comes round to who made it. Idle parts go on together nevertheless, and not by what a link takes: 20 ms
/// would be 190,000 times that.
#[test]
fn circles_with_nothing_to_do_go_on_in_few_steps() {
    const UNTIL: Ps = Ps::from_ms(20);
    // In a line; two cables to one; a circle of three; one of five, with a part at its side and another circle.
    let shapes: [Shape; 4] = [
        ("line", &[0, 1, 2], &[]),
        ("double", &[0, 1], &[(0, 1)]),
        ("three", &[0, 1], &[(2, 0)]),
        ("five", &[0, 1, 2, 3, 2], &[(4, 0), (5, 1), (3, 1)]),
    ];
    for (name, first, more) in shapes {
        let took = steps(name, &parts(first, more), first.len() + 1, UNTIL);
        println!("{name}: {took} steps");
        assert!(took < 20_000, "{name}: {took} steps");
    }
}

/// What is done to a part: nothing for so many ns, of which that is known before or not; then a cable goes, or comes back.
type Deeds = Vec<(u16, bool, u8)>;

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// However a simulation is cut, with circles or without, whatever is done at its parts and whenever: it ends, though nobody who sleeps looks
    /// of himself whether there is something. Many things are done at the same time.
    #[test]
    fn parts_of_any_shape_come_to_their_end(
        first in prop::collection::vec(any::<usize>(), 1..5),
        more in prop::collection::vec(any::<(usize, usize)>(), 0..3),
        deeds in prop::collection::vec(prop::collection::vec((0u16..2000, any::<bool>(), any::<u8>()), 0..24), 5),
    ) {
        const END: Ps = Ps::from_us(30);
        let topology = parts(&first, &more);
        let dir = folder("shapes");
        let run = |part: usize, deeds: Deeds| {
            let (topology, dir) = (topology.clone(), dir.clone());
            std::thread::spawn(move || {
                let mut part = Partition::new(&topology, Some(&format!("p{part}")), &dir, PATIENCE).unwrap();
                part.nap = Duration::from_secs(3600);
                let mut cables = vec![true; part.world().links()];
                for (gap, known, what) in deeds {
                    // Multiples of a link's time, and of a part of it: so things are done together.
                    let until = part.reached() + Ps::from_ns(u64::from(gap) / 35 * 35);
                    let quiet = if known { until } else { Ps::ZERO };
                    part.run_until(until.min(END), &|| quiet).unwrap();
                    let link = usize::from(what) % cables.len();
                    cables[link] = !cables[link];
                    let now = part.reached();
                    part.world().set_cable(now, link, cables[link]);
                }
                part.run_until(END, &|| END).unwrap();
                let reached = part.reached();
                part.finish().unwrap();
                reached
            })
        };
        let ends: Vec<_> = (0..=first.len()).zip(deeds).map(|(part, deeds)| run(part, deeds)).collect();
        for end in ends {
            assert_eq!(end.join().unwrap(), END);
        }
    }
}

/// A neighbour that ends early is an error that names the link; one that ends in time is none.
#[test]
fn a_neighbour_that_is_gone_is_said() {
    let topology = topology("simbricks = \"connect:trunk.sock\"");
    let dir = folder("gone");
    // It may be through before this part has seen what it said.
    let both = Arc::new(Barrier::new(2));
    let there = {
        let (topology, dir, both) = (topology.clone(), dir.clone(), Arc::clone(&both));
        std::thread::spawn(move || {
            let mut part = Partition::new(&topology, Some("q"), &dir, PATIENCE).unwrap();
            part.run_until(Ps::from_us(20), &|| Ps::ZERO).unwrap();
            both.wait();
            // It does not say that it ends.
            drop(part);
        })
    };
    let mut here = Partition::new(&topology, Some("p"), &dir, PATIENCE).unwrap();
    here.run_until(Ps::from_us(20), &|| Ps::ZERO).unwrap();
    both.wait();
    there.join().unwrap();
    let why = format!("{:#}", here.run_until(Ps::from_us(30), &|| Ps::ZERO).unwrap_err());
    assert!(why.contains("sa/2 and sb/2") && why.contains("the peer has ended"), "{why}");
    assert_ne!(outcome(&mut here), (0, 0));
}

/// A neighbour that says that nothing comes for long, and sends something nevertheless, is an error.
#[test]
fn who_does_not_keep_to_his_outlook_is_said() {
    let topology = topology("simbricks = \"connect:trunk.sock\"");
    let dir = folder("liar");
    let liar = {
        let path = dir.join("trunk.sock");
        let link = Open::network(Role::Listen, path, net::LONGEST, net::LONGEST);
        std::thread::spawn(move || {
            let mut link =
                NetLink::new(simbricks::open(&[link], PATIENCE).unwrap().pop().unwrap(), Framing::Raw);
            // It is believed, whenever it has taken what came.
            while link.channel().heard() < Ps::from_us(1) {
                link.channel_mut().promise(Ps(1), Ps::from_ms(1)).unwrap();
                link.channel_mut().rouse().unwrap();
                link.take().unwrap();
                std::thread::yield_now();
            }
            link.send(Ps(2), LinkMessage::Light(Light::default())).unwrap();
            link.channel_mut().rouse().unwrap();
            link
        })
    };
    let mut here = Partition::new(&topology, Some("p"), &dir, PATIENCE).unwrap();
    let why = format!("{:#}", here.run_until(Ps::from_ms(20), &|| Ps::ZERO).unwrap_err());
    assert!(why.contains("sa/2 and sb/2") && why.contains("though it had said that nothing came"), "{why}");
    drop(liar.join().unwrap());
}

#[test]
fn what_a_simulation_cannot_have_is_said() {
    let refused = |text: &str, process| {
        let topology = Topology::parse("t", text).unwrap();
        format!("{:#}", Partition::new(&topology, process, &folder("x"), PATIENCE).err().unwrap())
    };
    let two = "[[process]]\nname = \"p\"\naddress = \"127.0.0.1:1\"\n[[process]]\nname = \"q\"\naddress = \"127.0.0.1:2\"\n\
               [[host]]\nname = \"a\"\nprocess = \"p\"\n[[host.hca]]\n[[host]]\nname = \"b\"\nprocess = \"q\"\n[[host.hca]]\n\
               [[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n[fabric]\nsubnet_manager = \"none\"\n";
    assert!(refused(two, Some("p")).contains("does not say how"));
    assert!(refused(two, Some("r")).contains("no process"));
    let slow = "[time]\ndilation = 2.0\n[[host]]\nname = \"a\"\n[[host.hca]]\n";
    assert!(refused(slow, None).contains("[time] is for guests"));
}
