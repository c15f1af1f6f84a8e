//! RESOURCE_DUMP: contexts of objects, as the firmware has them, in segments.
//!
//! A dump comes in parts, into the register itself or into memory. Nothing is kept between them: what a part ends with is told to
//! whoever asks, and comes back with the next request. Source: the mlx5 driver (`diag/rsc_dump.c`, and `restrack.c` of mlx5_ib for what it
//! asks for), mstflint (`resourcedump_lib`) for the order of segments.

use hca_spec::cmd::{AccessRegIn, QueryCqOut, QueryMkeyOut, QueryQpOut, reg};
use hca_spec::dump::{
    ACTIVE, ALL, DumpCommand, DumpEnd, DumpInfo, DumpMenu, DumpNotice, DumpObject, INLINE_BYTES, INLINE_FROM,
    MenuRecord, ResourceDump, segment,
};
use hca_spec::ids::Mkey;
use hca_spec::mkc::Mkc;

use crate::effect::Effect;
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::object::Kind;
use crate::personality::FirmwareVersion;

/// Most bytes of a part in memory: what one request may cost.
const MOST: usize = 16 << 10;
/// Version of the format.
const VERSION: u32 = 1;

/// What can be dumped beside the menu. Numbers are the adapter's own: drivers look them up by name.
struct Record {
    kind: u32,
    name: &'static [u8; 16],
    index: &'static [u8; 16],
    object: Kind,
    /// Of an object: its bytes.
    bytes: fn(&Firmware, u32) -> Option<Vec<u8>>,
}

const RECORDS: [Record; 7] = [
    Record {
        kind: 0x1001,
        name: b"FULL_QPC\0\0\0\0\0\0\0\0",
        index: b"QPN\0\0\0\0\0\0\0\0\0\0\0\0\0",
        object: Kind::Qp,
        bytes: |fw, n| fw.icm.qps.get(n).map(|qp| qp.ctx.bytes().to_vec()),
    },
    Record {
        kind: 0x1002,
        name: b"FULL_CQC\0\0\0\0\0\0\0\0",
        index: b"CQN\0\0\0\0\0\0\0\0\0\0\0\0\0",
        object: Kind::Cq,
        bytes: |fw, n| fw.icm.cqs.get(n).map(|cq| cq.ctx.bytes().to_vec()),
    },
    Record {
        kind: 0x1003,
        name: b"FULL_EQC\0\0\0\0\0\0\0\0",
        index: b"EQN\0\0\0\0\0\0\0\0\0\0\0\0\0",
        object: Kind::Eq,
        bytes: |fw, n| fw.icm.eqs.get(n).map(|eq| eq.ctx.bytes().to_vec()),
    },
    Record {
        kind: 0x1004,
        name: b"FULL_SRQC\0\0\0\0\0\0\0",
        index: b"SRQN\0\0\0\0\0\0\0\0\0\0\0\0",
        object: Kind::Srq,
        bytes: |fw, n| fw.icm.srqs.get(n).map(|srq| srq.ctx.bytes().to_vec()),
    },
    Record {
        kind: 0x1101,
        name: b"PRM_QUERY_QP\0\0\0\0",
        index: b"QPN\0\0\0\0\0\0\0\0\0\0\0\0\0",
        object: Kind::Qp,
        bytes: |fw, n| {
            let qp = fw.icm.qps.get(n)?;
            let mut out = QueryQpOut::new();
            out.set(QueryQpOut::OPT_PARAM_MASK, qp.opt_param_mask);
            *out.qpc_mut() = qp.ctx;
            Some(out.bytes().to_vec())
        },
    },
    Record {
        kind: 0x1102,
        name: b"PRM_QUERY_CQ\0\0\0\0",
        index: b"CQN\0\0\0\0\0\0\0\0\0\0\0\0\0",
        object: Kind::Cq,
        bytes: |fw, n| {
            let mut out = QueryCqOut::new();
            *out.cqc_mut() = fw.icm.cqs.get(n)?.ctx;
            Some(out.bytes().to_vec())
        },
    },
    Record {
        kind: 0x1103,
        name: b"PRM_QUERY_MKEY\0\0",
        index: b"MKEY\0\0\0\0\0\0\0\0\0\0\0\0",
        object: Kind::Mkey,
        bytes: |fw, n| {
            let mut out = QueryMkeyOut::new();
            *out.mkc_mut() = fw.icm.mkeys.get(n)?.ctx;
            Some(out.bytes().to_vec())
        },
    },
];

