//! Ethernet ports, and what is at the end of links that leave the model.

use super::*;
use crate::outside::address::{Address, Stream};

/// An Ethernet adapter, an InfiniBand one: nine lines, `[[outside]]` is line 10.
const ADAPTERS: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\nport_type = \"eth\"\n[[host.hca]]\n\
    [[host]]\nname = \"b\"\n[[host.nic]]\nmtu = 9000\n";

fn link(a: &str, b: &str) -> String {
    format!("[[link]]\nbetween = [\"{a}\", \"{b}\"]\n")
}

fn outside(keys: &str) -> String {
    format!("[[outside]]\nname = \"net\"\n{keys}\n")
}

fn parsed(text: &str) -> Topology {
    Topology::parse("t.toml", text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn refusal(text: &str) -> String {
    let error = Topology::parse("t.toml", text).expect_err(text).to_string();
    error.strip_prefix("t.toml:").unwrap_or_else(|| panic!("{error}")).to_owned()
}

const DGRAM: &str = "kind = \"dgram\"\nlocal = \"unix:ours\"\nremote = \"unix:/theirs\"";

#[test]
fn an_outside_and_a_card() {
    let hosts = ADAPTERS.replacen("[[host.hca]]\n[[host]]", "[[host.hca]]\nport_type = \"eth\"\n[[host]]", 1);
    let text = format!("{hosts}{}{}{}", outside(DGRAM), link("net", "a/hca0"), link("b/nic0", "a/hca1"));
    let mut t = parsed(&text);
    assert!(t.hcas().all(|(_, hca)| hca.port_type == PortKind::Ethernet));
    let json = serde_json::to_value(&t).unwrap();
    assert_eq!(json["hosts"][0]["hcas"][0]["port_type"], "eth");
    assert_eq!(json["hosts"][1]["nics"][0]["mtu"], 9000);
    assert_eq!(json["hosts"][1]["nics"][0]["local"], "b-nic0.peer");
    assert_eq!(json["outsides"][0]["kind"], "dgram");
    assert_eq!(json["outsides"][0]["local"], "unix:ours");
    assert_eq!(json["links"][0]["between"], serde_json::json!(["net", "a/hca0"]));
    assert_eq!(json["links"][1]["between"], serde_json::json!(["b/nic0", "a/hca1"]));
    t.put_sockets_into(Path::new("/run/x"));
    let part = t.part(None).unwrap();
    assert!(part.links.is_empty() && part.cuts.is_empty());
    let [net, nic] = &part.exits[..] else { panic!("{:?}", part.exits) };
    assert_eq!((net.number, net.here, net.name.as_str()), (0, 1, "net"));
    assert_eq!((nic.number, nic.here, nic.name.as_str()), (1, 1, "b/nic0"));
    let unix = |path: &str| Address::Unix(path.into());
    assert_eq!(net.medium, Medium::Dgram { local: unix("/run/x/ours"), remote: unix("/theirs") });
    // The card's socket is the server's peer.
    let (local, remote) = (unix("/run/x/b-nic0.net"), unix("/run/x/b-nic0.peer"));
    assert_eq!(nic.medium, Medium::Dgram { local, remote });
    assert!(crate::model::world(&t, &part).is_ok());
    let Err(error) = t.isolate(Isolation::Process) else { panic!("a worker has no path") };
    assert!(error.to_string().contains("served by one process"), "{error}");
}

#[test]
fn every_medium() {
    let medium = |keys: &str| {
        let text = ADAPTERS.split_once("[[host.nic]]").unwrap().0;
        parsed(&format!("{text}{}{}", outside(keys), link("a/hca0", "net"))).outsides.remove(0).medium
    };
    let inet = |text: &str| text.parse::<Address>().unwrap();
    assert_eq!(
        medium("kind = \"dgram\"\nlocal = \"0.0.0.0:7000\"\nremote = \"192.0.2.1:7000\""),
        Medium::Dgram { local: inet("0.0.0.0:7000"), remote: inet("192.0.2.1:7000") }
    );
    assert_eq!(
        medium("kind = \"stream\"\nlisten = \"[::1]:7000\""),
        Medium::Stream(Stream::Listen(inet("[::1]:7000")))
    );
    assert_eq!(
        medium("kind = \"stream\"\nconnect = \"unix:/x\""),
        Medium::Stream(Stream::Connect { to: Address::Unix("/x".into()), reconnect_ms: 1000 })
    );
    assert_eq!(
        medium("kind = \"stream\"\nconnect = \"127.0.0.1:7\"\nreconnect_ms = 10"),
        Medium::Stream(Stream::Connect { to: inet("127.0.0.1:7"), reconnect_ms: 10 })
    );
    assert_eq!(medium("kind = \"tap\"\ninterface = \"tap0\""), Medium::Tap { interface: "tap0".into() });
}

#[test]
fn refused_outsides() {
    let text = ADAPTERS.split_once("[[host]]\nname = \"b\"").unwrap().0;
    for (keys, start) in [
        ("kind = \"udp\"", "8: outside.kind: \"udp\" is none of"),
        ("kind = \"dgram\"\nlocal = \"unix:a\"", "6: outside: kind = \"dgram\" needs local and remote"),
        (
            "kind = \"dgram\"\nlocal = \"unix:\"\nremote = \"unix:b\"",
            "9: outside.local: \"unix:\" is not an address",
        ),
        (
            "kind = \"dgram\"\nlocal = \"unix:a\"\nremote = \"unix:a\"",
            "10: outside.remote: unix:a can't send to unix:a",
        ),
        (
            "kind = \"dgram\"\nlocal = \"unix:a\"\nremote = \"127.0.0.1:7\"",
            "10: outside.remote: unix:a can't send to 127.0.0.1:7: two of one kind",
        ),
        (
            "kind = \"dgram\"\nlocal = \"127.0.0.1:7\"\nremote = \"[::1]:7\"",
            "10: outside.remote: 127.0.0.1:7 can't send",
        ),
        (
            "kind = \"dgram\"\nlocal = \"127.0.0.1:7\"\nremote = \"0.0.0.0:7\"",
            "10: outside.remote: 0.0.0.0:7 is not the address of one",
        ),
        (
            "kind = \"dgram\"\nlocal = \"127.0.0.1:7\"\nremote = \"224.0.0.1:7\"",
            "10: outside.remote: 224.0.0.1:7 is not",
        ),
        (
            "kind = \"dgram\"\nlocal = \"127.0.0.1:0\"\nremote = \"127.0.0.1:7\"",
            "9: outside.local: \"127.0.0.1:0\" is not",
        ),
        (
            "kind = \"dgram\"\nlocal = \"unix:a\"\nlisten = \"unix:b\"",
            "10: outside.listen: is for kind = \"stream\" or \"simbricks\", and this is a \"dgram\"",
        ),
        ("kind = \"stream\"", "6: outside: kind = \"stream\" needs listen or connect"),
        (
            "kind = \"stream\"\nlisten = \"unix:a\"\nconnect = \"unix:b\"",
            "10: outside.connect: one side listens",
        ),
        (
            "kind = \"stream\"\nlisten = \"unix:a\"\nreconnect_ms = 10",
            "10: outside.reconnect_ms: is for connect",
        ),
        (
            "kind = \"stream\"\nconnect = \"unix:a\"\nreconnect_ms = 9",
            "10: outside.reconnect_ms: must be 10 to 60000",
        ),
        ("kind = \"stream\"\nconnect = \"[::]:7\"", "9: outside.connect: [::]:7 is not the address of one"),
        (
            "kind = \"stream\"\nlisten = \"unix:a-hca0.sock\"",
            "6: outside: a/hca0 and net would share unix:a-hca0.sock",
        ),
        ("kind = \"tap\"", "6: outside: kind = \"tap\" needs interface"),
        ("kind = \"tap\"\ninterface = \"a/b\"", "9: outside.interface: \"a/b\" is not the name"),
        ("kind = \"tap\"\ninterface = \"tap%d\"", "9: outside.interface: \"tap%d\" is not the name"),
        (
            "kind = \"tap\"\ninterface = \"sixteen-letters-\"",
            "9: outside.interface: \"sixteen-letters-\" is not",
        ),
        (
            "kind = \"tap\"\ninterface = \"t\"\nlocal = \"unix:a\"",
            "10: outside.local: is for kind = \"dgram\"",
        ),
        ("kind = \"tap\"\ninterface = \"t\"\nmtu = 7", "10: mtu: unknown field"),
        (DGRAM, "6: outside: net has no [[link]]"),
    ] {
        let error = refusal(&format!("{text}{}", outside(keys)));
        assert!(error.starts_with(start), "{keys}\n{error}\n{start}");
    }
    let twice = format!("{text}{}[[outside]]\nname = \"a\"\n{DGRAM}\n", outside(DGRAM));
    assert!(
        refusal(&twice).starts_with("12: outside.name: two nodes are called \"a\": a host and this outside")
    );
}

#[test]
fn links_join_one_link_layer() {
    let text = format!("{ADAPTERS}{}", outside(DGRAM));
    let switches = "[[switch]]\nname = \"s\"\n[[switch]]\nname = \"e\"\ntype = \"eth\"\n";
    for (a, b, start) in [
        ("a/hca0", "a/hca1", "21: link.between: a/hca0 is Ethernet and a/hca1 is InfiniBand: say port_type"),
        ("a/hca1", "net", "21: link.between: a/hca1 is InfiniBand and net is Ethernet"),
        ("a/hca1", "b/nic0", "21: link.between: a/hca1 is InfiniBand and b/nic0 is Ethernet"),
        ("s", "a/hca0", "21: link.between: s/1 is InfiniBand and a/hca0 is Ethernet"),
        ("s", "e", "21: link.between: s/1 is InfiniBand and e/1 is Ethernet"),
        ("net", "b/nic0", "21: link.between: net and b/nic0 are both outside"),
        ("a/hca0", "b", "21: link.between: \"b\" is a host; its adapters are: b/nic0"),
        (
            "a/hca0",
            "b/nic1",
            "21: link.between: there is no adapter \"b/nic1\"; the adapters of b are: b/nic0",
        ),
        ("a/hca0", "net/1", "21: link.between: there is no host or switch \"net\""),
    ] {
        let error = refusal(&format!("{text}{switches}{}", link(a, b)));
        assert!(error.starts_with(start), "{a} {b}\n{error}\n{start}");
    }
    let both = format!("{text}{}", link("a/hca0", "net"));
    assert!(refusal(&both).starts_with("6: host.nic: b/nic0 has no [[link]]"), "{}", refusal(&both));
    let twice =
        format!("{both}{}", link("e", "net")).replacen("[[outside]]", &format!("{switches}[[outside]]"), 1);
    assert!(refusal(&twice).contains("link.between: net is already linked in line"), "{}", refusal(&twice));
    for (key, start) in
        [("vls = 4", "17: link.vls: is for InfiniBand"), ("mtu = 2048", "17: link.mtu: is for")]
    {
        let error = refusal(&format!("{both}{key}\n"));
        assert!(error.starts_with(start), "{error}");
    }
    // An Ethernet switch.
    let text = format!("{ADAPTERS}{switches}{}{}", link("a/hca0", "e"), link("e", "b/nic0"));
    let t = parsed(&text);
    assert_eq!(serde_json::to_value(&t).unwrap()["switches"][1]["type"], "eth");
    let (world, _) = crate::model::world(&t, &t.part(None).unwrap()).expect("a world");
    let ports = world.ports().filter(|port| world.port_kind(*port) == PortKind::Ethernet);
    assert!(ports.count() > 2, "two adapters, and a switch");
}

#[test]
fn refused_cards() {
    let text = ADAPTERS.replace("mtu = 9000\n", "");
    for (keys, start) in [
        ("mtu = 67", "9: host.nic.mtu: must be 68 to 65535"),
        ("mac = \"01:00:5e:00:00:01\"", "9: host.nic.mac: \"01:00:5e:00:00:01\" is not the hardware address"),
        ("name = \"x y\"", "9: host.nic.name: \"x y\" is not a name"),
        ("speed = 7", "9: speed: unknown field"),
        (
            "name = \"n\"\n[[host.nic]]\nname = \"n\"",
            "10: host.nic.name: host \"b\" has two devices called \"n\"",
        ),
        (
            "name = \"n\"\n[[host.hca]]\nname = \"n\"",
            "8: host.nic.name: host \"b\" has two devices called \"n\"",
        ),
    ] {
        let error = refusal(&format!("{text}{keys}\n"));
        assert!(error.starts_with(start), "{keys}\n{error}\n{start}");
    }
}

#[test]
fn processes_serve_their_own_exits() {
    let process =
        |name: &str, port: u16| format!("[[process]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\n");
    let host = |name: &str, process: &str, device: &str| {
        format!("[[host]]\nname = \"{name}\"\nprocess = \"{process}\"\n{device}\n")
    };
    let text = |of_card: &str| {
        [
            process("left", 7001),
            process("right", 7002),
            host("a", "left", "[[host.hca]]\nport_type = \"eth\""),
            host("b", "right", "[[host.hca]]\nport_type = \"eth\""),
            host("c", of_card, "[[host.nic]]"),
            outside(DGRAM),
            link("net", "a/hca0"),
            link("b/hca0", "c/nic0"),
        ]
        .concat()
    };
    let t = parsed(&text("right"));
    let names = |process| {
        let part = t.part(Some(process)).unwrap();
        assert!(part.cuts.is_empty());
        part.exits.into_iter().map(|exit| (exit.number, exit.name)).collect::<Vec<_>>()
    };
    assert_eq!(names("left"), [(0, "net".to_owned())]);
    assert_eq!(names("right"), [(1, "c/nic0".to_owned())]);
    let error = refusal(&text("left"));
    assert!(error.contains("link.between: host c is in another process than the other end"), "{error}");
    let alone = format!("isolation = \"process\"\n{ADAPTERS}{}", link("a/hca0", "b/nic0"));
    assert!(
        refusal(&alone).starts_with("1: isolation: links to [[outside]] and [[host.nic]]"),
        "{}",
        refusal(&alone)
    );
}
