//! How an Ethernet switch queues: its memory, what it loses, whom it asks to wait, what it marks.

use std::ops::Range;

use hca_model::{PriorityQueue, Queueing, Red};
use toml::Spanned;

use super::PortKind;
use super::check::{Checked, Source, parse_size};
use super::raw::{RawPriority, RawSwitch};

/// Least memory of a switch: a few frames for each port.
const MIN_BUFFER: u64 = 64 << 10;
/// Most memory of a switch.
const MAX_BUFFER: u64 = 1 << 30;
/// Largest part of the free memory: shares beyond make no difference.
const MAX_ALPHA: f64 = 64.0;

/// The first key of a switch that only one of Ethernet has.
fn first(raw: &RawSwitch) -> Option<(&'static str, Range<usize>)> {
    let named = [
        raw.buffer.as_ref().map(|key| ("switch.buffer", key.span())),
        raw.pause.as_ref().map(|key| ("switch.pause", key.span())),
        raw.trust.as_ref().map(|key| ("switch.trust", key.span())),
        raw.headroom.as_ref().map(|key| ("switch.headroom", key.span())),
        raw.priority.first().map(|key| ("switch.priority", key.span())),
    ];
    named.into_iter().flatten().next()
}

impl Source<'_> {
    /// Checks how a switch of that kind queues.
    pub(super) fn queueing(&self, raw: &RawSwitch, kind: PortKind) -> Checked<Queueing> {
        let mut how = Queueing::default();
        if let (PortKind::InfiniBand, Some((key, at))) = (kind, first(raw)) {
            return Err(self.error(
                at,
                key,
                "is for switches of type = \"eth\": those of InfiniBand have credits",
            ));
        }
        if let Some(text) = &raw.buffer {
            how.buffer = self.bytes("switch.buffer", text, MIN_BUFFER..=MAX_BUFFER)?;
        }
        if let Some(text) = &raw.headroom {
            how.headroom = Some(self.bytes("switch.headroom", text, 0..=MAX_BUFFER)?);
        }
        how.pause = raw.pause.as_ref().is_some_and(|pause| *pause.get_ref());
        how.by_dscp = match raw.trust.as_ref().map(|text| text.get_ref().as_str()) {
            None | Some("pcp") => false,
            Some("dscp") => true,
            Some(other) => {
                let at = raw.trust.as_ref().map_or(0..0, Spanned::span);
                let reason = format!("{other:?} is neither \"pcp\" (the tag) nor \"dscp\"");
                return Err(self.error(at, "switch.trust", reason));
            }
        };
        let mut named = 0u8;
        for raw in &raw.priority {
            let raw = raw.get_ref();
            let (at, number) = (raw.number.span(), *raw.number.get_ref());
            let Some(place) = how.priorities.get_mut(usize::from(number)) else {
                return Err(self.error(at, "switch.priority.number", "must be 0 to 7"));
            };
            if named >> number & 1 == 1 {
                let reason = format!("priority {number} is described twice");
                return Err(self.error(at, "switch.priority.number", reason));
            }
            named |= 1 << number;
            *place = self.priority(raw, how.pause)?;
        }
        Ok(how)
    }

    fn priority(&self, raw: &RawPriority, pause: bool) -> Checked<PriorityQueue> {
        let lossless = raw.lossless.as_ref().is_some_and(|key| *key.get_ref());
        if let Some(key) = raw.lossless.as_ref().filter(|_| lossless && pause) {
            let reason = "a switch with pause = true stops everything: PAUSE and PFC exclude each other";
            return Err(self.error(key.span(), "switch.priority.lossless", reason));
        }
        let usual = if lossless { PriorityQueue::LOSSLESS_ALPHA } else { PriorityQueue::LOSSY_ALPHA };
        let alpha = raw.alpha.as_ref().map_or(Ok(usual), |alpha| match *alpha.get_ref() {
            value if value > 0.0 && value <= MAX_ALPHA => Ok(value),
            _ => {
                let reason = format!("must be more than 0 and at most {MAX_ALPHA}");
                Err(self.error(alpha.span(), "switch.priority.alpha", reason))
            }
        })?;
        let weight = raw.weight.as_ref().map_or(Ok(None), |weight| match *weight.get_ref() {
            0 => Err(self.error(weight.span(), "switch.priority.weight", "must be 1 to 255")),
            value => Ok(Some(value)),
        })?;
        let ecn = match (&raw.kmin, &raw.kmax, &raw.pmax) {
            (None, None, None) => None,
            (Some(kmin), Some(kmax), pmax) => {
                let low = self.bytes("switch.priority.kmin", kmin, 0..=MAX_BUFFER)?;
                let high = self.bytes("switch.priority.kmax", kmax, 0..=MAX_BUFFER)?;
                if high < low {
                    return Err(self.error(kmax.span(), "switch.priority.kmax", "is less than kmin"));
                }
                let most = pmax.as_ref().map_or(1.0, |pmax| *pmax.get_ref());
                if !(0.0..=1.0).contains(&most) {
                    let at = pmax.as_ref().map_or(0..0, Spanned::span);
                    return Err(self.error(at, "switch.priority.pmax", "must be 0 to 1"));
                }
                Some(Red { kmin: low, kmax: high, pmax: most })
            }
            (kmin, kmax, pmax) => {
                let key = kmin.as_ref().map(Spanned::span).or(kmax.as_ref().map(Spanned::span));
                let at = key.or(pmax.as_ref().map(Spanned::span)).unwrap_or(0..0);
                let reason = "marking takes kmin and kmax, where it begins and where all are marked";
                return Err(self.error(at, "switch.priority.kmin", reason));
            }
        };
        Ok(PriorityQueue { alpha, lossless, ecn, weight })
    }

    fn bytes(
        &self,
        key: &str,
        text: &Spanned<String>,
        range: std::ops::RangeInclusive<u64>,
    ) -> Checked<usize> {
        let bytes = parse_size(text.get_ref()).filter(|bytes| range.contains(bytes));
        bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| {
            let reason = format!(
                "{:?} is not a size of {} to {} bytes such as \"400K\" or \"16M\"",
                text.get_ref(),
                range.start(),
                range.end()
            );
            self.error(text.span(), key, reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Topology;
    use super::*;

    fn switch(keys: &str) -> Result<Queueing, String> {
        let text = format!("[[host]]\nname = \"a\"\n[[host.hca]]\n[[switch]]\nname = \"sw\"\n{keys}\n");
        let parsed = Topology::parse("t.toml", &text).map_err(|error| error.to_string());
        parsed.map(|topology| topology.switches[0].queueing)
    }

    #[test]
    fn how_a_switch_queues() {
        assert_eq!(switch("type = \"eth\""), Ok(Queueing::default()));
        let how = switch(
            "type = \"eth\"\nbuffer = \"12M\"\ntrust = \"dscp\"\nheadroom = \"40K\"\n[[switch.priority]]\nnumber = 3\n\
             lossless = true\nkmin = \"100K\"\nkmax = \"400K\"\npmax = 0.2\n[[switch.priority]]\nnumber = 6\nweight = 7\nalpha = 2.0",
        )
        .expect("good keys");
        assert_eq!(
            (how.buffer, how.by_dscp, how.headroom, how.pause),
            (12 << 20, true, Some(40 << 10), false)
        );
        let ecn = Some(Red { kmin: 100 << 10, kmax: 400 << 10, pmax: 0.2 });
        assert_eq!(how.priorities[3], PriorityQueue { alpha: 0.125, lossless: true, ecn, weight: None });
        assert_eq!(
            how.priorities[6],
            PriorityQueue { alpha: 2.0, weight: Some(7), ..PriorityQueue::default() }
        );
    }

    #[test]
    fn refusals_name_the_key() {
        let eth = |keys: &str| format!("type = \"eth\"\n{keys}");
        for (keys, key, reason) in [
            ("buffer = \"1M\"".to_string(), "switch.buffer", "credits"),
            (eth("buffer = \"1K\""), "switch.buffer", "not a size of"),
            (eth("trust = \"tos\""), "switch.trust", "neither"),
            (eth("[[switch.priority]]\nnumber = 8"), "switch.priority.number", "0 to 7"),
            (
                eth("[[switch.priority]]\nnumber = 1\n[[switch.priority]]\nnumber = 1"),
                "switch.priority.number",
                "twice",
            ),
            (
                eth("pause = true\n[[switch.priority]]\nnumber = 1\nlossless = true"),
                "switch.priority.lossless",
                "exclude",
            ),
            (eth("[[switch.priority]]\nnumber = 1\nalpha = 0.0"), "switch.priority.alpha", "more than 0"),
            (eth("[[switch.priority]]\nnumber = 1\nweight = 0"), "switch.priority.weight", "1 to 255"),
            (
                eth("[[switch.priority]]\nnumber = 1\nkmin = \"1K\""),
                "switch.priority.kmin",
                "takes kmin and kmax",
            ),
            (
                eth("[[switch.priority]]\nnumber = 1\nkmin = \"2K\"\nkmax = \"1K\""),
                "switch.priority.kmax",
                "less",
            ),
            (
                eth("[[switch.priority]]\nnumber = 1\nkmin = \"1K\"\nkmax = \"2K\"\npmax = 1.5"),
                "switch.priority.pmax",
                "0 to 1",
            ),
            (eth("[[switch.priority]]\nnumber = 1\ncolour = 1"), "", "unknown field"),
        ] {
            let error = switch(&keys).expect_err(&keys);
            assert!(error.contains(key) && error.contains(reason), "{keys}: {error}");
        }
    }
}
