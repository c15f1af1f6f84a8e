//! One stock guest with one adapter: what a person would try first, under two kernels, and across the sudden death
//! of the guest.

use hca_tests::guests::{Done, HANG, Job, Session, number, printed, turn, value};
use hca_vm::guest::{State, Task};
use hca_vm::lab::{Lab, Options};

/// What every kernel must be able to do.
fn essentials(job: Job) -> Job {
    job.step("devinfo", "ibv_devinfo -v")
        .step("with gids", "pair ibv_rc_pingpong -c -g 0 -s 65536 -n 200")
        .step("with lids", "pair ibv_rc_pingpong -c -s 65536 -n 200")
        .step("with events", "pair ibv_rc_pingpong -c -e -g 0 -s 65536 -n 200")
}

/// Messages of these sizes: one byte, around one and two path MTUs of 1024, and many packets.
fn sizes(job: Job) -> Job {
    let script = "for size in 1 1023 1024 1025 2049 1048576; do
        pair ibv_rc_pingpong -c -g 0 -s $size -n 20 || return
    done
    pair ibv_rc_pingpong -c -m 4096 -s 100000 -n 20";
    job.step("sizes", script)
}

/// Both sides of a pingpong say how much they moved: twice the size, as often as told.
fn moved(text: &str, size: u64, count: u64) {
    let line = format!("{} bytes in ", 2 * size * count);
    assert_eq!(text.matches(&line).count(), 2, "not twice '{line}' in\n{text}");
}

fn essentials_hold(done: &Done) {
    for step in ["with gids", "with lids", "with events"] {
        moved(done.printed("a", step), 65536, 200);
    }
    let info = done.printed("a", "devinfo");
    assert!(value(info, "transport").starts_with("InfiniBand"));
    assert!(value(info, "state").starts_with("PORT_ACTIVE"));
    assert!(value(info, "phys_state").starts_with("LINK_UP"));
    assert_eq!(value(info, "link_layer"), "InfiniBand");
    assert_eq!((number(info, "vendor_part_id"), value(info, "vendor_id")), (4115, "0x02c9"));
}

/// Limits and tables agree with each other, and with what the adapter is built for.
fn devinfo_makes_sense(info: &str) {
    assert!(number(info, "max_qp") >= 1 << 16);
    assert!(number(info, "max_qp_wr") >= 8192);
    assert!(number(info, "max_cqe") >= 1 << 20);
    assert!(number(info, "max_sge") >= 16);
    assert!(number(info, "max_srq") > 0 && number(info, "max_srq_wr") > 0);
    assert_eq!(number(info, "max_qp_rd_atom"), 16);
    assert_eq!(value(info, "atomic_cap"), "ATOMIC_HCA (1)");
    assert_eq!(number(info, "phys_port_cnt"), 1);
    for flag in ["RC_RNR_NAK_GEN", "XRC", "MEM_MGT_EXTENSIONS", "CHANGE_PHY_PORT", "SYS_IMAGE_GUID"] {
        assert!(info.lines().any(|line| line.trim() == flag), "no {flag} in\n{info}");
    }
    assert!(value(info, "max_mtu").starts_with("4096"));
    assert!(value(info, "active_mtu").starts_with("4096"));
    assert_eq!(value(info, "active_width"), "4X (2)");
    assert_eq!(value(info, "active_speed"), "25.0 Gbps (32)");
    assert_eq!(value(info, "max_msg_sz"), "0x40000000");
    assert_eq!(number(info, "pkey_tbl_len"), number(info, "max_pkeys"));
    assert!(number(info, "gid_tbl_len") >= 1);
    assert!((1..0xc000).contains(&number(info, "port_lid")), "no unicast LID");
    assert_ne!(number(info, "sm_lid"), 0);
    let guid = value(info, "node_guid");
    assert_ne!(guid, "0000:0000:0000:0000");
    assert_eq!(value(info, "GID[  0]"), format!("fe80:0000:0000:0000:{guid}"));
}

fn lspci_is_clean(text: &str) {
    // What lspci says of the vendor's own capability, on a real adapter too: it cannot decode it.
    const VENDOR: &str = "Vendor Specific Information: Len=18 <?>";
    assert!(text.contains(VENDOR), "no '{VENDOR}' in\n{text}");
    let text = &text.replace(VENDOR, "");
    for bad in ["!!!", "Unknown", "unknown", "<?>", "rev ff"] {
        assert!(!text.contains(bad), "'{bad}' in\n{text}");
    }
    let has = |part: &str| assert!(text.contains(part), "no '{part}' in\n{text}");
    has("MT27700 Family [ConnectX-4]");
    has("Express (v2) Endpoint");
    has("FLReset+");
    has("Kernel driver in use: mlx5_core");
    let status = value(text, "LnkSta");
    assert!(status.contains("Speed 8GT/s") && status.contains("Width x16"), "{status}");
    assert!(!status.contains("downgraded"), "{status}");
    let msix = text.split_once("MSI-X: ").expect("MSI-X").1;
    assert!(msix.starts_with("Enable+ "), "MSI-X is off: {msix}");
    let count = msix.split_once("Count=").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
    assert!(count.parse::<u32>().is_ok_and(|count| count >= 64), "{count} MSI-X vectors");
}

