//! The keys of a process: one for all its tunnels, or one for each, so that a process doesn't know the others'.
//!
//! A key file has 64 hexadecimal digits, which all links share, or a line `END END DIGITS` for each link that leaves the process, with the
//! ends as the topology's `between` calls them, in any order; `#` begins a comment. A link may name a file of its own (`tunnel_key_file`), which
//! then goes before.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};

use super::key::{KEY_SIZE, Key, private};
use crate::random::random;
use crate::topology::{Cut, End, Part, Topology};

/// What the processes share, as far as this one has to know.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    common: Option<Key>,
    /// By the link's number.
    links: BTreeMap<u16, Key>,
}

impl From<Key> for Keys {
    /// One for all links.
    fn from(key: Key) -> Keys {
        Keys { common: Some(key), links: BTreeMap::new() }
    }
}

impl Keys {
    /// The keys of a process: out of `file`, and of the files that its links name.
    ///
    /// # Errors
    /// If a file can't be read, is somebody else's as well (see [`Key::load`]), or has something else than keys of links that leave the process; the message names
    /// file and line, and shows no key.
    pub fn load(part: &Part<'_>, file: Option<&Path>) -> anyhow::Result<Keys> {
        let mut keys = match file {
            Some(file) => Keys::parse(part, &private(file)?).with_context(|| file.display().to_string())?,
            None => Keys::default(),
        };
        for cut in &part.cuts {
            if let Some(own) = &cut.link.tunnel_key_file {
                keys.links.insert(cut.number, Key::load(own)?);
            }
        }
        Ok(keys)
    }

    fn parse(part: &Part<'_>, text: &str) -> anyhow::Result<Keys> {
        if let Ok(key) = Key::parse(text) {
            return Ok(key.into());
        }
        let mut links = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            let (a, b, digits) = match words[..] {
                [] => continue,
                [a, b, digits] => (a, b, digits),
                _ => bail!("line {number}: not \"END END DIGITS\", and the file is not one key either"),
            };
            let Some(cut) = part.cuts.iter().find(|cut| joins(cut, a, b)) else {
                // It would not do harm here; but who wrote the file gave away what is another's.
                bail!(
                    "line {number}: no link between {a} and {b} leaves this process, which is not to know its key"
                );
            };
            let key = Key::parse(digits).with_context(|| format!("line {number}"))?;
            if links.insert(cut.number, key).is_some() {
                bail!("line {number}: a second key for the link between {a} and {b}");
            }
        }
        Ok(Keys { common: None, links })
    }

    /// The key of a link.
    ///
    /// # Errors
    /// There is none; the message says where one could be named.
    pub fn of(&self, cut: &Cut<'_>) -> anyhow::Result<&Key> {
        let [a, b] = &cut.link.between;
        self.links.get(&cut.number).or(self.common.as_ref()).with_context(|| {
            format!(
                "the link between {a} and {b} needs a key: fabric.tunnel_key_file, tunnel_key_file of the link, \
                 or --tunnel-key-file"
            )
        })
    }
}

/// Whether a link is between the ends that are called so.
fn joins(cut: &Cut<'_>, a: &str, b: &str) -> bool {
    let [x, y] = cut.link.between.each_ref().map(End::to_string);
    (x == a && y == b) || (x == b && y == a)
}

