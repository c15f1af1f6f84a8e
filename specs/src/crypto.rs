//! Block encryption (AES-XTS): keys of data (DEK), logins, the capabilities of it, the encryption part of a memory key, and the
//! register that makes an adapter with wrapped keys operational.
//!
//! The public manual does not have these. Source: `mlx5dv_dek_create(3)`, `mlx5dv_crypto_login_create(3)`,
//! `mlx5dv_wr_set_mkey_crypto(3)`, mlx5dv and DPDK's mlx5 crypto driver (field use); the register: mstflint's table of registers.

use crate::layout::layout;

layout! {
    /// Capabilities of encryption, 256 bytes.
    pub struct Crypto[0x100] {
        /// Wrapped keys: key of keys and credential are set, programs can log in.
        WRAPPED_CRYPTO_OPERATIONAL: 0x0 [31:31];
        /// What is encrypted with keys that are imported wrapped ([`import`]).
        WRAPPED_IMPORT_METHOD: 0x0 [7:0];
        /// log2 of the number of DEKs.
        LOG_MAX_NUM_DEKS: 0x4 [20:16];
        /// Tests of its own that the adapter failed.
        FAILED_SELFTESTS: 0x8 [31:16];
        /// Keys of keys that outlast a start.
        NUM_NV_IMPORT_KEKS: 0x8 [15:8];
        /// Credentials that outlast a start.
        NUM_NV_CREDENTIALS: 0x8 [7:0];
    }

    /// A DEK: input of CREATE_GENERAL_OBJECT, output of QUERY_GENERAL_OBJECT, which does not tell the key.
    pub struct Dek[0x110] {
        /// MODIFY: fields that change.
        MODIFY_FIELD_SELECT: 0x10 u64;
        /// 0 = ready, 1 = error.
        STATE: 0x18 [31:24];
        /// Size of the key ([`key_size`]).
        KEY_SIZE: 0x18 [11:8];
        /// 1 = a tag of 8 bytes stands behind the key; memory keys have to name it.
        HAS_KEYTAG: 0x18 [7:7];
        /// What it is for: [`PURPOSE_AES_XTS`].
        KEY_PURPOSE: 0x18 [3:0];
        /// Protection domain.
        PD: 0x1c [23:0];
        /// What the program says about the key.
        OPAQUE: 0x40 u64;
    }

    /// A login: input of CREATE_GENERAL_OBJECT, output of QUERY_GENERAL_OBJECT, which does not tell the credential.
    pub struct CryptoLogin[0x110] {
        /// MODIFY: fields that change.
        MODIFY_FIELD_SELECT: 0x10 u64;
        /// 0 = valid, 1 = invalid: its credential or key of keys is gone.
        STATE: 0x20 [27:24];
        /// The credential of the adapter that the program's has to be.
        CREDENTIAL_POINTER: 0x20 [23:0];
        /// The key of keys by which the program's credential, and all keys that it imports, are wrapped.
        SESSION_IMPORT_KEK_PTR: 0x24 [23:0];
    }

    /// Encryption part of a memory key, 64 bytes: a UMR WQE loads it, behind the signature part if there is one.
    pub struct CryptoBsf[0x40] {
        /// Which parts are present: [`crate::bsf::BSF_WITH_INLINE`], or [`BSF_SIGNATURE_AND_CRYPTO`].
        PARTS: 0x0 [31:30];
        /// Kind of the part: [`BSF_TYPE_CRYPTO`].
        TYPE: 0x0 [25:24];
        /// What is encrypted, and where signatures are ([`order`]).
        ENCRYPTION_ORDER: 0x0 [19:16];
        /// 0 = AES-XTS.
        ENCRYPTION_STANDARD: 0x0 [3:0];
        /// Bytes of data.
        RAW_DATA_SIZE: 0x4 [31:0];
        /// Size of a data unit ([`crate::bsf::block_size`]).
        BLOCK_SIZE: 0x8 [31:24];
        /// Tweak of the first data unit, a big-endian number of 128 bits: its upper half. It grows by one from unit to unit.
        TWEAK_HIGH: 0x10 u64;
        /// Its lower half.
        TWEAK_LOW: 0x18 u64;
        /// The DEK.
        DEK: 0x20 [23:0];
        /// Tag of the DEK, if it has one.
        KEYTAG: 0x28 u64;
    }

    /// CRYPTO_OPERATIONAL: sets the first credential and the first key of keys, once, and makes the adapter operational.
    pub struct CryptoOperational[0x80] {
        /// Read: 1 = the adapter is operational.
        WRAPPED_CRYPTO_OPERATIONAL: 0x0 [31:31];
        /// Write: size of the key of keys ([`key_size`]).
        KEK_SIZE: 0x0 [3:0];
    }
}

impl Dek {
    /// Where the key is: as the program gives it, in plain or wrapped.
    pub const KEY: core::ops::Range<usize> = 0x50..0xd0;
}

