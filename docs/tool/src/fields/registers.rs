//! The fate of every field of every access register: filled when it is read, asking, written, or ignored for a reason.
//!
//! Every register is read in many forms, and what was read is written with one field changed. Of what makes no difference a list has
//! reasons (`docs/data/interface/registers.toml`).

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use hca_firmware::PortKind;
use hca_spec::cmd::AccessRegIn;

use super::answers::is_filled;
use super::bench::{Answer, Bench};
use super::interface::{Interface, Place};
use super::situations::{READ, Situation, WRITE};
use super::{Reasons, WHYS, settled};
use crate::source::row;

/// Where the reasons are, from the root.
const REASONS: &str = "docs/data/interface/registers.toml";
/// Fields that choose: so many bits at most, and so many values of each are tried.
const SHORT: usize = 8;
const VALUES: u64 = 64;
/// How many forms of a register are kept at most.
const FORMS: usize = 48;
/// How many inputs that are accepted are written with other values in each field.
const BASES: usize = 12;
/// How many forms are written.
const FIRST: usize = 4;
/// What else reads say: register, field, value.
const SAID: [(&str, &str, u64); 10] = [
    ("MCQI", "data_size", 124),
    ("MCIA", "size", 48),
    ("MCIA", "i2c_device_address", 0x50),
    ("MTRC_STDB", "read_size", 64),
    ("RESOURCE_DUMP", "inline_dump", 1),
    ("RESOURCE_DUMP", "segment_type", 0xffff),
    ("MCDA", "size", 4),
    ("PTYS", "proto_mask", 1),
    ("MTMP", "mte", 1),
    ("PPCNT", "grp", 0x10),
];
/// Least bytes that are sent of a register.
const ROOM: usize = 0x100;

/// What was seen of a field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    /// A read fills it.
    filled: bool,
    /// What else a read answers depends on it.
    asks: bool,
    /// Writing another value leaves another state.
    written: bool,
    /// Why other values are refused.
    refusals: BTreeSet<String>,
}

/// A read that succeeds: what was sent, and what came.
#[derive(Debug, Clone)]
struct Form {
    sent: Vec<u8>,
    came: Vec<u8>,
}

/// The register's data in an answer, as long as what is sent.
fn data(answer: &Answer, len: usize) -> Vec<u8> {
    let mut data = answer.output.get(AccessRegIn::SIZE..).unwrap_or_default().to_vec();
    data.resize(len, 0);
    data
}

/// Other values of a field than one.
fn others(place: &Place, usual: u64) -> BTreeSet<u64> {
    let all = u64::MAX >> (64 - place.tried().1);
    let mut values: BTreeSet<u64> = [0, 1, 2, all, usual ^ 1, all ^ all >> 1].into();
    values.retain(|value| *value <= all && *value != usual);
    values
}

/// A register of an adapter with that link layer, to which that happened.
struct Register<'a> {
    name: &'a str,
    number: u32,
    port_kind: PortKind,
    situation: Situation,
    places: &'a [Place],
    len: usize,
    /// An adapter on which nothing was changed.
    spare: Option<Bench>,
}

