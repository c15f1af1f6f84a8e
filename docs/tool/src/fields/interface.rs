//! Inputs of commands as the public interface has them: `docs/data/interface/commands.txt`, whose head says what its lines are.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::probe::{bits_of, put_bits};

/// Where the file is, from the root.
pub(super) const FILE: &str = "docs/data/interface/commands.txt";
/// The same of the outputs, which have structures of the inputs in them.
const OUTPUTS: &str = "docs/data/interface/outputs.txt";
/// The same of the registers.
const REGISTERS: &str = "docs/data/interface/registers.txt";

/// A field of a structure, or a structure within it.
#[derive(Debug, Clone)]
struct Member {
    /// First bit, counted from the most significant one of the first byte.
    at: usize,
    /// How many; 0 of a list to the end.
    bits: usize,
    name: String,
    /// The structure that it is.
    of: Option<String>,
}

/// A field of a command's input, wherever in structures within structures it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The structures that it is in, the input itself first.
    pub(super) path: Vec<String>,
    /// Its name there.
    pub(super) name: String,
    /// First bit, from the begin of that structure.
    pub(super) within: usize,
    /// First bit, from the begin of the input.
    pub(super) at: usize,
    /// How many bits; 0 of a list to the end.
    pub(super) bits: usize,
}

impl Place {
    /// The structure that the field stands in.
    pub(super) fn of(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// Structure and field.
    pub(super) fn key(&self) -> String {
        format!("{}.{}", self.of(), self.name)
    }

    /// Where it is in its structure, as the manual says it: the byte of a 32-bit word and bits, or bytes.
    pub(super) fn spelled(&self) -> String {
        let (word, bit) = (self.within / 32 * 4, self.within % 32);
        match self.bits {
            0 => format!("{:#x} on", self.within / 8),
            bits if bit + bits <= 32 => format!("{word:#x} [{}:{}]", 31 - bit, 32 - bit - bits),
            bits => format!("{:#x}, {} bytes", self.within / 8, bits / 8),
        }
    }

    /// What is tried of it, first bit and how many: of what is longer than 64 bits the end, of a list its first word.
    pub(super) fn tried(&self) -> (usize, usize) {
        let bits = if self.bits == 0 { 32 } else { self.bits.min(64) };
        (self.at + self.bits.max(bits) - bits, bits)
    }

    /// The same data with that value there.
    pub(super) fn set(&self, data: &[u8], value: u64) -> Vec<u8> {
        let (at, bits) = self.tried();
        let mut data = data.to_vec();
        data.resize(data.len().max((at + bits).div_ceil(8)), 0);
        put_bits(&mut data, at, bits, value);
        data
    }

    /// What is there; 0 behind the data's end.
    pub(super) fn get(&self, data: &[u8]) -> u64 {
        let (at, bits) = self.tried();
        if 8 * data.len() < at + bits { 0 } else { bits_of(data, at, bits) }
    }
}

/// A structure that lies in a register while one of its fields has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) register: String,
    pub(super) field: String,
    pub(super) value: u64,
    pub(super) of: String,
}

/// The inputs of all commands; or their outputs, or registers.
#[derive(Debug, Default)]
pub(super) struct Interface {
    structures: BTreeMap<String, Vec<Member>>,
    commands: BTreeMap<String, String>,
    /// Registers: name and number.
    pub(super) registers: Vec<(String, u32)>,
    pub(super) groups: Vec<Group>,
}

impl Interface {
    /// Reads the file below that root.
    ///
    /// # Errors
    /// A line that is not as the file's head says.
    pub(super) fn read(root: &Path) -> Result<Self> {
        Self::of_files(root, &[FILE])
    }

    /// The outputs of all commands, by the commands' names.
    ///
    /// # Errors
    /// As [`Interface::read`].
    pub(super) fn outputs(root: &Path) -> Result<Self> {
        Self::of_files(root, &[FILE, OUTPUTS])
    }

