//! Keys that encrypt, through our own driver: every order of signatures and encryption, sizes of data units, and what is refused.
//!
//! What data is when it is encrypted is said by `xts-mode`, unit by unit; what its signatures are, by the adapter's signature keys.

use aes::cipher::KeyInit;
use aes::{Aes128, Aes256};
use hca_driver::umr::pieces;
use hca_driver::wqe::SendOp;
use hca_driver::{Access, DataKey, KeyChange, SendRequest, Sge};
use hca_model::FirmwareConfig;
use hca_model::personality::Personality;
use hca_spec::bsf::{BSF_WITH_INLINE, Bsf, Dif, GUARD_CRC};
use hca_spec::caps::DeviceMemory;
use hca_spec::cqe::Syndrome;
use hca_spec::crypto::{BSF_SIGNATURE_AND_CRYPTO, BSF_TYPE_CRYPTO, Crypto, CryptoBsf, import, order};
use hca_spec::ids::Mkey;
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{close, open};
use xts_mode::{Xts128, get_tweak_default};

use crate::device_memory::{world_of, world_with};

/// Selectors of data units and their bytes.
const UNITS: [(u32, usize); 5] = [(1, 512), (2, 520), (3, 4096), (4, 4160), (6, 4048)];
/// Tweak of the first data unit.
const TWEAK: u128 = 0x0123_4567_89ab_cdef_0011_2233_4455_66ff;
/// Bytes of a block that has a signature, and of one with its signature.
const BLOCK: usize = 512;
const STRIDE: usize = BLOCK + 8;

fn rig(mtu: u8) -> Pair<ModelBus> {
    let simulation = Simulation::new(world_of("connectx6dx"));
    let options = Options { mtu, ..Options::default() };
    Pair::connect(vec![open(&simulation, 0)], &options).expect("the queue pairs connect")
}

/// Keys of 128 and of 256 bits.
fn bytes_of_key(long: bool) -> Vec<u8> {
    pattern(99, if long { 64 } else { 32 })
}

/// What data is when it is encrypted.
fn sealed(long: bool, data: &[u8], unit: usize) -> Vec<u8> {
    let (key, mut data) = (bytes_of_key(long), data.to_vec());
    let (first, second) = key.split_at(key.len() / 2);
    let tweak = |unit| get_tweak_default(TWEAK.wrapping_add(unit));
    if long {
        let [first, second] = [first, second].map(|key| Aes256::new_from_slice(key).unwrap());
        Xts128::new(first, second).encrypt_area(&mut data, unit, 0, tweak);
    } else {
        let [first, second] = [first, second].map(|key| Aes128::new_from_slice(key).unwrap());
        Xts128::new(first, second).encrypt_area(&mut data, unit, 0, tweak);
    }
    data
}

fn part(wanted: u32, selector: u32, dek: u32) -> CryptoBsf {
    let mut part = CryptoBsf::new();
    part.set(CryptoBsf::PARTS, BSF_WITH_INLINE).set(CryptoBsf::TYPE, BSF_TYPE_CRYPTO);
    part.set(CryptoBsf::ENCRYPTION_ORDER, wanted).set(CryptoBsf::BLOCK_SIZE, selector);
    part.set(CryptoBsf::TWEAK_HIGH, (TWEAK >> 64) as u64).set(CryptoBsf::TWEAK_LOW, TWEAK as u64);
    part.set(CryptoBsf::RAW_DATA_SIZE, u32::MAX).set(CryptoBsf::DEK, dek);
    part
}

/// T10-DIF in these domains.
fn t10(memory: bool, wire: bool, psvs: &[u32]) -> Bsf {
    let mut bsf = Bsf::new();
    bsf.set(Bsf::PARTS, BSF_SIGNATURE_AND_CRYPTO)
        .set(Bsf::CHECK_MASK, 0xff)
        .set(Bsf::RAW_DATA_SIZE, u32::MAX);
    let dif = |dif: &mut Dif, app_tag| {
        dif.set(Dif::VALID, 1).set(Dif::REFRESH, 1).set(Dif::REPEAT, 1).set(Dif::GUARD, GUARD_CRC);
        dif.set(Dif::APP_TAG, app_tag).set(Dif::REF_TAG, 1000).set(Dif::INCREMENT, 1);
        dif.set(Dif::APP_MASK, 0xffff);
    };
    if memory {
        bsf.set(Bsf::MEMORY, 1).set(Bsf::MEMORY_PSV, psvs[0]);
        dif(bsf.memory_dif_mut(), 0x5aa5);
    }
    if wire {
        bsf.set(Bsf::WIRE, 1).set(Bsf::WIRE_PSV, psvs[1]);
        dif(bsf.wire_dif_mut(), 0x1221);
    }
    bsf
}

