use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use memmap2::MmapOptions;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::*;

const NAME: &CStr = c"softhca-test";

fn memfd(len: u64) -> (OwnedFd, File) {
    let file = File::from(memfd_create(NAME, MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(len).unwrap();
    (file.as_fd().try_clone_to_owned().unwrap(), file)
}

fn window(iova: u64, size: u64) -> Window {
    Window { iova, size, readable: true, writable: true }
}

fn at(fd: OwnedFd, offset: u64) -> Backing {
    Backing::File { fd, offset }
}

fn memory() -> HostMemory {
    let memory = HostMemory::new();
    memory.set_bus_master(true);
    memory
}

#[test]
fn reads_and_writes_go_to_the_file() {
    let (fd, file) = memfd(0x4000);
    let memory = memory();
    memory.map(window(0x10000, 0x2000), at(fd, 0x1000)).unwrap();
    for len in [1usize, 2, 3, 4, 7, 8, 64, 0x1fff] {
        let data: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        memory.write(0x10001, &data).unwrap();
        let mut direct = vec![0; len];
        file.read_exact_at(&mut direct, 0x1001).unwrap();
        assert_eq!(direct, data);
        let mut back = vec![0; len];
        memory.read(0x10001, &mut back).unwrap();
        assert_eq!(back, data);
    }
    memory.write(0x10008, &0x0102_0304_0506_0708u64.to_ne_bytes()).unwrap();
    let mut back = [0; 8];
    memory.read(0x10008, &mut back).unwrap();
    assert_eq!(u64::from_ne_bytes(back), 0x0102_0304_0506_0708);
}

#[test]
fn an_access_may_span_adjacent_windows() {
    let (a, _) = memfd(0x1000);
    let (b, file_b) = memfd(0x1000);
    let memory = memory();
    memory.map(window(0x2000, 0x1000), at(b, 0)).unwrap();
    memory.map(window(0x1000, 0x1000), at(a, 0)).unwrap();
    memory.write(0x1ffe, &[1, 2, 3, 4]).unwrap();
    let mut direct = [0; 2];
    file_b.read_exact_at(&mut direct, 0).unwrap();
    assert_eq!(direct, [3, 4]);
    // Wholly or not at all.
    assert!(memory.write(0x2ffe, &[7; 4]).is_err());
    file_b.read_exact_at(&mut direct, 0xffe).unwrap();
    assert_eq!(direct, [0, 0]);
    assert_eq!(memory.write(0x2ffe, &[0; 4]), Err(MemoryError::Unmapped(0x3000)));
    assert_eq!(memory.failed_accesses(), 2);
}

#[test]
fn the_end_of_the_address_space_is_an_ordinary_end() {
    let (fd, _) = memfd(0x1000);
    let memory = memory();
    let top = u64::MAX - 0xfff;
    memory.map(window(top, 0x1000), at(fd, 0)).unwrap();
    memory.write(u64::MAX, &[9]).unwrap();
    assert!(memory.write(u64::MAX, &[9, 9]).is_err());
    memory.unmap(Range::Part { iova: top, size: 0x1000 }).unwrap();
    assert_eq!(memory.window_count(), 0);
}

#[test]
fn unmapped_memory_is_out_of_reach() {
    let (fd, _) = memfd(0x3000);
    let memory = memory();
    for page in 0..3u64 {
        let fd = fd.try_clone().unwrap();
        let page = page * 0x1000;
        memory.map(window(page, 0x1000), at(fd, page)).unwrap();
    }
    let range = |iova, size| Range::Part { iova, size };
    assert_eq!(memory.unmap(range(0x800, 0x1000)), Err(MapError::Partial));
    assert_eq!(memory.window_count(), 3);
    memory.unmap(range(0x1000, 0x1000)).unwrap();
    assert!(memory.read(0x1000, &mut [0]).is_err());
    memory.read(0x2000, &mut [0]).unwrap();
    memory.unmap(range(0x1000, 0x1000)).unwrap();
    memory.unmap(Range::All).unwrap();
    assert!(memory.read(0, &mut [0]).is_err());
    assert!(memory.read(0x2000, &mut [0]).is_err());
}

#[test]
fn remapping_needs_an_unmap_first() {
    let (fd, _) = memfd(0x4000);
    let memory = memory();
    let clone = |offset| at(fd.try_clone().unwrap(), offset);
    memory.map(window(0x1000, 0x2000), clone(0)).unwrap();
    for (iova, size) in [(0x1000, 0x2000), (0, 0x1001), (0x2fff, 1), (0x1800, 0x100)] {
        assert_eq!(memory.map(window(iova, size), clone(0)), Err(MapError::Overlap));
    }
    memory.unmap(Range::All).unwrap();
    memory.map(window(0x1000, 0x1000), clone(0x3000)).unwrap();
    memory.write(0x1000, &[5]).unwrap();
}

#[test]
fn permissions_and_bus_master_are_respected() {
    let (fd, _) = memfd(0x1000);
    let memory = memory();
    let read_only = Window { writable: false, ..window(0, 0x1000) };
    memory.map(read_only, at(fd, 0)).unwrap();
    memory.read(0, &mut [0]).unwrap();
    assert_eq!(memory.write(4, &[0]), Err(MemoryError::Forbidden(4)));
    memory.set_bus_master(false);
    assert_eq!(memory.read(0, &mut [0]), Err(MemoryError::BusMasterOff));
}

#[test]
fn files_shorter_than_the_window_are_refused() {
    let (fd, _) = memfd(0x1000);
    let memory = memory();
    let clone = |offset| at(fd.try_clone().unwrap(), offset);
    assert_eq!(memory.map(window(0, 0x2000), clone(0)), Err(MapError::Misfit));
    assert_eq!(memory.map(window(0, 0x1000), clone(u64::MAX)), Err(MapError::Misfit));
    assert_eq!(memory.window_count(), 0);
}

#[test]
fn a_sealed_memfd_can_no_longer_shrink() {
    let file = File::from(memfd_create(NAME, MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(0x2000).unwrap();
    let fd = file.as_fd().try_clone_to_owned().unwrap();
    let read_only = File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    assert!(can_be_shortened(fd.as_fd()) && !can_be_shortened(read_only.as_fd()));
    keep_length(fd.as_fd());
    assert!(!can_be_shortened(fd.as_fd()));
    // One that can't be sealed is as it is.
    assert!(!can_be_shortened(memfd(0x1000).0.as_fd()));
    let memory = memory();
    memory.map(window(0, 0x2000), at(fd, 0)).unwrap();
    assert!(file.set_len(0).is_err());
    memory.write(0x1fff, &[1]).unwrap();
}

/// A file that shrinks under its mapping costs its host the memory, nobody else anything.
#[test]
fn memory_that_was_taken_away_is_lost_for_its_host_only() {
    let (robbed, other) = (memory(), memory());
    let (fd, file) = memfd(0x3000);
    robbed.map(window(0x1000, 0x3000), at(fd, 0)).unwrap();
    let (fd, theirs) = memfd(0x3000);
    other.map(window(0x1000, 0x3000), at(fd, 0)).unwrap();
    robbed.write(0x1000, &[1; 8]).unwrap();
    other.write(0x1000, &[2; 0x3000]).unwrap();
    file.set_len(0x1000).unwrap();
    // What is left is there; beyond it, a copy to another host arrives as zeroes.
    robbed.read(0x1000, &mut [0; 8]).unwrap();
    other.copy_from(0x1000, &robbed, 0x2000, 0x1001).unwrap();
    let mut there = [9; 2];
    theirs.read_exact_at(&mut there, 0x1000).unwrap();
    assert_eq!(there, [0, 2]);
    // From then on the host has no memory, and gets none.
    assert_eq!(robbed.window_count(), 0);
    assert_eq!(robbed.read(0x1000, &mut [0]), Err(MemoryError::Unmapped(0x1000)));
    let (fd, _) = memfd(0x1000);
    assert_eq!(robbed.map(window(0, 0x1000), at(fd, 0)), Err(MapError::Lost));
    other.write(0x1000, &[3; 0x3000]).unwrap();
    // Until another one comes. Its own accesses fail.
    for (read, len) in [(true, 1), (true, 0x1800), (false, 8), (false, 0x1801)] {
        robbed.connect(None, Peer::default());
        let (fd, file) = memfd(0x3000);
        robbed.map(window(0x1000, 0x3000), at(fd, 0)).unwrap();
        file.set_len(0).unwrap();
        let result = match read {
            true => robbed.read(0x1000, &mut vec![0; len]),
            false => robbed.write(0x1000, &vec![0; len]),
        };
        assert_eq!(result, Err(MemoryError::Lost), "{read} {len}");
    }
}

#[test]
fn windows_are_mapped_and_not_whole_files() {
    let memory = HostMemory::limited(Limits { mappings: 3, bytes: 1 << 30 });
    memory.set_bus_master(true);
    let file = |len| memfd(len).0;
    // A page of a file that is larger than all memory together.
    let page = 1 << 44;
    memory.map(window(0, 0x1000), at(file(1 << 45), page)).unwrap();
    memory.write(0xfff, &[1]).unwrap();
    // More bytes than the host may have; as many as are left; more files than it may have.
    assert_eq!(memory.map(window(0x10_0000, 1 << 30), at(file(1 << 30), 0)), Err(MapError::TooMany));
    // What is let go of counts until it is gone, elsewhere.
    let gone = || {
        while memory.closer.pending() > 0 {
            std::thread::yield_now();
        }
    };
    gone();
    memory.map(window(0x10_0000, 0x1000), at(file(0x1000), 0)).unwrap();
    memory.map(window(0x20_0000, 0x1000), at(file(0x1000), 0)).unwrap();
    assert_eq!(memory.map(window(0x30_0000, 0x1000), at(file(0x1000), 0)), Err(MapError::TooMany));
    memory.unmap(Range::Part { iova: 0x20_0000, size: 0x1000 }).unwrap();
    gone();
    memory.map(window(0x30_0000, 0x1000), at(file(0x1000), 0)).unwrap();
}

#[test]
fn only_memory_is_taken() {
    let memory = memory();
    for path in ["/proc/version", "/dev/zero", "/"] {
        let file = File::open(path).unwrap();
        let mapped = memory.map(window(0, 0x1000), at(file.into(), 0));
        assert_eq!(mapped, Err(MapError::NotMemory), "{path}");
    }
    let (reader, _writer) = nix::unistd::pipe().unwrap();
    assert_eq!(memory.map(window(0, 0x1000), at(reader, 0)), Err(MapError::NotMemory));
}

#[test]
fn memory_private_to_the_client_is_refused() {
    let (socket, _other) = UnixStream::pair().unwrap();
    let memory = memory();
    let socket = Arc::new(socket);
    memory.connect(None, Peer::of(&socket));
    // This process is the peer: it maps one file privately, the other shared.
    let (fd, file) = memfd(0x1000);
    // SAFETY: nobody else touches this file.
    let _private = unsafe { MmapOptions::new().map_copy(&file) }.unwrap();
    assert_eq!(memory.map(window(0, 0x1000), at(fd, 0)), Err(MapError::NotShared));
    assert!(memory.is_private());
    let (fd, file) = memfd(0x1000);
    // SAFETY: nobody else touches this file.
    let _shared = unsafe { MmapOptions::new().map_mut(&file) }.unwrap();
    memory.map(window(0, 0x1000), at(fd, 0)).unwrap();
    // It was asked once: what it maps later is not looked at.
    let (fd, file) = memfd(0x1000);
    // SAFETY: nobody else touches this file.
    let _later = unsafe { MmapOptions::new().map_copy(&file) }.unwrap();
    memory.map(window(0x1000, 0x1000), at(fd, 0)).unwrap();
}

#[test]
fn copies_between_hosts_are_what_reads_and_writes_are() {
    let (from, to) = (memory(), memory());
    let (fd, file) = memfd(0x3000);
    let bytes: Vec<u8> = (0..0x3000u32).map(|i| (i * 7 % 251) as u8).collect();
    std::io::Write::write_all(&mut &file, &bytes).unwrap();
    // Two windows of the source, the second page of the file twice.
    from.map(window(0x1000, 0x2000), at(fd.try_clone().unwrap(), 0)).unwrap();
    from.map(window(0x3000, 0x1000), at(fd, 0x1000)).unwrap();
    let (fd, _) = memfd(0x2000);
    to.map(window(0x8000, 0x1000), at(fd.try_clone().unwrap(), 0x1000)).unwrap();
    to.map(window(0x9000, 0x1000), at(fd, 0)).unwrap();
    assert!(from.is_mapped(0x1000, 0x3000) && !from.is_mapped(0x1000, 0x3001));
    for (source, target, len) in [(0x1001, 0x8003, 0x80), (0x2ff0, 0x8100, 0x20), (0x1010, 0x8ff0, 0x40)] {
        to.copy_from(target, &from, source, len).unwrap();
        let mut expected = vec![0; len];
        let mut there = vec![0; len];
        from.read(source, &mut expected).unwrap();
        to.read(target, &mut there).unwrap();
        assert_eq!(there, expected, "{len:#x} bytes from {source:#x} to {target:#x}");
    }
    assert_eq!(to.copy_from(0x9ff0, &from, 0x1000, 0x20), Err(MemoryError::Unmapped(0xa000)));
    assert_eq!(to.copy_from(0x8000, &from, 0x3ff0, 0x20), Err(MemoryError::Unmapped(0x4000)));
    // Within one host, and onto itself.
    to.copy_from(0x8004, &to, 0x8003, 0x80).unwrap();
    let mut there = vec![0; 0x80];
    to.read(0x8004, &mut there).unwrap();
    assert_eq!(there, bytes[1..0x81]);
    from.set_bus_master(false);
    assert!(!from.is_mapped(0x1000, 1));
    assert_eq!(to.copy_from(0x8000, &from, 0x1000, 1), Err(MemoryError::BusMasterOff));
}

#[test]
fn many_small_windows_share_one_mapping() {
    let (fd, _) = memfd(0x1000 * 256);
    let memory = memory();
    for page in 0..256u64 {
        let fd = fd.try_clone().unwrap();
        memory.map(window(page * 0x2000, 0x1000), at(fd, page * 0x1000)).unwrap();
    }
    assert_eq!(lock(&memory.windows).files_len(), 1);
    memory.write(255 * 0x2000, &[1, 2]).unwrap();
    assert!(memory.write(255 * 0x2000 - 1, &[1]).is_err());
}

/// Random maps, unmaps and accesses against the plainest possible model of them.
#[test]
fn behaves_like_a_table_of_pages() {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

    const PAGE: u64 = 0x1000;
    const PAGES: u64 = 12;

    #[derive(Clone, Debug)]
    enum Op {
        Map { page: u64, count: u64, file: u64, readable: bool, writable: bool },
        Unmap { page: u64, count: u64 },
        Read { at: u64, len: usize },
        Write { at: u64, data: Vec<u8> },
    }
    let page = || 0..PAGES;
    let op = prop_oneof![
        (page(), 1..4u64, page(), any::<bool>(), any::<bool>()).prop_map(
            |(page, count, file, readable, writable)| Op::Map { page, count, file, readable, writable }
        ),
        (page(), 1..8u64).prop_map(|(page, count)| Op::Unmap { page, count }),
        (0..PAGES * PAGE, 0..0x2800usize).prop_map(|(at, len)| Op::Read { at, len }),
        (0..PAGES * PAGE, prop::collection::vec(any::<u8>(), 0..0x1800))
            .prop_map(|(at, data)| Op::Write { at, data }),
    ];
    let config = Config { cases: 150, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]);
    TestRunner::new_with_rng(config, rng)
        .run(&prop::collection::vec(op, 1..60), |ops| {
            let len = (PAGES + 4) * PAGE;
            let (fd, _file) = memfd(len);
            let memory = memory();
            let mut bytes = vec![0u8; len as usize];
            // (first page, pages, file page, readable, writable)
            let mut windows: Vec<(u64, u64, u64, bool, bool)> = Vec::new();
            // Place in the file of each byte of an access, if all of it is allowed.
            let places = |windows: &[(u64, u64, u64, bool, bool)], at: u64, len: usize, write: bool| {
                (at..at + len as u64)
                    .map(|a| {
                        let page = a / PAGE;
                        let w = windows.iter().find(|w| w.0 <= page && page < w.0 + w.1)?;
                        (if write { w.4 } else { w.3 })
                            .then_some(((w.2 + page - w.0) * PAGE + a % PAGE) as usize)
                    })
                    .collect::<Option<Vec<usize>>>()
            };
            for op in ops {
                match op {
                    Op::Map { page, count, file, readable, writable } => {
                        let free = windows.iter().all(|w| w.0 + w.1 <= page || page + count <= w.0);
                        let window = Window { iova: page * PAGE, size: count * PAGE, readable, writable };
                        let backing = at(fd.try_clone().unwrap(), file * PAGE);
                        let result = memory.map(window, backing);
                        prop_assert_eq!(result.is_ok(), free);
                        if free {
                            windows.push((page, count, file, readable, writable));
                        }
                    }
                    Op::Unmap { page, count } => {
                        let end = page + count;
                        let cut = windows
                            .iter()
                            .any(|w| w.0 < end && page < w.0 + w.1 && !(page <= w.0 && w.0 + w.1 <= end));
                        let range = Range::Part { iova: page * PAGE, size: count * PAGE };
                        prop_assert_eq!(memory.unmap(range).is_err(), cut);
                        if !cut {
                            windows.retain(|w| !(page <= w.0 && w.0 + w.1 <= end));
                        }
                    }
                    Op::Read { at, len } => {
                        let mut buf = vec![0xa5; len];
                        let result = memory.read(at, &mut buf);
                        let want = places(&windows, at, len, false);
                        prop_assert_eq!(result.is_ok(), want.is_some());
                        if let Some(want) = want {
                            let want: Vec<u8> = want.into_iter().map(|p| bytes[p]).collect();
                            prop_assert_eq!(buf, want);
                        }
                    }
                    Op::Write { at, data } => {
                        let want = places(&windows, at, data.len(), true);
                        prop_assert_eq!(memory.write(at, &data).is_ok(), want.is_some());
                        for (place, byte) in want.into_iter().flatten().zip(data) {
                            bytes[place] = byte;
                        }
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

impl Windows {
    fn files_len(&self) -> usize {
        self.files.len()
    }
}

/// Memory that answers while one waits.
#[derive(Debug, Default)]
struct Waits(Mutex<Vec<(u64, Vec<u8>)>>);

impl StandingMemory for Waits {
    fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), RemoteError> {
        into.fill(iova as u8);
        Ok(())
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), RemoteError> {
        if iova == 0x666 {
            return Err(RemoteError::Lost);
        }
        lock(&self.0).push((iova, data.to_vec()));
        Ok(())
    }
}

#[test]
fn memory_that_answers_while_one_waits() {
    let (memory, waits) = (memory(), Arc::new(Waits::default()));
    memory.map(window(0, u64::MAX), Backing::Standing(waits.clone())).unwrap();
    let mut word = [0; 4];
    memory.read(0x1_0000_0021, &mut word).unwrap();
    assert_eq!(word, [0x21; 4]);
    memory.write(0x1234, &word).unwrap();
    assert_eq!(memory.write(0x666, &word), Err(MemoryError::Remote(RemoteError::Lost)));
    assert_eq!(*lock(&waits.0), [(0x1234, word.to_vec())]);
    // Nobody may leave payload there; nothing is asked for.
    assert!(!memory.is_mapped(0, 4) && memory.reaches(0, 4) && !memory.defers());
}
