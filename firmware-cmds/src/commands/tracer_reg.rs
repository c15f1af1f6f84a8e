//! Registers of the firmware's tracer ([`crate::tracer`]).
//!
//! Source: the mlx5 driver (`diag/fw_tracer.c`): it writes MTRC_STDB to read it, and takes traces after MTRC_CAP, CONF and CTRL.

use hca_spec::cmd::reg;
use hca_spec::tracer::{
    CORE_DUMP_GENERAL, CoreDump, MODE_MEMORY, MtrcCap, MtrcConf, MtrcCtrl, MtrcStdb, SELECT_STATUS,
};

use super::register::Denied;
use crate::effect::Effect;
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::tracer::{LOG_MOST_PAGES, Message, STRING_EVENT, STRINGS_AT, strings};

/// Whether it is one of these.
pub(super) fn is_one(register: u32) -> bool {
    matches!(register, reg::MTRC_CAP | reg::MTRC_CONF | reg::MTRC_STDB | reg::MTRC_CTRL | reg::CORE_DUMP)
}

/// Whether accesses to it are traced: to read traces must not make more of them.
pub(super) fn is_traced(register: u32) -> bool {
    !is_one(register)
}

/// Most bytes of strings at a time.
const MOST_AT_ONCE: u32 = 256;

const NOT_YOURS: Failure = bad_param("tracer: this function does not have it (MTRC_CAP trace_owner)");

/// Reads or writes one of them: what came, and what goes back.
pub(super) fn access(
    fw: &mut Firmware,
    register: u32,
    write: bool,
    data: &[u8],
    effects: &mut Vec<Effect>,
) -> Result<Vec<u8>, Denied> {
    const WRITE_ONLY: Failure = bad_param("CORE_DUMP: op_mod: it can't be read");
    Ok(match register {
        reg::MTRC_CAP => capabilities(fw, write, data, effects),
        reg::MTRC_CONF => configuration(fw, write, data)?,
        reg::MTRC_STDB => piece_of_strings(data)?,
        reg::MTRC_CTRL => control(fw, write, data, effects)?,
        _ if write => dump(fw, data, effects)?,
        _ => return Err(Denied::Method(WRITE_ONLY.of(register))),
    })
}

fn capabilities(fw: &mut Firmware, write: bool, data: &[u8], effects: &mut Vec<Effect>) -> Vec<u8> {
    let me = fw.config.function;
    let tracer = &mut fw.ports.tracer;
    if write {
        match MtrcCap::from_prefix_or_zero(data).get(MtrcCap::TRACE_OWNER) {
            1 => tracer.acquire(me),
            _ if tracer.release(me) => effects.push(Effect::TracerReleased),
            _ => {}
        }
    }
    let mut out = MtrcCap::new();
    out.set(MtrcCap::TRACE_OWNER, tracer.is_of(me).into()).set(MtrcCap::TRACE_TO_MEMORY, 1);
    out.set(MtrcCap::NUM_STRING_DB, 1).set(MtrcCap::LOG_MAX_TRACE_BUFFER_SIZE, LOG_MOST_PAGES);
    out.set(MtrcCap::FIRST_STRING_TRACE, STRING_EVENT).set(MtrcCap::NUM_STRING_TRACE, 0);
    out.set(MtrcCap::STRING_DB_BASE_ADDRESS, STRINGS_AT);
    out.set(MtrcCap::STRING_DB_SIZE, strings().len() as u32);
    out.bytes().to_vec()
}

fn configuration(fw: &mut Firmware, write: bool, data: &[u8]) -> Result<Vec<u8>, Failure> {
    const MODE: Failure = bad_param("MTRC_CONF: trace_mode must be 1 (into memory)");
    const PAGES: Failure = bad_param("MTRC_CONF: log_trace_buffer_size is more than the largest buffer");
    let me = fw.config.function;
    let tracer = &mut fw.ports.tracer;
    if write {
        let new = MtrcConf::from_prefix_or_zero(data);
        let (mode, pages) = (new.get(MtrcConf::TRACE_MODE), new.get(MtrcConf::LOG_TRACE_BUFFER_SIZE));
        if !tracer.is_of(me) {
            return Err(NOT_YOURS.of(reg::MTRC_CONF));
        }
        if mode != MODE_MEMORY {
            return Err(MODE.got(mode));
        }
        if pages > LOG_MOST_PAGES {
            return Err(PAGES.got(pages).limit(LOG_MOST_PAGES));
        }
        tracer.configure(new.get(MtrcConf::TRACE_MKEY), pages);
    }
    let mut out = MtrcConf::new();
    out.set(MtrcConf::TRACE_MODE, MODE_MEMORY).set(MtrcConf::LOG_TRACE_BUFFER_SIZE, tracer.log_pages);
    out.set(MtrcConf::TRACE_MKEY, tracer.key);
    Ok(out.bytes().to_vec())
}

