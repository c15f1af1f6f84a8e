//! Networks of their own for the server processes of a topology: one network namespace for each, joined by an
//! Ethernet bridge. Nothing of it touches the machine's network, and no privilege is needed: all of it is in a user
//! namespace of ours. It is gone when the last process in it is, and ours.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

use crate::child::Owned;

/// Makes the namespaces, and says the process id of the holder of each, the bridge's first. Holders live as long as
/// our end of their standard input.
const SCRIPT: &str = r#"
set -e
exec 3<&0
ip link add bridge type bridge
ip link set bridge up
echo "holder $$"
number=0
for address in "$@"; do
	unshare --net sh -c 'exec cat <&3' &
	holder=$!
	while [ "$(readlink /proc/$holder/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do
		kill -0 $holder
		sleep 0.01
	done
	ip link add port$number type veth peer name eth0 netns $holder
	ip link set port$number master bridge up
	case $address in
	*:*) length=128 option=nodad ;;
	*) length=32 option= ;;
	esac
	nsenter --target $holder --net sh -ec "
		ip link set lo up
		ip link set eth0 up
		ip address add $address/$length dev eth0 $option
		ip route add default dev eth0"
	case $address in
	*:*) nsenter --target $holder --net ip -6 route replace default dev eth0 ;;
	esac
	echo "holder $holder"
	number=$((number + 1))
done
echo done
exec cat <&3
"#;

/// The network of one process.
#[derive(Clone, Debug)]
pub struct Namespace {
    user: Arc<File>,
    net: Arc<File>,
    /// Where the bridge is.
    _bridge: Arc<File>,
}

/// Makes a network namespace for each address, all on one bridge.
///
/// # Errors
/// If the system does not allow it or lacks a tool; the message has what the tool said.
pub fn make(addresses: &[IpAddr]) -> Result<Vec<Namespace>> {
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--net", "sh", "-c", SCRIPT, "namespaces"])
        .args(addresses.iter().map(IpAddr::to_string))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut holder = Owned::spawn(&mut command, &[])
        .context("unshare(1) and ip(8) are needed for networks of their own")?;
    let stdout = holder.inner().stdout.take().context("no output of unshare")?;
    let mut files = Vec::new();
    let mut complete = false;
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if let Some(pid) = line.strip_prefix("holder ") {
            let open = |kind| File::open(format!("/proc/{pid}/ns/{kind}")).context("a namespace just made");
            files.push((Arc::new(open("user")?), Arc::new(open("net")?)));
        } else if line == "done" {
            complete = true;
            break;
        }
    }
    if !complete {
        let mut said = String::new();
        if let Some(stderr) = holder.inner().stderr.take() {
            let lines: Vec<_> = BufReader::new(stderr).lines().map_while(Result::ok).collect();
            said = lines.join("; ");
        }
        bail!(
            "the processes of this topology need network namespaces, and this system gives none ({}); \
             with loopback addresses (127.0.0.1:PORT) they share one network",
            if said.is_empty() { "it does not say why" } else { &said }
        );
    }
    // What holds them now are the open files: the holders may end.
    let mut files = files.into_iter();
    let (_, bridge) = files.next().context("no bridge")?;
    Ok(files.map(|(user, net)| Namespace { user, net, _bridge: bridge.clone() }).collect())
}

impl Namespace {
    /// Makes the command's process enter before anything else happens to it.
    pub fn enter<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let (user, net) = (self.user.clone(), self.net.clone());
        // SAFETY: between fork and exec only setns is called, which is async-signal-safe, on descriptors that the
        // closure keeps open; nothing allocates or locks.
        unsafe {
            command.pre_exec(move || {
                setns(user.as_fd(), CloneFlags::CLONE_NEWUSER)?;
                setns(net.as_fd(), CloneFlags::CLONE_NEWNET)?;
                Ok(())
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_networks_and_the_way_between() {
        for addresses in [["10.9.8.1", "10.77.0.2"], ["2001:db8::1", "2001:db8:7::2"]] {
            let addresses = addresses.map(|a| a.parse().unwrap());
            let made = make(&addresses).unwrap();
            let run = |namespace: &Namespace, program: &str, words: &[&str]| {
                let mut command = Command::new(program);
                let output = namespace.enter(command.args(words)).output().unwrap();
                (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
            };
            for (own, namespace) in addresses.iter().zip(&made) {
                let (ok, text) = run(namespace, "ip", &["-o", "address", "show", "dev", "eth0"]);
                assert!(ok && text.contains(&format!("{own}/")), "{text}");
                for other in &addresses {
                    // The way there, which is all that can be asked without a program that answers.
                    let (ok, text) = run(namespace, "ip", &["route", "get", &other.to_string()]);
                    assert!(ok, "{text}");
                }
            }
            // Not the machine's network.
            assert_ne!(
                std::fs::read_link("/proc/self/ns/net").unwrap().display().to_string(),
                run(&made[0], "readlink", &["/proc/self/ns/net"]).1.trim()
            );
        }
    }
}
