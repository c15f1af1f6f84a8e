//! What a path means: the module that has it, through `use` and `pub use`.

use std::collections::BTreeMap;

use crate::modules::Crate;

/// A file names something of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrow {
    /// The module path of the file that names.
    pub(crate) from: String,
    /// Of the file that is named.
    pub(crate) to: String,
    /// The first place: its file, from `src`.
    pub(crate) file: String,
    /// The line there.
    pub(crate) line: usize,
    /// What stands there.
    pub(crate) written: String,
}

/// The arrows between the files of a crate, the first of each pair. Those of `lib.rs` are not among them, and those to it are only
/// what it declares itself, or has from another crate.
pub(crate) fn arrows(of: &Crate) -> Vec<Arrow> {
    let mut found = BTreeMap::new();
    for (number, module) in of.modules.iter().enumerate().filter(|(_, module)| !module.path.is_empty()) {
        for mention in &module.mentions {
            let meant = meaning(of, number, &mention.path, mention.imported);
            let Some(target) = meant.map(|meant| &of.modules[meant]) else { continue };
            if target.file == module.file {
                continue;
            }
            let path = mention.path.join("::");
            found.entry((&module.path, &target.path)).or_insert_with(|| Arrow {
                from: module.path.clone(),
                to: target.path.clone(),
                file: module.file.clone(),
                line: mention.line,
                written: if mention.imported { format!("use {path}") } else { path },
            });
        }
    }
    found.into_values().collect()
}

/// The module that a path of module `at` leads to; none if it is another crate's, or says nothing.
fn meaning(of: &Crate, at: usize, path: &[String], imported: bool) -> Option<usize> {
    let names = Names(of);
    if let ([name], false) = (path, imported) {
        // A name that stands alone came with a `use`, which is an arrow itself, unless that was of everything.
        let module = &of.modules[at];
        let is_local = module.uses.contains_key(name)
            || module.items.contains(name)
            || module.children.contains_key(name);
        return if is_local { None } else { names.by_glob(at, name, &mut Vec::new()).map(Found::module) };
    }
    names.follow(at, path, &mut Vec::new()).map(Found::module)
}

#[derive(Clone, Copy)]
enum Found {
    Module(usize),
    /// Something that a module declares.
    In(usize),
}

impl Found {
    fn module(self) -> usize {
        match self {
            Self::Module(module) | Self::In(module) => module,
        }
    }
}

/// Names that are looked up already: a circle of `use` ends there.
type Seen = Vec<(usize, String)>;

struct Names<'a>(&'a Crate);

impl Names<'_> {
    fn follow(&self, from: usize, path: &[String], seen: &mut Seen) -> Option<Found> {
        let mut at = from;
        // Past the names that only say where to begin.
        let mut begun = false;
        for (index, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" if index == 0 => at = 0,
                "self" if index == 0 => {}
                "super" if !begun => at = self.0.modules[at].parent,
                _ => {
                    let known = self.named(at, name, seen);
                    let is_first = index == 0;
                    begun = true;
                    match known {
                        Some(Found::Module(module)) => at = module,
                        Some(inside) => return Some(inside),
                        None if is_first => return None,
                        // Made by a macro, or a variant or function of what is.
                        None => return Some(Found::In(at)),
                    }
                }
            }
        }
        Some(Found::Module(at))
    }

    fn named(&self, at: usize, name: &str, seen: &mut Seen) -> Option<Found> {
        let module = &self.0.modules[at];
        if let Some(child) = module.children.get(name) {
            return Some(Found::Module(*child));
        }
        if module.items.contains(name) {
            return Some(Found::In(at));
        }
        let key = (at, name.to_owned());
        if seen.contains(&key) {
            return None;
        }
        seen.push(key);
        let found = match module.uses.get(name) {
            Some(path) => self.follow(at, path, seen),
            None => self.by_glob(at, name, seen),
        };
        seen.pop();
        found
    }

    fn by_glob(&self, at: usize, name: &str, seen: &mut Seen) -> Option<Found> {
        self.0.modules[at].globs.iter().find_map(|glob| match self.follow(at, glob, seen)? {
            Found::Module(module) => self.named(module, name, seen),
            Found::In(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::Sources;

    fn told(files: &[(&str, &str)]) -> Vec<String> {
        let parsed = Crate::parse(&Sources::of(files)).expect("Rust");
        let told = |arrow: Arrow| format!("{}:{} {} -> {}", arrow.file, arrow.line, arrow.written, arrow.to);
        arrows(&parsed).into_iter().map(told).collect()
    }

    #[test]
    fn through_re_exports() {
        let files = [
            (
                "lib.rs",
                "mod a;\nmod b;\npub use b::deep::Thing;\npub mod shown { pub use crate::b::deep::Other as Name; }",
            ),
            ("a.rs", "use crate::Thing;\nuse crate::shown::Name;\nuse hca_spec::Third;"),
            ("b/mod.rs", "pub mod deep;\npub use deep::Thing as Again;"),
            ("b/deep.rs", "pub struct Thing;\npub struct Other;"),
        ];
        assert_eq!(
            told(&files),
            ["a.rs:1 use crate::Thing -> b::deep", "b/mod.rs:2 use deep::Thing -> b::deep"]
        );
        let through = [files[0], ("a.rs", "use crate::b::Again;"), files[2], files[3]];
        assert_eq!(told(&through)[0], "a.rs:1 use crate::b::Again -> b::deep");
    }

    #[test]
    fn by_module_and_by_glob() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;"),
            ("a.rs", "use crate::b;\nfn f() { b::deep::go(); let b = b; }"),
            ("b.rs", "pub mod deep;"),
            ("b/deep.rs", "use super::super::c::*;\npub fn go() -> Made { other(std::mem::take(x)) }"),
            ("c.rs", "pub struct Made;"),
        ];
        let expected = [
            "a.rs:1 use crate::b -> b",
            "a.rs:2 b::deep::go -> b::deep",
            "b/deep.rs:1 use super::super::c -> c",
        ];
        assert_eq!(told(&files), expected);
    }

    #[test]
    fn what_a_glob_brings_from_afar() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;"),
            ("a.rs", "use crate::b::*;\nfn f(x: Made) {}"),
            ("b.rs", "pub use crate::c::Made;"),
            ("c.rs", "pub struct Made;"),
        ];
        assert!(told(&files).contains(&"a.rs:2 Made -> c".to_owned()), "{:?}", told(&files));
    }

    #[test]
    fn what_is_not_there_without_tests() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod tests;"),
            ("a.rs", "#[cfg(test)]\nmod tests { use crate::b::T; }\n#[cfg(test)]\nuse crate::b::T;"),
            ("b.rs", "pub struct T;"),
        ];
        assert_eq!(told(&files), [""; 0]);
    }

    #[test]
    fn circles_of_use_end() {
        let files = [
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "pub use crate::b::T;\npub use crate::b::*;\nfn f() { N }"),
            ("b.rs", "pub use crate::a::T;\npub use crate::a::*;"),
        ];
        assert_eq!(told(&files).len(), 2);
    }
}
