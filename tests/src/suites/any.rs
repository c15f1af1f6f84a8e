//! Programs and drivers that nobody had tried before: what each of them met once, as a case.
//!
//! Modules and packages of the guests' distribution, UCX on queues that it makes itself, iPXE, the launcher in whatever folder it lies.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output};
use std::time::{Duration, Instant};

use hca_vm::lab::Options;
use hca_vm::module::Module;
use hca_vm::run::Run;

use super::Case;
use super::covered::covered;
use super::guest::{Command, run_in};
use crate::guests::turn;

/// Files of these cases in the guests.
const FILES: [&str; 1] = ["guest/hpc.sh"];
/// Packages whose maintainer scripts matter: alternatives, a user, keys.
const PACKAGES: [&str; 3] = ["openmpi-bin", "openssh-server", "ucx-utils"];
/// Makes the words known to a shell.
const WORDS: &str = ". /root/hpc.sh";

/// On this machine, then in a guest.
pub fn cases(kernel: &str) -> Vec<Case> {
    let mut cases =
        vec![Case::check("launcher in a folder named target", launcher().err().unwrap_or_default())];
    cases.push(Case::check("a module of one's own", module(kernel).err().unwrap_or_default()));
    cases.extend(run_in(&FILES, &PACKAGES, "", "loopback", kernel, &commands()));
    cases.push(boots_over_the_fabric(kernel));
    cases
}

/// iPXE, with its own driver, loads the kernel from another guest and starts it there.
fn boots_over_the_fabric(kernel: &str) -> Case {
    /// An emulated processor unpacks the kernel for minutes.
    const LIMIT: Duration = Duration::from_secs(1500);
    let started = Instant::now();
    let report = {
        let _turn = turn(2);
        covered(Run::new("cable"))
            .kernel(kernel)
            .timeout(LIMIT)
            .netboot("b")
            .host("a", "hca-netboot")
            .host("b", "uname -r; ls /sys/class/infiniband")
            .run()
    };
    let complaint = match report {
        Err(error) => format!("{error:#}"),
        Ok(report) => {
            let said = report.host("b").map_or("", |host| host.output.as_str());
            // Of the kernel that was asked for, whose driver then has the adapter.
            let booted = said.contains(kernel) && said.contains("mlx5_0");
            if report.exit_code() == 0 && booted {
                String::new()
            } else {
                format!("b said {said:?}\n{report}")
            }
        }
    };
    Case { seconds: started.elapsed().as_secs_f64(), ..Case::check("ipxe boots over the fabric", complaint) }
}

fn commands() -> Vec<Command> {
    let mut all = vec![Command::alone(
        "every module of the kernel is there",
        "count=$(find /lib/modules/$(uname -r)/kernel -name '*.ko*' | wc -l); echo $count; [ $count -gt 3500 ]",
    )];
    for module in ["ksmbd", "cifs", "9pnet_rdma", "ceph", "gfs2", "nfp"] {
        all.push(Command::alone(
            format!("modprobe {module}"),
            format!("modprobe {module} && grep -q '^{module} ' /proc/modules"),
        ));
    }
    all.extend([
        Command::alone("dpkg has set everything up", "dpkg --audit; [ -z \"$(dpkg --audit)\" ]"),
        Command::alone("alternatives", "shows openmpi readlink -f /usr/bin/mpirun"),
        Command::alone("users", "shows /run/sshd getent passwd sshd"),
        Command::alone("keys of a service", "test -s /etc/ssh/ssh_host_ed25519_key"),
        Command::alone("the loader's cache", "shows libucp ldconfig -p"),
        Command::alone("plain mpirun", "[ \"$(mpirun --allow-run-as-root -n 2 hostname | wc -l)\" = 2 ]"),
        // It asks for the state of a bond (QUERY_LAG), which has to be answered without a line of UCX.
        Command::alone(
            "ucx_info is quiet",
            format!("{WORDS}; quiet ucx_info -d && grep -q rc_mlx5 /tmp/quiet"),
        ),
    ]);
    // Receive memory pools in a ring: what it takes unless it is told otherwise.
    for test in ["tag_lat", "tag_bw", "ucp_put_bw", "ucp_get", "ucp_fadd"] {
        let size = if test == "ucp_fadd" { 8 } else { 4096 };
        all.push(Command::alone(
            format!("ucx rc_x {test}"),
            format!("{WORDS}; openmpi rc_x a:2 ucx_perftest -t {test} -n 200 -w 10 -s {size}"),
        ));
    }
    all
}

/// The example of a module is built against the kernel's headers, loaded, and reads the adapter's registers.
fn module(kernel: &str) -> Result<(), String> {
    let text = |error: anyhow::Error| format!("{error:#}");
    let mut options = Options::new("loopback");
    kernel.clone_into(&mut options.kernel);
    options.modprobe = false;
    let module = Module {
        folder: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../qemu-configs/examples/module")),
        headers: None,
        command: "dmesg | grep hca_version: && rmmod hca_version && uname -r".to_owned(),
    };
    let report =
        module.run(options, "a").map_err(text)?.timeout(Duration::from_secs(900)).run().map_err(text)?;
    let said = report.host("a").is_some_and(|host| host.output.contains("has firmware 12."));
    if report.exit_code() == 0 && said { Ok(()) } else { Err(report.to_string()) }
}

/// The launcher beside its server, in a folder of a name that builds have, looks at its arguments and builds nothing.
fn launcher() -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let own = std::env::current_exe().map_err(text)?;
    let folder = std::env::temp_dir().join(format!("hca-any-{}", std::process::id()));
    let (place, bin) = (folder.join("target/release"), folder.join("bin"));
    let result = (|| {
        fs::create_dir_all(&place).map_err(text)?;
        fs::create_dir_all(&bin).map_err(text)?;
        for program in ["hca-vm", "softhca"] {
            let from = own.with_file_name(program);
            fs::copy(&from, place.join(program)).map_err(|error| format!("{}: {error}", from.display()))?;
        }
        let built = folder.join("built");
        let cargo = bin.join("cargo");
        fs::write(&cargo, format!("#!/bin/sh\ntouch '{}'\nexit 1\n", built.display())).map_err(text)?;
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).map_err(text)?;
        for (arguments, complaint) in [
            (&["run", "no-such-topology", "a=true"][..], "two-hosts"),
            (&["run", "loopback", "z=true"], "its hosts are: a"),
            (&["run", "loopback", "--kernel", "five", "a=true"], "6.12"),
            (&["run", "loopback", "--package", "Not A Name", "a=true"], "Not A Name"),
        ] {
            let Output { status, stderr, .. } = Process::new(place.join("hca-vm"))
                .args(arguments)
                .env_remove("CARGO")
                .env_remove("SOFTHCA_BIN")
                .env("PATH", with_front(&bin))
                .output()
                .map_err(text)?;
            let said = String::from_utf8_lossy(&stderr);
            if status.success() || !said.contains(complaint) {
                return Err(format!("{arguments:?}: {status}, '{complaint}' is not in\n{said}"));
            }
            if built.exists() {
                return Err(format!("{arguments:?}: cargo was called"));
            }
        }
        Ok(())
    })();
    let _ = fs::remove_dir_all(folder);
    result
}

/// The PATH with this folder before all others.
fn with_front(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default())
}
