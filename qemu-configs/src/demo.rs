//! The demonstration behind `cargo demo`: one stock guest, one adapter, two processes that exchange data.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::lab;
use crate::progress;
use crate::run::Run;

/// Each command is shown before it runs; the first that fails ends the demonstration.
const SCRIPT: &str = r#"
show() { printf '\n$ %s\n' "$*"; }
show lspci -d 15b3:
lspci -d 15b3: || exit
show modprobe mlx5_ib
modprobe mlx5_ib && modprobe ib_uverbs || exit
dmesg | grep -m 3 'mlx5_core.*firmware version\|mlx5_core.*PCIe bandwidth\|mlx5_core.*Rate limit' 
show ibv_devinfo -v
ibv_devinfo -v || exit
show "ibv_rc_pingpong -g 0 &"
ibv_rc_pingpong -g 0 >/tmp/server.log 2>&1 &
server=$!
# The first one listens on TCP port 18515 (hex 4853) when it is ready.
n=0
until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do
	n=$((n + 1))
	[ $n -gt 300 ] && break
	kill -0 $server 2>/dev/null || break
	sleep 0.1
done
show "ibv_rc_pingpong -g 0 localhost"
ibv_rc_pingpong -g 0 localhost
status=$?
wait $server || status=$?
echo '(and the first process says)'
cat /tmp/server.log
exit $status
"#;

/// Runs it; returns the exit code.
pub fn run(kernel: &str) -> Result<i32> {
    let started = Instant::now();
    progress::note("softhca demonstration: a stock Debian guest drives a software InfiniBand adapter");
    // Before the run, so that the time below is that of the guest.
    lab::prepare(kernel, &[])?;
    let guest_started = Instant::now();
    progress::note("starting the adapter and one guest");
    let report = Run::new("loopback")
        .kernel(kernel)
        .no_modprobe()
        .timeout(Duration::from_secs(300))
        .echo()
        .host("a", SCRIPT)
        .run()?;
    report.explain();
    let code = report.exit_code();
    println!();
    if code != 0 {
        println!("The demonstration failed (exit code {code}); the lines above say where. To look around:");
        println!(
            "  cargo hca-vm run loopback --no-modprobe --keep-logs logs a='modprobe mlx5_ib; dmesg | tail -30'"
        );
        return Ok(code);
    }
    let release = report
        .host("a")
        .and_then(|host| host.kernel_log.iter().find_map(|line| line.text.strip_prefix("Linux version ")))
        .and_then(|text| text.split_whitespace().next())
        .unwrap_or(kernel);
    println!("What you saw:");
    println!("  - a virtual machine with Debian 13 and its own, unmodified kernel {release};");
    println!(
        "  - the kernel's mlx5 driver finding a ConnectX-4 adapter on PCI Express and bringing it up: the adapter is"
    );
    println!("    the program `softhca` on this machine, there is no such hardware here;");
    println!(
        "  - ibv_devinfo (from rdma-core, unmodified) describing it: an InfiniBand port in state ACTIVE;"
    );
    println!(
        "  - two processes in the guest exchanging messages through the adapter's send and receive queues; the"
    );
    println!("    connection over localhost only told each where to find the other.");
    println!(
        "It took {:.0} s, of which {:.0} s were the guest's; set-up is kept in the cache directory for the next time.",
        started.elapsed().as_secs_f32(),
        guest_started.elapsed().as_secs_f32()
    );
    println!(
        "Next: cargo hca-vm run loopback a='YOUR COMMAND'    cargo hca-vm shell loopback a    cargo hca-vm --help"
    );
    Ok(0)
}
