//! The PCI Express slots of guests: adapters are taken out and put in, and their messages about errors reach the root port.
//!
//! A server says what happens to its adapters (`softhca ctl slots`), QEMU does it. The ports of a host with `hotplug` in the topology are
//! slots; errors are told of adapters of any host.
//!
//! When a server is gone, so are its adapters: QEMU never finds its successor by itself. Where they are in slots, they are taken out at once, and
//! put in again when the server is there again.
//!
//! Nothing in QEMU takes a device out of a slot without asking the guest, so a port's slot control register is written as a
//! guest would write it: with power off QEMU unplugs at once, and the port says that nobody is present any more. Then it is
//! as it was: of an adapter that loses its power the guest's kernel believes that it has let go of it itself. QEMU (11.1) can't
//! destroy a `vfio-user-pci` device: it fails an assertion over the memory region of its interrupts. A device that somebody refers to
//! is not destroyed, though, and the only thing that can be made to do so is the console of a display. So each guest with slots has
//! displays that it can't see, one for each time that an adapter is taken out.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::child::Owned;
use crate::progress;
use crate::qmp::Qmp;
use crate::server::{Binary, Server};
use crate::topology::Host;

/// How often adapters of a guest can be taken out: a device of a slot of the root complex for each, functions 1 to 7. Nobody looks for
/// those where there is no function 0.
const REMOVALS: usize = 14;
/// The first of these slots.
const HIDDEN_SLOT: usize = 0x1d;
/// How long a guest may take to let go of an adapter. Its driver may wait a minute for each of its commands.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(100);
/// Ports of the configuration mechanism of PCI 3.0 (3.2.2.3.2).
const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;
/// PCI 3.0 6.7, PCIe 7.5.3.10: the list of capabilities, that of PCI Express, slot control in it: power and its indicator are off.
const CAPABILITIES: u16 = 0x34;
const EXPRESS: u32 = 0x10;
const SLOT_CONTROL: u16 = 0x18;
const OFF: u32 = 0x300 | 0x400;

/// QEMU's name of an adapter, by its place in the host.
pub(crate) fn device(index: usize) -> String {
    format!("hca{}", index + 1)
}

/// QEMU's name of the port it is behind.
pub(crate) fn port(index: usize) -> String {
    format!("port{}", index + 1)
}

/// What QEMU is told of an adapter.
pub(crate) fn description(index: usize, socket: &Path) -> Value {
    json!({
        "driver": "vfio-user-pci", "id": device(index), "bus": port(index),
        "socket": { "type": "unix", "path": socket },
    })
}

/// Appends what a guest with slots has for the sake of adapters that are taken out.
pub(crate) fn arguments(command: &mut Command) {
    for number in 0..REMOVALS {
        let (slot, function) = (HIDDEN_SLOT + number / 7, 1 + number % 7);
        command.args(["-device", &format!("bochs-display,addr={slot:#x}.{function}")]);
    }
}

