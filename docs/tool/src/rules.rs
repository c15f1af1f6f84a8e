//! The table of rules that nothing enforces.

use hca_spec::rules::RULES;

use crate::source::row;

/// A row for each rule, with a link to the page that explains it.
pub fn table() -> String {
    let mut out = String::from("| name | rule | explained in |\n|---|---|---|\n");
    for rule in RULES {
        let (page, _) = rule.page.split_once(".md").unwrap_or((rule.page, ""));
        out.push_str(&row(&[&format!("`{}`", rule.name), rule.says, &format!("[{page}]({})", rule.page)]));
    }
    out
}
