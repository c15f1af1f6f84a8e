//! Kernels: Debian's packages, unpacked only, or one of your own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};

use crate::apt::{Candidate, unpack_deb};
use crate::cache::{Cache, remove_tree};
pub use crate::image::modules::Lacks;
use crate::image::modules::{self, Dependencies, EARLY};
use crate::image::series::{Wanted, numbers};
use crate::image::{bzimage, make_erofs, run, tools};
use crate::prefix::Prefix;
use crate::progress::Step;

/// Raise when this file makes other artefacts from the same kernel.
const VERSION: u32 = 2;
/// The kernel of Debian 13.
pub const DEFAULT: &str = "6.12";

/// A kernel ready to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// What `uname -r` says in the guest.
    pub release: String,
    /// The version of its sources, as far as the kernel says: `6.1.192-1` where the release is `6.1.0-53-amd64`.
    pub version: String,
    /// The image as it was packaged, for boot loaders.
    pub bzimage: PathBuf,
    /// ELF kernel with PVH entry.
    pub vmlinux: PathBuf,
    /// erofs image for `/lib/modules/<release>`.
    pub modules: PathBuf,
    /// Modules for the initramfs, in order of loading.
    pub early: Vec<PathBuf>,
}

/// A kernel is in one package, or (from 6.19 on) in several; their names begin with these.
const PARTS: [&str; 4] = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];

/// Is a package a kernel, or a part of one?
pub(super) fn is_part(package: &str) -> bool {
    PARTS.iter().any(|prefix| package.starts_with(prefix))
}

/// What `--kernel` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    /// A kernel of Debian's archive.
    Debian(Wanted),
    /// A `.deb`, or a folder like one unpacked: `boot/vmlinuz-*` (or `lib/modules/*/vmlinuz`) and `lib/modules/*`.
    Path(PathBuf),
}

fn parse(text: &str) -> Result<Choice> {
    if let Some((major, minor)) = text.split_once('.')
        && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
    {
        return Ok(Choice::Debian(Wanted::Series(major, minor)));
    }
    let path = Path::new(text);
    if path.exists() {
        return Ok(Choice::Path(path.canonicalize()?));
    }
    let of_a_name = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    if text.starts_with("linux-image-") && text.ends_with("-amd64") && text.chars().all(of_a_name) {
        return Ok(Choice::Debian(Wanted::Package(text.to_owned())));
    }
    bail!(
        "no kernel '{text}': give a Debian series (6.1, 6.12, 7.2), the name of a package (linux-image-...-amd64), a \
         linux-image .deb file, or a folder that holds boot/vmlinuz-* and lib/modules/*"
    )
}

/// Is this something that could be a kernel? Nothing is fetched or asked.
///
/// # Errors
/// What is wrong with it, and what could be given instead.
pub fn check(choice: &str) -> Result<()> {
    parse(choice).map(drop)
}

/// The kernel named by `choice`, prepared if need be.
///
/// # Errors
/// It can't be had or unpacked, or was made without what guests need ([`Lacks`]).
pub fn get(cache: &Cache, choice: &str) -> Result<Kernel> {
    let choice = parse(choice)?;
    let source = match &choice {
        Choice::Debian(wanted) => of_debian(&wanted.find(cache)?),
        Choice::Path(path) => path_identity(path)?,
    };
    let folder = cache.get_or_build("kernel", &recipe(&source), |folder| build(cache, &choice, folder))?;
    open(&folder)
}

/// This kernel, if it is there, ready to boot. Nothing is fetched or asked.
pub fn made(cache: &Cache, choice: &str) -> Option<Kernel> {
    let source = match parse(choice).ok()? {
        Choice::Debian(wanted) => of_debian(&wanted.known(cache)?.0),
        Choice::Path(path) => path_identity(&path).ok()?,
    };
    let folder = cache.path_of("kernel", &recipe(&source));
    if folder.is_dir() { open(&folder).ok() } else { None }
}

