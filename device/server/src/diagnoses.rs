//! What the model has diagnosed of drivers, kept for those who ask by the control socket.

use hca_model::{Diagnosis, HcaId, Parts, World};
use serde_json::{Value, json};

use crate::kept::Kept;

/// The last diagnoses.
#[derive(Debug, Default)]
pub(crate) struct Diagnoses(Kept);

impl Diagnoses {
    /// Takes what is new, and tells of each.
    pub(crate) fn take(&mut self, world: &mut World, mut tell: impl FnMut(&Diagnosis, &Value)) {
        for diagnosis in world.drain_diagnoses() {
            let value = value(world, &diagnosis, self.0.count());
            tell(&diagnosis, &value);
            self.0.push(value);
        }
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.0.count()
    }

    /// Those that `request` asks for.
    pub(crate) fn answer(&self, world: &World, request: &Value) -> Value {
        self.0.answer("diagnoses", world.name(HcaId(0)), request)
    }
}

fn value(world: &World, diagnosis: &Diagnosis, number: u64) -> Value {
    let mut value = json!({
        "number": number,
        "at": diagnosis.at.to_string(),
        "at_ps": world.start().wrapped(diagnosis.at),
        "hca": world.name(diagnosis.function.hca),
        "text": diagnosis.saying.to_string(),
        "before": diagnosis.before.iter().map(|before| json!({
            "ago": diagnosis.at.since(before.at).to_string(),
            "at": before.at.to_string(),
            "text": before.what,
        })).collect::<Vec<_>>(),
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
