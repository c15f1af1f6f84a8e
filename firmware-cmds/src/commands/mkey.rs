//! Memory keys. Source: PRM "CREATE_MKEY", "DESTROY_MKEY", "QUERY_MKEY".

use hca_spec::bsf::BSF_OCTWORDS;
use hca_spec::caps::General;
use hca_spec::cmd::{CreateMkeyIn, QueryMkeyOut};
use hca_spec::command::Status;
use hca_spec::mkc::{ANY_QP, AccessMode, Mkc};

use super::call::{done, named, reply};
use super::crypto;
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::{MemoryKey, Translation};
use crate::limits::MAX_KEY_OCTWORDS;
use crate::list::List;
use crate::object::Kind;

const NO_MKEY: Failure = bad_resource("there is no mkey of that index");
/// Smallest page of an MTT key: log2.
const MIN_PAGE: u32 = 12;
/// Bytes of a translation unit: two MTTs or one KLM.
const OCTWORD: usize = 16;

/// Whether the page list of a key that is alive from the start covers its region.
fn check_region(ctx: &Mkc, pages: u64) -> Result<(), Failure> {
    const WRAPS: Failure =
        bad_param("CREATE_MKEY: start_addr, len: the region goes beyond the end of the address space");
    const UNCOVERED: Failure = bad_param("CREATE_MKEY: translations: the list does not cover the region");
    const PAGE: Failure = bad_param("CREATE_MKEY: log_page_size is below 12");
    let shift = ctx.get(Mkc::LOG_PAGE_SIZE);
    if shift < MIN_PAGE {
        return Err(PAGE.got(shift).least(MIN_PAGE));
    }
    let (start, len) = (ctx.get(Mkc::START_ADDR), ctx.get(Mkc::LEN));
    let in_page = start & ((1 << shift) - 1);
    // The very last byte of the address space may be in the region.
    start.checked_add(len.saturating_sub(1)).ok_or(WRAPS.got(start))?;
    let needed = len.checked_add(in_page).ok_or(WRAPS.got(start))?.div_ceil(1 << shift);
    if len > 0 && ctx.get(Mkc::LENGTH64) == 0 && needed > pages {
        return Err(UNCOVERED.got(pages).least(needed));
    }
    Ok(())
}

/// Whether the region of a key of device memory is in a piece that was allocated.
fn check_device_memory(fw: &Firmware, ctx: &Mkc, none: Failure) -> Result<(), Failure> {
    const PIECE: Failure = bad_param(
        "CREATE_MKEY: start_addr, len: the region is not in a piece of device memory (ALLOC_MEMIC)",
    );
    if !fw.has_device_memory() {
        return Err(none);
    }
    let (start, len) = (ctx.get(Mkc::START_ADDR), ctx.get(Mkc::LEN));
    if ctx.get(Mkc::FREE) == 0 && !fw.icm.device_memory.has(start, len) {
        return Err(PIECE.got(start));
    }
    Ok(())
}