/// A key of end 0, whose pieces are that end's memory from its begin.
struct Passing {
    key: Mkey,
    dek: u32,
    psvs: Vec<u32>,
}

impl Passing {
    fn new(pair: &mut Pair<ModelBus>, long: bool) -> Self {
        let pd = pair.ends[0].pd;
        let bytes = bytes_of_key(long);
        let hca = &mut pair.hcas[0];
        let dek = DataKey { pd, bytes: &bytes, long, tagged: false };
        let dek = hca.create_data_key(&dek).expect("CREATE_GENERAL_OBJECT");
        let psvs = hca.create_psvs(pd, 2).expect("CREATE_PSV");
        Self { key: hca.alloc_encrypting_key(pd, 4).expect("CREATE_MKEY"), dek, psvs }
    }

    /// Loads the parts, for `len` bytes of memory.
    fn load(
        &self,
        pair: &mut Pair<ModelBus>,
        signature: Option<Bsf>,
        part: CryptoBsf,
        len: usize,
    ) -> Option<Syndrome> {
        let list = pieces(&[pair.ends[0].sge(0, len)]);
        let mut change = KeyChange::new(self.key).enable(self.key.variant()).access(Access::ALL);
        change = change.range(0, len as u64);
        if let Some(signature) = signature {
            change = change.signatures(signature, 1);
        }
        let change = change.encryption(part);
        pair.send(0, &SendRequest::new(77, SendOp::Change(change), &[]).inline(&list));
        pair.sent(0).1.syndrome()
    }

    fn sge(&self, len: usize) -> Sge {
        Sge { address: 0, len: len as u32, key: self.key }
    }

    fn free(self, pair: &mut Pair<ModelBus>) {
        let hca = &mut pair.hcas[0];
        hca.free_key(self.key).expect("DESTROY_MKEY");
        hca.destroy_data_key(self.dek).expect("DESTROY_GENERAL_OBJECT");
        self.psvs.into_iter().for_each(|psv| hca.destroy_psv(psv).expect("DESTROY_PSV"));
    }

    /// What `memory` is on the wire, which has `len` bytes: written to the peer. Then it is read back.
    fn there_and_back(&self, pair: &mut Pair<ModelBus>, memory: &[u8], len: usize) -> Vec<u8> {
        let far = pair.ends[1].mr;
        pair.fill(0, 0, memory);
        pair.send(0, &SendRequest::write(1, &[self.sge(len)], far.address, far.key));
        pair.sent_ok(0, 1);
        let wire = pair.ends[1].bytes(0, len);
        pair.fill(0, 0, &vec![0; memory.len()]);
        pair.send(0, &SendRequest::read(2, &[self.sge(len)], far.address, far.key));
        pair.sent_ok(0, 2);
        assert!(pair.ends[0].bytes(0, memory.len()) == memory, "{len} bytes came back");
        wire
    }
}

/// Data units of all sizes, whole and not, in packets of several sizes.
#[test]
pub(crate) fn data_units() {
    for (mtu, long) in [(3, false), (5, true)] {
        let mut pair = rig(mtu);
        let near = Passing::new(&mut pair, long);
        for (selector, unit) in UNITS {
            for len in [unit, 3 * unit, 2 * unit + 128] {
                let data = pattern(len as u64, len);
                let good = sealed(long, &data, unit);
                for (plain, wanted) in [(true, order::WIRE_SIGNATURE), (false, order::RAW_MEMORY)] {
                    assert_eq!(near.load(&mut pair, None, part(wanted, selector, near.dek), len), None);
                    let (memory, wire) = if plain { (&data, &good) } else { (&good, &data) };
                    assert!(
                        near.there_and_back(&mut pair, memory, len) == *wire,
                        "{len} bytes in units of {unit}"
                    );
                }
            }
        }
        near.free(&mut pair);
        close(pair);
    }
}

