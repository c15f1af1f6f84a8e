use aes_kw::KeyInit;
use hca_spec::bsf::BSF_OCTWORDS;
use hca_spec::caps::{TYPE_CRYPTO, object_type};
use hca_spec::cmd::{CreateMkeyIn, GeneralObjectIn, QueryHcaCapOut, reg};
use hca_spec::command::{InHeader, Opcode};
use hca_spec::crypto::{CREDENTIAL_LEN, WRAPPING};
use hca_spec::mkc::{AccessMode, Mkc};

use super::*;
use crate::commands::testing::{Answer, Bench, register};
use crate::personality::Personality;
use crate::profile::Config;

/// The key of keys.
const KEK: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

fn bench(wrapped_keys: bool) -> Bench {
    let personality = Personality::named("connectx6dx").expect("it is there");
    Bench::initialized_with(Config { personality, wrapped_keys, ..Config::default() })
}

/// Wraps something, as programs do.
fn wrapped(plain: &[u8]) -> Vec<u8> {
    let kek = aes_kw::KwAes128::new_from_slice(&KEK).unwrap();
    let mut out = vec![0; plain.len() + WRAPPING];
    kek.wrap_key(plain, &mut out).unwrap();
    out
}

/// Sends a command about a general object of that type, for a user context.
fn send(b: &mut Bench, op: Opcode, (kind, uid, id): (u32, u32, u32), attributes: &[u8]) -> Answer {
    let mut head = GeneralObjectIn::new();
    head.set(GeneralObjectIn::OBJ_TYPE, kind).set(GeneralObjectIn::OBJ_ID, id);
    let mut input = attributes.to_vec();
    input[..GeneralObjectIn::SIZE].copy_from_slice(head.bytes());
    let mut header = InHeader::from_prefix_or_zero(&input);
    header.set(InHeader::OPCODE, op as u32).set(InHeader::UID, uid);
    input[..header.bytes().len()].copy_from_slice(header.bytes());
    b.raw(&input, Dek::SIZE)
}

/// A key of 128 bits with a tag, as the program gives it.
fn dek(pd: u32, key: &[u8]) -> Vec<u8> {
    let mut input = Dek::new();
    input.set(Dek::HAS_KEYTAG, 1).set(Dek::KEY_PURPOSE, PURPOSE_AES_XTS).set(Dek::PD, pd);
    input.set(Dek::OPAQUE, 0x1234);
    let mut input = input.bytes().to_vec();
    input[Dek::KEY][..key.len()].copy_from_slice(key);
    input
}

fn plain_key() -> Vec<u8> {
    (0..40).collect()
}

const DEK: u32 = object_type::DEK;
const LOGIN: u32 = object_type::CRYPTO_LOGIN;

#[test]
fn life_of_a_key() {
    let mut b = bench(false);
    let pd = b.alloc(Opcode::AllocPd);
    let number = send(&mut b, Opcode::CreateGeneralObject, (DEK, 0, 0), &dek(pd, &plain_key())).number();
    let found = send(&mut b, Opcode::QueryGeneralObject, (DEK, 0, number), Dek::new().bytes());
    assert_eq!(found.number(), number);
    let told = Dek::from_prefix_or_zero(&found.output);
    assert_eq!((told.get(Dek::OPAQUE), told.get(Dek::PD), told.get(Dek::HAS_KEYTAG)), (0x1234, pd, 1));
    assert!(told.bytes()[Dek::KEY].iter().all(|byte| *byte == 0), "the key is nobody's to read");
    assert_eq!(b.fw.icm.data_key(number).and_then(|key| key.tag), Some([32, 33, 34, 35, 36, 37, 38, 39]));
    assert_eq!(b.object(Opcode::DeallocPd, pd).status(), Status::ResourceBusy, "the key is in the domain");
    let of_a_login = send(&mut b, Opcode::QueryGeneralObject, (LOGIN, 0, number), Dek::new().bytes());
    assert_eq!(of_a_login.status(), Status::BadParam, "keys in plain have no logins");
    let gone = send(&mut b, Opcode::DestroyGeneralObject, (DEK, 0, number), Dek::new().bytes());
    assert_eq!(gone.status(), Status::Ok);
    assert!(b.fw.icm.data_key(number).is_none());
    b.ok(Opcode::DeallocPd, pd);
}

