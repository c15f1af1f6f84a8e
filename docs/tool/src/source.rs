//! What is read from source text: values of enumerations and constants, with their documentation.

use std::path::Path;

use anyhow::{Context, Result, bail};
use regex::Regex;

/// Lines of documentation as one line of a page: links to items become their names.
pub fn prose(lines: &[&str]) -> String {
    let text = lines.iter().map(|l| l.trim()).collect::<Vec<_>>().join(" ");
    let links = Regex::new(r"\[`(?:crate::|Self::)?([^`\]]+)`\](?:\([^)]*\))?").expect("a constant");
    let text = links.replace_all(text.trim(), "`$1`");
    // Stars outside of code would be emphasis.
    let escape = |(i, part): (usize, &str)| if i % 2 == 0 { part.replace('*', "\\*") } else { part.into() };
    text.split('`').enumerate().map(escape).collect::<Vec<_>>().join("`")
}

/// A line of a table.
pub fn row(cells: &[&str]) -> String {
    let mut line = String::from("|");
    for cell in cells {
        line.push(' ');
        line.push_str(&cell.replace('|', "\\|"));
        line.push_str(" |");
    }
    line.push('\n');
    line
}

/// The lines between the one that begins with `begin` and the next `}` of the same depth.
fn body(root: &Path, path: &str, begin: impl Fn(&str) -> String) -> Result<(String, String)> {
    let Some((module, name)) = path.split_once("::") else { bail!("{path} is not MODULE::NAME") };
    let file = root.join("specs/src").join(format!("{module}.rs"));
    let text = std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    let begin = begin(name);
    let start = text.find(&begin).with_context(|| format!("{} has no {begin:?}", file.display()))?;
    let rest = &text[start + begin.len()..];
    let end = rest.find("\n}").context("no end")?;
    let doc: Vec<&str> = text[..start]
        .lines()
        .rev()
        .skip_while(|l| l.starts_with("#["))
        .map_while(|l| l.strip_prefix("///"))
        .collect();
    let doc: Vec<&str> = doc.into_iter().rev().collect();
    Ok((prose(&doc), rest[..end].to_string()))
}

fn table(path: &str, doc: &str, body: &str, item: &Regex) -> Result<String> {
    let mut out = format!("**`{path}`**: {doc}\n\n| value | name | meaning |\n|---|---|---|\n");
    let mut doc: Vec<&str> = Vec::new();
    let mut rows = 0;
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text);
        } else if let Some(found) = item.captures(line) {
            out.push_str(&row(&[
                &found["value"].replace('_', ""),
                &format!("`{}`", &found["name"]),
                &prose(&doc),
            ]));
            doc.clear();
            rows += 1;
        }
    }
    if rows == 0 {
        bail!("{path} has no values");
    }
    Ok(out)
}

/// The values of the enumeration `MODULE::NAME` of `hca-spec`.
///
/// # Errors
/// There is no such enumeration.
pub fn enumeration(root: &Path, path: &str) -> Result<String> {
    let (doc, body) = body(root, path, |name| format!("pub enum {name} {{"))?;
    let item = Regex::new(r"^(?<name>\w+) = (?<value>\w+),").expect("a constant");
    table(path, &doc, &body, &item)
}

/// The constants of the inner module `MODULE::NAME` of `hca-spec`.
///
/// # Errors
/// There is no such module.
pub fn values(root: &Path, path: &str) -> Result<String> {
    let (doc, body) = body(root, path, |name| format!("pub mod {name} {{"))?;
    let item = Regex::new(r"^pub const (?<name>\w+): \w+ = (?<value>[^;]+);").expect("a constant");
    table(path, &doc, &body, &item)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_become_names() {
        assert_eq!(prose(&["QUERY_*, `a*b`"]), "QUERY_\\*, `a*b`");
        assert_eq!(
            prose(&[" See [`Eqe::TYPE`]", " and [`crate::mkc::Mkc`]."]),
            "See `Eqe::TYPE` and `mkc::Mkc`."
        );
    }

    #[test]
    fn values_of_the_interface() {
        let root = crate::root();
        let states = enumeration(&root, "qpc::QpState").unwrap();
        assert!(states.contains("| 7 | `SqDraining` | Send queue draining. |"), "{states}");
        assert!(
            states.starts_with("**`qpc::QpState`**: State of a queue pair, as in `Qpc::STATE`."),
            "{states}"
        );
        let changes = values(&root, "eqe::port_change").unwrap();
        assert!(changes.contains("| 9 | `CLIENT_REREGISTER` |"), "{changes}");
        assert!(enumeration(&root, "qpc::Nothing").is_err());
    }
}
