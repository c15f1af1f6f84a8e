//! Commands are tried with other values in one field: is it looked at, which values are refused, and why?

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use hca_firmware::PortKind;
use hca_firmware::commands::{Command, TimeClass};
use hca_spec::command::Status;

use super::bench::{Answer, Bench};
use super::interface::Place;

/// What was seen of a field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Another value has another output or other effects.
    pub(super) differs: bool,
    /// Another value leaves the adapter in another state. Looked at if nothing else is seen, and if that was wanted.
    pub(super) kept: bool,
    /// Reasons of refusals.
    pub(super) refusals: BTreeSet<String>,
    /// The field is zero in what succeeds, and whatever else is refused as a wrong value: nothing but zero is understood.
    pub(super) only_zero: bool,
}

/// Fields that say what else of an input counts, the more special first.
const SELECTORS: [&str; 8] = [
    "other_function",
    "match_criteria_enable",
    "cong_protocol",
    "field_select",
    "modify_field_select",
    "modify_bitmask",
    "modify_enable_mask",
    "op_mod",
];
/// How many forms of an input are tried at most.
const FORMS: usize = 16;

/// An input that succeeds, and what it is answered.
struct Form {
    input: Vec<u8>,
    usual: Answer,
    /// The state that it leaves, once that was asked for.
    state: Option<u64>,
}

/// Adapters that have a command, and its valid inputs.
pub(super) struct Probe {
    command: &'static Command,
    port_kind: PortKind,
    /// That of its template first.
    forms: Vec<Form>,
    /// An adapter on which nothing was changed.
    spare: Option<Bench>,
}

impl Probe {
    /// `None`: an adapter with that link layer does not have the command, whose input has these fields.
    ///
    /// # Errors
    /// A template is refused.
    pub(super) fn new(
        command: &'static Command,
        port_kind: PortKind,
        places: &[Place],
    ) -> Result<Option<Self>> {
        let Some(mut bench) = Bench::new(command, port_kind)? else { return Ok(None) };
        let input = bench.input.clone();
        let usual = bench.run(&input)?;
        let forms = vec![Form { input, usual, state: None }];
        let mut probe = Self { command, port_kind, forms, spare: None };
        for name in SELECTORS {
            let short = |place: &&Place| place.name == name && (1..=64).contains(&place.bits);
            for selector in places.iter().filter(short) {
                probe.add_forms(selector)?;
            }
        }
        Ok(Some(probe))
    }

    /// What the forms that succeed are answered.
    pub(super) fn outputs(&self) -> impl Iterator<Item = &[u8]> {
        self.forms.iter().filter(|form| form.usual.refusal.is_none()).map(|form| &*form.usual.output)
    }

