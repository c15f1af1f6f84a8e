//! The Debian package: installed in a guest that runs systemd, served by, looked at, and purged.
//!
//! It is put together here by `dpkg-deb`, from the table that `cargo deb` has (`package.metadata.deb` of `device/cli/Cargo.toml`) and with
//! the maintainer scripts of `packaging/debian`, of programs as optimised as we are. systemd is process 1 of namespaces of its own
//! in the guest (`tests/guest/service.sh`).

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use hca_vm::built::by_cargo;
use toml::{Table, Value};

use super::guest::{Command, run_in};
use super::{Case, Outcome};
use crate::guests::file;
use crate::suites::adversary::stage::Scratch;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What is needed on this machine.
const TOOL: &str = "dpkg-deb";
/// The one of the service in the guest.
const SERVICE: &str = "guest/service.sh";
/// What the package is served by.
const PACKAGES: [&str; 1] = ["systemd"];
/// Programs and libraries that ours are linked with, which `cargo deb` finds by `dpkg-shlibdeps`.
const DEPENDS: &str = "libc6, libgcc-s1";

/// In a guest with that kernel.
pub fn cases(kernel: &str) -> Vec<Case> {
    if Process::new(TOOL).arg("--version").output().is_err() {
        return vec![Case::new("the package", Outcome::Skipped, 0.0, format!("there is no {TOOL} here"))];
    }
    let made = Scratch::new().and_then(|folder| {
        let package = folder.path().join("softhca.deb");
        build(&package)?;
        let client = built("hca-driver", "pingpong", true, "vfio-user")?;
        Ok((folder, package, client))
    });
    let (_folder, package, client) = match made {
        Ok(made) => made,
        Err(why) => return vec![Case::check("the package is built", why.to_string())],
    };
    let (package, client) = (package.display().to_string(), client.display().to_string());
    run_in(&[SERVICE, package.as_str(), client.as_str()], &PACKAGES, "", "loopback", kernel, &commands())
}

