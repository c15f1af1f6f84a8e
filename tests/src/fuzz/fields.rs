//! Commands and registers by their fields: the table of commands says which structures an input has, the layouts which fields; each
//! gets values at its edges.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use hca_firmware::{Execution, PortKind};
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::{InHeader, Opcode, OutHeader};
use hca_spec::ids::Lid;
use hca_spec::layout::Layout;
use hca_spec::{be32, be64, layout_named, put_be32, put_be64};

use super::commands;
use super::feed::Feed;
use super::mailbox::{Direct, direct};
use super::memory;
use super::objects::{Executor, Objects, bring_up};

/// Longest output that is asked for.
const OUTPUT: usize = 0x2000;
/// Commands of one input.
const MOST: usize = 96;

/// A field of an input: bits of a word, or 64 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// First byte of the word.
    at: usize,
    hi: u8,
    lo: u8,
}

impl Place {
    fn bits(self) -> u32 {
        u32::from(self.hi - self.lo) + 1
    }

    fn max(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// Values at its edges, and one in the middle.
    fn edges(self) -> [u64; 6] {
        [0, 1, self.max().min(2), self.max() / 2 + 1, self.max().saturating_sub(1), self.max()]
    }

    fn get(self, input: &[u8]) -> u64 {
        match self.bits() {
            64 => be64(input, self.at),
            _ => u64::from(be32(input, self.at)) >> self.lo & self.max(),
        }
    }

    fn set(self, input: &mut [u8], value: u64) {
        if self.bits() == 64 {
            return put_be64(input, self.at, value);
        }
        let mask = (self.max() as u32) << self.lo;
        let word = be32(input, self.at) & !mask | (value as u32) << self.lo & mask;
        put_be32(input, self.at, word);
    }
}

/// The fields of a structure that begins at `base`, and of those within it.
fn collect(layout: &Layout, base: usize, all: &mut Vec<Place>) {
    for field in layout.fields {
        all.push(Place { at: base + field.offset, hi: field.hi, lo: field.lo });
    }
    for view in layout.views {
        if let Some(inner) = view.layout() {
            collect(inner, base + view.offset, all);
        }
    }
}

/// The fields of a command's input but for its opcode: another one is another command.
fn fields_of(input: &[u8]) -> Vec<Place> {
    let Some(command) = commands::row_of(input) else { return Vec::new() };
    let mut all = Vec::new();
    for (layout, at) in command.layouts() {
        collect(layout, at, &mut all);
    }
    let opcode = InHeader::OPCODE.offset();
    all.retain(|place| !(place.at == opcode && place.hi == 31) && place.at + 4 <= input.len());
    all.dedup();
    all
}

/// Registers and their structures, of those that have one.
const STRUCTURES: [(u32, &str); 47] = [
    (reg::MCQS, "Mcqs"),
    (reg::MQIS, "Mqis"),
    (reg::MTCAP, "Mtcap"),
    (reg::MTRC_CTRL, "MtrcCtrl"),
    (reg::CORE_DUMP, "CoreDump"),
    (reg::CRYPTO_OPERATIONAL, "CryptoOperational"),
    (reg::PMTU, "Pmtu"),
    (reg::PMLP, "Pmlp"),
    (reg::PTYS, "Ptys"),
    (reg::PFCC, "Pfcc"),
    (reg::PPCNT, "Ppcnt"),
    (reg::PBMC, "Pbmc"),
    (reg::PPTB, "Pptb"),
    (reg::PPLM, "Pplm"),
    (reg::PCMR, "Pcmr"),
    (reg::PCAM, "Pcam"),
    (reg::QCAM, "Qcam"),
    (reg::QTCT, "Qtct"),
    (reg::QETCR, "Qetcr"),
    (reg::QPTS, "Qpts"),
    (reg::QPDPM, "Qpdpm"),
    (reg::ROCE_ACCL, "RoceAccl"),
    (reg::PDDR, "Pddr"),
    (reg::PMAOS, "Pmaos"),
    (reg::PPLR, "Pplr"),
    (reg::SLTP, "Sltp"),
    (reg::SLRG, "Slrg"),
    (reg::MLCR, "Mlcr"),
    (reg::MCIA, "Mcia"),
    (reg::MNVDA, "Mnvda"),
    (reg::MNVDI, "Mnvda"),
    (reg::MNVQC, "Mnvqc"),
    (reg::MNVIA, "Mnvia"),
    (reg::MNVGC, "Mnvgc"),
    (reg::MCAM, "Mcam"),
    (reg::MGIR, "Mgir"),
    (reg::MFRL, "Mfrl"),
    (reg::MTMP, "Mtmp"),
    (reg::MPEIN, "Mpein"),
    (reg::MPCNT, "Mpcnt"),
    (reg::MCQI, "Mcqi"),
    (reg::MCC, "Mcc"),
    (reg::MCDA, "Mcda"),
    (reg::MTRC_CAP, "MtrcCap"),
    (reg::MTRC_CONF, "MtrcConf"),
    (reg::MTRC_STDB, "MtrcStdb"),
    (reg::RESOURCE_DUMP, "ResourceDump"),
];
/// Bytes behind a register's structure: data, for those that have some.
const BEHIND: usize = 0x100;

/// Words of a register without a structure of its own.
const WORDS: usize = 16;

/// Every register that an adapter has, with a port of either kind: those of all numbers that it does not say it lacks.
fn registers() -> &'static [u32] {
    static ALL: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let mut all = BTreeSet::new();
        for kind in [PortKind::InfiniBand, PortKind::Ethernet] {
            let (mut e, _) = direct(kind);
            let is_there = |register: &u32| {
                let (input, _) = access(*register, false);
                e.execute(&input, OUTPUT);
                e.effects.clear();
                e.firmware
                    .take_refusal()
                    .is_none_or(|refusal| !refusal.why.contains("does not have the register"))
            };
            all.extend((0..=u32::from(u16::MAX)).filter(is_there));
        }
        all.into_iter().collect()
    });
    &ALL
}

