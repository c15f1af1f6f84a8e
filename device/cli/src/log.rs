//! Messages to stderr that nobody waits for: a thread writes them, and what it can't keep up with is left out and counted.
//! The thread is started when it is told to; a server does that in its sandbox, so that the thread is in there, too.
//!
//! Stderr may be a pipe that nobody reads, or a terminal that is stopped. The engine must not stop with it.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use nix::sys::signal::SigSet;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait: what a server says at its start, many times over. A line has some 100 bytes.
const LINES: usize = 4096;
/// How long the end waits for lines to be written. Somebody who reads at all reads faster.
const PATIENCE: Duration = Duration::from_millis(500);

/// Where messages go.
#[derive(Clone)]
pub(crate) struct Log {
    lines: SyncSender<Vec<u8>>,
    left_out: Arc<AtomicU64>,
}

/// The end of the log: when it is dropped, lines that wait are written first, if that goes quickly.
pub(crate) struct End {
    written: Receiver<()>,
    stop: SyncSender<Vec<u8>>,
    /// What the thread will do, until it does.
    work: Option<Box<dyn FnOnce() + Send>>,
}

/// A log that writes to `out` as soon as [`End::begin`] is called.
pub(crate) fn prepare(out: impl Write + Send + 'static) -> (Log, End) {
    let (lines, waiting) = sync_channel(LINES);
    let (done, written) = sync_channel(1);
    let left_out = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&left_out);
    let work = Box::new(move || {
        // Signals are for the thread that serves: one that is not blocked here would end the process.
        let _ = SigSet::all().thread_block();
        write(out, &waiting, &count);
        let _ = done.send(());
    });
    (Log { lines: lines.clone(), left_out }, End { written, stop: lines, work: Some(work) })
}

impl End {
    /// Starts the thread that writes. The second time nothing happens.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        let Some(work) = self.work.take() else { return Ok(()) };
        std::thread::Builder::new().name("log".into()).spawn(work).map(drop)
    }
}

/// Writes lines until an empty one comes. An error of `out` loses the line and nothing else.
fn write(mut out: impl Write, waiting: &Receiver<Vec<u8>>, left_out: &AtomicU64) {
    while let Ok(line) = waiting.recv() {
        if line.is_empty() {
            return;
        }
        let _ = out.write_all(&line);
        let lost = left_out.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ = writeln!(out, "softhca: {lost} lines were left out: nobody read them in time");
        }
    }
}

/// A call is a line: that is how events are written.
impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !line.is_empty() && self.lines.try_send(line.to_vec()).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // Somebody may have said something before there was a reason to begin.
        if self.begin().is_ok() && self.stop.try_send(Vec::new()).is_ok() {
            let _ = self.written.recv_timeout(PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Writes nothing before it is told to.
    struct Stuck(Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_is_stuck_costs_lines_and_no_time() {
        let (go_on, wait): (Sender<()>, _) = channel();
        let text = Arc::new(Mutex::new(Vec::new()));
        let (log, mut end) = prepare(Stuck(wait, Arc::clone(&text)));
        end.begin().unwrap();
        // Returns although nothing is read.
        (0..3 * LINES).for_each(|i| log.make_writer().write_all(format!("line {i}\n").as_bytes()).unwrap());
        drop(go_on);
        while !String::from_utf8_lossy(&text.lock().unwrap()).contains("left out") {
            std::thread::yield_now();
        }
        drop(end);
        let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("line 0\n") && text.lines().count() <= LINES + 3, "{text}");
        assert!(!text.contains(&format!("line {}\n", 3 * LINES - 1)));
    }
    #[test]
    fn what_was_said_before_is_written() {
        let (go_on, wait) = channel();
        drop(go_on);
        let text = Arc::new(Mutex::new(Vec::new()));
        let (log, end) = prepare(Stuck(wait, Arc::clone(&text)));
        log.make_writer().write_all(b"early\n").unwrap();
        assert!(text.lock().unwrap().is_empty());
        drop(end);
        assert_eq!(*text.lock().unwrap(), b"early\n");
    }
}