fn record_of(request: &ResourceDump) -> Option<&'static Record> {
    let kind = request.get(ResourceDump::SEGMENT_TYPE);
    RECORDS.iter().find(|record| record.kind == kind)
}

/// Where a dump goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    stage: Stage,
    /// Of a segment, the bytes that came already.
    bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// What it is about, and the menu or an error.
    Begin,
    /// Objects of that number and above.
    Objects(u32),
    End,
}

/// Bits of a place as drivers see it.
const STAGE_SHIFT: u32 = 62;
const NUMBER_SHIFT: u32 = 32;
const NUMBER: u64 = 0x3fff_ffff;

impl Place {
    fn of(opaque: u64) -> Self {
        let stage = match opaque >> STAGE_SHIFT {
            0 => Stage::Begin,
            1 => Stage::Objects((opaque >> NUMBER_SHIFT & NUMBER) as u32),
            _ => Stage::End,
        };
        Self { stage, bytes: opaque as u32 }
    }

    fn opaque(self) -> u64 {
        let stage = match self.stage {
            Stage::Begin => 0,
            Stage::Objects(number) => 1 << STAGE_SHIFT | (u64::from(number) & NUMBER) << NUMBER_SHIFT,
            Stage::End => 2 << STAGE_SHIFT,
        };
        stage | u64::from(self.bytes)
    }
}

/// The last number that a request asks for; `None`: one object alone.
fn last(request: &ResourceDump) -> Option<u32> {
    let first = request.get(ResourceDump::INDEX1);
    match request.get(ResourceDump::NUM_OF_OBJ1) {
        0 | 1 => None,
        ALL | ACTIVE => Some(u32::MAX),
        count => Some(first.saturating_add(count.saturating_sub(1))),
    }
}

/// Numbers of the objects in a table of that kind, in order, from one on.
fn numbers_from<'a>(fw: &'a Firmware, kind: Kind, from: u32) -> Box<dyn Iterator<Item = u32> + 'a> {
    let icm = &fw.icm;
    fn of<'a, T>(all: impl Iterator<Item = (u32, T)> + 'a) -> Box<dyn Iterator<Item = u32> + 'a> {
        Box::new(all.map(|(number, _)| number))
    }
    match kind {
        Kind::Qp => of(icm.qps.iter_from(from)),
        Kind::Cq => of(icm.cqs.iter_from(from)),
        Kind::Eq => of(icm.eqs.iter_from(from)),
        Kind::Srq => of(icm.srqs.iter_from(from)),
        _ => of(icm.mkeys.iter_from(from)),
    }
}

/// Objects that a part of a dump has at most: their contexts have to be up to date. `data` is what a request for that register came with.
pub fn objects(fw: &Firmware, register: u32, data: &[u8]) -> Vec<(Kind, u32)> {
    /// Least bytes of an object in a dump.
    const LEAST: usize = DumpObject::SIZE + 0x40;
    let request = ResourceDump::from_prefix_or_zero(data);
    let Some(record) = record_of(&request).filter(|_| register == reg::RESOURCE_DUMP) else {
        return Vec::new();
    };
    let first = request.get(ResourceDump::INDEX1);
    let from = match Place::of(request.get(ResourceDump::DEVICE_OPAQUE)).stage {
        Stage::Begin => first,
        Stage::Objects(number) => number.max(first),
        Stage::End => return Vec::new(),
    };
    let last = last(&request).unwrap_or(first);
    let all = numbers_from(fw, record.object, from).take_while(|number| *number <= last);
    all.take(MOST / LEAST).map(|number| (record.object, number)).collect()
}

/// The same of the input of ACCESS_REGISTER.
pub fn objects_of_command(fw: &Firmware, input: &[u8]) -> Vec<(Kind, u32)> {
    let register = AccessRegIn::from_prefix_or_zero(input).get(AccessRegIn::REGISTER_ID);
    objects(fw, register, input.get(AccessRegIn::SIZE..).unwrap_or_default())
}

