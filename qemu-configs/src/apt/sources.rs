//! Finds the Debian archives this machine already uses, so that no mirror is ever named here.
//!
//! Reads the one-line form (`sources.list`, `*.list`) and the deb822 form (`*.sources`), see sources.list(5).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Overrides the archive found in the machine's configuration.
pub const MIRROR_VARIABLE: &str = "HCA_VM_DEBIAN_MIRROR";
/// Overrides the archive of security updates.
pub const SECURITY_VARIABLE: &str = "HCA_VM_DEBIAN_SECURITY";
/// Overrides the keyring that signs them.
pub const KEYRING_VARIABLE: &str = "HCA_VM_DEBIAN_KEYRING";

const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const SUITES: [&str; 10] =
    ["buster", "bullseye", "bookworm", "trixie", "forky", "duke", "sid", "stable", "testing", "unstable"];

/// A Debian archive with component `main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    /// Base address, as in the machine's own configuration.
    pub uri: String,
    /// Keyring file, if one is named.
    pub signed_by: Option<PathBuf>,
}

/// The archive to use: from the environment, else from `/etc/apt`.
pub fn find() -> Result<Archive> {
    named(MIRROR_VARIABLE, is_main_suite).map_or_else(|| {
        bail!(
            "no Debian archive (component main) in /etc/apt/sources.list or /etc/apt/sources.list.d.\n\
             Guests and QEMU come from Debian packages: set {MIRROR_VARIABLE} to the address of a Debian mirror and \
             {KEYRING_VARIABLE} to the file of its archive keyring (package debian-archive-keyring)"
        )
    }, Ok)
}

/// The archive of security updates, if this machine uses one.
pub fn find_security() -> Option<Archive> {
    named(SECURITY_VARIABLE, is_security_suite)
}

fn named(variable: &str, is_wanted: fn(&str) -> bool) -> Option<Archive> {
    let from_environment = std::env::var(variable).ok().filter(|uri| !uri.is_empty());
    let mut archive = match from_environment {
        Some(uri) => Archive { uri, signed_by: None },
        None => find_in(Path::new("/etc/apt"), is_wanted)?,
    };
    if let Some(keyring) = std::env::var_os(KEYRING_VARIABLE) {
        archive.signed_by = Some(PathBuf::from(keyring));
    }
    Some(with_default_keyring(archive))
}

fn with_default_keyring(mut archive: Archive) -> Archive {
    if archive.signed_by.is_none() && Path::new(DEBIAN_KEYRING).exists() {
        archive.signed_by = Some(PathBuf::from(DEBIAN_KEYRING));
    }
    archive
}

fn find_in(etc_apt: &Path, is_wanted: fn(&str) -> bool) -> Option<Archive> {
    let mut files = vec![etc_apt.join("sources.list")];
    if let Ok(entries) = fs::read_dir(etc_apt.join("sources.list.d")) {
        let mut more: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        more.sort();
        files.extend(more);
    }
    files.iter().find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        match path.extension()?.to_str()? {
            "list" => parse_list(&text, is_wanted),
            "sources" => parse_deb822(&text, is_wanted),
            _ => None,
        }
    })
}

/// Is it a suite of the main archive (and not of the security archive, or somebody else's)?
fn is_main_suite(suite: &str) -> bool {
    let base = suite.strip_suffix("-updates").or_else(|| suite.strip_suffix("-backports")).unwrap_or(suite);
    SUITES.contains(&base)
}

/// Is it a suite of the archive of security updates?
pub(super) fn is_security_suite(suite: &str) -> bool {
    suite.strip_suffix("-security").is_some_and(|base| SUITES.contains(&base))
}

