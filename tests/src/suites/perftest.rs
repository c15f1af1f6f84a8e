//! perftest: every program with every transport it has, and its modes.

use super::Case;
use super::guest::{Command, Ready, run, run_with};

/// TCP port; not the default one, which the pingpongs use too.
const PORT: u16 = 18516;

/// Path MTU of the fabrics here, bytes.
const INFINIBAND_MTU: u32 = 4096;
/// MTU of a network device that nobody set, bytes.
const ETHERNET_MTU: u32 = 1500;
/// A message of several packets, or of one that is as long as the path takes: bytes.
const MESSAGE: u32 = 2048;

/// In one guest and between two.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut cases = run("loopback: ", "loopback", kernel, &commands(INFINIBAND_MTU));
    cases.extend(run("two hosts: ", "two-hosts", kernel, &commands(INFINIBAND_MTU)));
    cases.extend(run("cable: ", "cable", kernel, &multicast()));
    cases.extend(run("RoCE: ", "eth-two-hosts", kernel, &roce()));
    cases.extend(run_with(
        &["guest/ethernet.sh"],
        "raw Ethernet: ",
        "eth-two-hosts",
        kernel,
        &raw_ethernet(),
    ));
    cases
}

/// RoCE: everything by version 2, which perftest takes by itself; the transports by version 1, too, and with a path MTU of
/// 4096 bytes.
fn roce() -> Vec<Command> {
    let mut all = commands(roce_mtu(ETHERNET_MTU));
    let of_version = |version: u8, more: &str| {
        let transports = [
            "send_bw -c RC",
            "send_bw -c UC",
            "send_bw -c UD -s 1024",
            "send_lat -c UD -s 1024",
            "send_bw -c XRC",
        ];
        let rdma = [
            "write_bw -c RC",
            "write_lat -c UC",
            "read_bw -c RC",
            "read_lat -c XRC",
            "atomic_bw",
            "atomic_lat",
        ];
        let more = more.to_owned();
        transports.into_iter().chain(rdma).map(move |program| {
            let name = format!("ib_{program} -n 200{more} with IPv4, version {version}");
            Command::pair(
                format!("ib_{program} -n 200{more} -F -p {PORT} -x $(gid {version} ffff:0a01)"),
                PORT,
            )
            .named(name)
        })
    };
    all.extend(of_version(1, ""));
    all.push(Command::everywhere(
        "MTU 9000",
        "ip link set hca0 mtu 9000 && until_true 60 grep -q 1 /sys/class/net/hca0/carrier",
    ));
    all.extend([1, 2].into_iter().flat_map(|version| of_version(version, " -m 4096")));
    all
}

/// The path MTU of RoCE over Ethernet with that MTU, bytes: what is left beside the longest headers, as Linux has it
/// (`include/rdma/ib_addr.h`, `iboe_get_mtu`), rounded down to an MTU that InfiniBand has (256 to 4096).
fn roce_mtu(ethernet: u32) -> u32 {
    const GRH: u32 = 40;
    const UDP: u32 = 8;
    const BTH: u32 = 12;
    const XRC: u32 = 4;
    const ATOMIC: u32 = 28;
    const ICRC: u32 = 4;
    let left = ethernet.saturating_sub(GRH + UDP + BTH + XRC + ATOMIC + ICRC);
    [4096, 2048, 1024, 512].into_iter().find(|mtu| *mtu <= left).unwrap_or(256)
}

/// Frames of a program's own, without the kernel. Its server takes all frames for the device's address away from the kernel,
/// pings too: so the addresses are asked for before.
fn raw_ethernet() -> Vec<Command> {
    let mut all =
        vec![Command::everywhere("set up", ". /root/ethernet.sh; up && peer >/tmp/peer && cat /tmp/peer")];
    // No more frames than the server has receive requests at once, 512: nothing holds the client back.
    let to_a = "-J 10.1.0.1 -j 10.1.0.2 -K 5001 -k 5000";
    for (program, options) in [
        ("bw", "-n 500"),
        ("bw", "-n 500 -s 64"),
        ("bw", "-n 500 --vlan_en --vlan_pcp 3"),
        ("bw", &format!("-n 500 {to_a}")),
        ("lat", "-n 500"),
        ("lat", "-n 500 -s 1000"),
    ] {
        let name = format!("raw_ethernet_{program} {options}");
        let [server, client] = ["server", "client"].map(|side| {
            let addresses = "-B $(cat /sys/class/net/hca0/address) -E $(cat /tmp/peer)";
            format!("stdbuf -oL raw_ethernet_{program} --{side} {addresses} -F {options}")
        });
        // The server says "attached" when its rule is there, and then gets ready to receive.
        let client = format!("sleep 1; {client}");
        all.push(Command::sides(&server, Ready::Says("#bytes"), &client).named(name));
    }
    all.push(Command::alone(
        "raw_ethernet_fs_rate",
        "raw_ethernet_fs_rate --server -B $(cat /sys/class/net/hca0/address) -E $(cat /tmp/peer) -F -n 200",
    ));
    all
}

