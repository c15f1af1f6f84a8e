//! Doors: modules that only some of those above them may name, and words that say the same without a path.
//!
//! A floor lets everybody above see a room. Behind a door it is different: of the other modules only those see it that the table
//! lets in. Fields and methods name no module, so a door has words, too, which the modules that it is there for don't use.

use serde::Deserialize;

use crate::modules::Crate;
use crate::names::Arrow;

/// A door of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Door {
    /// The module behind it, with those below it.
    behind: String,
    /// Modules that may name it, with those below them.
    open_to: Vec<String>,
    /// Identifiers that belong behind it.
    words: Vec<String>,
    /// Modules, with those below them, that don't use these words unless they are let in.
    unsaid_in: Vec<String>,
}

fn is_below(module: &str, room: &str) -> bool {
    module.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

impl Door {
    fn lets_in(&self, module: &str) -> bool {
        is_below(module, &self.behind) || self.open_to.iter().any(|to| is_below(module, to))
    }

    /// What is wrong, a line each: who passes without being let in, who says a word of it; and names of the table that stand
    /// for nothing.
    pub(crate) fn faults(&self, of: &Crate, arrows: &[Arrow]) -> Vec<String> {
        let Self { behind, open_to, words, unsaid_in } = self;
        let passes = |arrow: &&Arrow| is_below(&arrow.to, behind) && !is_below(&arrow.from, behind);
        let passing: Vec<&Arrow> = arrows.iter().filter(passes).collect();
        let uninvited = passing.iter().filter(|arrow| !self.lets_in(&arrow.from));
        let mut faults: Vec<String> = uninvited
            .map(|Arrow { from, to, file, line, written }| {
                format!("src/{file}:{line}: `{written}` ({from} -> {to}): {behind} has a door, open to {open_to:?} only")
            })
            .collect();
        let outside = |path: &str| unsaid_in.iter().any(|room| is_below(path, room)) && !self.lets_in(path);
        for module in of.modules.iter().filter(|module| outside(&module.path)) {
            let said = words.iter().filter_map(|word| Some((word, module.words.get(word)?)));
            faults.extend(said.map(|(word, line)| {
                format!("src/{}:{line}: `{word}` belongs behind the door of {behind}", module.file)
            }));
        }
        let unused = open_to.iter().filter(|to| !passing.iter().any(|arrow| is_below(&arrow.from, to)));
        faults.extend(unused.map(|to| format!("nothing of {to} passes the door of {behind}: strike it out")));
        let files = of.files();
        let known = |room: &str| files.iter().any(|file| is_below(file, room));
        let vanished = std::iter::once(behind).chain(unsaid_in).filter(|room| !known(room));
        faults.extend(
            vanished.map(|room| format!("a door of the table has module {room}, the sources have not")),
        );
        let spoken = |word: &&String| {
            of.modules.iter().any(|m| is_below(&m.path, behind) && m.words.contains_key(*word))
        };
        let strange = words.iter().filter(|word| !spoken(word));
        faults.extend(strange.map(|word| format!("`{word}` is no word of {behind}: strike it out")));
        faults
    }
}

#[cfg(test)]
mod tests {
    use crate::floors::Floors;
    use crate::modules::{Crate, Sources};
    use crate::names::arrows;

    const TABLE: &str = "[[floor]]\nlink = [\"link\"]\n[[floor]]\nengines = [\"qp\"]\n[[floor]]\nworld = [\"world\"]\n\
                         [[door]]\nbehind = \"link::ib\"\nopen_to = [\"link\", \"world\"]\nwords = [\"slid\"]\nunsaid_in = [\"qp\"]";
    const IB: &str = "pub struct Address { pub slid: u16 }";

    /// Judges an engine and a world above a link layer with one room.
    fn judge(qp: &str, world: &str) -> Vec<String> {
        let link = "pub mod ib;\nuse ib::Address;\npub struct Path(Address);\npub use ib::Address as Shown;";
        let lib = "mod link;\nmod qp;\nmod world;";
        let files =
            [("lib.rs", lib), ("link/mod.rs", link), ("link/ib.rs", IB), ("qp.rs", qp), ("world.rs", world)];
        let parsed = Crate::parse(&Sources::of(&files)).expect("Rust");
        let floors = Floors::parse(TABLE).expect("a table");
        floors.doors.iter().flat_map(|door| door.faults(&parsed, &arrows(&parsed))).collect()
    }

    const SWITCH: &str = "use crate::link::ib::Address;";

    #[test]
    fn who_is_let_in_passes_and_others_take_what_stands_before_it() {
        assert_eq!(judge("use crate::link::Path;", SWITCH), [""; 0]);
    }

    #[test]
    fn others_do_not_pass() {
        let expected = "src/qp.rs:1: `use crate::link::ib::Address` (qp -> link::ib): link::ib has a door, open to [\"link\", \
                        \"world\"] only";
        assert_eq!(judge("use crate::link::ib::Address;", SWITCH), [expected]);
        let faults = judge("use crate::link::Shown;", SWITCH);
        assert!(faults.len() == 1 && faults[0].contains("qp -> link::ib"), "another name for it: {faults:?}");
    }

    #[test]
    fn its_words_stay_behind_it() {
        let expected = ["src/qp.rs:2: `slid` belongs behind the door of link::ib"];
        assert_eq!(judge("fn f(a: A) -> u16 {\n a.slid\n}", SWITCH), expected);
        assert_eq!(judge("fn f(a: A) {\n say!(\"{}\", a.slid())\n}", SWITCH), expected);
        assert_eq!(judge("#[cfg(test)]\nfn f(a: A) -> u16 {\n a.slid\n}", SWITCH), [""; 0]);
    }

    #[test]
    fn the_table_stands_for_something() {
        assert_eq!(judge("", ""), ["nothing of world passes the door of link::ib: strike it out"]);
    }
}
