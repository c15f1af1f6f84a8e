//! What bring-up engineers do with an adapter: mstflint's tools, devlink, settings that last, firmware updates.
//!
//! `tests/guest/management.sh` has the words of the scripts, beside those of `cases.sh`.

use std::path::PathBuf;
use std::process;

use anyhow::{Context, ensure};
use hca_vm::server::Binary;

use super::Case;
use super::guest::{Command, run_in};

/// Debian's packages of the tools.
const PACKAGES: [&str; 2] = ["mstflint", "pciutils"];
/// Version of the image that is flashed.
const NEW: &str = "12.28.2100";
/// Its file.
const IMAGE: &str = "softhca-suite.mfa2";

/// Between two guests.
pub fn cases(kernel: &str) -> Vec<Case> {
    let image = match image() {
        Ok(image) => image.display().to_string(),
        Err(error) => return vec![Case::check("image", format!("{error:#}"))],
    };
    run_in(&["guest/management.sh", &image], &PACKAGES, "", "two-hosts", kernel, &commands(kernel))
}

/// An image for the guests, made by the program.
fn image() -> anyhow::Result<PathBuf> {
    let file = std::env::temp_dir().join(IMAGE);
    let mut make = process::Command::new(Binary::find()?.path());
    let status = make.args(["firmware-image", "--version", NEW]).arg(&file).status();
    ensure!(status.context("softhca firmware-image")?.success(), "softhca firmware-image failed");
    Ok(file)
}

fn alone(name: &str, script: &str) -> Command {
    Command::alone(name, format!(". /root/management.sh; d=$(pci); {script}"))
}

fn everywhere(name: &str, script: &str) -> Command {
    Command::everywhere(name, format!(". /root/management.sh; d=$(pci); {script}"))
}

fn commands(kernel: &str) -> Vec<Command> {
    let mut all = vec![
        alone(
            "no complaints",
            "fails sh -c \"dmesg | grep -i 'vendor specific ID\\|isnt supported\\|hwmon_dev_register failed'\"",
        ),
        alone("mstmcra", "shows 0x00000209 mstmcra $d 0xf0014"),
        alone("mstflint q", "shows 'FW Version: *12.28.2006' mstflint -d $d q && shows 'PSID: *SHC_2180110032' mstflint -d $d q"),
        alone("mstconfig q", "shows 'LINK_TYPE_P1 *IB' mstconfig -d $d q"),
        alone("mstreg", "shows 'device_id *| 0x00001013' mstreg -d $d --reg_name MGIR --get"),
        alone("mstlink", "shows 'State *: ' mstlink -d $d"),
        alone("mstvpd", "shows '^PN: *SHC455A' mstvpd $d"),
        alone("lspci", "shows 'Serial number: ' lspci -vvs $d"),
        alone("mstfwreset q", "shows 'Warm Reboot *-Supported' mstfwreset -d $d q"),
        alone("mstdevices_info", "shows ConnectX4 mstdevices_info"),
        alone("tracepoint mlx5_fw", "traces && ibv_devinfo >/dev/null && until_true 10 grep 'QUERY_HCA_CAP op_mod 0x1: status 0x0' $tracing/trace"),
        // It goes on until it is interrupted.
        alone("mstfwtrace", "timeout -s INT 4 mstfwtrace -d $d >/tmp/traces; grep 'QUERY_HCA_CAP op_mod 0x1: status 0x0' /tmp/traces"),
        alone("rdma resource show -dd -r", "ibv_rc_pingpong >/dev/null & sleep 1; shows '04255254' rdma resource show qp -dd -r && shows '04255254' rdma resource show cq -dd -r && shows '04255254' rdma resource show mr -dd -r; result=$?; kill $!; return $result"),
        alone("mstresourcedump query", "shows PRM_QUERY_QP mstresourcedump query -d $d"),
        alone("mstresourcedump dump", "shows 'Segment Type: 0x1002' mstresourcedump dump -d $d -s FULL_CQC -n1 all"),
        alone("devlink health dump: fw", "devlink health dump show pci/$d reporter fw >/tmp/dump && grep 'msg: function 0: state 2' /tmp/dump"),
        alone("devlink dev info", "shows 'fw.version 12.28.2006' devlink dev info pci/$d && shows SHC_2180110032 devlink dev info pci/$d"),
        alone("devlink health dump", "devlink health dump show pci/$d reporter fw_fatal >/tmp/dump && grep -q crdump /tmp/dump"),
        // Of the next start only, and taken back.
        alone(
            "mstconfig set, reset",
            "mstconfig -y -d $d set LINK_TYPE_P1=2 && shows 'LINK_TYPE_P1 *ETH' mstconfig -d $d q && [ $(link_layer) = InfiniBand ] &&
            mstconfig -y -d $d reset && shows 'LINK_TYPE_P1 *IB' mstconfig -d $d q",
        ),
        alone("mstconfig: no such value", "fails mstconfig -y -d $d set LINK_TYPE_P1=5"),
        alone(
            "devlink dev flash",
            &format!("cp /root/{IMAGE} /lib/firmware && devlink dev flash pci/$d file {IMAGE} && devlink dev info pci/$d | tee /tmp/info &&
            grep -A2 stored /tmp/info | grep {NEW} && grep -A2 running /tmp/info | grep 12.28.2006"),
        ),
        alone("start anew: firmware", &format!("start_anew && shows 'fw.version {NEW}' devlink dev info pci/$(pci) && shows {NEW} mstflint -d $(pci) q")),
        everywhere("mstconfig set LINK_TYPE_P1=2", "mstconfig -y -d $d set LINK_TYPE_P1=2 && [ $(link_layer) = InfiniBand ]"),
        everywhere("start anew: Ethernet", "start_anew && [ $(class) = 0x020000 ] && [ $(link_layer) = Ethernet ] && interface"),
        alone("ping", "until_true 60 ping -c 1 -W 1 10.9.0.98 >/dev/null; shows ' 0% packet loss' ping -c 5 10.9.0.98"),
        alone("mstlink: Ethernet", "shows 'State *: .*Active' mstlink -d $d"),
        Command::meeting("after ping"),
        everywhere("back to InfiniBand", "mstconfig -y -d $d reset && start_anew && [ $(class) = 0x020700 ] && [ $(link_layer) = InfiniBand ]"),
    ];
    // Older ones have no hwmon.
    if kernel != "6.1" {
        all.push(alone("hwmon", "shows 45000 cat /sys/bus/pci/devices/$d/hwmon/*/temp1_input"));
    }
    all
}
