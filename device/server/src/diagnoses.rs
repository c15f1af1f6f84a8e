//! What the model has diagnosed of drivers, kept for those who ask by the control socket.

use std::collections::VecDeque;

use hca_model::{Diagnosis, HcaId, Parts, World};
use serde_json::{Value, json};

/// Diagnoses that are kept: the last ones.
const KEPT: usize = 1000;

/// The last diagnoses, numbered from 0 on.
#[derive(Debug, Default)]
pub(crate) struct Diagnoses {
    kept: VecDeque<Value>,
    /// Number of the first that is kept.
    first: u64,
}

impl Diagnoses {
    /// Takes what is new, and tells of each.
    pub(crate) fn take(&mut self, world: &mut World, mut tell: impl FnMut(&Diagnosis, &Value)) {
        for diagnosis in world.drain_diagnoses() {
            if self.kept.len() == KEPT {
                self.kept.pop_front();
                self.first += 1;
            }
            let number = self.first + self.kept.len() as u64;
            let value = value(world, &diagnosis, number);
            tell(&diagnosis, &value);
            self.kept.push_back(value);
        }
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Those that `request` asks for by `"since"`, which is what an earlier answer said under `"next"`: a number for each
    /// engine, by the name of its first adapter. `"lost"`: so many were not kept long enough.
    pub(crate) fn answer(&self, world: &World, request: &Value) -> Value {
        let name = world.name(HcaId(0));
        let since =
            request.get("since").and_then(|since| since.get(name)).and_then(Value::as_u64).unwrap_or(0);
        let skipped = usize::try_from(since.saturating_sub(self.first)).unwrap_or(usize::MAX);
        json!({
            "diagnoses": self.kept.iter().skip(skipped).collect::<Vec<_>>(),
            "lost": self.first.saturating_sub(since),
            "next": { name: self.first + self.kept.len() as u64 },
        })
    }
}

fn value(world: &World, diagnosis: &Diagnosis, number: u64) -> Value {
    let mut value = json!({
        "number": number,
        "at": diagnosis.at.to_string(),
        "at_ps": world.start().wrapped(diagnosis.at),
        "hca": world.name(diagnosis.function.hca),
        "text": diagnosis.saying.to_string(),
        "kind": if diagnosis.saying.is_answered() { "refused" } else { "found" },
    });
    if let (Some(parts), Some(map)) = (diagnosis.saying.parts(), value.as_object_mut()) {
        let Parts { subject, field, found, expected, rule, page, says } = parts;
        map.insert("object".into(), subject.kind().into());
        map.insert("object_number".into(), subject.number().into());
        map.insert("field".into(), field.into());
        map.insert("found".into(), found.into());
        map.insert("expected".into(), expected.into());
        map.insert("rule".into(), json!({"name": rule, "page": page, "says": says}));
    }
    value
}
