//! What drivers and programs used of the interface while a suite ran in guests: coverage of all its boots, in one file for each kernel.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use hca_trace::coverage::Coverage;
use hca_vm::run::Run;

/// Where the servers of the boots of a suite write, and how many there were.
#[derive(Debug)]
struct Parts {
    folder: PathBuf,
    boots: usize,
}

impl Parts {
    fn part(&self, boot: usize) -> PathBuf {
        self.folder.join(format!("boot-{boot}.json"))
    }

    /// All of them as one file. Servers that did not come to their end have written none. Returns how many have.
    fn join(&self, file: &Path) -> Result<usize> {
        let (mut all, mut found) = (Coverage::default(), 0);
        for part in (0..self.boots).map(|boot| self.part(boot)) {
            let Ok(text) = std::fs::read_to_string(&part) else { continue };
            all.add(&Coverage::parse(&text).with_context(|| part.display().to_string())?);
            found += 1;
        }
        if found > 0 {
            std::fs::write(file, format!("{:#}\n", all.json()))
                .with_context(|| file.display().to_string())?;
        }
        Ok(found)
    }
}

/// Those of the suite that runs.
static PARTS: Mutex<Option<Parts>> = Mutex::new(None);

/// The run, whose server collects if that was asked for. It must not put its hosts into processes of their own.
pub fn covered(run: Run) -> Run {
    let mut parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(parts) = &mut *parts else { return run };
    let part = parts.part(parts.boots);
    parts.boots += 1;
    run.serve(format!("--coverage={}", part.display()))
}

/// From now on runs collect, for the file of that name (without its ending) in the folder, which is made.
///
/// # Errors
/// The folder can't be made.
pub fn begin(folder: &Path, name: &str) -> Result<()> {
    let folder = std::path::absolute(folder)?.join(format!("{name}.boots"));
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    *PARTS.lock().unwrap_or_else(PoisonError::into_inner) = Some(Parts { folder, boots: 0 });
    Ok(())
}

/// What was collected since [`begin`], in words: the file, or that nothing was.
///
/// # Errors
/// A part is no coverage, or the file can't be written.
pub fn end() -> Result<String> {
    let parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(parts) = parts else { return Ok("nothing was collected".into()) };
    let file = parts.folder.with_extension("json");
    let found = parts.join(&file)?;
    std::fs::remove_dir_all(&parts.folder).with_context(|| parts.folder.display().to_string())?;
    Ok(match found {
        0 => "no coverage: no server of its own that came to its end".into(),
        _ => format!("coverage of {found} of {} boots in {}", parts.boots, file.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two boots that used the same and something else, and one whose server did not come to its end.
    #[test]
    fn boots_are_added_up() {
        let folder = std::env::temp_dir().join(format!("softhca-covered-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let parts = Parts { folder: folder.clone(), boots: 3 };
        let write = |boot, opcodes: &[(&str, u64)], first: u64| {
            let mut coverage = Coverage::default();
            let used = coverage.adapters.entry("a/hca0".into()).or_default();
            used.opcodes = opcodes.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
            used.commands.entry("ENABLE_HCA".into()).or_default().count = 1;
            used.commands.entry("ENABLE_HCA".into()).or_default().first_ps = first;
            std::fs::write(parts.part(boot), coverage.json().to_string()).unwrap();
        };
        write(0, &[("SEND", 2)], 70);
        write(2, &[("SEND", 3), ("NOP", 1)], 50);
        let file = folder.join("all.json");
        assert_eq!(parts.join(&file).unwrap(), 2);
        let all = Coverage::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let used = &all.adapters["a/hca0"];
        assert_eq!(used.opcodes.get("SEND"), Some(&5));
        assert_eq!(used.opcodes.get("NOP"), Some(&1));
        assert_eq!((used.commands["ENABLE_HCA"].count, used.commands["ENABLE_HCA"].first_ps), (2, 50));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
