//! Kernels: Debian's packages, unpacked only, or one of your own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};

use crate::apt::{Apt, unpack_deb};
use crate::cache::{Cache, remove_tree};
use crate::image::modules::{self, Dependencies, EARLY};
use crate::image::{bzimage, make_erofs, run, tools};
use crate::prefix::Prefix;
use crate::progress::Step;

/// Raise when this file makes other artefacts from the same kernel.
const VERSION: u32 = 1;
/// The kernel of Debian 13.
pub const DEFAULT: &str = "6.12";

/// A kernel ready to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What `uname -r` says in the guest.
    pub release: String,
    /// ELF kernel with PVH entry.
    pub vmlinux: PathBuf,
    /// erofs image for `/lib/modules/<release>`.
    pub modules: PathBuf,
    /// Modules for the initramfs, in order of loading.
    pub early: Vec<PathBuf>,
}

/// A kernel is in one package, or (from 6.19 on) in several; their names begin with these.
const PARTS: [&str; 4] = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];

/// What `--kernel` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    /// A Debian kernel series, such as 6.12.
    Series(u32, u32),
    /// A `.deb`, or a folder like one unpacked: `boot/vmlinuz-*` (or `lib/modules/*/vmlinuz`) and `lib/modules/*`.
    Path(PathBuf),
}

fn parse(text: &str) -> Result<Choice> {
    if let Some((major, minor)) = text.split_once('.')
        && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
    {
        return Ok(Choice::Series(major, minor));
    }
    let path = Path::new(text);
    if !path.exists() {
        bail!(
            "no kernel '{text}': give a Debian series (6.1, 6.12, 7.2), a linux-image .deb file, or a folder that holds \
             boot/vmlinuz-* and lib/modules/*"
        );
    }
    Ok(Choice::Path(path.canonicalize()?))
}

/// The kernel named by `choice`, prepared if need be.
pub fn get(cache: &Cache, choice: &str) -> Result<Kernel> {
    let choice = parse(choice)?;
    let folder = cache.get_or_build("kernel", &recipe(&choice)?, |folder| build(cache, &choice, folder))?;
    open(&folder)
}

/// Is this kernel there, ready to boot?
pub fn is_made(cache: &Cache, choice: &str) -> bool {
    parse(choice)
        .and_then(|choice| recipe(&choice))
        .is_ok_and(|recipe| cache.path_of("kernel", &recipe).is_dir())
}

fn recipe(choice: &Choice) -> Result<String> {
    let source = match choice {
        Choice::Series(major, minor) => format!("Debian {major}.{minor} amd64"),
        Choice::Path(path) => path_identity(path)?,
    };
    let modules: Vec<_> = modules::names().collect();
    Ok(format!("kernel {VERSION}: {source}: {}", modules.join(" ")))
}

/// A path, and what changes when something else is put there.
fn path_identity(path: &Path) -> Result<String> {
    let mut text = path.display().to_string();
    let mut parts = vec![path.to_path_buf()];
    if path.is_dir() {
        parts.push(find_vmlinuz(path)?.0);
    }
    for part in parts {
        let meta = fs::metadata(&part)?;
        let time = meta.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        text.push_str(&format!(" {} {time}", meta.len()));
    }
    Ok(text)
}

fn open(folder: &Path) -> Result<Kernel> {
    let mut early: Vec<PathBuf> =
        fs::read_dir(folder.join("early"))?.flatten().map(|entry| entry.path()).collect();
    early.sort();
    Ok(Kernel {
        release: fs::read_to_string(folder.join("release"))?.trim().to_owned(),
        vmlinux: folder.join("vmlinux"),
        modules: folder.join("modules.erofs"),
        early,
    })
}

