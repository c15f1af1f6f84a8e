//! What happens on script to adapters in their slots, and what they tell the root complex: kept for whoever has the slots, who launches
//! guests.
//!
//! A server has no slots: QEMU has. What a launcher is told is an object with `"hca"`, `"at"` (model time) and `"what"`: `"removed"`
//! (it is to be taken out without a word), `"ejected"` (when the guest has let go of it), `"inserted"`, or `"error"`, a message about an
//! error of PCI Express, with its `"message"`.

use hca_model::fault::SlotEvent;
use hca_model::{HcaId, World};
use serde_json::{Value, json};

use crate::function::Function;
use crate::kept::Kept;

/// The last of them.
#[derive(Debug, Default)]
pub(crate) struct Slots(Kept);

impl Slots {
    /// Takes what is new of a function.
    pub(crate) fn take(&mut self, world: &mut World, function: &mut Function) {
        let place = function.place();
        if world.has_pcie_news(place) {
            function.log_errors(world);
            for event in world.take_slot_events(place) {
                let what = match event {
                    SlotEvent::Removed => "removed",
                    SlotEvent::Ejected => "ejected",
                    SlotEvent::Inserted => "inserted",
                };
                tracing::info!("{}: {what}", function.name());
                self.note(world, function, json!({ "what": what }));
            }
        }
        for message in function.take_messages() {
            tracing::info!("{}: {message} to the root complex", function.name());
            self.note(world, function, json!({ "what": "error", "message": message.to_string() }));
        }
    }

    fn note(&mut self, world: &World, function: &Function, mut value: Value) {
        if let Some(map) = value.as_object_mut() {
            map.insert("hca".into(), function.name().into());
            map.insert("at".into(), world.now().to_string().into());
        }
        self.0.push(value);
    }

    /// What the control socket answers to `slots`.
    pub(crate) fn answer(&self, world: &World, request: &Value) -> Value {
        self.0.answer("slots", world.name(HcaId(0)), request)
    }
}
