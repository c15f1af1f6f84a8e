//! Coverage out of a trace file.

use std::collections::HashMap;

use hca_model::HcaId;
use hca_model::Ps;
use hca_model::trace::Executed;
use serde_json::Value;

use super::Coverage;
use crate::lines::{Line, lines};
use crate::perfetto::{COMMAND, SLICE, unhex};

impl Coverage {
    /// What the drivers did that are in a trace file; its end may be missing.
    ///
    /// # Errors
    /// It is no trace.
    pub fn of_trace(text: &str) -> anyhow::Result<Self> {
        let mut coverage = Self::default();
        let mut adapters: HashMap<u64, String> = HashMap::new();
        for line in lines(text)? {
            let word = |name: &str| line.word(name);
            let Some(pid) = line.whole("pid") else { continue };
            if line.is("M", "process_name") {
                let name = line.arg("name").and_then(Value::as_str).unwrap_or_default();
                coverage.adapters.entry(name.to_owned()).or_default();
                adapters.insert(pid, name.to_owned());
                continue;
            }
            let Some(adapter) = adapters.get(&pid) else { continue };
            match (word("ph"), word("cat")) {
                (Some("i"), Some(COMMAND)) => coverage.command(adapter, &executed(&line)),
                (Some("X"), Some(SLICE)) => coverage.slice(adapter, &line),
                _ => {}
            }
        }
        Ok(coverage)
    }

    /// An event of the trace, by its name and fields.
    fn slice(&mut self, adapter: &str, line: &Line) {
        // What is begun at a time waits before its work: an event's own time is that of the begin.
        let at = line.ps("ts").saturating_sub(line.waited_ps());
        let number = |name: &str| line.arg(name).and_then(Value::as_u64).unwrap_or(0);
        let small = |name: &str| u8::try_from(number(name)).unwrap_or(u8::MAX);
        let word = |name: &str| line.arg(name).and_then(Value::as_str).unwrap_or("?");
        match line.word("name").unwrap_or_default() {
            "command" => self.begun(adapter, at, small("slot")),
            "command done" => self.answered(adapter, at, small("slot"), small("delivery")),
            "register" => {
                let offset = u32::try_from(number("offset")).unwrap_or(u32::MAX);
                self.register(adapter, at, offset, word("write") == "true");
            }
            "QP state" => self.transition(adapter, at, word("from"), word("to")),
            "start" => super::count(&mut self.of(adapter).0.opcodes, word("opcode").to_owned()),
            "done" if word("status") != "Ok" => self.error(adapter, format!("completion {}", word("status"))),
            "EQE" => self.event(adapter, at, small("kind").into()),
            "timeout" => self.error(adapter, "retry Timeout".into()),
            "retry" => self.error(adapter, format!("retry {}", word("why"))),
            "unwanted" => self.error(adapter, format!("packet {}", word("why"))),
            "dropped" => self.error(adapter, "packet Dropped".into()),
            "fault" => self.error(adapter, "fault on script".into()),
            "port state" => self.port(adapter, at, number("state")),
            other => self.happened(adapter, at, other),
        }
    }
}

/// A command of a trace file.
pub(crate) fn executed(line: &Line) -> Executed {
    let bytes = |name: &str| unhex(line.arg(name).and_then(Value::as_str).unwrap_or_default());
    let slot = line.arg("slot").and_then(Value::as_u64).and_then(|slot| u8::try_from(slot).ok());
    Executed {
        at: Ps(line.ps("ts")),
        // Whoever reads a file goes by names.
        hca: HcaId(0),
        slot: slot.unwrap_or(u8::MAX),
        input: bytes("input"),
        output: bytes("output"),
    }
}
