use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
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

fn window(iova: u64, size: u64, offset: u64) -> DmaWindow {
    DmaWindow {
        iova,
        size,
        offset,
        readable: true,
        writable: true,
    }
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
    memory
        .map(window(0x10000, 0x2000, 0x1000), Some(fd))
        .unwrap();
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
    memory
        .write(0x10008, &0x0102_0304_0506_0708u64.to_ne_bytes())
        .unwrap();
    let mut back = [0; 8];
    memory.read(0x10008, &mut back).unwrap();
    assert_eq!(u64::from_ne_bytes(back), 0x0102_0304_0506_0708);
}

#[test]
fn an_access_may_span_adjacent_windows() {
    let (a, _) = memfd(0x1000);
    let (b, file_b) = memfd(0x1000);
    let memory = memory();
    memory.map(window(0x2000, 0x1000, 0), Some(b)).unwrap();
    memory.map(window(0x1000, 0x1000, 0), Some(a)).unwrap();
    memory.write(0x1ffe, &[1, 2, 3, 4]).unwrap();
    let mut direct = [0; 2];
    file_b.read_exact_at(&mut direct, 0).unwrap();
    assert_eq!(direct, [3, 4]);
    assert_eq!(
        memory.write(0x2ffe, &[0; 4]),
        Err(MemoryError::Unmapped(0x3000))
    );
    assert_eq!(memory.failed_accesses(), 1);
}

#[test]
fn the_end_of_the_address_space_is_an_ordinary_end() {
    let (fd, _) = memfd(0x1000);
    let memory = memory();
    let top = u64::MAX - 0xfff;
    memory.map(window(top, 0x1000, 0), Some(fd)).unwrap();
    memory.write(u64::MAX, &[9]).unwrap();
    assert!(memory.write(u64::MAX, &[9, 9]).is_err());
    memory
        .unmap(DmaUnmap::Range {
            iova: top,
            size: 0x1000,
        })
        .unwrap();
    assert_eq!(memory.window_count(), 0);
}

#[test]
fn unmapped_memory_is_out_of_reach() {
    let (fd, _) = memfd(0x3000);
    let memory = memory();
    for page in 0..3u64 {
        let fd = fd.try_clone().unwrap();
        let page = page * 0x1000;
        memory.map(window(page, 0x1000, page), Some(fd)).unwrap();
    }
    let range = |iova, size| DmaUnmap::Range { iova, size };
    assert_eq!(memory.unmap(range(0x800, 0x1000)), Err(Errno::EINVAL));
    assert_eq!(memory.window_count(), 3);
    memory.unmap(range(0x1000, 0x1000)).unwrap();
    assert!(memory.read(0x1000, &mut [0]).is_err());
    memory.read(0x2000, &mut [0]).unwrap();
    memory.unmap(range(0x1000, 0x1000)).unwrap();
    memory.unmap(DmaUnmap::All).unwrap();
    assert!(memory.read(0, &mut [0]).is_err());
    assert!(memory.read(0x2000, &mut [0]).is_err());
}

#[test]
fn remapping_needs_an_unmap_first() {
    let (fd, _) = memfd(0x4000);
    let memory = memory();
    let clone = || Some(fd.try_clone().unwrap());
    memory.map(window(0x1000, 0x2000, 0), clone()).unwrap();
    for (iova, size) in [(0x1000, 0x2000), (0, 0x1001), (0x2fff, 1), (0x1800, 0x100)] {
        assert_eq!(
            memory.map(window(iova, size, 0), clone()),
            Err(Errno::EEXIST)
        );
    }
    memory.unmap(DmaUnmap::All).unwrap();
    memory.map(window(0x1000, 0x1000, 0x3000), clone()).unwrap();
    memory.write(0x1000, &[5]).unwrap();
}

#[test]
fn permissions_and_bus_master_are_respected() {
    let (fd, _) = memfd(0x1000);
    let memory = memory();
    let read_only = DmaWindow {
        writable: false,
        ..window(0, 0x1000, 0)
    };
    memory.map(read_only, Some(fd)).unwrap();
    memory.read(0, &mut [0]).unwrap();
    assert_eq!(memory.write(4, &[0]), Err(MemoryError::Forbidden(4)));
    memory.set_bus_master(false);
    assert_eq!(memory.read(0, &mut [0]), Err(MemoryError::BusMasterOff));
}

#[test]
fn files_shorter_than_the_window_are_refused() {
    let (fd, _) = memfd(0x1000);
    let memory = memory();
    let clone = || Some(fd.try_clone().unwrap());
    assert_eq!(
        memory.map(window(0, 0x2000, 0), clone()),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        memory.map(window(0, 0x1000, u64::MAX), clone()),
        Err(Errno::EINVAL)
    );
    assert_eq!(memory.window_count(), 0);
}

#[test]
fn a_mapped_memfd_can_no_longer_shrink() {
    let file = File::from(memfd_create(NAME, MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(0x2000).unwrap();
    let fd = file.as_fd().try_clone_to_owned().unwrap();
    let memory = memory();
    memory.map(window(0, 0x2000, 0), Some(fd)).unwrap();
    assert!(file.set_len(0).is_err());
    memory.write(0x1fff, &[1]).unwrap();
}

#[test]
fn memory_private_to_the_client_is_refused() {
    let (socket, _other) = UnixStream::pair().unwrap();
    let memory = memory();
    memory.connect(None, Peer::of(&socket));
    // This process is the peer: it maps one file privately, the other shared.
    let (fd, file) = memfd(0x1000);
    // SAFETY: nobody else touches this file.
    let _private = unsafe { MmapOptions::new().map_copy(&file) }.unwrap();
    assert_eq!(
        memory.map(window(0, 0x1000, 0), Some(fd)),
        Err(Errno::EINVAL)
    );
    let (fd, file) = memfd(0x1000);
    // SAFETY: nobody else touches this file.
    let _shared = unsafe { MmapOptions::new().map_mut(&file) }.unwrap();
    memory.map(window(0, 0x1000, 0), Some(fd)).unwrap();
}

#[test]
fn many_small_windows_share_one_mapping() {
    let (fd, _) = memfd(0x1000 * 256);
    let memory = memory();
    for page in 0..256u64 {
        let fd = fd.try_clone().unwrap();
        memory
            .map(window(page * 0x2000, 0x1000, page * 0x1000), Some(fd))
            .unwrap();
    }
    assert_eq!(lock(&memory.windows).files_len(), 1);
    memory.write(255 * 0x2000, &[1, 2]).unwrap();
    assert!(memory.write(255 * 0x2000 - 1, &[1]).is_err());
}

impl Windows {
    fn files_len(&self) -> usize {
        self.files.len()
    }
}
