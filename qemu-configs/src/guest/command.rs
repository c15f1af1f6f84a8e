//! The QEMU command line of a guest.

use std::path::Path;
use std::process::Command;

use crate::accelerator::Accelerator;
use crate::guest::boot::{Boot, Disk, Machine};
use crate::guest::counter;
use crate::netboot::Loader;
use crate::slots;
use crate::topology::Host;

/// Adds words to the guests' kernel command line.
pub const KERNEL_ARGUMENTS_VARIABLE: &str = "HCA_VM_KERNEL_ARGS";
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check mitigations=off nokaslr \
                                random.trust_cpu=on net.ifnames=0 log_buf_len=1M";

fn accelerator(kind: Accelerator) -> &'static str {
    match kind {
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg => "tcg,thread=multi",
    }
}

/// What the guest's programs run on. An emulated one has what x86-64-v2 says: there are packages that need it (DPDK among
/// them), and nothing that costs the emulator much.
fn processor(kind: Accelerator) -> &'static str {
    match kind {
        Accelerator::Kvm => "host",
        Accelerator::Tcg => "Nehalem",
    }
}

/// Words for the guest's kernel.
pub(crate) fn kernel_arguments(kind: Accelerator, host: &Host) -> String {
    let mut words = vec![KERNEL_ARGUMENTS.to_owned()];
    if host.iommu {
        words.push("intel_iommu=on".to_owned());
    }
    if host.hugepages_bytes > 0 {
        // Set aside at boot: memory is in pieces later.
        words.push(format!("default_hugepagesz=2M hugepagesz=2M hugepages={}", host.hugepages_bytes >> 21));
    }
    if kind == Accelerator::Tcg {
        words.push(format!("tsc_early_khz={}", counter::kilohertz()));
    }
    words.extend(std::env::var(KERNEL_ARGUMENTS_VARIABLE));
    words.join(" ")
}

/// Appends everything but the channels.
pub(super) fn arguments(command: &mut Command, machine: &Machine, boot: &Boot<'_>, initrd: &Path) {
    let host = boot.host;
    command
        .args(["-name", &host.name, "-accel", accelerator(machine.accelerator)])
        .args(["-cpu", processor(machine.accelerator), "-smp", &host.cpus.to_string()])
        // The server maps the guest's memory: it must be shared.
        .args(["-object", &format!("memory-backend-memfd,id=ram,size={},share=on", host.memory_bytes)])
        // Without graphics the firmware, and a boot loader, speak on the serial console.
        .args(["-machine", "q35,memory-backend=ram,graphics=off", "-m", &format!("{}B", host.memory_bytes)])
        .args(["-display", "none", "-nodefaults", "-no-reboot"]);
    match &boot.loader {
        Some(Loader { image, script }) => command.arg("-kernel").arg(image).arg("-initrd").arg(script),
        None => command
            .arg("-kernel")
            .arg(&machine.kernel.vmlinux)
            .arg("-initrd")
            .arg(initrd)
            .arg("-append")
            .arg(kernel_arguments(machine.accelerator, host)),
    };
    if host.iommu {
        // With caching mode the device sees every mapping. It must precede the devices.
        command.args(["-device", "intel-iommu,caching-mode=on,intremap=off"]);
    }
    for Disk { serial, image, is_writable } in machine.disks().iter().chain(&boot.disks) {
        command
            .arg("-blockdev")
            .arg(
                serde_json::json!({
                    "driver": "raw", "node-name": serial, "read-only": !is_writable,
                    "file": {"driver": "file", "filename": image, "read-only": !is_writable, "locking": "off"},
                })
                .to_string(),
            )
            .args(["-device", &format!("virtio-blk-pci,drive={serial},serial={serial}")]);
    }
    // Nothing is plugged in or out but in slots of hosts that ask for them. With the firmware (ACPI) as who would do it, a port does not say
    // that its link is up, for which the kernel waits behind a reset of the bus or of the link; and drivers start no firmware
    // below a port that can.
    command.args(["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]);
    let plugged = if host.hotplug { "on" } else { "off" };
    for (index, hca) in host.hcas.iter().enumerate() {
        let (number, port) = (index + 1, slots::port(index));
        let adapter = slots::description(index, &boot.run_dir.join(&hca.socket));
        command
            .args([
                "-device",
                &format!("pcie-root-port,id={port},chassis={number},slot={number},hotplug={plugged}"),
            ])
            .args(["-device", &adapter.to_string()]);
    }
    if host.hotplug {
        slots::arguments(command);
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