    /// The registers, by their names.
    ///
    /// # Errors
    /// As [`Interface::read`].
    pub(super) fn registers(root: &Path) -> Result<Self> {
        Self::of_files(root, &[REGISTERS])
    }

    fn of_files(root: &Path, files: &[&str]) -> Result<Self> {
        let read = |file: &&str| std::fs::read_to_string(root.join(file)).with_context(|| (*file).to_owned());
        Self::parse(&files.iter().map(read).collect::<Result<String>>()?)
    }

    fn parse(text: &str) -> Result<Self> {
        let (mut structures, mut commands) = (BTreeMap::<_, Vec<Member>>::new(), BTreeMap::new());
        let (mut registers, mut groups) = (Vec::new(), Vec::new());
        let mut current = None;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["struct", name, _] => {
                    current = Some((*name).to_owned());
                    structures.insert((*name).to_owned(), Vec::new());
                }
                ["register", name, number, of] => {
                    registers.push(((*name).to_owned(), number.parse().with_context(|| line.to_owned())?));
                    _ = commands.insert((*name).to_owned(), (*of).to_owned());
                }
                ["group", register, field, value, of] => groups.push(Group {
                    register: (*register).to_owned(),
                    field: (*field).to_owned(),
                    value: value.parse().with_context(|| line.to_owned())?,
                    of: (*of).to_owned(),
                }),
                ["command", name, of] => _ = commands.insert((*name).to_owned(), (*of).to_owned()),
                [at, bits, name, of @ ..] if of.len() < 2 => {
                    let member = Member {
                        at: at.parse().with_context(|| line.to_owned())?,
                        bits: bits.parse().with_context(|| line.to_owned())?,
                        name: (*name).to_owned(),
                        of: of.first().map(|of| (*of).to_owned()),
                    };
                    let of = current.as_ref().and_then(|name| structures.get_mut(name));
                    of.context("a field of no structure")?.push(member);
                }
                _ => bail!("{FILE}: {line:?} is no structure, field or command"),
            }
        }
        Ok(Self { structures, commands, registers, groups })
    }

    /// The fields of the input of the command of that name, in order.
    ///
    /// # Errors
    /// A command or a structure that is not in the file.
    pub(super) fn places(&self, command: &str) -> Result<Vec<Place>> {
        let of = self.commands.get(command).with_context(|| format!("{FILE} has no command {command}"))?;
        let mut places = Vec::new();
        self.add(&[of], 0, &mut places)?;
        places.sort_by_key(|place| place.at);
        Ok(places)
    }

    fn add(&self, path: &[&str], base: usize, places: &mut Vec<Place>) -> Result<()> {
        let of = path.last().copied().unwrap_or_default();
        let members = self.structures.get(of).with_context(|| format!("{FILE} has no structure {of}"))?;
        for member in members {
            let at = base + member.at;
            match &member.of {
                Some(inner) if member.bits > 0 => self.add(&[path, &[inner]].concat(), at, places)?,
                _ => places.push(Place {
                    path: path.iter().map(|of| (*of).to_owned()).collect(),
                    name: member.name.clone(),
                    within: member.at,
                    at,
                    bits: member.bits,
                }),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_within_structures() {
        let text = "# head\nstruct inner 8\n8 24 qpn\nstruct outer 24\n0 16 opcode\n64 64 context inner\n128 0 pas\n\
                    command MAKE outer\n";
        let interface = Interface::parse(text).unwrap();
        let places = interface.places("MAKE").unwrap();
        let seen: Vec<_> = places.iter().map(|p| (p.key(), p.at, p.spelled())).collect();
        let expected = [
            ("outer.opcode", 0, "0x0 [31:16]"),
            ("inner.qpn", 72, "0x0 [23:0]"),
            ("outer.pas", 128, "0x10 on"),
        ];
        assert_eq!(seen, expected.map(|(key, at, spelled)| (key.to_owned(), at, spelled.to_owned())));
        assert!(interface.places("OTHER").is_err());
        assert!(Interface::parse("8 24 qpn").is_err() && Interface::parse("one two").is_err());
    }
}
