//! A guest's memory keys: lists of pieces that are long to walk, large changes, signatures, pages that are not there.

use std::time::Duration;

use hca_driver::umr::{KeyKind, page_list, pieces, strided};
use hca_driver::vfio_user::VfioUserBus;
use hca_driver::wqe::SendOp;
use hca_driver::{Access, Bus, Dma, Event, Hca, KeyChange, Registrar, SendRequest, Sge};
use hca_spec::bsf::{BSF_WITH_INLINE, Bsf, Dif, GUARD_CRC};
use hca_spec::cmd::{CreateMkeyIn, ObjectOut};
use hca_spec::command::Opcode;
use hca_spec::ids::{Mkey, Pd};
use hca_spec::mkc::{ANY_QP, AccessMode, Mkc};

use super::Row;
use super::stage::{Attacker, Failure};
use super::work::{PIECES, flood, take};
use crate::pair::{Options, Pair};

/// The cases.
pub const ROWS: &[Row] = &[
    Row::new("guest: WQEs that gather from the ends of 60 keys of 65536 pieces, which is refused", |a| {
        refused(gather(a, |pair| {
            let list = vec![pair.ends[0].sge(0, 1); LONGEST];
            indirect(pair, &pieces(&list), LONGEST as u64).map(|key| (key, LONGEST as u32 - 1, 1))
        }))
    }),
    Row::new("guest: WQEs that gather from the ends of 1 key of 65536 pieces", |a| {
        gather_from(a, 1, |pair| {
            let list = vec![pair.ends[0].sge(0, 1); LONGEST];
            indirect(pair, &pieces(&list), LONGEST as u64).map(|key| (key, LONGEST as u32 - 1, 1))
        })
    }),
    Row::new("guest: WQEs that gather 64 KiB in pieces of 1 byte from 60 keys", |a| {
        gather(a, |pair| {
            let list = vec![pair.ends[0].sge(0, 1); LONGEST];
            indirect(pair, &pieces(&list), LONGEST as u64).map(|key| (key, 0, LONGEST as u32))
        })
    }),
    Row::new("guest: WQEs that gather 4 KiB in strides of 1 byte from 60 keys", |a| {
        gather(a, |pair| {
            let mut list = strided(1 << 24, &[(pair.ends[0].sge(0, 1), 0)]);
            // No stride at all: the same byte, over and over.
            list[OCTWORD..][..2].fill(0);
            indirect(pair, &list, 1 << 24).map(|key| (key, 0, 1 << 12))
        })
    }),
    Row::new(
        "guest: WQEs that gather 15 bytes each from 60 keys with 65534 empty pieces between bytes, refused",
        |a| {
            refused(gather(a, |pair| {
                let byte = pair.ends[0].sge(0, 1);
                let mut pieces = vec![(Sge { len: 0, ..byte }, 0); LONGEST - 2];
                pieces.push((byte, 0));
                let list = strided(1 << 24, &pieces);
                indirect(pair, &list, 1 << 24).map(|key| (key, 0, 15))
            }))
        },
    ),
    Row::new("guest: WQEs that gather from keys of keys, four deep", |a| {
        gather(a, |pair| {
            let mut list = vec![pair.ends[0].sge(0, 1); 64];
            let mut len = 64;
            for _ in 0..3 {
                let key = indirect(pair, &pieces(&list), len)?;
                list = vec![Sge { address: 0, len: len as u32, key }; 64];
                len *= 64;
            }
            let key = indirect(pair, &pieces(&list), len)?;
            Ok((key, 0, 1 << 13))
        })
    }),
    Row::new("guest: UMR with the longest lists of pieces", |a| changes(a, false)),
    Row::new("guest: UMR with the longest lists of pages", |a| changes(a, true)),
    Row::new("guest: writes of 1 MiB through signature keys", signatures),
    Row::new("guest: page faults that are never mended", faults),
];

/// Pieces of a list: what `log_max_klm_list_size` says.
const LONGEST: usize = 1 << 16;
/// Bytes of a unit of translations.
const OCTWORD: usize = 16;

/// A key of pieces, made by a command that brings the translations.
fn indirect(pair: &mut Pair<VfioUserBus>, list: &[u8], len: u64) -> Result<Mkey, Failure> {
    let pd = pair.ends[0].pd;
    Ok(made(&mut pair.hcas[0], pd, AccessMode::Klm, list, len)?)
}

