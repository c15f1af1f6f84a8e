//! The modules of a crate: their files, what each declares, and what it names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::{Attribute, Item, Meta, UseTree};

use crate::mentions::{self, Mention};

/// Sources of a crate: text by the path from its `src`, with `/`.
pub(crate) struct Sources(BTreeMap<String, String>);

impl Sources {
    /// Every `.rs` file below a folder.
    pub(crate) fn read(folder: &Path) -> std::io::Result<Self> {
        let mut files = BTreeMap::new();
        let mut open = vec![folder.to_path_buf()];
        while let Some(next) = open.pop() {
            for entry in std::fs::read_dir(next)? {
                let path = entry?.path();
                if path.is_dir() {
                    open.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
                    files.insert(name, std::fs::read_to_string(&path)?);
                }
            }
        }
        Ok(Self(files))
    }

    /// Path and text of each below a folder.
    pub(crate) fn below(&self, folder: &str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        all.filter(move |(path, _)| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
    }

    /// Made-up ones.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect())
    }
}

/// A module, a file's or one in the middle of a file.
pub(crate) struct Module {
    /// Its file, from `src`.
    pub(crate) file: String,
    /// The path of the file's own module, such as `port::link`; empty for `lib.rs`.
    pub(crate) path: String,
    /// The module around it; of the root: itself.
    pub(crate) parent: usize,
    /// Modules in it.
    pub(crate) children: BTreeMap<String, usize>,
    /// What `use` calls by a name here: the path as written.
    pub(crate) uses: BTreeMap<String, Vec<String>>,
    /// Modules of which everything is used.
    pub(crate) globs: Vec<Vec<String>>,
    /// Types, functions and the like that are declared here.
    pub(crate) items: BTreeSet<String>,
    /// Paths in its code.
    pub(crate) mentions: Vec<Mention>,
    /// Identifiers in its code, with the line of the first.
    pub(crate) words: BTreeMap<String, usize>,
}

/// A parsed crate. The first module is the root.
pub(crate) struct Crate {
    /// All that are compiled without `cfg(test)`.
    pub(crate) modules: Vec<Module>,
}

impl Crate {
    /// Parses `lib.rs` and every file that it leads to.
    ///
    /// # Errors
    /// What does not parse, or a module without a file.
    pub(crate) fn parse(sources: &Sources) -> Result<Self, String> {
        let mut parsed = Self { modules: Vec::new() };
        let place = Place { file: "lib.rs", path: "", folder: "", parent: 0 };
        parsed.file(sources, &place)?;
        Ok(parsed)
    }

    /// The module paths of all files but `lib.rs`.
    pub(crate) fn files(&self) -> BTreeSet<&str> {
        self.modules.iter().map(|module| module.path.as_str()).filter(|path| !path.is_empty()).collect()
    }

    fn file(&mut self, sources: &Sources, place: &Place<'_>) -> Result<usize, String> {
        let text = sources.0.get(place.file).ok_or_else(|| format!("{}: no such file", place.file))?;
        let file = syn::parse_file(text)
            .map_err(|error| format!("{}:{}: {error}", place.file, error.span().start().line))?;
        self.module(sources, place, &file.items)
    }

    fn module(&mut self, sources: &Sources, place: &Place<'_>, items: &[Item]) -> Result<usize, String> {
        let number = self.modules.len();
        self.modules.push(Module {
            file: place.file.to_owned(),
            path: place.path.to_owned(),
            parent: place.parent,
            children: BTreeMap::new(),
            uses: BTreeMap::new(),
            globs: Vec::new(),
            items: BTreeSet::new(),
            mentions: Vec::new(),
            words: BTreeMap::new(),
        });
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            if let Item::Mod(inner) = item {
                let name = inner.ident.to_string();
                let folder = format!("{}{name}/", place.folder);
                let child = if let Some((_, items)) = &inner.content {
                    self.module(sources, &Place { folder: &folder, parent: number, ..*place }, items)?
                } else {
                    let files = [format!("{}{name}.rs", place.folder), format!("{folder}mod.rs")];
                    let file = files.iter().find(|file| sources.0.contains_key(*file));
                    let file = file.ok_or_else(|| format!("{}: no file of module {name}", place.file))?;
                    let path = folder.trim_end_matches('/').replace('/', "::");
                    self.file(sources, &Place { file, path: &path, folder: &folder, parent: number })?
                };
                self.modules[number].children.insert(name, child);
                continue;
            }
            let module = &mut self.modules[number];
            if let Item::Use(of) = item {
                if of.leading_colon.is_none() {
                    used(&of.tree, &mut Vec::new(), module);
                }
            } else if let Some(name) = declared(item) {
                module.items.insert(name);
            }
            let found = mentions::of(item);
            module.mentions.extend(found.mentions);
            for (word, line) in found.words {
                module.words.entry(word).or_insert(line);
            }
        }
        Ok(number)
    }
}

/// Where a module stands.
struct Place<'a> {
    file: &'a str,
    path: &'a str,
    /// Where the files of its modules are, with `/` at the end unless that is `src`.
    folder: &'a str,
    parent: usize,
}

/// Notes what a `use` brings into its module.
fn used(tree: &UseTree, path: &mut Vec<String>, module: &mut Module) {
    match tree {
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            used(&step.tree, path, module);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| used(tree, path, module)),
        UseTree::Glob(_) => module.globs.push(path.clone()),
        UseTree::Name(name) => name_used(&name.ident.to_string(), None, path, module),
        UseTree::Rename(name) => {
            name_used(&name.ident.to_string(), Some(name.rename.to_string()), path, module);
        }
    }
}

fn name_used(name: &str, rename: Option<String>, path: &[String], module: &mut Module) {
    let mut path = path.to_vec();
    if name != "self" {
        path.push(name.to_owned());
    }
    if let Some(name) = rename.or_else(|| path.last().cloned()) {
        module.uses.insert(name, path);
    }
}

/// The name that an item gives to its module.
fn declared(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Whether it is left out unless tests are compiled.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

/// The attributes of an item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
