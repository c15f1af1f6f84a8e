//! Work requests that change memory keys: UMR, local and remote invalidate.
//!
//! Keys are in the firmware's tables. A work request is checked against them here, and becomes the [`Change`] that it asks
//! for; who has the tables makes it.
//!
//! Source: PRM "UMR WQE", "UMR Control Segment"; which mask bit stands for which field as the mlx5
//! driver uses them.

use std::borrow::Cow;

use hca_firmware::icm::{Encryption, MemoryKey, Signature, Translation};
use hca_firmware::list::List;
use hca_firmware::{Icm, NotChanged};
use hca_spec::bsf::{BSF_OCTWORDS, Bsf, SetPsv};
use hca_spec::cqe::Syndrome;
use hca_spec::crypto::{BSF_TYPE_CRYPTO, CryptoBsf};
use hca_spec::ids::Mkey;
use hca_spec::layout::Field;
use hca_spec::mkc::{ANY_QP, AccessMode, Mkc};
use hca_spec::qpc::{Qpc, ServiceType};
use hca_spec::wqe::{SendOpcode, UmrCtrl, umr_mask};
use zerocopy::FromBytes;

use super::QueuePair;
use super::wqe::{Umr, Wqe};
use crate::engines::crypto;
use crate::engines::mkey::{Fault, check_invalidate};
use crate::engines::signature::Plan;
use crate::engines::view::View;

/// Bytes of one translation unit: two MTTs or one KLM.
const OCTWORD: usize = 16;
/// Translations are allocated and loaded in chunks of 64 bytes: drivers pad their lists to that, beyond
/// the size the key was created with (the mlx5 driver's UMR alignment).
const CHUNK: u64 = 4;
/// Translations that one WQE may load: 65535 units of 16 bytes.
const MAX_LOAD: usize = 0xffff * OCTWORD;

/// Fields that a mask bit covers wholly; the protection domain counts its keys and is apart.
const SIMPLE: [(u64, Field<Mkc>); 13] = [
    (umr_mask::SIG_ERR, Mkc::EXPECTED_SIGERR_COUNT),
    (umr_mask::BSF_EN, Mkc::BSF_EN),
    (umr_mask::PAGE_SIZE, Mkc::LOG_PAGE_SIZE),
    (umr_mask::EN_RINVAL, Mkc::EN_RINVAL),
    (umr_mask::KEY, Mkc::MKEY_7_0),
    (umr_mask::LR, Mkc::LR),
    (umr_mask::LW, Mkc::LW),
    (umr_mask::RR, Mkc::RR),
    (umr_mask::RW, Mkc::RW),
    (umr_mask::A, Mkc::A),
    (umr_mask::FREE, Mkc::FREE),
    (umr_mask::RELAXED_ORDERING_WRITE, Mkc::RELAXED_ORDERING_WRITE),
    (umr_mask::RELAXED_ORDERING_READ, Mkc::RELAXED_ORDERING_READ),
];

/// Why a work request on a key fails.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) syndrome: Syndrome,
    pub(crate) why: String,
}

impl Refused {
    /// The key is not in the state that the work request needs, or is not this queue pair's to change.
    fn key(why: impl Into<String>) -> Self {
        Self { syndrome: Syndrome::MemoryWindowBind, why: why.into() }
    }

    /// The work request makes no sense.
    fn request(why: impl Into<String>) -> Self {
        Self { syndrome: Syndrome::LocalQpOperation, why: why.into() }
    }
}

impl From<NotChanged> for Refused {
    fn from(why: NotChanged) -> Self {
        Self::key(match why {
            NotChanged::NoKey => NO_KEY,
            NotChanged::NoDomain => "the new protection domain is not allocated",
            NotChanged::NoRoom => "the adapter has no room for more translations",
        })
    }
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self { syndrome: Syndrome::LocalProtection, why: fault.to_string() }
    }
}

const NO_KEY: &str = "no such key";

