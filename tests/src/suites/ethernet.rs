//! Ethernet ports of adapters, by stock drivers and tools: traffic, offloads, VLANs, what `ip`, `ethtool` and `devlink` change,
//! the ends of a driver's life; RoCE beside it, and soft-RoCE at the other end.
//!
//! `tests/guest/ethernet.sh` has the words of the scripts, beside those of `cases.sh`.

use std::collections::BTreeSet;

use super::Case;
use super::cm::COPIES;
use super::guest::{Command, HOST, Network, Ready, is_chosen, judged, report, run, run_with};
use crate::files::Temporary;
use crate::packets::{checksums, tshark};

/// Port of iperf3.
const IPERF: u16 = 5201;
/// Port of perftest, and of a file that is sent.
const PORT: u16 = 18516;
/// Files of these cases in the guests.
const FILES: [&str; 5] =
    ["guest/ethernet.sh", "guest/datagrams.py", "guest/xdp.py", "guest/xsk.py", "guest/sniffer.py"];
/// Sizes of frames that devices are told: the least, one that IPv6 does not take, around the common ones, the largest.
const MTUS: [u32; 7] = [68, 576, 1280, 2000, 4200, 9000, 9978];
/// What `ethtool -K` can change, and the values it takes.
const OFFLOADS: [&str; 13] = [
    "tso off",
    "tso off gso off",
    "gro off",
    "tx off",
    "rx off",
    "sg off",
    "tx off rx off tso off gso off gro off",
    "rxhash off",
    "rxvlan off",
    "txvlan off",
    "rx-vlan-filter off",
    "ntuple on",
    "tx-udp-segmentation off",
];

/// Between two guests with two channels each, between three behind a switch, and with soft-RoCE.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for (tag, commands) in [("traffic: ", traffic()), ("settings: ", settings(kernel)), ("lives: ", lives())]
    {
        cases.extend(run_with(&FILES, tag, "eth-channels.toml", kernel, &commands));
    }
    cases.extend(run("switch: ", "eth-switch", kernel, &switch()));
    cases.extend(run("soft-RoCE: ", "rxe", kernel, &soft_roce()));
    cases.extend(captured(kernel));
    cases
}

/// Frames of every kind between the adapter and soft-RoCE, as tshark and a program that knows nothing of us see them.
fn captured(kernel: &str) -> Vec<Case> {
    const TAG: &str = "frames: ";
    // All of it, or nothing: it is the whole that is looked at.
    if !is_chosen(TAG) {
        return Vec::new();
    }
    let file = Temporary::new("soft-roce.pcapng");
    let (commands, pcap) = (every_kind(), format!("--pcap={}", file.path().display()));
    let mut cases = match report(&[], &[], &[pcap], "rxe", kernel, &commands) {
        Ok(report) => judged(TAG, "rxe", &commands, &report),
        Err(error) => return vec![Case::check(format!("{TAG}set up"), format!("{error:#}"))],
    };
    let first = |text: &str| text.lines().take(20).collect::<Vec<_>>().join("\n");
    let complaints = tshark(file.path(), &["-Y", "_ws.malformed || _ws.expert.severity == error"]);
    cases.push(Case::check(format!("{TAG}tshark"), first(&complaints)));
    let lines = checksums(file.path());
    let wrong: String = lines.iter().filter(|l| l.verdict != "good").map(|l| format!("{l:?}\n")).collect();
    cases.push(Case::check(format!("{TAG}checksums"), first(&wrong)));
    // Opcodes with direction (1: in, 2: out) and destination.
    let fields = [
        "-T",
        "fields",
        "-e",
        "frame.packet_flags_direction",
        "-e",
        "infiniband.bth.opcode",
        "-e",
        "eth.dst",
    ];
    let table = tshark(file.path(), &[&["-Y", "infiniband"][..], &fields].concat());
    let rows: BTreeSet<(&str, &str, bool)> = table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split('\t');
            let (direction, opcode, to) = (fields.next()?, fields.next()?, fields.next()?);
            let direction = direction.trim_start_matches("0x").trim_start_matches('0');
            Some((direction, opcode, ["01:00:5e", "33:33"].iter().any(|group| to.starts_with(group))))
        })
        .collect();
    let expected = OPCODES.iter().map(|opcode| (*opcode, false)).chain([TO_GROUP]);
    let missing: String = expected
        .flat_map(|(opcode, group)| ["1", "2"].map(|direction| (direction, opcode, group)))
        .filter(|row| !rows.contains(row))
        .map(|(direction, opcode, group)| {
            format!("no frame of direction {direction}, opcode {opcode}, to a group: {group}\n")
        })
        .collect();
    cases.push(Case::check(format!("{TAG}every kind was there"), missing));
    cases
}

