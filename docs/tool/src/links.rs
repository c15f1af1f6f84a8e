//! Relative links of pages: does the file exist, does it have the heading.

use std::path::{Path, PathBuf};

use anyhow::Result;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::pages;

/// Targets of a page's links and pictures.
pub fn targets(text: &str) -> Vec<String> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
        .filter_map(|event| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some(dest_url.to_string())
            }
            _ => None,
        })
        .collect()
}

/// Whether a target lies on another machine.
pub fn is_remote(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// The anchors of a page's headings, as mdBook makes them.
pub fn anchors(text: &str) -> Vec<String> {
    let (mut anchors, mut heading) = (Vec::new(), None::<String>);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => anchors.extend(heading.take().map(|text| anchor(&text))),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c),
            c if c.is_whitespace() => Some('-'),
            _ => None,
        })
        .collect()
}

/// Links of all pages that lead nowhere, a line for each.
///
/// # Errors
/// A page that can't be read.
pub fn broken(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for page in pages(root)? {
        let text = std::fs::read_to_string(&page)?;
        let name = page.strip_prefix(root).unwrap_or(&page).display().to_string();
        for target in targets(&text) {
            if let Some(why) = why_broken(&page, &text, &target)? {
                found.push(format!("{name}: {target}: {why}"));
            }
        }
    }
    Ok(found)
}

fn why_broken(page: &Path, text: &str, target: &str) -> Result<Option<&'static str>> {
    if is_remote(target) {
        return Ok(None);
    }
    let (file, heading) = match target.split_once('#') {
        Some((file, heading)) => (file, Some(heading)),
        None => (target, None),
    };
    let there = if file.is_empty() {
        text.to_string()
    } else {
        let path: PathBuf = page.parent().unwrap_or(page).join(file);
        if !path.exists() {
            return Ok(Some("no such file"));
        }
        if heading.is_none() {
            return Ok(None);
        }
        std::fs::read_to_string(&path)?
    };
    let known = heading.is_none_or(|h| anchors(&there).iter().any(|a| a == h));
    Ok((!known).then_some("no such heading"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_links_and_headings() {
        let text = "# A `b`, and c\n\n[x](y.md#z) ![p](q.svg)\n\n`[no](link)`\n";
        assert_eq!(targets(text), ["y.md#z", "q.svg"]);
        assert_eq!(anchors(text), ["a-b-and-c"]);
        let page = crate::root().join("README.md");
        assert_eq!(why_broken(&page, text, "#a-b-and-c").unwrap(), None);
        assert_eq!(why_broken(&page, text, "#other").unwrap(), Some("no such heading"));
        assert_eq!(why_broken(&page, text, "no-such.md").unwrap(), Some("no such file"));
        assert_eq!(why_broken(&page, text, "Cargo.toml").unwrap(), None);
    }
}