/// A part of a dump: what was asked for, and what goes back. It is read as well as written.
pub(super) fn access(fw: &Firmware, data: &[u8], effects: &mut Vec<Effect>) -> Result<Vec<u8>, Failure> {
    const ROOM: Failure = bad_param("RESOURCE_DUMP: size: there must be room for four bytes");
    const KEY: Failure =
        bad_param("RESOURCE_DUMP: mkey: there is no such key, or it does not allow local writes");
    let mut out = ResourceDump::from_prefix_or_zero(data);
    let in_register = out.get(ResourceDump::INLINE_DUMP) == 1;
    let size = out.get(ResourceDump::DUMP_SIZE);
    let room = if in_register { INLINE_BYTES } else { MOST.min(size as usize) & !3 };
    let key = Mkey(out.get(ResourceDump::MKEY));
    if room == 0 {
        return Err(ROOM.got(size).limit(MOST as u64));
    }
    let context = fw.icm.mkeys.get(key.index()).map(|k| &k.ctx);
    let is_right = |ctx: &&Mkc| ctx.get(Mkc::MKEY_7_0) == u32::from(key.variant()) && ctx.get(Mkc::LW) == 1;
    if !in_register && context.filter(is_right).is_none() {
        return Err(KEY.got(key.0));
    }
    let begin = Place::of(out.get(ResourceDump::DEVICE_OPAQUE));
    let (bytes, next) = part(fw, &out, begin, room);
    out.set(ResourceDump::SEQ_NUM, out.get(ResourceDump::SEQ_NUM).wrapping_add(1) & 0xf);
    out.set(ResourceDump::MORE_DUMP, next.is_some().into());
    out.set(ResourceDump::DEVICE_OPAQUE, next.map_or(0, Place::opaque));
    out.set(ResourceDump::DUMP_SIZE, bytes.len() as u32);
    let mut register = out.bytes().to_vec();
    if in_register {
        register.iter_mut().skip(INLINE_FROM).zip(&bytes).for_each(|(to, from)| *to = *from);
    } else {
        effects.push(Effect::WriteByKey { key, address: out.get(ResourceDump::ADDRESS), bytes });
    }
    Ok(register)
}

/// Bytes of a part, as many as there is room for.
struct Part {
    bytes: Vec<u8>,
    room: usize,
}

impl Part {
    /// Adds a segment but for bytes that came already. If there is no room for all: how many came now, those included.
    fn add(&mut self, segment: &[u8], came: u32) -> Option<u32> {
        // It may have become shorter since.
        let rest = segment.get(came as usize..).unwrap_or_default();
        let left = self.room.saturating_sub(self.bytes.len());
        let now = rest.get(..left).unwrap_or(rest);
        self.bytes.extend_from_slice(now);
        (now.len() < rest.len()).then(|| came.saturating_add(now.len() as u32))
    }
}

/// At most that many bytes of a dump from a place on, and the place behind them.
fn part(fw: &Firmware, request: &ResourceDump, place: Place, room: usize) -> (Vec<u8>, Option<Place>) {
    let mut part = Part { bytes: Vec::new(), room };
    let Place { mut stage, bytes: mut came } = place;
    if stage == Stage::Begin {
        let (segments, next) = begin(fw, request);
        if let Some(bytes) = part.add(&segments, came) {
            return (part.bytes, Some(Place { stage, bytes }));
        }
        (stage, came) = (next, 0);
    }
    if let (Stage::Objects(from), Some(record)) = (stage, record_of(request)) {
        let last = last(request).unwrap_or(request.get(ResourceDump::INDEX1));
        for number in numbers_from(fw, record.object, from).take_while(|number| *number <= last) {
            let segment = (record.bytes)(fw, number).map(|bytes| object(record, number, &bytes));
            let came = if number == from { came } else { 0 };
            if let Some(bytes) = part.add(&segment.unwrap_or_default(), came) {
                return (part.bytes, Some(Place { stage: Stage::Objects(number), bytes }));
            }
        }
        came = 0;
    }
    let mut end = DumpEnd::new();
    end.set(DumpEnd::END_LENGTH_DW, words(DumpEnd::SIZE)).set(DumpEnd::END_KIND, segment::TERMINATE);
    let more = part.add(end.bytes(), came).map(|bytes| Place { stage: Stage::End, bytes });
    (part.bytes, more)
}

fn words(bytes: usize) -> u32 {
    (bytes / 4) as u32
}