/// Something that happens to an adapter.
#[derive(Debug, Deserialize)]
struct Note {
    /// `HOST/HCA`.
    hca: String,
    what: What,
    message: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum What {
    Removed,
    Ejected,
    Inserted,
    Error,
}

/// What the slots of a guest hear.
#[derive(Debug)]
enum Heard {
    /// Something happened to one of its adapters.
    Note(Note),
    /// The server of its adapters is gone.
    Gone,
    /// It is there again.
    Back,
}

/// The slots of all guests.
pub(crate) struct Slots {
    followers: Vec<Owned>,
    shared: Arc<Shared>,
}

/// What followers have in common.
#[derive(Default)]
struct Shared {
    /// Those who hear of guests' adapters, by their hosts.
    guests: Mutex<HashMap<String, Sender<Heard>>>,
    /// Nobody cares any more.
    over: AtomicBool,
}

impl Shared {
    /// A host that does not run, or is over, has no slots.
    fn tell(&self, host: &str, heard: Heard) {
        let guests = self.guests.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _ = guests.get(host).map(|guest| guest.send(heard));
    }
}

impl Slots {
    /// Follows what happens to the adapters of these servers.
    pub(crate) fn follow<'a>(servers: impl Iterator<Item = (&'a Server, Vec<String>)>) -> Result<Self> {
        let mut slots = Self { followers: Vec::new(), shared: Arc::default() };
        for (server, hosts) in servers {
            slots.follow_one(server, hosts)?;
        }
        Ok(slots)
    }

    /// Follows one, which has these hosts.
    fn follow_one(&mut self, server: &Server, hosts: Vec<String>) -> Result<()> {
        let mut command = server.ask("ctl");
        command.args(["slots", "--follow", "--json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = Owned::spawn(&mut command, &[])?;
        let stdout = child.inner().stdout.take().context("no output of softhca ctl slots")?;
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(note) = serde_json::from_str::<Note>(&line) else { continue };
                let host = note.hca.split('/').next().unwrap_or_default().to_owned();
                shared.tell(&host, Heard::Note(note));
            }
            if !shared.over.load(Ordering::Relaxed) {
                hosts.iter().for_each(|host| shared.tell(host, Heard::Gone));
            }
        });
        self.followers.push(child);
        Ok(())
    }

    /// The server of these hosts was started again.
    pub(crate) fn follow_again(&mut self, server: &Server, hosts: Vec<String>) -> Result<()> {
        let names = hosts.clone();
        self.follow_one(server, hosts)?;
        names.iter().for_each(|host| self.shared.tell(host, Heard::Back));
        Ok(())
    }

    /// A guest begins, whose QEMU is asked by this stream.
    pub(crate) fn begin(&self, host: &Host, qmp: UnixStream, binary: &Binary, run_dir: &Path) {
        let (sender, notes) = mpsc::channel();
        let guest = Guest {
            host: host.clone(),
            binary: binary.clone(),
            run_dir: run_dir.to_path_buf(),
            taken_out: 0,
            orphans: Vec::new(),
        };
        std::thread::spawn(move || guest.serve(qmp, &notes));
        let mut guests = self.shared.guests.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        guests.insert(host.name.clone(), sender);
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.followers.iter_mut().for_each(Owned::kill);
    }
}

/// The slots of one guest.
struct Guest {
    host: Host,
    binary: Binary,
    run_dir: PathBuf,
    /// How often an adapter was.
    taken_out: usize,
    /// Adapters that were taken out as their server was gone.
    orphans: Vec<usize>,
}

impl Guest {
    fn serve(mut self, qmp: UnixStream, heard: &Receiver<Heard>) {
        let Ok(mut qmp) = Qmp::new(qmp) else { return };
        let mut said = String::new();
        for heard in heard {
            let (done, what) = match heard {
                Heard::Note(note) => {
                    (self.act(&mut qmp, &note), format!("{} was not {}", note.hca, word(&note)))
                }
                Heard::Gone => (self.orphan(&mut qmp), format!("adapters of {} stay", self.host.name)),
                Heard::Back => {
                    (self.return_all(&mut qmp), format!("adapters of {} are not back", self.host.name))
                }
            };
            let Err(why) = done else { continue };
            let text = format!("{what}: {why:#}");
            // Errors come in numbers.
            if text != said {
                progress::note(&text);
                said = text;
            }
        }
    }

    fn act(&mut self, qmp: &mut Qmp, note: &Note) -> Result<()> {
        let name = note.hca.split_once('/').map_or("", |(_, name)| name);
        let index = self.host.hcas.iter().position(|hca| hca.name == name).context("its host has no such")?;
        if note.what == What::Error {
            return tell(qmp, &device(index), note.message.as_deref().unwrap_or_default());
        }
        ensure!(self.host.hotplug, "its host has no hotplug = true in the topology");
        match note.what {
            What::Removed => {
                self.take_out(qmp, index)?;
                self.is_out(note)
            }
            What::Ejected => {
                self.hold(qmp, index)?;
                qmp.ask("device_del", json!({ "id": device(index) }))?;
                let until = Instant::now() + PATIENCE;
                while is_there(qmp, index)? {
                    ensure!(Instant::now() < until, "the guest keeps it");
                    std::thread::sleep(PAUSE);
                }
                self.is_out(note)
            }
            What::Inserted | What::Error => self.put_in(qmp, index),
        }
    }

