//! The paths that an item names, with their lines.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ImplItem, Item, ItemMod, ItemUse, Macro, UseTree, VisRestricted};

use crate::modules::{attributes, is_for_tests};

/// A path in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    /// Its names, as written.
    pub(crate) path: Vec<String>,
    /// Where, from 1.
    pub(crate) line: usize,
    /// In a `use`.
    pub(crate) imported: bool,
}

/// What an item says.
#[derive(Default)]
pub(crate) struct Finder {
    /// Its paths.
    pub(crate) mentions: Vec<Mention>,
    /// Its identifiers with their lines: those of paths, fields, methods and variables.
    pub(crate) words: Vec<(String, usize)>,
}

/// Everything of an item that is compiled without `cfg(test)`. Modules in it are not looked into.
pub(crate) fn of(item: &Item) -> Finder {
    let mut found = Finder::default();
    found.visit_item(item);
    found
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs[..],
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            _ => &[],
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none()
            && let Some(first) = path.segments.first()
        {
            let line = first.ident.span().start().line;
            let path = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.mentions.push(Mention { path, line, imported: false });
        }
        visit::visit_path(self, path);
    }

    fn visit_ident(&mut self, ident: &'ast Ident) {
        self.words.push((ident.to_string(), ident.span().start().line));
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.tree(&item.tree, &mut Vec::new());
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}

impl Finder {
    fn tree(&mut self, tree: &UseTree, path: &mut Vec<String>) {
        let ident = match tree {
            UseTree::Path(step) => {
                path.push(step.ident.to_string());
                self.tree(&step.tree, path);
                path.pop();
                return;
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(tree, path));
                return;
            }
            UseTree::Name(name) => Some(&name.ident),
            UseTree::Rename(name) => Some(&name.ident),
            UseTree::Glob(_) => None,
        };
        let line = match tree {
            UseTree::Glob(glob) => glob.star_token.spans[0].start().line,
            _ => ident.map_or(0, |ident| ident.span().start().line),
        };
        self.words.extend(ident.map(|ident| (ident.to_string(), line)));
        let mut path = path.clone();
        path.extend(ident.map(|ident| ident.to_string()).filter(|name| name != "self"));
        self.mentions.push(Mention { path, line, imported: true });
    }

    /// What is given to a macro has any syntax; names joined by `::` are paths.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Option<Mention> = None;
        // Colons since the last name.
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    let (name, line) = (ident.to_string(), ident.span().start().line);
                    self.words.push((name.clone(), line));
                    match &mut path {
                        Some(mention) if colons == 2 => mention.path.push(name),
                        // A path that begins with `::` is another crate's.
                        None if colons == 2 => {}
                        _ => {
                            self.mentions.extend(path.take());
                            path = Some(Mention { path: vec![name], line, imported: false });
                        }
                    }
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => {
                    self.mentions.extend(path.take());
                    self.tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => self.mentions.extend(path.take()),
            }
            colons = 0;
        }
        self.mentions.extend(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<(String, usize)> {
        let file = syn::parse_file(text).expect("Rust");
        file.items
            .iter()
            .flat_map(|item| of(item).mentions)
            .map(|mention| (mention.path.join("::"), mention.line))
            .collect()
    }

    fn has(text: &str, path: &str, line: usize) -> bool {
        paths(text).contains(&(path.to_owned(), line))
    }

    #[test]
    fn nested_imports() {
        let text = "use crate::{\n a::{self, B, c::*},\n d as e,\n};";
        let expected = [("crate::a", 2), ("crate::a::B", 2), ("crate::a::c", 2), ("crate::d", 3)];
        assert_eq!(paths(text), expected.map(|(path, line)| (path.to_owned(), line)));
    }

    #[test]
    fn paths_in_code() {
        let text = "impl super::T for U {\n fn f(&self) -> a::R {\n crate::b::go(Self::K);\n let c::P { .. } = x;\n }\n}";
        for (path, line) in [("super::T", 1), ("a::R", 2), ("crate::b::go", 3), ("c::P", 4)] {
            assert!(has(text, path, line), "{path}: {:?}", paths(text));
        }
    }

    #[test]
    fn paths_in_macros() {
        let text = "fn f() {\n go!(x, [crate::a::B {\n c: super::D }], ::std::mem::swap, e: F);\n}";
        for (path, line) in [("crate::a::B", 2), ("super::D", 3)] {
            assert!(has(text, path, line), "{path}: {:?}", paths(text));
        }
        assert!(
            !paths(text).iter().any(|(path, _)| path.contains("std") || path == "e::F"),
            "{:?}",
            paths(text)
        );
    }

    #[test]
    fn what_tests_need_is_free() {
        let text = "#[cfg(test)]\nuse crate::a;\nimpl T {\n #[cfg(test)]\n fn f() { crate::b::go() }\n}\nfn g() {\n #[cfg(test)]\n use crate::c;\n}";
        assert!(paths(text).iter().all(|(path, _)| !path.starts_with("crate")), "{:?}", paths(text));
        assert!(has("#[cfg(not(test))]\nuse crate::a;", "crate::a", 2));
    }
}
