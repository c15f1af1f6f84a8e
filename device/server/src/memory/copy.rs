//! Copies between shared memory and memory of our own.
//!
//! A guest may write at the same time, so shared bytes are only ever loaded and stored as volatile: each access happens
//! once, as written here, and the compiler assumes nothing of its value. Aligned words are single accesses, so that a
//! doorbell record or an ownership byte is never seen torn.
//!
//! Long ranges are one instruction of the processor (`rep movsb`), which the compiler doesn't look into either: it is as fast as memcpy, and
//! is that on many machines. Its stores may be seen in any order (Intel SDM vol. 3 9.2.4, AMD APM vol. 2 7.1), so
//! the last bytes of a range are stored behind it, in order: a program that looks at the last byte of a message finds the rest there.

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Bytes that are copied at a time between places that are not aligned alike: a page.
const CHUNK: usize = 4096;
/// Ranges from that length on are long, in bytes; below, an instruction for all of it takes longer to begin than it saves.
const LONG: usize = if cfg!(target_arch = "x86_64") { 768 } else { usize::MAX };
/// Bytes at the end of a long range that are copied by words: at least so many.
const LAST: usize = 64;

/// Copies `len` bytes with one instruction.
///
/// # Safety
/// `from .. from + len` is mapped and may be read, `to .. to + len` is mapped and may be written, no part of one is in the other, and no Rust
/// object lies in those of them that are shared.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn long(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller vouches for the ranges. The direction flag is clear whenever Rust code runs (x86-64 psABI 3.2.1).
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
}

/// The same where there is no such instruction: ranges are never long ([`LONG`]).
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn long(_: *mut u8, _: *const u8, _: usize) {}

/// How many bytes of a range of `len` at `shared` go by [`long`]: none, or all up to a word's boundary near the end.
fn long_part(shared: usize, len: usize) -> usize {
    if len < LONG {
        return 0;
    }
    let part = len.saturating_sub(LAST + WORD);
    part + up_to_word(shared.wrapping_add(part))
}

/// Bytes up to the next multiple of a word.
fn up_to_word(address: usize) -> usize {
    address.wrapping_neg() % WORD
}

/// Copies `buf.len()` shared bytes out.
///
/// # Safety
/// `from .. from + buf.len()` is mapped and may be read, and no Rust object lies there.
#[inline]
pub(crate) unsafe fn load(from: *const u8, buf: &mut [u8]) {
    let aligned = from.addr().is_multiple_of(buf.len().max(1));
    // SAFETY (all arms): the caller vouches for the range; alignment is checked for the typed loads.
    match buf.len() {
        2 if aligned => buf.copy_from_slice(
            // SAFETY: see above.
            &unsafe { from.cast::<u16>().read_volatile() }.to_ne_bytes(),
        ),
        4 if aligned => buf.copy_from_slice(
            // SAFETY: see above.
            &unsafe { from.cast::<u32>().read_volatile() }.to_ne_bytes(),
        ),
        // SAFETY: see above.
        _ => unsafe { load_words(from, buf) },
    }
}

/// # Safety
/// As [`load`].
unsafe fn load_words(from: *const u8, buf: &mut [u8]) {
    let Some((first, buf)) = buf.split_at_mut_checked(long_part(from.addr(), buf.len())) else { return };
    if !first.is_empty() {
        // SAFETY: the first bytes of the caller's range, and of `buf`.
        unsafe { long(first.as_mut_ptr(), from, first.len()) };
    }
    let from = from.wrapping_add(first.len());
    let head = up_to_word(from.addr()).min(buf.len());
    let Some((head, rest)) = buf.split_at_mut_checked(head) else { return };
    let mut at = from;
    let mut byte = |to: &mut u8| {
        // SAFETY: `at` passes over the caller's range, a byte for each byte of `buf`.
        (*to, at) = unsafe { (at.read_volatile(), at.add(1)) };
    };
    head.iter_mut().for_each(&mut byte);
    let mut words = rest.chunks_exact_mut(WORD);
    let mut at = from.wrapping_add(head.len());
    for word in &mut words {
        // SAFETY: as above, a word for each word of `buf`, and `at` is aligned behind the head.
        let value = unsafe { at.cast::<u64>().read_volatile() };
        word.copy_from_slice(&value.to_ne_bytes());
        at = at.wrapping_add(WORD);
    }
    for to in words.into_remainder() {
        // SAFETY: as above.
        *to = unsafe { at.read_volatile() };
        at = at.wrapping_add(1);
    }
}

/// Copies `data` to shared memory.
///
/// # Safety
/// `to .. to + data.len()` is mapped and may be written, and no Rust object lies there.
#[inline]
pub(crate) unsafe fn store(to: *mut u8, data: &[u8]) {
    let aligned = to.addr().is_multiple_of(data.len().max(1));
    match *data {
        // SAFETY: the caller vouches for the range, and it is aligned.
        [a, b] if aligned => unsafe { to.cast::<u16>().write_volatile(u16::from_ne_bytes([a, b])) },
        // SAFETY: as above.
        [a, b, c, d] if aligned => unsafe {
            to.cast::<u32>().write_volatile(u32::from_ne_bytes([a, b, c, d]));
        },
        // SAFETY: the caller vouches for the range.
        _ => unsafe { store_words(to, data) },
    }
}

