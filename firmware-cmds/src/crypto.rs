//! Keys that data is encrypted with (DEK), and what imports them: in plain, or wrapped by a key of keys (KEK).
//!
//! An adapter leaves the factory for one of both ([`Config::wrapped_keys`](crate::Config)). One with wrapped keys is told a credential and a
//! key of keys first (`Officer`), which outlast its starts; programs log in with the credential, wrapped by that key, and import
//! keys in the same manner. The ciphers are those of the RustCrypto project.
//!
//! Source: IEEE 1619 (AES-XTS), RFC 3394 (wrapping); `mlx5dv_dek_create(3)`, `mlx5dv_crypto_login_create(3)`.

use std::fmt;

use aes::cipher::KeyInit;
use aes::{Aes128, Aes256};
use aes_kw::{KwAes128, KwAes256};
use hca_spec::crypto::{CREDENTIAL_LEN, KEYTAG_LEN, WRAPPING, key_size};
use hca_spec::ids::Pd;
use xts_mode::Xts128;

use crate::steady::SteadyMap;

/// Bytes of a block of AES: no part of a data unit is shorter.
pub const BLOCK: usize = 16;
/// The longest key with its tag.
const MOST_KEY: usize = 64 + KEYTAG_LEN;

/// Both keys of AES-XTS, of one size.
enum Cipher {
    Aes128(Box<Xts128<Aes128>>),
    Aes256(Box<Xts128<Aes256>>),
}

impl Cipher {
    /// Of both keys, one behind the other.
    fn new(keys: &[u8]) -> Option<Self> {
        let (first, second) = keys.split_at_checked(keys.len() / 2)?;
        let of_128 = || {
            let [first, second] = [first, second].map(|key| Aes128::new_from_slice(key).ok());
            Some(Self::Aes128(Box::new(Xts128::new(first?, second?))))
        };
        let of_256 = || {
            let [first, second] = [first, second].map(|key| Aes256::new_from_slice(key).ok());
            Some(Self::Aes256(Box::new(Xts128::new(first?, second?))))
        };
        of_128().or_else(of_256)
    }
}

/// A key that data is encrypted with.
pub struct DataKey {
    /// Its protection domain.
    pub pd: Pd,
    /// Its tag, which memory keys have to name.
    pub tag: Option<[u8; KEYTAG_LEN]>,
    /// What the program says about it.
    pub(crate) opaque: u64,
    pub(crate) size: u32,
    cipher: Cipher,
}

impl fmt::Debug for DataKey {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataKey").field("pd", &self.pd).field("size", &self.size).finish_non_exhaustive()
    }
}

/// A key as a program gives it: its size ([`key_size`]), and whether there is a tag behind it.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// Its size.
    pub size: u32,
    /// Whether there is a tag.
    pub tagged: bool,
}

impl Form {
    /// Bytes of both keys.
    fn keys(self) -> usize {
        if self.size == key_size::AES_256 { 64 } else { 32 }
    }

    /// Bytes in plain.
    pub(crate) fn len(self) -> usize {
        self.keys() + if self.tagged { KEYTAG_LEN } else { 0 }
    }
}

impl DataKey {
    /// A key in plain; `None`: it is shorter than its form says.
    pub fn new(pd: Pd, opaque: u64, form: Form, plain: &[u8]) -> Option<Self> {
        let (keys, tag) = plain.get(..form.len())?.split_at_checked(form.keys())?;
        let tag = tag.first_chunk().copied().filter(|_| form.tagged);
        Some(Self { pd, tag, opaque, size: form.size, cipher: Cipher::new(keys)? })
    }

    /// Encrypts the first bytes of a data unit, or all of it, in place. `tweak`: the number of the unit.
    ///
    /// The last bytes of a unit that is no multiple of [`BLOCK`] are encrypted together with the block before them, so only a
    /// whole unit may have such a length. Less than a block stays as it is.
    pub fn encrypt(&self, unit: &mut [u8], tweak: u128) {
        if unit.len() < BLOCK {
            return;
        }
        match &self.cipher {
            Cipher::Aes128(xts) => xts.encrypt_sector(unit, tweak.to_le_bytes().into()),
            Cipher::Aes256(xts) => xts.encrypt_sector(unit, tweak.to_le_bytes().into()),
        }
    }

    /// The other way round.
    pub fn decrypt(&self, unit: &mut [u8], tweak: u128) {
        if unit.len() < BLOCK {
            return;
        }
        match &self.cipher {
            Cipher::Aes128(xts) => xts.decrypt_sector(unit, tweak.to_le_bytes().into()),
            Cipher::Aes256(xts) => xts.decrypt_sector(unit, tweak.to_le_bytes().into()),
        }
    }
}

/// A key that wraps others.
enum Kek {
    Aes128(KwAes128),
    Aes256(KwAes256),
}

/// What an adapter with wrapped keys was told in order to be operational: its first credential and its first key of keys.
pub(crate) struct Officer {
    credential: [u8; CREDENTIAL_LEN],
    kek: Kek,
}

impl fmt::Debug for Officer {
    /// No secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Officer").finish_non_exhaustive()
    }
}

impl Officer {
    /// `None`: one of them is too short, or there is no key of that size.
    pub(crate) fn new(credential: &[u8], size: u32, kek: &[u8]) -> Option<Self> {
        let kek = match size {
            key_size::AES_128 => Kek::Aes128(KwAes128::new_from_slice(kek.get(..16)?).ok()?),
            key_size::AES_256 => Kek::Aes256(KwAes256::new_from_slice(kek.get(..32)?).ok()?),
            _ => return None,
        };
        Some(Self { credential: *credential.first_chunk()?, kek })
    }

