//! Stock guests whose adapters have Ethernet ports: two at the ends of a cable, three behind a switch, and one beside
//! soft-RoCE, the kernel's own transport for a network card. A little of the suites `ethernet`, `perftest` and `cm`.

use hca_tests::guests::{Job, Session, value};
use hca_tests::suites::guest::{Command, HOST, Network, Ready, run};
use hca_tests::suites::{Case, Outcome, ethernet};

/// The same program on both sides, `a` listening on `port`.
fn both((a, b): (Job, Job), name: &'static str, command: &str, port: u16) -> (Job, Job) {
    let (a_side, b_side) = (format!("PORT={port} offer b {command}"), format!("accept {command} a"));
    (a.step(name, a_side), b.step(name, b_side))
}

/// A server in `a`, and a client in `b` that tries until it is there.
fn served((a, b): (Job, Job), name: &'static str, server: &str, client: &str) -> (Job, Job) {
    let a_side = format!("{server} & server=$!; tell b; wait $server");
    let b_side =
        format!("hear; for try in 1 2 3 4 5 6 7 8 9 10; do {client} && return; sleep 1; done; false");
    (a.step(name, a_side), b.step(name, b_side))
}

/// The counters of `ethtool -S` when no frame came or went for a second. The driver reads the groups of counters one after
/// the other: a frame in between (a last acknowledgement, a query of a multicast router) would stand in one and not in the
/// other.
const QUIET_COUNTERS: &str = "frames() { grep -E '_packets(_phy)?:'; }
    for _ in $(seq 60); do
        now=$(ethtool -S hca0) && sleep 1 && then=$(ethtool -S hca0) || return 1
        [ \"$(echo \"$now\" | frames)\" = \"$(echo \"$then\" | frames)\" ] && { echo \"$then\"; return 0; }
    done; echo 'frames come and go for a minute'; return 1";

/// One step in both.
fn each((a, b): (Job, Job), name: &'static str, script: &str) -> (Job, Job) {
    (a.step(name, script), b.step(name, script))
}

/// Both wait for each other.
fn meet((a, b): (Job, Job), name: &'static str) -> (Job, Job) {
    (a.step(name, "tell b; hear"), b.step(name, "hear; tell a"))
}

#[test]
fn through_a_cable() {
    let jobs = (Job::new(), Job::new());
    let jobs = each(
        jobs,
        "device",
        "cat /sys/class/net/hca0/address; ethtool -P hca0; ethtool hca0; ip -d link show hca0; ibv_devinfo -v",
    );
    let jobs = meet(jobs, "both are up");
    let (a, b) = jobs;
    let pings = "ping -c 3 10.1.0.1 && ping -M do -s 1472 -c 2 10.1.0.1 && ping -6 -c 3 fd00:1::1";
    let jobs =
        (a.step("pings", "hear"), b.step("pings", format!("{pings}; status=$?; tell a; return $status")));
    let (a, b) = jobs;
    let (a, b) =
        (a.step("tcp", "PORT=5201 offer b iperf3 -s -1"), b.step("tcp", "accept iperf3 -c 10.1.0.1 -n 20M"));
    let jobs = (
        a.step("udp", "PORT=5201 offer b iperf3 -s -1"),
        b.step("udp", "accept iperf3 -c 10.1.0.1 -u -n 2M -b 50M"),
    );
    let jobs = each(
        jobs,
        "vlan",
        "ip link add link hca0 name hca0.5 type vlan id 5 && ip link set hca0.5 up &&
        ip address add 10.5.0.$([ $(hostname) = a ] && echo 1 || echo 2)/24 dev hca0.5 && ip address show hca0.5",
    );
    let jobs = meet(jobs, "both have a vlan");
    let (a, b) = jobs;
    let jobs = (
        a.step("vlan ping", "hear"),
        b.step("vlan ping", "ping -c 3 10.5.0.1; status=$?; tell a; return $status"),
    );
    let jobs = both(jobs, "roce v2", "ibv_rc_pingpong -c -g 3 -s 65536 -n 100", 18515);
    let jobs = both(jobs, "roce v1", "ibv_rc_pingpong -c -g 2 -s 65536 -n 100", 18515);
    let jobs = both(jobs, "roce v2 ipv6", "ibv_rc_pingpong -c -g 5 -n 100", 18515);
    let jobs = both(jobs, "datagrams", "ibv_ud_pingpong -c -g 3 -s 1000 -n 100", 18515);
    let jobs = both(jobs, "write", "ib_write_bw -p 18516 -F -x 3 -n 1000", 18516);
    let jobs = served(jobs, "rping", "rping -s -C 10 -V", "rping -c -C 10 -V -a 10.1.0.1");
    let jobs = served(jobs, "rping on the vlan", "rping -s -C 10 -V", "rping -c -C 10 -V -a 10.5.0.1");
    let jobs = meet(jobs, "no more traffic of programs");
    let jobs = each(jobs, "counters", QUIET_COUNTERS);
    let jobs = meet(jobs, "both are done");
    let jobs = each(
        jobs,
        "reload",
        "modprobe -r mlx5_ib mlx5_core && ! [ -e /sys/class/net/hca0 ] && modprobe mlx5_ib && hca-net &&
        until [ \"$(cat /sys/class/net/hca0/carrier)\" = 1 ]; do sleep 0.1; done && ip -br address show hca0",
    );
    let jobs = meet(jobs, "both are up again");
    let (a, b) = jobs;
    let jobs = (
        a.step("ping after reload", "hear"),
        b.step("ping after reload", "ping -c 3 10.1.0.1; status=$?; tell a; return $status"),
    );
    let (a, b) = both(jobs, "roce after reload", "ibv_rc_pingpong -c -g 3 -n 100", 18515);
    let done = Session::new("eth-two-hosts").host("a", &a).host("b", &b).passes();

    for host in ["a", "b"] {
        let info = done.printed(host, "device");
        let mac = info.lines().next().unwrap_or_default();
        assert_eq!(value(info, "Permanent address"), mac);
        assert_eq!((value(info, "Speed"), value(info, "Link detected")), ("100000Mb/s", "yes"));
        assert!(info.contains("minmtu 68 maxmtu 9978"), "{info}");
        assert_eq!(value(info, "link_layer"), "Ethernet");
        assert!(value(info, "active_mtu").starts_with("1024"), "an MTU of 1500 has room for that: {info}");
        // Twice what was asked for: both ways.
        for step in ["roce v2", "roce v1"] {
            let line = format!("{} bytes in ", 2 * 65536 * 100);
            assert!(done.printed(host, step).contains(&line), "no '{line}' at {step}");
        }
        counters_make_sense(done.printed(host, "counters"));
        done.nothing_was_left(&format!("{host}/hca0"));
    }
    let macs =
        ["a", "b"].map(|host| done.printed(host, "device").lines().next().unwrap_or_default().to_owned());
    assert_ne!(macs[0], macs[1], "two adapters with one address");
    for (host, more) in [("a", "rx"), ("b", "tx")] {
        let counters = done.printed(host, "counters");
        let count = |key: &str| counter(counters, key);
        assert!(count(&format!("{more}_vport_unicast_bytes")) > 20 << 20, "20 MB of TCP went from b to a");
        assert!(count(&format!("{more}_vport_rdma_unicast_bytes")) > 1000 << 16, "and 1000 writes");
    }
    assert!(counter(done.printed("b", "counters"), "tx_tso_packets") > 0, "TCP is segmented by the adapter");
    assert!(
        counter(done.printed("b", "counters"), "tx_added_vlan_packets") > 0,
        "and tags are its work, too"
    );
}

/// The value of a counter of `ethtool -S`.
fn counter(text: &str, key: &str) -> u64 {
    value(text, key).parse().unwrap_or_else(|_| panic!("{key} is no number"))
}

/// Counters of the same thing at several places agree, and nothing went wrong on the way.
fn counters_make_sense(text: &str) {
    let count = |key: &str| counter(text, key);
    for bad in [
        "rx_wqe_err",
        "tx_cqe_err",
        "ch_eq_rearm",
        "rx_crc_errors_phy",
        "rx_in_range_len_errors_phy",
        "rx_oversize_pkts_phy",
        "rx_discards_phy",
        "tx_discards_phy",
        "tx_errors_phy",
        "rx_unsupported_op_phy",
    ] {
        assert_eq!(count(bad), 0, "{bad} in\n{text}");
    }
    assert_eq!(count("rx_packets"), count("rx0_packets"), "one channel");
    for way in ["rx", "tx"] {
        let kinds = ["unicast", "multicast", "broadcast", "rdma_unicast", "rdma_multicast"];
        let vport: u64 = kinds.iter().map(|kind| count(&format!("{way}_vport_{kind}_packets"))).sum();
        assert_eq!(
            vport,
            count(&format!("{way}_packets_phy")),
            "{way}: of a port's frames none is missing in\n{text}"
        );
        assert_eq!(
            count(&format!("{way}_prio0_packets")),
            count(&format!("{way}_packets_phy")),
            "untagged, or of priority 0"
        );
    }
}

fn all_passed(cases: &[Case], commands: &[Command]) {
    let failed: Vec<&Case> = cases.iter().filter(|case| case.outcome == Outcome::Failed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(cases.len(), commands.len() + 1, "each command is a case, and the kernel logs are one");
}

#[test]
fn behind_a_switch() {
    let mut commands = ethernet::set_up();
    commands.extend([
        ethernet::ping("ping", ""),
        Command::alone("ping the others", "ping -c 3 10.1.0.2 && ping -c 3 10.1.0.3"),
        Command::everywhere("multicast", "shows ', 0% packet loss' ping -6 -c 3 ff02::1%hca0"),
        ethernet::iperf("iperf3", "-n 20M"),
        Command::pair("ibv_rc_pingpong -c -g 3 -n 100", 18515),
        Command::sides("rping -s -C 10 -V", Ready::Cm, &format!("rping -c -C 10 -V -a {HOST}"))
            .over(Network::Ethernet),
    ]);
    all_passed(&run("", "eth-switch", "6.12", &commands), &commands);
}

/// Another implementation of the transport at the other end.
#[test]
fn soft_roce() {
    let commands = ethernet::soft_roce();
    all_passed(&run("", "rxe", "6.12", &commands), &commands);
}