fn commands() -> Vec<Command> {
    let case = |name: &str, script: &str| Command::alone(name, format!(". /root/service.sh; {script}"));
    vec![
        case("systemd is process 1", "begin_systemd && inside systemctl --version"),
        case(
            "dpkg installs it",
            "files >/tmp/before; getent passwd >/tmp/users; inside dpkg -i /root/softhca.deb && [ -z \"$(dpkg --audit)\" ]",
        ),
        case(
            "its user, its folder, its pages",
            "getent passwd softhca && [ \"$(stat -c '%a %U %G' /etc/softhca)\" = '750 root softhca' ] &&
            ls /usr/share/man/man1/softhca-serve.1.gz /usr/share/bash-completion/completions/hca-vm &&
            softhca --version && hca-vm --version",
        ),
        case(
            "the service starts",
            "cp /usr/share/doc/softhca/examples/pair.toml /etc/softhca/ &&
            echo 'SOFTHCA_OPTIONS=--metrics 127.0.0.1:9108' >/etc/softhca/pair.env &&
            inside systemctl enable --now softhca@pair; served",
        ),
        case(
            "it has no rights",
            "status() { grep -Eq \"^$1:[[:space:]]*$2\\$\" /proc/$(inside_pid)/status; }
            status Seccomp 2 && status NoNewPrivs 1 && status CapEff 0000000000000000 && status CapBnd 0000000000000000 &&
            [ \"$(stat -c %U /proc/$(inside_pid))\" = softhca ]",
        ),
        case("a driver attaches to both adapters", "attach"),
        case(
            "metrics are scraped",
            "scrape >/tmp/metrics; cat /tmp/metrics | head -n 20; grep -q '200 OK' /tmp/metrics &&
            grep -q '^softhca_.*a/hca0.* [1-9]' /tmp/metrics",
        ),
        case(
            "killed, it is there again",
            "kill -9 $(inside_pid); until [ \"$(inside systemctl show -P NRestarts softhca@pair)\" = 1 ]; do sleep 0.2; done
            served && attach",
        ),
        case(
            "purged while it serves, nothing is left",
            "inside dpkg --purge softhca && ! inside systemctl is-active softhca@pair && ! pgrep -x softhca &&
            files >/tmp/after && diff /tmp/before /tmp/after && getent passwd | diff /tmp/users -",
        ),
    ]
}

/// A program or an example of that crate with those features, as optimised as we are, brought up to date.
fn built(package: &str, name: &str, example: bool, features: &str) -> Result<PathBuf> {
    let kind = if example { "--example" } else { "--bin" };
    let mut arguments = vec!["build", "--locked", "-p", package, "--features", features, kind, name];
    if !cfg!(debug_assertions) {
        arguments.push("--release");
    }
    Ok(by_cargo(&file(".."), &arguments, name, &format!("building {name}"))?)
}

/// Builds the package.
fn build(package: &Path) -> Result<()> {
    let home = file("../device/cli");
    let manifest: Table = fs::read_to_string(home.join("Cargo.toml"))?.parse()?;
    let deb = manifest
        .get("package")
        .and_then(|of| of.get("metadata")?.get("deb"))
        .ok_or("no package.metadata.deb")?;
    let word = |key: &str| deb.get(key).and_then(Value::as_str).ok_or(format!("no {key}"));
    let pages = package.with_file_name("pages");
    for (crate_name, example) in [("softhca", "softhca-pages"), ("hca-vm", "hca-vm-pages")] {
        done(Process::new(built(crate_name, example, true, "")?).arg(&pages))?;
    }
    let manual = fs::read_dir(pages.join("man"))?.collect::<std::io::Result<Vec<_>>>()?;
    done(Process::new("gzip").arg("-9n").args(manual.iter().map(fs::DirEntry::path)))?;
    let tree = package.with_file_name("tree");
    for asset in deb.get("assets").and_then(Value::as_array).ok_or("no assets")? {
        let words: Vec<&str> = asset.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let [from, to, mode] = words[..] else { return Err(format!("{asset} is no asset").into()) };
        let sources = match (from.strip_prefix("target/release/"), from.strip_prefix("../../target/pages/")) {
            (Some(program), _) => vec![stripped(&built(program, program, false, "")?, package)?],
            (_, Some(page)) => matching(&pages.join(page))?,
            _ => matching(&home.join(from))?,
        };
        for source in sources {
            let name = source.file_name().ok_or("a file without a name")?;
            let to = if to.ends_with('/') { tree.join(to).join(name) } else { tree.join(to) };
            fs::create_dir_all(to.parent().ok_or("no folder")?)?;
            fs::copy(&source, &to)?;
            fs::set_permissions(&to, PermissionsExt::from_mode(u32::from_str_radix(mode, 8)?))?;
        }
    }
    let control = tree.join("DEBIAN");
    fs::create_dir_all(&control)?;
    for script in ["postinst", "prerm", "postrm"] {
        let to = control.join(script);
        fs::copy(home.join(word("maintainer-scripts")?).join(script), &to)?;
        fs::set_permissions(&to, PermissionsExt::from_mode(0o755))?;
    }
    let text = format!(
        "Package: softhca\nVersion: {}\nArchitecture: amd64\nSection: {}\nPriority: {}\nMaintainer: {}\n\
         Depends: {DEPENDS}\nDescription: a test\n",
        env!("CARGO_PKG_VERSION"),
        word("section")?,
        word("priority")?,
        word("maintainer")?,
    );
    fs::write(control.join("control"), text)?;
    // An emulated processor would take long to uncompress it.
    done(Process::new(TOOL).args(["--root-owner-group", "-Znone", "--build"]).arg(&tree).arg(package))
}

fn done(command: &mut Process) -> Result<()> {
    let output = command.output().map_err(|why| format!("{command:?}: {why}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// A program without its symbols, if there is `strip`.
fn stripped(program: &Path, package: &Path) -> Result<PathBuf> {
    let to = package.with_file_name(program.file_name().ok_or("a file without a name")?);
    if done(Process::new("strip").arg("-o").arg(&to).arg(program)).is_err() {
        fs::copy(program, &to)?;
    }
    Ok(to)
}

/// The files that a path with `*` in its last part names.
fn matching(pattern: &Path) -> Result<Vec<PathBuf>> {
    let name = pattern.file_name().and_then(|name| name.to_str()).ok_or("a pattern without a name")?;
    let Some((begin, end)) = name.split_once('*') else { return Ok(vec![pattern.to_path_buf()]) };
    let folder = pattern.parent().ok_or("a pattern without a folder")?;
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.len() >= begin.len() + end.len()
            && name.starts_with(begin)
            && name.ends_with(end)
            && path.is_file()
        {
            found.push(path);
        }
    }
    if found.is_empty() {
        return Err(format!("nothing is named {}", pattern.display()).into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let names = |pattern: &str| -> Vec<String> {
            let mut found: Vec<_> = matching(&file(pattern)).unwrap();
            found.sort();
            found.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names("../LICENSE-*"), ["LICENSE-APACHE", "LICENSE-MIT"]);
        assert_eq!(names("../SECURITY.md"), ["SECURITY.md"]);
        assert!(matching(&file("../no-such-*")).is_err());
    }
}
