//! What commands answer is looked for in many states: behind every form of the input that succeeds, behind the commands that change
//! what a query tells, on an adapter that was used and on one that has no pages yet.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use hca_firmware::PortKind;
use hca_firmware::commands::{Action, Command, TABLE};
use hca_firmware::object::Kind;
use hca_spec::command::Opcode;

use super::bench::Bench;
use super::interface::{Interface, Place};
use super::probe::{Probe, bits_of, put_bits};

/// Fields that choose what else of an input counts, bit by bit.
const MASKS: [&str; 7] =
    ["action", "field_select", "modify_field_select", "vlan_valid", "disp_type", "sw_owner", "num_psv"];
/// How many forms are tried with each bit of these.
const FEW: usize = 3;
/// Fields of an input that may choose what is answered: so many bits at most, and values up to that.
const SHORT: usize = 8;
const VALUES: u64 = 8;

/// Pages that are put behind a list that is too short: how many, where, and how large.
const PAGES: u64 = 4;
const FIRST_PAGE: u64 = 0x5000_0000;
const PAGE_BYTES: u64 = 0x1000;

/// What was seen of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Seen {
    #[default]
    Nothing,
    /// A query told what was said by another command.
    AsSaid,
    /// It was not zero.
    Filled,
}

/// Tries of a command's output, which has these fields, on an adapter with that link layer.
pub(super) struct Tries<'a> {
    pub(super) command: &'static Command,
    pub(super) kind: PortKind,
    pub(super) inputs: &'a Interface,
    pub(super) places: &'a [Place],
    /// Fields that no input says.
    pub(super) untold: &'a BTreeMap<String, String>,
    /// What was seen of each field.
    pub(super) seen: &'a mut [Seen],
    /// An adapter on which nothing was changed, made for a command.
    pub(super) spare: Option<(Opcode, Bench)>,
}

/// Whether a field chooses what else of an input counts.
fn is_mask(place: &Place) -> bool {
    let of = place.of();
    let names = [place.name.as_str(), of];
    MASKS.contains(&place.name.as_str())
        || names.iter().any(|name| name.contains("field_select") || name.ends_with("bitmask"))
}

/// What each output begins with: not zero of what is refused.
pub(super) fn is_header(place: &Place) -> bool {
    ["status", "syndrome"].contains(&place.name.as_str()) && place.path.len() == 1
}

/// Whether an output has something there.
pub(super) fn is_filled(output: &[u8], place: &Place) -> bool {
    let end = if place.bits == 0 { 8 * output.len() } else { place.at + place.bits };
    let bit = |at: usize| output.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    (place.at..end).any(bit)
}

/// Whether the command tells what the other one says: of the object that that makes or changes, or, without an object, what has the
/// same name (QUERY_ROCE_ADDRESS and SET_ROCE_ADDRESS).
fn tells_of(command: &Command, other: &Command) -> bool {
    let verb = |command: &Command| command.name.split_once('_').map(|(verb, of)| (verb, of.to_owned()));
    let action = |command: &Command| command.object.map(|object| (object.action, object.kind));
    match (action(command), action(other)) {
        (Some((Action::Query, kind)), Some((Action::Create | Action::Change, of))) if kind == of => true,
        _ => match (verb(command), verb(other)) {
            (Some(("QUERY", a)), Some(("SET" | "MODIFY" | "CREATE" | "ALLOC" | "ATTACH", b))) => a == b,
            _ => command.opcode == other.opcode && command.object.is_none(),
        },
    }
}

/// The same field in an input: of the same structure or, outside of all, of the same name.
fn said_at(place: &Place, inputs: &[Place]) -> Option<Place> {
    let same = |input: &&Place| match (input.path.len(), place.path.len()) {
        // Of a longer one, the begin.
        (1, 1) => input.name == place.name && input.bits >= place.bits,
        (1, _) | (_, 1) => false,
        _ => input.key() == place.key() && input.bits == place.bits,
    };
    let said = inputs.iter().find(same).filter(|_| place.bits != 0)?;
    Some(Place { bits: place.bits, ..said.clone() })
}

