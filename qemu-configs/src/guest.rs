//! One running guest: its QEMU process and the channels to it.
//!
//! Three virtio-serial ports (job output, control, kernel log) and the serial console, where a dying kernel
//! speaks last, come to us over socket pairs that QEMU inherits. Everything that arrives waits in one queue
//! until [`Guest::poll`] looks at it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::child::Owned;
use crate::image::cpio::Cpio;
use crate::image::kernel::Kernel;
use crate::kmsg;
use crate::prefix::Prefix;
use crate::qemu::Qemu;
use crate::topology::Host;

/// Set to `kvm` to use hardware virtualisation instead of emulation.
pub const ACCELERATOR_VARIABLE: &str = "HCA_VM_ACCEL";
const STAGE1: &str = include_str!("../guest/stage1.sh");
const INIT: &str = include_str!("../guest/init.sh");
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check mitigations=off nokaslr \
                                random.trust_cpu=on net.ifnames=0 log_buf_len=1M";
const END_OF_JOB: &str = "hca-vm: end of job";

/// Everything that does not differ between the guests of a run.
pub struct Machine {
    /// QEMU to run.
    pub qemu: Qemu,
    /// Programs for the initramfs.
    pub tools: Prefix,
    /// User space image.
    pub rootfs: PathBuf,
    /// Kernel.
    pub kernel: Kernel,
}

/// What a guest is to do.
#[derive(Clone, Debug)]
pub enum Task {
    /// Boot and wait.
    Wait,
    /// Run a shell script.
    Job(String),
    /// Give an interactive shell, for a terminal of this type and size.
    Shell {
        /// Value for `TERM`.
        term: String,
        /// Rows of the terminal.
        rows: u16,
        /// Columns of the terminal.
        columns: u16,
    },
}

/// The side network's part of a guest.
#[derive(Clone, Debug)]
pub struct SideLink {
    /// Address with prefix length.
    pub address: String,
    /// Hardware address.
    pub mac: String,
    /// Socket this guest's QEMU receives on.
    pub local: PathBuf,
    /// Socket of the hub.
    pub hub: PathBuf,
}

/// How one guest boots.
pub struct Boot<'a> {
    /// Its machine, as the topology says.
    pub host: &'a Host,
    /// What it does.
    pub task: Task,
    /// Load the mlx5 drivers before the task.
    pub modprobe: bool,
    /// Files to put in it.
    pub copies: &'a [Copy],
    /// Where the server's sockets are.
    pub run_dir: &'a Path,
    /// Where logs go.
    pub log_dir: &'a Path,
    /// Lines for `/etc/hosts`.
    pub hosts_file: &'a str,
    /// Side network.
    pub side: Option<SideLink>,
}

/// A file for the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// File or folder here.
    pub from: PathBuf,
    /// Absolute path there.
    pub to: String,
}

impl Copy {
    /// Parses `FILE[:GUESTPATH]`; without a guest path the file goes to root's home, where jobs start.
    pub fn parse(text: &str) -> Result<Self> {
        let (from, to) = match text.rsplit_once(':') {
            Some((from, to)) if !Path::new(text).exists() => (from, Some(to)),
            _ => (text, None),
        };
        let from = PathBuf::from(from);
        if !from.exists() {
            bail!("--copy {text}: no file {}", from.display());
        }
        let name = from
            .canonicalize()?
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let to = match to {
            None | Some("") => format!("/root/{name}"),
            Some(to) if to.ends_with('/') => format!("{to}{name}"),
            Some(to) => to.to_owned(),
        };
        if !to.starts_with('/') || to.split('/').any(|part| part == "..") {
            bail!("--copy {text}: the path in the guest must be absolute and without '..'");
        }
        Ok(Self { from, to })
    }
}

enum Event {
    Output(Vec<u8>),
    Control(String),
    Kernel(String),
    Console(String),
    Closed,
}

/// How far a guest has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Not yet ready.
    Booting,
    /// Waits for [`Guest::go`].
    Ready,
    /// Does its task.
    Running,
    /// The job ended with this exit status.
    Done(i32),
    /// QEMU ended without the job having ended.
    Died,
}

/// A running guest. Dropping it ends it.
pub struct Guest {
    name: String,
    qemu: Owned,
    state: State,
    events: Receiver<Event>,
    open_channels: usize,
    control: UnixStream,
    job: UnixStream,
    partial: Vec<u8>,
    output: String,
    kernel: Vec<kmsg::Line>,
    console: Vec<String>,
    problems: Vec<String>,
    log_marker: bool,
    job_log: File,
    kernel_log: File,
    console_log: File,
    qemu_log: PathBuf,
}