/// Bytes of the list in memory that a work request loads into a key.
pub(crate) fn list_bytes(wqe: &Wqe) -> usize {
    let Some(umr) = wqe.umr.as_ref().filter(|umr| umr.ctrl.get(UmrCtrl::INLINE) == 0) else { return 0 };
    let wanted = umr.ctrl.get(UmrCtrl::XLT_OCTOWORDS) as usize * OCTWORD;
    (wqe.length.min(MAX_LOAD as u64) as usize).min(wanted)
}

/// What a work request that sends nothing changes.
#[must_use]
#[derive(Debug)]
pub(crate) enum Change<'a> {
    /// Nothing.
    Nothing,
    /// The key is out of use ([`Mkc::FREE`]).
    Free(Mkey),
    /// A PSV has a new value.
    Psv { number: u32, value: u64 },
    /// A key has other translations, attributes, or another signature part.
    Load(Load<'a>),
}

/// What is loaded into a key.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    pub(crate) key: Mkey,
    /// Translations, from that unit on.
    translations: Cow<'a, [u8]>,
    at: u64,
    mask: u64,
    mkc: &'a Mkc,
    parts: Option<Parts>,
}

impl Load<'_> {
    /// Bytes of translations that the key then has room for; `None`: as before.
    pub(crate) fn room(&self) -> Option<u64> {
        let len = self.translations.len() as u64;
        (len > 0).then_some(self.at * OCTWORD as u64 + len)
    }

    /// The protection domain that the key goes to, if it changes.
    pub(crate) fn domain(&self) -> Option<u32> {
        (self.mask & umr_mask::PD != 0).then(|| self.mkc.get(Mkc::PD))
    }

    /// Loads the translations, for which there is room.
    pub(crate) fn translate(&self, entry: &mut MemoryKey) {
        if !self.translations.is_empty() {
            store(entry, self.at, &self.translations);
        }
    }

    /// Loads everything else but the domain.
    pub(crate) fn change(&self, entry: &mut MemoryKey) {
        apply_mask(&mut entry.ctx, self.mkc, self.mask);
        sign(entry, self.parts);
    }
}

