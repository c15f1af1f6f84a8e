//! Objects looked at, as the control socket tells of them: structures field by field, by the names of their layouts.

use hca_model::look::{Part, Shown, What};
use hca_model::{HcaId, World};
use serde_json::{Value, json};

/// What the control socket answers to `inspect`: see [`crate::control`].
///
/// # Errors
/// What is wrong with the request, or that there is no such object, with those that there are.
pub(crate) fn answer(world: &World, request: &Value) -> Result<Value, String> {
    let word = request.get("what").and_then(Value::as_str).ok_or("inspect: \"what\" is needed")?;
    let number = match request.get("number") {
        None | Some(Value::Null) => None,
        Some(number) => {
            let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
            Some(number.ok_or("inspect: \"number\" must have at most 32 bits")?)
        }
    };
    let what = What::named(word, number)?;
    let at = request.get("at").and_then(Value::as_str);
    let hcas = || (0..world.hcas()).map(HcaId);
    let mut objects = Vec::new();
    let mut missing = Vec::new();
    for hca in hcas().filter(|hca| at.is_none_or(|at| is_meant(at, world.name(*hca)))) {
        let name = world.name(hca);
        match world.inspect(hca, what) {
            Ok(parts) => objects.push(json!({
                "hca": name,
                "what": word,
                "number": number,
                "parts": parts.iter().map(part).collect::<Vec<_>>(),
            })),
            Err(why) => missing.push(format!("{name}: {why}")),
        }
    }
    if !objects.is_empty() {
        return Ok(json!({ "time_ps": world.now().0, "objects": objects }));
    }
    if missing.is_empty() {
        let names: Vec<&str> = hcas().map(|hca| world.name(hca)).collect();
        return Err(format!(
            "{:?}: there is no such adapter, but {}",
            at.unwrap_or_default(),
            names.join(", ")
        ));
    }
    Err(missing.join("; "))
}

/// Whether an adapter is meant by `HOST` or `HOST/HCA`.
fn is_meant(at: &str, name: &str) -> bool {
    at == name || name.split_once('/').is_some_and(|(host, _)| host == at)
}

fn part(part: &Part) -> Value {
    let structures = part.structures.iter().map(|(layout, bytes)| {
        let mut fields = Vec::new();
        layout.decode(bytes, &mut |view, field, value| {
            fields.push(match view {
                "" => json!({ "name": field.name, "value": value }),
                view => json!({ "name": field.name, "in": view, "value": value }),
            });
        });
        json!({ "layout": layout.name, "fields": fields })
    });
    let values = part.values.iter().map(|(name, value)| match value {
        Shown::Number(number) => json!({ "name": name, "value": number }),
        Shown::Text(text) => json!({ "name": name, "value": text }),
    });
    json!({
        "title": part.title,
        "structures": structures.collect::<Vec<_>>(),
        "values": values.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::is_meant;

    #[test]
    fn adapters_are_named_by_host_or_in_full() {
        assert!(is_meant("a", "a/hca0") && is_meant("a/hca0", "a/hca0"));
        assert!(!is_meant("b", "a/hca0") && !is_meant("hca0", "a/hca0") && !is_meant("a/hca1", "a/hca0"));
    }
}