impl Guest {
    /// Starts QEMU. The calling thread must live as long as the guest.
    pub fn boot(machine: &Machine, boot: &Boot<'_>) -> Result<Self> {
        let name = boot.host.name.clone();
        let initrd = boot.log_dir.join(format!(".{name}.initrd"));
        fs::write(&initrd, initramfs(machine, boot)?)?;
        let log = |kind: &str| boot.log_dir.join(format!("{}.{kind}", boot.host.name));

        let mut inherited: Vec<OwnedFd> = Vec::new();
        let mut channel = || -> Result<(UnixStream, i32)> {
            let (ours, theirs) = UnixStream::pair()?;
            let theirs = OwnedFd::from(theirs);
            let number = theirs.as_raw_fd();
            inherited.push(theirs);
            Ok((ours, number))
        };
        let (job, job_fd) = channel()?;
        let (control, control_fd) = channel()?;
        let (kernel, kernel_fd) = channel()?;
        let (console, console_fd) = channel()?;

        let mut command = machine.qemu.command()?;
        arguments(&mut command, machine, boot, &initrd);
        for (id, fd) in [
            ("job", job_fd),
            ("control", control_fd),
            ("kernel", kernel_fd),
            ("console", console_fd),
        ] {
            command
                .arg("-chardev")
                .arg(format!("socket,id={id},fd={fd}"));
        }
        command
            .args([
                "-serial",
                "chardev:console",
                "-device",
                "virtio-serial-pci,id=ports",
            ])
            .args(["-device", "virtconsole,bus=ports.0,nr=0,chardev=job"])
            .args([
                "-device",
                "virtserialport,bus=ports.0,nr=1,chardev=control,name=control",
            ])
            .args([
                "-device",
                "virtserialport,bus=ports.0,nr=2,chardev=kernel,name=kernel",
            ]);
        let qemu_log = log("qemu.log");
        command
            .stdin(Stdio::null())
            .stdout(File::create(&qemu_log)?)
            .stderr(File::options().append(true).open(&qemu_log)?);
        let qemu = Owned::spawn(&mut command, &inherited)
            .with_context(|| format!("cannot start QEMU for host {name}"))?;
        // Ours must be the only open ends, or the end of QEMU would go unnoticed.
        drop(inherited);

        let (sender, events) = mpsc::channel();
        read_bytes(job.try_clone()?, sender.clone());
        read_lines(control.try_clone()?, sender.clone(), Event::Control);
        read_lines(kernel, sender.clone(), Event::Kernel);
        read_lines(console, sender, Event::Console);
        Ok(Self {
            name,
            qemu,
            state: State::Booting,
            events,
            open_channels: 4,
            control,
            job,
            partial: Vec::new(),
            output: String::new(),
            kernel: Vec::new(),
            console: Vec::new(),
            problems: Vec::new(),
            log_marker: false,
            job_log: File::create(log("log"))?,
            kernel_log: File::create(log("kernel.log"))?,
            console_log: File::create(log("console.log"))?,
            qemu_log,
        })
    }

    /// Host name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How far it has come, as of the last [`Guest::poll`].
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What the job printed so far.
    pub fn output(&self) -> &str {
        &self.output
    }

    /// The kernel log so far.
    pub fn kernel_log(&self) -> &[kmsg::Line] {
        &self.kernel
    }

    /// Lines of the serial console that are not in the kernel log: firmware, and the last words of a dying kernel.
    pub fn console_log(&self) -> &[String] {
        &self.console
    }

    /// What went wrong inside before the job, such as a driver that didn't load.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// The stream to and from an interactive shell.
    pub fn terminal(&self) -> &UnixStream {
        &self.job
    }