/// Makes new keys: for each process of the topology the text of a key file with the links that leave it.
///
/// # Errors
/// If the topology has no links between processes, or the system no random numbers.
pub fn make(topology: &Topology) -> anyhow::Result<Vec<(String, String)>> {
    let mut fresh = random()?;
    let mut digits = || -> String {
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < KEY_SIZE {
            bytes.extend(fresh());
        }
        bytes.iter().take(KEY_SIZE).map(|byte| format!("{byte:02x}")).collect()
    };
    let mut made: BTreeMap<u16, String> = BTreeMap::new();
    let mut files = Vec::new();
    for process in &topology.processes {
        let part = topology.part(Some(&process.name))?;
        let mut text = format!("# Keys of process {}. Nobody else is to know them.\n", process.name);
        for cut in &part.cuts {
            let [a, b] = &cut.link.between;
            let key = made.entry(cut.number).or_insert_with(&mut digits);
            text += &format!("{a} {b} {key}\n");
        }
        if !part.cuts.is_empty() {
            files.push((process.name.clone(), text));
        }
    }
    if files.is_empty() {
        bail!("no link of the topology is between two processes");
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: &str = "[fabric]\nsubnet_manager = \"none\"
[[process]]\nname = \"p\"\naddress = \"127.0.0.1:1\"
[[process]]\nname = \"q\"\naddress = \"127.0.0.1:2\"
[[process]]\nname = \"r\"\naddress = \"127.0.0.1:3\"
[[host]]\nname = \"a\"\nprocess = \"p\"\n[[host.hca]]\n[[host.hca]]
[[host]]\nname = \"b\"\nprocess = \"q\"\n[[host.hca]]
[[host]]\nname = \"c\"\nprocess = \"r\"\n[[host.hca]]
[[link]]\nbetween = [\"a/hca0\", \"b/hca0\"]\n[[link]]\nbetween = [\"c/hca0\", \"a/hca1\"]\n";

    fn topology() -> Topology {
        Topology::parse("test", THREE).unwrap()
    }

    fn tag(keys: &Keys, part: &Part<'_>, link: usize) -> [u8; 16] {
        keys.of(&part.cuts[link]).unwrap().tag(b"message")
    }

    #[test]
    fn a_process_has_the_keys_of_its_links_only() {
        let topology = topology();
        let files = make(&topology).unwrap();
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["p", "q", "r"]);
        let lines = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(files.iter().map(|(_, text)| lines(text)).collect::<Vec<_>>(), [2, 1, 1]);
        let parts = ["p", "q", "r"].map(|name| topology.part(Some(name)).unwrap());
        let keys: Vec<_> =
            parts.iter().zip(&files).map(|(part, (_, text))| Keys::parse(part, text).unwrap()).collect();
        // Both ends of a link have the same key, and no other link has.
        assert_eq!(tag(&keys[0], &parts[0], 0), tag(&keys[1], &parts[1], 0));
        assert_eq!(tag(&keys[0], &parts[0], 1), tag(&keys[2], &parts[2], 0));
        assert_ne!(tag(&keys[0], &parts[0], 0), tag(&keys[0], &parts[0], 1));
        // New ones each time.
        assert_ne!(make(&topology).unwrap(), files);
        // What another process has is not taken.
        let error = Keys::parse(&parts[1], &files[0].1).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("c/hca0 and a/hca1"), "{error}");
    }

    #[test]
    fn a_links_own_file_goes_before() {
        let dir = std::env::temp_dir().join(format!("softhca-links-keys-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = |name: &str, digit: &str| {
            use std::os::unix::fs::PermissionsExt;
            let path = dir.join(name);
            std::fs::write(&path, digit.repeat(64)).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let (own, common) = (file("own", "1"), file("common", "2"));
        let text = THREE.replacen("\"b/hca0\"]", &format!("\"b/hca0\"]\ntunnel_key_file = {own:?}"), 1);
        let topology = Topology::parse("test", &text).unwrap();
        let part = topology.part(Some("p")).unwrap();
        let keys = Keys::load(&part, Some(&common)).unwrap();
        let [own, common] = [own, common].map(|path| Key::load(&path).unwrap().tag(b"message"));
        assert_eq!([tag(&keys, &part, 0), tag(&keys, &part, 1)], [own, common]);
        let alone = Keys::load(&part, None).unwrap();
        assert!(alone.of(&part.cuts[0]).is_ok() && alone.of(&part.cuts[1]).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn files_that_are_refused() {
        let topology = topology();
        let part = topology.part(Some("q")).unwrap();
        let digits = "0a".repeat(32);
        let good = format!("# comment\n\nb/hca0 a/hca0 {digits} # either order\n");
        assert!(Keys::parse(&part, &good).is_ok());
        for (text, reason) in [
            ("b/hca0 a/hca0".to_owned(), "line 1"),
            (format!("b/hca0 a/hca0 {digits}0"), "64 hexadecimal digits"),
            (format!("{good}{good}"), "a second key"),
            (format!("b/hca0 a/hca1 {digits}"), "no link between"),
        ] {
            let error = format!("{:#}", Keys::parse(&part, &text).unwrap_err());
            assert!(error.contains(reason) && !error.contains(&digits), "{error}");
        }
        let error = Keys::default().of(&part.cuts[0]).unwrap_err().to_string();
        assert!(error.contains("a/hca0 and b/hca0") && error.contains("tunnel_key_file"), "{error}");
        assert!(make(&Topology::parse("test", "[[host]]\nname = \"a\"\n[[host.hca]]\n").unwrap()).is_err());
    }
}
