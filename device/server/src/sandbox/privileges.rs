//! Rights: capabilities, and the user that a server started by root becomes.

use std::fs::Metadata;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, fchown};
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use caps::{CapSet, Capability, CapsHashSet};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Group, Uid, User, geteuid, setgroups, setresgid, setresuid};

/// Empties all five sets of capabilities of this thread.
///
/// # Errors
/// The kernel refuses. Not that of the bounding set: emptying that takes a capability, and without new privileges it
/// bounds nothing.
pub(super) fn drop_all() -> anyhow::Result<()> {
    keep(&CapsHashSet::new())
}

/// The same, but for the right to look at other processes (`CAP_SYS_PTRACE`), if it is there.
///
/// # Errors
/// The kernel refuses.
pub(super) fn keep_looking() -> anyhow::Result<()> {
    let look = Capability::CAP_SYS_PTRACE;
    let has = caps::has_cap(None, CapSet::Permitted, look).context("capabilities")?;
    keep(&has.then_some(look).into_iter().collect())
}

fn keep(these: &CapsHashSet) -> anyhow::Result<()> {
    let _ = caps::clear(None, CapSet::Bounding);
    // Kernels before 4.3 have no ambient set.
    if caps::runtime::ambient_set_supported().is_ok() {
        caps::clear(None, CapSet::Ambient).context("ambient capabilities")?;
    }
    caps::clear(None, CapSet::Inheritable).context("inheritable capabilities")?;
    caps::set(None, CapSet::Effective, these).context("effective capabilities")?;
    caps::set(None, CapSet::Permitted, these).context("permitted capabilities")
}

/// A user and a group to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// The user.
    pub uid: Uid,
    /// Its only group.
    pub gid: Gid,
}

impl Account {
    /// The account of a user, by name or number; its group is that of the user database unless `group` names one.
    ///
    /// # Errors
    /// There is none, or a number that nobody has comes without a group.
    pub fn find(user: &str, group: Option<&str>) -> anyhow::Result<Account> {
        let number = user.parse().ok().map(Uid::from_raw);
        let known = number.map_or_else(|| User::from_name(user), User::from_uid).context("user database")?;
        let uid = number.or(known.as_ref().map(|user| user.uid));
        let uid = uid.ok_or_else(|| anyhow!("--uid {user}: there is no such user"))?;
        let gid = match group {
            Some(group) => find_group(group)?,
            None => {
                known.map(|user| user.gid).ok_or_else(|| anyhow!("--uid {user}: --gid is needed, too"))?
            }
        };
        Ok(Account { uid, gid })
    }

    /// Becomes that user, with no other group, for good. Everything that is opened or made from now on is so with that user's rights.
    ///
    /// # Errors
    /// This process is not root's, or the system refuses.
    pub fn become_it(self) -> anyhow::Result<()> {
        let Account { uid, gid } = self;
        ensure!(geteuid().is_root(), "--uid: only root can become another user");
        // Afterwards that is not possible any more.
        let _ = caps::clear(None, CapSet::Bounding);
        setgroups(&[]).context("setgroups")?;
        setresgid(gid, gid, gid).with_context(|| format!("group {gid}"))?;
        setresuid(uid, uid, uid).with_context(|| format!("user {uid}"))?;
        Ok(())
    }

    /// Makes a folder that is this account's, before this process becomes it. One that is there has to be, and nobody else's to write to.
    ///
    /// # Errors
    /// It can't be made, or is somebody else's or open to others; the message names it.
    pub fn make_folder(self, path: &Path) -> anyhow::Result<()> {
        let Account { uid, gid } = self;
        let shown = path.display();
        let parents = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parents.map_or(Ok(()), std::fs::create_dir_all).with_context(|| format!("{shown}"))?;
        let made = std::fs::DirBuilder::new().mode(0o700).create(path);
        let new = match made {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(e).with_context(|| format!("{shown}: can't be made"));
            }
            made => made.is_ok(),
        };
        // By descriptor: nobody can put another in its place.
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let folder =
            std::fs::File::from(open(path, flags, Mode::empty()).with_context(|| format!("{shown}"))?);
        if new {
            fchown(&folder, Some(uid.as_raw()), Some(gid.as_raw())).with_context(|| format!("{shown}"))?;
        }
        let meta = folder.metadata().with_context(|| format!("{shown}"))?;
        owned(path, &meta, uid)
    }
}