    /// The forms that succeed.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &[u8]> {
        self.forms.iter().filter(|form| form.usual.refusal.is_none()).map(|form| &*form.input)
    }

    /// Adds what succeeds of the forms that there are with other values of a selector: none, each bit alone, all, small numbers.
    fn add_forms(&mut self, selector: &Place) -> Result<()> {
        let all = u64::MAX >> (64 - selector.bits);
        let bits = (0..selector.bits).map(|bit| 1 << bit);
        let values: BTreeSet<u64> = bits.chain([0, 3, 6, all]).filter(|value| value & !all == 0).collect();
        let before: Vec<Vec<u8>> = self.forms.iter().map(|form| form.input.clone()).collect();
        for mut input in before {
            for value in &values {
                put_bits(&mut input, selector.at, selector.bits, *value);
                if self.forms.len() < FORMS && self.forms.iter().all(|form| form.input != input) {
                    let (usual, _) = self.run(&input, |_| false)?;
                    // Most commands don't look at their modifier.
                    let same = selector.name == "op_mod"
                        && self.forms.first().is_some_and(|form| form.usual == usual);
                    if usual.refusal.is_none() && !same {
                        self.forms.push(Form { input: input.clone(), usual, state: None });
                    }
                }
            }
        }
        Ok(())
    }

    /// Executes it on an adapter where nothing was changed; the state behind it, if that is wanted after that answer.
    fn run(&mut self, input: &[u8], wanted: impl Fn(&Answer) -> bool) -> Result<(Answer, Option<u64>)> {
        let bench = match self.spare.take() {
            Some(bench) => Some(bench),
            None => Bench::new(self.command, self.port_kind)?,
        };
        let mut bench = bench.context("the adapter has the command")?;
        let answer = bench.run(input)?;
        let state = wanted(&answer).then(|| bench.state());
        if answer.refusal.is_some() || self.command.time == TimeClass::Query {
            self.spare = Some(bench);
        }
        Ok((answer, state))
    }

    /// Tries the field, in the template's form and, as long as nothing comes of it, in the others. `states`: the state counts, too.
    ///
    /// # Errors
    /// A template is refused.
    pub(super) fn field(&mut self, place: &Place, states: bool) -> Result<Seen> {
        let mut seen = Seen::default();
        for form in 0..self.forms.len() {
            seen = self.in_form(form, place, states)?;
            if seen != Seen::default() {
                break;
            }
        }
        Ok(seen)
    }

    /// The state that the valid input of a form leaves.
    fn state_of(&mut self, form: usize) -> Result<Option<u64>> {
        let Some(Form { input, state, .. }) = self.forms.get(form) else { return Ok(None) };
        if state.is_some() {
            return Ok(*state);
        }
        let input = input.clone();
        let (_, state) = self.run(&input, |_| true)?;
        if let Some(form) = self.forms.get_mut(form) {
            form.state = state;
        }
        Ok(state)
    }

    fn in_form(&mut self, form: usize, place: &Place, states: bool) -> Result<Seen> {
        let usual_state = if states { self.state_of(form)? } else { None };
        let Some(Form { input, usual: answered, .. }) = self.forms.get(form) else {
            return Ok(Seen::default());
        };
        let (mut input, answered) = (input.clone(), answered.clone());
        let bits = if place.bits == 0 { 64 } else { place.bits.min(64) };
        // Of what is longer, the end.
        let at = place.at + place.bits.max(bits) - bits;
        input.resize(input.len().max((at + bits).div_ceil(8)), 0);
        let usual = bits_of(&input, at, bits);
        let all = u64::MAX >> (64 - bits);
        let mut values: BTreeSet<u64> = [0, 1, all, usual ^ 1, all ^ all >> 1].into();
        if bits <= 8 {
            values.extend((0..bits).map(|bit| 1 << bit));
        }
        values.remove(&usual);
        let mut seen = Seen { only_zero: usual == 0, ..Seen::default() };
        for value in values {
            put_bits(&mut input, at, bits, value);
            let silent = states && !seen.differs && !seen.kept && seen.refusals.is_empty();
            let (answer, state) = self.run(&input, |answer| silent && *answer == answered)?;
            seen.kept |= state.is_some() && state != usual_state;
            match &answer.refusal {
                Some(refusal) if answered.refusal.is_none() => {
                    // What names an object that is not there is understood.
                    seen.only_zero &= matches!(refusal.status, Status::BadParam | Status::BadOp);
                    seen.refusals.insert(refusal.why.to_owned());
                }
                _ => {
                    seen.only_zero = false;
                    seen.differs |= answer != answered;
                }
            }
        }
        Ok(seen)
    }
}

/// A number of at most 64 bits, from that bit on, the most significant one of the first byte being the first.
pub(super) fn bits_of(bytes: &[u8], at: usize, bits: usize) -> u64 {
    let bit = |n: usize| bytes.get(n / 8).is_some_and(|byte| byte >> (7 - n % 8) & 1 == 1);
    (at..at + bits).fold(0, |value, n| value << 1 | u64::from(bit(n)))
}

pub(super) fn put_bits(bytes: &mut [u8], at: usize, bits: usize, value: u64) {
    for n in 0..bits {
        let place = at + bits - 1 - n;
        if let Some(byte) = bytes.get_mut(place / 8) {
            let bit = 1 << (7 - place % 8);
            *byte = if value >> n & 1 == 1 { *byte | bit } else { *byte & !bit };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_place() {
        let mut bytes = [0xff; 4];
        put_bits(&mut bytes, 4, 24, 0x12345);
        assert_eq!((bytes, bits_of(&bytes, 4, 24)), ([0xf0, 0x12, 0x34, 0x5f], 0x12345));
        put_bits(&mut bytes, 31, 1, 0);
        assert_eq!((bytes[3], bits_of(&bytes, 30, 2), bits_of(&bytes, 30, 8)), (0x5e, 2, 0x80));
    }
}
