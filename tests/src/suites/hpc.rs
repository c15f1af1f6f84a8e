//! Libraries of high-performance computing, as Debian packages them: UCX over each of its transports, Open MPI and MPICH over UCX,
//! libfabric; within a guest and between two. `guest/collectives.c` is compiled in the guests and checks all data.

use super::Case;
use super::guest::{Command, HOST, Network, Ready, run_in};
use super::ipoib::{log_of_opensm, opensm_ends, set_up};

/// Files of these cases in the guests.
const FILES: [&str; 2] = ["guest/hpc.sh", "guest/collectives.c"];
/// Programs and libraries, and what the guests talk by while they start them.
const PACKAGES: [&str; 8] = [
    "gcc",
    "libc6-dev",
    "libfabric-bin",
    "libmpich-dev",
    "libopenmpi-dev",
    "mpich",
    "openssh-server",
    "ucx-utils",
];
/// Makes the words known to a shell.
const WORDS: &str = ". /root/hpc.sh";
/// Transports of UCX: by verbs, and by itself on the device's queues.
const TRANSPORTS: [&str; 5] = ["rc_v", "rc_x", "ud_v", "ud_x", "dc_x"];
/// Port of fi_pingpong.
const FABRIC: u16 = 47592;

/// In a guest, then between two; then between two whose adapters match tags.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut all = run_in(&FILES, &PACKAGES, "", "hpc.toml", kernel, &whole(commands()));
    all.extend(run_in(&FILES, &PACKAGES, "ConnectX-5: ", "hpc-connectx5.toml", kernel, &whole(matching())));
    all
}

/// Commands with what comes before the first process and behind the last one.
fn whole(commands: Vec<Command>) -> Vec<Command> {
    let mut all = set_up();
    all.push(Command::everywhere("ssh", format!("{WORDS}; ssh_works")));
    for mpi in ["openmpi", "mpich"] {
        all.push(Command::everywhere(
            format!("mpicc.{mpi}"),
            format!("mpicc.{mpi} -O1 -Wall -Werror -o collectives.{mpi} collectives.c"),
        ));
    }
    all.extend(commands);
    all.push(Command::meeting("after all"));
    all.push(log_of_opensm());
    all.push(opensm_ends());
    all
}

/// Tags matched by the adapter, where UCX does so by itself: it fetches what is announced, too. Of its transports on the device's queues
/// that of dynamic connections leaves it, as the adapter does (`RNDV_OFFLOAD_DC` is 0).
fn matching() -> Vec<Command> {
    let mut all = Vec::new();
    for (transport, matches) in [("rc_x", true), ("dc_x", false)] {
        for mpi in ["openmpi", "mpich"] {
            for (place, hosts) in [("one guest", "a:2"), ("two guests", "a:1,b:1")] {
                all.push(Command::alone(
                    format!("{place}: {mpi} {transport} with tags matched"),
                    format!("{WORDS}; shows '[1-9][0-9]+ checks of 2 processes, 0 wrong' matching {mpi} {transport} {hosts} ./collectives.{mpi}"),
                ));
            }
        }
        let found = if matches { "" } else { "fails " };
        all.push(Command::alone(
            format!("{transport}: who matches"),
            format!("{WORDS}; UCX_LOG_LEVEL=debug; export UCX_LOG_LEVEL; matching openmpi {transport} a:1,b:1 ./collectives.openmpi >/dev/null; {found}grep 'Activate tag offload' /tmp/quiet"),
        ));
        for (test, size) in [
            ("tag_lat", 8),
            ("tag_lat", 4096),
            ("tag_bw", 65536),
            ("tag_bw", 1 << 20),
            ("tag_sync_lat", 4096),
        ] {
            all.push(Command::alone(
                format!("ucx_perftest {transport} {test} {size} with tags matched"),
                format!("{WORDS}; matching openmpi {transport} a:1,b:1 ucx_perftest -t {test} -n 200 -w 10 -s {size}"),
            ));
        }
    }
    all
}

fn commands() -> Vec<Command> {
    let mut all = Vec::new();
    for transport in TRANSPORTS {
        for (place, hosts) in [("one guest", "a:2"), ("two guests", "a:1,b:1")] {
            for mpi in ["openmpi", "mpich"] {
                all.push(Command::alone(
                    format!("{place}: {mpi} {transport}"),
                    format!("{WORDS}; shows '[1-9][0-9]+ checks of 2 processes, 0 wrong' {mpi} {transport} {hosts} ./collectives.{mpi}"),
                ));
            }
        }
    }
    // Debian builds it with MPI, which has to start it.
    for transport in TRANSPORTS {
        for test in ["tag_lat", "tag_bw", "ucp_put_bw", "ucp_get", "ucp_fadd"] {
            let size = if test == "ucp_fadd" { 8 } else { 4096 };
            all.push(Command::alone(
                format!("ucx_perftest {transport} {test}"),
                format!("{WORDS}; openmpi {transport} a:1,b:1 ucx_perftest -t {test} -n 200 -w 10 -s {size}"),
            ));
        }
    }
    all.push(Command::meeting("before the pairs"));
    for (kind, provider) in [("msg", "verbs"), ("dgram", "verbs"), ("rdm", "'verbs;ofi_rxm'")] {
        let side = format!("fi_pingpong -p {provider} -e {kind} -c -I 100");
        let command = Command::sides(&side, Ready::Tcp(FABRIC), &format!("{side} {HOST}"));
        all.push(command.over(Network::Ipoib).named(format!("fi_pingpong {kind}")));
    }
    all
}