/// The peer uses the key: it reads what is encrypted, and what it writes is decrypted. Sends and receives.
#[test]
pub(crate) fn every_operation() {
    const LEN: usize = 3 * STRIDE;
    let mut pair = rig(3);
    let near = Passing::new(&mut pair, false);
    let data = pattern(5, LEN);
    let good = sealed(false, &data, STRIDE);
    assert_eq!(near.load(&mut pair, None, part(order::RAW_WIRE, 2, near.dek), LEN), None);
    pair.fill(0, 0, &data);
    let far = pair.ends[1].sge(0, LEN);
    pair.send(1, &SendRequest::read(1, &[far], 0, near.key));
    pair.sent_ok(1, 1);
    assert!(pair.ends[1].bytes(0, LEN) == good);
    pair.fill(0, 0, &vec![0; LEN]);
    pair.send(1, &SendRequest::write(2, &[far], 0, near.key));
    pair.sent_ok(1, 2);
    assert!(pair.ends[0].bytes(0, LEN) == data);
    pair.fill(1, 0, &vec![0; LEN]);
    pair.recv(1, 3, 0, LEN);
    pair.send(0, &SendRequest::send(4, &[near.sge(LEN)]));
    pair.sent_ok(0, 4);
    pair.received_ok(1, 3);
    assert!(pair.ends[1].bytes(0, LEN) == good);
    // A list of pieces of the key: each part of a message is where it belongs.
    let halves =
        [Sge { len: 512, ..near.sge(0) }, Sge { address: 512, len: (LEN - 512) as u32, ..near.sge(0) }];
    pair.fill(1, 0, &vec![0; LEN]);
    let to = pair.ends[1].mr;
    pair.send(0, &SendRequest::write(5, &halves, to.address, to.key));
    pair.sent_ok(0, 5);
    assert!(pair.ends[1].bytes(0, LEN) == good);
    near.free(&mut pair);
    close(pair);
}

/// Every row of the table of `mlx5dv_wr_set_mkey_crypto(3)` that has signatures: what is in memory, what is on the wire.
#[test]
pub(crate) fn signatures_and_encryption() {
    const BLOCKS: usize = 5;
    let (of_data, of_both) = ((1, BLOCK), (2, STRIDE));
    for mtu in [1, 3, 5] {
        let mut pair = rig(mtu);
        let near = Passing::new(&mut pair, true);
        let psvs = near.psvs.clone();
        let data = pattern(3, BLOCKS * BLOCK);
        // Data with the signatures of each domain, by a signature key.
        let signing = pair.hcas[0].alloc_signature_key(pair.ends[0].pd, 4).expect("CREATE_MKEY");
        let signed = |pair: &mut Pair<ModelBus>, data: &[u8], wire: bool| {
            let list = pieces(&[pair.ends[0].sge(0, data.len())]);
            let mut bsf = t10(!wire, wire, &psvs);
            bsf.set(Bsf::PARTS, BSF_WITH_INLINE);
            if !wire {
                // What the memory domain's signatures are is seen on the wire.
                let inner = *bsf.memory_dif();
                bsf = t10(false, true, &psvs);
                bsf.set(Bsf::PARTS, BSF_WITH_INLINE);
                *bsf.wire_dif_mut() = inner;
            }
            let change = KeyChange::new(signing).enable(signing.variant()).access(Access::ALL);
            let change = change.range(0, data.len() as u64).signatures(bsf, 1);
            pair.fill(0, 0, data);
            pair.send(0, &SendRequest::new(70, SendOp::Change(change), &[]).inline(&list));
            pair.sent_ok(0, 70);
            let (far, len) = (pair.ends[1].mr, data.len() / BLOCK * STRIDE);
            let sge = Sge { address: 0, len: len as u32, key: signing };
            pair.send(0, &SendRequest::write(71, &[sge], far.address, far.key));
            pair.sent_ok(0, 71);
            pair.ends[1].bytes(0, len)
        };
        let seal = |data: &[u8], unit: usize| sealed(true, data, unit);
        let hidden = seal(&data, BLOCK);
        let (in_memory, on_wire) = (signed(&mut pair, &data, false), signed(&mut pair, &data, true));
        let (hidden_in_memory, hidden_on_wire) =
            (signed(&mut pair, &hidden, false), signed(&mut pair, &hidden, true));
        // Row, signatures in memory and on the wire, order, data units, memory, wire.
        let rows = [
            ("B", (false, true), order::RAW_WIRE, of_data, &data, &hidden_on_wire),
            ("C", (false, true), order::WIRE_SIGNATURE, of_both, &data, &seal(&on_wire, STRIDE)),
            ("D", (true, false), order::WIRE_SIGNATURE, of_data, &in_memory, &hidden),
            ("E", (true, true), order::WIRE_SIGNATURE, of_both, &in_memory, &seal(&on_wire, STRIDE)),
            ("G", (false, true), order::MEMORY_SIGNATURE, of_data, &hidden, &on_wire),
            ("H", (true, false), order::MEMORY_SIGNATURE, of_both, &seal(&in_memory, STRIDE), &data),
            ("I", (true, true), order::MEMORY_SIGNATURE, of_both, &seal(&in_memory, STRIDE), &on_wire),
            ("J", (true, false), order::RAW_MEMORY, of_data, &hidden_in_memory, &data),
        ];
        for (row, (memory, wire), wanted, (selector, _), there, expected) in rows {
            let mut part = part(wanted, selector, near.dek);
            part.set(CryptoBsf::PARTS, BSF_SIGNATURE_AND_CRYPTO);
            let signature = t10(memory, wire, &psvs);
            assert_eq!(near.load(&mut pair, Some(signature), part, there.len()), None, "row {row}");
            let found = near.there_and_back(&mut pair, there, expected.len());
            assert!(found == *expected, "row {row}, MTU {mtu}");
            assert!(pair.ends[0].send_cq.poll().is_none(), "row {row}: no signature is wrong");
        }
        let mut part = part(order::RAW_WIRE, 1, near.dek);
        part.set(CryptoBsf::PARTS, BSF_SIGNATURE_AND_CRYPTO);
        let both = near.load(&mut pair, Some(t10(true, true, &psvs)), part, STRIDE);
        assert_eq!(both, Some(Syndrome::MemoryWindowBind), "signatures of what is encrypted are on one side");
        pair.hcas[0].free_key(signing).expect("DESTROY_MKEY");
        // The queue pair is in error: nothing of it is needed any more.
        near.free(&mut pair);
        close(pair);
    }
}