fn parse_list(text: &str, is_wanted: fn(&str) -> bool) -> Option<Archive> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb")?;
        if !rest.starts_with(char::is_whitespace) {
            return None;
        }
        let mut rest = rest.trim_start();
        let mut signed_by = None;
        if let Some(bracketed) = rest.strip_prefix('[') {
            let (options, tail) = bracketed.split_once(']')?;
            signed_by = options
                .split_whitespace()
                .find_map(|option| option.strip_prefix("signed-by="))
                .map(PathBuf::from);
            rest = tail;
        }
        let mut words = rest.split_whitespace();
        let uri = words.next()?.to_owned();
        let suite = words.next()?;
        (is_wanted(suite) && words.any(|component| component == "main")).then_some(Archive { uri, signed_by })
    })
}

fn parse_deb822(text: &str, is_wanted: fn(&str) -> bool) -> Option<Archive> {
    let mut stanzas: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for line in text.lines() {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            stanzas.push(Vec::new());
        } else if line.starts_with(char::is_whitespace) {
            // A continuation line belongs to the field before it.
            if let Some((_, value)) = stanzas.last_mut().and_then(|stanza| stanza.last_mut()) {
                value.push('\n');
                value.push_str(line.trim());
            }
        } else if let Some((key, value)) = line.split_once(':')
            && let Some(stanza) = stanzas.last_mut()
        {
            stanza.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    stanzas.iter().find_map(|stanza| {
        let field = |name: &str| stanza.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let has = |name: &str, wanted: &str| {
            field(name).is_some_and(|value| value.split_whitespace().any(|word| word == wanted))
        };
        if field("enabled").is_some_and(|value| value.eq_ignore_ascii_case("no")) {
            return None;
        }
        let wanted = field("suites").is_some_and(|value| value.split_whitespace().any(is_wanted));
        if !has("types", "deb") || !has("components", "main") || !wanted {
            return None;
        }
        let signed_by = field("signed-by")
            // The field may also hold a whole key block; then the default keyring has to do.
            .filter(|value| value.starts_with('/') && !value.contains('\n'))
            .map(PathBuf::from);
        Some(Archive { uri: field("uris")?.split_whitespace().next()?.to_owned(), signed_by })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_form() {
        let text = "# deb http://old.example/debian trixie main\n\
                    deb-src http://src.example/debian trixie main\n\
                    deb http://sec.example/debian-security trixie-security main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian trixie-updates contrib main\n";
        assert_eq!(
            parse_list(text, is_main_suite),
            Some(Archive { uri: "http://m.example/debian".into(), signed_by: Some("/k.gpg".into()) })
        );
        assert_eq!(
            parse_list(text, is_security_suite).map(|archive| archive.uri).as_deref(),
            Some("http://sec.example/debian-security")
        );
        assert_eq!(parse_list("deb http://m.example/debian trixie", is_main_suite), None);
        assert_eq!(parse_list("deb [broken http://m.example/debian trixie main", is_main_suite), None);
    }

    #[test]
    fn deb822_form() {
        let text = "Types: deb\n# note\nURIs: http://m.example/debian\nSuites: bookworm bookworm-updates\n\
                    Components: main\nSigned-By: /k.gpg\n\nTypes: deb\nURIs: http://other.example\n";
        assert_eq!(
            parse_deb822(text, is_main_suite),
            Some(Archive { uri: "http://m.example/debian".into(), signed_by: Some("/k.gpg".into()) })
        );
    }

    #[test]
    fn foreign_and_disabled_archives_do_not_count() {
        let foreign = "Types: deb\nURIs: http://x.example\nSuites: nodistro\nComponents: main\n";
        assert_eq!(parse_deb822(foreign, is_main_suite), None);
        let disabled = "Enabled: no\nTypes: deb\nURIs: http://x.example\nSuites: sid\nComponents: main\n";
        assert_eq!(parse_deb822(disabled, is_main_suite), None);
        assert!(!is_main_suite("bookworm-pgdg"));
        assert!(!is_main_suite("noble"));
    }

    #[test]
    fn inline_key_is_not_taken_for_a_path() {
        let text = "Types: deb\nURIs: http://m.example\nSuites: sid\nComponents: main\nSigned-By:\n -----BEGIN\n abc\n";
        assert_eq!(parse_deb822(text, is_main_suite).unwrap().signed_by, None);
    }
}
