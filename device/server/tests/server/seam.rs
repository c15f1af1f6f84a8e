//! The server knows the protocol of a front end in that front end's folder alone.

use std::path::{Path, PathBuf};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn only_its_folder_names_vfio_user() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let (inside, outside): (Vec<_>, Vec<_>) =
        files.iter().partition(|path| path.starts_with(root.join("vfio_user")));
    assert!(inside.len() > 5 && outside.len() > 20, "{files:?}");
    for path in outside {
        // The crate's page says what there is.
        if path.file_name().is_some_and(|name| name == "lib.rs") {
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().enumerate().filter(|(_, line)| line.to_lowercase().contains("vfio"));
        let found: Vec<_> = lines.map(|(i, line)| format!("{}: {line}", i + 1)).collect();
        assert!(found.is_empty(), "{}: {found:#?}", path.display());
    }
}
