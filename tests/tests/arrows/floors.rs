//! The table of a crate, `floors.toml`.
//!
//! ```toml
//! [[floor]]                          # the ground
//! time = ["time", "random"]          # a room and its modules, each with those below it
//!
//! [[floor]]                          # sees the ground, and no room sees the others of its floor
//! engines = ["cq", "eq"]
//! units = ["units"]
//!
//! [[door]]                           # inside a room: a module that only some see
//! behind = "units::pcie"
//! open_to = ["units"]
//! words = ["tlp"]
//! unsaid_in = ["cq", "eq"]
//!
//! [circles]                          # files that see each other
//! untied_in = ["cq", "eq"]            # modules with those below them: there are none but the known ones
//! known = [["eq", "eq::ring"]]
//!
//! [known]                            # arrows that are still to go
//! arrows = ["cq -> units::calendar"]
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::circles::Circles;
use crate::doors::Door;

/// Floors from the ground up, and the arrows against them that are known.
#[derive(Debug)]
pub(crate) struct Floors {
    /// Of each module that the table names: its room.
    rooms: BTreeMap<String, Room>,
    /// `FROM -> TO`, module paths of files.
    pub(crate) known: BTreeSet<String>,
    /// Circles of files.
    pub(crate) circles: Circles,
    /// What is behind a door.
    pub(crate) doors: Vec<Door>,
}

/// A room and its floor, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// As the table calls it.
    pub(crate) name: String,
    /// Floor 0 is the ground.
    pub(crate) floor: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    floor: Vec<BTreeMap<String, Vec<String>>>,
    #[serde(default)]
    door: Vec<Door>,
    #[serde(default)]
    circles: Circles,
    #[serde(default)]
    known: Known,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    #[serde(default)]
    arrows: Vec<String>,
}

impl Floors {
    /// Reads a table.
    ///
    /// # Errors
    /// What is no such table; a room, a module or an arrow that it has twice.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
        let (mut rooms, mut names, mut known) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for (floor, of_floor) in table.floor.into_iter().enumerate() {
            for (name, modules) in of_floor {
                if !names.insert(name.clone()) {
                    return Err(format!("room {name} is there twice"));
                }
                for module in modules {
                    let room = Room { name: name.clone(), floor };
                    if rooms.insert(module.clone(), room).is_some() {
                        return Err(format!("module {module} has two rooms"));
                    }
                }
            }
        }
        for arrow in table.known.arrows {
            if !known.insert(arrow.clone()) {
                return Err(format!("known arrow {arrow} is there twice"));
            }
        }
        Ok(Self { rooms, known, circles: table.circles, doors: table.door })
    }

    /// The room of a module: its own, or that of the nearest module around it.
    pub(crate) fn room(&self, module: &str) -> Option<&Room> {
        self.rooms.get(module).or_else(|| self.room(module.rsplit_once("::")?.0))
    }

    /// Modules that the table names.
    pub(crate) fn modules(&self) -> impl Iterator<Item = &str> {
        self.rooms.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rooms() {
        let text = "[[floor]]\nground = [\"a\", \"b::c\"]\n[[floor]]\ntop = [\"b\"]";
        let floors = Floors::parse(text).expect("a table");
        let room = |module| floors.room(module).map(|room| (room.name.as_str(), room.floor));
        assert_eq!(room("a::x::y"), Some(("ground", 0)));
        assert_eq!(room("b::c::d"), Some(("ground", 0)));
        assert_eq!(room("b::e"), Some(("top", 1)));
        assert_eq!(room("c"), None);
    }

    #[test]
    fn bad_tables() {
        for (text, why) in [
            ("[[floor]]\na = [\"x\"]\n[[floor]]\na = [\"y\"]", "room a is there twice"),
            ("[[floor]]\na = [\"x\"]\nb = [\"x\"]", "module x has two rooms"),
            ("[[floor]]\n[known]\narrows = [\"x -> y\", \"x -> y\"]", "known arrow x -> y is there twice"),
            ("[[floor]]\n[knwon]\narrows = []", "unknown field"),
        ] {
            let error = Floors::parse(text).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }
}