impl Register<'_> {
    fn bench(&self) -> Result<Bench> {
        Bench::of_registers(self.port_kind, self.situation)
    }

    /// What is sent first: the first port, and what makes a read tell something.
    fn base(&self) -> Vec<u8> {
        let mut base = vec![0; self.len];
        for place in self.places {
            let said = SAID.iter().find(|(register, name, _)| *register == self.name && *name == place.name);
            match said {
                Some((_, _, value)) => base = place.set(&base, *value),
                None if place.name == "local_port" => base = place.set(&base, 1),
                None => {}
            }
        }
        base
    }

    /// Forms in which it can be read: the first, and with other values of each field that may choose something.
    fn forms(&self) -> Result<Vec<Form>> {
        let mut bench = self.bench()?;
        let base = self.base();
        let mut forms: Vec<Form> = Vec::new();
        let short = |place: &&Place| (1..=SHORT).contains(&place.bits) && place.name != "local_port";
        let selectors = self.places.iter().filter(short).map(Some);
        for selector in std::iter::once(None).chain(selectors) {
            let values = selector.map_or(1, |place| (1u64 << place.bits).min(VALUES));
            for value in 0..values {
                let sent = selector.map_or(base.clone(), |place| place.set(&base, value));
                let answer = bench.access(self.number, READ, &sent)?;
                let came = data(&answer, self.len);
                let known = forms.iter().any(|form| form.came == came);
                if answer.refusal.is_none() && !known && forms.len() < FORMS {
                    forms.push(Form { sent, came });
                }
            }
        }
        if forms.is_empty() {
            // It can't be read: what is written begins with nothing.
            forms.push(Form { sent: base.clone(), came: base });
        }
        Ok(forms)
    }

    fn read(&self, forms: &[Form], place: &Place, seen: &mut Seen) -> Result<()> {
        let mut bench = self.bench()?;
        for form in forms {
            seen.filled |= is_filled(&form.came, place) && !is_filled(&form.sent, place);
            if seen.asks {
                continue;
            }
            for value in others(place, place.get(&form.sent)) {
                let answer = bench.access(self.number, READ, &place.set(&form.sent, value))?;
                // But for the field itself, which may come back as it was sent.
                let [now, before] = [&data(&answer, self.len), &form.came].map(|data| place.set(data, 0));
                seen.asks |= answer.refusal.is_some() || now != before;
            }
        }
        Ok(())
    }

    /// Inputs from which writes are varied: what was read, and that with another value in a short field if it is accepted.
    fn bases(&mut self, forms: &[Form]) -> Result<Vec<Vec<u8>>> {
        let mut bases: Vec<Vec<u8>> = forms.iter().map(|form| form.came.clone()).collect();
        let short = |place: &&Place| (1..=SHORT).contains(&place.bits) && place.name != "local_port";
        for form in forms.iter().take(1) {
            for place in self.places.iter().filter(short) {
                let all = u64::MAX >> (64 - place.bits);
                let values: BTreeSet<u64> = (1..=8).map(|value| value & all).chain([all]).collect();
                for value in values {
                    let base = place.set(&form.came, value);
                    let (answer, ..) = self.written(&base, &base)?;
                    if answer.refusal.is_none() && bases.len() < BASES && !bases.contains(&base) {
                        bases.push(base);
                    }
                }
            }
        }
        Ok(bases)
    }

    /// Writes each of the bases, and the same with the field changed, each to an adapter where nothing was changed.
    fn write(&mut self, (forms, bases): (&[Form], &[Vec<u8>]), place: &Place, seen: &mut Seen) -> Result<()> {
        let sent = forms.first().map(|form| form.sent.clone()).unwrap_or_default();
        for base in bases {
            let (before, state, read) = self.written(base, &sent)?;
            let told = data(&before, self.len);
            seen.filled |= before.refusal.is_none() && is_filled(&told, place) && !is_filled(base, place);
            for value in others(place, place.get(base)) {
                let (answer, now, then) = self.written(&place.set(base, value), &sent)?;
                match (&before.refusal, &answer.refusal) {
                    (None, Some(refusal)) => _ = seen.refusals.insert(refusal.why.to_owned()),
                    (_, None) => {
                        let [new, old] = [&answer, &before].map(|a| place.set(&data(a, self.len), 0));
                        let other = new != old || answer.effects != before.effects || then != read;
                        seen.written |= before.refusal.is_some() || other || now != state;
                    }
                    _ => {}
                }
            }
            if seen.written {
                break;
            }
        }
        Ok(())
    }

    /// What becomes of a write: the answer, the state behind it, and what is read then.
    fn written(&mut self, input: &[u8], sent: &[u8]) -> Result<(Answer, u64, Vec<u8>)> {
        let mut bench = match self.spare.take() {
            Some(bench) => bench,
            None => self.bench()?,
        };
        let answer = bench.access(self.number, WRITE, input)?;
        if answer.refusal.is_some() {
            self.spare = Some(bench);
            return Ok((answer, 0, Vec::new()));
        }
        let state = bench.state();
        let read = bench.access(self.number, READ, sent)?;
        Ok((answer, state, read.output))
    }
}