/// Opcodes (IBTA vol 1 9.2.1): sends, writes and answers of reads in one packet and in several, requests of reads,
/// acknowledgements, atomics, datagrams; sends of UC.
const OPCODES: [&str; 21] = [
    "0", "1", "2", "4", "6", "7", "8", "10", "12", "13", "14", "15", "16", "17", "18", "19", "20", "100",
    "32", "34", "36",
];

/// What mckey sends to a group: datagrams with immediate data.
const TO_GROUP: (&str, bool) = ("101", true);

/// A little of everything, each both ways.
fn every_kind() -> Vec<Command> {
    let mut all = vec![soft_roce_starts()];
    let programs = [
        "ib_send_bw -s 5000",
        "ib_send_bw -s 64",
        "ib_write_bw -s 5000",
        "ib_write_bw -s 64",
        "ib_read_bw -o 16 -s 5000",
        "ib_read_bw -o 16 -s 64",
        "ib_atomic_bw -o 16",
        "ib_atomic_bw -o 16 -A CMP_AND_SWAP",
        "ib_send_bw -c UD -s 1000",
        "ib_send_bw -c UC -s 5000",
        "ib_send_bw -c UC -s 64",
    ];
    for program in programs {
        let one = || Command::pair(format!("{program} -n 5 -F -p {PORT} -x $(gid 2 ffff:0a01)"), PORT);
        all.push(one().named(program));
        all.push(one().turned().named(format!("{program}, from here")));
    }
    all.extend(groups());
    all
}

/// A receiver that has joined a group, and a sender to it, both ways.
///
/// mckey destroys its queue pair as soon as it has posted its ten datagrams, and soft-RoCE drops what it has not sent by
/// then (5 of 30 runs: one frame on the wire, and one in `rdma_sends`). So there it sends again until all ten have left.
fn groups() -> [Command; 2] {
    let here = "$(ip -4 -o address | grep -o '10[.]1[.]0[.][0-9]*' | head -n 1)";
    let command = format!("stdbuf -oL mckey -m 239.0.0.1 -b {here}");
    let soft = format!(
        "sent() {{ cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rdma_sends; }}
        before=$(sent)
        for try in 1 2 3 4 5 6 7 8 9 10; do
            {command} -s || return
            [ $(($(sent) - before)) -lt 10 ] || return 0
        done
        echo 'soft-RoCE has not sent ten datagrams in ten runs'; return 1"
    );
    let to = |sender: &str| Command::sides(&command, Ready::Says("joined"), sender);
    [to(&soft).named("mckey"), to(&format!("{command} -s")).turned().named("mckey, from here")]
}

/// Soft-RoCE runs in host `b`, whose card's MTU is that of the adapter's device: connections take packets as long as the card may send.
fn soft_roce_starts() -> Command {
    Command::everywhere(
        "set up",
        "[ $(hostname) = a ] || {
            ip link set nic0 mtu 1500 && modprobe rdma_rxe && rdma link add rxe0 type rxe netdev nic0 && modprobe rdma_ucm && modprobe ib_uverbs
        } || exit
        until_true 60 gid 2 ffff:0a01 && rdma link",
    )
}

/// Everybody's carrier is there.
pub fn set_up() -> Vec<Command> {
    vec![Command::everywhere(
        "set up",
        "until_true 60 grep -q 1 /sys/class/net/[hn][ci]*0/carrier; ip address; rdma link",
    )]
}

/// A ping to the side that listens; none is lost.
pub fn ping(name: &str, options: &str) -> Command {
    client(
        name,
        &format!(
            "until_true 30 ping -c 1 -W 1 {HOST} >/dev/null && shows ' 0% packet loss' ping -c 10 -i 0.2 {options} {HOST}"
        ),
    )
}

/// iperf3 to the side that listens.
pub fn iperf(name: &str, options: &str) -> Command {
    let client = format!("shows 'receiver$' iperf3 -c {HOST} {options}");
    Command::sides("iperf3 -s -1", Ready::Tcp(IPERF), &client).over(Network::Ethernet).named(name)
}

/// What the client's host does, when the other has nothing to do.
fn client(name: &str, script: &str) -> Command {
    Command::sides("true", Ready::Started, script).over(Network::Ethernet).named(name)
}

/// With the words of `ethernet.sh`.
fn words(script: &str) -> String {
    format!(". /root/ethernet.sh; {script}")
}

/// In all hosts, with these words.
fn both(name: impl Into<String>, script: &str) -> Command {
    Command::everywhere(name, words(script))
}

/// A server that says a word, and a client.
fn says(name: &str, server: &str, word: &'static str, script: &str) -> Command {
    Command::sides(&words(server), Ready::Says(word), &words(script)).over(Network::Ethernet).named(name)
}

/// The other side answers at an address of this network: `10.1.0` is the first.
fn answers(name: impl Into<String>, network: &str) -> Command {
    client(&name.into(), &words(&format!("answers {network}.1")))
}