fn piece_of_strings(data: &[u8]) -> Result<Vec<u8>, Failure> {
    const INDEX: Failure = bad_param("MTRC_STDB: string_db_index: there is one database, 0");
    const SIZE: Failure = bad_param("MTRC_STDB: read_size: at most 256 bytes can be read at a time");
    const OFFSET: Failure = bad_param("MTRC_STDB: start_offset: the piece is not inside the database");
    let head = MtrcStdb::from_prefix_or_zero(data);
    let (index, size) = (head.get(MtrcStdb::STRING_DB_INDEX), head.get(MtrcStdb::READ_SIZE));
    let offset = head.get(MtrcStdb::START_OFFSET);
    if index != 0 {
        return Err(INDEX.got(index).limit(0u32));
    }
    if size > MOST_AT_ONCE {
        return Err(SIZE.got(size).limit(MOST_AT_ONCE));
    }
    let from = offset as usize;
    let piece = strings().get(from..from.saturating_add(size as usize));
    let piece = piece.ok_or(OFFSET.got(offset).limit(strings().len() as u64))?;
    Ok([head.bytes(), piece].concat())
}

fn control(
    fw: &mut Firmware,
    write: bool,
    data: &[u8],
    effects: &mut Vec<Effect>,
) -> Result<Vec<u8>, Failure> {
    const STATUS: Failure = bad_param("MTRC_CTRL: trace_status must be 0 (off) or 1 (on)");
    let me = fw.config.function;
    let tracer = &mut fw.ports.tracer;
    if write {
        let new = MtrcCtrl::from_prefix_or_zero(data);
        let status = new.get(MtrcCtrl::TRACE_STATUS);
        if !tracer.is_of(me) {
            return Err(NOT_YOURS.of(reg::MTRC_CTRL));
        }
        if new.get(MtrcCtrl::MODIFY_FIELD_SELECT) & SELECT_STATUS != 0 {
            if status > 1 {
                return Err(STATUS.got(status).limit(1u32));
            }
            tracer.on = status == 1;
        }
        if new.get(MtrcCtrl::ARM_EVENT) == 1 {
            tracer.armed = true;
        }
        effects.push(Effect::TracerTurned);
    }
    let mut out = MtrcCtrl::new();
    out.set(MtrcCtrl::TRACE_STATUS, tracer.on.into()).set(MtrcCtrl::ARM_EVENT, tracer.armed.into());
    out.set(MtrcCtrl::CURRENT_TIMESTAMP_H, (tracer.time() >> 32) as u32);
    out.set(MtrcCtrl::CURRENT_TIMESTAMP_L, tracer.time() as u32);
    Ok(out.bytes().to_vec())
}

