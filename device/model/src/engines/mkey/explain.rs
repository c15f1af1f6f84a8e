//! Accesses that are refused, as rules that a driver has broken.

use std::fmt;

use hca_firmware::Icm;
use hca_firmware::object::Kind;
use hca_spec::ids::{Mkey, Pd};
use hca_spec::mkc::Mkc;
use hca_spec::rules::{self, Rule};

use super::access::{Access, Fault};
use super::walk::first_address;
use crate::ground::diagnosis::{Clue, Finding, Subject};

/// Field, what was found, what would be right, rule.
type Parts = (&'static str, String, String, &'static Rule);

impl Fault {
    /// What broke which rule: an access by `subject`, at `place` of it, from protection domain `pd`.
    pub(crate) fn explained(
        &self,
        subject: Subject,
        place: fmt::Arguments<'_>,
        icm: &Icm,
        pd: Pd,
    ) -> Finding {
        let (field, found, expected, rule) = self.parts(icm, pd);
        let finding = Finding::new(subject, field, format!("{place}: {found}"), expected, rule);
        match *self {
            Self::Key(key) => finding.with(Clue::Object(Subject::new(Kind::Mkey.name(), key.index()))),
            Self::Dma(error) => finding.with(Clue::Unreached(error.iova)),
            _ => finding,
        }
    }

    fn parts(&self, icm: &Icm, pd: Pd) -> Parts {
        let context = |key: Mkey| icm.mkeys.get(key.index()).map(|entry| &entry.ctx);
        let of = |key: Mkey, field| context(key).map_or(0, |ctx| ctx.get(field));
        match *self {
            Self::Key(key) => match context(key) {
                None => {
                    let found = format!("{key}: there is no mkey {:#x}", key.index());
                    ("key", found, "an mkey that exists".into(), &rules::KEY_EXISTS)
                }
                Some(ctx) if ctx.get(Mkc::FREE) == 1 => {
                    let expected = "0: a key in use, by CREATE_MKEY or a UMR work request".into();
                    ("free", format!("1 in key {key}"), expected, &rules::KEY_EXISTS)
                }
                Some(ctx) => (
                    "mkey_7_0",
                    format!("{:#04x} in key {key}", key.variant()),
                    format!("{:#04x}, the variant byte of mkey {:#x}", ctx.get(Mkc::MKEY_7_0), key.index()),
                    &rules::KEY_EXISTS,
                ),
            },
            Self::Domain(key) => (
                "pd",
                format!("PD {:#x} in key {key}", of(key, Mkc::PD)),
                format!("PD {:#x}, that of the queue pair", pd.0),
                &rules::KEY_DOMAIN,
            ),
            Self::Reserved(key) => (
                "rlky",
                format!("0, and the reserved local key {key}"),
                "1 in the context of the queue, or another key".into(),
                &rules::KEY_OWNER,
            ),
            Self::Owner(key) => (
                "qpn of the key",
                format!("{:#x} in key {key}", of(key, Mkc::QPN)),
                "this queue pair, or 0xffffff for any".into(),
                &rules::KEY_OWNER,
            ),
            Self::Rights(key, access) => {
                let field = match access {
                    Access::LocalRead => "lr",
                    Access::LocalWrite => "lw",
                    Access::RemoteRead => "rr",
                    Access::RemoteWrite => "rw",
                    Access::RemoteAtomic => "a",
                };
                (field, format!("0 in key {key}"), format!("1: {access:?} allowed"), &rules::KEY_RIGHTS)
            }
            Self::NotInvalidatable(key) => {
                let expected = "1: work requests may invalidate it".into();
                ("en_rinval", format!("0 in key {key}"), expected, &rules::KEY_RIGHTS)
            }
            Self::Bounds { key, va, len } => {
                let (start, length) =
                    context(key).map_or((0, 0), |ctx| (first_address(ctx), ctx.get(Mkc::LEN)));
                (
                    "address, length",
                    format!("{len:#x} bytes at {va:#x}"),
                    format!("within {length:#x} bytes at {start:#x}, the region of key {key}"),
                    &rules::KEY_BOUNDS,
                )
            }
            Self::Translation { key, va } => (
                "translations",
                format!("none of {va:#x} under key {key}"),
                "a page for each address of the region".into(),
                &rules::KEY_TRANSLATION,
            ),
            Self::Page { key, va, len: _ } => (
                "translations",
                format!("the page of {va:#x} under key {key} is not present, or does not allow the access"),
                "a page that is present".into(),
                &rules::KEY_TRANSLATION,
            ),
            Self::Psv(key) => (
                "psv_index",
                format!("one that is not there, in key {key}"),
                "a PSV of the key's protection domain".into(),
                &rules::KEY_SIGNATURE,
            ),
            Self::Unencrypted(key) => (
                "encryption part",
                format!("none in key {key}, whose crypto_en is 1"),
                "one that a UMR work request loads before the key is used".into(),
                &rules::KEY_ENCRYPTION,
            ),
            Self::DataKey(key) => (
                "dek_pointer, keytag",
                format!("a DEK or a tag that is not there, in key {key}"),
                "a DEK of the key's protection domain, and its tag".into(),
                &rules::KEY_ENCRYPTION,
            ),
            Self::Block { key, offset } => (
                "address",
                format!("offset {offset:#x} of key {key}, inside a block of 16 bytes"),
                "a begin of a block, or where the last write ended".into(),
                &rules::KEY_ENCRYPTION,
            ),
            Self::Dma(error) => (
                "bus address",
                format!("{:#x}, {:#x} bytes, which the adapter does not reach", error.iova, error.len),
                "memory that is mapped, by an IOMMU too, and bus mastering".into(),
                &rules::MEMORY_MAPPED,
            ),
        }
    }
}