/// The part names a DEK with the tag 0x1234, by that tag.
fn tagged(pair: &mut Pair<ModelBus>, part: &mut CryptoBsf, tag: u64) {
    let bytes = [bytes_of_key(false), 0x1234u64.to_be_bytes().to_vec()].concat();
    let dek = DataKey { pd: pair.ends[0].pd, bytes: &bytes, long: false, tagged: true };
    part.set(CryptoBsf::DEK, pair.hcas[0].create_data_key(&dek).expect("CREATE_GENERAL_OBJECT"));
    part.set(CryptoBsf::KEYTAG, tag);
}

/// What fails when the key is used, and what when it is loaded.
#[test]
pub(crate) fn refusals() {
    let used = |change: fn(&mut Pair<ModelBus>, &Passing, &mut CryptoBsf)| {
        let mut pair = rig(5);
        let near = Passing::new(&mut pair, false);
        let mut part = part(order::RAW_WIRE, 1, near.dek);
        change(&mut pair, &near, &mut part);
        let loaded = near.load(&mut pair, None, part, 512);
        let far = pair.ends[1].mr;
        loaded.map_or_else(
            || {
                pair.send(0, &SendRequest::write(1, &[near.sge(512)], far.address, far.key));
                (true, pair.sent(0).1.syndrome())
            },
            |syndrome| (false, Some(syndrome)),
        )
    };
    assert_eq!(used(|_, _, _| {}), (true, None));
    let protection = (true, Some(Syndrome::LocalProtection));
    assert_eq!(used(|_, _, part| _ = part.set(CryptoBsf::DEK, 0x77)), protection, "no such key");
    let gone = |pair: &mut Pair<ModelBus>, near: &Passing, _: &mut CryptoBsf| {
        pair.hcas[0].destroy_data_key(near.dek).expect("DESTROY_GENERAL_OBJECT");
    };
    assert_eq!(used(gone), protection, "the key is gone");
    let foreign = |pair: &mut Pair<ModelBus>, _: &Passing, part: &mut CryptoBsf| {
        let bytes = bytes_of_key(false);
        let dek = DataKey { pd: pair.ends[1].pd, bytes: &bytes, long: false, tagged: false };
        part.set(CryptoBsf::DEK, pair.hcas[0].create_data_key(&dek).expect("CREATE_GENERAL_OBJECT"));
    };
    assert_eq!(used(foreign), protection, "the key is another domain's");
    assert_eq!(used(|pair, _, part| tagged(pair, part, 0x1234)), (true, None));
    assert_eq!(used(|pair, _, part| tagged(pair, part, 0x1235)), protection, "another tag");
    let nonsense = (false, Some(Syndrome::MemoryWindowBind));
    assert_eq!(used(|_, _, part| _ = part.set(CryptoBsf::BLOCK_SIZE, 0)), nonsense);
    assert_eq!(used(|_, _, part| _ = part.set(CryptoBsf::ENCRYPTION_ORDER, 9)), nonsense);
    assert_eq!(used(|_, _, part| _ = part.set(CryptoBsf::ENCRYPTION_STANDARD, 1)), nonsense);
}

