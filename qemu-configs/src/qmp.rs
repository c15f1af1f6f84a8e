//! Asks a running QEMU things, by its machine protocol (QMP): a JSON object a line, each way.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A connection to QEMU's monitor.
pub struct Qmp {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Qmp {
    /// Waits until QEMU greets on the stream.
    ///
    /// # Errors
    /// It ended before, or says something else.
    pub fn new(stream: UnixStream) -> Result<Self> {
        let lines = BufReader::new(stream.try_clone()?);
        let mut qmp = Self { stream, lines };
        let greeting = qmp.line()?;
        anyhow::ensure!(greeting.get("QMP").is_some(), "QEMU does not greet, but says {greeting}");
        qmp.ask("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Has QEMU execute a command, and returns what it answers.
    ///
    /// # Errors
    /// It refuses, with its reason, or has ended.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        writeln!(self.stream, "{}", json!({ "execute": command, "arguments": arguments }))
            .context("QEMU has ended")?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                let reason = error.get("desc").and_then(Value::as_str).unwrap_or("no reason");
                bail!("QEMU refuses {command}: {reason}");
            }
            // Others are events.
            if let Some(answer) = answer.get_mut("return") {
                return Ok(answer.take());
            }
        }
    }

    /// Has the monitor for people execute a line, and returns what it prints.
    ///
    /// # Errors
    /// QEMU has ended.
    pub fn human(&mut self, line: &str) -> Result<String> {
        let printed = self.ask("human-monitor-command", json!({ "command-line": line }))?;
        Ok(printed.as_str().unwrap_or_default().to_owned())
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            bail!("QEMU has ended");
        }
        serde_json::from_str(&line).context("QEMU does not speak JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A QEMU that says that, whatever it is asked.
    fn says(text: &str) -> Result<Qmp> {
        let (ours, mut theirs) = UnixStream::pair()?;
        theirs.write_all(text.as_bytes())?;
        theirs.shutdown(std::net::Shutdown::Write)?;
        // What is asked has to have a reader.
        std::thread::spawn(move || std::io::copy(&mut theirs, &mut std::io::sink()));
        Qmp::new(ours)
    }

    #[test]
    fn answers_and_events() {
        let greeting = "{\"QMP\":{}}\n{\"return\":{}}\n";
        let mut qmp = says(&format!(
            "{greeting}{{\"event\":\"STOP\"}}\n{{\"return\":\"portw[0] = 1\"}}\n{{\"error\":{{\"desc\":\"no\"}}}}\n"
        ))
        .unwrap();
        assert_eq!(qmp.human("i /w 0").unwrap(), "portw[0] = 1");
        let refused = qmp.ask("device_del", json!({"id": "x"})).unwrap_err().to_string();
        assert_eq!(refused, "QEMU refuses device_del: no");
        assert!(qmp.ask("stop", json!({})).is_err(), "it has ended");
        assert!(says("{\"event\":\"STOP\"}\n").is_err() && says("hello\n").is_err() && says("").is_err());
    }
}