/// Makes a folder that is this user's, and into which nobody else may write. One that is there has to be like that: whoever may write there could put
/// sockets of their own in the place of this process's.
///
/// # Errors
/// It can't be made, or is somebody else's or open to others; the message names it.
pub fn private_folder(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("{shown}: can't be made"))?;
    let meta = std::fs::metadata(path).with_context(|| format!("{shown}"))?;
    owned(path, &meta, geteuid())
}

/// Whether a folder is that user's, and nobody else's to write to.
fn owned(path: &Path, meta: &Metadata, uid: Uid) -> anyhow::Result<()> {
    /// Group and others may write.
    const OTHERS: u32 = 0o022;
    let (shown, owner, mode) = (path.display(), meta.uid(), meta.mode() & 0o7777);
    ensure!(owner == uid.as_raw(), "{shown}: is user {owner}'s and not user {uid}'s");
    ensure!(
        mode & OTHERS == 0,
        "{shown}: others may write there (mode {mode:04o}): take that from them, or name a folder that is not there"
    );
    Ok(())
}

fn find_group(group: &str) -> anyhow::Result<Gid> {
    if let Ok(number) = group.parse() {
        return Ok(Gid::from_raw(number));
    }
    let known = Group::from_name(group).context("group database")?;
    Ok(known.ok_or_else(|| anyhow!("--gid {group}: there is no such group"))?.gid)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn accounts_by_name_and_number() {
        let root = Account { uid: Uid::from_raw(0), gid: Gid::from_raw(0) };
        assert_eq!(Account::find("root", None).unwrap(), root);
        assert_eq!(Account::find("0", Some("0")).unwrap(), root);
        assert!(Account::find("no such user", None).unwrap_err().to_string().contains("no such user"));
        assert!(Account::find("root", Some("no such group")).is_err());
        let nobody = 0xfff0_1234u32;
        assert!(Account::find(&nobody.to_string(), None).unwrap_err().to_string().contains("--gid"));
        assert_eq!(Account::find(&nobody.to_string(), Some("7")).unwrap().gid, Gid::from_raw(7));
    }

    #[test]
    fn a_folder_of_somebody_else_is_refused() {
        let path = std::env::temp_dir().join(format!("softhca-folder-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let other = Account { uid: Uid::from_raw(geteuid().as_raw() + 1), gid: Gid::from_raw(0) };
        let error = other.make_folder(&path).unwrap_err().to_string();
        assert!(error.contains("and not user"), "{error}");
        let own = Account { uid: geteuid(), gid: nix::unistd::getegid() };
        own.make_folder(&path).unwrap();
        std::fs::remove_dir(&path).unwrap();
        own.make_folder(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        std::fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn a_folder_into_which_others_may_write_is_refused() {
        let path = std::env::temp_dir().join(format!("softhca-open-folder-{}", std::process::id()));
        private_folder(&path).unwrap();
        let own = Account { uid: geteuid(), gid: nix::unistd::getegid() };
        for (mode, good) in
            [(0o700, true), (0o755, true), (0o2750, true), (0o770, false), (0o702, false), (0o1777, false)]
        {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            for made in [private_folder(&path), own.make_folder(&path)] {
                assert_eq!(made.is_ok(), good, "{mode:o}: {made:?}");
            }
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, mode, "it is left as it is");
        }
        let error = private_folder(&path).unwrap_err().to_string();
        assert!(error.contains("softhca-open-folder") && error.contains("mode 1777"), "{error}");
        std::fs::remove_dir(&path).unwrap();
    }
}