/// All kernels that are there, oldest first.
pub fn all_made(cache: &Cache) -> Vec<Kernel> {
    let folders = fs::read_dir(cache.root()).into_iter().flatten().flatten();
    let of_kernels = |name: &str| name.starts_with("kernel-");
    let mut all: Vec<_> = folders
        .filter(|entry| entry.file_name().to_str().is_some_and(of_kernels))
        .filter(|entry| {
            // Of this way to make them: others are left over.
            let recipe = fs::read_to_string(entry.path().join("recipe")).unwrap_or_default();
            recipe.starts_with(&format!("kernel {VERSION}:"))
        })
        .filter_map(|entry| open(&entry.path()).ok())
        .collect();
    all.sort_by_key(|kernel| numbers(&kernel.version));
    all
}

fn of_debian(package: &Candidate) -> String {
    format!("{} {}", package.name, package.version)
}

fn recipe(source: &str) -> String {
    format!("kernel {VERSION}: {source}: {}", modules::names().collect::<Vec<_>>().join(" "))
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

/// What has the headers of a kernel of Debian's.
pub(crate) struct Headers {
    /// The package.
    pub(crate) package: String,
    /// The suites it and its compiler come from.
    pub(crate) suites: &'static [&'static str],
}

/// Where the headers of this kernel, which `choice` named, are.
///
/// # Errors
/// It is not from Debian's archive.
pub(crate) fn headers(choice: &str, kernel: &Kernel) -> Result<Headers> {
    match parse(choice)? {
        Choice::Debian(wanted) => {
            Ok(Headers { package: format!("linux-headers-{}", kernel.release), suites: wanted.suites() })
        }
        Choice::Path(path) => bail!(
            "the kernel {} is not from Debian's archive: --headers DIR says where it was built",
            path.display()
        ),
    }
}