fn begin(fw: &Firmware, request: &ResourceDump) -> (Vec<u8>, Stage) {
    let FirmwareVersion { major, minor, subminor } = fw.ports.flash.running();
    let mut info = DumpInfo::new();
    info.set(DumpInfo::INFO_LENGTH_DW, words(DumpInfo::SIZE)).set(DumpInfo::INFO_KIND, segment::INFO);
    info.set(DumpInfo::DUMP_VERSION, VERSION).set(DumpInfo::HW_VERSION, fw.personality().hardware_id);
    info.set(DumpInfo::FW_VERSION, u32::from(major) << 24 | u32::from(minor) << 16 | u32::from(subminor));
    let mut command = DumpCommand::new();
    command.set(DumpCommand::COMMAND_LENGTH_DW, words(DumpCommand::SIZE));
    command.set(DumpCommand::COMMAND_KIND, segment::COMMAND);
    command.set(DumpCommand::SEGMENT_CALLED, request.get(ResourceDump::SEGMENT_TYPE));
    command.set(DumpCommand::COMMAND_VHCA_ID, fw.config.function.0.into());
    command.set(DumpCommand::COMMAND_INDEX1, request.get(ResourceDump::INDEX1));
    command.set(DumpCommand::COMMAND_INDEX2, request.get(ResourceDump::INDEX2));
    command.set(DumpCommand::COMMAND_NUM_OF_OBJ1, request.get(ResourceDump::NUM_OF_OBJ1));
    command.set(DumpCommand::COMMAND_NUM_OF_OBJ2, request.get(ResourceDump::NUM_OF_OBJ2));
    let mut bytes = [&info.bytes()[..], command.bytes()].concat();
    let other = request.get(ResourceDump::VHCA_ID_VALID) == 1
        && request.get(ResourceDump::VHCA_ID) != u32::from(fw.config.function.0);
    let first = request.get(ResourceDump::INDEX1);
    let next = match (request.get(ResourceDump::SEGMENT_TYPE), record_of(request)) {
        _ if other => {
            bytes.extend(error(1, "objects of another function"));
            Stage::End
        }
        (segment::MENU, _) => {
            bytes.extend(menu());
            Stage::End
        }
        (_, None) => {
            bytes.extend(error(2, "no such segment"));
            Stage::End
        }
        (_, Some(record)) if last(request).is_none() && (record.bytes)(fw, first).is_none() => {
            bytes.extend(error(3, "no such object"));
            Stage::End
        }
        _ => Stage::Objects(first),
    };
    (bytes, next)
}

fn object(record: &Record, number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut head = DumpObject::new();
    head.set(DumpObject::OBJECT_LENGTH_DW, words(DumpObject::SIZE.saturating_add(bytes.len())));
    head.set(DumpObject::OBJECT_KIND, record.kind).set(DumpObject::OBJECT_INDEX1, number);
    [head.bytes(), bytes].concat()
}

/// Why there is nothing. The text has at most 32 characters.
fn error(syndrome: u32, text: &str) -> Vec<u8> {
    const TEXT: usize = 0x10;
    let mut error = DumpNotice::new();
    error.set(DumpNotice::NOTICE_LENGTH_DW, words(DumpNotice::SIZE));
    error.set(DumpNotice::NOTICE_KIND, segment::ERROR).set(DumpNotice::SYNDROME_ID, syndrome);
    error.bytes_mut().iter_mut().skip(TEXT).zip(text.bytes()).for_each(|(to, from)| *to = from);
    error.bytes().to_vec()
}

fn menu() -> Vec<u8> {
    let halves = |name: &[u8; 16]| {
        let whole = u128::from_be_bytes(*name);
        ((whole >> 64) as u64, whole as u64)
    };
    let mut head = DumpMenu::new();
    let size = DumpMenu::SIZE.saturating_add(RECORDS.len().saturating_mul(MenuRecord::SIZE));
    head.set(DumpMenu::MENU_LENGTH_DW, words(size)).set(DumpMenu::MENU_KIND, segment::MENU);
    head.set(DumpMenu::NUM_OF_RECORDS, RECORDS.len() as u32);
    let mut bytes = head.bytes().to_vec();
    for record in &RECORDS {
        let mut entry = MenuRecord::new();
        entry.set(MenuRecord::RECORD_SEGMENT_TYPE, record.kind).set(MenuRecord::SUPPORT_INDEX1, 1);
        entry.set(MenuRecord::SUPPORT_NUM_OF_OBJ1, 1).set(MenuRecord::NUM_OF_OBJ1_ALL, 1);
        entry.set(MenuRecord::NUM_OF_OBJ1_ACTIVE, 1);
        let (first, last) = halves(record.name);
        entry.set(MenuRecord::NAME_FIRST, first).set(MenuRecord::NAME_LAST, last);
        let (first, last) = halves(record.index);
        entry.set(MenuRecord::INDEX1_FIRST, first).set(MenuRecord::INDEX1_LAST, last);
        bytes.extend_from_slice(entry.bytes());
    }
    bytes
}

#[cfg(test)]
mod tests;