fn build(cache: &Cache, choice: &Choice, folder: &Path) -> Result<()> {
    let tools = tools(cache)?;
    let unpacked = folder.join("unpacked");
    fs::create_dir(&unpacked)?;
    let root = match choice {
        Choice::Series(major, minor) => {
            fetch_debian(cache, *major, *minor, &unpacked)?;
            unpacked.clone()
        }
        Choice::Path(path) if path.is_dir() => path.clone(),
        Choice::Path(path) => {
            unpack_deb(path, &unpacked)?;
            unpacked.clone()
        }
    };
    let step = Step::start("preparing the kernel and its modules");
    let (vmlinuz, release) = find_vmlinuz(&root)?;
    let image = fs::read(&vmlinuz).with_context(|| format!("cannot read {}", vmlinuz.display()))?;
    fs::write(folder.join("vmlinux"), bzimage::extract(&tools, &image)?)?;
    fs::write(folder.join("release"), &release)?;
    let source = ["usr/lib/modules", "lib/modules"]
        .iter()
        .map(|path| root.join(path).join(&release))
        .find(|path| path.is_dir())
        .with_context(|| format!("no lib/modules/{release} in {}", root.display()))?;
    select_modules(&tools, &source, &release, folder)?;
    remove_tree(&unpacked)?;
    step.done();
    Ok(())
}

/// The package of the newest kernel of a series, with the packages it is split into.
fn fetch_debian(cache: &Cache, major: u32, minor: u32, into: &Path) -> Result<()> {
    // 6.1 is the kernel of Debian 12; everything newer is in Debian 13 or its backports.
    let suites: &[&str] =
        if (major, minor) < (6, 12) { &["bookworm"] } else { &["trixie", "trixie-backports"] };
    let mut apt = Apt::new(cache, suites);
    if let Some(backports) = suites.get(1) {
        // A kernel from backports needs helpers of its own age.
        apt = apt.prefer(backports);
    }
    let names = apt.search(&format!("^linux-image-{major}\\.{minor}[.-].*-amd64$"))?;
    let Some(name) = newest(&names) else {
        bail!(
            "no kernel {major}.{minor} among the packages of {}; Debian offers 6.1, 6.12 and the series in \
             backports. A .deb file or a folder can be given instead",
            suites.join(", ")
        );
    };
    apt.unpack(std::slice::from_ref(name), into, |package| {
        !PARTS.iter().any(|prefix| package.starts_with(prefix))
    })
    .with_context(|| format!("cannot get the kernel package {name}"))?;
    Ok(())
}

/// The newest of these packages, leaving out the cloud, realtime and debug flavours.
fn newest(names: &[String]) -> Option<&String> {
    names
        .iter()
        .filter(|name| !["-cloud-", "-rt-", "-dbg", "-unsigned", "~"].iter().any(|part| name.contains(part)))
        .max_by_key(|name| numbers(name))
}

/// The kernel image below an unpacked package, and its release.
///
/// Older packages have `boot/vmlinuz-<release>`, newer ones `usr/lib/modules/<release>/vmlinuz`.
fn find_vmlinuz(root: &Path) -> Result<(PathBuf, String)> {
    let names = |folder: &str| -> Vec<(PathBuf, String)> {
        let mut all: Vec<_> = fs::read_dir(root.join(folder))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| (entry.path(), entry.file_name().to_string_lossy().into_owned()))
            .collect();
        all.sort();
        all
    };
    let in_boot = names("boot").into_iter().filter_map(|(path, name)| {
        let release = name.strip_prefix("vmlinuz-").or_else(|| name.strip_prefix("vmlinux-"))?;
        Some((path, release.to_owned()))
    });
    let beside_modules = ["usr/lib/modules", "lib/modules"]
        .into_iter()
        .flat_map(names)
        .map(|(path, release)| (path.join("vmlinuz"), release));
    in_boot
        .chain(beside_modules)
        .filter(|(path, _)| path.is_file())
        .max_by_key(|(_, release)| numbers(release))
        .with_context(|| format!("neither boot/vmlinuz-* nor lib/modules/*/vmlinuz in {}", root.display()))
}

