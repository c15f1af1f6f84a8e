//! Others' simulators as hosts of an adapter: SimBricks' QEMU and gem5, where they are installed.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::peers::{Ended, case, installed};
use super::{Case, Outcome, guest};

/// What QEMU's device is called there, and the program.
const DEVICE: &str = "simbricks-pci";
const QEMU: &str = "qemu-system-x86_64";
/// gem5 as it is built, and the command that starts it: it needs a kernel, a disk and a script, which are the user's.
const GEM5: [&str; 3] = ["gem5.opt", "gem5.fast", "gem5"];
const GEM5_COMMAND: &str = "SOFTHCA_GEM5";
/// Latency of a crossing and period of times, in ns: what the adapter's profile has room for.
const CROSSING: &str = "140";

/// The adapter's process; its host is elsewhere.
fn adapter(program: &Path, folder: &Path) -> Result<Child, String> {
    let text = |why: std::io::Error| why.to_string();
    std::fs::create_dir_all(folder).map_err(text)?;
    let file = folder.join("topology.toml");
    let topology = "[fabric]\ntraining_ms = 0\n[[process]]\nname = \"a\"\n\
        [[host]]\nname = \"a\"\nprocess = \"a\"\n[[host.hca]]\nsimbricks = \"listen:host.pci\"\n";
    std::fs::write(&file, topology).map_err(text)?;
    let mut command = Command::new(program);
    command.args(["sim", "--process", "a", "--traffic", "none", "--until", "1e6", "--json", "--topology"]);
    command.arg(&file).arg("--run-dir").arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().map_err(text)
}

/// Whether that QEMU has the device.
fn has_device(qemu: &Path) -> bool {
    let help = Command::new(qemu).args(["-device", "help"]).output();
    help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(DEVICE))
}

/// QEMU without a disk: its firmware and its monitor see the adapter.
fn qemu(program: &Path, folder: &Path, tool: &Path) -> Result<String, String> {
    let text = |why: std::io::Error| why.to_string();
    let mut own = Ended(adapter(program, folder)?);
    let socket = folder.join("host.pci");
    let device =
        format!("{DEVICE},socket={},sync=on,pci-latency={CROSSING},sync-period={CROSSING}", socket.display());
    let mut command = Command::new(tool);
    command.args(["-machine", "q35", "-m", "64", "-nodefaults", "-display", "none", "-monitor", "stdio"]);
    command.args(["-icount", "shift=0,sleep=off", "-rtc", "clock=vm", "-device", &device]);
    // It tries once to connect.
    while !socket.exists() {
        if let Some(status) = own.0.try_wait().map_err(text)? {
            return Err(format!("the adapter's process has ended: {status}"));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut qemu = command.spawn().map_err(text)?;
    qemu.stdin.take().ok_or("it has no monitor")?.write_all(b"info pci\nquit\n").map_err(text)?;
    let output = qemu.wait_with_output().map_err(text)?;
    drop(own);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() && said.contains("15b3:1013") {
        true => Ok("its monitor lists 15b3:1013".into()),
        false => Err(format!("{}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

/// gem5, by the user's command, in which `{socket}` is where the adapter listens: what it runs has to use the adapter.
fn gem5(program: &Path, folder: &Path, command: &str) -> Result<String, String> {
    let text = |why: std::io::Error| why.to_string();
    let own = adapter(program, folder)?;
    let command = command.replace("{socket}", &folder.join("host.pci").display().to_string());
    let output = Command::new("sh").args(["-c", &command]).stdin(Stdio::null()).output().map_err(text)?;
    if !output.status.success() {
        drop(Ended(own));
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    // It has ended, and so does the simulation of the adapter.
    let output = own.wait_with_output().map_err(text)?;
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|why| why.to_string())?;
    match value["hashes"]["counts"][0].as_u64() {
        Some(events) if events > 0 => Ok(format!("{events} events at the adapter")),
        _ => Err("nothing happened at the adapter".into()),
    }
}

/// Each, if it is there; else it is skipped, by name and reason.
pub(super) fn cases(program: &Path, folder: &Path) -> Vec<Case> {
    let skipped = |name: &str, why: String| {
        Some(Case::new(name, Outcome::Skipped, 0.0, why)).filter(|_| guest::is_chosen(name))
    };
    let name = "SimBricks' QEMU as the host of an adapter";
    let of_qemu = match installed(QEMU) {
        None => skipped(name, format!("{QEMU} is not installed")),
        Some(tool) if !has_device(&tool) => {
            let why = format!("{} is not SimBricks': it has no device {DEVICE}", tool.display());
            skipped(name, why)
        }
        Some(tool) => case(name, || qemu(program, &folder.join("qemu"), &tool)),
    };
    let name = "SimBricks' gem5 as the host of an adapter";
    let of_gem5 = match (GEM5.iter().find_map(|tool| installed(tool)), std::env::var(GEM5_COMMAND)) {
        (None, _) => skipped(name, format!("{} is not installed", GEM5.join(", or "))),
        (Some(_), Err(_)) => {
            skipped(name, format!("{GEM5_COMMAND} does not say how it is started, with {{socket}} in it"))
        }
        (Some(_), Ok(command)) => case(name, || gem5(program, &folder.join("gem5"), &command)),
    };
    of_qemu.into_iter().chain(of_gem5).collect()
}