/// # Safety
/// As [`store`].
unsafe fn store_words(to: *mut u8, data: &[u8]) {
    let Some((first, data)) = data.split_at_checked(long_part(to.addr(), data.len())) else { return };
    if !first.is_empty() {
        // SAFETY: the first bytes of the caller's range, and of `data`.
        unsafe { long(to, first.as_ptr(), first.len()) };
    }
    let to = to.wrapping_add(first.len());
    let (head, rest) = data.split_at_checked(up_to_word(to.addr())).unwrap_or((data, &[]));
    let mut at = to;
    for byte in head {
        // SAFETY: `at` passes over the caller's range, a byte for each byte of `data`.
        unsafe { at.write_volatile(*byte) };
        at = at.wrapping_add(1);
    }
    let (words, tail) = rest.as_chunks::<WORD>();
    for word in words {
        // SAFETY: as above, a word for each word of `data`, and `at` is aligned behind the head.
        unsafe { at.cast::<u64>().write_volatile(u64::from_ne_bytes(*word)) };
        at = at.wrapping_add(WORD);
    }
    for byte in tail {
        // SAFETY: as above.
        unsafe { at.write_volatile(*byte) };
        at = at.wrapping_add(1);
    }
}

/// Copies `len` bytes from shared memory to shared memory. Where the ranges overlap at these addresses the bytes arrive as
/// they were before.
///
/// # Safety
/// `from .. from + len` is mapped and may be read, `to .. to + len` is mapped and may be written, and no Rust object lies there.
pub(super) unsafe fn carry(to: *mut u8, from: *const u8, len: usize) {
    let overlaps = to.addr() < from.addr().saturating_add(len) && from.addr() < to.addr().saturating_add(len);
    if !overlaps && len >= LONG {
        let first = long_part(to.addr(), len);
        // SAFETY: the first bytes of both ranges, which do not overlap; then the last ones of them.
        unsafe {
            long(to, from, first);
            return carry(to.wrapping_add(first), from.wrapping_add(first), len - first);
        }
    }
    let head = up_to_word(to.addr()).min(len);
    if !overlaps && up_to_word(from.addr()) == up_to_word(to.addr()) {
        let (words, tail) = ((len - head) / WORD, (len - head) % WORD);
        let (mut to, mut from) = (to, from);
        for _ in 0..head {
            // SAFETY: both pass over the caller's ranges, a byte at a time up to the first word.
            unsafe { to.write_volatile(from.read_volatile()) };
            (to, from) = (to.wrapping_add(1), from.wrapping_add(1));
        }
        for _ in 0..words {
            // SAFETY: whole words of the caller's ranges; both are aligned behind the head.
            unsafe { to.cast::<u64>().write_volatile(from.cast::<u64>().read_volatile()) };
            (to, from) = (to.wrapping_add(WORD), from.wrapping_add(WORD));
        }
        for _ in 0..tail {
            // SAFETY: what is left of the caller's ranges.
            unsafe { to.write_volatile(from.read_volatile()) };
            (to, from) = (to.wrapping_add(1), from.wrapping_add(1));
        }
        return;
    }
    let mut chunk = [0; CHUNK];
    let backwards = overlaps && to.addr() > from.addr();
    let mut done = 0;
    while done < len {
        let step = CHUNK.min(len - done);
        let at = if backwards { len - done - step } else { done };
        let Some(chunk) = chunk.get_mut(..step) else { return };
        // SAFETY: `at + step` is at most `len`.
        unsafe {
            load(from.wrapping_add(at), chunk);
            store(to.wrapping_add(at), chunk);
        }
        done += step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 % 251) as u8).collect()
    }

    #[test]
    fn every_alignment_and_length() {
        for offset in 0..9 {
            for len in (0..200).chain(LONG - 20..LONG + 20).chain([4095, 4096, 4097]) {
                let data = bytes(len);
                let mut there = vec![0xee; len + 32];
                // SAFETY: the range lies inside `there`.
                unsafe { store(there.as_mut_ptr().add(offset), &data) };
                assert_eq!(there[offset..offset + len], data);
                assert!(there[..offset].iter().chain(&there[offset + len..]).all(|b| *b == 0xee));
                let mut back = vec![0; len];
                // SAFETY: the range lies inside `there`.
                unsafe { load(there.as_ptr().add(offset), &mut back) };
                assert_eq!(back, data);
            }
        }
    }

    /// What is stored in any order ends before the last bytes, which are stored in order.
    #[test]
    fn the_last_bytes_are_stored_behind_the_others() {
        for (shared, len) in (0..WORD).flat_map(|shared| (LONG..LONG + 20).map(move |len| (shared, len))) {
            let part = long_part(shared, len);
            assert!((LONG - LAST - WORD..=len - LAST).contains(&part), "{part} of {len} at {shared}");
            assert!((shared + part).is_multiple_of(WORD));
        }
        assert_eq!(long_part(0, LONG - 1), 0);
    }

    #[test]
    fn copied_bytes_are_those_from_before() {
        let len = 3 * CHUNK;
        for (from, to, count) in [
            (0, CHUNK * 2, 1000),
            (8, CHUNK * 2, 1001),
            (3, CHUNK * 2, 1002),
            (0, 1, 2 * CHUNK),
            (9, 1, 2 * CHUNK),
            (8, 16, 2 * CHUNK + 5),
            (16, 8, 2 * CHUNK + 5),
            (5, 5, 100),
        ] {
            let mut memory = bytes(len);
            let mut expected = memory.clone();
            expected.copy_within(from..from + count, to);
            let base = memory.as_mut_ptr();
            // SAFETY: both ranges lie inside `memory`.
            unsafe { carry(base.add(to), base.add(from), count) };
            assert_eq!(memory, expected, "{count} from {from} to {to}");
        }
    }
}
