//! The QEMU command line of a guest.

use std::path::Path;
use std::process::Command;

use crate::guest::boot::{Boot, Machine};
use crate::guest::counter;

/// Set to `kvm` to use hardware virtualisation instead of emulation.
pub const ACCELERATOR_VARIABLE: &str = "HCA_VM_ACCEL";
/// Adds words to the guests' kernel command line.
pub const KERNEL_ARGUMENTS_VARIABLE: &str = "HCA_VM_KERNEL_ARGS";
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check mitigations=off nokaslr \
                                random.trust_cpu=on net.ifnames=0 log_buf_len=1M";

/// Emulation by default: it works everywhere, and /dev/kvm may be there and fail half-way through a boot.
fn accelerator() -> &'static str {
    if emulated() { "tcg,thread=multi" } else { "kvm" }
}

/// What the guest's programs run on. An emulated one has what x86-64-v2 says: there are packages that need it (DPDK among
/// them), and nothing that costs the emulator much.
fn processor() -> &'static str {
    if emulated() { "Nehalem" } else { "host" }
}

fn emulated() -> bool {
    std::env::var(ACCELERATOR_VARIABLE).as_deref() != Ok("kvm")
}

fn kernel_arguments(iommu: bool) -> String {
    let mut words = vec![KERNEL_ARGUMENTS.to_owned()];
    if iommu {
        words.push("intel_iommu=on".to_owned());
    }
    if emulated() {
        words.push(format!("tsc_early_khz={}", counter::kilohertz()));
    }
    words.extend(std::env::var(KERNEL_ARGUMENTS_VARIABLE));
    words.join(" ")
}

/// Appends everything but the channels.
pub(super) fn arguments(command: &mut Command, machine: &Machine, boot: &Boot<'_>, initrd: &Path) {
    let host = boot.host;
    command
        .args(["-name", &host.name, "-accel", accelerator()])
        .args(["-cpu", processor(), "-smp", &host.cpus.to_string()])
        // The server maps the guest's memory: it must be shared.
        .args(["-object", &format!("memory-backend-memfd,id=ram,size={},share=on", host.memory_bytes)])
        .args(["-machine", "q35,memory-backend=ram", "-m", &format!("{}B", host.memory_bytes)])
        .args(["-display", "none", "-nodefaults", "-no-reboot"])
        .arg("-kernel")
        .arg(&machine.kernel.vmlinux)
        .arg("-initrd")
        .arg(initrd)
        .arg("-append")
        .arg(kernel_arguments(host.iommu));
    if host.iommu {
        // With caching mode the device sees every mapping. It must precede the devices.
        command.args(["-device", "intel-iommu,caching-mode=on,intremap=off"]);
    }
    for (id, image) in [("root", &machine.rootfs), ("modules", &machine.kernel.modules)] {
        command
            .arg("-blockdev")
            .arg(
                serde_json::json!({
                    "driver": "raw", "node-name": id, "read-only": true,
                    "file": {"driver": "file", "filename": image, "read-only": true, "locking": "off"},
                })
                .to_string(),
            )
            .args(["-device", &format!("virtio-blk-pci,drive={id}")]);
    }
    for (index, hca) in host.hcas.iter().enumerate() {
        let number = index + 1;
        let socket = serde_json::json!({
            "driver": "vfio-user-pci",
            "socket": {"type": "unix", "path": boot.run_dir.join(&hca.socket)},
            "bus": format!("port{number}"),
        });
        command
            .args(["-device", &format!("pcie-root-port,id=port{number},chassis={number},slot={number}")])
            .args(["-device", &socket.to_string()]);
    }
    if let Some(side) = &boot.side {
        let link = serde_json::json!({
            "type": "dgram", "id": "side",
            "local": {"type": "unix", "path": side.local},
            "remote": {"type": "unix", "path": side.hub},
        });
        command
            .args(["-netdev", &link.to_string()])
            .args(["-device", &format!("virtio-net-pci,netdev=side,mac={},romfile=", side.mac)]);
    }
    // Behind that of the side network, so that it is eth0 everywhere.
    for (index, nic) in host.nics.iter().enumerate() {
        // One frame a datagram, between the card and the server's end of its link.
        let link = serde_json::json!({
            "type": "dgram", "id": format!("nic{index}"),
            "local": {"type": "unix", "path": boot.run_dir.join(&nic.local)},
            "remote": {"type": "unix", "path": boot.run_dir.join(&nic.remote)},
        });
        let mtu = nic.mtu.map_or(String::new(), |mtu| format!(",host_mtu={mtu}"));
        command
            .args(["-netdev", &link.to_string()])
            .args(["-device", &format!("virtio-net-pci,netdev=nic{index},mac={},romfile={mtu}", nic.mac)]);
    }
}
