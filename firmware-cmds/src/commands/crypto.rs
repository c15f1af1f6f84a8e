//! Keys that data is encrypted with, and logins of those who import them wrapped: general objects of a ConnectX-6 Dx; and the
//! register by which an adapter with wrapped keys becomes operational.
//!
//! Source: `mlx5dv_dek_create(3)`, `mlx5dv_crypto_login_create(3)`, mlx5dv (field use); mstflint's table of registers. By inference: what is
//! refused, and that a user context has one login at most, which its keys are unwrapped by.

use hca_spec::caps::General;
use hca_spec::command::Status;
use hca_spec::crypto::{Crypto, CryptoLogin, CryptoOperational, Dek, PURPOSE_AES_XTS, import, key_size};
use hca_spec::ids::Pd;

use super::devx;
use super::register::Denied;
use super::row::Call;
use crate::crypto::{DataKey, Form, Officer};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;

/// Whether memory keys can encrypt.
pub(super) fn has_encryption(fw: &Firmware) -> bool {
    fw.general_max.get(General::CRYPTO) == 1
}

/// The capabilities of encryption.
pub(super) fn capabilities(fw: &Firmware) -> Crypto {
    let mut page = fw.personality().capabilities.crypto;
    if has_encryption(fw) && fw.config.wrapped_keys {
        page.set(Crypto::WRAPPED_IMPORT_METHOD, import::AES_XTS);
        page.set(Crypto::WRAPPED_CRYPTO_OPERATIONAL, fw.ports.officer.is_some().into());
    }
    page
}

/// The login of a user context, if the adapter has wrapped keys: what unwraps them.
fn login<'a>(fw: &'a Firmware, call: &Call<'_>) -> Result<&'a Officer, Failure> {
    const NO_LOGIN: Failure = Failure::new(
        Status::BadResourceState,
        "general objects: keys of this adapter are wrapped, and the user context has not logged in",
    );
    let logged_in = fw.icm.crypto.logins.get(&devx::uid(call)).is_some();
    fw.ports.officer.as_ref().filter(|_| logged_in).ok_or(NO_LOGIN)
}

/// The key that an input describes.
pub(super) fn data_key(fw: &Firmware, call: &Call<'_>) -> Result<DataKey, Failure> {
    const PURPOSE: Failure = bad_param("CREATE_GENERAL_OBJECT: key_purpose must be 3 (AES-XTS)");
    const SIZE: Failure = bad_param("CREATE_GENERAL_OBJECT: key_size must be 0 (128 bits) or 1 (256 bits)");
    const NO_PD: Failure = bad_resource("CREATE_GENERAL_OBJECT: pd: the protection domain is not allocated");
    const FULL: Failure = no_room("CREATE_GENERAL_OBJECT: there are 2^log_max_num_deks keys");
    const WRAPPED: Failure =
        bad_param("CREATE_GENERAL_OBJECT: key: it was not wrapped by the key that the login names");
    let input = Dek::from_prefix_or_zero(call.input);
    let purpose = input.get(Dek::KEY_PURPOSE);
    if purpose != PURPOSE_AES_XTS {
        return Err(PURPOSE.got(purpose));
    }
    let size = input.get(Dek::KEY_SIZE);
    if !matches!(size, key_size::AES_128 | key_size::AES_256) {
        return Err(SIZE.got(size));
    }
    let pd = input.get(Dek::PD);
    if fw.icm.pds.get(pd).is_none() {
        return Err(NO_PD.got(pd));
    }
    let most = 1u64 << fw.personality().capabilities.crypto.get(Crypto::LOG_MAX_NUM_DEKS);
    if fw.icm.crypto.data.len() as u64 >= most {
        return Err(FULL.limit(most));
    }
    let form = Form { size, tagged: input.get(Dek::HAS_KEYTAG) == 1 };
    let given = input.bytes().get(Dek::KEY).unwrap_or_default();
    let plain = match fw.config.wrapped_keys {
        true => login(fw, call)?.unwrapped(given, form.len()).ok_or(WRAPPED)?,
        false => given.to_vec(),
    };
    DataKey::new(Pd(pd), input.get(Dek::OPAQUE), form, &plain).ok_or(SIZE.got(size))
}