/// CREATE_MKEY with translations.
///
/// # Errors
/// The command failed.
pub fn made<B: Bus>(
    hca: &mut Hca<B>,
    pd: Pd,
    mode: AccessMode,
    list: &[u8],
    len: u64,
) -> Result<Mkey, hca_driver::Error> {
    let units = list.len().div_ceil(OCTWORD) as u32;
    let mut input = CreateMkeyIn::new();
    input.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, units);
    let mkc = input.mkc_mut();
    mkc.set_access_mode(mode).set(Mkc::LEN, len).set(Mkc::LOG_PAGE_SIZE, 12);
    mkc.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, units).set(Mkc::PD, pd.0).set(Mkc::QPN, ANY_QP);
    mkc.set(Mkc::LR, 1).set(Mkc::LW, 1).set(Mkc::RR, 1).set(Mkc::RW, 1).set(Mkc::MKEY_7_0, 1);
    let input = [input.bytes(), list].concat();
    let out = hca.execute(Opcode::CreateMkey, 0, input, ObjectOut::SIZE)?;
    Ok(Mkey::new(ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER), 1))
}

/// Writes whose data come from [`PIECES`] pieces of a key; `make` gives the key, and place and length of the piece.
fn gather(
    attacker: &Attacker,
    make: impl Fn(&mut Pair<VfioUserBus>) -> Result<(Mkey, u32, u32), Failure>,
) -> Result<String, Failure> {
    gather_from(attacker, PIECES, make)
}

/// What one access looks at has a bound (`mkey/walk.rs`): beyond it, requests fail.
fn refused(result: Result<String, Failure>) -> Result<String, Failure> {
    match result {
        Ok(done) => Err(format!("it was carried out: {done}").into()),
        Err(why) if why.to_string().ends_with("requests failed") => Ok(why.to_string()),
        Err(why) => Err(why),
    }
}

/// The same with so many pieces.
fn gather_from(
    attacker: &Attacker,
    count: usize,
    make: impl Fn(&mut Pair<VfioUserBus>) -> Result<(Mkey, u32, u32), Failure>,
) -> Result<String, Failure> {
    let mut key = None;
    let options = Options { memory: 1 << 16, mtu: 5, send_blocks: 1024, ..Options::default() };
    // What is written goes to one place over and over: the peer's memory is shorter than the message.
    let mut sink = None;
    flood(attacker, &options, |pair, i| {
        let made = match key {
            Some(made) => made,
            None => *key.insert(make(pair).map_err(|_| hca_driver::Error::Invalid("no key"))?),
        };
        let (key, at, len) = made;
        let pieces = vec![Sge { address: at.into(), len, key }; count];
        let whole = u64::from(len) * count as u64;
        let far = match sink {
            Some(far) => far,
            None => *sink.insert(wide(pair, whole)?),
        };
        pair.ends[0].qp.queue_send(&SendRequest::write(i, &pieces, 0, far))
    })
}

/// A key of end 1 of at least so many bytes: its first page, over and over.
fn wide(pair: &mut Pair<VfioUserBus>, len: u64) -> Result<Mkey, hca_driver::Error> {
    let pages = len.div_ceil(4096).max(1);
    let page = pair.ends[1].memory.bus_address() & !4095;
    let list = vec![page; pages as usize];
    let pd = pair.ends[1].pd;
    Ok(pair.hcas[0].register_pages(pd, &list, 12, 0, pages * 4096, Access::ALL)?.key)
}

/// A key's translations replaced by as many as one request can bring, out of memory.
fn changes(attacker: &Attacker, pages: bool) -> Result<String, Failure> {
    /// What the request's field can say, whole chunks of 64 bytes.
    const UNITS: usize = 65532;
    let options = Options { memory: UNITS * OCTWORD, fast_registration: true, ..Options::default() };
    let mut pair = attacker.pair(&options)?;
    let (pd, sge) = (pair.ends[0].pd, pair.ends[0].sge(0, UNITS * OCTWORD));
    let list = match pages {
        true => page_list(&vec![pair.ends[0].memory.bus_address() & !4095; 2 * UNITS]),
        false => pieces(&vec![pair.ends[0].sge(0, 64); UNITS]),
    };
    pair.fill(0, 0, &list);
    let kind = if pages { KeyKind::Pages(12) } else { KeyKind::Pieces };
    let key = pair.hcas[0].alloc_key(pd, kind, UNITS as u32, false)?;
    let change = KeyChange::new(key).enable(key.variant()).access(Access::ALL).range(0, 64);
    let mut done = 0;
    for _ in attacker.rounds() {
        let pieces = [sge];
        let request = SendRequest::new(1, SendOp::Change(change), &pieces);
        while pair.ends[0].qp.queue_send(&request).is_ok() {}
        pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
        std::thread::sleep(Duration::from_millis(1));
        let (more, errors) = take(&mut pair);
        if errors > 0 {
            return Err(format!("{errors} changes were refused").into());
        }
        done += more;
    }
    match done {
        0 => Err("no change was made".into()),
        _ => Ok(format!("{done} changes of 1 MiB")),
    }
}