    /// Takes in what has arrived; hands raw output and complete lines to the listeners.
    pub fn poll_raw(&mut self, mut on_bytes: impl FnMut(&[u8]), mut on_line: impl FnMut(&str)) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Output(bytes) => {
                    on_bytes(&bytes);
                    let _ = self.job_log.write_all(&bytes);
                    self.partial.extend_from_slice(&bytes);
                    while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                        let line: Vec<u8> = self.partial.drain(..=end).collect();
                        self.take_line(&line, &mut on_line);
                    }
                }
                Event::Control(line) => self.take_control(&line, &mut on_line),
                Event::Kernel(record) => self.take_kernel(&record),
                Event::Console(line) => {
                    let _ = writeln!(self.console_log, "{line}");
                    self.console.push(line);
                }
                Event::Closed => self.open_channels = self.open_channels.saturating_sub(1),
            }
        }
        if self.open_channels == 0 {
            self.flush_partial(&mut on_line);
            if !matches!(self.state, State::Done(_)) {
                self.state = State::Died;
            }
        }
    }

    /// Takes in what has arrived; hands each complete line of output to the listener.
    pub fn poll(&mut self, on_line: impl FnMut(&str)) {
        self.poll_raw(|_| {}, on_line);
    }

    /// Polls until `condition` holds. Fails after `limit`, or when the guest dies first.
    pub fn wait_until(&mut self, limit: Duration, condition: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            self.poll(|_| {});
            if condition(self) {
                return Ok(());
            }
            if self.state == State::Died {
                bail!("guest {} died:\n{}", self.name, self.last_words());
            }
            if Instant::now() >= deadline {
                bail!(
                    "guest {} did not get there within {limit:?}; its output so far:\n{}",
                    self.name,
                    self.output
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Lets a ready guest begin its task.
    pub fn go(&mut self) {
        if self.state == State::Ready {
            self.state = State::Running;
            self.say("go");
        }
    }

    /// Has everything the kernel logged up to the end of the job arrived?
    pub fn log_is_complete(&self) -> bool {
        self.log_marker || self.open_channels == 0
    }

    /// Has QEMU ended, and everything it had to say arrived?
    pub fn is_off(&self) -> bool {
        self.open_channels == 0
    }

    /// Asks the guest to power off.
    pub fn power_off(&mut self) {
        self.say("off");
    }

    /// Ends QEMU at once, as if the power failed.
    pub fn kill(&mut self) {
        self.qemu.kill();
    }

    /// The end of what QEMU and the console said: for errors.
    pub fn last_words(&self) -> String {
        let mut text = fs::read_to_string(&self.qemu_log).unwrap_or_default();
        let tail = self.console.len().saturating_sub(30);
        for line in self.console.iter().skip(tail) {
            text.push_str(line);
            text.push('\n');
        }
        if text.trim().is_empty() {
            text = "(neither QEMU nor the guest's console said anything)".to_owned();
        }
        text
    }

    fn say(&mut self, word: &str) {
        // A guest that is gone doesn't listen; poll() notices that it is.
        let _ = writeln!(self.control, "{word}");
    }

    fn take_line(&mut self, bytes: &[u8], on_line: &mut impl FnMut(&str)) {
        let line = String::from_utf8_lossy(bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        self.output.push_str(line);
        self.output.push('\n');
        on_line(line);
    }

    fn flush_partial(&mut self, on_line: &mut impl FnMut(&str)) {
        if !self.partial.is_empty() {
            let line = std::mem::take(&mut self.partial);
            self.take_line(&line, on_line);
        }
    }

    fn take_control(&mut self, line: &str, on_line: &mut impl FnMut(&str)) {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("ready", _) => self.state = State::Ready,
            ("exit", status) => {
                // What the job printed last may still be on its way; it is flushed as a line at the latest here
                // or when the channel closes.
                self.flush_partial(on_line);
                self.state = State::Done(status.trim().parse().unwrap_or(255));
            }
            ("problem", text) => {
                on_line(&format!("hca-vm: {text}"));
                self.problems.push(text.to_owned());
            }
            _ => self
                .problems
                .push(format!("unexpected control line '{line}'")),
        }
    }

    fn take_kernel(&mut self, record: &str) {
        let Some(line) = kmsg::parse(record) else {
            return;
        };
        // A reader that was overrun starts over.
        if self
            .kernel
            .last()
            .is_some_and(|last| last.sequence >= line.sequence)
        {
            return;
        }
        if line.text == END_OF_JOB {
            self.log_marker = true;
            return;
        }
        let _ = writeln!(self.kernel_log, "{line}");
        self.kernel.push(line);
    }
}

fn read_bytes(mut stream: UnixStream, sender: Sender<Event>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16384];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if sender
                .send(Event::Output(
                    buffer.get(..count).unwrap_or_default().to_vec(),
                ))
                .is_err()
            {
                return;
            }
        }
        let _ = sender.send(Event::Closed);
    });
}

fn read_lines(
    stream: UnixStream,
    sender: Sender<Event>,
    wrap: impl Fn(String) -> Event + Send + 'static,
) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while let Ok(1..) = reader.read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line)
                .trim_end_matches(['\n', '\r'])
                .to_owned();
            line.clear();
            if sender.send(wrap(text)).is_err() {
                return;
            }
        }
        let _ = sender.send(Event::Closed);
    });
}

/// Emulation unless told otherwise: it works everywhere, and /dev/kvm may be there and fail half-way through a boot.
fn accelerator() -> &'static str {
    match std::env::var(ACCELERATOR_VARIABLE).as_deref() {
        Ok("kvm") => "kvm",
        _ => "tcg,thread=multi",
    }
}