/// What QUERY_GENERAL_OBJECT tells of a key: not the key. A wrapped one only those are told of who have logged in.
pub(super) fn describe_key(fw: &Firmware, call: &Call<'_>, number: u32) -> Result<Dek, Failure> {
    if fw.config.wrapped_keys {
        login(fw, call)?;
    }
    let mut out = Dek::new();
    if let Some(key) = fw.icm.crypto.data.get(&number) {
        out.set(Dek::KEY_SIZE, key.size).set(Dek::HAS_KEYTAG, key.tag.is_some().into());
        out.set(Dek::KEY_PURPOSE, PURPOSE_AES_XTS).set(Dek::PD, key.pd.0).set(Dek::OPAQUE, key.opaque);
    }
    Ok(out)
}

/// Whether the user context of an input may log in as it says.
pub(super) fn check_login(fw: &Firmware, call: &Call<'_>) -> Result<(), Failure> {
    const EARLY: Failure = Failure::new(
        Status::BadSystemState,
        "CREATE_GENERAL_OBJECT: login: the adapter has neither credential nor key of keys yet (CRYPTO_OPERATIONAL)",
    );
    const TWICE: Failure = Failure::new(
        Status::BadResourceState,
        "CREATE_GENERAL_OBJECT: login: the user context has logged in already",
    );
    const NO_CREDENTIAL: Failure =
        bad_resource("CREATE_GENERAL_OBJECT: credential_pointer: there is no such credential");
    const NO_KEK: Failure =
        bad_resource("CREATE_GENERAL_OBJECT: session_import_kek_ptr: there is no such key of keys");
    const WRONG: Failure = bad_param(
        "CREATE_GENERAL_OBJECT: credential: not the adapter's, or not wrapped by the key of keys that is named",
    );
    let officer = fw.ports.officer.as_ref().ok_or(EARLY)?;
    if fw.icm.crypto.logins.get(&devx::uid(call)).is_some() {
        return Err(TWICE);
    }
    // Only the first of each is there: those that the register has set.
    let input = CryptoLogin::from_prefix_or_zero(call.input);
    let (credential, kek) =
        (input.get(CryptoLogin::CREDENTIAL_POINTER), input.get(CryptoLogin::SESSION_IMPORT_KEK_PTR));
    if credential != 0 {
        return Err(NO_CREDENTIAL.got(credential));
    }
    if kek != 0 {
        return Err(NO_KEK.got(kek));
    }
    match officer.admits(input.bytes().get(CryptoLogin::CREDENTIAL).unwrap_or_default()) {
        true => Ok(()),
        false => Err(WRONG),
    }
}

/// CRYPTO_OPERATIONAL.
pub(super) fn operational(fw: &mut Firmware, write: bool, data: &[u8]) -> Result<Vec<u8>, Denied> {
    const PLAIN: Failure = Failure::new(
        Status::BadSystemState,
        "CRYPTO_OPERATIONAL: keys of this adapter are not wrapped: it needs neither credential nor key of keys",
    );
    const TWICE: Failure = Failure::new(
        Status::BadResourceState,
        "CRYPTO_OPERATIONAL: the adapter is operational: credential and key of keys are set once",
    );
    const SIZE: Failure = bad_param("CRYPTO_OPERATIONAL: kek_size must be 0 (128 bits) or 1 (256 bits)");
    let input = CryptoOperational::from_prefix_or_zero(data);
    if write {
        if !fw.config.wrapped_keys {
            return Err(PLAIN.into());
        }
        if fw.ports.officer.is_some() {
            return Err(TWICE.into());
        }
        let size = input.get(CryptoOperational::KEK_SIZE);
        let [credential, kek] = [CryptoOperational::CREDENTIAL, CryptoOperational::KEK]
            .map(|range| input.bytes().get(range).unwrap_or_default());
        fw.ports.officer = Some(Officer::new(credential, size, kek).ok_or(SIZE.got(size))?);
    }
    let mut out = CryptoOperational::new();
    out.set(CryptoOperational::WRAPPED_CRYPTO_OPERATIONAL, fw.ports.officer.is_some().into());
    Ok(out.bytes().to_vec())
}

#[cfg(test)]
mod tests;
