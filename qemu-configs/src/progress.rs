//! Progress on standard error: one line per step, rewritten in place on a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Says something on a line of its own.
pub fn note(text: &str) {
    eprintln!("hca-vm: {text}");
}

/// One step that takes a while.
pub struct Step {
    title: String,
    started: Instant,
    drawn: Option<Instant>,
    terminal: bool,
}

impl Step {
    /// Announces the step.
    pub fn start(title: impl Into<String>) -> Self {
        let step = Self {
            title: title.into(),
            started: Instant::now(),
            drawn: None,
            terminal: std::io::stderr().is_terminal(),
        };
        if step.terminal {
            eprint!("\r\x1b[Khca-vm: {} ...", step.title);
        } else {
            eprintln!("hca-vm: {} ...", step.title);
        }
        step
    }

    /// Shows how far it is; without a terminal only every ten seconds.
    pub fn at(&mut self, done: usize, total: usize, detail: &str) {
        let pause = if self.terminal { Duration::from_millis(100) } else { Duration::from_secs(10) };
        if self.drawn.unwrap_or(self.started).elapsed() < pause {
            return;
        }
        self.drawn = Some(Instant::now());
        if self.terminal {
            let detail: String = detail.chars().take(40).collect();
            eprint!("\r\x1b[Khca-vm: {} ... {done}/{total} {detail}", self.title);
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("hca-vm: {} ... {done}/{total} {detail}", self.title);
        }
    }

    /// Ends the step with the time it took.
    pub fn done(self) {
        let seconds = self.started.elapsed().as_secs_f32();
        if self.terminal {
            eprintln!("\r\x1b[Khca-vm: {} - done in {seconds:.1} s", self.title);
        } else {
            eprintln!("hca-vm: {} - done in {seconds:.1} s", self.title);
        }
    }
}
