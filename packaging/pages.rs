//! Manual pages and completions of a command line, made when a package is built. Part of the examples `softhca-pages` and `hca-vm-pages`.

use std::error::Error;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// Writes them into `man` and `completions` below a folder.
///
/// # Errors
/// It can't be written to.
pub(crate) fn write(command: Command, folder: &Path) -> Result<(), Box<dyn Error>> {
    // `help COMMAND` shows what `COMMAND --help` does: it needs no pages.
    let mut command = command.disable_help_subcommand(true);
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    std::fs::create_dir_all(&man)?;
    std::fs::create_dir_all(&completions)?;
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, &name, &completions)?;
    }
    clap_mangen::generate_to(command, &man)?;
    Ok(())
}

/// Writes them to a folder of a test, and looks at them: a page for the program and each command that it shows, and the names of these commands in
/// the completions of every shell.
#[cfg(test)]
pub(crate) fn check(command: &Command) {
    fn shown(command: &Command) -> impl Iterator<Item = &Command> {
        command.get_subcommands().filter(|below| !below.is_hide_set())
    }
    fn pages(name: &str, command: &Command, all: &mut Vec<String>) {
        all.push(format!("{name}.1"));
        shown(command).for_each(|below| pages(&format!("{name}-{}", below.get_name()), below, all));
    }
    let name = command.get_name();
    let folder = std::env::temp_dir().join(format!("{name}-pages-{}", std::process::id()));
    write(command.clone(), &folder).expect("they are written");
    let names = |of: &str| {
        let files = std::fs::read_dir(folder.join(of)).expect("a folder");
        let names = files.map(|file| file.expect("a file").file_name().into_string().expect("its name"));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let text = |of: &str, file: &str| std::fs::read_to_string(folder.join(of).join(file)).expect("its text");
    let mut expected = Vec::new();
    pages(name, command, &mut expected);
    expected.sort();
    assert!(expected.len() > 5, "{expected:?}");
    assert_eq!(names("man"), expected);
    for page in &expected {
        let text = text("man", page);
        assert!(text.contains("\n.TH ") && text.contains("\n.SH SYNOPSIS"), "{page}: {text}");
    }
    let mut shells = [format!("{name}.bash"), format!("{name}.fish"), format!("_{name}")];
    shells.sort();
    assert_eq!(names("completions"), shells);
    for shell in &shells {
        let text = text("completions", shell);
        for below in shown(command) {
            assert!(text.contains(below.get_name()), "{shell}: {}", below.get_name());
        }
    }
    std::fs::remove_dir_all(folder).expect("it is ours");
}
