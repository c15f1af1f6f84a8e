//! The guest's kernel log: parsing `/dev/kmsg`, and deciding whether a run may pass with it.
//!
//! Record format: Linux `Documentation/ABI/testing/dev-kmsg`.

use regex::Regex;
use std::fmt;
use std::sync::OnceLock;

/// One kernel message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Severity, 0 (emergency) to 7 (debug); `None` for text seen on the serial console only.
    pub level: Option<u8>,
    /// Sequence number of the record.
    pub sequence: u64,
    /// Microseconds since boot.
    pub time_us: u64,
    /// The message.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Some(_) => {
                write!(f, "[{:5}.{:06}] {}", self.time_us / 1_000_000, self.time_us % 1_000_000, self.text)
            }
            None => f.write_str(&self.text),
        }
    }
}

/// Parses `priority,sequence,microseconds,flags;text`. Returns `None` for continuation lines (leading space).
pub fn parse(record: &str) -> Option<Line> {
    let (header, text) = record.split_once(';')?;
    let mut fields = header.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    Some(Line {
        level: Some((priority & 7) as u8),
        sequence: fields.next()?.parse().ok()?,
        time_us: fields.next()?.parse().ok()?,
        text: text.to_owned(),
    })
}

/// Severity "error" of syslog; smaller is worse.
const ERROR: u8 = 3;
const CUT_HERE: &str = "[ cut here ]";
const END_TRACE: &str = "[ end trace";

fn alarming() -> &'static Regex {
    static REGEX: OnceLock<Regex> = OnceLock::new();
    REGEX.get_or_init(|| {
        Regex::new(
            r"\bBUG\b|\bOops\b|\bWARNING\b|Call Trace:|Kernel panic|general protection fault|blocked for more than \d+ seconds|soft lockup|UBSAN:|refcount_t:",
        )
        .expect("a valid constant expression")
    })
}

/// Whether this is of a program that got a signal, as `traps: sh[7] general protection fault ip:... in libc.so`: no matter of the kernel's, no
/// more than the `segfault at` of others. The program's status tells.
fn is_of_a_program(text: &str) -> bool {
    static REGEX: OnceLock<Regex> = OnceLock::new();
    let regex =
        REGEX.get_or_init(|| Regex::new(r"^traps: .+\[\d+\] .* ip:").expect("a valid constant expression"));
    regex.is_match(text)
}

/// Whether a kernel that says this has crashed. It may go on, or say no more.
pub fn is_crash(text: &str) -> bool {
    static REGEX: OnceLock<Regex> = OnceLock::new();
    let regex = REGEX.get_or_init(|| {
        Regex::new(r"\bBUG: |\bOops\b|Kernel panic|general protection fault|soft lockup|hard LOCKUP")
            .expect("a valid constant expression")
    });
    regex.is_match(text) && !is_of_a_program(text)
}

/// The lines that fail a run: `BUG`, `Oops`, `WARNING`, traces, panics, hung tasks, and errors of the mlx5 drivers.
///
/// A line that matches one of `allowed` is not counted; where it lies within a `cut here` block, neither is the
/// rest of the block.
pub fn bad_lines(lines: &[Line], allowed: &[Regex]) -> Vec<Line> {
    let is_allowed = |line: &Line| allowed.iter().any(|regex| regex.is_match(&line.text));
    let mut bad = Vec::new();
    let mut rest = lines;
    while let Some((line, tail)) = rest.split_first() {
        let block = if line.text.contains(CUT_HERE) {
            tail.iter().position(|line| line.text.contains(END_TRACE)).map_or(rest.len(), |end| end + 2)
        } else {
            1
        };
        let (block, after) = rest.split_at(block.min(rest.len()));
        rest = after;
        if !block.iter().any(is_allowed) {
            bad.extend(block.iter().filter(|line| is_bad(line)).cloned());
        }
    }
    bad
}

fn is_bad(line: &Line) -> bool {
    alarming().is_match(&line.text) && !is_of_a_program(&line.text)
        || (line.text.contains("mlx5") && line.level.is_some_and(|level| level <= ERROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(level: u8, text: &str) -> Line {
        Line { level: Some(level), sequence: 0, time_us: 1_500_000, text: text.to_owned() }
    }

    #[test]
    fn records() {
        let parsed = parse("30,339,5140900,-;mlx5_core 0000:01:00.0: firmware version; 12.28").unwrap();
        assert_eq!((parsed.level, parsed.sequence), (Some(6), 339));
        assert_eq!(parsed.to_string(), "[    5.140900] mlx5_core 0000:01:00.0: firmware version; 12.28");
        assert_eq!(parse(" SUBSYSTEM=pci"), None);
        assert_eq!(parse("x,1,2,-;t"), None);
    }

    #[test]
    fn verdicts() {
        let bad = |level, text: &str| !bad_lines(&[line(level, text)], &[]).is_empty();
        assert!(bad(4, "WARNING: CPU: 0 PID: 12 at drivers/x.c:3"));
        assert!(bad(0, "BUG: kernel NULL pointer dereference"));
        assert!(bad(3, "INFO: task modprobe:9 blocked for more than 120 seconds."));
        assert!(bad(3, "mlx5_core 0000:01:00.0: mlx5_cmd_out_err: QUERY_X failed"));
        assert!(!bad(6, "mlx5_core 0000:01:00.0: firmware version: 12.28.2006"));
        assert!(!bad(3, "pcieport: some error of somebody else"));
        assert!(!bad(6, "debugfs: BUGS is not a word to fear"));
        let program = "traps: ib_write_bw[1002] general protection fault ip:7fc1e5c186df sp:7ffebcce91b0 error:0 in librdmacm.so.1";
        assert!(!bad(6, program) && !is_crash(program));
        assert!(bad(4, "traps: PANIC: double fault, general protection fault: 0000 [#1]"));
    }

    #[test]
    fn crashes() {
        let fault = "general protection fault, probably for non-canonical address 0xac25: 0000 [#1] PREEMPT SMP NOPTI";
        assert!(is_crash(fault));
        assert!(is_crash("BUG: kernel NULL pointer dereference, address: 0000000000000000"));
        assert!(is_crash("Kernel panic - not syncing: sysrq triggered crash"));
        assert!(
            !is_crash("WARNING: CPU: 0 PID: 12 at drivers/x.c:3") && !is_crash("BUGS is no word to fear")
        );
    }

    #[test]
    fn allowing_one_line_allows_its_block() {
        let log = [
            line(4, "------------[ cut here ]------------"),
            line(4, "WARNING: CPU: 0 at drivers/known.c:1"),
            line(4, "Call Trace:"),
            line(4, "---[ end trace 0000 ]---"),
            line(4, "WARNING: CPU: 0 at drivers/other.c:1"),
        ];
        assert_eq!(bad_lines(&log, &[]).len(), 3);
        let left = bad_lines(&log, &[Regex::new("known").unwrap()]);
        assert_eq!(left.len(), 1);
        assert!(left[0].text.contains("other"));
    }
}
