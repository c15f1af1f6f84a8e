//! Faults on script of a server: those of its topology, and those that the operator adds and removes.

use std::collections::BTreeMap;

use hca_model::fault::{FaultId, FaultReport, Trigger};
use hca_model::{HcaId, Ps, World};
use serde_json::{Value, json};

use crate::topology::faults::{Keys, MOST, parse, seed};
use crate::topology::{Part, Topology};

/// What faults are called where several processes serve a topology: the numbers of each leave the same rest when they are divided by how many
/// processes there are, so that a number is one fault's, and says whose.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    place: u32,
    of: u32,
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers { place: 0, of: 1 }
    }
}

impl Numbers {
    /// The number of a fault of this world.
    fn name(self, FaultId(id): FaultId) -> u64 {
        u64::from(id) * u64::from(self.of) + u64::from(self.place)
    }

    /// The fault that has this number; `None`: it would be another process's.
    fn find(self, number: u64) -> Option<FaultId> {
        let before = number.checked_sub(self.place.into())?;
        let id = before.checked_div(self.of.into())?;
        (before.checked_rem(self.of.into()) == Some(0)).then_some(FaultId(u32::try_from(id).ok()?))
    }
}

/// The faults of an engine.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    numbers: Numbers,
    /// Adapters here, `HOST/HCA`.
    adapters: Vec<String>,
    topology: Option<Box<Topology>>,
    /// What those that there are were asked for as.
    keys: BTreeMap<FaultId, Keys>,
    /// How many there were so far.
    added: u64,
}

impl Faults {
    /// Adds what the topology has for the adapters of a part of it.
    pub(crate) fn new(topology: &Topology, part: &Part<'_>, world: &mut World) -> Faults {
        let adapters = part.hcas().map(|(host, hca)| format!("{}/{}", host.name, hca.name)).collect();
        let mut faults = Faults { adapters, topology: Some(Box::new(topology.clone())), ..Faults::default() };
        for scripted in &topology.faults {
            let Some(place) = faults.adapters.iter().position(|name| *name == scripted.at) else { continue };
            if let Some(id) = world.add_fault(Ps::ZERO, HcaId(place), scripted.fault.clone()) {
                faults.keys.insert(id, scripted.keys.clone());
                faults.added += 1;
            }
        }
        faults
    }

    /// They are those of one of several processes: its place among them, and how many there are.
    pub(crate) fn set_place(&mut self, place: usize, of: usize) {
        if let (Ok(place), Ok(of)) = (u32::try_from(place), u32::try_from(of)) {
            self.numbers = Numbers { place, of };
        }
    }

    /// What the control socket answers to `fault`: see [`crate::control`].
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(crate) fn answer(&mut self, world: &mut World, now: Ps, request: &Value) -> Result<Value, String> {
        if let Some(keys) = request.get("add") {
            return self.add(world, now, keys);
        }
        match request.get("remove") {
            None => Ok(self.list(world)),
            Some(number) => {
                let id = number.as_u64().and_then(|number| self.numbers.find(number));
                match id.filter(|id| world.remove_fault(*id)) {
                    Some(id) => {
                        self.keys.remove(&id);
                        Ok(json!({}))
                    }
                    None => Err(format!("there is no fault {number}, {}", known(world))),
                }
            }
        }
    }

    fn add(&mut self, world: &mut World, now: Ps, keys: &Value) -> Result<Value, String> {
        let keys: Keys = serde_json::from_value(keys.clone())
            .map_err(|_| "\"add\" must have keys with numbers, text, true or false".to_owned())?;
        let fabric = self.topology.as_ref().map_or(1, |topology| topology.fabric.seed);
        let seed = seed(fabric, self.added);
        let (at, mut fault) = parse(&keys, seed).map_err(|wrong| wrong.to_string())?;
        // Its times are counted from now on.
        let Trigger { from, until, .. } = &mut fault.trigger;
        (*from, *until) = (*from + now, *until + now);
        let at = match &self.topology {
            Some(topology) => topology.adapter(&at).map_err(|why| format!("at: {why}"))?,
            None => at,
        };
        let place = self.adapters.iter().position(|name| *name == at);
        let here = world.faults().iter().filter(|(hca, _)| Some(hca.0) == place).count();
        if here >= MOST {
            return Err(format!(
                "at: {at} has {here} faults, and {MOST} are the most: remove one first (`softhca ctl fault remove NUMBER`)"
            ));
        }
        let added = place.and_then(|place| world.add_fault(now, HcaId(place), fault));
        let Some(id) = added else { return Err(format!("at: {at} is not served here")) };
        let number = self.numbers.name(id);
        tracing::info!("fault {number} added: {}", shown(&keys));
        self.keys.insert(id, keys);
        self.added += 1;
        Ok(json!({ "number": number, "at": at }))
    }

