//! What bring-up engineers do with an adapter: mstflint's tools, devlink, settings that last, firmware updates.
//!
//! `tests/guest/management.sh` has the words of the scripts, beside those of `cases.sh`.

use std::path::PathBuf;
use std::process;

use anyhow::{Context, ensure};
use hca_vm::server::Binary;

use super::guest::{Command, ended, is_chosen, quoted, report, run_in};
use super::{Case, expansion_rom};
use crate::guests::file;

/// Debian's packages of the tools.
const PACKAGES: [&str; 3] = ["ethtool", "mstflint", "pciutils"];
/// Version of the image that is flashed.
const NEW: &str = "12.28.2100";
/// Its file.
const IMAGE: &str = "softhca-suite.mfa2";
/// The same for a ConnectX-5.
const NEW_OF_5: &str = "16.28.2100";
const IMAGE_OF_5: &str = "softhca-suite-connectx5.mfa2";

/// Between two guests; in one whose adapter's firmware asks its driver before it starts again; in one whose firmware fails; in one whose
/// adapter has a ROM.
pub fn cases(kernel: &str) -> Vec<Case> {
    let images = image(IMAGE, "connectx4", NEW)
        .and_then(|first| Ok([first, image(IMAGE_OF_5, "connectx5", NEW_OF_5)?]))
        .map(|images| images.map(|image| image.display().to_string()));
    let [image, image_of_5] = match images {
        Ok(images) => images,
        Err(error) => return vec![Case::check("image", format!("{error:#}"))],
    };
    let words = "guest/management.sh";
    let mut all = run_in(&[words, &image], &PACKAGES, "", "two-hosts", kernel, &commands(kernel));
    all.extend(run_in(
        &[words, &image_of_5],
        &PACKAGES,
        "ConnectX-5: ",
        "connectx5-apart.toml",
        kernel,
        &asked(),
    ));
    all.extend(recovered(kernel, words));
    if is_chosen("expansion ROM") {
        all.extend(expansion_rom::cases(kernel));
    }
    all
}

/// An image for the guests, made by the program.
fn image(name: &str, personality: &str, version: &str) -> anyhow::Result<PathBuf> {
    let file = std::env::temp_dir().join(name);
    let mut make = process::Command::new(Binary::find()?.path());
    make.args(["firmware-image", "--personality", personality, "--version", version]);
    let status = make.arg(&file).status();
    ensure!(status.context("softhca firmware-image")?.success(), "softhca firmware-image failed");
    Ok(file)
}

fn alone(name: &str, script: &str) -> Command {
    Command::alone(name, format!(". /root/management.sh; d=$(pci); {script}"))
}

fn everywhere(name: &str, script: &str) -> Command {
    Command::everywhere(name, format!(". /root/management.sh; d=$(pci); {script}"))
}

