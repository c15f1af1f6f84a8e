//! One running guest: its QEMU process and the channels to it.
//!
//! Three virtio-serial ports (job output, control, kernel log) and the serial console, where a dying kernel
//! speaks last, come to us over socket pairs that QEMU inherits. Everything that arrives waits in one queue
//! until [`Guest::poll`] looks at it.

mod boot;
mod command;
mod counter;
mod initramfs;
mod network;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use boot::{Boot, Copy, Disk, Machine, SideLink, Task};
pub use command::KERNEL_ARGUMENTS_VARIABLE;
pub(crate) use command::kernel_arguments;
pub(crate) use initramfs::make as initramfs;
pub use network::{Device, Place, devices};

use crate::child::Owned;
use crate::kmsg;
use crate::private;
use crate::qemu;

/// Written to the kernel log by the guest's init when the job has ended.
const END_OF_JOB: &str = "hca-vm: end of job";
/// Written to the job's output by the guest's init: all that the job itself printed has arrived.
const END_OF_OUTPUT: &[u8] = b"\0hca-vm: end of output\n";

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
    /// To ask QEMU, until somebody has taken it.
    monitor: Option<UnixStream>,
    job: UnixStream,
    partial: Vec<u8>,
    output: String,
    kernel: Vec<kmsg::Line>,
    console: Vec<String>,
    problems: Vec<String>,
    log_marker: bool,
    output_marker: bool,
    exit: Option<i32>,
    off_asked: bool,
    crashed: bool,
    /// When something came from it last.
    heard: Instant,
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
        fs::write(&initrd, initramfs::make(machine, boot)?)?;
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
        let (monitor, monitor_fd) = channel()?;

        if let Some(side) = &boot.side {
            // Left by an earlier guest of this host.
            let _ = fs::remove_file(&side.local);
        }
        let mut command = machine.qemu.command()?;
        command::arguments(&mut command, machine, boot, &initrd);
        for (id, fd) in [
            ("job", job_fd),
            ("control", control_fd),
            ("kernel", kernel_fd),
            ("console", console_fd),
            ("monitor", monitor_fd),
        ] {
            command.arg("-chardev").arg(format!("socket,id={id},fd={fd}"));
        }
        command
            .args(["-serial", "chardev:console", "-device", "virtio-serial-pci,id=ports"])
            .args(["-device", "virtconsole,bus=ports.0,nr=0,chardev=job"])
            .args(["-device", "virtserialport,bus=ports.0,nr=1,chardev=control,name=control"])
            .args(["-device", "virtserialport,bus=ports.0,nr=2,chardev=kernel,name=kernel"]);
        command.args(["-qmp", "chardev:monitor"]);
        command.args(&boot.qemu);
        fs::write(log("qemu.sh"), qemu::script(&command))?;
        let qemu_log = log("qemu.log");
        command
            .stdin(Stdio::null())
            .stdout(private::create(&qemu_log)?)
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
            monitor: Some(monitor),
            job,
            partial: Vec::new(),
            output: String::new(),
            kernel: Vec::new(),
            console: Vec::new(),
            problems: Vec::new(),
            log_marker: false,
            // A shell's output is not ours to write into.
            output_marker: matches!(boot.task, Task::Shell { .. }),
            exit: None,
            off_asked: false,
            crashed: false,
            heard: Instant::now(),
            job_log: private::create(&log("log"))?,
            kernel_log: private::create(&log("kernel.log"))?,
            console_log: private::create(&log("console.log"))?,
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

    /// Has its kernel crashed, and said nothing since for so long that no more is to be expected?
    pub fn is_hung(&self) -> bool {
        /// Longer than anything that a guest does without a word while it can.
        const SILENCE: Duration = Duration::from_secs(60);
        self.crashed && self.heard.elapsed() > SILENCE
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

    /// The stream to QEMU's monitor, once.
    pub(crate) fn take_monitor(&mut self) -> Option<UnixStream> {
        self.monitor.take()
    }

    /// Takes in what has arrived; hands raw output and complete lines to the listeners.
    pub fn poll_raw(&mut self, mut on_bytes: impl FnMut(&[u8]), mut on_line: impl FnMut(&str)) {
        while let Ok(event) = self.events.try_recv() {
            self.heard = Instant::now();
            match event {
                Event::Output(bytes) => {
                    on_bytes(&bytes);
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
                    self.crashed |= kmsg::is_crash(&line);
                    self.console.push(line);
                }
                Event::Closed => self.open_channels = self.open_channels.saturating_sub(1),
            }
        }
        if self.open_channels == 0 {
            self.flush_partial(&mut on_line);
        }
        self.state = match (self.exit, &self.state) {
            (Some(status), _) if self.output_marker || self.open_channels == 0 => State::Done(status),
            (None, _) if self.open_channels == 0 && !self.off_asked => State::Died,
            (_, state) => state.clone(),
        };
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
        self.off_asked = true;
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
        let bytes = match bytes.strip_suffix(END_OF_OUTPUT) {
            Some(before) => {
                self.output_marker = true;
                if before.is_empty() {
                    return;
                }
                before
            }
            None => bytes,
        };
        let line = String::from_utf8_lossy(bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        let _ = writeln!(self.job_log, "{line}");
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
                self.exit = Some(status.trim().parse().unwrap_or(255));
            }
            ("problem", text) => {
                on_line(&format!("hca-vm: {text}"));
                self.problems.push(text.to_owned());
            }
            _ => self.problems.push(format!("unexpected control line '{line}'")),
        }
    }

    fn take_kernel(&mut self, record: &str) {
        let Some(line) = kmsg::parse(record) else {
            return;
        };
        // A reader that was overrun starts over.
        if self.kernel.last().is_some_and(|last| last.sequence >= line.sequence) {
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
            if sender.send(Event::Output(buffer.get(..count).unwrap_or_default().to_vec())).is_err() {
                return;
            }
        }
        let _ = sender.send(Event::Closed);
    });
}

fn read_lines(stream: UnixStream, sender: Sender<Event>, wrap: impl Fn(String) -> Event + Send + 'static) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while let Ok(1..) = reader.read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
            line.clear();
            if sender.send(wrap(text)).is_err() {
                return;
            }
        }
        let _ = sender.send(Event::Closed);
    });
}
