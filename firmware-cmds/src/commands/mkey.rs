//! Memory keys. Source: PRM "CREATE_MKEY", "DESTROY_MKEY", "QUERY_MKEY".

use hca_spec::be64;
use hca_spec::cmd::{CreateMkeyIn, ObjectIn, ObjectOut, PAS_OFFSET, QueryMkeyOut};
use hca_spec::command::Status;
use hca_spec::mkc::{AccessMode, Klm, Mkc};
use zerocopy::FromBytes;

use super::{Outcome, done, view};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::{MemoryKey, Translation};

const NO_MKEY: Failure = bad_resource("there is no mkey of that index");
/// Most translations of one key, in 16-byte units: 2^21 pages.
const MAX_OCTWORDS: u32 = 1 << 24;

/// Translation units that come with a CREATE_MKEY input.
pub(super) fn given_octwords(input: &[u8]) -> u64 {
    let Ok(create) = view::<CreateMkeyIn>(input) else { return 0 };
    u64::from(create.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE).min(MAX_OCTWORDS))
}

pub(super) fn create(fw: &mut Firmware, input: &[u8]) -> Outcome {
    const MODE: Failure = bad_param("CREATE_MKEY: the access mode is not one this adapter has");
    const NO_PD: Failure = bad_resource("CREATE_MKEY: the protection domain is not allocated");
    const MANY: Failure = no_room("CREATE_MKEY: more translations than a key can have");
    const LIST: Failure = Failure::new(
        Status::BadInputLength,
        "CREATE_MKEY: the list is shorter than translations_octword_actual_size",
    );
    const ROOM: Failure =
        bad_param("CREATE_MKEY: more translations are given than translations_octword_size");
    const PAGE: Failure = bad_param("CREATE_MKEY: log_page_size is below 12");
    let create = view::<CreateMkeyIn>(input)?;
    let ctx = *create.mkc();
    let mode = ctx.access_mode().ok_or(MODE)?;
    let free = ctx.get(Mkc::FREE) == 1;
    if !free && fw.icm.pds.get(ctx.get(Mkc::PD)).is_none() {
        return Err(NO_PD);
    }
    let capacity = ctx.get(Mkc::TRANSLATIONS_OCTWORD_SIZE);
    if capacity > MAX_OCTWORDS {
        return Err(MANY);
    }
    let given = create.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE);
    let list = input.get(PAS_OFFSET..).unwrap_or_default();
    if given as usize > list.len() / 16 {
        return Err(LIST);
    }
    if mode != AccessMode::Pa && given > capacity {
        return Err(ROOM);
    }
    if given > 0 && mode == AccessMode::Mtt && ctx.get(Mkc::LOG_PAGE_SIZE) < 12 {
        return Err(PAGE);
    }
    let list = &list[..given as usize * 16];
    let translation = match mode {
        AccessMode::Pa => Translation::None,
        AccessMode::Mtt => Translation::Mtt(list.chunks_exact(8).map(|e| be64(e, 0)).collect()),
        AccessMode::Klm | AccessMode::Ksm => {
            Translation::Klm(list.chunks_exact(16).filter_map(|e| Klm::read_from_bytes(e).ok()).collect())
        }
    };
    let counted = list.len() as u64;
    let pg_access = create.get(CreateMkeyIn::PG_ACCESS) == 1;
    let key = MemoryKey { ctx, pg_access, translation, octwords: capacity, counted, loaded: 0 };
    let index = fw.icm.mkeys.insert(key).map_err(|_| no_room("CREATE_MKEY: every mkey is in use"))?;
    fw.icm.translation_bytes += counted;
    Ok(ObjectOut::new().set(ObjectOut::NUMBER, index).bytes().to_vec())
}

pub(super) fn destroy(fw: &mut Firmware, input: &[u8]) -> Outcome {
    let index = view::<ObjectIn>(input)?.get(ObjectIn::NUMBER);
    let key = fw.icm.mkeys.remove(index).ok_or(NO_MKEY)?;
    fw.icm.release_translations(&key);
    Ok(done())
}

pub(super) fn query(fw: &Firmware, input: &[u8], output_len: usize) -> Outcome {
    let index = view::<ObjectIn>(input)?.get(ObjectIn::NUMBER);
    let key = fw.icm.mkeys.get(index).ok_or(NO_MKEY)?;
    let mut out = QueryMkeyOut::new();
    *out.mkc_mut() = key.ctx;
    let mut out = out.bytes().to_vec();
    match &key.translation {
        Translation::None => {}
        // A key can have more translations than any output has room for.
        Translation::Mtt(list) => {
            list.iter().take(output_len / 8).for_each(|e| out.extend_from_slice(&e.to_be_bytes()));
        }
        Translation::Klm(list) => {
            list.iter().take(output_len / 16).for_each(|e| out.extend_from_slice(e.bytes()));
        }
    }
    Ok(out)
}