fn t10(memory: bool) -> Bsf {
    let mut bsf = Bsf::new();
    bsf.set(Bsf::PARTS, BSF_WITH_INLINE).set(Bsf::CHECK_MASK, 0xff).set(Bsf::RAW_DATA_SIZE, u32::MAX);
    let dif = match memory {
        true => bsf.set(Bsf::MEMORY, 1).memory_dif_mut(),
        false => bsf.set(Bsf::WIRE, 1).wire_dif_mut(),
    };
    dif.set(Dif::VALID, 1).set(Dif::REFRESH, 1).set(Dif::REPEAT, 1).set(Dif::GUARD, GUARD_CRC);
    dif.set(Dif::APP_MASK, 0xffff);
    bsf
}

/// Blocks get their signatures on the way out, at one end.
fn signatures(attacker: &Attacker) -> Result<String, Failure> {
    const BLOCKS: usize = 2048;
    const LEN: usize = BLOCKS * 520;
    let mut pair =
        attacker.pair(&Options { memory: LEN, mtu: 5, send_blocks: 1024, ..Options::default() })?;
    let pd = pair.ends[0].pd;
    let psvs = pair.hcas[0].create_psvs(pd, 2)?;
    let key = pair.hcas[0].alloc_signature_key(pd, 4)?;
    let mut bsf = t10(false);
    bsf.set(Bsf::MEMORY_PSV, psvs[0]).set(Bsf::WIRE_PSV, psvs[1]);
    let change = KeyChange::new(key).enable(key.variant()).access(Access::ALL);
    let change = change.range(0, (BLOCKS * 512) as u64).signatures(bsf, 1);
    let list = pieces(&[pair.ends[0].sge(0, BLOCKS * 512)]);
    pair.send(0, &SendRequest::new(1, SendOp::Change(change), &[]).inline(&list));
    pair.sent_ok(0, 1);
    for psv in psvs {
        pair.send(0, &SendRequest::new(2, SendOp::SetPsv { psv, value: 0 }, &[]));
        pair.sent_ok(0, 2);
    }
    let far = pair.ends[1].mr;
    let sge = [Sge { address: 0, len: LEN as u32, key }];
    let mut done = 0;
    for _ in attacker.rounds() {
        let request = SendRequest::write(3, &sge, far.address, far.key);
        while pair.ends[0].qp.queue_send(&request).is_ok() {}
        pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
        std::thread::sleep(Duration::from_millis(1));
        let (more, errors) = take(&mut pair);
        if errors > 0 {
            return Err(format!("{errors} writes failed").into());
        }
        done += more;
    }
    match done {
        0 => Err("no write was done".into()),
        _ => Ok(format!("{done} writes")),
    }
}

/// Each fault is answered with "go on" though the page is still not there.
fn faults(attacker: &Attacker) -> Result<String, Failure> {
    const BASE: u64 = 0x7f00_0000_0000;
    const PAGES: usize = 64;
    let mut pair = attacker.pair(&Options::default())?;
    let pd = pair.ends[1].pd;
    let mut eq = pair.hcas[0].create_page_fault_eq(1024, 1)?;
    let mut registrar = Registrar::new(&mut pair.hcas[0])?;
    let region = registrar.register(&mut pair.hcas[0], pd, BASE, PAGES, Access::ALL)?;
    let sge = [pair.ends[0].sge(0, 4096)];
    let mut faults = 0;
    for _ in attacker.rounds() {
        let write = SendRequest::write(1, &sge, region.address, region.key);
        while pair.ends[0].qp.queue_send(&write).is_ok() {}
        pair.ends[0].qp.ring_doorbell(pair.hcas[0].bus_mut());
        while let Some(event) = eq.poll() {
            if let Event::PageFault(fault) = event {
                pair.hcas[0].resume_page_fault(&fault, false)?;
                faults += 1;
            }
        }
        eq.update(pair.hcas[0].bus_mut());
    }
    match faults {
        0 => Err("no page fault".into()),
        _ => Ok(format!("{faults} faults")),
    }
}