/// An access to a register with zeros in it, and its fields.
fn access(register: u32, write: bool) -> (Vec<u8>, Vec<Place>) {
    let mut head = AccessRegIn::new();
    head.set(AccessRegIn::REGISTER_ID, register);
    let mut input = head.bytes().to_vec();
    let mut all = Vec::new();
    let size = match STRUCTURES.iter().find(|(known, _)| *known == register) {
        Some((_, name)) => {
            let layout = layout_named(name).expect("a structure of that name");
            collect(layout, input.len(), &mut all);
            layout.size
        }
        None => {
            all.extend((0..WORDS).map(|word| Place { at: input.len() + 4 * word, hi: 31, lo: 0 }));
            4 * WORDS
        }
    };
    input.resize(input.len() + size + BEHIND, 0);
    put_be32(&mut input, 0, (Opcode::AccessReg as u32) << 16);
    put_be32(&mut input, InHeader::OP_MOD.offset(), (!write).into());
    (input, all)
}

/// Every access to a register that is tried.
fn accesses() -> impl Iterator<Item = (Vec<u8>, Vec<Place>)> {
    registers().iter().flat_map(|register| [true, false].map(|write| access(*register, write)))
}

/// Executes a command.
///
/// # Panics
/// If the firmware does, or the output is longer than asked for or has no status.
fn run(e: &mut Direct, input: &[u8], output_len: usize) {
    match e.firmware.execute(input, output_len, &mut e.effects) {
        Execution::Done(output) => {
            assert!(output.len() <= output_len.max(8), "{} bytes, {output_len} asked for", output.len());
            assert!(output.len() >= output_len.min(8), "no status: {output:02x?}");
        }
        Execution::NeedPages => {
            let pages = commands::give_pages(0, 512);
            e.execute(&pages, OutHeader::SIZE);
        }
    }
    e.effects.clear();
}

/// What the commands did to an adapter is over with DISABLE_HCA, and it comes up again.
fn comes_up_again(mut e: Direct) {
    for opcode in [Opcode::TeardownHca, Opcode::DisableHca] {
        e.execute(&commands::object(opcode, 0), OutHeader::SIZE);
    }
    assert_eq!(e.firmware.resources().now, Default::default(), "objects survived DISABLE_HCA");
    bring_up(&mut e);
    Objects::create(&mut e, Lid(1));
}

