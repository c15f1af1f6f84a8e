//! The RDMA connection manager: every program of rdmacm-utils, and perftest with connections made by it.

use super::guest::{Command, HOST, Network, Ready, run};
use super::ipoib::{opensm_ends, set_up};
use super::{Case, ethernet};

/// Subnets that OpenSM in host `a` manages.
const TOPOLOGIES: [&str; 2] = ["cable", "switch"];
/// Not the default port, which the other programs use.
const PORT: u16 = 18516;

/// Between two guests.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut commands = set_up();
    commands.extend(programs(Network::Ipoib));
    commands.extend(perftest(Network::Ipoib));
    commands.push(opensm_ends());
    let mut cases: Vec<Case> = TOPOLOGIES
        .iter()
        .flat_map(|topology| run(&format!("{topology}: "), topology, kernel, &commands))
        .collect();
    cases.extend(run("RoCE: ", "eth-two-hosts", kernel, &roce()));
    cases
}

/// The same programs between Ethernet ports, where no subnet manager is and routes are addresses.
fn roce() -> Vec<Command> {
    let mut all = ethernet::set_up();
    all.extend(programs(Network::Ethernet));
    all.extend(perftest(Network::Ethernet));
    all
}

/// The server of rcopy, until one client has come and gone: it answers when it has the whole file, and a client that it leaves before that waits
/// for ever. The file is as it was.
pub const COPIES: &str = "rm -f /tmp/copy; rcopy >/tmp/copies & until [ $(grep -c 'waiting for connection' /tmp/copies) -gt 1 ]; do
    kill -0 $! || exit; sleep 0.2; done; kill $!; cat /tmp/copies; cmp /usr/bin/bash /tmp/copy";

/// A server and a client that the connection manager brings together.
pub fn pair(server: &str, client: &str) -> Command {
    Command::sides(server, Ready::Cm, client).over_ipoib()
}

fn programs(network: Network) -> Vec<Command> {
    let pair = |server: &str, client: &str| pair(server, client).over(network);
    let same = |program: &str| pair(program, &format!("{program} -s {HOST}")).named(program);
    let mut all = vec![
        pair("rping -s -C 10 -v -V", &format!("rping -c -C 10 -v -V -a {HOST}")).named("rping"),
        pair("rping -s -C 10 -V -S 60000", &format!("rping -c -C 10 -V -S 60000 -a {HOST}"))
            .named("rping -S 60000"),
        pair("rping -s -C 10 -q", &format!("rping -c -C 10 -q -a {HOST}")).named("rping -q"),
        same("ucmatose"),
        same("ucmatose -c 20 -C 5 -S 4000"),
        same("udaddy"),
        same("udaddy -c 5 -C 20 -S 1000"),
        // 100 connections with queue pairs, and 100 without.
        same("cmtime"),
        pair("rdma_server", &format!("rdma_client -s {HOST}")).named("rdma_server"),
        pair("rdma_xserver", &format!("rdma_xclient -s {HOST}")).named("rdma_xserver"),
        pair(COPIES, &format!("rcopy /usr/bin/bash {HOST}:/tmp/copy")).named("rcopy"),
        multicast("mckey", "-m 239.0.0.1", network),
    ];
    // A group by its GID: a subnet manager makes it.
    if network == Network::Ipoib {
        all.push(multicast("mckey -M", "-M ff12:401b:ffff::7:7", network));
    }
    // Not rstream -T a: its client takes it for an error (POLLHUP, status 16) that the server closes behind the last data.
    for (program, ways) in [("rstream", &["b", "n"][..]), ("riostream", &["b", "n", "a"])] {
        for how in ways {
            // Both sides have to be told the same sizes.
            all.push(same(&format!("{program} -S 4096 -I 20 -C 10 -T {how} -T v")));
        }
        all.push(same(&format!("{program} -S 1048576 -I 2 -C 4")));
    }
    all
}

/// A receiver that has joined a group, and a sender to it.
fn multicast(name: &str, group: &str, network: Network) -> Command {
    let here = if network == Network::Ipoib { "ib-$(hostname)" } else { "$(hostname)-hca0" };
    let command = format!("stdbuf -oL mckey {group} -b {here}");
    Command::sides(&command, Ready::Says("joined"), &format!("{command} -s")).named(name)
}

/// perftest, where the connection manager resolves and connects.
fn perftest(network: Network) -> Vec<Command> {
    [
        "ib_send_bw -n 100",
        "ib_send_lat -n 100",
        "ib_write_bw -n 100",
        "ib_write_lat -n 100",
        "ib_read_bw -n 100",
        "ib_read_lat -n 100",
        "ib_atomic_bw -n 100",
        "ib_atomic_lat -n 100",
        "ib_send_bw -c UD -s 1024 -n 100",
        "ib_send_lat -c UD -s 1024 -n 100",
        "ib_send_bw -q 4 -n 100",
        "ib_write_bw -b -n 100",
        "ib_send_bw -e -n 100",
    ]
    .into_iter()
    .map(|command| {
        let command = format!("{command} -R");
        let all = format!("{command} -F -p {PORT}");
        pair(&all, &format!("{all} {HOST}")).over(network).named(command)
    })
    .collect()
}