    /// Takes an adapter out without asking the guest.
    fn take_out(&mut self, qmp: &mut Qmp, index: usize) -> Result<()> {
        self.hold(qmp, index)?;
        cycle_power(qmp, &port(index))?;
        ensure!(!is_there(qmp, index)?, "QEMU has not unplugged it");
        Ok(())
    }

    fn put_in(&self, qmp: &mut Qmp, index: usize) -> Result<()> {
        let socket = self.host.hcas.get(index).map(|hca| self.run_dir.join(&hca.socket));
        let description = description(index, &socket.context("it has no socket")?);
        qmp.ask("device_add", description).map(drop)
    }

    /// Its adapters are of a server that is gone. Without slots they stay where they are, and answer all ones.
    fn orphan(&mut self, qmp: &mut Qmp) -> Result<()> {
        for index in 0..if self.host.hotplug { self.host.hcas.len() } else { 0 } {
            // It may have ended, too.
            let Ok(there) = is_there(qmp, index) else { return Ok(()) };
            if there {
                self.take_out(qmp, index)?;
                self.orphans.push(index);
            }
        }
        Ok(())
    }

    /// The server is there again, and so are they.
    fn return_all(&mut self, qmp: &mut Qmp) -> Result<()> {
        std::mem::take(&mut self.orphans).into_iter().try_for_each(|index| self.put_in(qmp, index))
    }

    /// Has a console refer to the adapter that is to be taken out.
    fn hold(&mut self, qmp: &mut Qmp, index: usize) -> Result<()> {
        ensure!(self.taken_out < REMOVALS, "adapters of this guest were taken out {REMOVALS} times");
        let console = format!("/backend/console[{}]", self.taken_out);
        let value = format!("/machine/peripheral/{}", device(index));
        qmp.ask("qom-set", json!({ "path": console, "property": "device", "value": value }))?;
        self.taken_out += 1;
        Ok(())
    }

    /// Tells the server, to which QEMU keeps its connection.
    fn is_out(&self, note: &Note) -> Result<()> {
        let mut command = self.binary.command();
        command.args(["ctl", "--run-dir"]).arg(&self.run_dir).args(["slot", "empty", &note.hca]);
        let output = command.stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }
}

fn word(note: &Note) -> &str {
    match note.what {
        What::Removed | What::Ejected => "taken out",
        What::Inserted => "put in",
        What::Error => "heard",
    }
}

/// Whether QEMU has the adapter.
fn is_there(qmp: &mut Qmp, index: usize) -> Result<bool> {
    let devices = qmp.ask("qom-list", json!({ "path": "/machine/peripheral" }))?;
    let name = device(index);
    let named = |known: &Value| known.get("name").and_then(Value::as_str) == Some(&name);
    Ok(devices.as_array().is_some_and(|devices| devices.iter().any(named)))
}

/// The port hears of an error. QEMU does not know the registers of a device that is not its own: which of its errors stands for
/// one of them does not matter, as the guest asks the adapter.
fn tell(qmp: &mut Qmp, device: &str, message: &str) -> Result<()> {
    let error = match message {
        "ERR_NONFATAL" => "COMP_TIME",
        "ERR_FATAL" => "MALF_TLP",
        _ => bail!("QEMU passes no {message} of a vfio-user device"),
    };
    let printed = qmp.human(&format!("pcie_aer_inject_error {device} {error}"))?;
    ensure!(printed.starts_with("OK"), "{}", printed.trim());
    Ok(())
}