    /// What was wrapped, of which so many bytes are expected. `None`: it was wrapped by another key, or changed since.
    pub(crate) fn unwrapped(&self, wrapped: &[u8], len: usize) -> Option<Vec<u8>> {
        let wrapped = wrapped.get(..len.checked_add(WRAPPING)?)?;
        let mut plain = vec![0; len];
        let unwrapped = match &self.kek {
            Kek::Aes128(kek) => kek.unwrap_key(wrapped, &mut plain),
            Kek::Aes256(kek) => kek.unwrap_key(wrapped, &mut plain),
        };
        unwrapped.ok().map(<[u8]>::to_vec)
    }

    /// Whether a wrapped credential is that of the adapter.
    pub(crate) fn admits(&self, wrapped: &[u8]) -> bool {
        self.unwrapped(wrapped, CREDENTIAL_LEN).is_some_and(|credential| credential == self.credential)
    }
}

/// Keys and logins of a function.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// Keys by the numbers of their objects.
    pub(crate) data: SteadyMap<u32, DataKey>,
    /// Logins by user context: each has one at most.
    pub(crate) logins: SteadyMap<u16, u32>,
}

const _: () = assert!(MOST_KEY + WRAPPING <= 128, "a DEK has room for the longest key");

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
    }

    fn key(keys: &str) -> DataKey {
        let keys = hex(keys);
        let size = if keys.len() == 64 { key_size::AES_256 } else { key_size::AES_128 };
        DataKey::new(Pd(1), 0, Form { size, tagged: false }, &keys).unwrap()
    }

    /// IEEE 1619-2007, annex B: vectors 2, 10 (the first block), and 15, whose unit ends with less than a block.
    #[test]
    fn vectors_of_the_standard() {
        let vectors = [
            (
                format!("{}{}", "11".repeat(16), "22".repeat(16)),
                0x33_3333_3333,
                "44".repeat(32),
                "c454185e6a16936e39334038acef838bfb186fff7480adc4289382ecd6d394f0".to_string(),
            ),
            (
                "fffefdfcfbfaf9f8f7f6f5f4f3f2f1f0bfbebdbcbbbab9b8b7b6b5b4b3b2b1b0".to_string(),
                0x12_3456_789a,
                "000102030405060708090a0b0c0d0e0f10".to_string(),
                "6c1625db4671522d3d7599601de7ca09ed".to_string(),
            ),
            (
                "2718281828459045235360287471352662497757247093699959574966967627\
                 3141592653589793238462643383279502884197169399375105820974944592"
                    .to_string(),
                0xff,
                "000102030405060708090a0b0c0d0e0f".to_string(),
                "1c3b3a102f770386e4836c99e370cf9b".to_string(),
            ),
        ];
        for (keys, tweak, plain, cipher) in vectors {
            let key = key(&keys);
            let mut unit = hex(&plain);
            key.encrypt(&mut unit, tweak);
            assert_eq!(unit, hex(&cipher), "{keys}");
            key.decrypt(&mut unit, tweak);
            assert_eq!(unit, hex(&plain), "{keys}");
        }
    }

    /// RFC 3394, 4.1 and 4.6.
    #[test]
    fn vectors_of_wrapping() {
        let of_128 =
            Officer::new(&[0; 40], key_size::AES_128, &hex("000102030405060708090a0b0c0d0e0f")).unwrap();
        let wrapped = hex("1fa68b0a8112b447aef34bd8fb5a7b829d3e862371d2cfe5");
        assert_eq!(of_128.unwrapped(&wrapped, 16), Some(hex("00112233445566778899aabbccddeeff")));
        let mut changed = wrapped.clone();
        changed[20] ^= 1;
        assert_eq!(of_128.unwrapped(&changed, 16), None);
        assert_eq!(of_128.unwrapped(&wrapped, 24), None, "there is less of it");
        let kek = hex("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
        let of_256 = Officer::new(&[0; 40], key_size::AES_256, &kek).unwrap();
        let wrapped = hex("28c9f404c4b810f4cbccb35cfb87f8263f5786e2d80ed326cbc7f0e71a99f43bfb988b9b7a02dd21");
        let plain = hex("00112233445566778899aabbccddeeff000102030405060708090a0b0c0d0e0f");
        assert_eq!(of_256.unwrapped(&wrapped, 32), Some(plain));
        assert!(Officer::new(&[0; 40], 2, &kek).is_none(), "no such size");
        assert!(Officer::new(&[0; 40], key_size::AES_256, &kek[..16]).is_none());
    }

    #[test]
    fn forms() {
        let plain: Vec<u8> = (0..72).collect();
        let form = |size, tagged| Form { size, tagged };
        let tagged = DataKey::new(Pd(1), 0, form(key_size::AES_128, true), &plain).unwrap();
        assert_eq!(tagged.tag, Some([32, 33, 34, 35, 36, 37, 38, 39]));
        let long = DataKey::new(Pd(1), 0, form(key_size::AES_256, true), &plain).unwrap();
        assert_eq!(long.tag, Some([64, 65, 66, 67, 68, 69, 70, 71]));
        assert!(DataKey::new(Pd(1), 0, form(key_size::AES_256, true), &plain[..71]).is_none());
        let said = format!("{long:?}");
        assert!(!said.contains("64") && said.contains("pd"), "{said}: nothing of the key");
    }
}
