//! The numbers of a profile or of a host, and what each rests on: read from the file with its comments.

use crate::Error;
use crate::scenario::Scenario;
use crate::testbed;

/// A number of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Number {
    /// `section.key`, as `--set` names it.
    pub key: String,
    /// Its value, in the unit that its name says.
    pub value: f64,
    /// It counts something: it stays whole, and at least 1.
    pub whole: bool,
    /// The comment beside it.
    pub rests_on: String,
}

/// What is a setting of a slot or of a simulation, or has no part in what packets take.
const OTHERS: [&str; 7] = [
    "pcie.lanes",
    "pcie.lane_gt_per_s",
    "pcie.max_payload",
    "pcie.max_read_request",
    "port.link_training_ms",
    "fabric.agent_us",
    "fabric.agent_queue",
];
/// Sections without a part in what packets take.
const OTHER_SECTIONS: [&str; 2] = ["command", "clock"];

impl Number {
    /// The number times `factor`, rounded if it counts something.
    pub fn at(&self, factor: f64) -> f64 {
        let scaled = self.value * factor;
        if self.whole { scaled.round().max(1.0) } else { scaled }
    }

    /// The same as text; `None` if it is what it was.
    pub fn scaled(&self, factor: f64) -> Option<String> {
        let scaled = self.at(factor);
        (scaled != self.value).then(|| match self.whole {
            true => format!("{scaled:.0}"),
            // As precise as picoseconds.
            false => format!("{scaled:.4}"),
        })
    }
}

/// What a switch takes is an option of a run (`switch-ns`), which goes before the profile's number.
const SWITCH: &str = "fabric.hop_ns";
/// What that rests on.
const SWITCH_RESTS_ON: &str = "first bit in to first bit out of a switch: `switch-ns` of runs by one, unless told: estimate, between \
    what the vendor said of Switch-IB (below 130, 2014) and of SwitchX (230 with Ethernet, 2011)";

/// The numbers that packets may feel of an embedded profile, or of a file. What a switch takes is what runs have unless told.
///
/// # Errors
/// There is no such profile.
pub fn of_profile(name: &str) -> Result<Vec<Number>, Error> {
    let all = parse(&testbed::profile_text(name)?);
    let counts = |number: &Number| {
        let section = number.key.split('.').next().unwrap_or_default();
        !OTHERS.contains(&number.key.as_str()) && !OTHER_SECTIONS.contains(&section)
    };
    let switch = Scenario::default().switch.0 as f64 / 1e3;
    let as_runs_have_it = |number: Number| match number.key == SWITCH {
        true => Number { value: switch, rests_on: SWITCH_RESTS_ON.into(), ..number },
        false => number,
    };
    Ok(all.into_iter().filter(counts).map(as_runs_have_it).collect())
}

/// Whether a document tells a number, and no published row: what it rests on begins with the document's name. PRM is the programmer's
/// interface, PCIe the base specification, NEOHOST counters of an adapter that no row is made of but one of an idle read.
pub fn is_documented(rests_on: &str) -> bool {
    const DOCUMENTS: [&str; 3] = ["PRM:", "PCIe:", "NEOHOST:"];
    DOCUMENTS.iter().any(|document| rests_on.starts_with(document))
}

/// Every number of a file.
pub fn parse(text: &str) -> Vec<Number> {
    let mut found: Vec<Number> = Vec::new();
    let (mut section, mut above, mut open) = (String::new(), String::new(), false);
    for line in text.lines() {
        let (head, comment) = line.split_once('#').unwrap_or((line, ""));
        let (head, comment) = (head.trim(), comment.trim());
        if let Some(name) = head.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            (section, above, open) = (format!("{name}."), String::new(), false);
        } else if let Some((key, value)) = head.split_once('=') {
            let value = value.trim();
            open = false;
            if let Ok(number) = value.parse() {
                let rests_on = if comment.is_empty() { std::mem::take(&mut above) } else { comment.into() };
                let whole = !value.contains('.') && !key.contains("_ns");
                found.push(Number { key: section.clone() + key.trim(), value: number, whole, rests_on });
                open = true;
            }
            above.clear();
        } else if head.is_empty() && !comment.is_empty() {
            // Indented, a comment goes on; at the begin of a line it is about what follows.
            match found.last_mut().filter(|_| open && line.starts_with(' ')) {
                Some(last) => last.rests_on = format!("{} {comment}", last.rests_on),
                None => {
                    above = format!("{above} {comment}").trim().to_string();
                    open = false;
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_with_what_they_rest_on() {
        let text =
            "name = \"x\"\n[a]\nb_ns = 2  # fitted\n   # from y\nc = 3\n# about d\nd = 0.5\ne = [1, 2]\n";
        let all = parse(text);
        let told: Vec<_> =
            all.iter().map(|n| (n.key.as_str(), n.value, n.whole, n.rests_on.as_str())).collect();
        assert_eq!(
            told,
            [("a.b_ns", 2.0, false, "fitted from y"), ("a.c", 3.0, true, ""), ("a.d", 0.5, false, "about d")]
        );
        let scaled = |i: usize, factor| all[i].scaled(factor);
        assert_eq!((scaled(0, 1.2), scaled(1, 1.2)), (Some("2.4000".into()), Some("4".into())));
        assert_eq!(scaled(1, 1.1), None, "3.3 are 3");
    }

    #[test]
    fn documents_are_told_by_their_names() {
        assert!(is_documented("PRM: memory key context") && is_documented("PCIe: bytes of a header"));
        assert!(
            !is_documented("of 256 (PRM): fitted") && !is_documented("derived, half of a read (NEOHOST)")
        );
    }

    #[test]
    fn a_switch_takes_what_runs_have() {
        let all = of_profile("connectx6").expect("embedded");
        let hop = all.iter().find(|n| n.key == SWITCH).expect("listed");
        let scenario = Scenario { topology: crate::scenario::Topology::Switch, ..Scenario::default() };
        let set = scenario.profile_overrides();
        let run = set.iter().find(|(key, _)| key == SWITCH).map(|(_, value)| value.parse::<f64>());
        assert_eq!(run, Some(Ok(hop.value)));
    }

    #[test]
    fn every_number_of_the_embedded_profiles_says_what_it_rests_on() {
        for name in hca_model::timing::Profile::names() {
            let all = of_profile(name).expect("embedded");
            assert!(all.len() > 40, "{name}: {}", all.len());
            for number in all {
                assert!(!number.rests_on.is_empty(), "{name}: {}", number.key);
            }
        }
    }
}
