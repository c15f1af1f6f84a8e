//! Lines of the log that others cause: so many of each source, and a count of what was left out.
//!
//! Whoever may cause a line may cause it as often as messages come. A host, a listener, and what a tunnel brings are
//! sources of their own, so that none hides what another's lines say.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock;

/// Lines of one source in a [`PERIOD`]: what a client does at its start and end, several times.
const LINES: u32 = 20;
/// A thousand sources together then have two thousand lines a second, about 200 KiB.
const PERIOD: Duration = Duration::from_secs(10);

/// Somebody who causes lines.
#[derive(Debug, Default)]
pub(crate) struct Source(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Source {
    /// Has `line` write its line, if there were not too many of this source.
    pub(crate) fn say(&self, line: impl FnOnce()) {
        self.say_at(Instant::now(), line);
    }

    fn say_at(&self, now: Instant, line: impl FnOnce()) {
        let left_out = {
            let mut state = lock(&self.0);
            let fresh = state.since.is_none_or(|since| now.saturating_duration_since(since) >= PERIOD);
            if fresh {
                (state.since, state.lines) = (Some(now), 0);
            }
            if state.lines >= LINES {
                state.left_out += 1;
                return;
            }
            state.lines += 1;
            std::mem::take(&mut state.left_out)
        };
        if left_out > 0 {
            tracing::warn!("{left_out} lines like the next one were left out");
        }
        line();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_so_many_lines_and_others_have_theirs() {
        let (noisy, other) = (Source::default(), Source::default());
        let start = Instant::now();
        let mut lines = 0;
        for _ in 0..10_000 {
            noisy.say_at(start, || lines += 1);
        }
        assert_eq!(lines, LINES);
        other.say_at(start, || lines += 1);
        assert_eq!(lines, LINES + 1);
        assert_eq!(lock(&noisy.0).left_out, u64::from(10_000 - LINES));
        noisy.say_at(start + PERIOD, || lines += 1);
        assert_eq!((lines, lock(&noisy.0).left_out), (LINES + 2, 0));
    }
}
