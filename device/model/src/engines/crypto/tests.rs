use hca_firmware::crypto::Form;
use hca_spec::crypto::key_size;
use proptest::prelude::*;

use super::*;

const KEY: Mkey = Mkey(0x100);

/// Memory of tests, of signatures too.
impl Bytes for Vec<u8> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Fault> {
        buf.copy_from_slice(&self[offset as usize..][..buf.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Fault> {
        self[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn dek() -> DataKey {
    let form = Form { size: key_size::AES_128, tagged: false };
    DataKey::new(Pd(1), 0, form, &(0..32).collect::<Vec<u8>>()).unwrap()
}

fn part(wanted: u32, unit: u32, tweak: u128) -> CryptoBsf {
    let mut bsf = CryptoBsf::new();
    bsf.set(CryptoBsf::TYPE, BSF_TYPE_CRYPTO).set(CryptoBsf::ENCRYPTION_ORDER, wanted);
    bsf.set(CryptoBsf::BLOCK_SIZE, unit);
    bsf.set(CryptoBsf::TWEAK_HIGH, (tweak >> 64) as u64).set(CryptoBsf::TWEAK_LOW, tweak as u64);
    bsf
}

fn state(wanted: u32, unit: u32, tweak: u128) -> Encryption {
    Encryption { bsf: part(wanted, unit, tweak), ..Encryption::default() }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Selectors of data units and their bytes.
const UNITS: [(u32, usize); 5] = [(1, 512), (2, 520), (3, 4096), (4, 4160), (6, 4048)];

/// Units of whole bytes, each encrypted as one.
fn reference(key: &DataKey, plain: &[u8], unit: usize, tweak: u128) -> Vec<u8> {
    let mut all = plain.to_vec();
    for (n, unit) in all.chunks_mut(unit).enumerate() {
        key.encrypt(unit, tweak.wrapping_add(n as u128));
    }
    all
}

proptest! {
    /// Whatever pieces data goes in, it is what whole units are.
    #[test]
    fn pieces_are_wholes(
        which in 0..UNITS.len(),
        units in 1..4usize,
        cuts in prop::collection::vec(1..1500usize, 1..40),
        tweak: u128,
    ) {
        let (selector, unit) = UNITS[which];
        let (key, plain) = (dek(), pattern(units * unit));
        let sealed = reference(&key, &plain, unit, tweak);
        let mut state = state(order::WIRE_SIGNATURE, selector, tweak);
        let encrypted = Encrypted { key: KEY, plan: Plan::new(&state.bsf).unwrap(), cipher: &key, state: &state };
        // To the wire, every piece by itself.
        let mut memory = plain.clone();
        let (mut at, mut sent) = (0, Vec::new());
        for n in cuts.iter().cycle() {
            let n = (*n).min(plain.len() - at);
            let mut piece = vec![0; n];
            encrypted.outwards(&mut memory).read(at as u64, &mut piece).unwrap();
            sent.extend(piece);
            at += n;
            if at == plain.len() {
                break;
            }
        }
        prop_assert!(sent == sealed);
        // From the wire, each piece twice: an access that is made again finds the same.
        let mut memory = vec![0; plain.len()];
        let mut at = 0;
        for n in cuts.iter().cycle() {
            let piece = &sealed[at..(at + n).min(sealed.len())];
            for _ in 0..2 {
                let plan = Plan::new(&state.bsf).unwrap();
                let encrypted = Encrypted { key: KEY, plan, cipher: &key, state: &state };
                let mut through = encrypted.inwards(&mut memory, at as u64);
                through.write(at as u64, piece).unwrap();
                state.partial = through.close().unwrap();
            }
            at += piece.len();
            if at == sealed.len() {
                break;
            }
        }
        prop_assert!(memory == plain);
    }

    /// What has come is seen at once, though it waits for the rest of its block.
    #[test]
    fn what_waits_is_seen(which in 0..UNITS.len(), cut in 1..4096usize, from in 0..4096usize) {
        let (selector, unit) = UNITS[which];
        let (cut, from) = (cut.min(unit), from % cut.min(unit));
        let key = dek();
        let state = state(order::MEMORY_SIGNATURE, selector, 9);
        let encrypted = Encrypted { key: KEY, plan: Plan::new(&state.bsf).unwrap(), cipher: &key, state: &state };
        let mut memory = vec![0; unit];
        let plain = pattern(unit);
        let mut through = encrypted.inwards(&mut memory, 0);
        through.write(0, &plain[..cut]).unwrap();
        let mut seen = vec![0; cut - from];
        through.read(from as u64, &mut seen).unwrap();
        prop_assert!(seen == plain[from..cut]);
        through.write(cut as u64, &plain[cut..]).unwrap();
        _ = through.close();
        prop_assert!(memory == reference(&key, &plain, unit, 9), "memory is encrypted");
    }
}

#[test]
fn parts_of_units() {
    let plan = |selector| Plan::new(&part(order::RAW_WIRE, selector, 0)).unwrap();
    let of_512 = plan(1);
    assert_eq!((of_512.whole(0), of_512.whole(1), of_512.whole(512), of_512.whole(513)), (0, 16, 512, 528));
    let of_520 = plan(2);
    assert_eq!(
        (of_520.whole(496), of_520.whole(497), of_520.whole(520), of_520.whole(521)),
        (496, 520, 520, 536)
    );
    assert_eq!((of_520.begin(519), of_520.begin(520), of_520.begin(1016)), (496, 520, 1016));
}

/// The tweak is a number of 128 bits that goes round.
#[test]
fn tweaks_go_on() {
    let (key, plain) = (dek(), pattern(1024));
    let state = state(order::WIRE_SIGNATURE, 1, u128::MAX);
    let encrypted = Encrypted { key: KEY, plan: Plan::new(&state.bsf).unwrap(), cipher: &key, state: &state };
    let mut sent = vec![0; 1024];
    encrypted.outwards(&mut plain.clone()).read(0, &mut sent).unwrap();
    let (mut first, mut second) = (plain[..512].to_vec(), plain[512..].to_vec());
    key.encrypt(&mut first, u128::MAX);
    key.encrypt(&mut second, 0);
    assert!(sent == [first, second].concat());
}

#[test]
fn sides() {
    let plan = |wanted| Plan::new(&part(wanted, 1, 0)).map(|plan| (plan.side, plan.seals, plan.takes_both()));
    assert_eq!(plan(order::WIRE_SIGNATURE), Ok((Side::Wire, true, true)));
    assert_eq!(plan(order::MEMORY_SIGNATURE), Ok((Side::Memory, false, true)));
    assert_eq!(plan(order::RAW_WIRE), Ok((Side::Memory, true, false)));
    assert_eq!(plan(order::RAW_MEMORY), Ok((Side::Wire, false, false)));
    assert!(plan(4).is_err());
    let changed = |change: fn(&mut CryptoBsf)| {
        let mut bsf = part(order::RAW_WIRE, 1, 0);
        change(&mut bsf);
        Plan::new(&bsf)
    };
    assert!(changed(|b| _ = b.set(CryptoBsf::TYPE, 0)).is_err());
    assert!(changed(|b| _ = b.set(CryptoBsf::ENCRYPTION_STANDARD, 1)).is_err());
    assert!(changed(|b| _ = b.set(CryptoBsf::BLOCK_SIZE, 5)).is_err());
}

/// A write that begins inside a block needs what came before.
#[test]
fn blocks_have_a_begin() {
    let key = dek();
    let mut state = state(order::WIRE_SIGNATURE, 1, 0);
    let mut memory = vec![0; 1024];
    let mut write = |at: u64, len: usize| {
        let plan = Plan::new(&state.bsf).unwrap();
        let encrypted = Encrypted { key: KEY, plan, cipher: &key, state: &state };
        let mut through = encrypted.inwards(&mut memory, at);
        let written = through.write(at, &vec![1; len]);
        state.partial = through.close().unwrap();
        written
    };
    assert_eq!(write(8, 8), Err(Fault::Block { key: KEY, offset: 8 }));
    assert_eq!((write(0, 8), write(8, 8)), (Ok(()), Ok(())));
    assert_eq!(
        (write(16, 8), write(0, 16), write(24, 8)),
        (Ok(()), Ok(()), Err(Fault::Block { key: KEY, offset: 24 }))
    );
}
