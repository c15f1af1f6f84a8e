//! Arrows against floors.

use std::collections::BTreeSet;

use crate::floors::Floors;
use crate::modules::Crate;
use crate::names::Arrow;

/// What is wrong, a line each: arrows that point upwards or aside, unless the table knows them; known ones that are gone; files
/// without a room, and modules of the table without a file.
///
/// No circle of rooms can pass: each of its arrows would have to point downwards.
pub(crate) fn faults(of: &Crate, arrows: &[Arrow], floors: &Floors) -> Vec<String> {
    let files = of.files();
    let homeless = files.iter().filter(|module| floors.room(module).is_none());
    let mut faults: Vec<_> = homeless.map(|module| format!("module {module} is in no room")).collect();
    let vanished = floors.modules().filter(|module| !files.contains(module));
    faults.extend(vanished.map(|module| format!("the table has module {module}, the sources have not")));
    let mut gone: BTreeSet<&str> = floors.known.iter().map(String::as_str).collect();
    for arrow in arrows {
        let Some(why) = against(arrow, floors) else { continue };
        let pair = format!("{} -> {}", arrow.from, arrow.to);
        if !gone.remove(pair.as_str()) {
            let Arrow { file, line, written, .. } = arrow;
            faults.push(format!("src/{file}:{line}: `{written}` ({pair}): {why}"));
        }
    }
    faults.extend(
        gone.into_iter()
            .map(|pair| format!("known arrow \"{pair}\" is no more, or points downwards: strike it out")),
    );
    faults
}

/// Why an arrow must not be.
fn against(arrow: &Arrow, floors: &Floors) -> Option<String> {
    let from = floors.room(&arrow.from)?;
    if arrow.to.is_empty() {
        return Some(format!("room {} must not see lib.rs, which is above every floor", from.name));
    }
    let to = floors.room(&arrow.to)?;
    if from == to || to.floor < from.floor {
        return None;
    }
    let place = if to.floor > from.floor { "on a floor above" } else { "beside it on one floor" };
    Some(format!(
        "room {} (floor {}) must not see room {} (floor {}), {place}",
        from.name, from.floor, to.name, to.floor
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::Sources;
    use crate::names::arrows;

    const FLOORS: &str = "[[floor]]\nground = [\"time\"]\n[[floor]]\nengines = [\"cq\"]\nunits = [\"pcie\"]\n[[floor]]\nadapter = [\"core\"]\n";
    const LIB: (&str, &str) = ("lib.rs", "mod core;\nmod cq;\nmod pcie;\nmod time;\npub struct Top;");

    /// Judges these four modules.
    fn judge(core: &str, cq: &str, pcie: &str, time: &str, known: &str) -> Vec<String> {
        let text = [core, cq, pcie, time].map(|text| format!("{text}\npub struct T;"));
        let [core, cq, pcie, time] = text.each_ref().map(String::as_str);
        let files = [LIB, ("core.rs", core), ("cq.rs", cq), ("pcie.rs", pcie), ("time.rs", time)];
        let parsed = Crate::parse(&Sources::of(&files)).expect("Rust");
        let floors = Floors::parse(&format!("{FLOORS}{known}")).expect("a table");
        faults(&parsed, &arrows(&parsed), &floors)
    }

    #[test]
    fn downwards_is_right() {
        let faults =
            judge("use crate::{cq::T as C, pcie};", "use crate::time::T as A;", "use super::time;", "", "");
        assert_eq!(faults, [""; 0]);
    }

    #[test]
    fn upwards_is_wrong() {
        let faults = judge("", "\n\nuse crate::{\n time,\n core::T as C,\n};", "", "", "");
        let expected = "src/cq.rs:5: `use crate::core::T` (cq -> core): room engines (floor 1) must not see room adapter (floor 2), \
                        on a floor above";
        assert_eq!(faults, [expected]);
    }

    #[test]
    fn aside_is_wrong() {
        let faults = judge("", "fn f() { super::pcie::go() }", "", "", "");
        let expected = "src/cq.rs:1: `super::pcie::go` (cq -> pcie): room engines (floor 1) must not see room units (floor 1), \
                        beside it on one floor";
        assert_eq!(faults, [expected]);
    }

    #[test]
    fn the_root_is_above_all() {
        let faults = judge("use crate::Top;", "", "", "", "");
        assert_eq!(faults.len(), 1);
        assert!(
            faults[0].ends_with("room adapter must not see lib.rs, which is above every floor"),
            "{faults:?}"
        );
    }

    #[test]
    fn a_circle_is_found() {
        let faults = judge("", "use crate::time::T as A;", "", "use crate::cq::T as C;", "");
        assert_eq!(faults.len(), 1);
        assert!(faults[0].starts_with("src/time.rs:1: `use crate::cq::T`"), "{faults:?}");
    }

    #[test]
    fn known_arrows_may_only_go() {
        let known = "[known]\narrows = [\"cq -> core\"]";
        let up = "use crate::core::T as C;";
        assert_eq!(judge("", up, "", "", known), [""; 0]);
        let faults = judge("", up, up, "", known);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].starts_with("src/pcie.rs:1:"), "{faults:?}");
        let gone = ["known arrow \"cq -> core\" is no more, or points downwards: strike it out"];
        assert_eq!(judge("", "", "", "", known), gone);
        assert_eq!(judge("use crate::cq::T as C;", "", "", "", known), gone);
    }

    #[test]
    fn the_table_fits_the_sources() {
        let files = [
            ("lib.rs", "mod core;\nmod cq;\nmod eq;\nmod pcie;"),
            ("core.rs", ""),
            ("cq.rs", ""),
            ("eq.rs", ""),
            ("pcie.rs", ""),
        ];
        let parsed = Crate::parse(&Sources::of(&files)).expect("Rust");
        let floors = Floors::parse(FLOORS).expect("a table");
        let expected = ["module eq is in no room", "the table has module time, the sources have not"];
        assert_eq!(faults(&parsed, &[], &floors), expected);
    }
}