/// The numbers in a text, for ordering versions.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Copies the modules a guest needs, uncompressed, and makes the index and the image of them.
fn select_modules(tools: &Prefix, source: &Path, release: &str, folder: &Path) -> Result<()> {
    let tree = folder.join("tree");
    // depmod wants <base>/lib/modules/<release>; first over everything, to learn who needs whom.
    let base = folder.join("base");
    fs::create_dir_all(base.join("lib/modules"))?;
    let all = base.join("lib/modules").join(release);
    run(Command::new("cp").arg("-r").arg(source).arg(&all))?;
    depmod(tools, &base, release)?;
    let dependencies = Dependencies::parse(&fs::read_to_string(all.join("modules.dep"))?);
    let built_in = fs::read_to_string(all.join("modules.builtin")).unwrap_or_default();

    let target = tree.join("lib/modules").join(release);
    fs::create_dir_all(&target)?;
    for entry in fs::read_dir(&all)?.flatten() {
        let name = entry.file_name();
        // modules.builtin, .builtin.modinfo and .order come with the package; the rest depmod makes.
        if name.to_string_lossy().starts_with("modules.builtin") || name == "modules.order" {
            fs::copy(entry.path(), target.join(name))?;
        }
    }
    let uncompressed = |path: &str| -> Result<PathBuf> {
        let plain = path.split_once(".ko").map_or(path, |(stem, _)| stem).to_owned() + ".ko";
        let to = target.join(&plain);
        if !to.exists() {
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            let from = all.join(path);
            let mut unpacker = match path.rsplit('.').next() {
                Some("xz") => Some(tools.command("xz")?),
                Some("zst") => Some(tools.command("zstd")?),
                Some("gz") => Some(Command::new("gzip")),
                _ => None,
            };
            match &mut unpacker {
                Some(command) => {
                    let output = command.arg("-dc").arg(&from).output()?;
                    if !output.status.success() || output.stdout.is_empty() {
                        bail!("cannot decompress {}", from.display());
                    }
                    fs::write(&to, output.stdout)?;
                }
                None => {
                    fs::copy(&from, &to)?;
                }
            }
        }
        Ok(to)
    };
    for path in dependencies.for_guest(&built_in)? {
        uncompressed(&path)?;
    }
    let early = folder.join("early");
    fs::create_dir(&early)?;
    for (index, path) in dependencies.load_order(&EARLY).iter().enumerate() {
        let from = uncompressed(path)?;
        let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::copy(&from, early.join(format!("{index:02}-{name}")))?;
    }
    depmod(tools, &tree, release)?;
    make_erofs(tools, &target, &folder.join("modules.erofs"))?;
    remove_tree(&base)?;
    remove_tree(&tree)
}

fn depmod(tools: &Prefix, base: &Path, release: &str) -> Result<()> {
    // Debian's kmod looks below /usr/lib/modules or /lib/modules depending on its age: offer both.
    let usr_lib = base.join("usr/lib");
    if !usr_lib.exists() {
        fs::create_dir_all(base.join("usr"))?;
        std::os::unix::fs::symlink("../lib", &usr_lib)?;
    }
    run(tools.command_as("kmod", "depmod")?.arg("-b").arg(base).arg(release))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices() {
        assert_eq!(parse("6.12").unwrap(), Choice::Series(6, 12));
        assert!(matches!(parse("/").unwrap(), Choice::Path(_)));
        let error = parse("no-such-kernel").unwrap_err().to_string();
        assert!(error.contains("6.12"), "{error}");
    }

    #[test]
    fn newest_counts_numbers_and_ignores_flavours() {
        let names: Vec<String> = [
            "linux-image-6.12.94+deb13-amd64",
            "linux-image-6.12.107+deb13-amd64",
            "linux-image-6.12.200+deb13-cloud-amd64",
            "linux-image-6.12.107+deb13-rt-amd64",
        ]
        .map(str::to_owned)
        .to_vec();
        assert_eq!(newest(&names).unwrap(), "linux-image-6.12.107+deb13-amd64");
        assert_eq!(newest(&[]), None);
    }
}
