//! Keys that encrypt: data is encrypted or decrypted (AES-XTS) between memory and wire.
//!
//! A key for this is one of pieces with room for a signature part and an encryption part ([`CryptoBsf`]), which a work request loads together
//! with the pieces ([`KeyChange::encryption`](crate::KeyChange::encryption)). The encryption part names a key of data (DEK), which the adapter was
//! given before: in plain, or wrapped (RFC 3394) where the adapter wants that, after a login.
//!
//! Source: `mlx5dv_dek_create(3)`, `mlx5dv_crypto_login_create(3)`, mlx5dv (field use); the public manual does not have them.

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use crate::umr::{KeyChange, KeyKind, Parts};
use hca_spec::caps::{TYPE_CRYPTO, object_type};
use hca_spec::cmd::reg;
use hca_spec::crypto::{Crypto, CryptoBsf, CryptoLogin, CryptoOperational, Dek, PURPOSE_AES_XTS, key_size};
use hca_spec::ids::{Mkey, Pd};
use hca_spec::mkc::Mkc;
use hca_spec::wqe::umr_mask;

/// A key of data as it is given to the adapter.
#[derive(Clone, Copy, Debug)]
pub struct DataKey<'a> {
    /// Its domain.
    pub pd: Pd,
    /// Both keys of AES-XTS, and the tag if there is one; all of it wrapped if the adapter wants that.
    pub bytes: &'a [u8],
    /// Each key has 256 bits instead of 128.
    pub long: bool,
    /// A tag of 8 bytes stands behind the keys.
    pub tagged: bool,
}

impl KeyChange {
    /// Data is encrypted as that part says from now on. The translations must be inline.
    pub fn encryption(mut self, part: CryptoBsf) -> Self {
        self.mkc.set(Mkc::BSF_EN, 1);
        self.crypto = Some(part);
        self.mask(umr_mask::BSF_EN)
    }
}

impl<B: Bus> Hca<B> {
    /// What the adapter says of encryption.
    pub fn crypto_capabilities(&mut self) -> Result<Crypto, Error> {
        Ok(Crypto::from_prefix_or_zero(&self.query_caps(TYPE_CRYPTO, true)?))
    }

    /// Gives an adapter with wrapped keys its credential, 40 bytes, and its key of keys, 16 or 32 bytes: once.
    pub fn make_crypto_operational(&mut self, credential: &[u8; 40], kek: &[u8]) -> Result<(), Error> {
        let mut register = CryptoOperational::new();
        let long = kek.len() == CryptoOperational::KEK.len();
        register.set(CryptoOperational::KEK_SIZE, if long { key_size::AES_256 } else { key_size::AES_128 });
        let mut data = register.bytes().to_vec();
        put(&mut data, CryptoOperational::CREDENTIAL, credential);
        put(&mut data, CryptoOperational::KEK, kek);
        self.write_register(reg::CRYPTO_OPERATIONAL, &data)
    }

    /// Logs in with a wrapped credential, 48 bytes. Returns the login's number.
    pub fn crypto_login(&mut self, credential: &[u8]) -> Result<u32, Error> {
        let mut input = CryptoLogin::new().bytes().to_vec();
        put(&mut input, CryptoLogin::CREDENTIAL, credential);
        self.create_general_object(object_type::CRYPTO_LOGIN, input)
    }

    /// Logs out.
    pub fn crypto_logout(&mut self, login: u32) -> Result<(), Error> {
        self.destroy_general_object(object_type::CRYPTO_LOGIN, login)
    }

    /// Gives the adapter a key that data is encrypted with. Returns its number.
    pub fn create_data_key(&mut self, key: &DataKey<'_>) -> Result<u32, Error> {
        let mut input = Dek::new();
        input.set(Dek::KEY_SIZE, if key.long { key_size::AES_256 } else { key_size::AES_128 });
        input.set(Dek::HAS_KEYTAG, key.tagged.into()).set(Dek::KEY_PURPOSE, PURPOSE_AES_XTS);
        input.set(Dek::PD, key.pd.0);
        let mut input = input.bytes().to_vec();
        put(&mut input, Dek::KEY, key.bytes);
        self.create_general_object(object_type::DEK, input)
    }

    /// Destroys it.
    pub fn destroy_data_key(&mut self, number: u32) -> Result<(), Error> {
        self.destroy_general_object(object_type::DEK, number)
    }

    /// Makes a free key of pieces with room for that many, for a signature part and for an encryption part.
    pub fn alloc_encrypting_key(&mut self, pd: Pd, room: u32) -> Result<Mkey, Error> {
        self.alloc_key_with(pd, KeyKind::Pieces, room, false, Parts::Both)
    }
}

/// Puts bytes into a part of an input, as far as there is room.
fn put(input: &mut [u8], at: core::ops::Range<usize>, bytes: &[u8]) {
    if let Some(part) = input.get_mut(at) {
        part.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }
}