/// Real adapters report their firmware and what their slot gives; ours has a slot of 126 Gbit/s.
fn kernel_says_what_it_says_of_real_adapters(text: &str) {
    let has = |part: &str| assert!(text.contains(part), "no '{part}' in\n{text}");
    has("firmware version: ");
    has("126.016 Gb/s available PCIe bandwidth (8.0 GT/s PCIe x16 link)");
    for bad in ["limited by", "fail", "rror", "imeout", "health"] {
        let line = text.lines().find(|line| line.contains(bad) && !line.contains("vendor specific ID"));
        assert_eq!(line, None, "the kernel complains");
    }
}

#[test]
fn stock_kernel_and_tools() {
    let job = essentials(Job::new()).step("lspci", "lspci -vvv -d 15b3:").step(
        "sysfs",
        "cd /sys/class/infiniband/mlx5_0 && cat node_type fw_ver hca_type ports/1/state ports/1/rate \\
            && ibstat && cat ports/1/counters/port_rcv_data && cd",
    );
    let job = sizes(job)
        .step("perftest send", "PORT=18516 pair ib_send_bw -p 18516 -F -s 4096 -n 200")
        .step("perftest write", "PORT=18517 pair ib_write_bw -p 18517 -F -s 65536 -n 200")
        .step("perftest read", "PORT=18518 pair ib_read_bw -p 18518 -F -s 65536 -n 200")
        .step("perftest atomic", "PORT=18519 pair ib_atomic_lat -p 18519 -F -A FETCH_AND_ADD -n 200")
        .step(
            "reloads",
            "for i in 1 2 3 4 5 6 7 8 9 10; do
                reload || return
                echo \"reload $i\"
            done
            ibv_devinfo",
        )
        .step("after reloads", "pair ibv_rc_pingpong -c -g 0 -n 20")
        .step(
            "function level reset",
            "modprobe -r mlx5_ib mlx5_core && cat $device/reset_method && echo 1 >$device/reset && modprobe mlx5_ib",
        )
        .step("after reset", "pair ibv_rc_pingpong -c -g 0 -n 20")
        .step("dmesg", "dmesg | grep mlx5");
    let done = Session::new("loopback").host("a", &job).passes();
    essentials_hold(&done);
    devinfo_makes_sense(done.printed("a", "devinfo"));
    lspci_is_clean(done.printed("a", "lspci"));
    assert!(done.printed("a", "function level reset").contains("flr"));
    assert_eq!(done.printed("a", "reloads").matches("reload ").count(), 10);
    assert!(value(done.printed("a", "reloads"), "state").starts_with("PORT_ACTIVE"));
    kernel_says_what_it_says_of_real_adapters(done.printed("a", "dmesg"));
    done.nothing_was_left("a/hca0");
}

#[test]
fn older_kernel() {
    let job = essentials(Job::new().step("release", "uname -r"))
        .step("reload", "reload && ibv_devinfo")
        .step("after reload", "pair ibv_rc_pingpong -c -g 0 -n 20");
    let done = Session::new("loopback").kernel("6.1").host("a", &job).passes();
    assert!(done.printed("a", "release").starts_with("6.1."));
    essentials_hold(&done);
    done.nothing_was_left("a/hca0");
}

/// The guest is gone in the middle of a transfer, as if its power had failed; the same server serves the next one.
#[test]
fn killed_and_started_again() {
    let _turn = turn(1);
    let mut lab = Lab::start(Options::new("loopback"), &[]).expect("a server");
    let endless = Job::new().step(
        "endless",
        "pair ibv_rc_pingpong -g 0 -s 65536 -n 100000000 &
        until [ $(cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets) -gt 500 ]; do
            sleep 0.1
        done
        echo in the middle
        wait",
    );
    let mut guest = lab.boot("a", Task::Job(endless.text())).expect("QEMU");
    guest.wait_until(HANG, |guest| *guest.state() == State::Ready).expect("a guest");
    guest.go();
    guest.wait_until(HANG, |guest| guest.output().contains("in the middle")).expect("a pingpong");
    guest.kill();
    assert!(lab.servers_mut().alive());

    let job = essentials(Job::new());
    let mut guest = lab.boot("a", Task::Job(job.text())).expect("QEMU");
    guest.wait_until(HANG, |guest| *guest.state() == State::Ready).expect("a second guest");
    guest.go();
    guest.wait_until(HANG, |guest| matches!(guest.state(), State::Done(_))).expect("an end");
    assert_eq!(*guest.state(), State::Done(0), "{}", guest.output());
    moved(printed(guest.output(), "with gids"), 65536, 200);
    assert!(guest.problems().is_empty(), "{:?}", guest.problems());
    let bad = hca_vm::kmsg::bad_lines(guest.kernel_log(), &[]);
    assert!(bad.is_empty(), "{bad:?}");
    guest.kill();
    assert!(lab.servers_mut().alive());
}
