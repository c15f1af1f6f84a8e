//! Files that only their owner can read: logs have what guests and their programs say.

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::libc;
use nix::unistd::geteuid;

/// Read and written by its owner.
const PRIVATE: u32 = 0o600;

/// Makes a file, or empties one of this user's, whatever the umask is. A symbolic link is not followed.
///
/// # Errors
/// It can't be made, is a link, or is somebody else's.
pub(crate) fn create(path: &Path) -> Result<File> {
    let shown = path.display();
    let mut options = File::options();
    options.write(true).create(true).mode(PRIVATE).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path).with_context(|| format!("{shown}: can't be written"))?;
    let meta = file.metadata().with_context(|| format!("{shown}"))?;
    // Somebody may like it in a pipe, or nowhere.
    if meta.is_file() {
        let own = geteuid().as_raw();
        ensure!(meta.uid() == own, "{shown}: is user {}'s and not user {own}'s", meta.uid());
        file.set_permissions(Permissions::from_mode(PRIVATE)).with_context(|| format!("{shown}"))?;
        file.set_len(0).with_context(|| format!("{shown}: can't be emptied"))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn files_are_their_owners_and_links_are_not_followed() {
        let dir = std::env::temp_dir().join(format!("hca-vm-private-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("log");
        std::fs::write(&path, "of the run before").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        create(&path).unwrap().write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, PRIVATE);
        std::fs::remove_file(&path).unwrap();
        drop(create(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, PRIVATE);
        let (link, aim) = (dir.join("link"), dir.join("aim"));
        std::os::unix::fs::symlink(&aim, &link).unwrap();
        assert!(create(&link).is_err() && !aim.exists());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
