//! The book: `docs`, built by mdBook.
//!
//! Pages that live beside the code are symbolic links in `docs/src`, so that their links are right where they live.
//! For the book they are rewritten: to the chapter that the target is in, or, where it is none, to the target's name.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use mdbook_driver::MDBook;
use mdbook_driver::book::{Book, BookItem};
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag};
use regex::Regex;

use crate::links::is_remote;

/// Builds the book; returns the folder that it is in.
///
/// # Errors
/// A page that is not there, or what mdBook says.
pub fn build(root: &Path) -> Result<PathBuf> {
    let mut book = MDBook::load(root.join("docs"))?;
    let source = book.source_dir();
    turn_links(root, &source, &mut book.book)?;
    book.build()?;
    let built = book.build_dir_for("html").canonicalize()?;
    match dead_links(&built)? {
        dead if dead.is_empty() => Ok(built),
        dead => bail!("links of the book that lead nowhere:\n{}", dead.join("\n")),
    }
}

/// Links within a built book whose page, picture or heading is not there, a line for each.
fn dead_links(built: &Path) -> Result<Vec<String>> {
    let link = Regex::new(r#"(?:href|src)="([^"]*)""#)?;
    let mut dead = Vec::new();
    for page in crate::files(built, "html")? {
        let text = std::fs::read_to_string(&page)?;
        for target in link.captures_iter(&text).map(|found| found[1].to_string()) {
            if is_remote(&target) || target.starts_with("data:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { page.clone() } else { page.parent().unwrap_or(built).join(file) };
            let found = path.exists()
                && (heading.is_empty()
                    || std::fs::read_to_string(&path)?.contains(&format!("id=\"{heading}\"")));
            if !found {
                dead.push(format!("{}: {target}", page.strip_prefix(built).unwrap_or(&page).display()));
            }
        }
    }
    Ok(dead)
}

/// Pages of `docs/src` that the summary does not list, a line for each.
///
/// # Errors
/// A folder that can't be read.
pub fn unlisted(root: &Path) -> Result<Vec<String>> {
    let source = root.join("docs/src");
    let summary = source.join("SUMMARY.md");
    let text = std::fs::read_to_string(&summary).with_context(|| format!("{}", summary.display()))?;
    let listed = crate::links::targets(&text);
    let mut missing = Vec::new();
    for path in places(&source)?.into_values() {
        let name = path.to_string_lossy().into_owned();
        if name.ends_with(".md") && name != "SUMMARY.md" && !listed.contains(&name) {
            missing.push(format!("docs/src/{name}: not in docs/src/SUMMARY.md"));
        }
    }
    missing.sort();
    Ok(missing)
}

/// Pages and pictures of the book: where each comes from, and where it lies in the book. Symbolic links are followed.
fn places(source: &Path) -> Result<HashMap<PathBuf, PathBuf>> {
    let mut places = HashMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(source.join(&folder))? {
            let path = folder.join(entry?.file_name());
            let real = source.join(&path).canonicalize().with_context(|| format!("{}", path.display()))?;
            if real.is_dir() {
                folders.push(path);
            } else {
                places.insert(real, path);
            }
        }
    }
    Ok(places)
}

fn turn_links(root: &Path, source: &Path, book: &mut Book) -> Result<()> {
    let places = places(source)?;
    let mut result = Ok(());
    book.for_each_mut(|item| {
        if let BookItem::Chapter(chapter) = item
            && let Some(path) = &chapter.path
        {
            match turned(root, source, &places, path, &chapter.content) {
                Ok(text) => chapter.content = text,
                Err(error) => result = Err(error),
            }
        }
    });
    result
}

/// The text of the chapter at `path` with its relative links turned.
fn turned(
    root: &Path,
    source: &Path,
    places: &HashMap<PathBuf, PathBuf>,
    path: &Path,
    text: &str,
) -> Result<String> {
    let real = source.join(path).canonicalize()?;
    let (folder, here) = (real.parent().unwrap_or(&real), path.parent().unwrap_or(Path::new("")));
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let (dest, picture): (CowStr<'_>, bool) = match event {
            Event::Start(Tag::Link { dest_url, .. }) => (dest_url, false),
            Event::Start(Tag::Image { dest_url, .. }) => (dest_url, true),
            _ => continue,
        };
        if is_remote(&dest) || dest.starts_with('#') || range.start < done {
            continue;
        }
        let (file, heading) = dest.split_once('#').map_or((&*dest, None), |(f, h)| (f, Some(h)));
        let target =
            folder.join(file).canonicalize().with_context(|| format!("{}: {dest}", path.display()))?;
        let whole = &text[range.clone()];
        let new = if let Some(place) = places.get(&target) {
            let heading = heading.map(|h| format!("#{h}")).unwrap_or_default();
            whole.replace(&format!("({dest})"), &format!("({}{heading})", relative(here, place).display()))
        } else if picture {
            bail!("{}: the picture {dest} has no link in {}", path.display(), source.display());
        } else {
            // A file of the repository: its name says more than a link that leads nowhere.
            let name = target.strip_prefix(root).unwrap_or(&target).display().to_string();
            let shown = whole.trim_start_matches('[').split("](").next().unwrap_or_default();
            if shown.trim_matches('`') == name { format!("`{name}`") } else { format!("{shown} (`{name}`)") }
        };
        out.push_str(&text[done..range.start]);
        out.push_str(&new);
        done = range.end;
    }
    out.push_str(&text[done..]);
    Ok(out)
}

/// The way from folder `from` to file `to`, both within the book.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let up = from.components().filter(|c| matches!(c, Component::Normal(_))).map(|_| "..");
    up.collect::<PathBuf>().join(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_found() {
        let dir = std::env::temp_dir().join(format!("hca-docs-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let page = r##"<h1 id="a"></h1><a href="#a"></a><a href="#b"></a><img src="c.svg"><a href="https://d"></a>"##;
        std::fs::write(dir.join("p.html"), page).unwrap();
        let dead = dead_links(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(dead.unwrap(), ["p.html: #b", "p.html: c.svg"]);
    }

    #[test]
    fn links_are_turned() {
        let root = crate::root();
        let source = root.join("docs/src");
        let page = root.join("specs/doc/qpc.md");
        let places = HashMap::from([
            (page.clone(), PathBuf::from("interface/qpc.md")),
            (source.join("timing.md"), PathBuf::from("timing.md")),
        ]);
        let turn = |path: &str, text: &str| turned(&root, &source, &places, Path::new(path), text).unwrap();
        assert_eq!(turn("timing.md", "[q](../../specs/doc/qpc.md#traps)."), "[q](interface/qpc.md#traps).");
        assert_eq!(turn("interface/qpc.md", "[t](../../docs/src/timing.md)"), "[t](../timing.md)");
        assert_eq!(
            turn("interface/qpc.md", "see [`qpc.rs`](../src/qpc.rs)"),
            "see `qpc.rs` (`specs/src/qpc.rs`)"
        );
        assert_eq!(turn("timing.md", "[x](https://example.com)"), "[x](https://example.com)");
    }
}
