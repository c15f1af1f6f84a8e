//! Keys: what two processes share, and what they make of it.
//!
//! BLAKE3 (github.com/BLAKE3-team/BLAKE3-specs) is hash, keyed hash and key derivation in one, compares in constant
//! time, and is fast enough for every packet also in programs that were not optimised, since its inner loops are
//! assembly. A keyed hash suffices: strangers are to be refused; nothing is said to be secret.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};
use nix::unistd::geteuid;

/// Bytes of a key.
pub const KEY_SIZE: usize = 32;
/// Bytes of a random number of the handshake.
pub const NONCE_SIZE: usize = 16;
/// Bytes of a keyed hash at the end of a datagram.
pub const TAG_SIZE: usize = 16;

/// A random number that is used for one session.
pub type Nonce = [u8; NONCE_SIZE];

/// What the key of a file is used for: no other program may derive the same (BLAKE3 "key derivation").
const CONTEXT: &str = "softhca tunnel between processes, version 1";
/// Permissions of everybody but the owner of a file.
const OTHERS: u32 = 0o077;
/// What a derived key is for.
const HELLO: u8 = 0;
const SESSION: u8 = 1;
const SESSION_NAME: u8 = 2;

/// A key. It does not show itself in logs.
#[derive(Clone)]
pub struct Key([u8; KEY_SIZE]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What one session uses.
#[derive(Clone, Debug)]
pub(super) struct SessionKeys {
    /// Names the session in its datagrams.
    pub(super) name: u64,
    /// Of what this side sends.
    pub(super) send: Key,
    /// Of what it receives.
    pub(super) receive: Key,
}

/// Reads a file with keys, which is private: see [`Key::load`].
pub(super) fn private(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let mut file = File::open(path).with_context(|| format!("{shown}: key file"))?;
    let meta = file.metadata().with_context(|| format!("{shown}: key file"))?;
    let (owner, own) = (meta.uid(), geteuid().as_raw());
    if owner != own && owner != 0 {
        bail!("{shown}: the key file is user {owner}'s, it has to be root's or user {own}'s");
    }
    if meta.mode() & OTHERS != 0 {
        let mode = meta.mode() & 0o777;
        bail!("{shown}: others have access to the key file (mode {mode:03o}); `chmod 600 {shown}` ends that");
    }
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(|| format!("{shown}: key file"))?;
    Ok(text)
}

impl Key {
    /// The key that a secret stands for.
    pub fn from_secret(secret: &[u8]) -> Key {
        Key(blake3::derive_key(CONTEXT, secret))
    }

    /// Reads the key file of a topology: 64 hexadecimal digits. Nobody but its owner may have access to it, and that is the
    /// user that runs this process, or root.
    ///
    /// # Errors
    /// If the file can't be read, is somebody else's as well, or has something else; the message names it, and does not show what it has.
    pub fn load(path: &Path) -> anyhow::Result<Key> {
        Key::parse(&private(path)?).with_context(|| path.display().to_string())
    }

    /// The key that 64 hexadecimal digits stand for.
    ///
    /// # Errors
    /// If it is something else; the message does not show what.
    pub(super) fn parse(text: &str) -> anyhow::Result<Key> {
        let digits = text.trim();
        if digits.len() != 2 * KEY_SIZE || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            bail!(
                "a key has {} hexadecimal digits and nothing else; `openssl rand -hex {KEY_SIZE}` makes them",
                2 * KEY_SIZE
            );
        }
        Ok(Key::from_secret(digits.to_ascii_lowercase().as_bytes()))
    }

    fn derive(&self, parts: &[&[u8]]) -> [u8; KEY_SIZE] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in parts {
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }

    /// The key of hellos that end `end` of link `link` sends.
    pub(super) fn hello(&self, link: u16, end: u8) -> Key {
        Key(self.derive(&[&[HELLO, end], &link.to_be_bytes()]))
    }

    /// The keys of a session, as `end` sees them.
    pub(super) fn session(&self, link: u16, end: u8, own: &Nonce, peer: &Nonce) -> SessionKeys {
        let (first, second) = if end == 0 { (own, peer) } else { (peer, own) };
        let make = |what, from| self.derive(&[&[what, from], &link.to_be_bytes(), first, second]);
        let [a, b, c, d, e, f, g, h, ..] = make(SESSION_NAME, 0);
        SessionKeys {
            name: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            send: Key(make(SESSION, end)),
            receive: Key(make(SESSION, 1 - end.min(1))),
        }
    }

    /// The keyed hash of a message.
    pub(super) fn tag(&self, message: &[u8]) -> [u8; TAG_SIZE] {
        let [hash @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] =
            *blake3::keyed_hash(&self.0, message).as_bytes();
        hash
    }

    /// Whether the tag is that of the message, in a time that doesn't depend on how much of it is right.
    pub(super) fn verify(&self, message: &[u8], tag: &[u8; TAG_SIZE]) -> bool {
        let wrong = self.tag(message).iter().zip(tag).fold(0, |wrong, (a, b)| wrong | (a ^ b));
        std::hint::black_box(wrong) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_link_and_direction_has_keys_of_its_own() {
        let key = Key::from_secret(b"secret");
        let (a, b) = ([1; NONCE_SIZE], [2; NONCE_SIZE]);
        let mut tags = BTreeSet::new();
        for link in [0, 1, 256] {
            let (first, second) = (key.session(link, 0, &a, &b), key.session(link, 1, &b, &a));
            assert_eq!(first.name, second.name);
            assert_eq!(first.send.tag(b"m"), second.receive.tag(b"m"));
            assert_eq!(first.receive.tag(b"m"), second.send.tag(b"m"));
            for own in [key.hello(link, 0), key.hello(link, 1), first.send, first.receive] {
                assert!(tags.insert(own.tag(b"m")), "link {link}");
            }
        }
    }
}
