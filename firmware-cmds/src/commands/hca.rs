//! Bringing the adapter up and down, capabilities, pages.
//!
//! Source: PRM "ENABLE_HCA", "INIT_HCA", "TEARDOWN_HCA", "QUERY_ISSI", "QUERY_HCA_CAP", "QUERY_PAGES",
//! "MANAGE_PAGES", "QUERY_ADAPTER".

use hca_spec::be64;
use hca_spec::caps::{Atomic, General, TYPE_ATOMIC, TYPE_GENERAL};
use hca_spec::cmd::{
    CAP_CURRENT, FunctionIn, ManagePagesOut, PAGES_BOOT, PAGES_CANT_GIVE, PAGES_GIVE, PAGES_INIT,
    PAGES_REGULAR, PAGES_TAKE, QueryAdapterOut, QueryHcaCapOut, QueryIssiOut, QueryPagesOut,
    QuerySpecialContextsOut, SetHcaCapIn, SetIssiIn,
};
use hca_spec::command::{InHeader, Status};

use super::{Outcome, done, view};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, no_room};
use crate::firmware::{Firmware, State};
use crate::pages::NotTaken;
use crate::profile::VENDOR_ID;

const SELF_ONLY: Failure = bad_param("function_id: this adapter has one function, 0");

pub(super) fn enable(fw: &mut Firmware) -> Outcome {
    const TWICE: Failure =
        Failure::new(Status::BadSystemState, "ENABLE_HCA: the function is enabled already");
    if fw.state != State::Disabled {
        return Err(TWICE);
    }
    fw.state = State::Enabled;
    Ok(done())
}

pub(super) fn disable(fw: &mut Firmware, effects: &mut Vec<Effect>) -> Outcome {
    let mut left = fw.snapshot();
    if let Some(at_teardown) = fw.teardown_snapshot.take() {
        left = crate::firmware::Snapshot { pages: left.pages, ..at_teardown };
    }
    fw.at_last_teardown = Some(left);
    fw.drop_objects(effects);
    fw.state = State::Disabled;
    fw.issi = 0;
    fw.general = fw.general_max;
    fw.atomic = crate::profile::atomic_max();
    fw.pages = Default::default();
    Ok(done())
}

pub(super) fn init(fw: &mut Firmware) -> Outcome {
    const TWICE: Failure =
        Failure::new(Status::BadSystemState, "INIT_HCA: the adapter is initialized already");
    const PAGES: Failure = Failure::new(
        Status::NoResources,
        "INIT_HCA: the host gave fewer pages than QUERY_PAGES asks for (MANAGE_PAGES comes first)",
    );
    if fw.state == State::Initialized {
        return Err(TWICE);
    }
    if fw.pages.init() > 0 {
        return Err(PAGES);
    }
    fw.state = State::Initialized;
    Ok(done())
}

pub(super) fn teardown(fw: &mut Firmware, effects: &mut Vec<Effect>) -> Outcome {
    fw.teardown_snapshot = Some(fw.snapshot());
    fw.drop_objects(effects);
    fw.state = State::Enabled;
    Ok(done())
}

pub(super) fn query_issi(fw: &Firmware) -> Outcome {
    let mut out = QueryIssiOut::new();
    // ISSI 0 and 1.
    out.set(QueryIssiOut::CURRENT_ISSI, fw.issi).set(QueryIssiOut::SUPPORTED_ISSI_DW0, 0b11);
    Ok(out.bytes().to_vec())
}

pub(super) fn set_issi(fw: &mut Firmware, input: &[u8]) -> Outcome {
    const UNKNOWN: Failure = bad_param("SET_ISSI: only 0 and 1 are supported");
    let issi = view::<SetIssiIn>(input)?.get(SetIssiIn::CURRENT_ISSI);
    if issi > 1 {
        return Err(UNKNOWN);
    }
    fw.issi = issi;
    Ok(done())
}

pub(super) fn query_pages(fw: &Firmware, input: &[u8]) -> Outcome {
    const WHICH: Failure = bad_param("QUERY_PAGES: op_mod must be 1 (boot), 2 (init) or 3 (regular)");
    if view::<FunctionIn>(input)?.get(FunctionIn::FUNCTION_ID) != 0 {
        return Err(SELF_ONLY);
    }
    let pages = match view::<InHeader>(input)?.get(InHeader::OP_MOD) {
        PAGES_BOOT => fw.pages.boot(),
        PAGES_INIT => fw.pages.init(),
        PAGES_REGULAR => 0,
        _ => return Err(WHICH),
    };
    let mut out = QueryPagesOut::new();
    out.set(QueryPagesOut::NUM_PAGES, pages);
    Ok(out.bytes().to_vec())
}

