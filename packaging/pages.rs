//! Manual pages and completions of a command line, made when a package is built. Part of the examples `softhca-pages` and `hca-vm-pages`.

use std::error::Error;
use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;

/// Writes them into `man` and `completions` below the folder that the command line names.
///
/// # Errors
/// There is no folder, or it can't be written to.
pub(crate) fn write(command: Command) -> Result<(), Box<dyn Error>> {
    // `help COMMAND` shows what `COMMAND --help` does: it needs no pages.
    let mut command = command.disable_help_subcommand(true);
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("the folder to write to is needed")?);
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