/// Groups that a subnet manager has to make.
fn multicast() -> Vec<Command> {
    let mut all = vec![Command::alone("opensm", "manage"), Command::everywhere("active", "active")];
    for command in ["ib_send_bw -c UD -g -s 1024 -n 100", "ib_send_lat -c UD -g -s 256 -n 100"] {
        all.push(Command::pair(format!("measured {command} -F -p {PORT}"), PORT).named(command));
    }
    all
}

/// Where the path MTU is so many bytes: datagrams are no longer, and perftest refuses longer ones.
fn commands(path_mtu: u32) -> Vec<Command> {
    let mut all = Vec::new();
    let mut add = |command: String| {
        all.push(Command::pair(format!("{command} -F -p {PORT}"), PORT).named(command));
    };
    for (program, transports) in
        [("send", &["RC", "UC", "UD", "XRC"][..]), ("write", &["RC", "UC", "XRC"]), ("read", &["RC", "XRC"])]
    {
        for transport in transports {
            let size = if *transport == "UD" { MESSAGE.min(path_mtu) } else { MESSAGE };
            for kind in ["bw", "lat"] {
                add(format!("ib_{program}_{kind} -c {transport} -n 200 -s {size}"));
            }
        }
        for kind in ["bw", "lat"] {
            // 2 bytes to 8 MiB.
            add(format!("ib_{program}_{kind} -a -n 20"));
            add(format!("ib_{program}_{kind} -n 100 -s 64 -x 0"));
        }
        add(format!("ib_{program}_bw -n 100 -q 8"));
        add(format!("ib_{program}_bw -n 100 -b"));
        add(format!("ib_{program}_bw -n 100 -m 512 -s 10000"));
        add(format!("ib_{program}_bw -n 128 -l 8"));
        add(format!("ib_{program}_bw -D 2"));
    }
    for kind in ["FETCH_AND_ADD", "CMP_AND_SWAP"] {
        for transport in ["RC", "XRC"] {
            for program in ["bw", "lat"] {
                add(format!("ib_atomic_{program} -A {kind} -c {transport} -n 200"));
            }
        }
    }
    add("ib_atomic_bw -o 16 -q 4 -n 200".into());
    add("ib_read_bw -o 16 -n 200".into());
    // Small messages inside of the work request.
    add("ib_send_lat -I 64 -s 64 -n 200".into());
    add("ib_write_bw -I 32 -s 32 -n 200".into());
    add("ib_send_lat -c UD -I 64 -s 64 -n 200".into());
    // Completion events, moderation of completions.
    add("ib_send_bw -e -n 100".into());
    add("ib_send_lat -e -n 100".into());
    add("ib_read_lat -e -n 100".into());
    add("ib_send_bw -e -c UD -s 1024 -n 100".into());
    add("ib_write_bw -Q 16 -n 256".into());
    add("ib_send_bw -Q 1 -n 256".into());
    // A receive queue for many.
    add("ib_send_bw --use-srq -q 4 -n 100".into());
    add("ib_send_lat --use-srq -n 100".into());
    // Immediate data, a region for each queue pair, a window over the data.
    add("ib_write_bw --write_with_imm -n 200".into());
    add("ib_send_bw --mr_per_qp -q 4 -n 100".into());
    all
}

#[cfg(test)]
mod tests {
    use super::roce_mtu;

    /// As `ibv_devinfo` says on hardware.
    #[test]
    fn path_mtu_of_ethernet() {
        for (ethernet, path) in [(1500, 1024), (4200, 4096), (9000, 4096), (2200, 2048), (576, 256), (0, 256)]
        {
            assert_eq!(roce_mtu(ethernet), path, "over {ethernet}");
        }
    }
}