#[test]
fn what_is_no_key() {
    let mut b = bench(false);
    let pd = b.alloc(Opcode::AllocPd);
    let mut create = |change: fn(&mut Dek)| {
        let mut input = Dek::from_prefix_or_zero(&dek(pd, &plain_key()));
        change(&mut input);
        send(&mut b, Opcode::CreateGeneralObject, (DEK, 0, 0), input.bytes()).status()
    };
    assert_eq!(create(|_| {}), Status::Ok);
    assert_eq!(create(|d| _ = d.set(Dek::KEY_PURPOSE, 1)), Status::BadParam, "TLS");
    assert_eq!(create(|d| _ = d.set(Dek::KEY_SIZE, 2)), Status::BadParam);
    assert_eq!(create(|d| _ = d.set(Dek::PD, 77)), Status::BadResource);
    let mut other = Bench::initialized();
    let absent = send(&mut other, Opcode::CreateGeneralObject, (DEK, 0, 0), &dek(1, &plain_key()));
    assert_eq!(absent.status(), Status::BadParam, "a ConnectX-4 has none");
}

#[test]
fn there_is_an_end_of_keys() {
    let mut b = bench(false);
    let pd = b.alloc(Opcode::AllocPd);
    let most = 1 << capabilities(&b.fw).get(Crypto::LOG_MAX_NUM_DEKS);
    b.give_pages(4096);
    let input = dek(pd, &plain_key());
    for made in 0..=most {
        let status = send(&mut b, Opcode::CreateGeneralObject, (DEK, 0, 0), &input).status();
        assert_eq!(status == Status::Ok, made < most, "{made}: {status:?}");
    }
}

/// From the factory to a key: the register, a login, a key; and each of them wrong.
#[test]
fn wrapped_keys() {
    let mut b = bench(true);
    let caps = |b: &mut Bench| {
        let page = b.run(Opcode::QueryHcaCap, TYPE_CRYPTO << 1 | 1, &[], QueryHcaCapOut::SIZE);
        let page = *QueryHcaCapOut::from_prefix_or_zero(&page.output).crypto();
        (page.get(Crypto::WRAPPED_IMPORT_METHOD), page.get(Crypto::WRAPPED_CRYPTO_OPERATIONAL))
    };
    assert_eq!(caps(&mut b), (import::AES_XTS, 0));
    let pd = b.alloc(Opcode::AllocPd);
    let credential: Vec<u8> = (100..140).collect();
    let mut login = CryptoLogin::new().bytes().to_vec();
    login[CryptoLogin::CREDENTIAL].copy_from_slice(&wrapped(&credential));
    let log_in = |b: &mut Bench, login: &[u8]| send(b, Opcode::CreateGeneralObject, (LOGIN, 0, 0), login);
    assert_eq!(log_in(&mut b, &login).status(), Status::BadSystemState, "nobody has made it operational");

    let mut operational = CryptoOperational::new().bytes().to_vec();
    operational[CryptoOperational::CREDENTIAL].copy_from_slice(&credential);
    operational[CryptoOperational::KEK][..16].copy_from_slice(&KEK);
    let mut no_size = operational.clone();
    no_size[3] = 2;
    assert_eq!(register(&mut b, reg::CRYPTO_OPERATIONAL, true, &no_size).status(), Status::BadParam);
    assert_eq!(register(&mut b, reg::CRYPTO_OPERATIONAL, true, &operational).status(), Status::Ok);
    let again = register(&mut b, reg::CRYPTO_OPERATIONAL, true, &operational);
    assert_eq!(again.status(), Status::BadResourceState, "it is set once");
    let read = register(&mut b, reg::CRYPTO_OPERATIONAL, false, &operational);
    assert_eq!(read.output[16..20], [0x80, 0, 0, 0]);
    assert!(read.output[20..].iter().all(|byte| *byte == 0), "secrets are nobody's to read");
    b.fw.ports.restart();
    assert_eq!(caps(&mut b), (import::AES_XTS, 1), "it outlasts a start");

    let key = dek(pd, &wrapped(&plain_key()));
    let create = |b: &mut Bench, key: &[u8]| send(b, Opcode::CreateGeneralObject, (DEK, 0, 0), key);
    assert_eq!(create(&mut b, &key).status(), Status::BadResourceState, "nobody has logged in");
    for (at, status) in [
        (CryptoLogin::CREDENTIAL.start, Status::BadParam),
        (CryptoLogin::CREDENTIAL_POINTER.offset() + 3, Status::BadResource),
        (CryptoLogin::SESSION_IMPORT_KEK_PTR.offset() + 3, Status::BadResource),
    ] {
        let mut wrong = login.clone();
        wrong[at] ^= 1;
        assert_eq!(log_in(&mut b, &wrong).status(), status, "byte {at:#x}");
    }
    let session = log_in(&mut b, &login).number();
    assert_eq!(log_in(&mut b, &login).status(), Status::BadResourceState, "one login a context");
    let state = send(&mut b, Opcode::QueryGeneralObject, (LOGIN, 0, session), CryptoLogin::new().bytes());
    assert_eq!(CryptoLogin::from_prefix_or_zero(&state.output).get(CryptoLogin::STATE), 0);
    assert_eq!(create(&mut b, &dek(pd, &plain_key())).status(), Status::BadParam, "a key in plain");
    let number = create(&mut b, &key).number();
    assert_eq!(b.fw.icm.data_key(number).and_then(|key| key.tag), Some([32, 33, 34, 35, 36, 37, 38, 39]));
    let query = |b: &mut Bench| send(b, Opcode::QueryGeneralObject, (DEK, 0, number), Dek::new().bytes());
    assert_eq!(query(&mut b).status(), Status::Ok);
    let out = send(&mut b, Opcode::DestroyGeneralObject, (LOGIN, 0, session), CryptoLogin::new().bytes());
    assert_eq!(out.status(), Status::Ok);
    assert_eq!(query(&mut b).status(), Status::BadResourceState, "logged out");
    assert!(b.fw.icm.data_key(number).is_some(), "the key stays");
    assert_eq!(CREDENTIAL_LEN, credential.len());
}

