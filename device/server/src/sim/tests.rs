use std::path::PathBuf;
use std::time::Duration;

use hca_model::link::{Light, LinkMessage};
use hca_model::{HcaId, Ps};

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
            part.run_until(Ps::from_us(50), Ps::ZERO).unwrap();
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
    whole.run_until(Ps::from_us(50), Ps::ZERO).unwrap();
    let of = |part: &mut Partition, hca| part.world().trace().unwrap().of_node(HcaId(hca));
    assert_eq!([p.1, q.1], [of(&mut whole, 0), of(&mut whole, 1)]);
}

/// A neighbour that ends early is an error that names the link; one that ends in time is none.
#[test]
fn a_neighbour_that_is_gone_is_said() {
    let topology = topology("simbricks = \"connect:trunk.sock\"");
    let dir = folder("gone");
    let there = {
        let (topology, dir) = (topology.clone(), dir.clone());
        std::thread::spawn(move || {
            let mut part = Partition::new(&topology, Some("q"), &dir, PATIENCE).unwrap();
            part.run_until(Ps::from_us(20), Ps::ZERO).unwrap();
            // It does not say that it ends.
            drop(part);
        })
    };
    let mut here = Partition::new(&topology, Some("p"), &dir, PATIENCE).unwrap();
    here.run_until(Ps::from_us(20), Ps::ZERO).unwrap();
    there.join().unwrap();
    let why = format!("{:#}", here.run_until(Ps::from_us(30), Ps::ZERO).unwrap_err());
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
                link.channel().rouse().unwrap();
                link.take().unwrap();
                std::thread::yield_now();
            }
            link.send(Ps(2), LinkMessage::Light(Light::default())).unwrap();
            link.channel().rouse().unwrap();
            link
        })
    };
    let mut here = Partition::new(&topology, Some("p"), &dir, PATIENCE).unwrap();
    let why = format!("{:#}", here.run_until(Ps::from_ms(20), Ps::ZERO).unwrap_err());
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