/// A file comes through TCP as it is.
fn file(name: impl Into<String>) -> Command {
    let what = "$(readlink -f /usr/bin/python3)";
    let server = format!(
        "nc -l {PORT} >/tmp/file && cmp /tmp/file {what} && ls -l /tmp/file; status=$?; rm /tmp/file; [ $status = 0 ]"
    );
    Command::sides(&server, Ready::Tcp(PORT), &format!("nc -N {HOST} {PORT} <{what}"))
        .over(Network::Ethernet)
        .named(name)
}

/// perftest, which meets in the network beside, with GIDs of this RoCE version and pattern.
fn perftest(command: &str, version: u8, pattern: &str) -> Command {
    let line = format!("{command} -F -p {PORT} -x $(gid {version} {pattern})");
    Command::pair(line, PORT).named(format!("{command}, v{version} {pattern}"))
}

/// rping to this address.
fn rping(name: &str, address: &str) -> Command {
    Command::sides("rping -s -C 10 -V", Ready::Cm, &format!("rping -c -C 10 -V -a {address}")).named(name)
}

/// Frames of all kinds, as the driver sets the adapter up by itself.
fn traffic() -> Vec<Command> {
    let mut all = set_up();
    all.extend([
        both(
            "device",
            "ethtool -P hca0 | grep $(cat /sys/class/net/hca0/address) && shows 'Speed: 100000Mb/s' ethtool hca0 &&
            shows 'minmtu 68 maxmtu 9978' ip -d link show hca0 && shows 'state ACTIVE physical_state LINK_UP netdev hca0' rdma link",
        ),
        ping("ping", ""),
        ping("ping -s 1472", "-s 1472 -M do"),
        ping("ping -s 60000, in fragments", "-s 60000"),
        client("ping -6", &words("answers fd00:1::1")),
        client("arp", "ip neigh flush all; shows ' 0% packet loss' ping -c 2 @host && shows lladdr ip neigh show to @host"),
        iperf("iperf3", "-t 3"),
        iperf("iperf3 -R -P 4", "-R -P 4 -t 3"),
        iperf("iperf3 --bidir", "--bidir -t 3"),
        iperf("iperf3 -u", "-u -b 50M -t 3"),
        iperf("iperf3 -u -l 60000, in fragments", "-u -l 60000 -b 50M -t 3"),
        iperf("iperf3 of small segments", "-M 88 -n 200K"),
        Command::sides("iperf3 -s -1", Ready::Tcp(IPERF), "shows 'receiver$' iperf3 -6 -c fd00:1::1 -t 3").named("iperf3 -6"),
        file("file"),
        says("datagrams that the adapter cuts", "python3 datagrams.py segments receive", "ready", "python3 datagrams.py segments send @host"),
        says(
            "a multicast group",
            "python3 datagrams.py group receive 10.1.0.$(number)",
            "ready",
            "python3 datagrams.py group send 10.1.0.$(number)",
        ),
        client("all nodes", "shows ', 0% packet loss' ping -6 -c 3 ff02::1%hca0"),
        says("a broadcast", "hears -p icmp", "listening", "ping -c 1 -W 1 -b -I hca0 10.1.255.255; true"),
        says("another's frames", "missed -p ether dst 02:00:00:00:00:77", "listening", STRANGE),
        says("another's frames, promiscuous", "hears ether dst 02:00:00:00:00:77", "listening", STRANGE),
        says("another's group", "missed -p ether dst 01:00:5e:7f:01:02", "listening", GROUP),
        both("allmulticast", "ip link set hca0 allmulticast on"),
        says("another's group, all multicast", "hears -p ether dst 01:00:5e:7f:01:02", "listening", GROUP),
        both("not allmulticast", "ip link set hca0 allmulticast off"),
        says("another's group again", "missed -p ether dst 01:00:5e:7f:01:02", "listening", GROUP),
    ]);
    all.extend(vlans());
    all.extend([
        both(
            "macvlan",
            "for n in 1 2 3; do ip link add link hca0 name mac$n type macvlan mode bridge && ip link set mac$n up &&
            ip address add 10.6.$n.$(number)/24 dev mac$n || exit; done",
        ),
        answers("macvlan: ping", "10.6.3"),
        both("128 macvlans", "for n in $(seq 10 137); do ip link add link hca0 name mac$n type macvlan mode bridge && ip link set mac$n up || exit; done
            ip address add 10.6.137.$(number)/24 dev mac137"),
        answers("128 macvlans: ping", "10.6.137"),
        both("no macvlans", "for link in /sys/class/net/mac*; do ip link delete ${link##*/}; done; ip -br link"),
        both("bridge", "ip link add br0 type bridge && ip link set hca0 master br0 && ip link set br0 up && ip address add 10.7.0.$(number)/24 dev br0"),
        answers("bridge: ping", "10.7.0"),
        both("no bridge", "ip link delete br0"),
        both("vxlan", "ip link add vx0 type vxlan id 9 remote 10.1.0.$((3 - $(number))) dstport 4789 dev hca0 && ip link set vx0 up &&
            ip address add 10.8.0.$(number)/24 dev vx0"),
        answers("vxlan: ping", "10.8.0"),
        Command::sides("iperf3 -s -1", Ready::Tcp(IPERF), "shows 'receiver$' iperf3 -c 10.8.0.1 -n 5M").named("vxlan: iperf3"),
        both("no vxlan", "ip link delete vx0"),
        both("another MAC", "ip link set hca0 address 02:00:00:00:0a:0$(number) && ip neigh flush all"),
        ping("another MAC: ping", ""),
        rping("another MAC: rping", "10.1.0.1"),
        both("the old MAC", "ip link set hca0 address $(ethtool -P hca0 | sed 's/.*: //') && ip neigh flush all"),
        ping("the old MAC: ping", ""),
        says("XDP: pass", "python3 xdp.py pass sleep 8", "attached", "answers @host"),
        says("XDP: drop", "python3 xdp.py drop sleep 6", "attached", "shows '100% packet loss' ping -c 3 -W 1 @host; ! ping -c 2 -W 1 @host"),
        says("XDP: transmit", "python3 xdp.py return sleep 10", "attached", "python3 datagrams.py frames 0x88b5 100"),
        says("XDP: redirect", "python3 xdp.py return sleep 10", "attached", "python3 datagrams.py frames 0x88b6 100"),
        says("AF_XDP: zero copy", "python3 xsk.py zero aligned 4096 100", "attached", "python3 datagrams.py frames 0x88b5 100"),
        says("AF_XDP: chunks anywhere", "python3 xsk.py zero unaligned 4096 100", "attached", "python3 datagrams.py frames 0x88b5 100"),
        ping("ping after XDP", ""),
    ]);
    all.extend(roce());
    all.push(both("counters", "ethtool -S hca0; for bad in rx_wqe_err tx_cqe_err rx_crc_errors_phy rx_discards_phy tx_errors_phy; do
        [ $(counted $bad) = 0 ] || { echo $bad; exit 1; }; done; ip -s -s link show hca0"));
    all
}

/// Sends to a MAC that nobody has.
const STRANGE: &str =
    "ip neigh replace 10.1.0.77 lladdr 02:00:00:00:00:77 dev hca0 && ping -c 2 -W 1 10.1.0.77; true";
/// Sends to a group without members.
const GROUP: &str = "python3 datagrams.py group send 10.1.0.$(number)";

/// A tag, many tags, two tags.
fn vlans() -> Vec<Command> {
    vec![
        both("VLAN", "ip link add link hca0 name hca0.5 type vlan id 5 && ip link set hca0.5 up && ip address add 10.5.0.$(number)/24 dev hca0.5"),
        answers("VLAN: ping", "10.5.0"),
        Command::sides("iperf3 -s -1", Ready::Tcp(IPERF), "shows 'receiver$' iperf3 -c 10.5.0.1 -n 20M").named("VLAN: iperf3"),
        both("VLAN: tags are the adapter's work", "[ $(counted rx_removed_vlan_packets) -gt 100 ] && [ $(counted tx_added_vlan_packets) -gt 100 ]"),
        says("VLAN that is not there", "missed -p vlan 6", "listening", "ip link add link hca0 name hca0.6 type vlan id 6 && ip link set hca0.6 up && ping -6 -c 2 -W 1 ff02::1%hca0.6; ip link delete hca0.6"),
        rping("VLAN: rping", "10.5.0.1"),
        perftest("ib_write_bw -n 100", 2, "ffff:0a05"),
        perftest("ib_write_bw -n 100", 1, "ffff:0a05"),
        both("100 VLANs", "for n in $(seq 1000 1099); do ip link add link hca0 name hca0.$n type vlan id $n && ip link set hca0.$n up || exit; done
            ip address add 10.5.99.$(number)/24 dev hca0.1099"),
        answers("100 VLANs: ping", "10.5.99"),
        both("QinQ", "ip link add link hca0 name s7 type vlan proto 802.1ad id 7 && ip link set s7 up &&
            ip link add link s7 name s7.8 type vlan id 8 && ip link set s7.8 up && ip address add 10.5.78.$(number)/24 dev s7.8"),
        answers("QinQ: ping", "10.5.78"),
        both("no VLANs", "ip link delete s7.8; ip link delete s7; for link in /sys/class/net/hca0.*; do ip link delete ${link##*/}; done; ip -br link"),
        ping("VLANs are gone: ping", ""),
    ]
}

/// RoCE of both versions, beside the device's own traffic.
fn roce() -> Vec<Command> {
    let mut all = vec![
        rping("rping", "10.1.0.1"),
        Command::sides("rping -s -a :: -C 10 -V", Ready::Cm, "rping -c -C 10 -V -a fd00:1::1")
            .named("rping, IPv6"),
    ];
    for version in [1, 2] {
        for pattern in ["fe80", "ffff:0a01", "fd00"] {
            all.push(perftest("ib_write_bw -n 100", version, pattern));
        }
    }
    all.push(
        Command::sides(
            "rping -s -C 10 & python3 sniffer.py 6; status=$?; wait; [ $status = 0 ]",
            Ready::Says("sniffing"),
            "rping -c -C 10 -V -a 10.1.0.1",
        )
        .named("rping, and a sniffer"),
    );
    let [set, unset] = ["add", "del"].map(|what| format!("ip address {what} 10.9.0.$(number)/24 dev hca0"));
    all.push(both(
        "addresses are GIDs",
        &format!("{set} && until_true 10 gid 2 ffff:0a09 && {unset} && until_true 10 fails gid 2 ffff:0a09"),
    ));
    all
}

/// What `ip`, `ethtool` and `devlink` change while the device is up.
fn settings(kernel: &str) -> Vec<Command> {
    let mut all = set_up();
    all.push(both(
        "MTUs that are refused",
        "fails ip link set hca0 mtu 67 && fails ip link set hca0 mtu 9979",
    ));
    for mtu in MTUS {
        all.push(both(
            format!("MTU {mtu}"),
            &format!("ip link set hca0 mtu {mtu} && up && shows 'mtu {mtu}' ip link show hca0"),
        ));
        all.push(ping(&format!("MTU {mtu}: ping"), &format!("-M do -s {}", mtu - 28)));
        if mtu >= 576 {
            all.push(iperf(&format!("MTU {mtu}: iperf3"), "-n 5M"));
        }
    }
    all.push(both("MTU 9978: RoCE's is 4096", "shows 'active_mtu:[[:space:]]*4096' ibv_devinfo"));
    all.push(perftest("ib_write_bw -n 100 -m 4096", 2, "ffff:0a01"));
    all.push(both("MTU 1500", "ip link set hca0 mtu 1500 && up"));
    for offload in OFFLOADS {
        let back: Vec<&str> = offload
            .split(' ')
            .map(|word| match word {
                "off" => "on",
                "on" => "off",
                other => other,
            })
            .collect();
        all.push(both(offload, &format!("features {offload}")));
        all.push(file(format!("{offload}: file")));
        all.push(iperf(&format!("{offload}: iperf3 -R"), "-R -n 5M"));
        all.push(both(back.join(" "), &format!("features {}", back.join(" "))));
    }
    all.extend(channels());
    if kernel != "6.1" {
        all.extend(spreading());
    }
    all.extend(rules());
    all.extend([
        // 6.1 forgets what is told together with the end of adaptation.
        both("coalescing", "ethtool -C hca0 adaptive-rx off adaptive-tx off && ethtool -C hca0 rx-usecs 50 rx-frames 8 tx-usecs 20 tx-frames 4 && shows 'rx-usecs:.*50' ethtool -c hca0"),
        iperf("coalescing: iperf3", "-n 5M"),
        both("coalescing, adaptive", "ethtool -C hca0 adaptive-rx on adaptive-tx on && shows 'Adaptive RX: on' ethtool -c hca0"),
        both("self test", "until_true 60 shows 'test result is PASS' ethtool -t hca0"),
        ping("self test: ping", ""),
        both("time stamps", "shows 'hardware-receive' ethtool -T hca0 && shows '(PTP Hardware Clock|Hardware timestamp provider index): 0' ethtool -T hca0"),
        both("clock", "phc_ctl /dev/ptp0 get && phc_ctl /dev/ptp0 set 1000 get && phc_ctl /dev/ptp0 freq 1000 adj 5 get"),
        both(
            "pause for ever",
            "ethtool --set-tunable hca0 pfc-prevention-tout 100 && shows 100 ethtool --get-tunable hca0 pfc-prevention-tout &&
            shows tx_pause_storm_error_events ethtool -S hca0 && ethtool --set-tunable hca0 pfc-prevention-tout 8000",
        ),
        both("pause", "ethtool -A hca0 rx off tx off && shows 'RX:.*off' ethtool -a hca0 && ethtool -A hca0 rx on tx on && shows 'RX:.*on' ethtool -a hca0"),
        both("traffic classes", "dcb ets set dev hca0 tc-tsa all:strict 0:ets 1:ets tc-bw 0:30 1:70 prio-tc all:0 3:1 && shows 'tc-bw 0:30 1:70' dcb ets show dev hca0 &&
            dcb maxrate set dev hca0 tc-maxrate 0:20mbit && dcb maxrate show dev hca0 && dcb maxrate set dev hca0 tc-maxrate all:0bit"),
        iperf("traffic classes: iperf3", "-n 5M"),
        both("PFC", "dcb pfc set dev hca0 prio-pfc all:off 3:on && shows '3:on' dcb pfc show dev hca0 && dcb pfc set dev hca0 prio-pfc all:off && ethtool -A hca0 rx on tx on"),
        both("receive buffers", "shows 'total-size 262016' dcb buffer show dev hca0 && dcb pfc set dev hca0 prio-pfc all:off 3:on && dcb buffer set dev hca0 prio-buffer all:0 3:1 &&
            dcb buffer set dev hca0 buffer-size all:0 0:180000 1:80000 && shows '1:80000' dcb buffer show dev hca0 && shows '3:1' dcb buffer show dev hca0 && until_true 60 grep -q 1 /sys/class/net/hca0/carrier"),
        iperf("receive buffers: iperf3", "-n 5M"),
        both("receive buffers as before", "dcb pfc set dev hca0 prio-pfc all:off && ethtool -A hca0 rx on tx on && dcb buffer set dev hca0 prio-buffer all:1 &&
            dcb buffer set dev hca0 prio-buffer all:0 && dcb buffer set dev hca0 buffer-size all:0 0:130944 1:130944 && until_true 60 grep -q 1 /sys/class/net/hca0/carrier"),
        both("priorities by DSCP", "dcb app add dev hca0 dscp-prio 46:5 && shows 'EF:5' dcb app show dev hca0 && dcb app del dev hca0 dscp-prio 46:5"),
        both("error correction", "ethtool --set-fec hca0 encoding off && until_true 60 shows 'Active FEC encoding: Off' ethtool --show-fec hca0 && ethtool --set-fec hca0 encoding auto"),
        both("strides", "ethtool --set-priv-flags hca0 rx_striding_rq on && shows 'rx_striding_rq *: on' ethtool --show-priv-flags hca0"),
        iperf("strides: iperf3", "-n 20M"),
        both("strides, merged", "ethtool -K hca0 lro on && shows 'large-receive-offload: on' ethtool -k hca0"),
        iperf("strides, merged: iperf3", "-n 50M"),
        Command::sides("iperf3 -s -1", Ready::Tcp(IPERF), "shows 'receiver$' iperf3 -6 -c fd00:1::1 -n 50M").named("strides, merged: iperf3 -6"),
        file("strides, merged: file"),
        // Who receives the data.
        both("not merged", "{ [ $(hostname) != a ] || { [ $(counted rx_lro_packets) -gt 10 ] && nstat -az | grep '^TcpInCsumErrors *0 '; }; } && ethtool -K hca0 lro off"),
        both("strides, compressed", "ethtool --set-priv-flags hca0 rx_cqe_compress on"),
        iperf("strides, compressed: iperf3", "-n 20M"),
        // Only who receives the data has to skip strides: ACKs fit.
        both("no strides", "{ [ $(hostname) != a ] || [ $(counted rx_mpwqe_filler_cqes) -gt 0 ]; } && ethtool --set-priv-flags hca0 rx_cqe_compress off && ethtool --set-priv-flags hca0 rx_striding_rq off"),
        both("private flags", "ethtool --show-priv-flags hca0; for flag in rx_cqe_moder tx_cqe_moder; do for value in off on; do ethtool --set-priv-flags hca0 $flag $value || exit; done; done"),
        ping("private flags: ping", ""),
        both("speed", "ethtool -s hca0 autoneg on; shows 'Speed: 100000' ethtool hca0"),
        both("the cable", r"shows 'Vendor PN *: PCC-4X-EDR' ethtool -m hca0 && shows 'Length .Copper.*: 1m' ethtool -m hca0"),
        both("registers and others", "ethtool -i hca0; ethtool --show-fec hca0; ethtool --show-eee hca0; ethtool -l hca0; ethtool -g hca0; true"),
        both("devlink info", "shows fw.version devlink dev info pci/$(pci); devlink dev param show; devlink port show"),
        both("devlink health", "devlink health show; port=$(devlink port show | grep 'netdev hca0 ' | cut -d ' ' -f 1)
            for reporter in tx rx; do devlink health diagnose ${port%:} reporter $reporter || exit; done"),
        both("down and up", "ip link set hca0 down && ip link set hca0 up && up"),
        ping("down and up: ping", ""),
        rping("down and up: rping", "10.1.0.1"),
    ]);
    all
}

/// Channels.
fn channels() -> Vec<Command> {
    vec![
        both("one channel", "ethtool -L hca0 combined 1 && shows 'Combined:.*1$' ethtool -l hca0"),
        iperf("one channel: iperf3 -P 4", "-n 5M -P 4"),
        both("two channels", "ethtool -L hca0 combined 2 && shows 'Combined:.*2$' ethtool -l hca0"),
        iperf("two channels: iperf3 -P 8", "-n 5M -P 8"),
        both(
            "two channels: both were used",
            "[ $(counted rx0_packets) -gt 10 ] && [ $(counted rx1_packets) -gt 10 ]",
        ),
    ]
}

/// How flows are spread. The guests' ethtool sends 6.1 a field (`input_xfrm`) that it does not know, and is refused.
fn spreading() -> Vec<Command> {
    vec![
        both("all to the second channel", "ethtool -X hca0 weight 0 1 && ethtool -x hca0"),
        client(
            "all to the second channel: nothing to the first",
            &words("before=$(counted rx0_packets); answers @host && [ $(counted rx0_packets) = $before ]"),
        ),
        both("evenly", "ethtool -X hca0 equal 2 && ethtool -X hca0 default"),
        both("hash: XOR", "ethtool -X hca0 hfunc xor && shows 'xor: on' ethtool -x hca0"),
        iperf("hash: XOR: iperf3 -P 8", "-n 5M -P 8"),
        both("hash: Toeplitz", "ethtool -X hca0 hfunc toeplitz && shows 'toeplitz: on' ethtool -x hca0"),
        both("hash: key", "ethtool -X hca0 hkey $(seq -s : 10 49) && shows '10:11:12' ethtool -x hca0"),
    ]
}

/// Which flows are spread by their ports, rules of the user's, rings.
fn rules() -> Vec<Command> {
    vec![
        both("hash: ports of UDP", "ethtool -N hca0 rx-flow-hash udp4 sdfn && shows 'L4 bytes' ethtool -n hca0 rx-flow-hash udp4"),
        iperf("hash: ports of UDP: iperf3 -u -P 4", "-u -b 10M -P 4 -t 2"),
        both("flow rules", "ethtool -K hca0 ntuple on && ethtool -N hca0 flow-type udp4 dst-port 7300 action 1 loc 3 &&
            ethtool -N hca0 flow-type udp4 dst-port 7301 action -1 loc 4 && ethtool -N hca0 flow-type ether dst 02:00:00:00:00:99 action 0 loc 5 && ethtool -n hca0"),
        says("flow rules: to a channel", "before=$(counted rx1_packets); nc -u -l -W 1 7300 & echo ready; wait; [ $(counted rx1_packets) -gt $before ]", "ready", "sleep 1; for n in 1 2 3; do echo hello | nc -u -N -w 1 @host 7300; done; true"),
        says("flow rules: to nobody", "! timeout 6 nc -u -l -W 1 7301 & echo ready; wait $!", "ready", "sleep 1; echo hello | nc -u -N -w 1 @host 7301; true"),
        both("no flow rules", "ethtool -N hca0 delete 3 && ethtool -N hca0 delete 4 && ethtool -N hca0 delete 5 && ethtool -K hca0 ntuple off"),
        both("small rings", "ethtool -G hca0 rx 64 tx 64 && shows '^TX:.*64$' ethtool -g hca0"),
        iperf("small rings: iperf3", "-n 5M"),
        both("large rings", "ethtool -G hca0 rx 8192 tx 8192"),
        iperf("large rings: iperf3", "-n 5M"),
        both("common rings", "ethtool -G hca0 rx 1024 tx 1024"),
    ]
}

/// The ends of a driver's life, and its return.
fn lives() -> Vec<Command> {
    let mut all = set_up();
    let mut add = |name: &str, script: &str| {
        all.push(both(name, script));
        all.push(ping(&format!("{name}: ping"), ""));
        all.push(rping(&format!("{name}: rping"), "10.1.0.1"));
    };
    add("reload", "unload && load");
    add("mlx5_ib", "rmmod mlx5_ib && modprobe mlx5_ib && modprobe rdma_ucm && until_true 20 gid 2 ffff:0a01");
    add("devlink reload", "devlink dev reload pci/$(pci) && up");
    add(
        "unbound",
        "slot=$(pci); echo $slot >/sys/bus/pci/drivers/mlx5_core/unbind && fails [ -e /sys/class/net/hca0 ] && echo $slot >/sys/bus/pci/drivers/mlx5_core/bind && up",
    );
    add(
        "removed",
        "slot=$(pci); echo 1 >/sys/bus/pci/devices/$slot/remove && fails [ -e /sys/class/net/hca0 ] && echo 1 >/sys/bus/pci/rescan && up",
    );
    add("function level reset", "slot=$(pci); unload && echo 1 >/sys/bus/pci/devices/$slot/reset && load");
    add(
        "reload under traffic",
        "iperf3 -s -D -p 5301; iperf3 -s -D -p 5302; sleep 1
        iperf3 -c 10.1.0.$((3 - $(number))) -p 5301 -t 30 >/dev/null 2>&1 & iperf3 -c 10.1.0.$((3 - $(number))) -p 5302 -u -b 20M -t 30 >/dev/null 2>&1 &
        sleep 2; unload && load; status=$?; kill $(pgrep -x iperf3); exit $status",
    );
    add(
        "devlink reload under traffic",
        "iperf3 -s -D -p 5301; sleep 1; iperf3 -c 10.1.0.$((3 - $(number))) -p 5301 -t 30 >/dev/null 2>&1 &
        sleep 2; devlink dev reload pci/$(pci) && up; status=$?; kill $(pgrep -x iperf3); exit $status",
    );
    add("without RoCE", "devlink dev param set pci/$(pci) name enable_roce value false cmode driverinit && devlink dev reload pci/$(pci) && up && fails gid 2 ffff:0a01
        devlink dev param set pci/$(pci) name enable_roce value true cmode driverinit && devlink dev reload pci/$(pci) && up && until_true 10 gid 2 ffff:0a01");
    all.push(
        client("cable out and in", &words("outside; until_true 60 grep -q 0 /sys/class/net/hca0/carrier && until_true 60 grep -q 1 /sys/class/net/hca0/carrier && answers @host"))
            .with_outside("softhca ctl link down b; sleep 2; softhca ctl link up b"),
    );
    all.push(both("unload", "unload"));
    all
}

/// Three hosts: what a switch learns, and what it floods.
fn switch() -> Vec<Command> {
    let mut all = set_up();
    all.extend([
        ping("ping", ""),
        Command::alone("ping the others", "ping -c 3 10.1.0.2 && ping -c 3 10.1.0.3"),
        Command::everywhere("all nodes", "shows ', 0% packet loss' ping -6 -c 3 ff02::1%hca0"),
        iperf("iperf3", "-t 3"),
        file("file"),
        rping("rping", "10.1.0.2"),
        perftest("ib_write_bw -n 100", 2, "ffff:0a01"),
        perftest("ib_write_bw -n 100", 1, "ffff:0a01"),
        perftest("ib_send_bw -c UD -n 100 -s 1024", 2, "ffff:0a01"),
    ]);
    all
}

/// Soft-RoCE in host `b`, the adapter in host `a`; each is the server once.
pub fn soft_roce() -> Vec<Command> {
    let mut all = vec![soft_roce_starts()];
    all.push(ping("ping", ""));
    let mut add = |command: Command, back: Command| {
        all.push(command);
        all.push(back);
    };
    for (name, options) in [("rping", "-C 10 -V"), ("rping -S 60000", "-C 3 -V -S 60000")] {
        let one = || {
            Command::sides(
                &format!("rping -s {options}"),
                Ready::Cm,
                &format!("rping -c {options} -a {HOST}"),
            )
            .over(Network::Ethernet)
        };
        add(one().named(name), one().turned().named(format!("{name}, from here")));
    }
    let v6 = |address: &str| {
        Command::sides("rping -s -a :: -C 10 -V", Ready::Cm, &format!("rping -c -C 10 -V -a {address}"))
    };
    add(v6("fd00:1::1").named("rping, IPv6"), v6("fd00:1::2").turned().named("rping, IPv6, from here"));
    // These look at every byte that came.
    for command in [
        "ibv_rc_pingpong -c -s 65536 -n 100",
        "ibv_uc_pingpong -c -s 1000 -n 100",
        "ibv_ud_pingpong -c -s 1000 -n 100",
    ] {
        // Soft-RoCE may hang (`known.txt`): what it counted tells.
        let line = format!("counting 60 {command} -g $(gid 2 ffff:0a01)");
        let one = || Command::pair(&line, 18515).named(command);
        add(one(), one().turned().named(format!("{command}, from here")));
    }
    let rcopy = || {
        let client = format!("rcopy /usr/bin/bash {HOST}:/tmp/copy");
        Command::sides(COPIES, Ready::Cm, &client).over(Network::Ethernet)
    };
    add(rcopy().named("rcopy"), rcopy().turned().named("rcopy, from here"));
    let [group, back] = groups();
    add(group, back);
    // Soft-RoCE in an emulated guest, on a busy machine, takes longer than perftest's 67 ms to answer: `-u`. It offers more reads at once than the adapter can have under way, and perftest's client takes what its server offers.
    for command in [
        "ib_send_bw -n 100",
        "ib_send_lat -n 100",
        "ib_send_bw -c UC -n 100",
        "ib_send_bw -c UD -s 1024 -n 100",
        "ib_send_lat -c UD -s 1024 -n 100",
        "ib_write_bw -n 100",
        "ib_write_bw -n 20 -s 1000001",
        "ib_read_bw -n 100 -o 16",
        "ib_read_lat -n 100 -o 16",
        "ib_atomic_bw -n 100 -o 16",
        "ib_atomic_bw -n 100 -o 16 -A CMP_AND_SWAP",
        "ib_write_bw -R -n 100",
    ] {
        let one = || {
            let line = format!("{command} -u 18 -F -p {PORT}");
            if command.contains("-R") {
                return Command::sides(&line, Ready::Cm, &format!("{line} {HOST}")).over(Network::Ethernet);
            }
            Command::pair(format!("{line} -x $(gid 2 ffff:0a01)"), PORT)
        };
        all.push(one().named(command));
        // What soft-RoCE has no room for it drops, and UC does not notice.
        if !command.contains("-c UC") {
            all.push(one().turned().named(format!("{command}, from here")));
        }
    }
    all
}
