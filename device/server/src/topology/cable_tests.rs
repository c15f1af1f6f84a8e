//! Switches, links, reachability and processes: what is understood, and each refusal.

use super::*;

/// Two hosts and a switch of four ports: eight lines, `[[link]]` is line 9.
const STAR: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n[[host]]\nname = \"b\"\n[[host.hca]]\n\
    [[switch]]\nname = \"sw\"\nports = 4\n";

fn links(links: &[&str]) -> String {
    links.iter().map(|link| format!("[[link]]\n{link}\n")).collect()
}

fn parsed(text: &str) -> Topology {
    Topology::parse("t.toml", text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// What is said of a text, without the name of the file.
fn refusal(text: &str) -> String {
    let error = Topology::parse("t.toml", text).expect_err(text).to_string();
    error.strip_prefix("t.toml:").unwrap_or_else(|| panic!("{error}")).to_owned()
}

#[test]
fn ports_of_switches_named_and_not() {
    // Port 1 is named by the last link: the first two get 2 and 3.
    let text = format!(
        "{STAR}[[switch]]\nname = \"top\"\nguid = \"0x99\"\n{}",
        links(&[
            "between = [\"a/hca0\", \"sw\"]",
            "between = [\"sw\", \"b/hca0\"]",
            "between = [\"sw/1\", \"top\"]\nrate = \"hdr\"\nwidth = 12"
        ])
    );
    let t = parsed(&text);
    let ends: Vec<_> = t.links.iter().map(|l| l.between.each_ref().map(End::to_string)).collect();
    assert_eq!(ends, [["a/hca0", "sw/2"], ["sw/3", "b/hca0"], ["sw/1", "top/1"]]);
    let [sw, top] = &t.switches[..] else { panic!("{:?}", t.switches) };
    assert_eq!((sw.ports, top.ports, top.guid), (4, 36, 0x99));
    assert_eq!(sw.guid >> 40, 0x02c9);
    assert_eq!((t.links[2].rate, t.links[2].width), (LinkRate::Hdr, 12));
    let json = serde_json::to_value(&t).unwrap();
    assert_eq!(json["switches"][0]["name"], "sw");
    assert_eq!(json["links"][0]["between"][1], "sw/2");
}

#[test]
fn properties_of_a_link() {
    let text = format!(
        "{STAR}{}",
        links(&[
            "between = [\"a/hca0\", \"sw\"]\nrate = \"qdr\"\nwidth = 1\ndelay_ns = 100\nvls = 8\nmtu = 2048\nseed = 5\n\
             loss = 0.1\nduplicate = 0.2\nreorder = 0.3\ncorrupt = 0.4\ndelay = 0.5\ndelay_us = 6",
            "between = [\"b/hca0\", \"sw\"]"
        ])
    );
    let t = parsed(&text);
    let link = &t.links[0];
    assert_eq!((link.vls, link.mtu, link.seed, link.delay_ns), (8, 2048, Some(5), 100));
    let faults = Faults { loss: 0.1, duplicate: 0.2, reorder: 0.3, corrupt: 0.4, delay: 0.5, delay_us: 6 };
    assert_eq!(link.faults, faults);
    let plain = &t.links[1];
    assert_eq!((plain.vls, plain.mtu, plain.seed, plain.delay_ns), (8, 4096, None, 5));
    assert_eq!((plain.rate, plain.width, plain.faults), (LinkRate::Edr, 4, Faults::default()));
}

#[test]
fn refused_links_and_switches() {
    let a = "between = [\"a/hca0\", \"sw\"]";
    let with = |more: &str| format!("{a}\n{more}");
    for (first, second, start) in [
        (
            "between = [\"a/hca0\", \"sx\"]",
            "",
            "11: link.between: there is no host or switch \"sx\" (host/hca, host/hca/port, switch or switch/port); there are: a, b, sw",
        ),
        ("between = [\"a\", \"sw\"]", "", "11: link.between: \"a\" is a host; its adapters are: a/hca0"),
        (
            "between = [\"a/hca7\", \"sw\"]",
            "",
            "11: link.between: there is no adapter \"a/hca7\"; the adapters of a are: a/hca0",
        ),
        (
            "between = [\"a/hca0\", \"sw/5\"]",
            "",
            "11: link.between: switch sw has no port \"5\"; its ports are 1 to 4",
        ),
        ("between = [\"a/hca0\", \"sw/0\"]", "", "11: link.between: switch sw has no port \"0\""),
        ("between = [\"a/hca0\", \"sw/x\"]", "", "11: link.between: switch sw has no port \"x\""),
        ("between = [\"sw/1\", \"sw/2\"]", "", "11: link.between: a loop from switch sw to itself"),
        ("between = [\"b/hca0\", \"b/hca0\"]", "", "11: link.between: both ends are port 1 of b/hca0"),
        (a, a, "13: link.between: port 1 of a/hca0 is already linked in line 11"),
        (
            a,
            "between = [\"a/hca0/1\", \"sw\"]",
            "13: link.between: port 1 of a/hca0 is already linked in line 11",
        ),
        (
            "between = [\"a/hca0/2\", \"sw\"]",
            "",
            "11: link.between: adapter a/hca0 has no port \"2\"; its ports are 1 to 1",
        ),
        ("between = [\"a/hca0/\", \"sw\"]", "", "11: link.between: adapter a/hca0 has no port \"\""),
        (
            "between = [\"a/hca0\", \"sw/3\"]",
            "between = [\"b/hca0\", \"sw/3\"]",
            "13: link.between: port 3 of switch sw is already linked in line 11",
        ),
        (&with("width = 2"), "", "12: link.width: must be 1, 4, 8 or 12 lanes"),
        (&with("width = 8"), "", "12: link.width: a/hca0 is an adapter with 4 lanes; 8 are for two switches"),
        (&with("rate = \"hdr\""), "", "12: link.rate: a/hca0 is an adapter that goes up to \"edr\""),
        (&with("rate = \"xdr\""), "", "12: rate: unknown variant"),
        (&with("vls = 3"), "", "12: link.vls: must be one of 1, 2, 4, 8"),
        (&with("mtu = 1500"), "", "12: link.mtu: must be one of 256, 512, 1024, 2048, 4096"),
        (&with("delay_ns = 1000000001"), "", "12: link.delay_ns: must be 0 to 1000000000"),
        (&with("delay_us = 1000001"), "", "12: link.delay_us: must be 0 to 1000000"),
        (&with("duplicate = -0.1"), "", "12: link.duplicate: must be 0.0 to 1.0"),
        (&with("reorder = nan"), "", "12: link.reorder: must be 0.0 to 1.0"),
        (&with("corrupt = 2.0"), "", "12: link.corrupt: must be 0.0 to 1.0"),
        (&with("delay = 0.1"), "", "12: link.delay: needs delay_us"),
        (&with("reorder = 0.1"), "", "12: link.reorder: needs delay_us"),
    ] {
        let rest: Vec<_> = [first, second].into_iter().filter(|l| !l.is_empty()).collect();
        let error = refusal(&format!("{STAR}{}", links(&rest)));
        assert!(error.starts_with(start), "{first}\n{error}\n{start}");
    }
    for (switch, start) in [
        ("name = \"a\"", "11: switch.name: two nodes are called \"a\": a host and this switch"),
        ("name = \"sw\"", "11: switch.name: two nodes are called \"sw\": a switch and this switch"),
        ("name = \"x\"\nports = 0", "12: switch.ports: must be 1 to 64"),
        ("name = \"x\"\nports = 65", "12: switch.ports: must be 1 to 64"),
        ("name = \"x\"\nguid = \"7\"", "12: switch.guid: \"7\" is not a GUID"),
        ("name = \"x\"\nprocess = \"p\"", "12: switch.process: there is no process \"p\""),
    ] {
        let error = refusal(&format!("{STAR}[[switch]]\n{switch}\n"));
        assert!(error.starts_with(start), "{switch}\n{error}\n{start}");
    }
}

#[test]
fn a_switch_has_only_so_many_ports() {
    let hosts: String = (0..3).map(|i| format!("[[host]]\nname = \"h{i}\"\n[[host.hca]]\n")).collect();
    let joined: String = (0..3).map(|i| format!("[[link]]\nbetween = [\"h{i}/hca0\", \"sw\"]\n")).collect();
    let error = refusal(&format!("{hosts}[[switch]]\nname = \"sw\"\nports = 2\n{joined}"));
    assert!(error.starts_with("18: link.between: all 2 ports of switch sw are linked already"), "{error}");
}

#[test]
fn guids_are_those_of_one_node() {
    // One that is derived, taken by another.
    let derived = parsed(STAR).switches[0].guid;
    let text = format!("{STAR}[[switch]]\nname = \"x\"\nguid = \"{derived:#018x}\"\n");
    let error = refusal(&text);
    assert!(error.starts_with("12: switch.guid: sw and x have the same GUID 0x"), "{error}");
}

#[test]
fn hosts_must_reach_each_other() {
    let two = format!("{STAR}[[switch]]\nname = \"lost\"\n");
    let apart = links(&["between = [\"a/hca0\", \"sw\"]", "between = [\"b/hca0\", \"lost\"]"]);
    let error = refusal(&format!("{two}{apart}"));
    assert!(error.starts_with("4: host: host b can't reach host a: no links join them"), "{error}");
    assert!(error.ends_with("b is joined to lost only"), "{error}");
    // Joined by the switches, alone on purpose, or on two fabrics by two adapters: all fine.
    parsed(&format!("{two}{apart}{}", links(&["between = [\"sw\", \"lost\"]"])));
    parsed(&format!("{two}{}", links(&["between = [\"a/hca0\", \"sw\"]"])));
    let rails = format!("{two}{apart}").replace("[[host.hca]]\n", "[[host.hca]]\n[[host.hca]]\n")
        + &links(&["between = [\"a/hca1\", \"lost\"]", "between = [\"b/hca1\", \"sw\"]"]);
    parsed(&rails);
    // Without a switch, pairs are pairs.
    let pairs: String =
        ["a", "b", "c", "d"].map(|n| format!("[[host]]\nname = \"{n}\"\n[[host.hca]]\n")).concat();
    parsed(&(pairs + &links(&["between = [\"a/hca0\", \"b/hca0\"]", "between = [\"c/hca0\", \"d/hca0\"]"])));
}

/// Two processes, each with one host.
fn processes() -> String {
    let process = |name, address| format!("[[process]]\nname = \"{name}\"\naddress = \"{address}\"\n");
    let host =
        |name, process| format!("[[host]]\nname = \"{name}\"\nprocess = \"{process}\"\n[[host.hca]]\n");
    [
        "[fabric]\nsubnet_manager = \"none\"\n".to_owned(),
        process("left", "10.0.0.1:4791"),
        process("right", "10.0.0.2:4791"),
        host("a", "left"),
        host("b", "right"),
        "[[switch]]\nname = \"sw\"\nprocess = \"left\"\n".to_owned(),
        links(&["between = [\"a/hca0\", \"sw\"]", "between = [\"sw\", \"b/hca0\"]"]),
    ]
    .concat()
}

#[test]
fn parts_of_processes() {
    let t = parsed(&processes());
    assert_eq!(t.processes[1].address, "10.0.0.2:4791".parse().ok());
    let left = t.part(Some("left")).unwrap();
    assert_eq!((left.hosts.len(), left.switches.len(), left.links.len()), (1, 1, 1));
    let [cut] = left.cuts[..] else { panic!("{:?}", left.cuts) };
    assert_eq!((cut.number, cut.here, cut.peer.unwrap().name.as_str()), (1, 0, "right"));
    let right = t.part(Some("right")).unwrap();
    assert_eq!((right.hosts[0].name.as_str(), right.switches.len(), right.links.len()), ("b", 0, 0));
    assert_eq!((right.cuts[0].number, right.cuts[0].here), (1, 1));
    assert_eq!(right.cuts[0].peer.unwrap().name, "left");
    for (name, reason) in [(None, "say which one this is: left, right"), (Some("up"), "it has: left, right")]
    {
        let error = t.part(name).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let alone = parsed(STAR);
    assert!(alone.part(Some("x")).unwrap_err().to_string().contains("no [[process]]"));
    assert_eq!(alone.part(None).unwrap().hosts.len(), 2);
}

#[test]
fn refused_processes() {
    let text = processes();
    for (from, to, start) in [
        (
            "subnet_manager = \"none\"",
            "subnet_manager = \"builtin\"",
            "2: fabric.subnet_manager: the built-in subnet manager reaches one process only, and the link between sw/2 and b/hca0 joins two",
        ),
        ("subnet_manager = \"none\"", "", "23: fabric.subnet_manager: the built-in subnet manager"),
        ("process = \"right\"", "", "13: host.process: which process is it in? There are: left, right"),
        (
            "process = \"right\"",
            "process = \"up\"",
            "15: host.process: there is no process \"up\"; there are: left, right",
        ),
        ("name = \"right\"", "name = \"left\"", "7: process.name: two processes are called \"left\""),
        (
            "10.0.0.2:4791",
            "10.0.0.1:4791",
            "8: process.address: left and right have the same address 10.0.0.1:4791",
        ),
        ("10.0.0.2:4791", "[::1]:4791", "8: process.address: left and right are one IPv4, one IPv6"),
        ("10.0.0.2:4791", "10.0.0.2", "8: process.address: \"10.0.0.2\" is not an address"),
        ("10.0.0.2:4791", "0.0.0.0:4791", "8: process.address: \"0.0.0.0:4791\" is not an address"),
        ("10.0.0.2:4791", "10.0.0.2:0", "8: process.address: \"10.0.0.2:0\" is not an address"),
        (
            "[fabric]",
            "[fabric]\ntunnel_datagram = 100",
            "2: fabric.tunnel_datagram: must be 512 to 65000 bytes",
        ),
        (
            "[fabric]",
            "[fabric]\ntunnel_timeout_ms = 10",
            "2: fabric.tunnel_timeout_ms: must be 300 to 60000 milliseconds",
        ),
    ] {
        let error = refusal(&text.replacen(from, to, 1));
        assert!(error.starts_with(start), "{to}\n{error}\n{start}");
    }
    let inside = "[[host]]\nname = \"x\"\n[[host.hca]]\n[[host]]\nname = \"y\"\n[[host.hca]]\n\
                  [[link]]\nbetween = [\"x/hca0\", \"y/hca0\"]\ntunnel_key_file = \"k\"\n";
    let error = refusal(inside);
    assert!(error.starts_with("9: link.tunnel_key_file: the link does not join two processes"), "{error}");
    let alone = "[[host]]\nname = \"a\"\nprocess = \"p\"\n[[host.hca]]\n";
    assert!(
        refusal(alone).starts_with("3: host.process: there is no process \"p\", the file has no [[process]]")
    );
}