impl CryptoLogin {
    /// Where the program's credential is: wrapped, so 8 bytes longer than [`CREDENTIAL_LEN`].
    pub const CREDENTIAL: core::ops::Range<usize> = 0x50..0x50 + CREDENTIAL_LEN + WRAPPING;
}

impl CryptoOperational {
    /// Write: where the credential is, in plain.
    pub const CREDENTIAL: core::ops::Range<usize> = 0x8..0x8 + CREDENTIAL_LEN;
    /// Write: where the key of keys is, in plain. One of 128 bits takes the first half.
    pub const KEK: core::ops::Range<usize> = 0x30..0x50;
}

/// Bytes of a credential.
pub const CREDENTIAL_LEN: usize = 40;
/// Bytes by which wrapping makes a key or a credential longer (RFC 3394).
pub const WRAPPING: usize = 8;
/// Bytes of a DEK's tag.
pub const KEYTAG_LEN: usize = 8;

/// [`Dek::KEY_PURPOSE`]: AES-XTS.
pub const PURPOSE_AES_XTS: u32 = 3;
/// [`CryptoBsf::TYPE`]: encryption; 0 is a signature part.
pub const BSF_TYPE_CRYPTO: u32 = 1;
/// [`CryptoBsf::PARTS`] and [`crate::bsf::Bsf::PARTS`]: a signature part and an encryption part.
pub const BSF_SIGNATURE_AND_CRYPTO: u32 = 3;
/// [`CryptoBsf::ENCRYPTION_STANDARD`]: AES-XTS.
pub const STANDARD_AES_XTS: u32 = 0;

/// Sizes of keys.
pub mod key_size {
    /// 128 bits; a DEK has two keys of that size.
    pub const AES_128: u32 = 0;
    /// 256 bits.
    pub const AES_256: u32 = 1;
}

/// Bits of [`Crypto::WRAPPED_IMPORT_METHOD`].
pub mod import {
    /// Keys of AES-XTS are wrapped; without it, they are in plain.
    pub const AES_XTS: u32 = 1 << 2;
}

/// Values of [`CryptoBsf::ENCRYPTION_ORDER`]: on which side data is encrypted, and whether signatures are, too.
pub mod order {
    /// Encrypted on the wire, with the wire's signatures.
    pub const WIRE_SIGNATURE: u32 = 0;
    /// Encrypted in memory, with memory's signatures.
    pub const MEMORY_SIGNATURE: u32 = 1;
    /// Encrypted on the wire; the wire's signatures are those of what is encrypted, and in plain.
    pub const RAW_WIRE: u32 = 2;
    /// Encrypted in memory; memory's signatures are those of what is encrypted, and in plain.
    pub const RAW_MEMORY: u32 = 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_objects() {
        let mut d = Dek::new();
        d.set(Dek::KEY_SIZE, key_size::AES_256)
            .set(Dek::HAS_KEYTAG, 1)
            .set(Dek::KEY_PURPOSE, PURPOSE_AES_XTS);
        d.set(Dek::PD, 0x1234).set(Dek::OPAQUE, 0x0102_0304_0506_0708);
        assert_eq!(d.bytes()[0x18..0x20], [0, 0, 1, 0x83, 0, 0, 0x12, 0x34]);
        assert_eq!(d.bytes()[0x40..0x48], [1, 2, 3, 4, 5, 6, 7, 8]);
        let mut l = CryptoLogin::new();
        l.set(CryptoLogin::STATE, 1).set(CryptoLogin::CREDENTIAL_POINTER, 2);
        l.set(CryptoLogin::SESSION_IMPORT_KEK_PTR, 3);
        assert_eq!(l.bytes()[0x20..0x28], [1, 0, 0, 2, 0, 0, 0, 3]);
        assert_eq!(CryptoLogin::CREDENTIAL, 0x50..0x80);
    }

    #[test]
    fn golden_part() {
        let mut b = CryptoBsf::new();
        b.set(CryptoBsf::PARTS, BSF_SIGNATURE_AND_CRYPTO).set(CryptoBsf::TYPE, BSF_TYPE_CRYPTO);
        b.set(CryptoBsf::ENCRYPTION_ORDER, order::RAW_WIRE).set(CryptoBsf::BLOCK_SIZE, 3);
        b.set(CryptoBsf::TWEAK_LOW, 5).set(CryptoBsf::DEK, 7).set(CryptoBsf::KEYTAG, 9);
        assert_eq!(b.bytes()[..12], [0xc1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!((b.bytes()[0x1f], b.bytes()[0x23], b.bytes()[0x2f]), (5, 7, 9));
    }

    #[test]
    fn golden_register() {
        let mut r = CryptoOperational::new();
        r.set(CryptoOperational::WRAPPED_CRYPTO_OPERATIONAL, 1).set(CryptoOperational::KEK_SIZE, 1);
        assert_eq!(r.bytes()[..4], [0x80, 0, 0, 1]);
        assert_eq!((CryptoOperational::CREDENTIAL.end, CryptoOperational::KEK.len()), (0x30, 0x20));
    }
}