fn arguments(command: &mut Command, machine: &Machine, boot: &Boot<'_>, initrd: &Path) {
    let host = boot.host;
    command
        .args(["-name", &host.name, "-accel", accelerator()])
        .args(["-cpu", "qemu64", "-smp", &host.cpus.to_string()])
        // The server maps the guest's memory: it must be shared.
        .args([
            "-object",
            &format!(
                "memory-backend-memfd,id=ram,size={},share=on",
                host.memory_bytes
            ),
        ])
        .args([
            "-machine",
            "q35,memory-backend=ram",
            "-m",
            &format!("{}B", host.memory_bytes),
        ])
        .args(["-display", "none", "-nodefaults", "-no-reboot"])
        .arg("-kernel")
        .arg(&machine.kernel.vmlinux)
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", KERNEL_ARGUMENTS]);
    for (id, image) in [
        ("root", &machine.rootfs),
        ("modules", &machine.kernel.modules),
    ] {
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
            .args([
                "-device",
                &format!("pcie-root-port,id=port{number},chassis={number},slot={number}"),
            ])
            .args(["-device", &socket.to_string()]);
    }
    if let Some(side) = &boot.side {
        let link = serde_json::json!({
            "type": "dgram", "id": "side",
            "local": {"type": "unix", "path": side.local},
            "remote": {"type": "unix", "path": side.hub},
        });
        command.args(["-netdev", &link.to_string()]).args([
            "-device",
            &format!("virtio-net-pci,netdev=side,mac={},romfile=", side.mac),
        ]);
    }
}

/// The initramfs of one guest: what brings up its root file system, its task, and the files copied in.
fn initramfs(machine: &Machine, boot: &Boot<'_>) -> Result<Vec<u8>> {
    let mut archive = Cpio::new();
    for folder in ["dev", "proc", "sys", "lower", "rw", "new", "modules"] {
        archive.directory(folder)?;
    }
    let busybox = ["usr/bin/busybox", "bin/busybox"]
        .iter()
        .map(|path| machine.tools.root().join(path))
        .find(|path| path.is_file())
        .context("no busybox among the tools")?;
    let busybox = fs::read(busybox)?;
    archive.file("bin/busybox", 0o755, &busybox)?;
    archive.file("init", 0o755, STAGE1.as_bytes())?;
    for module in &machine.kernel.early {
        let name = module
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        archive.file(&format!("modules/{name}"), 0o644, &fs::read(module)?)?;
    }
    archive.file("hca/busybox", 0o755, &busybox)?;
    archive.file("hca/init", 0o755, INIT.as_bytes())?;
    archive.file("hca/env", 0o644, environment(boot).as_bytes())?;
    archive.file("hca/hosts", 0o644, boot.hosts_file.as_bytes())?;
    if let Task::Job(script) = &boot.task {
        archive.file("hca/job", 0o644, format!("{script}\n").as_bytes())?;
    }
    for copy in boot.copies {
        add_copy(&mut archive, &copy.from, &format!("copy{}", copy.to))
            .with_context(|| format!("cannot copy {} into the guest", copy.from.display()))?;
    }
    archive.finish()
}

fn add_copy(archive: &mut Cpio, from: &Path, to: &str) -> Result<()> {
    let meta = fs::metadata(from)?;
    if !meta.is_dir() {
        return archive.file(to, meta.permissions().mode(), &fs::read(from)?);
    }
    archive.directory(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = format!("{to}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_symlink() {
            archive.link(&to, &fs::read_link(entry.path())?.to_string_lossy())?;
        } else {
            add_copy(archive, &entry.path(), &to)?;
        }
    }
    Ok(())
}

fn environment(boot: &Boot<'_>) -> String {
    let mut text = format!("HCA_HOST={}\n", quote(&boot.host.name));
    let mut set = |name: &str, value: &str| text.push_str(&format!("{name}={}\n", quote(value)));
    if boot.modprobe {
        set("HCA_MODPROBE", "1");
    }
    if let Some(side) = &boot.side {
        set("HCA_ADDRESS", &side.address);
        set("HCA_MAC", &side.mac);
    }
    match &boot.task {
        Task::Wait => set("HCA_MODE", "wait"),
        Task::Job(_) => set("HCA_MODE", "job"),
        Task::Shell {
            term,
            rows,
            columns,
        } => {
            set("HCA_MODE", "shell");
            set("HCA_TERM", term);
            set("HCA_ROWS", &rows.to_string());
            set("HCA_COLUMNS", &columns.to_string());
        }
    }
    text
}

/// Quotes a word for the shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting() {
        assert_eq!(quote("a b'c"), "'a b'\\''c'");
    }

    #[test]
    fn copies() {
        let here = Copy::parse("Cargo.toml").unwrap();
        assert_eq!(here.to, "/root/Cargo.toml");
        assert_eq!(
            Copy::parse("Cargo.toml:/opt/").unwrap().to,
            "/opt/Cargo.toml"
        );
        assert_eq!(Copy::parse("Cargo.toml:/opt/x").unwrap().to, "/opt/x");
        assert!(Copy::parse("Cargo.toml:relative").is_err());
        assert!(Copy::parse("Cargo.toml:/a/../b").is_err());
        assert!(Copy::parse("no such file").is_err());
    }
}