impl QueuePair {
    /// What a work request that sends nothing changes; `list`: what it loads from memory ([`list_bytes`]).
    ///
    /// # Errors
    /// Why it fails.
    pub(crate) fn key_change<'a>(
        &self,
        view: &View<'_>,
        wqe: &'a Wqe,
        list: Vec<u8>,
    ) -> Result<Change<'a>, Refused> {
        match wqe.opcode {
            SendOpcode::LocalInval => {
                let key = Mkey(wqe.imm);
                check_invalidate(view.icm(), self.accessor(), key)
                    .map_err(|fault| Refused::key(fault.to_string()))?;
                Ok(Change::Free(key))
            }
            SendOpcode::Umr => match &wqe.umr {
                Some(umr) => self.load(view.icm(), Mkey(wqe.imm), umr, list).map(Change::Load),
                None => Err(Refused::request("no UMR control segment")),
            },
            SendOpcode::SetPsv => match &wqe.psv {
                Some(psv) => self.set_psv(view.icm(), psv),
                None => Err(Refused::request("no PSV segment")),
            },
            _ => Ok(Change::Nothing),
        }
    }

    /// A new value of a PSV of the queue pair's domain.
    fn set_psv<'a>(&self, icm: &Icm, segment: &SetPsv) -> Result<Change<'a>, Refused> {
        let number = segment.get(SetPsv::PSV);
        match icm.psvs.get(number).filter(|psv| psv.pd == self.params.pd.0) {
            Some(_) => Ok(Change::Psv { number, value: segment.get(SetPsv::VALUE) }),
            None => Err(Refused {
                syndrome: Syndrome::LocalProtection,
                why: format!("PSV {number:#x} does not exist in the queue pair's protection domain"),
            }),
        }
    }

    fn load<'a>(&self, icm: &Icm, key: Mkey, umr: &'a Umr, list: Vec<u8>) -> Result<Load<'a>, Refused> {
        let wanted = umr.ctrl.get(UmrCtrl::XLT_OCTOWORDS) as usize * OCTWORD;
        let translations = if umr.ctrl.get(UmrCtrl::INLINE) == 1 {
            umr.inline.get(..wanted.min(umr.inline.len())).unwrap_or_default().into()
        } else {
            Cow::from(list)
        };
        let parts = parts(umr, wanted)?;
        let mask = umr.ctrl.get(UmrCtrl::MKEY_MASK);
        let entry = icm.mkeys.get(key.index()).ok_or(Refused::key(NO_KEY))?;
        self.check_umr(icm, &entry.ctx, umr)?;
        let encrypts = entry.ctx.get(Mkc::CRYPTO_EN) == 1;
        if let Some(parts) = &parts {
            parts.check(&entry.ctx, encrypts)?;
        }
        if encrypts && mask & umr_mask::BSF_EN != 0 && umr.mkc.get(Mkc::BSF_EN) == 0 {
            return Err(Refused::key(
                "a key that encrypts (crypto_en) can't be used without its parts (bsf_en)",
            ));
        }
        if mask & umr_mask::PD != 0 && icm.pds.get(umr.mkc.get(Mkc::PD)).is_none() {
            return Err(NotChanged::NoDomain.into());
        }
        let mut at = 0;
        if !translations.is_empty() {
            if umr.ctrl.get(UmrCtrl::TRANSLATION_OFFSET_EN) == 1 {
                at = u64::from(umr.ctrl.get(UmrCtrl::XLT_OFFSET_47_16)) << 16
                    | u64::from(umr.ctrl.get(UmrCtrl::XLT_OFFSET));
            }
            check_room(entry, at, &translations)?;
        }
        Ok(Load { key, translations, at, mask, mkc: &umr.mkc, parts })
    }

    /// Whether this queue pair may change the key, and the key is in the state that the WQE wants.
    fn check_umr(&self, icm: &Icm, ctx: &Mkc, umr: &Umr) -> Result<(), Refused> {
        if ctx.get(Mkc::UMR_EN) == 0 {
            return Err(Refused::key("the key was not created for UMR (umr_en)"));
        }
        // The driver's own queue pair registers memory for every program.
        if self.service != ServiceType::RegUmr {
            if ctx.get(Mkc::PD) != self.params.pd.0 {
                return Err(Refused::key("the key belongs to another protection domain"));
            }
            if umr.ctrl.get(UmrCtrl::MKEY_MASK) & umr_mask::PD != 0
                && umr.mkc.get(Mkc::PD) != self.params.pd.0
            {
                return Err(Refused::key("only a registration queue pair moves keys between domains"));
            }
            // Page lists hold bus addresses: a program that could load them would reach all memory.
            let indirect = matches!(ctx.access_mode(), Some(AccessMode::Klm | AccessMode::Ksm));
            if !indirect && !self.fast_registration(icm) {
                return Err(Refused::key("the queue pair may not change keys of physical pages (fre)"));
            }
        }
        let free = ctx.get(Mkc::FREE) == 1;
        if umr.ctrl.get(UmrCtrl::CHECK_FREE) == 1 && free {
            return Err(Refused::key("the key is free, the WQE asks that it is not"));
        }
        if umr.ctrl.get(UmrCtrl::CHECK_NOT_FREE) == 1 && !free {
            return Err(Refused::key("the key is in use, the WQE asks that it is free"));
        }
        let owner = ctx.get(Mkc::QPN);
        if umr.ctrl.get(UmrCtrl::CHECK_QPN) == 1 && owner != ANY_QP && owner != self.qpn.0 {
            return Err(Refused::key(format!("the key is bound to QP {owner:#x}")));
        }
        Ok(())
    }

    /// Whether the queue pair may load page lists: the kernel's may.
    fn fast_registration(&self, icm: &Icm) -> bool {
        icm.qps.get(self.qpn.0).is_some_and(|qp| qp.ctx.get(Qpc::FRE) == 1)
    }
}