/// A start of the firmware that the driver is asked about: what is in flash runs, and the adapter is there again.
fn asked() -> Vec<Command> {
    let activate = "devlink dev reload pci/$d action fw_activate && until_true 30 active && pong";
    vec![
        alone("mstfwreset q", "shows 'Driver is the owner *-Supported' mstfwreset -d $d q"),
        alone(
            "devlink dev flash",
            &format!("cp /root/{IMAGE_OF_5} /lib/firmware && devlink dev flash pci/$d file {IMAGE_OF_5}"),
        ),
        alone(
            "devlink dev reload action fw_activate",
            &format!("{activate} && devlink dev info pci/$d | tee /tmp/info && grep -A2 running /tmp/info | grep {NEW_OF_5} &&
            shows {NEW_OF_5} ibv_devinfo && shows {NEW_OF_5} mstflint -d $d q"),
        ),
        alone("devlink dev reload: nothing new", activate),
        alone(
            "devlink dev reload: the driver does not agree",
            "p=\"devlink dev param set pci/$d name enable_remote_dev_reset cmode runtime value\"; $p false && fails devlink dev reload pci/$d action fw_activate &&
            dmesg | grep 'Reset Nack Sent' && ibv_devinfo | grep PORT_ACTIVE && $p true",
        ),
        alone("devlink dev reload: it does again", activate),
        // The last one: mlx5_core makes a network device only if the port was Ethernet when it was bound, and keeps what it freed of
        // its flow tables (`root_ns`), which it frees again when the port is Ethernet no more.
        alone(
            "devlink dev reload: settings",
            "mstconfig -y -d $d set LINK_TYPE_P1=2 && devlink dev reload pci/$d action fw_activate && until_true 30 link_layer && [ $(link_layer) = Ethernet ] &&
            [ $(setpci -s $d CLASS_DEVICE) = 0200 ]",
        ),
    ]
}

/// The firmware fails while the driver may not recover it by itself; then somebody says so. What the kernel says of that is no complaint.
fn recovered(kernel: &str, words: &str) -> Vec<Case> {
    const NAME: &str = "devlink health recover";
    if !is_chosen(NAME) {
        return Vec::new();
    }
    let fails = file("../qemu-configs/faults/firmware-asks-for-reset.toml").display().to_string();
    let command = alone(
        NAME,
        ". /root/faults.sh; reporter=\"pci/$d reporter fw_fatal\"; devlink health set $reporter auto_recover false &&
        outside && until_true 60 ill && sleep 5 && ill && devlink health recover $reporter && until_true 60 active && pong &&
        ! ill && unhurt",
    );
    let command = command.with_outside(format!("softhca ctl fault load --now {}", quoted(&fails)));
    match report(&[words, "guest/faults.sh"], &[], &[], "loopback", kernel, std::slice::from_ref(&command)) {
        Ok(report) => ended("", "loopback", &[command], &report),
        Err(error) => vec![Case::check(format!("{NAME}: set up"), format!("{error:#}"))],
    }
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
        alone("mstlink -m", "shows 'Vendor Part Number *: .*PCC-4X-EDR' mstlink -d $d -m"),
        alone("mstlink -c", "shows 'Effective Physical BER *: .*15E-255' mstlink -d $d -c"),
        alone("mstlink --pc", "mstlink -d $d --pc >/tmp/cleared 2>&1 && ! grep -i 'exception\\|fail' /tmp/cleared"),
        alone("mstlink -c: PCIe", "shows 'RX Errors *: 0' mstlink -d $d --port_type PCIE --depth 0 --pcie_index 0 --node 0 -c"),
        alone("mstreg: MPCNT", "shows 'rx_errors *| 0x00000000' mstreg -d $d --reg_name MPCNT --get --indexes grp=0,pcie_index=0,depth=0,node=0"),
        // All that its list has of the adapter's configuration registers.
        alone("mstregdump", "mstregdump $d >/tmp/registers && [ $(wc -l </tmp/registers) -gt 40000 ] && grep -i '0x000f0014 0x00000209' /tmp/registers").within(900),
        alone("mstvpd", "shows '^PN: *SHC455A' mstvpd $d"),
        alone("lspci", "shows 'Serial number: ' lspci -vvs $d"),
        alone("mstfwreset q", "shows 'Warm Reboot *-Supported' mstfwreset -d $d q"),
        alone("mstdevices_info", "shows ConnectX4 mstdevices_info"),
        alone("tracepoint mlx5_fw", "traces && ibv_devinfo >/dev/null && until_true 10 grep 'QUERY_HCA_CAP op_mod 0x1: status 0x0' $tracing/trace"),
        // It goes on until it is interrupted, and on a busy machine it takes a while before it has read anything.
        alone(
            "mstfwtrace",
            "for seconds in 4 15 60; do timeout -s INT $seconds mstfwtrace -d $d >/tmp/traces; grep 'QUERY_HCA_CAP op_mod 0x1: status 0x0' /tmp/traces && return; done; false",
        ),
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
        )
        .within(300),
        alone("mstconfig: no such value", "fails mstconfig -y -d $d set LINK_TYPE_P1=5"),
        alone(
            "devlink dev flash",
            &format!("cp /root/{IMAGE} /lib/firmware && devlink dev flash pci/$d file {IMAGE} && devlink dev info pci/$d | tee /tmp/info &&
            grep -A2 stored /tmp/info | grep {NEW} && grep -A2 running /tmp/info | grep 12.28.2006"),
        ),
        // It says so at once; kernels take the answer for a yes, and wait.
        alone("devlink dev reload: the firmware asks no driver", "fails devlink dev reload pci/$d action fw_activate && ibv_devinfo | grep PORT_ACTIVE"),
        alone("start anew: firmware", &format!("start_anew && shows 'fw.version {NEW}' devlink dev info pci/$(pci) && shows {NEW} mstflint -d $(pci) q")),
        everywhere("mstconfig set LINK_TYPE_P1=2", "mstconfig -y -d $d set LINK_TYPE_P1=2 && [ $(link_layer) = InfiniBand ]"),
        everywhere("start anew: Ethernet", "start_anew && [ $(class) = 0x020000 ] && [ $(link_layer) = Ethernet ] && interface"),
        alone("ping", "until_true 60 ping -c 1 -W 1 10.9.0.98 >/dev/null; shows ' 0% packet loss' ping -c 5 10.9.0.98"),
        alone("ethtool -m", "shows 'Vendor PN *: PCC-4X-EDR' ethtool -m $(ls /sys/bus/pci/devices/$d/net)"),
        alone("ethtool -S: PCIe", "counters=$(ethtool -S $(ls /sys/bus/pci/devices/$d/net)); echo \"$counters\" | grep 'rx_pci_signal_integrity: 0' && echo \"$counters\" | grep 'tx_pci_signal_integrity: 0'"),
        alone("mstlink: Ethernet", "shows 'State *: .*Active' mstlink -d $d"),
        alone("mstlink --show_fec: Ethernet", "shows 'FEC Capability 100GbE *: 0x5' mstlink -d $d --show_fec"),
        alone("mstlink -m, -c: Ethernet", "shows 'Vendor Part Number *: .*PCC-4X-EDR' mstlink -d $d -m && shows 'Effective Physical BER *: .*15E-255' mstlink -d $d -c"),
        // What came before is more than what comes meanwhile.
        alone(
            "mstlink --pc: Ethernet",
            "came() { ethtool -S $(ls /sys/bus/pci/devices/$d/net) | sed -n 's/^ *rx_packets_phy: //p'; }; [ $(came) -ge 6 ] && mstlink -d $d --pc && [ $(came) -lt 6 ]",
        ),
        Command::meeting("after ping"),
        everywhere("back to InfiniBand", "mstconfig -y -d $d reset && start_anew && [ $(class) = 0x020700 ] && [ $(link_layer) = InfiniBand ]"),
    ];
    // Older ones have no hwmon.
    if kernel != "6.1" {
        all.push(alone("hwmon", "shows 45000 cat /sys/bus/pci/devices/$d/hwmon/*/temp1_input"));
    }
    all
}
