//! Storage over RDMA, with the kernel's own targets and initiators: NVMe over Fabrics, SRP, iSER, NFS; and RDS, which databases use.
//!
//! Host `a` manages the subnet, `b` has the disk, `c` uses it.

use super::Case;
use super::guest::{Command, Ready, run_with};
use super::ipoib::{log_of_opensm, opensm_ends, set_up};

/// What the guests need beside the words for all suites.
const FILES: [&str; 2] = ["guest/storage.sh", "guest/rds.py"];

/// Makes the words known to a shell.
const WORDS: &str = ". /root/storage.sh";

/// Behind a switch.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut commands = set_up();
    commands.extend(nvme());
    commands.extend(srp());
    commands.extend(iser());
    commands.extend(nfs());
    commands.push(rds());
    commands.push(Command::meeting("after all"));
    commands.push(log_of_opensm());
    commands.push(opensm_ends());
    run_with(&FILES, "switch: ", "switch", kernel, &commands)
}

/// In `b`, then in `c`.
fn both(name: &str, target: &str, initiator: &str) -> Command {
    let (server, client) = (format!("{WORDS}; {target} && echo ready"), format!("{WORDS}; {initiator}"));
    Command::sides(&server, Ready::Says("ready"), &client).over_ipoib().named(name)
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
        both("srp", "srp_target c", "srp_connect && brings_back /dev/sda"),
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
    Command::sides(&side("serve", "c"), Ready::Says("ready"), &side("send", "b")).over_ipoib().named("rds")
}