/// The same of memory for entries of flow tables.
fn check_sw_icm(fw: &Firmware, ctx: &Mkc, none: Failure) -> Result<(), Failure> {
    const PIECE: Failure = bad_param(
        "CREATE_MKEY: start_addr, len: the region is not in memory for entries (CREATE_GENERAL_OBJECT, SW_ICM)",
    );
    if !fw.icm.steering.offer().has_software() {
        return Err(none);
    }
    let (start, len) = (ctx.get(Mkc::START_ADDR), ctx.get(Mkc::LEN));
    if ctx.get(Mkc::FREE) == 0 && !fw.icm.steering.memory.has(start, len) {
        return Err(PIECE.got(start));
    }
    Ok(())
}

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const MODE: Failure = bad_param("CREATE_MKEY: access_mode: this adapter does not have it");
    const NO_PD: Failure = bad_resource("CREATE_MKEY: pd: the protection domain is not allocated");
    const MANY: Failure =
        no_room("CREATE_MKEY: translations_octword_size: more translations than a key can have");
    const KLMS: Failure = no_room("CREATE_MKEY: more pieces than log_max_klm_list_size allows");
    const LIST: Failure = Failure::new(
        Status::BadInputLength,
        "CREATE_MKEY: the list is shorter than translations_octword_actual_size",
    );
    const ROOM: Failure =
        bad_param("CREATE_MKEY: more translations are given than translations_octword_size");
    const BSF: Failure = bad_param(
        "CREATE_MKEY: bsf_octword_size: a key has room for one signature part (BSF) at most, and one encryption part if it encrypts",
    );
    const ENCRYPTION: Failure = bad_param(
        "CREATE_MKEY: crypto_en must be 0: the adapter does not encrypt, or there is no such value",
    );
    const PARTLESS: Failure = bad_param(
        "CREATE_MKEY: crypto_en: a key that encrypts has room for an encryption part (bsf_en, bsf_octword_size), which work requests fill (umr_en)",
    );
    const FULL: Failure = no_room("CREATE_MKEY: every mkey is in use");
    let create = call.view::<CreateMkeyIn>()?;
    let ctx = *create.mkc();
    let bits = ctx.get(Mkc::ACCESS_MODE_4_2) << 2 | ctx.get(Mkc::ACCESS_MODE_1_0);
    let mode = ctx.access_mode().ok_or(MODE.got(bits))?;
    match mode {
        AccessMode::Memic => check_device_memory(fw, &ctx, MODE.got(bits))?,
        AccessMode::SwIcm => check_sw_icm(fw, &ctx, MODE.got(bits))?,
        _ => {}
    }
    let free = ctx.get(Mkc::FREE) == 1;
    let pd = ctx.get(Mkc::PD);
    if fw.icm.pds.get(pd).is_none() {
        return Err(NO_PD.got(pd));
    }
    let encrypts = ctx.get(Mkc::CRYPTO_EN);
    if encrypts > u32::from(crypto::has_encryption(fw)) {
        return Err(ENCRYPTION.got(encrypts));
    }
    let (room, parts) = (ctx.get(Mkc::BSF_OCTWORD_SIZE), BSF_OCTWORDS * (1 + encrypts));
    if room > parts {
        return Err(BSF.got(room).limit(parts));
    }
    if encrypts == 1 && (ctx.get(Mkc::BSF_EN) == 0 || room < BSF_OCTWORDS || ctx.get(Mkc::UMR_EN) == 0) {
        return Err(PARTLESS.got(room).least(BSF_OCTWORDS));
    }
    let capacity = match mode {
        AccessMode::Pa | AccessMode::Memic | AccessMode::SwIcm => 0,
        _ => ctx.get(Mkc::TRANSLATIONS_OCTWORD_SIZE),
    };
    if capacity > MAX_KEY_OCTWORDS {
        return Err(MANY.got(capacity).limit(MAX_KEY_OCTWORDS));
    }
    // Equally long pieces are found without a search: they may be as many as pages.
    let klms = 1 << fw.general.get(General::LOG_MAX_KLM_LIST_SIZE);
    if mode == AccessMode::Klm && capacity > klms {
        return Err(KLMS.got(capacity).limit(klms));
    }
    let given = create.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE);
    // A list may have 16 MiB: it is not gone through here, nor copied.
    let mut list = call.kept.take();
    if call.user_pages.is_none() {
        let wanted = (given as usize).saturating_mul(OCTWORD);
        if list.len() < wanted {
            return Err(LIST.got(list.len() as u64 / OCTWORD as u64).least(given));
        }
        list.truncate(wanted);
    }
    let listed = !matches!(mode, AccessMode::Pa | AccessMode::Memic | AccessMode::SwIcm);
    if listed && given > capacity {
        return Err(ROOM.got(given).limit(capacity));
    }
    if mode == AccessMode::Mtt && !free {
        check_region(&ctx, u64::from(given) * 2)?;
    }
    let counted = if !listed || call.user_pages.is_some() { 0 } else { list.len() as u64 };
    let translation = match (mode, call.user_pages) {
        (AccessMode::Pa | AccessMode::Memic | AccessMode::SwIcm, _) => Translation::None,
        (AccessMode::Mtt, Some(pages)) => Translation::User(pages.clone()),
        (AccessMode::Mtt, None) => Translation::Mtt(list),
        (AccessMode::Klm | AccessMode::Ksm, _) => Translation::Klm(list.into()),
    };
    let pg_access = create.get(CreateMkeyIn::PG_ACCESS) == 1;
    let key = MemoryKey { ctx, pg_access, translation, octwords: capacity, counted, signature: None };
    let index = fw.icm.mkeys.insert(key).map_err(|_| FULL)?;
    fw.icm.translation_bytes += counted;
    if let Some(pd) = fw.icm.pds.get_mut(pd) {
        pd.keys += 1;
    }
    named(index)
}

