use hca_firmware::icm::{Domain as Pd, Psv, Signature};
use hca_firmware::{Config, Firmware};
use hca_spec::bsf::{Bsf, Dif, GUARD_CHECKSUM, GUARD_CRC, format};

use super::*;

thread_local! {
    /// What a test has found so far.
    static FOUND: std::cell::RefCell<Vec<SignatureError>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Backing for Vec<u8> {
    fn found(&mut self, error: SignatureError) {
        FOUND.with_borrow_mut(|found| found.push(error));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    None,
    Crc,
    Sum,
    Crc32,
    Crc64,
}

/// The BSF of two domains with blocks of those selectors.
fn bsf(memory: (Kind, u32), wire: (Kind, u32)) -> Bsf {
    let mut b = Bsf::new();
    b.set(Bsf::CHECK_MASK, 0xff).set(Bsf::MEMORY, memory.1).set(Bsf::WIRE, wire.1);
    b.set(Bsf::MEMORY_PSV, 1).set(Bsf::WIRE_PSV, 2);
    let block_format = |kind| match kind {
        Kind::Crc32 => format::CRC32 | format::REPEAT,
        Kind::Crc64 => format::CRC64_XP10 | format::REPEAT,
        _ => 0,
    };
    b.set(Bsf::MEMORY_FORMAT, block_format(memory.0)).set(Bsf::WIRE_FORMAT, block_format(wire.0));
    let dif = |kind, d: &mut Dif| {
        let guard = match kind {
            Kind::Crc => GUARD_CRC,
            Kind::Sum => GUARD_CHECKSUM,
            _ => return,
        };
        d.set(Dif::VALID, 1).set(Dif::REPEAT, 1).set(Dif::GUARD, guard).set(Dif::INCREMENT, 1);
        d.set(Dif::APP_TAG, 0x1234).set(Dif::REF_TAG, 77).set(Dif::APP_MASK, 0xffff);
    };
    dif(memory.0, b.memory_dif_mut());
    dif(wire.0, b.wire_dif_mut());
    b
}

/// Runs `f` with a key of that BSF; returns the errors.
fn with(bsf: Bsf, f: impl FnOnce(&Signed)) -> Vec<SignatureError> {
    let mut fw = Firmware::new(Config::default());
    let pd = fw.icm.pds.insert(Pd::default()).unwrap();
    assert_eq!(fw.icm.psvs.insert(Psv { pd, value: u64::MAX }), Ok(1));
    assert_eq!(fw.icm.psvs.insert(Psv { pd, value: 0 }), Ok(2));
    let mut entry = MemoryKey::default();
    entry.ctx.set(Mkc::PD, pd).set(Mkc::BSF_EN, 1);
    entry.signature = Some(Box::new(Signature { bsf, ..Signature::default() }));
    let (signed, _) = signed(&fw.icm, &entry, Mkey(0x100)).unwrap().expect("a signature key");
    f(&signed);
    FOUND.take()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

const KINDS: [Kind; 5] = [Kind::None, Kind::Crc, Kind::Sum, Kind::Crc32, Kind::Crc64];

/// Whatever the domains are and however the stream is cut: what one side makes out of data, the other side
/// with the same wire domain finds right, and data arrives unchanged.
#[test]
fn both_ways() {
    for wire in KINDS {
        for memory in KINDS {
            for (m, w) in [(1, 1), (2, 1), (1, 3), (3, 2)] {
                let data = pattern(3 * 4096);
                let plain = |wire| bsf((Kind::None, 0), (wire, w));
                // On the wire, from plain memory.
                let wire_len = match wire {
                    Kind::None => data.len(),
                    kind => {
                        let block = hca_spec::bsf::block_size(w).unwrap() as usize;
                        data.len() / block * (block + if kind == Kind::Crc32 { 4 } else { 8 })
                    }
                };
                let mut stream = vec![0; wire_len];
                let errors = with(plain(wire), |s| {
                    for (i, piece) in stream.chunks_mut(1000).enumerate() {
                        s.gather(&mut data.clone(), i as u64 * 1000, piece).unwrap();
                    }
                });
                assert_eq!(errors, []);
                // Into memory with signatures, in pieces of another size, and out again.
                let mut memory_buffer = vec![0; 2 * data.len()];
                let mut again = vec![0; wire_len];
                let errors = with(bsf((memory, m), (wire, w)), |s| {
                    let mut arriving = [0; 8];
                    for (i, piece) in stream.chunks(259).enumerate() {
                        s.scatter(&mut memory_buffer, i as u64 * 259, piece, &mut arriving).unwrap();
                    }
                    s.gather(&mut memory_buffer, 0, &mut again).unwrap();
                });
                assert_eq!(errors, [], "{memory:?} {m}, {wire:?} {w}");
                assert!(again == stream, "{memory:?} {m}, {wire:?} {w}");
            }
        }
    }
}

/// Every byte of the stream that is wrong is found, in the domain and at the block where it is.
#[test]
fn wrong_bytes_are_found() {
    for kind in &KINDS[1..] {
        let mut stream = vec![0; 2 * 512 + 2 * if *kind == Kind::Crc32 { 4 } else { 8 }];
        let stride = stream.len() / 2;
        with(bsf((Kind::None, 0), (*kind, 1)), |s| {
            s.gather(&mut pattern(1024), 0, &mut stream).unwrap();
        });
        for at in (0..stream.len()).step_by(37).chain([512, stride - 1, stream.len() - 1]) {
            let mut bad = stream.clone();
            bad[at] ^= 0x10;
            let errors = with(bsf((Kind::None, 0), (*kind, 1)), |s| {
                s.scatter(&mut vec![0; 1024], 0, &bad, &mut [0; 8]).unwrap();
            });
            assert_eq!(errors.len(), 1, "{kind:?}, byte {at}");
            assert_eq!((errors[0].side, errors[0].offset), (sig_err::WIRE, (at / stride * stride) as u64));
        }
        // The same stream as memory that is read: the seed is another one there.
        let errors = with(bsf((*kind, 1), (Kind::None, 0)), |s| {
            s.gather(&mut stream.clone(), 0, &mut [0; 1024]).unwrap();
        });
        let differs = *kind != Kind::Sum;
        assert_eq!(errors.len(), if differs { 2 } else { 0 }, "{kind:?}");
        assert!(errors.iter().all(|e| (e.side, e.syndrome) == (sig_err::MEMORY, sig_err::GUARD)));
    }
}

/// Blocks that are the same: the copied bytes pass as they are, right or wrong.
#[test]
fn copied_bytes() {
    let mut same = bsf((Kind::Crc, 1), (Kind::Crc, 0));
    // The tags are copied, the guard is made anew; nothing is checked.
    same.set(Bsf::SAME_STRUCTURE, 1).set(Bsf::WIRE, 0x3f).set(Bsf::CHECK_MASK, 0);
    let mut memory = pattern(520);
    let mut stream = [0; 520];
    let errors = with(same, |s| s.gather(&mut memory, 0, &mut stream).unwrap());
    assert_eq!(errors, []);
    assert_eq!(stream[514..], memory[514..], "the tags");
    assert_ne!(stream[512..514], memory[512..514], "the guard");
    let mut back = vec![0; 520];
    with(same, |s| s.scatter(&mut back, 0, &stream, &mut [0; 8]).unwrap());
    assert_eq!(back[..512], memory[..512]);
    assert_eq!(back[514..], memory[514..]);
}

/// Half a block has no signature yet, and what is beyond the stream's end is not looked at.
#[test]
fn incomplete_blocks() {
    let errors = with(bsf((Kind::Crc32, 1), (Kind::None, 0)), |s| {
        s.gather(&mut vec![5; 511], 0, &mut [0; 511]).unwrap();
        assert_eq!(s.memory_len(511), 511);
        assert_eq!(s.memory_len(512), 516);
    });
    assert_eq!(errors, []);
}
