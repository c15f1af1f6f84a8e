//! The fate of every field of every access register: filled when it is read, asking, written, or ignored for a reason.
//!
//! Every register is read in many forms, and what was read is written with one field changed. Of what makes no difference a list has
//! reasons (`docs/data/interface/registers.toml`).

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};
use hca_firmware::PortKind;
use hca_spec::cmd::AccessRegIn;
use hca_spec::command::Opcode;
use hca_spec::put_be32;

use super::Reasons;
use super::bench::{Answer, Bench};
use super::interface::{Interface, Place};
use super::probe::{bits_of, put_bits};
use crate::source::row;

/// Where the reasons are, from the root.
const REASONS: &str = "docs/data/interface/registers.toml";
const WRITE: u32 = 0;
const READ: u32 = 1;
/// Fields that choose: so many bits at most, and so many values of each are tried.
const SHORT: usize = 8;
const VALUES: u64 = 64;
/// How many forms of a register are kept at most.
const FORMS: usize = 48;
/// Reasons of refusals that a row has.
const WHYS: usize = 2;
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
struct Form {
    sent: Vec<u8>,
    came: Vec<u8>,
}

fn access(bench: &mut Bench, register: u32, method: u32, data: &[u8]) -> Result<Answer> {
    let mut header = AccessRegIn::new();
    header.set(AccessRegIn::REGISTER_ID, register);
    let mut input = header.bytes().to_vec();
    put_be32(&mut input, 0, (Opcode::AccessReg as u32) << 16);
    put_be32(&mut input, 4, method);
    input.extend_from_slice(data);
    bench.run(&input)
}

/// The register's data in an answer, as long as what is sent.
fn data(answer: &Answer, len: usize) -> Vec<u8> {
    let mut data = answer.output.get(AccessRegIn::SIZE..).unwrap_or_default().to_vec();
    data.resize(len, 0);
    data
}

/// Bits of a field that are tried: of what is longer, the end.
fn tried(place: &Place) -> (usize, usize) {
    let bits = if place.bits == 0 { 32 } else { place.bits.min(64) };
    (place.at + place.bits.max(bits) - bits, bits)
}

fn set(data: &[u8], place: &Place, value: u64) -> Vec<u8> {
    let (at, bits) = tried(place);
    let mut data = data.to_vec();
    data.resize(data.len().max((at + bits).div_ceil(8)), 0);
    put_bits(&mut data, at, bits, value);
    data
}

fn get(data: &[u8], place: &Place) -> u64 {
    let (at, bits) = tried(place);
    if 8 * data.len() < at + bits { 0 } else { bits_of(data, at, bits) }
}

/// Other values of a field than one.
fn others(place: &Place, usual: u64) -> BTreeSet<u64> {
    let all = u64::MAX >> (64 - tried(place).1);
    let mut values: BTreeSet<u64> = [0, 1, 2, all, usual ^ 1, all ^ all >> 1].into();
    values.retain(|value| *value <= all && *value != usual);
    values
}

/// A register of an adapter with that link layer.
struct Register<'a> {
    number: u32,
    port_kind: PortKind,
    places: &'a [Place],
    len: usize,
}