/// What was seen of each field of all registers: register, field and what was seen, in the order of the file.
fn known(interface: &Interface) -> Result<Vec<(String, Place, Seen)>> {
    let mut all = Vec::new();
    for (name, number) in &interface.registers {
        let places = interface.places(name)?;
        let mut seen = vec![Seen::default(); places.len()];
        let len = places.iter().map(|place| (place.at + place.bits.max(32)).div_ceil(8)).max().unwrap_or(0);
        let len = len.next_multiple_of(4).max(ROOM);
        let kinds = [PortKind::InfiniBand, PortKind::Ethernet];
        let states = kinds.iter().flat_map(|kind| Situation::ALL.map(|situation| (*kind, situation)));
        for (port_kind, situation) in states {
            let (places, spare) = (&*places, None);
            let mut register = Register { name, number: *number, port_kind, situation, places, len, spare };
            if !situation.concerns(name) {
                continue;
            }
            let forms = register.forms()?;
            let is_known = situation != Situation::Fresh && seen.iter().all(|seen| *seen != Seen::default());
            let first = if is_known { 0 } else { forms.len().min(FIRST) };
            let bases = register.bases(forms.get(..first).unwrap_or_default())?;
            for (place, seen) in places.iter().zip(&mut seen) {
                // Of structures at one place each counts in its own forms.
                let group = interface
                    .groups
                    .iter()
                    .find(|group| group.register == *name && place.path.contains(&group.of));
                let chooser = group.and_then(|group| places.iter().find(|place| place.name == group.field));
                let of_group = |came: &[u8]| match (group, chooser) {
                    (Some(group), Some(chooser)) => chooser.get(came) == group.value,
                    _ => true,
                };
                let mine = |form: &&Form| of_group(&form.came);
                let forms: Vec<Form> = forms.iter().filter(mine).cloned().collect();
                let bases: Vec<Vec<u8>> = bases.iter().filter(|base| of_group(base)).cloned().collect();
                register.read(&forms, place, seen)?;
                // Writes take longer.
                if situation == Situation::Fresh || *seen == Seen::default() {
                    register.write((&forms, &bases), place, seen)?;
                }
            }
        }
        all.extend(places.into_iter().zip(seen).map(|(place, seen)| (name.clone(), place, seen)));
    }
    Ok(all)
}

impl Seen {
    /// In words; `None`: nothing was seen.
    fn spelled(&self) -> Option<String> {
        let mut what = Vec::new();
        what.extend(self.filled.then_some("filled"));
        what.extend(self.asks.then_some("asks"));
        what.extend((self.written || !self.refusals.is_empty()).then_some("written"));
        let whys: Vec<&str> = self.refusals.iter().take(WHYS).map(String::as_str).collect();
        let refused = if whys.is_empty() { String::new() } else { format!(". Refused: {}", whys.join("; ")) };
        (!what.is_empty()).then(|| what.join(", ") + &refused)
    }
}

/// How many fields have which fate, then a table for each register.
///
/// # Errors
/// A field whose fate nobody knows, or a reason that no field needs.
pub fn tables(root: &Path) -> Result<String> {
    let interface = Interface::registers(root)?;
    let known = known(&interface)?;
    let (ignored, untried) =
        (Reasons::of_file(root, REASONS, "ignored")?, Reasons::of_file(root, REASONS, "untried")?);
    let (mut unknown, mut used) = (Vec::new(), BTreeSet::new());
    let (mut counts, mut fields) = ([0; 5], 0);
    let (mut out, mut current) = (String::new(), "");
    for (register, place, seen) in &known {
        let key = place.key();
        let text = match (seen.spelled(), untried.of(&key), ignored.of(&key)) {
            (Some(text), ..) => text,
            (None, Some((name, when)), _) => {
                used.insert(name.to_owned());
                counts[3] += 1;
                when.to_owned()
            }
            (None, None, Some((name, why))) => {
                used.insert(name.to_owned());
                counts[4] += 1;
                format!("ignored: {why}")
            }
            (None, None, None) => {
                unknown.push(format!("{} ({register})", place.key()));
                continue;
            }
        };
        fields += 1;
        let is_written = seen.written || !seen.refusals.is_empty();
        for (count, is) in counts.iter_mut().zip([seen.filled, seen.asks, is_written]) {
            *count += usize::from(is);
        }
        if current != register {
            current = register;
            let number = interface.registers.iter().find(|(name, _)| name == register).map_or(0, |(_, n)| *n);
            out.push_str(&format!(
                "\n**`{register}`** ({number:#x})\n\n| place | field | fate |\n|---|---|---|\n"
            ));
        }
        let inner = place.path.last().filter(|_| place.path.len() > 1);
        let name = inner.map_or(format!("`{}`", place.name), |of| format!("`{of}.{}`", place.name));
        let at = Place { within: place.at, ..place.clone() };
        out.push_str(&row(&[&at.spelled(), &name, &text]));
    }
    settled(REASONS, "what becomes of them", &unknown, [&ignored, &untried], &used)?;
    let [filled, asks, written, untried, ignored] = counts;
    Ok(format!(
        "{} registers, {fields} fields: {filled} filled, {asks} ask, {written} written, {untried} only in states that the tries don't reach, {ignored} ignored, 0 unknown. A field may be \
         several of these.\n{out}",
        interface.registers.len(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None is unknown, and no reason is for nothing.
    #[test]
    fn every_field_has_its_fate() {
        let text = tables(&crate::root()).unwrap();
        assert!(text.contains(" 0 unknown. "), "{text}");
    }
}