impl Tries<'_> {
    /// Looks at an output.
    fn look(&mut self, output: &[u8]) {
        for (place, seen) in self.places.iter().zip(self.seen.iter_mut()) {
            if is_filled(output, place) {
                *seen = Seen::Filled;
            }
        }
    }

    /// Every try.
    ///
    /// # Errors
    /// A template is refused.
    pub(super) fn all(&mut self) -> Result<()> {
        let forms = self.inputs.places(self.command.name)?;
        let Some(probe) = Probe::new(self.command, self.kind, &forms)? else { return Ok(()) };
        probe.outputs().for_each(|output| self.look(output));
        let inputs: Vec<Vec<u8>> = probe.inputs().map(<[u8]>::to_vec).collect();
        if self.seen.iter().all(|seen| *seen == Seen::Filled) {
            return Ok(());
        }
        for input in &inputs {
            let mut used = Bench::new(self.command, self.kind)?.context("the adapter has the command")?;
            used.wear();
            self.look_at(&mut used, input)?;
            if let Some(mut bare) = Bench::without_pages(self.command, self.kind)? {
                self.look_at(&mut bare, input)?;
            }
        }
        self.vary(&forms)?;
        for other in TABLE.iter().filter(|other| tells_of(self.command, other)) {
            self.behind(other)?;
        }
        Ok(())
    }

    /// Other values in short fields of the input's own structure.
    fn vary(&mut self, forms: &[Place]) -> Result<()> {
        let own = |field: &&Place| field.path.len() == 1 && (1..=SHORT).contains(&field.bits);
        for field in forms.iter().filter(own) {
            let mut fields = self.places.iter().zip(self.seen.iter());
            if fields.all(|(place, seen)| *seen != Seen::Nothing || is_header(place)) {
                return Ok(());
            }
            let all = u64::MAX >> (64 - field.bits);
            let values: BTreeSet<u64> = (1..=VALUES.min(all)).chain([all]).collect();
            for value in values {
                let mut bench =
                    Bench::new(self.command, self.kind)?.context("the adapter has the command")?;
                let input = field.set(&bench.input, value);
                self.look_at(&mut bench, &input)?;
            }
        }
        Ok(())
    }

    fn look_at(&mut self, bench: &mut Bench, input: &[u8]) -> Result<()> {
        let answer = bench.run(input)?;
        if answer.refusal.is_none() {
            self.look(&answer.output);
        }
        Ok(())
    }

    /// Behind another command: each of its forms, and each field of these that may be told.
    fn behind(&mut self, other: &'static Command) -> Result<()> {
        let said = self.inputs.places(other.name)?;
        let Some(probe) = Probe::new(other, self.kind, &said)? else { return Ok(()) };
        // Forms with more in them are made later.
        let mut forms: Vec<Vec<u8>> = probe.inputs().map(<[u8]>::to_vec).collect();
        forms.reverse();
        for form in &forms {
            if let Some(output) = self.told(other, form)? {
                self.look(&output);
            }
        }
        for n in 0..self.places.len() {
            let (Some(place), Some(Seen::Nothing)) = (self.places.get(n), self.seen.get(n)) else { continue };
            let Some(from) = said_at(place, &said).filter(|_| !self.untold.contains_key(&place.key())) else {
                continue;
            };
            if self.is_told(other, (&forms, &said), &from, place)?
                && let Some(seen) = self.seen.get_mut(n)
            {
                *seen = (*seen).max(Seen::AsSaid);
            }
        }
        Ok(())
    }

    /// What is answered behind that input of the other command. `None`: one of them is refused.
    fn told(&mut self, other: &'static Command, input: &[u8]) -> Result<Option<Vec<u8>>> {
        let told = self.told_at_once(other, input)?;
        if told.is_some() || other.icm.list.is_none() {
            return Ok(told);
        }
        // What is larger needs more pages.
        let more = (0..PAGES).flat_map(|page| (FIRST_PAGE + page * PAGE_BYTES).to_be_bytes());
        let input: Vec<u8> = input.iter().copied().chain(more).collect();
        self.told_at_once(other, &input)
    }

    fn told_at_once(&mut self, other: &'static Command, input: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut bench = match self.spare.take() {
            Some((opcode, bench)) if opcode == other.opcode => bench,
            _ => Bench::new(other, self.kind)?.context("the adapter has the command")?,
        };
        let answer = bench.told(other, input, self.command)?;
        if answer.is_none() {
            self.spare = Some((other.opcode, bench));
        }
        Ok(answer.filter(|answer| answer.refusal.is_none()).map(|answer| answer.output))
    }

    /// Whether what is said in a field of the other command is told: alone or, of a mask, with a bit of it.
    fn is_told(
        &mut self,
        other: &'static Command,
        (forms, said): (&[Vec<u8>], &[Place]),
        from: &Place,
        to: &Place,
    ) -> Result<bool> {
        let all = u64::MAX >> (64 - from.tried().1);
        let usual: BTreeSet<u64> = [1, 2, all, all ^ all >> 1].into();
        for form in forms {
            if self.any_told(other, form, &usual, from, to)? {
                return Ok(true);
            }
        }
        // Numbers of objects count, too.
        let bench = Bench::new(other, self.kind)?.context("the adapter has the command")?;
        let numbers = Kind::ALL.into_iter().map(|kind| u64::from(bench.fixture.number(kind)));
        let values: BTreeSet<u64> = usual.into_iter().chain(numbers).collect();
        let masks = said.iter().filter(|place| is_mask(place) && *place != from);
        for form in forms.iter().rev().take(FEW) {
            for mask in masks.clone() {
                for bit in 0..mask.bits.min(64) {
                    let (at, bits) = mask.tried();
                    let mut form = form.clone();
                    let chosen = bits_of(&form, at, bits) ^ 1 << bit;
                    put_bits(&mut form, at, bits, chosen);
                    if self.any_told(other, &form, &values, from, to)? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Whether one of these values is told.
    fn any_told(
        &mut self,
        other: &'static Command,
        form: &[u8],
        values: &BTreeSet<u64>,
        from: &Place,
        to: &Place,
    ) -> Result<bool> {
        let ((_, bits), (told_at, _)) = (from.tried(), to.tried());
        let all = u64::MAX >> (64 - bits);
        for value in values.iter().copied().filter(|value| (1..=all).contains(value)) {
            let input = from.set(form, value);
            let Some(output) = self.told(other, &input)? else { continue };
            self.look(&output);
            if 8 * output.len() >= told_at + bits && bits_of(&output, told_at, bits) == value {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca_firmware::commands::find;

    #[test]
    fn what_is_filled() {
        let place = |at, bits| Place { path: vec!["out".into()], name: "x".into(), within: at, at, bits };
        let output = [0, 0, 0x10, 0];
        assert!(is_filled(&output, &place(16, 8)) && is_filled(&output, &place(19, 1)));
        assert!(is_filled(&output, &place(8, 0)), "a list to the end");
        assert!(!is_filled(&output, &place(20, 12)) && !is_filled(&output, &place(64, 8)));
    }

    #[test]
    fn who_says_what_is_told() {
        let tells = |query, other| tells_of(find(query).unwrap(), find(other).unwrap());
        assert!(tells(Opcode::QueryQp, Opcode::Init2RtrQp) && tells(Opcode::QueryQp, Opcode::CreateQp));
        assert!(tells(Opcode::QueryRoceAddress, Opcode::SetRoceAddress));
        assert!(!tells(Opcode::QueryQp, Opcode::CreateCq) && !tells(Opcode::CreateQp, Opcode::QueryQp));
    }
}