/// Every field of every command and register with each of its edges, all others as in a valid input. Returns how many fields.
///
/// # Panics
/// As [`fields`].
pub fn every_field_at_its_edges() -> usize {
    let mut count = 0;
    for kind in [PortKind::InfiniBand, PortKind::Ethernet] {
        let (_, objects) = direct(kind);
        let of_commands = commands::templates(&objects).into_iter().map(|input| {
            let fields = fields_of(&input);
            (input, fields)
        });
        for (input, fields) in of_commands.chain(accesses()) {
            let (mut e, _) = direct(kind);
            for place in &fields {
                count += 1;
                let was = place.get(&input);
                for value in place.edges().into_iter().filter(|value| *value != was) {
                    let mut changed = input.clone();
                    place.set(&mut changed, value);
                    run(&mut e, &changed, OUTPUT);
                }
            }
            comes_up_again(e);
        }
    }
    count
}

/// Runs an adapter's firmware, up to INIT_HCA and with objects of every kind, on commands and accesses to registers in which `data`
/// says what some fields are.
///
/// # Panics
/// If the firmware does, or breaks a promise: an output is never longer than asked for, always has a status, and a good adapter
/// comes up again afterwards.
pub fn fields(data: &[u8]) {
    let mut feed = Feed::new(data);
    let kind = feed.pick(&[PortKind::InfiniBand, PortKind::Ethernet]);
    let (mut e, objects) = direct(kind);
    let templates = commands::templates(&objects);
    let accesses: Vec<_> = accesses().collect();
    let numbers = [objects.uar, objects.pd, memory::EQ as u32];
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        let (mut input, fields) = if feed.one_in(4) {
            accesses[usize::from(feed.u16()) % accesses.len()].clone()
        } else {
            let input = templates[usize::from(feed.u16()) % templates.len()].clone();
            let fields = fields_of(&input);
            (input, fields)
        };
        for _ in 0..feed.below(5) {
            let Some(place) = usize::from(feed.u16()).checked_rem(fields.len()).map(|n| fields[n]) else {
                break;
            };
            let value = match feed.below(4) {
                0 => feed.pick(&place.edges()),
                1 => 1u64.checked_shl(u32::from(feed.u8()) % place.bits()).unwrap_or(0),
                2 => u64::from(feed.pick(&numbers)),
                _ => feed.u64(),
            };
            place.set(&mut input, value);
        }
        if feed.one_in(16) {
            input.truncate(usize::from(feed.u16()) % (input.len() + 1));
        }
        let output_len = if feed.one_in(4) { usize::from(feed.u16()) % OUTPUT } else { OUTPUT };
        run(&mut e, &input, output_len);
    }
    comes_up_again(e);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_are_set() {
        let mut input = vec![0xa5; 24];
        for place in
            [Place { at: 4, hi: 31, lo: 31 }, Place { at: 8, hi: 23, lo: 8 }, Place { at: 8, hi: 63, lo: 0 }]
        {
            for value in place.edges() {
                let before = input.clone();
                place.set(&mut input, value);
                assert_eq!(place.get(&input), value);
                place.set(&mut input, place.get(&before));
                assert_eq!(input, before, "others stay");
            }
        }
    }

    #[test]
    fn commands_have_fields() {
        let (_, objects) = direct(PortKind::Ethernet);
        let templates = commands::templates(&objects);
        let with = templates.iter().filter(|input| fields_of(input).len() > 1).count();
        assert!(with * 10 > templates.len() * 9, "{with} of {}", templates.len());
        assert!(accesses().all(|(_, fields)| !fields.is_empty()));
    }

    /// Those with a structure, and those without.
    #[test]
    fn registers_are_those_of_the_firmware() {
        let all = registers();
        for (register, name) in STRUCTURES {
            assert!(all.contains(&register), "{name}");
        }
        let without = [reg::PAOS, reg::PCAP, reg::PVLC, reg::NODE_DESC, reg::HOST_ENDIANNESS];
        assert_eq!(all.len(), STRUCTURES.len() + without.len(), "{all:x?}");
        assert!(without.iter().all(|register| all.contains(register)), "{all:x?}");
        assert!(!all.contains(&reg::DTOR), "the adapter has no default timeouts");
    }
}