pub(super) fn manage_pages(fw: &mut Firmware, input: &[u8], output_len: usize) -> Outcome {
    const WHICH: Failure = bad_param("MANAGE_PAGES: op_mod must be 0 (can't give), 1 (give) or 2 (take)");
    const SHORT_LIST: Failure =
        Failure::new(Status::BadInputLength, "MANAGE_PAGES: the list is shorter than input_num_entries");
    const UNALIGNED: Failure = bad_param("MANAGE_PAGES: a page address is not a multiple of 4096");
    const TWICE: Failure = bad_param("MANAGE_PAGES: a page is given twice");
    const TOO_MANY: Failure = no_room("MANAGE_PAGES: more pages than the firmware can use");
    const SHORT_OUTPUT: Failure =
        Failure::new(Status::BadOutputLength, "MANAGE_PAGES: the output has no room for the pages");
    let fields = view::<FunctionIn>(input)?;
    if fields.get(FunctionIn::FUNCTION_ID) != 0 {
        return Err(SELF_ONLY);
    }
    let n = fields.get(FunctionIn::INPUT_NUM_ENTRIES);
    match view::<InHeader>(input)?.get(InHeader::OP_MOD) {
        PAGES_CANT_GIVE => fw.pages.cant_give(),
        PAGES_GIVE => {
            let list = input.get(FunctionIn::SIZE..).unwrap_or_default();
            if (list.len() / 8) < n as usize {
                return Err(SHORT_LIST);
            }
            let pages = list.chunks_exact(8).take(n as usize).map(|p| be64(p, 0));
            if pages.clone().any(|p| p % 4096 != 0) {
                return Err(UNALIGNED);
            }
            fw.pages.give(n as usize, pages).map_err(|why| match why {
                NotTaken::Twice => TWICE,
                NotTaken::TooMany => TOO_MANY,
            })?;
        }
        PAGES_TAKE => {
            // Pages that the output has no room for would be lost.
            if output_len < ManagePagesOut::SIZE + fw.pages.takeable(n) as usize * 8 {
                return Err(SHORT_OUTPUT);
            }
            let pages = fw.pages.take(n);
            let mut out = ManagePagesOut::new();
            out.set(ManagePagesOut::OUTPUT_NUM_ENTRIES, pages.len() as u32);
            let mut out = out.bytes().to_vec();
            for page in pages {
                out.extend_from_slice(&page.to_be_bytes());
            }
            return Ok(out);
        }
        _ => return Err(WHICH),
    }
    Ok(done())
}

pub(super) fn query_cap(fw: &Firmware, input: &[u8]) -> Outcome {
    const TYPE: Failure = bad_param("QUERY_HCA_CAP: this adapter does not have the capability type");
    let op_mod = view::<InHeader>(input)?.get(InHeader::OP_MOD);
    let current = op_mod & 1 == CAP_CURRENT;
    let mut out = Box::new(QueryHcaCapOut::new());
    match op_mod >> 1 {
        TYPE_GENERAL => *out.general_mut() = if current { fw.general } else { fw.general_max },
        TYPE_ATOMIC => {
            *out.atomic_mut() = if current { fw.atomic } else { crate::profile::atomic_max() };
        }
        _ => return Err(TYPE),
    }
    Ok(out.bytes().to_vec())
}

pub(super) fn set_cap(fw: &mut Firmware, input: &[u8]) -> Outcome {
    const TYPE: Failure = bad_param("SET_HCA_CAP: the capability type can't be set");
    const LATE: Failure = Failure::new(Status::BadSystemState, "SET_HCA_CAP: legal only before INIT_HCA");
    const ABOVE: Failure = bad_param("SET_HCA_CAP: a value is above the adapter's maximum");
    if fw.state == State::Initialized {
        return Err(LATE);
    }
    let new = view::<SetHcaCapIn>(input)?;
    match new.get(SetHcaCapIn::OP_MOD) >> 1 {
        TYPE_GENERAL => {
            let new = new.general();
            for field in
                [General::LOG_MAX_QP, General::LOG_MAX_CQ, General::LOG_MAX_MKEY, General::LOG_MAX_EQ]
            {
                if new.get(field) > fw.general_max.get(field) {
                    return Err(ABOVE);
                }
                fw.general.set(field, new.get(field));
            }
            fw.general.set(General::PKEY_TABLE_SIZE, new.get(General::PKEY_TABLE_SIZE));
            fw.general.set(General::LOG_UAR_PAGE_SZ, new.get(General::LOG_UAR_PAGE_SZ));
        }
        TYPE_ATOMIC => {
            let mode = new.atomic().get(Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE);
            if mode > 1 {
                return Err(ABOVE);
            }
            fw.atomic.set(Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE, mode);
        }
        _ => return Err(TYPE),
    }
    Ok(done())
}

pub(super) fn query_adapter(fw: &Firmware) -> Outcome {
    let mut out = QueryAdapterOut::new();
    out.set(QueryAdapterOut::IEEE_VENDOR_ID, VENDOR_ID);
    let mut psid = [0; 16];
    let text = fw.config.psid.as_bytes();
    let n = text.len().min(psid.len());
    psid[..n].copy_from_slice(&text[..n]);
    out.set(QueryAdapterOut::PSID_H, be64(&psid, 0)).set(QueryAdapterOut::PSID_L, be64(&psid, 8));
    Ok(out.bytes().to_vec())
}

pub(super) fn query_special_contexts() -> Outcome {
    // No key is reserved: the capabilities that announce them are off.
    Ok(QuerySpecialContextsOut::new().bytes().to_vec())
}
