//! The table of rules.

use hca_spec::rules::{RULES, Then};

use crate::source::row;

/// A row for each rule, with a link to the page that explains it.
pub fn table() -> String {
    let mut out = String::from("| name | rule | hardware | explained in |\n|---|---|---|---|\n");
    for rule in RULES {
        let (page, _) = rule.page.split_once(".md").unwrap_or((rule.page, ""));
        let then = match rule.then {
            Then::Nothing => "is silent",
            Then::Ignores => "ignores it",
            Then::Answers => "answers",
        };
        out.push_str(&row(&[
            &format!("`{}`", rule.name),
            rule.says,
            then,
            &format!("[{page}]({})", rule.page),
        ]));
    }
    out
}