/// Bytes of a list from which on it is let go of elsewhere: as many as it takes some 0.1 ms to.
const LONG_LIST: u64 = 1 << 20;

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    let index = call.number();
    let key = fw.icm.mkeys.remove(index).ok_or(NO_MKEY.of(index))?;
    fw.icm.translation_bytes = fw.icm.translation_bytes.saturating_sub(key.counted);
    release_domain(fw, &key.ctx);
    // Of a list of 256 MiB that takes tens of milliseconds.
    if key.counted >= LONG_LIST {
        fw.disposal.give(key);
    }
    Ok(done())
}

fn release_domain(fw: &mut Firmware, ctx: &Mkc) {
    if let Some(pd) = fw.icm.pds.get_mut(ctx.get(Mkc::PD)) {
        pd.keys = pd.keys.saturating_sub(1);
    }
}

/// Why a UMR WQE can't do what a command could.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotChanged {
    /// There is no such key.
    NoKey,
    /// The protection domain is not allocated.
    NoDomain,
    /// The adapter has no room for more translations.
    NoRoom,
}

impl Firmware {
    /// Makes room for `bytes` of translations of a key, which a UMR WQE loads. The adapter may ask the host
    /// for pages then: that many.
    ///
    /// # Errors
    /// There is no such key, or no room; nothing changed.
    pub fn reserve_translations(&mut self, key: u32, bytes: u64) -> Result<Option<u32>, NotChanged> {
        let counted = self.icm.mkeys.get(key).ok_or(NotChanged::NoKey)?.counted;
        let more = bytes.saturating_sub(counted);
        if more == 0 {
            return Ok(None);
        }
        if !self.pages.can_lend(more) {
            // The next one finds a host that was asked again.
            self.pages.take_refusal();
            return Err(NotChanged::NoRoom);
        }
        if let Some(key) = self.icm.mkeys.get_mut(key) {
            key.counted = bytes;
        }
        self.icm.translation_bytes += more;
        Ok(self.account_pages())
    }

    /// Moves a key to another protection domain, as UMR WQEs of the driver do.
    ///
    /// # Errors
    /// Key or domain don't exist; nothing changed.
    pub fn move_key(&mut self, key: u32, pd: u32) -> Result<(), NotChanged> {
        let old = self.icm.mkeys.get(key).ok_or(NotChanged::NoKey)?.ctx;
        self.icm.pds.get_mut(pd).ok_or(NotChanged::NoDomain)?.keys += 1;
        release_domain(self, &old);
        if let Some(key) = self.icm.mkeys.get_mut(key) {
            key.ctx.set(Mkc::PD, pd);
        }
        Ok(())
    }
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let index = call.number();
    let key = fw.icm.mkeys.get(index).ok_or(NO_MKEY.of(index))?;
    let mut out = QueryMkeyOut::new();
    *out.mkc_mut() = key.ctx;
    let mut out = reply(&out);
    // The list can be far longer than the output.
    let room = call.output_len.saturating_sub(out.len());
    let add = |out: &mut Vec<u8>, list: &List| {
        out.extend(list.entries::<8>().take(room.div_ceil(8)).flatten());
    };
    match &key.translation {
        Translation::None => {}
        Translation::Mtt(list) => add(&mut out, list),
        Translation::Klm(list) => add(&mut out, list.list()),
        Translation::User(pages) => {
            let mtts = (0..).map_while(|i| pages.get(i)).take(room.div_ceil(8));
            mtts.for_each(|mtt| out.extend_from_slice(&mtt.to_be_bytes()));
        }
    }
    Ok(out)
}

