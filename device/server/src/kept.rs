//! The last of what was said, for clients of the control socket that ask again and again for what is new.

use std::collections::VecDeque;

use serde_json::{Value, json};

/// How many are kept: the last ones.
const KEPT: usize = 1000;

/// Objects, numbered from 0 on.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    kept: VecDeque<Value>,
    /// Number of the first that is kept.
    first: u64,
}

impl Kept {
    /// Keeps one more, which gets its `"number"`.
    pub(crate) fn push(&mut self, mut value: Value) {
        if let Some(map) = value.as_object_mut() {
            map.insert("number".into(), self.count().into());
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(value);
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Those that `request` asks for by `"since"`, which is what an earlier answer said under `"next"`: a number for each
    /// engine, by its name. `"lost"`: so many were not kept long enough. `key`: what they are.
    pub(crate) fn answer(&self, key: &str, engine: &str, request: &Value) -> Value {
        let since = request.get("since").and_then(|since| since.get(engine));
        let since = since.and_then(Value::as_u64).unwrap_or(0);
        let skipped = usize::try_from(since.saturating_sub(self.first)).unwrap_or(usize::MAX);
        json!({
            key: self.kept.iter().skip(skipped).collect::<Vec<_>>(),
            "lost": self.first.saturating_sub(since),
            "next": { engine: self.count() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new() {
        let mut kept = Kept::default();
        (0..3).for_each(|i| kept.push(json!({"i": i})));
        let all = kept.answer("notes", "a", &json!({}));
        assert_eq!(
            (all["notes"].as_array().unwrap().len(), &all["notes"][2]),
            (3, &json!({"i": 2, "number": 2}))
        );
        let none = kept.answer("notes", "a", &json!({"since": all["next"]}));
        assert_eq!((&none["notes"], &none["lost"]), (&json!([]), &json!(0)));
        (0..KEPT).for_each(|i| kept.push(json!({"i": i})));
        let late = kept.answer("notes", "a", &json!({"since": {"a": 1}}));
        assert_eq!((&late["lost"], late["notes"].as_array().unwrap().len()), (&json!(2), KEPT));
    }
}
