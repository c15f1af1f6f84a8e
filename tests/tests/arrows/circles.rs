//! Circles of files: each of them sees the others, by arrows of its own or by way of others.
//!
//! Floors say nothing of what is within a room. Where files of a room see each other in a circle, none can be understood, or moved, before
//! the others; so in modules of the table's choice every circle is known by name, or there is none.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::names::Arrow;

/// Files that see each other, in order.
pub(crate) type Circle = BTreeSet<String>;

/// What the table says of circles.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Circles {
    /// Modules, with those below them, in which there are none but the known ones.
    untied_in: Vec<String>,
    #[serde(default)]
    known: BTreeSet<Circle>,
}

/// All circles of at least two files.
fn circles(arrows: &[Arrow]) -> BTreeSet<Circle> {
    let mut sees: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Arrow { from, to, .. } in arrows {
        sees.entry(from).or_default().insert(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        sees.keys().map(|from| (*from, reached_from(from, &sees))).collect();
    let around = |file: &str| {
        let all = reached.get(file).into_iter().flatten();
        let back = |to: &&&str| reached.get(**to).is_some_and(|all| all.contains(file));
        all.filter(back).map(|to| (*to).to_owned()).collect::<Circle>()
    };
    sees.keys().map(|file| around(file)).filter(|circle| circle.len() > 1).collect()
}

/// Files that one comes to from another.
fn reached_from<'a>(from: &str, sees: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        for to in sees.get(next).into_iter().flatten() {
            if reached.insert(*to) {
                open.push(to);
            }
        }
    }
    reached
}

impl Circles {
    /// What is wrong, a line each: circles that the table does not know, and known ones that are gone.
    pub(crate) fn faults(&self, arrows: &[Arrow]) -> Vec<String> {
        let is_below = |file: &str, module: &String| {
            file.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let counts = |file: &String| self.untied_in.iter().any(|module| is_below(file, module));
        let found: BTreeSet<Circle> =
            circles(arrows).into_iter().filter(|circle| circle.iter().any(counts)).collect();
        let inside = |circle: &Circle| {
            let of = arrows.iter().filter(|arrow| circle.contains(&arrow.from) && circle.contains(&arrow.to));
            let told = |Arrow { from, to, file, line, written }: &Arrow| {
                format!("\n    src/{file}:{line}: `{written}` ({from} -> {to})")
            };
            of.map(told).collect::<String>()
        };
        let new = found
            .difference(&self.known)
            .map(|circle| format!("files {circle:?} see each other in a circle:{}", inside(circle)));
        let gone = self.known.difference(&found);
        let gone = gone.map(|circle| format!("known circle {circle:?} is no more: strike it out"));
        let strange = |module: &&String| !arrows.iter().any(|arrow| is_below(&arrow.from, module));
        let strange = self.untied_in.iter().filter(strange);
        let strange =
            strange.map(|module| format!("no circles in {module}, it says, and nothing there sees anything"));
        new.chain(gone).chain(strange).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{Crate, Sources};
    use crate::names::arrows;

    /// Judges four files, of which three see these.
    fn judge(sees: [&str; 3], known: &[&[&str]]) -> Vec<String> {
        let lib = "mod a;\nmod b;\nmod c;\nmod d;";
        let [a, b, c] = sees.map(|uses| format!("{uses}\npub struct T;"));
        let files = [("lib.rs", lib), ("a.rs", &a), ("b.rs", &b), ("c.rs", &c), ("d.rs", "pub struct T;")];
        let parsed = Crate::parse(&Sources::of(&files)).expect("Rust");
        let circle = |files: &&[&str]| files.iter().map(|file| (*file).to_owned()).collect();
        let circles = Circles { untied_in: vec!["a".into()], known: known.iter().map(circle).collect() };
        circles.faults(&arrows(&parsed))
    }

    const B: &str = "use crate::b::T as B;";
    const C: &str = "use crate::c::T as C;";
    const A: &str = "use crate::a::T as A;";

    #[test]
    fn one_way_is_no_circle() {
        assert_eq!(judge([B, C, "use crate::d::T as D;"], &[]), [""; 0]);
    }

    #[test]
    fn a_circle_is_found_and_told() {
        let faults = judge([B, C, A], &[]);
        assert_eq!(faults.len(), 1);
        assert!(
            faults[0].starts_with("files {\"a\", \"b\", \"c\"} see each other in a circle:"),
            "{faults:?}"
        );
        assert!(faults[0].contains("src/c.rs:1: `use crate::a::T` (c -> a)"), "{faults:?}");
    }

    #[test]
    fn others_are_left_alone() {
        assert_eq!(judge([B, C, "use crate::b::T as B;"], &[]), [""; 0]);
    }

    #[test]
    fn known_circles_may_only_go() {
        assert_eq!(judge([B, A, ""], &[&["a", "b"]]), [""; 0]);
        let gone = ["known circle {\"a\", \"b\"} is no more: strike it out"];
        assert_eq!(judge([B, "", ""], &[&["a", "b"]]), gone);
        assert_eq!(judge([B, C, A], &[&["a", "b"]]).len(), 2, "it has grown");
    }
}
