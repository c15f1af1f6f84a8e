//! An interactive console in one host, while the topology's other hosts run beside it.

use std::io::{IsTerminal, Read, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

use crate::guest::{Guest, State, Task};
use crate::lab::{Lab, Options};
use crate::progress;
use crate::signals;

const POLL: Duration = Duration::from_millis(5);
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

/// Opens a shell in `host`; returns its exit status.
pub fn open(options: Options, host: &str) -> Result<i32> {
    let lab = Lab::start(options, &[host])?;
    let names: Vec<String> = lab.topology().hosts.iter().map(|host| host.name.clone()).collect();
    signals::expect_orderly_end();
    let mut others = Vec::new();
    for name in names.iter().filter(|name| *name != host) {
        others.push(lab.boot(name, Task::Wait)?);
    }
    let (rows, columns) = terminal_size();
    let term = std::env::var("TERM").unwrap_or_else(|_| "dumb".to_owned());
    let mut guest = lab.boot(host, Task::Shell { term, rows, columns })?;
    progress::note(&format!("booting {} (leave the shell with 'exit' or Ctrl-D)", names.join(", ")));
    wait_for_all(&mut guest, &mut others)?;
    others.iter_mut().for_each(Guest::go);
    guest.go();
    let status = {
        let _raw = RawTerminal::enter()?;
        converse(&mut guest, &mut others)?
    };
    Ok(status)
}

fn wait_for_all(guest: &mut Guest, others: &mut [Guest]) -> Result<()> {
    loop {
        let mut ready = true;
        for one in others.iter_mut().chain([&mut *guest]) {
            one.poll(progress::note);
            match one.state() {
                State::Booting => ready = false,
                State::Died => bail!("guest {} died while booting:\n{}", one.name(), one.last_words()),
                _ => {}
            }
        }
        if ready {
            return Ok(());
        }
        if signals::interrupted() {
            bail!("interrupted");
        }
        std::thread::sleep(POLL);
    }
}

/// Passes bytes both ways until the shell ends.
fn converse(guest: &mut Guest, others: &mut [Guest]) -> Result<i32> {
    let mut to_guest = guest.terminal().try_clone()?;
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = std::io::stdin().read(&mut buffer) {
            if to_guest.write_all(buffer.get(..count).unwrap_or_default()).is_err() {
                return;
            }
        }
        // Ctrl-D of a terminal: what piped input ends with.
        let _ = to_guest.write_all(b"\n\x04");
    });
    loop {
        let mut broken = false;
        guest.poll_raw(
            |bytes| {
                let mut out = std::io::stdout().lock();
                broken |= out.write_all(bytes).and_then(|()| out.flush()).is_err();
            },
            |_| {},
        );
        for other in others.iter_mut() {
            other.poll(|_| {});
        }
        match guest.state() {
            State::Done(status) => return Ok(*status),
            State::Died => bail!("guest {} died:\n{}", guest.name(), guest.last_words()),
            _ => {}
        }
        if broken || signals::interrupted() {
            bail!("interrupted");
        }
        std::thread::sleep(POLL);
    }
}

/// The terminal in raw mode, so that Ctrl-C and the arrow keys reach the guest; put back when dropped.
struct RawTerminal(Option<Termios>);

impl RawTerminal {
    fn enter() -> Result<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(Self(None));
        }
        let before = tcgetattr(&stdin).context("cannot read the terminal's settings")?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&stdin, SetArg::TCSANOW, &raw).context("cannot set the terminal to raw mode")?;
        Ok(Self(Some(before)))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, before);
        }
    }
}

/// Rows and columns of our terminal, as stty(1) reports them.
fn terminal_size() -> (u16, u16) {
    if !std::io::stdin().is_terminal() {
        return (ROWS, COLUMNS);
    }
    std::process::Command::new("stty")
        .arg("size")
        .stdin(std::process::Stdio::inherit())
        .output()
        .ok()
        .and_then(|output| parse_size(&String::from_utf8_lossy(&output.stdout)))
        .unwrap_or((ROWS, COLUMNS))
}

fn parse_size(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (rows, columns) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (rows > 0 && columns > 0).then_some((rows, columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("50 132\n"), Some((50, 132)));
        assert_eq!(parse_size("0 0"), None);
        assert_eq!(parse_size("stty: error"), None);
    }
}
