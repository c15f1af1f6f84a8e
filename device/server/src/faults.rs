//! Faults on script of a server: those of its topology, and those that the operator adds and removes.

use hca_model::fault::{FaultId, FaultReport, Trigger};
use hca_model::{HcaId, Ps, World};
use serde_json::{Value, json};

use crate::topology::faults::{Keys, parse, seed};
use crate::topology::{Part, Topology};

/// The faults of an engine.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Adapters here, `HOST/HCA`.
    adapters: Vec<String>,
    topology: Option<Box<Topology>>,
    /// What they were asked for as, by their numbers.
    keys: Vec<Keys>,
}

impl Faults {
    /// Adds what the topology has for the adapters of a part of it.
    pub(crate) fn new(topology: &Topology, part: &Part<'_>, world: &mut World) -> Faults {
        let adapters = part.hcas().map(|(host, hca)| format!("{}/{}", host.name, hca.name)).collect();
        let mut faults = Faults { adapters, topology: Some(Box::new(topology.clone())), keys: Vec::new() };
        for scripted in &topology.faults {
            let Some(place) = faults.adapters.iter().position(|name| *name == scripted.at) else { continue };
            if world.add_fault(Ps::ZERO, HcaId(place), scripted.fault.clone()).is_some() {
                faults.keys.push(scripted.keys.clone());
            }
        }
        faults
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
                let id = number.as_u64().and_then(|number| u32::try_from(number).ok());
                match id.is_some_and(|id| world.remove_fault(FaultId(id))) {
                    true => Ok(json!({})),
                    false => Err(format!("there is no fault {number}; \"fault\" alone lists them")),
                }
            }
        }
    }

    fn add(&mut self, world: &mut World, now: Ps, keys: &Value) -> Result<Value, String> {
        let keys: Keys = serde_json::from_value(keys.clone())
            .map_err(|_| "\"add\" must have keys with numbers, text, true or false".to_owned())?;
        let fabric = self.topology.as_ref().map_or(1, |topology| topology.fabric.seed);
        let seed = seed(fabric, self.keys.len() as u64);
        let (at, mut fault) = parse(&keys, seed).map_err(|wrong| wrong.to_string())?;
        // Its times are counted from now on.
        let Trigger { from, until, .. } = &mut fault.trigger;
        (*from, *until) = (*from + now, *until + now);
        let at = match &self.topology {
            Some(topology) => topology.adapter(&at).map_err(|why| format!("at: {why}"))?,
            None => at,
        };
        let place = self.adapters.iter().position(|name| *name == at);
        let added = place.and_then(|place| world.add_fault(now, HcaId(place), fault));
        let Some(FaultId(number)) = added else { return Err(format!("at: {at} is not served here")) };
        tracing::info!("fault {number} added: {}", shown(&keys));
        self.keys.push(keys);
        Ok(json!({ "number": number, "at": at }))
    }

    fn list(&self, world: &World) -> Value {
        let row = |(hca, report): (HcaId, FaultReport)| {
            let FaultReport { id: FaultId(number), fault, seen, fired } = report;
            let keys = self.keys.get(number as usize);
            json!({
                "number": number,
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

fn shown(keys: &Keys) -> String {
    keys.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}