/// CREATE_MKEY: two pages that can be read and written.
pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    const PAGE: u64 = 0x1000;
    let mut create = CreateMkeyIn::new();
    create.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, 1);
    let ctx = create.mkc_mut();
    ctx.set_access_mode(AccessMode::Mtt).set(Mkc::PD, fixture.number(Kind::Pd)).set(Mkc::QPN, ANY_QP);
    ctx.set(Mkc::LR, 1).set(Mkc::LW, 1).set(Mkc::RR, 1).set(Mkc::RW, 1).set(Mkc::A, 1).set(Mkc::UMR_EN, 1);
    ctx.set(Mkc::START_ADDR, fixture.queue).set(Mkc::LEN, 2 * PAGE).set(Mkc::LOG_PAGE_SIZE, MIN_PAGE);
    ctx.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 1);
    input(create.bytes(), 0, [fixture.queue, fixture.queue + PAGE])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use hca_spec::command::Opcode;

    /// A populated key of three pages from 0x1800 on, as the driver makes it for a user's memory.
    fn mtt(pd: u32) -> CreateMkeyIn {
        let mut c = CreateMkeyIn::new();
        c.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, 2);
        let m = c.mkc_mut();
        m.set_access_mode(AccessMode::Mtt).set(Mkc::PD, pd).set(Mkc::QPN, ANY_QP).set(Mkc::MKEY_7_0, 0x5a);
        m.set(Mkc::LR, 1).set(Mkc::LW, 1).set(Mkc::START_ADDR, 0x1800).set(Mkc::LEN, 0x2001);
        m.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 2).set(Mkc::LOG_PAGE_SIZE, 12);
        c
    }

    const LIST: [u64; 4] = [0xa000, 0xb000, 0xc000, 0];

    #[test]
    fn life_of_a_key() {
        let mut b = Bench::initialized();
        let pd = b.alloc(Opcode::AllocPd);
        let used = b.fw.icm.translation_bytes;
        let r = b.put_list(Opcode::CreateMkey, &mtt(pd), &LIST);
        assert_eq!(r.status(), Status::Ok);
        assert!(r.number() > 1, "lkey 0x100 ends scatter lists");
        assert_eq!(b.fw.icm.translation_bytes, used + 32);
        let r2 = b.object_into(Opcode::QueryMkey, r.number(), 0x120);
        let out = QueryMkeyOut::from_prefix_or_zero(&r2.output);
        assert_eq!(out.mkc(), mtt(pd).mkc());
        assert_eq!(hca_spec::be64(&r2.output, 0x118), 0xb000);
        b.ok(Opcode::DestroyMkey, r.number());
        assert_eq!(b.fw.icm.translation_bytes, used);
        assert_eq!(b.object(Opcode::DestroyMkey, r.number()).status(), Status::BadResource);
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized();
        let pd = b.alloc(Opcode::AllocPd);
        let mut try_key = |change: fn(&mut CreateMkeyIn)| {
            let mut c = mtt(pd);
            change(&mut c);
            b.put_list(Opcode::CreateMkey, &c, &LIST).status()
        };
        assert_eq!(try_key(|_| {}), Status::Ok);
        assert_eq!(try_key(|c| _ = c.mkc_mut().set(Mkc::PD, 77)), Status::BadResource);
        let free = |c: &mut CreateMkeyIn| _ = c.mkc_mut().set(Mkc::PD, 77).set(Mkc::FREE, 1);
        assert_eq!(try_key(free), Status::BadResource, "free keys are in a domain too");
        assert_eq!(try_key(|c| _ = c.mkc_mut().set(Mkc::ACCESS_MODE_4_2, 1)), Status::BadParam);
        assert_eq!(try_key(|c| _ = c.mkc_mut().set(Mkc::LOG_PAGE_SIZE, 11)), Status::BadParam);
        assert_eq!(try_key(|c| _ = c.mkc_mut().set(Mkc::LEN, 0x3801)), Status::BadParam, "a fifth page");
        assert_eq!(try_key(|c| _ = c.mkc_mut().set(Mkc::LEN, u64::MAX)), Status::BadParam);
        assert_eq!(try_key(|c| _ = c.mkc_mut().set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 1)), Status::BadParam);
        assert_eq!(
            try_key(|c| _ = c.mkc_mut().set(Mkc::TRANSLATIONS_OCTWORD_SIZE, u32::MAX)),
            Status::ExceedLimit
        );
        assert_eq!(try_key(|c| _ = c.mkc_mut().set(Mkc::BSF_OCTWORD_SIZE, 5)), Status::BadParam);
        assert_eq!(
            try_key(|c| _ = c.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, u32::MAX)),
            Status::BadInputLength
        );
    }

    /// The driver's memory key cache: thousands of free keys with room and no list.
    #[test]
    fn free_keys_are_cheap() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        b.page_eq(rc.uar);
        let mut c = CreateMkeyIn::new();
        let m = c.mkc_mut();
        m.set_access_mode(AccessMode::Mtt).set(Mkc::PD, rc.pd).set(Mkc::FREE, 1).set(Mkc::UMR_EN, 1);
        m.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 1 << 16).set(Mkc::LOG_PAGE_SIZE, 12);
        b.give_pages(64);
        let before = b.fw.pages.used();
        let keys: Vec<_> = (0..2048).map(|_| b.put(Opcode::CreateMkey, &c, 16).number()).collect();
        assert_eq!(b.fw.pages.used() - before, 2048 * 192 / 4096);
        keys.into_iter().for_each(|k| b.ok(Opcode::DestroyMkey, k));
        assert_eq!(b.fw.pages.used(), before);
    }

    /// What UMR work requests load is counted, bounded and forgotten with the key.
    #[test]
    fn room_for_umr() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        b.page_eq(rc.uar);
        let key = b.put_list(Opcode::CreateMkey, &mtt(rc.pd), &LIST).number();
        let used = b.fw.pages.used();
        let more = 1000 * 4096;
        let asked = b.fw.reserve_translations(key, 32 + more);
        assert!(matches!(asked, Ok(Some(900..))), "{asked:?}: what was lent");
        assert_eq!(b.fw.pages.used() - used, 1000);
        assert_eq!(b.fw.reserve_translations(key, more), Ok(None), "counted already");
        assert_eq!(b.fw.reserve_translations(key, 2 * more), Ok(None), "asked already");
        assert_eq!(b.fw.reserve_translations(key, 1 << 29), Err(NotChanged::NoRoom));
        assert_eq!(b.fw.reserve_translations(key + 1, 1), Err(NotChanged::NoKey));
        b.ok(Opcode::DestroyMkey, key);
        assert!(b.fw.pages.used() <= used);
    }

    /// A long list is not dropped by the command that ends its key.
    #[test]
    fn long_lists_are_let_go_elsewhere() {
        use crate::disposal::{Burden, Disposal};
        use std::sync::{Arc, Mutex};

        let given: Arc<Mutex<Vec<Burden>>> = Arc::default();
        let mut b = Bench::initialized();
        let (pd, to) = (b.alloc(Opcode::AllocPd), given.clone());
        b.fw.disposal = Disposal::by(move |what| to.lock().unwrap().push(what));
        for (counted, elsewhere) in [(LONG_LIST - 1, 0), (LONG_LIST, 1)] {
            let key = b.put_list(Opcode::CreateMkey, &mtt(pd), &LIST).number();
            let more = counted - 32;
            b.fw.icm.mkeys.get_mut(key).unwrap().counted += more;
            b.fw.icm.translation_bytes += more;
            b.ok(Opcode::DestroyMkey, key);
            let given = given.lock().unwrap().drain(..).filter(|what| what.is::<MemoryKey>()).count();
            assert_eq!(given, elsewhere, "{counted} bytes");
        }
    }

    /// A key holds the domain that it is in, and no other.
    #[test]
    fn keys_hold_their_domain() {
        let mut b = Bench::initialized();
        let (one, two) = (b.alloc(Opcode::AllocPd), b.alloc(Opcode::AllocPd));
        let key = b.put_list(Opcode::CreateMkey, &mtt(one), &LIST).number();
        assert_eq!(b.object(Opcode::DeallocPd, one).status(), Status::ResourceBusy);
        assert_eq!(b.fw.move_key(key, 77), Err(NotChanged::NoDomain));
        assert_eq!(b.fw.move_key(key + 1, two), Err(NotChanged::NoKey));
        assert_eq!(b.fw.move_key(key, two), Ok(()));
        b.ok(Opcode::DeallocPd, one);
        assert_eq!(b.object(Opcode::DeallocPd, two).status(), Status::ResourceBusy);
        b.ok(Opcode::DestroyMkey, key);
        b.ok(Opcode::DeallocPd, two);
    }
}