/// The register is one of adapters that import wrapped keys.
#[test]
fn keys_in_plain_need_no_officer() {
    let mut b = bench(false);
    let data = [0; CryptoOperational::SIZE];
    assert_eq!(register(&mut b, reg::CRYPTO_OPERATIONAL, true, &data).status(), Status::BadSystemState);
    assert_eq!(register(&mut b, reg::CRYPTO_OPERATIONAL, false, &data).status(), Status::Ok);
    let mut older = Bench::initialized();
    assert_eq!(register(&mut older, reg::CRYPTO_OPERATIONAL, false, &data).status(), Status::BadParam);
}

#[test]
fn memory_keys_that_encrypt() {
    let create = |b: &mut Bench, change: fn(&mut Mkc)| {
        let pd = b.alloc(Opcode::AllocPd);
        let mut input = CreateMkeyIn::new();
        let mkc = input.mkc_mut();
        mkc.set_access_mode(AccessMode::Klm).set(Mkc::PD, pd).set(Mkc::FREE, 1).set(Mkc::UMR_EN, 1);
        mkc.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, 4).set(Mkc::BSF_EN, 1).set(Mkc::CRYPTO_EN, 1);
        mkc.set(Mkc::BSF_OCTWORD_SIZE, 2 * BSF_OCTWORDS);
        change(mkc);
        b.put(Opcode::CreateMkey, &input, 16).status()
    };
    let mut b = bench(false);
    assert_eq!(create(&mut b, |_| {}), Status::Ok);
    assert_eq!(create(&mut b, |m| _ = m.set(Mkc::BSF_OCTWORD_SIZE, BSF_OCTWORDS)), Status::Ok);
    assert_eq!(create(&mut b, |m| _ = m.set(Mkc::BSF_OCTWORD_SIZE, 2 * BSF_OCTWORDS + 1)), Status::BadParam);
    assert_eq!(create(&mut b, |m| _ = m.set(Mkc::BSF_OCTWORD_SIZE, 0)), Status::BadParam, "no room");
    assert_eq!(create(&mut b, |m| _ = m.set(Mkc::BSF_EN, 0)), Status::BadParam);
    assert_eq!(create(&mut b, |m| _ = m.set(Mkc::UMR_EN, 0)), Status::BadParam);
    assert_eq!(create(&mut b, |m| _ = m.set(Mkc::CRYPTO_EN, 2)), Status::BadParam);
    assert_eq!(create(&mut b, |m| _ = m.set(Mkc::CRYPTO_EN, 0)), Status::BadParam, "one part is enough then");
    assert_eq!(create(&mut Bench::initialized(), |_| {}), Status::BadParam, "a ConnectX-4 does not encrypt");
}