fn open(folder: &Path) -> Result<Kernel> {
    let mut early: Vec<PathBuf> =
        fs::read_dir(folder.join("early"))?.flatten().map(|entry| entry.path()).collect();
    early.sort();
    let release = fs::read_to_string(folder.join("release"))?.trim().to_owned();
    Ok(Kernel {
        version: fs::read_to_string(folder.join("version"))?.trim().to_owned(),
        release,
        bzimage: folder.join("bzimage"),
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
        Choice::Debian(wanted) => {
            fetch_debian(cache, wanted, &unpacked)?;
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
    let kernel = bzimage::extract(&tools, &image)?;
    fs::write(folder.join("version"), banner(&kernel).unwrap_or(&release))?;
    fs::write(folder.join("vmlinux"), &kernel)?;
    fs::write(folder.join("bzimage"), &image)?;
    fs::write(folder.join("release"), &release)?;
    let source = ["usr/lib/modules", "lib/modules"]
        .iter()
        .map(|path| root.join(path).join(&release))
        .find(|path| path.is_dir())
        .with_context(|| format!("no lib/modules/{release} in {}", root.display()))?;
    pack_modules(&tools, &source, &release, folder)?;
    remove_tree(&unpacked)?;
    step.done();
    Ok(())
}

/// The package of a kernel, with the packages it is split into.
fn fetch_debian(cache: &Cache, wanted: &Wanted, into: &Path) -> Result<()> {
    let Candidate { name, .. } = wanted.find(cache)?;
    let unpacked =
        wanted.apt(cache).unpack(std::slice::from_ref(&name), into, |package| !is_part(package.name()));
    unpacked.with_context(|| format!("cannot get the kernel package {name}")).map(drop)
}

/// The version that a kernel of Debian's says of itself in its banner: `Linux version 6.1.0-50-amd64 (...) #1 SMP
/// PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-01-01)`.
fn banner(kernel: &[u8]) -> Option<&str> {
    const BEGIN: &[u8] = b"Linux version ";
    const LONGEST: usize = 512;
    let begins = |window: &&[u8]| window.starts_with(BEGIN);
    let banner = kernel.windows(LONGEST).find(begins)?.split(|byte| matches!(byte, 0 | b'\n')).next()?;
    let (_, rest) = std::str::from_utf8(banner).ok()?.rsplit_once(" Debian ")?;
    rest.split_whitespace().next()
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

/// Makes the index and the image of all modules. Those that guests load often are uncompressed in it, which an emulated
/// processor takes long for; the others are as the package has them.
fn pack_modules(tools: &Prefix, source: &Path, release: &str, folder: &Path) -> Result<()> {
    // depmod wants <base>/lib/modules/<release>; the first time it tells who needs whom.
    let base = folder.join("base");
    let tree = base.join("lib/modules").join(release);
    fs::create_dir_all(base.join("lib/modules"))?;
    run(Command::new("cp").args(["-r", "--no-dereference"]).arg(source).arg(&tree))?;
    depmod(tools, &base, release)?;
    let dependencies = Dependencies::parse(&fs::read_to_string(tree.join("modules.dep"))?);
    let built_in = fs::read_to_string(tree.join("modules.builtin")).unwrap_or_default();
    dependencies.check(&built_in)?;

    for path in dependencies.load_order(&modules::names().collect::<Vec<_>>()) {
        uncompress(tools, &tree, &path)?;
    }
    let early = folder.join("early");
    fs::create_dir(&early)?;
    for (index, path) in dependencies.load_order(&EARLY).iter().enumerate() {
        let from = uncompress(tools, &tree, path)?;
        let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::copy(&from, early.join(format!("{index:02}-{name}")))?;
    }
    // Links into trees of sources that are not here.
    for link in ["build", "source"] {
        let _ = fs::remove_file(tree.join(link));
    }
    // From 6.19 on the kernel's image lies beside the modules.
    let _ = fs::remove_file(tree.join("vmlinuz"));
    depmod(tools, &base, release)?;
    make_erofs(tools, &tree, &folder.join("modules.erofs"))?;
    remove_tree(&base)
}

/// Uncompresses a module in place; returns where it is then.
fn uncompress(tools: &Prefix, tree: &Path, path: &str) -> Result<PathBuf> {
    let plain = path.split_once(".ko").map_or(path, |(stem, _)| stem).to_owned() + ".ko";
    let (from, to) = (tree.join(path), tree.join(plain));
    if to.exists() {
        return Ok(to);
    }
    let mut unpacker = match path.rsplit('.').next() {
        Some("xz") => tools.command("xz")?,
        Some("zst") => tools.command("zstd")?,
        _ => Command::new("gzip"),
    };
    let output = unpacker.arg("-dc").arg(&from).output()?;
    if !output.status.success() || output.stdout.is_empty() {
        bail!("cannot decompress {}", from.display());
    }
    fs::write(&to, output.stdout)?;
    fs::remove_file(from)?;
    Ok(to)
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
        assert_eq!(parse("6.12").unwrap(), Choice::Debian(Wanted::Series(6, 12)));
        assert!(matches!(parse("/").unwrap(), Choice::Path(_)));
        let package = "linux-image-6.12.107+deb13-rt-amd64";
        assert_eq!(parse(package).unwrap(), Choice::Debian(Wanted::Package(package.into())));
        for wrong in ["no-such-kernel", "linux-image-6.1", "linux-image-$(x)-amd64"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("6.12") && error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn versions_from_banners() {
        let mut kernel = vec![0; 100];
        kernel.extend(b"Linux version 6.1.0-50-amd64 (d@l) (gcc-12 (Debian 12.2.0-14) 12.2.0) #1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-06-01)\n");
        kernel.resize(2000, 0);
        assert_eq!(banner(&kernel), Some("6.1.176-1"));
        assert_eq!(banner(&[0; 2000]), None);
        assert_eq!(banner(b"Linux version"), None);
    }
}
