//! Two stock guests whose adapters are joined by a cable, a good one and a bad one.

use hca_tests::guests::{Job, Session, number, value};

/// The same pingpong on both sides, `a` listening. The name is that of the step.
fn pingpong((a, b): (Job, Job), name: &'static str, options: &str) -> (Job, Job) {
    let command = format!("ibv_rc_pingpong -c {options}");
    (a.step(name, format!("offer b {command}")), b.step(name, format!("accept {command} a")))
}

/// A side says how much it moved: twice the size, as often as told.
fn moved(text: &str, size: u64, count: u64) {
    let line = format!("{} bytes in ", 2 * size * count);
    assert!(text.contains(&line), "no '{line}' in\n{text}");
}

#[test]
fn through_a_cable() {
    let jobs = (Job::new().step("devinfo", "ibv_devinfo -v"), Job::new().step("devinfo", "ibv_devinfo -v"));
    let jobs = pingpong(jobs, "with gids", "-g 0 -s 65536 -n 200");
    let jobs = pingpong(jobs, "with lids", "-s 65536 -n 200");
    let jobs = pingpong(jobs, "with events", "-e -g 0 -s 65536 -n 200");
    let jobs = pingpong(jobs, "large", "-g 0 -m 4096 -s 1048577 -n 20");
    let (a, b) = pingpong(jobs, "small", "-g 0 -s 1 -n 200");
    let (a, b) = (
        a.step("write", "PORT=18516 offer b ib_write_bw -p 18516 -F -s 65536 -n 200"),
        b.step("write", "accept ib_write_bw -p 18516 -F -s 65536 -n 200 a"),
    );
    let counters =
        "grep . /sys/class/infiniband/mlx5_0/ports/1/counters/port_*_data | sed 's/.*port_/port_/'";
    let (a, b) = (a.step("counters", counters), b.step("counters", counters));
    let done = Session::new("two-hosts").host("a", &a).host("b", &b).passes();

    for host in ["a", "b"] {
        for step in ["with gids", "with lids", "with events"] {
            moved(done.printed(host, step), 65536, 200);
        }
        moved(done.printed(host, "large"), 1_048_577, 20);
        moved(done.printed(host, "small"), 1, 200);
        let counters = done.printed(host, "counters");
        // Counted in words of four bytes (IBTA vol 1, PortCounters).
        let payload = 3 * 65536 * 200 / 4;
        assert!(number(counters, "port_xmit_data") > payload, "{counters}");
        assert!(number(counters, "port_rcv_data") > payload, "{counters}");
    }
    let (a, b) = (done.printed("a", "devinfo"), done.printed("b", "devinfo"));
    for key in ["node_guid", "port_lid", "GID[  0]"] {
        assert_ne!(value(a, key), value(b, key), "two adapters with one {key}");
    }
    assert_eq!(value(a, "sm_lid"), value(b, "sm_lid"));
}

/// Nothing that is lost on the way may be missing in the end.
#[test]
fn through_a_bad_cable() {
    let jobs = (Job::new(), Job::new());
    let jobs = pingpong(jobs, "with gids", "-g 0 -s 16384 -n 50");
    let (a, b) = pingpong(jobs, "with events", "-e -s 4096 -n 50");
    let done = Session::new("lossy.toml").host("a", &a).host("b", &b).passes();
    for host in ["a", "b"] {
        moved(done.printed(host, "with gids"), 16384, 50);
        moved(done.printed(host, "with events"), 4096, 50);
    }
}

/// A process for each adapter and one for the switch between them.
#[test]
fn in_processes_of_their_own() {
    let jobs = pingpong((Job::new(), Job::new()), "with gids", "-g 0 -s 16384 -n 50");
    let (a, b) = pingpong(jobs, "with events", "-e -s 4096 -n 50");
    let (a, b) = (
        a.step("write", "PORT=18516 offer b ib_write_bw -p 18516 -F -s 65536 -n 50"),
        b.step("write", "accept ib_write_bw -p 18516 -F -s 65536 -n 50 a"),
    );
    let done = Session::new("apart.toml").host("a", &a).host("b", &b).passes();
    for host in ["a", "b"] {
        moved(done.printed(host, "with gids"), 16384, 50);
        moved(done.printed(host, "with events"), 4096, 50);
    }
}