/// Signature and encryption part of a key, as a work request loads them.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// Zeros, if there is only an encryption part.
    signature: Bsf,
    encryption: Option<CryptoBsf>,
    /// 16-byte units of both.
    units: u32,
}

impl Parts {
    /// Whether the key has room for them, and encrypts if they say so.
    fn check(&self, ctx: &Mkc, encrypts: bool) -> Result<(), Refused> {
        if ctx.get(Mkc::BSF_OCTWORD_SIZE) < self.units {
            return Err(Refused::request("the key has no room for its parts (BSF): bsf_octword_size"));
        }
        if self.encryption.is_some() && !encrypts {
            return Err(Refused::key("the key was not created to encrypt (crypto_en)"));
        }
        Ok(())
    }
}

/// The parts behind the inline translations, which take `at` bytes: a signature part, an encryption part, or both in this order.
fn parts(umr: &Umr, at: usize) -> Result<Option<Parts>, Refused> {
    const SHORT: &str = "the WQE ends before its signature or encryption part (BSF)";
    let units = umr.ctrl.get(UmrCtrl::BSF_OCTOWORDS);
    if units == 0 || umr.ctrl.get(UmrCtrl::TRANSLATION_OFFSET_EN) == 1 {
        return Ok(None);
    }
    let both = units == 2 * BSF_OCTWORDS;
    if !(both || units == BSF_OCTWORDS) || umr.ctrl.get(UmrCtrl::INLINE) == 0 {
        return Err(Refused::request(
            "signature and encryption parts (BSF) must be inline, and 64 bytes long each",
        ));
    }
    let bytes = umr.inline.get(at..).unwrap_or_default();
    let (first, rest) = Bsf::read_from_prefix(bytes).map_err(|_| Refused::request(SHORT))?;
    let only = CryptoBsf::from_prefix_or_zero(first.bytes());
    let (signature, encryption) = if both {
        (first, Some(CryptoBsf::read_from_prefix(rest).map_err(|_| Refused::request(SHORT))?.0))
    } else if only.get(CryptoBsf::TYPE) == BSF_TYPE_CRYPTO {
        (Bsf::new(), Some(only))
    } else {
        (first, None)
    };
    let domains = Plan::new(&signature).map_err(Refused::key)?;
    if let Some(encryption) = &encryption {
        let plan = crypto::Plan::new(encryption).map_err(Refused::key)?;
        if domains.has_both() && !plan.takes_both() {
            return Err(Refused::key(
                "its encryption part (BSF) has signatures of what is encrypted, and both domains have some",
            ));
        }
    }
    Ok(Some(Parts { signature, encryption, units }))
}

/// Loads signature and encryption part, and forgets what was told if the driver has seen it.
fn sign(entry: &mut MemoryKey, parts: Option<Parts>) {
    let count = entry.ctx.get(Mkc::EXPECTED_SIGERR_COUNT);
    if let Some(signature) = &mut entry.signature {
        signature.told = signature.told.filter(|told| *told == count);
    }
    if let Some(Parts { signature: bsf, encryption, .. }) = parts {
        let told = entry.signature.take().and_then(|old| old.told);
        let crypto = encryption.map(|bsf| Encryption { bsf, ..Encryption::default() });
        entry.signature = Some(Box::new(Signature { bsf, crypto, told, ..Signature::default() }));
    }
}

fn apply_mask(ctx: &mut Mkc, new: &Mkc, mask: u64) {
    for (bit, field) in SIMPLE {
        if mask & bit != 0 {
            ctx.set(field, new.get(field));
        }
    }
    if mask & umr_mask::LEN != 0 {
        ctx.set(Mkc::LEN, new.get(Mkc::LEN)).set(Mkc::LENGTH64, new.get(Mkc::LENGTH64));
    }
    if mask & umr_mask::START_ADDR != 0 {
        ctx.set(Mkc::START_ADDR, new.get(Mkc::START_ADDR));
    }
    if mask & umr_mask::QPN != 0 {
        ctx.set(Mkc::QPN, new.get(Mkc::QPN));
    }
}