/// What the firmware is about becomes messages, which are written at once.
fn dump(fw: &mut Firmware, data: &[u8], effects: &mut Vec<Effect>) -> Result<Vec<u8>, Failure> {
    const KIND: Failure = bad_param("CORE_DUMP: core_dump_type must be 0 (of the adapter)");
    let wanted = CoreDump::from_prefix_or_zero(data);
    let kind = wanted.get(CoreDump::CORE_DUMP_TYPE);
    if kind != CORE_DUMP_GENERAL {
        return Err(KIND.got(kind).limit(CORE_DUMP_GENERAL));
    }
    if !fw.ports.tracer.is_of(fw.config.function) {
        return Err(NOT_YOURS.of(reg::CORE_DUMP));
    }
    let (now, pages) = (fw.snapshot(), fw.page_accounts());
    let state = Message::State {
        function: fw.config.function,
        state: fw.state as u32,
        given: pages.given,
        used: pages.used,
    };
    fw.ports.tracer.record(state);
    fw.ports.tracer.record(Message::Objects([now.eqs, now.cqs, now.qps, now.srqs, now.mkeys, now.pds]));
    effects.push(Effect::TracesDue);
    Ok(wanted.bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, register};
    use hca_spec::command::Status;

    fn owner(b: &mut Bench, wanted: u32) -> bool {
        let mut cap = MtrcCap::new();
        cap.set(MtrcCap::TRACE_OWNER, wanted);
        let answer = register(b, reg::MTRC_CAP, true, cap.bytes());
        MtrcCap::from_prefix_or_zero(&answer.output[16..]).get(MtrcCap::TRACE_OWNER) == 1
    }

    fn turn(b: &mut Bench, status: u32) -> Status {
        let mut control = MtrcCtrl::new();
        control.set(MtrcCtrl::MODIFY_FIELD_SELECT, SELECT_STATUS).set(MtrcCtrl::TRACE_STATUS, status);
        control.set(MtrcCtrl::ARM_EVENT, 1);
        register(b, reg::MTRC_CTRL, true, control.bytes()).status()
    }

    fn configure(b: &mut Bench, mode: u32, log_pages: u32) -> Status {
        let mut conf = MtrcConf::new();
        conf.set(MtrcConf::TRACE_MODE, mode).set(MtrcConf::LOG_TRACE_BUFFER_SIZE, log_pages);
        conf.set(MtrcConf::TRACE_MKEY, 0x1200);
        register(b, reg::MTRC_CONF, true, conf.bytes()).status()
    }

    /// The way of a driver: it takes the tracer, says where traces go, turns it on.
    #[test]
    fn taken_and_turned_on() {
        let mut b = Bench::initialized();
        assert_eq!(configure(&mut b, 1, 6), Status::BadParam, "not taken");
        assert_eq!(turn(&mut b, 1), Status::BadParam);
        assert!(owner(&mut b, 1));
        assert_eq!((configure(&mut b, 0, 6), configure(&mut b, 1, 11)), (Status::BadParam, Status::BadParam));
        assert_eq!(configure(&mut b, 1, 6), Status::Ok);
        b.effects.clear();
        assert_eq!((turn(&mut b, 2), turn(&mut b, 1)), (Status::BadParam, Status::Ok));
        assert_eq!(b.effects, [Effect::TracerTurned]);
        assert_eq!(b.fw.ports.tracer.target().map(|(_, key)| key), Some(0x1200));
        let read = register(&mut b, reg::MTRC_CONF, false, &[0; MtrcConf::SIZE]).output;
        assert_eq!(MtrcConf::from_prefix_or_zero(&read[16..]).get(MtrcConf::TRACE_MKEY), 0x1200);
        b.effects.clear();
        assert!(!owner(&mut b, 0));
        assert_eq!(b.effects, [Effect::TracerReleased]);
        assert_eq!(b.fw.ports.tracer.target(), None);
    }

    /// The whole database in the driver's pieces: 256 bytes, then 64.
    #[test]
    fn strings_in_pieces() {
        let mut b = Bench::initialized();
        let mut all = Vec::new();
        let piece = |b: &mut Bench, index, offset: usize, size: u32| {
            let mut head = MtrcStdb::new();
            head.set(MtrcStdb::STRING_DB_INDEX, index).set(MtrcStdb::READ_SIZE, size);
            head.set(MtrcStdb::START_OFFSET, offset as u32);
            let mut data = head.bytes().to_vec();
            data.resize(0x108, 0);
            register(b, reg::MTRC_STDB, true, &data)
        };
        while strings().len() - all.len() >= 256 {
            all.extend_from_slice(&piece(&mut b, 0, all.len(), 256).output[24..]);
        }
        while all.len() < strings().len() {
            let more = piece(&mut b, 0, all.len(), 64);
            all.extend_from_slice(&more.output[24..]);
        }
        assert_eq!(all, strings());
        for (index, offset, size) in [(1, 0, 64), (0, 0, 320), (0, all.len(), 64), (0, usize::MAX, 64)] {
            assert_eq!(piece(&mut b, index, offset, size).status(), Status::BadParam);
        }
    }

    /// Commands are traced, accesses to the tracer itself are not.
    #[test]
    fn what_is_traced() {
        let mut b = Bench::initialized();
        owner(&mut b, 1);
        configure(&mut b, 1, 6);
        turn(&mut b, 1);
        while b.fw.ports.tracer.block().is_some() {}
        turn(&mut b, 1);
        assert_eq!(b.fw.ports.tracer.block(), None);
        register(&mut b, reg::MGIR, false, &[0; 0xa0]);
        assert!(b.fw.ports.tracer.block().is_some());
        b.effects.clear();
        assert_eq!(register(&mut b, reg::CORE_DUMP, true, &[0; 0x40]).status(), Status::Ok);
        assert_eq!(b.effects, [Effect::TracesDue]);
        assert!(b.fw.ports.tracer.block().is_some());
        assert_eq!(register(&mut b, reg::CORE_DUMP, false, &[0; 0x40]).status(), Status::BadParam);
        let of_a_queue = [&[0, 0, 0, 1][..], &[0; 0x3c]].concat();
        assert_eq!(register(&mut b, reg::CORE_DUMP, true, &of_a_queue).status(), Status::BadParam);
    }
}
