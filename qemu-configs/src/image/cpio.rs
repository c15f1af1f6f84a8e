//! Writes initramfs archives: cpio in the "new ASCII" format that the kernel unpacks.
//!
//! Format: Linux `Documentation/driver-api/early-userspace/buffer-format.rst`. Archives may follow each other
//! when each starts at a multiple of four bytes, so a run's own files are appended to a cached archive.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const TRAILER: &str = "TRAILER!!!";

/// An archive in memory.
#[derive(Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
    folders: BTreeSet<String>,
}

impl Cpio {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory and those above it. Paths are relative to the root, without leading `/`.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        let mut upto = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if !upto.is_empty() {
                upto.push('/');
            }
            upto.push_str(part);
            if self.folders.insert(upto.clone()) {
                self.entry(&upto, DIRECTORY | 0o755, &[])?;
            }
        }
        Ok(())
    }

    /// Adds a file with these permission bits, and the directories above it.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) -> Result<()> {
        self.parent(path)?;
        self.entry(path, FILE | (permissions & 0o7777), content)
    }

    /// Adds a symbolic link, and the directories above it.
    pub fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.parent(path)?;
        self.entry(path, LINK | 0o777, target.as_bytes())
    }

    /// Ends the archive.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        self.entry(TRAILER, 0, &[])?;
        Ok(self.bytes)
    }

    fn parent(&mut self, path: &str) -> Result<()> {
        match path.rsplit_once('/') {
            Some((folder, _)) => self.directory(folder),
            None => Ok(()),
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let Ok(size) = u32::try_from(content.len()) else {
            bail!("{path} is too large for an initramfs (4 GiB)");
        };
        self.inode += 1;
        let name_size = path.len() + 1;
        // magic, inode, mode, uid, gid, links, mtime, size, device (2), special device (2), name size, checksum
        self.bytes.extend_from_slice(b"070701");
        for value in [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size as u32, 0] {
            self.bytes.extend_from_slice(format!("{value:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_one_file() {
        let mut cpio = Cpio::new();
        cpio.file("a/b", 0o755, b"hello").unwrap();
        let bytes = cpio.finish().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        // Directory "a" first, then the file with its mode and size.
        assert!(text.starts_with("07070100000001000041ed"));
        assert!(text.contains("07070100000002000081ed"));
        assert!(text.contains("00000005"));
        assert!(text.contains("TRAILER!!!"));
        assert_eq!(bytes.len() % 4, 0);
        let name = bytes.windows(4).position(|window| window == b"a/b\0").unwrap();
        // Header of 110 bytes and the name are padded to four before the content.
        let content = (name + 4).next_multiple_of(4);
        assert_eq!(&bytes[content..content + 5], b"hello");
    }

    #[test]
    fn directories_are_written_once() {
        let mut cpio = Cpio::new();
        cpio.file("x/y/one", 0o644, b"").unwrap();
        cpio.file("x/y/two", 0o644, b"").unwrap();
        let bytes = cpio.finish().unwrap();
        assert_eq!(bytes.windows(4).filter(|window| *window == b"x/y\0").count(), 1);
    }
}
