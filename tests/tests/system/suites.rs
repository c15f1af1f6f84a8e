//! A little of the suites that `hca-tests suites` runs whole: what stock programs do beyond RC, in one guest each.

use hca_tests::suites::guest::{Command, run};
use hca_tests::suites::{Case, Outcome, rdma_core};

/// The oldest kernel that is looked at; the other system tests boot the default one.
const KERNEL: &str = "6.1";

fn all_passed(cases: &[Case]) {
    let failed: Vec<&Case> = cases.iter().filter(|case| case.outcome == Outcome::Failed).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(cases.iter().any(|case| case.outcome == Outcome::Passed), "nothing was run");
}

/// Of rdma-core's own tests: a user context, indirect keys, memory windows, paging, XRC, compressed completions.
#[test]
fn some_of_the_tests_of_rdma_core() {
    all_passed(&rdma_core::some(
        KERNEL,
        "mlx5_devx|mkey_list|interleaved|MWTest|odp_rc_traffic|odp_xrc|qp_ex_xrc|DvCq|test_dc_send|raw_wqe",
    ));
}

/// Of perftest and the pingpongs: what the other system tests do not run.
#[test]
fn some_of_perftest() {
    let pingpong = |command: &str| Command::pair(command, 18515);
    let perftest =
        |command: &str| Command::pair(format!("{command} -F -p 18516 -n 50"), 18516).named(command);
    let commands = [
        pingpong("ibv_xsrq_pingpong -n 100"),
        pingpong("ibv_rc_pingpong -c -o -n 50"),
        perftest("ib_send_bw -c XRC"),
        perftest("ib_send_lat -c UD -s 1024"),
        perftest("ib_write_lat -c UC"),
        perftest("ib_read_bw -o 16"),
        perftest("ib_send_lat -e"),
        perftest("ib_atomic_bw -A CMP_AND_SWAP"),
        perftest("ib_send_bw --use-srq -q 4"),
    ];
    all_passed(&run("", "loopback", KERNEL, &commands));
}
