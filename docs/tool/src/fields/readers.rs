//! Which source files read which fields of the layouts: what a field is honoured by.
//!
//! A file reads a field that it names, but for what it gives to `set`, which is what answers are made of. Tests and the valid
//! inputs of commands (functions whose names end in `template`) read nothing; nor do the rooms that only look on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hca_spec::LAYOUTS;
use regex::Regex;

/// Folders of sources, from the root.
const SOURCES: [&str; 3] = ["specs/src", "firmware-cmds/src", "device/model/src"];
/// Folders within them that look on, and act upon nothing; and tests.
const ONLOOKERS: [&str; 4] = ["inspect", "checker", "personality", "tests"];

/// Structure and field, as the layouts name them.
type Field = (&'static str, &'static str);

/// Who reads each field, by file from the root.
pub(super) struct Readers(BTreeMap<Field, BTreeSet<String>>);

impl Readers {
    /// Reads the sources below that root.
    ///
    /// # Errors
    /// A file that can't be read.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let mut readers = BTreeMap::new();
        let scan = Scan::new();
        for folder in SOURCES {
            let mut files = Vec::new();
            sources(&root.join(folder), &mut files)?;
            for file in files {
                let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
                let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
                for field in scan.fields(&text) {
                    readers.entry(field).or_insert_with(BTreeSet::new).insert(name.clone());
                }
            }
        }
        Ok(Self(readers))
    }

    /// Who reads that field of that structure.
    pub(super) fn files(&self, structure: &str, field: &str) -> impl Iterator<Item = &str> {
        let found = self.0.iter().filter(move |((s, f), _)| *s == structure && *f == field);
        found.flat_map(|(_, files)| files.iter().map(String::as_str))
    }
}

/// Adds the files of a folder that are no tests and don't only look on.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut found = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.sort();
    for path in found {
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() && !ONLOOKERS.contains(&name.as_str()) {
            sources(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs")
            && !matches!(&*name, "tests" | "testing" | "layout")
        {
            files.push(path);
        }
    }
    Ok(())
}

/// What is looked for in a text.
struct Scan {
    known: BTreeSet<Field>,
    template: Regex,
    block: Regex,
    alias: Regex,
    list: Regex,
    word: Regex,
    set: Regex,
    name: Regex,
}

impl Scan {
    fn new() -> Self {
        let regex = |text: &str| Regex::new(text).expect("a constant");
        let layouts = LAYOUTS.iter().flat_map(|(_, layouts)| *layouts);
        Self {
            known: layouts.flat_map(|layout| layout.fields.iter().map(|f| (layout.name, f.name))).collect(),
            template: regex(r"(?ms)^(?:pub(?:\([a-z]+\))? )?fn \w*template\b.*?^}$"),
            block: regex(r"(?ms)^impl (?<of>\w+) \{.*?^}$"),
            alias: regex(r"\b(?<of>[A-Z]\w*) as (?<other>[A-Z]\w*)\b"),
            list: regex(r"\b\w+! \{\s*(?<of>[A-Z]\w*),(?<body>[^}]*)\}"),
            word: regex(r"\b[A-Z][A-Z0-9_]*\b"),
            set: regex(r"\.set\(\s*(?:\w+::)+\w+"),
            name: regex(r"\b(?<of>[A-Z]\w*)::(?<field>[A-Z][A-Z0-9_]*)\b"),
        }
    }

    /// The fields that a source text reads.
    fn fields(&self, text: &str) -> BTreeSet<Field> {
        // Tests in a file of their own are declared anywhere.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let code: String =
            code.lines().filter(|l| !l.trim_start().starts_with("//")).flat_map(|l| [l, "\n"]).collect();
        let code = self.template.replace_all(&code, "");
        let mut code = code.into_owned();
        let aliases: BTreeMap<String, String> = self
            .alias
            .captures_iter(&code)
            .map(|found| (found["other"].to_owned(), found["of"].to_owned()))
            .collect();
        for (other, of) in &aliases {
            code = code
                .replace(&format!(" {other}::"), &format!(" {of}::"))
                .replace(&format!("({other}::"), &format!("({of}::"));
        }
        let mut found = self.named(&code, None);
        // Lists that a macro makes begin with the structure.
        for list in self.list.captures_iter(&code) {
            let fields = self.word.find_iter(&list["body"]);
            found.extend(fields.filter_map(|field| self.field(&list["of"], field.as_str())));
        }
        for block in self.block.captures_iter(&code) {
            found.extend(self.named(&block[0], Some(&block["of"])));
        }
        found
    }

    /// Fields by their names in code; `own` is what `Self` means.
    fn named(&self, code: &str, own: Option<&str>) -> BTreeSet<Field> {
        let code = self.set.replace_all(code, "");
        let names = self.name.captures_iter(&code).filter_map(|found| {
            let of = if &found["of"] == "Self" { own? } else { found.name("of")?.as_str() };
            let field = found.name("field")?.as_str();
            self.field(of, field)
        });
        names.collect()
    }

    fn field(&self, of: &str, field: &str) -> Option<Field> {
        self.known.iter().find(|known| **known == (of, field)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naming_is_reading_unless_it_is_set() {
        let text = "#[cfg(test)]\nmod tests;\n
            fn act(c: &Cqc) { if c.get(Cqc::LOG_CQ_SIZE) > 3 { out.set(\n Cqc::STATUS, c.get(Cqc::OI)); } }
            // Cqc::CC\n\
            pub(super) fn make_template() -> Vec<u8> {\n    Cqc::ST\n}
            use AddressPath as P; const ALL: [Field<Qpc>; 1] = [Qpc::PD]; f(P::RLID); fields! { Eqc, x: 1 OI ANY, }\n\
            impl Mkc {\n    fn rights(&self) { self.get(Self::LR) }\n}\n#[cfg(test)]\nmod tests { fn t() { Cqc::C_EQN } }";
        let seen: Vec<Field> = Scan::new().fields(text).into_iter().collect();
        assert_eq!(
            seen,
            [
                ("AddressPath", "RLID"),
                ("Cqc", "LOG_CQ_SIZE"),
                ("Cqc", "OI"),
                ("Eqc", "OI"),
                ("Mkc", "LR"),
                ("Qpc", "PD")
            ]
        );
    }
}