impl Register<'_> {
    /// Forms in which it can be read: with the first port, and with other values of each field that may choose something.
    fn forms(&self) -> Result<Vec<Form>> {
        let mut bench = Bench::of_registers(self.port_kind)?;
        let mut base = vec![0; self.len];
        if let Some(port) = self.places.iter().find(|place| place.name == "local_port") {
            base = set(&base, port, 1);
        }
        let mut forms: Vec<Form> = Vec::new();
        let short = |place: &&Place| (1..=SHORT).contains(&place.bits) && place.name != "local_port";
        let selectors = self.places.iter().filter(short).map(Some);
        for selector in std::iter::once(None).chain(selectors) {
            let values = selector.map_or(1, |place| (1u64 << place.bits).min(VALUES));
            for value in 0..values {
                let sent = selector.map_or(base.clone(), |place| set(&base, place, value));
                let answer = access(&mut bench, self.number, READ, &sent)?;
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
        let mut bench = Bench::of_registers(self.port_kind)?;
        for form in forms {
            seen.filled |= get(&form.came, place) != 0 && get(&form.sent, place) == 0;
            if seen.asks {
                continue;
            }
            for value in others(place, get(&form.sent, place)) {
                let answer = access(&mut bench, self.number, READ, &set(&form.sent, place, value))?;
                // But for the field itself, which may come back as it was sent.
                let [now, before] = [&data(&answer, self.len), &form.came].map(|data| set(data, place, 0));
                seen.asks |= answer.refusal.is_some() || now != before;
            }
        }
        Ok(())
    }

    /// Writes what was read, and the same with the field changed, each to an adapter where nothing was changed.
    fn write(&self, forms: &[Form], place: &Place, seen: &mut Seen) -> Result<()> {
        for form in forms {
            let mut usual = None;
            for value in others(place, get(&form.came, place)) {
                if usual.is_none() {
                    let mut bench = Bench::of_registers(self.port_kind)?;
                    let answer = access(&mut bench, self.number, WRITE, &form.came)?;
                    usual = Some((answer, bench.state()));
                }
                let Some((before, state)) = &usual else { continue };
                let mut bench = Bench::of_registers(self.port_kind)?;
                let answer = access(&mut bench, self.number, WRITE, &set(&form.came, place, value))?;
                match (&before.refusal, &answer.refusal) {
                    (None, Some(refusal)) => _ = seen.refusals.insert(refusal.why.to_owned()),
                    (_, None) => {
                        let [now, then] = [&answer, before].map(|a| set(&data(a, self.len), place, 0));
                        let other = now != then || answer.effects != before.effects;
                        seen.written |= before.refusal.is_some() || other || bench.state() != *state;
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
}

/// What was seen of each field of all registers: register, field and what was seen, in the order of the file.
fn known(interface: &Interface) -> Result<Vec<(String, Place, Seen)>> {
    let mut all = Vec::new();
    for (name, number) in &interface.registers {
        let places = interface.places(name)?;
        let mut seen = vec![Seen::default(); places.len()];
        let len = places.iter().map(|place| (place.at + place.bits.max(32)).div_ceil(8)).max().unwrap_or(0);
        let len = len.next_multiple_of(4).max(ROOM);
        for port_kind in [PortKind::InfiniBand, PortKind::Ethernet] {
            let register = Register { number: *number, port_kind, places: &places, len };
            let forms = register.forms()?;
            for (place, seen) in places.iter().zip(&mut seen) {
                // Of structures at one place each counts in its own forms.
                let group = interface
                    .groups
                    .iter()
                    .find(|group| group.register == *name && place.path.contains(&group.of));
                let chooser = group.and_then(|group| places.iter().find(|place| place.name == group.field));
                let of_group = |form: &&Form| match (group, chooser) {
                    (Some(group), Some(chooser)) => get(&form.came, chooser) == group.value,
                    _ => true,
                };
                let forms: Vec<Form> = forms
                    .iter()
                    .filter(of_group)
                    .map(|form| Form { sent: form.sent.clone(), came: form.came.clone() })
                    .collect();
                register.read(&forms, place, seen)?;
                // What is read by most forms is written by the first ones.
                register.write(forms.get(..forms.len().min(4)).unwrap_or_default(), place, seen)?;
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
    let ignored = Reasons::of_file(root, REASONS, "ignored")?;
    let (mut unknown, mut used) = (0, BTreeSet::new());
    let (mut counts, mut fields) = ([0; 4], 0);
    let (mut out, mut current) = (String::new(), "");
    for (register, place, seen) in &known {
        let text = match (seen.spelled(), ignored.of(&place.key())) {
            (Some(text), _) => text,
            (None, Some((name, why))) => {
                used.insert(name.to_owned());
                counts[3] += 1;
                format!("ignored: {why}")
            }
            (None, None) => {
                unknown += 1;
                "unknown".to_owned()
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
    let needless: Vec<&str> = ignored.names().filter(|name| !used.contains(*name)).collect();
    if !needless.is_empty() {
        bail!("{REASONS}: needless: {}", needless.join(" "));
    }
    let [filled, asks, written, ignored] = counts;
    Ok(format!(
        "{} registers, {fields} fields: {filled} filled, {asks} ask, {written} written, {ignored} ignored, {unknown} unknown. A field may be \
         several of these.\n{out}",
        interface.registers.len(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No reason is for nothing.
    #[test]
    fn reasons_are_needed() {
        tables(&crate::root()).unwrap();
    }
}
