//! Storage over RDMA, with the kernel's own targets and initiators: NVMe over Fabrics, SRP, iSER, NFS; and RDS, which databases use.
//!
//! Host `b` has the disk, `c` uses it; `a` manages the subnet where there is one. In a mixed topology hosts `a` and `b` have an
//! InfiniBand port and an Ethernet port each, and use both at once.

use super::guest::{Command, Ready, run_with};
use super::ipoib::{log_of_opensm, opensm_ends, set_up};
use super::{Case, ethernet};

/// What the guests need beside the words for all suites.
const FILES: [&str; 2] = ["guest/storage.sh", "guest/rds.py"];

/// Makes the words known to a shell.
const WORDS: &str = ". /root/storage.sh";

/// Behind a switch, of InfiniBand and of Ethernet; and between hosts with both.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut commands = set_up();
    commands.extend(storage());
    commands.push(log_of_opensm());
    commands.push(opensm_ends());
    let mut cases = run_with(&FILES, "switch: ", "switch", kernel, &commands);
    let mut commands = ethernet::set_up();
    commands.extend(storage());
    cases.extend(run_with(&FILES, "RoCE: ", "eth-switch", kernel, &commands));
    cases.extend(run_with(&FILES, "mixed: ", "mixed.toml", kernel, &mixed()));
    cases
}

fn storage() -> Vec<Command> {
    let mut commands = nvme();
    commands.extend(srp());
    commands.extend(iser());
    commands.extend(nfs());
    commands.push(rds());
    commands.push(Command::meeting("after all"));
    commands
}

/// NFS over RDMA on InfiniBand, and TCP on Ethernet, at the same time; each port counts its own.
fn mixed() -> Vec<Command> {
    let mut commands = set_up();
    commands.extend([
        Command::everywhere(
            "Ethernet",
            "until_true 60 grep -q 1 /sys/class/net/hca1/carrier; ip -br address show hca1; rdma link;
            shows 'link_layer:.*InfiniBand' ibv_devinfo -d mlx5_0 && shows 'link_layer:.*Ethernet' ibv_devinfo -d mlx5_1",
        ),
        both("nfs", "nfs_server b", "nfs_mount a && nfs_brings_back"),
        Command::sides(
            "iperf3 -s -1",
            Ready::Tcp(5201),
            &format!(
                "{WORDS}; (for round in 1 2 3; do nfs_brings_back || exit; done) >/tmp/nfs.log 2>&1 & nfs=$!
                before=$(sent); shows 'receiver$' iperf3 -c a-hca1 -t 10; tcp=$?; wait $nfs; nfs=$?; cat /tmp/nfs.log
                [ $tcp = 0 ] && [ $nfs = 0 ] && [ $(($(sent) - before)) -gt $((MIB * 3 * 1048576 / 4)) ] &&
                shows ' tx_vport_unicast_bytes: [0-9]{{7}}' ethtool -S hca1"
            ),
        )
        .named("nfs and iperf3"),
        Command::sides("rping -s -C 10 -V", Ready::Cm, "rping -c -C 10 -V -a ib-a").named("rping, InfiniBand"),
        Command::sides("rping -s -C 10 -V", Ready::Cm, "rping -c -C 10 -V -a a-hca1").named("rping, Ethernet"),
        both("nfs: unmount", "true", "umount /mnt/nfs"),
        Command::meeting("after all"),
        log_of_opensm(),
        opensm_ends(),
    ]);
    commands
}

/// In `b`, then in `c`.
fn both(name: &str, target: &str, initiator: &str) -> Command {
    let (server, client) = (format!("{WORDS}; {target} && echo ready"), format!("{WORDS}; {initiator}"));
    Command::sides(&server, Ready::Says("ready"), &client).named(name)
}

/// In `c`.
fn in_c(name: &str, script: &str) -> Command {
    both(name, "true", script)
}

fn nvme() -> Vec<Command> {
    vec![
        both("nvme", "nvme_target", "nvme_connect b && brings_back /dev/nvme0n1"),
        // A writer waits, and neither it nor what it writes is lost.
        in_c(
            "nvme: cable goes",
            "fresh && nvme_is live || exit
            setsid sh -c '. /root/cases.sh; . /root/storage.sh; writes_on /dev/nvme0n1; echo $? >/tmp/writer' >/tmp/writer.log 2>&1 &
            until_true 20 test -s /tmp/rounds && outside; until_true 90 nvme_is connecting && fails test -e /tmp/writer",
        )
        .with_outside("softhca ctl link down b:1"),
        // What it writes from now on is other data, so that what is read back was written over the mended link.
        in_c(
            "nvme: cable comes",
            "outside; until_true 90 nvme_is live && fresh && before=$(rounds) || exit
            until_true 60 eval '[ $(rounds) -ge $((before + 2)) ]'; touch /tmp/enough
            until_true 60 test -s /tmp/writer; cat /tmp/writer.log; grep -x 0 /tmp/writer || exit
            dd if=/dev/nvme0n1 of=/tmp/back bs=1M count=$MIB iflag=direct && cmp /tmp/data /tmp/back",
        )
        .with_outside("softhca ctl link up b:1"),
        in_c("nvme: disconnect", "echo 1 >/sys/class/nvme/nvme0/delete_controller && modprobe -r nvme_rdma"),
    ]
}

fn srp() -> Vec<Command> {
    vec![
        both("srp", "srp_target c", "srp_connect b && brings_back /dev/sda"),
        in_c("srp: disconnect", "srp_disconnect && modprobe -r ib_srp"),
    ]
}

fn iser() -> Vec<Command> {
    vec![
        both("iser", "iser_target", "iser_connect b && brings_back /dev/sda"),
        in_c("iser: disconnect", "iser_disconnect && modprobe -r ib_iser"),
    ]
}

fn nfs() -> Vec<Command> {
    vec![
        both("nfs", "nfs_server c", "nfs_mount b && nfs_brings_back"),
        in_c("nfs: unmount", "umount /mnt/nfs"),
    ]
}

fn rds() -> Command {
    let side = |role: &str, peer: &str| {
        format!(
            "{WORDS}; modprobe rds_rdma && python3 rds.py $(address $(hostname)) $(address {peer}) {role}"
        )
    };
    Command::sides(&side("serve", "c"), Ready::Says("ready"), &side("send", "b")).named("rds")
}
