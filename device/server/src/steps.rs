//! What an engine does with its adapters, and a replay of what was recorded does in the same way.

use std::sync::Arc;

use hca_model::link::LinkMessage;
use hca_model::{Effect, FunctionRef, HcaId, Ps, TunnelEvent, World};
use serde_json::Value;

use crate::faults::Faults;
use crate::function::Function;
use crate::links::Links;
use crate::memory::Limits;
use crate::model;
use crate::recording::{Bytes, Record, Seam};
use crate::topology::{Part, Topology};

/// The model of a part of a topology, with its checker.
///
/// # Errors
/// The model refuses it.
pub(crate) fn world(topology: &Topology, part: &Part<'_>) -> anyhow::Result<(World, Links)> {
    let (mut world, links) = model::world(topology, part)?;
    for (i, (_, hca)) in part.hcas().enumerate() {
        world.limit_events(HcaId(i), hca.events);
    }
    if topology.checker.enabled {
        world.start_checker(Ps::from_ms(topology.checker.patience_ms));
    }
    Ok((world, links))
}

/// The functions of its adapters, in their order.
pub(crate) fn functions(part: &Part<'_>) -> Vec<Function> {
    let limits = Limits::shared_by(part.hcas().count());
    let function = |(i, (host, hca)): (usize, (&crate::topology::Host, &crate::topology::Hca))| {
        let name = format!("{}/{}", host.name, hca.name);
        let serial = format!("{:016x}", hca.guid);
        Function::new(name, HcaId(i).into(), Arc::clone(&hca.personality), hca.port_type, &serial, limits)
            .with_rom(hca.rom.clone())
            .with_report(hca.diagnoses)
    };
    part.hcas().enumerate().map(function).collect()
}

/// Delivers an interrupt that the model has raised, if that is the function.
pub(crate) fn deliver(world: &mut World, function: Option<&mut Function>, effect: Effect) {
    let Effect::Msix { hca, function: id, vector } = effect;
    let place = FunctionRef { hca, function: id };
    if let Some(function) = function.filter(|function| function.place() == place) {
        if world.is_checked()
            && let Some(finding) = function.check_raised(world.now(), vector)
        {
            world.found(world.now(), place, finding);
        }
        function.raise(vector);
    }
}

/// What a checker has to say of the PCI functions when time has passed.
pub(crate) fn check<'a>(world: &mut World, functions: impl Iterator<Item = &'a mut Function>) {
    let Some(patience) = world.patience() else { return };
    for function in functions.filter(|function| function.is_waiting()) {
        if let Some(finding) = function.check_late(world.now(), patience) {
            world.found(world.now(), function.place(), finding);
        }
    }
}

/// Takes what has left by tunnels up to now.
pub(crate) fn leaving(world: &mut World, seam: &Seam) -> Vec<TunnelEvent> {
    let events = world.drain_tunnels(world.now());
    for TunnelEvent { tunnel, message, .. } in &events {
        seam.came(|| {
            let what = match message {
                LinkMessage::Packet(packet) => Bytes::of(&packet.packet.clone().into_bytes()),
                LinkMessage::Light(_) | LinkMessage::Credit { .. } => {
                    Bytes::of(format!("{message:?}").as_bytes())
                }
            };
            Record::Left { link: tunnel.0 as u16, what }
        });
    }
    events
}

/// Does what the operator asks of the model: links and faults.
///
/// # Errors
/// What is wrong with the request, as text.
pub(crate) fn operate(
    world: &mut World,
    (links, faults): (&mut Links, &mut Faults),
    now: Ps,
    request: &Value,
) -> Result<Value, String> {
    if request.get("cmd").and_then(Value::as_str) == Some("fault") {
        return faults.answer(world, now, request);
    }
    let word = |key: &str| request.get(key).and_then(Value::as_str);
    let (Some(at), Some(state)) = (word("at"), word("state")) else {
        return Err("link: \"at\" and \"state\" are needed".into());
    };
    links.set(world, now, at, state)
}