/// Switches the power of a port's slot off and on, as software of the guest could. The guest stands still meanwhile, and finds the
/// address of its own accesses to configuration space as it was.
fn cycle_power(qmp: &mut Qmp, port: &str) -> Result<()> {
    let function = place_of(&qmp.ask("query-pci", json!({}))?, port).context("the guest has no such port")?;
    qmp.ask("stop", json!({}))?;
    let before = read(qmp, 'w', CONFIG_ADDRESS);
    let done = before.as_ref().ok().map_or(Ok(()), |_| {
        let at = express(qmp, function)? + SLOT_CONTROL;
        let control = config(qmp, 'h', function, at)?;
        write(qmp, 'h', CONFIG_DATA + (at & 3), control | OFF)?;
        write(qmp, 'h', CONFIG_DATA + (at & 3), control)
    });
    let restored = before.and_then(|address| write(qmp, 'w', CONFIG_ADDRESS, address));
    qmp.ask("cont", json!({}))?;
    done.and(restored)
}

/// Bus, device and function of a port, in the bits of a configuration address.
fn place_of(buses: &Value, port: &str) -> Option<u32> {
    let devices = buses.as_array()?.iter().flat_map(|bus| bus.get("devices").and_then(Value::as_array));
    let found = devices.flatten().find(|known| known.get("qdev_id").and_then(Value::as_str) == Some(port))?;
    let number = |key: &str| found.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    Some(1 << 31 | number("bus")? << 16 | number("slot")? << 11 | number("function")? << 8)
}

/// Where the capability of PCI Express is.
fn express(qmp: &mut Qmp, function: u32) -> Result<u16> {
    /// More than fit.
    const CAPABILITIES_MOST: usize = 48;
    let mut at = config(qmp, 'b', function, CAPABILITIES)?;
    for _ in 0..CAPABILITIES_MOST {
        let place = u16::try_from(at & 0xfc)?;
        ensure!(place != 0, "its port is none of PCI Express");
        if config(qmp, 'b', function, place)? == EXPRESS {
            return Ok(place);
        }
        at = config(qmp, 'b', function, place + 1)?;
    }
    bail!("its port has capabilities without end")
}

/// Reads a register of configuration space, of one byte (`b`), two (`h`) or four (`w`).
fn config(qmp: &mut Qmp, width: char, function: u32, at: u16) -> Result<u32> {
    write(qmp, 'w', CONFIG_ADDRESS, function | u32::from(at & 0xfc))?;
    read(qmp, width, CONFIG_DATA + (at & 3))
}

fn read(qmp: &mut Qmp, width: char, port: u16) -> Result<u32> {
    let printed = qmp.human(&format!("i /{width} {port:#x}"))?;
    let value = printed.trim().rsplit("0x").next().and_then(|digits| u32::from_str_radix(digits, 16).ok());
    value.with_context(|| format!("QEMU does not read {port:#x}: {}", printed.trim()))
}

/// What it prints is what QEMU had to say of an adapter that is off the bus.
fn write(qmp: &mut Qmp, width: char, port: u16, value: u32) -> Result<()> {
    qmp.human(&format!("o /{width} {port:#x} {value:#x}")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_ports() {
        let buses = json!([{"bus": 0, "devices": [
            {"bus": 0, "slot": 0, "function": 0, "qdev_id": ""},
            {"bus": 0, "slot": 3, "function": 1, "qdev_id": "port2"}]}]);
        assert_eq!(place_of(&buses, "port2"), Some(0x8000_1900));
        assert_eq!(place_of(&buses, "port1"), None);
    }

    #[test]
    fn notes() {
        let note: Note = serde_json::from_str(
            r#"{"hca":"a/hca0","at":"5 us","what":"error","message":"ERR_FATAL","number":0}"#,
        )
        .unwrap();
        assert_eq!(
            (note.what, note.message.as_deref(), word(&note)),
            (What::Error, Some("ERR_FATAL"), "heard")
        );
    }
}