    fn list(&self, world: &World) -> Value {
        let row = |(hca, report): (HcaId, FaultReport)| {
            let FaultReport { id, fault, seen, fired } = report;
            let keys = self.keys.get(&id);
            json!({
                "number": self.numbers.name(id),
                "name": fault.name,
                "at": world.name(hca),
                "keys": keys,
                "matched": seen,
                "happened": fired,
            })
        };
        json!({ "faults": world.faults().into_iter().map(row).collect::<Vec<_>>() })
    }
}

/// The faults that there are.
fn known(world: &World) -> String {
    let all: Vec<String> = world
        .faults()
        .into_iter()
        .map(|(_, FaultReport { id: FaultId(number), fault, .. })| format!("{number} ({})", fault.name))
        .collect();
    if all.is_empty() { "there are none".to_owned() } else { format!("only {}", all.join(", ")) }
}

fn shown(keys: &Keys) -> String {
    keys.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as there may be; then one goes for another, over and over, and nothing is left of those that went.
    #[test]
    fn an_adapter_has_so_many() {
        let host = |name: &str| format!("[[host]]\nname = \"{name}\"\n[[host.hca]]\n");
        let fault = "[[fault]]\nat = \"a\"\non = \"command\"\naction = \"hang\"\n";
        let text = |faults: usize| format!("{}{}{}", host("a"), host("b"), fault.repeat(faults));
        let why = Topology::parse("test", &text(MOST + 1)).unwrap_err().to_string();
        assert!(why.contains("fault.at") && why.contains("256 faults at most"), "{why}");
        let topology = Topology::parse("test", &text(MOST - 1)).unwrap();
        let part = topology.part(None).unwrap();
        let mut world = crate::model::world(&topology, &part).unwrap().0;
        let mut faults = Faults::new(&topology, &part, &mut world);
        let mut ask = |request: Value| faults.answer(&mut world, Ps::ZERO, &request);
        let add = |at: &str| json!({ "add": { "at": at, "on": "command", "action": "hang" } });
        for _ in 0..10 {
            let number = ask(add("a")).unwrap()["number"].clone();
            let why = ask(add("a")).unwrap_err();
            assert!(why.contains("a/hca0 has 256 faults") && why.contains("remove one first"), "{why}");
            ask(json!({ "remove": number })).unwrap();
        }
        assert_eq!(ask(add("b")).unwrap()["number"], json!(MOST + 9));
        let all = ask(json!({})).unwrap()["faults"].as_array().unwrap().clone();
        assert_eq!(all.len(), MOST);
        assert!(all.iter().all(|fault| fault["keys"]["action"] == json!("hang")), "{all:?}");
        assert_eq!(faults.keys.len(), MOST);
    }

    #[test]
    fn numbers_of_several_processes_are_their_own() {
        let mut seen = std::collections::BTreeSet::new();
        for place in 0..3 {
            let numbers = Numbers { place, of: 3 };
            for id in [0, 1, 2, u32::MAX].map(FaultId) {
                let number = numbers.name(id);
                assert!(seen.insert(number), "{number} is another's, too");
                assert_eq!(number % 3, u64::from(place), "whose it is");
                assert_eq!(numbers.find(number), Some(id));
                let others = (0..3).filter(|other| *other != place);
                let found = others.filter_map(|place| Numbers { place, of: 3 }.find(number));
                assert_eq!(found.count(), 0, "{number}");
            }
            assert_eq!(numbers.find(u64::MAX), None);
        }
        assert_eq!(Numbers::default().name(FaultId(7)), 7);
    }
}