/// A key that encrypts passes nothing before it was told how, and a key that does not encrypt is not told.
#[test]
pub(crate) fn keys_without_their_part() {
    let mut pair = rig(5);
    let near = Passing::new(&mut pair, false);
    let list = pieces(&[pair.ends[0].sge(0, 512)]);
    let change = KeyChange::new(near.key).enable(near.key.variant()).access(Access::ALL).range(0, 512);
    pair.send(0, &SendRequest::new(77, SendOp::Change(change), &[]).inline(&list));
    pair.sent_ok(0, 77);
    let far = pair.ends[1].mr;
    pair.send(0, &SendRequest::write(1, &[near.sge(512)], far.address, far.key));
    assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::LocalProtection));

    let mut pair = rig(5);
    let near = Passing::new(&mut pair, false);
    let signing = pair.hcas[0].alloc_signature_key(pair.ends[0].pd, 4).expect("CREATE_MKEY");
    let signing = Passing { key: signing, dek: near.dek, psvs: Vec::new() };
    let loaded = signing.load(&mut pair, None, part(order::RAW_WIRE, 1, near.dek), 512);
    assert_eq!(loaded, Some(Syndrome::MemoryWindowBind));
}

/// Keys that are imported wrapped: the adapter is made operational, a program logs in, and its key encrypts like any other.
#[test]
pub(crate) fn wrapped_keys() {
    let kek = pattern(6, 32);
    let wrap = |plain: &[u8]| {
        let mut out = vec![0; plain.len() + 8];
        aes_kw::KwAes256::new_from_slice(&kek).unwrap().wrap_key(plain, &mut out).unwrap();
        out
    };
    let personality = Personality::named("connectx6dx").expect("there is one");
    let firmware = FirmwareConfig { personality, wrapped_keys: true, ..FirmwareConfig::with_guid(0x2c9) };
    let simulation = Simulation::new(world_with(firmware, "connectx6dx"));
    let mut pair =
        Pair::connect(vec![open(&simulation, 0)], &Options::default()).expect("the queue pairs connect");
    let (pd, hca) = (pair.ends[0].pd, &mut pair.hcas[0]);
    assert_eq!(hca.crypto_capabilities().unwrap().get(Crypto::WRAPPED_IMPORT_METHOD), import::AES_XTS);
    let credential: [u8; 40] = pattern(7, 40).try_into().unwrap();
    hca.make_crypto_operational(&credential, &kek).expect("ACCESS_REGISTER");
    let login = hca.crypto_login(&wrap(&credential)).expect("the credential is right");
    let bytes = wrap(&bytes_of_key(false));
    let dek = hca.create_data_key(&DataKey { pd, bytes: &bytes, long: false, tagged: false }).expect("a key");
    hca.crypto_logout(login).expect("DESTROY_GENERAL_OBJECT");
    let psvs = hca.create_psvs(pd, 2).expect("CREATE_PSV");
    let near = Passing { key: hca.alloc_encrypting_key(pd, 4).expect("CREATE_MKEY"), dek, psvs };
    let data = pattern(8, 1024);
    assert_eq!(near.load(&mut pair, None, part(order::WIRE_SIGNATURE, 1, dek), 1024), None);
    assert!(near.there_and_back(&mut pair, &data, 1024) == sealed(false, &data, 512));
    near.free(&mut pair);
    close(pair);
}

/// What older kinds of adapters say.
#[test]
fn others_do_not_encrypt() {
    let simulation = Simulation::new(world_of("connectx5"));
    let mut pair =
        Pair::connect(vec![open(&simulation, 0)], &Options::default()).expect("the queue pairs connect");
    let pd = pair.ends[0].pd;
    let hca = &mut pair.hcas[0];
    assert!(
        hca.device_memory_caps().unwrap().get(DeviceMemory::MEMIC_BAR_START_ADDR) > 0,
        "it is newer than the first"
    );
    let bytes = bytes_of_key(false);
    assert!(hca.create_data_key(&DataKey { pd, bytes: &bytes, long: false, tagged: false }).is_err());
    assert!(hca.alloc_encrypting_key(pd, 4).is_err());
    close(pair);
}