/// Whether the key's capacity holds `bytes` from unit `at` on.
fn check_room(entry: &MemoryKey, at: u64, bytes: &[u8]) -> Result<(), Refused> {
    let units = bytes.len().div_ceil(OCTWORD) as u64;
    let capacity = u64::from(entry.octwords).next_multiple_of(CHUNK);
    if at.checked_add(units).is_none_or(|end| end > capacity) {
        return Err(Refused::request(format!("{units} units at {at} are more than the key's {capacity}")));
    }
    // Its own list would have to be made of those first, at once.
    if let Translation::User(pages) = &entry.translation
        && (at > 0 || units * 2 < pages.len())
    {
        return Err(Refused::key(
            "the key's pages are those of a user memory: a work request replaces all of them or none",
        ));
    }
    Ok(())
}

/// Loads translations from unit `at` on; [`check_room`] bounds them. What it costs is what is loaded, wherever in the list that is.
fn store(entry: &mut MemoryKey, at: u64, bytes: &[u8]) {
    let at = (at as usize).saturating_mul(OCTWORD);
    let indirect = matches!(entry.ctx.access_mode(), Some(AccessMode::Klm | AccessMode::Ksm));
    if !indirect {
        // Entries that UMR loads always say whether the page is present.
        entry.pg_access = true;
    }
    let mut list = match std::mem::take(&mut entry.translation) {
        Translation::Mtt(list) if !indirect => list,
        Translation::Klm(list) if indirect => list.into_list(),
        _ => List::default(),
    };
    list.write(at, bytes);
    entry.translation = if indirect { Translation::Klm(list.into()) } else { Translation::Mtt(list) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each bit of the mask, alone: the fields that it chooses are taken, and no others.
    #[test]
    fn a_mask_takes_what_it_chooses() {
        let (mut old, mut new) = (Mkc::new(), Mkc::new());
        new.bytes_mut().fill(0xff);
        old.set(Mkc::UMR_EN, 1);
        let chosen = |bit: u64| -> &'static [&'static str] {
            match bit {
                umr_mask::LEN => &["LEN", "LENGTH64"],
                umr_mask::PAGE_SIZE => &["LOG_PAGE_SIZE"],
                umr_mask::START_ADDR => &["START_ADDR"],
                umr_mask::EN_RINVAL => &["EN_RINVAL"],
                umr_mask::SIG_ERR => &["EXPECTED_SIGERR_COUNT"],
                umr_mask::BSF_EN => &["BSF_EN"],
                umr_mask::KEY => &["MKEY_7_0"],
                umr_mask::QPN => &["QPN"],
                umr_mask::LW => &["LW"],
                umr_mask::LR => &["LR"],
                umr_mask::RR => &["RR"],
                umr_mask::RW => &["RW"],
                umr_mask::A => &["A"],
                umr_mask::FREE => &["FREE"],
                umr_mask::RELAXED_ORDERING_WRITE => &["RELAXED_ORDERING_WRITE"],
                umr_mask::RELAXED_ORDERING_READ => &["RELAXED_ORDERING_READ"],
                // The domain is no matter of this function; other bits choose nothing.
                _ => &[],
            }
        };
        let fields = |ctx: &Mkc| {
            let mut all = Vec::new();
            Mkc::LAYOUT.decode(ctx.bytes(), &mut |_, field, value| all.push((field.name, value)));
            all
        };
        for bit in 0..u64::BITS {
            let mut ctx = old;
            apply_mask(&mut ctx, &new, 1 << bit);
            for (((name, is), (_, was)), (_, new)) in
                fields(&ctx).into_iter().zip(fields(&old)).zip(fields(&new))
            {
                let expected = if chosen(1 << bit).contains(&name) { new } else { was };
                assert_eq!(is, expected, "bit {bit}: {name}");
            }
        }
    }
}
