//! The page: every metric with its samples, in Prometheus' text format 0.0.4 ("Exposition formats").

use std::fmt::Write;

use serde_json::{Map, Value};

use super::families::{
    ADAPTER, BUILD, CACHE, ENGINE, FUNCTION, Family, Kind, LINK, OBJECTS, OUTSIDE, PORT, QUEUE, SCRAPES,
    SERVER, SLOT, TUNNEL, TUNNELS, UNITS, Unit,
};

/// What the control socket would answer, and what only this page has.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// `stat`, without queue pairs.
    pub(crate) stat: Value,
    /// `metrics`.
    pub(crate) metrics: Value,
    /// `resources`.
    pub(crate) resources: Value,
    /// `links`.
    pub(crate) links: Value,
    /// Pages sent before.
    pub(crate) scrapes: u64,
}

/// Samples, by their metric, in the order in which metrics came up.
#[derive(Default)]
struct Samples(Vec<(Family, String)>);

type Labels<'a> = [(&'a str, &'a str)];

impl Samples {
    fn add(&mut self, family: Family, labels: &Labels<'_>, value: &Value) {
        let Some(number) = number(value, family.unit) else { return };
        let known = self.0.iter().position(|(of, _)| of.name == family.name);
        let at = known.unwrap_or_else(|| {
            self.0.push((family, String::new()));
            self.0.len() - 1
        });
        let Some((_, text)) = self.0.get_mut(at) else { return };
        text.push_str(family.name);
        for (i, (name, value)) in labels.iter().enumerate() {
            let _ = write!(text, "{}{name}=\"{}\"", if i == 0 { '{' } else { ',' }, escaped(value));
        }
        let _ = writeln!(text, "{} {number}", if labels.is_empty() { "" } else { "}" });
    }

    fn group(&mut self, families: &[Family], labels: &Labels<'_>, object: &Value) {
        for family in families {
            if let Some(value) = object.get(family.key) {
                self.add(*family, labels, value);
            }
        }
    }

    /// Every number of an object, its key as a label.
    fn by_key(&mut self, family: Family, key: &str, labels: &Labels<'_>, object: &Value) {
        for (name, value) in object.as_object().into_iter().flatten() {
            self.add(family, &[labels, &[(key, name)]].concat(), value);
        }
    }

    fn text(self) -> String {
        let mut page = String::new();
        for (Family { name, help, kind, .. }, samples) in self.0 {
            let kind = if kind == Kind::Counter { "counter" } else { "gauge" };
            let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}");
        }
        page
    }
}

/// A number or a truth in base units, as text.
fn number(value: &Value, unit: Unit) -> Option<String> {
    if let Some(truth) = value.as_bool() {
        return Some(u8::from(truth).to_string());
    }
    let whole = value.as_u64()?;
    let decimal = |digits: u32| {
        let one = 10u64.pow(digits);
        let (whole, rest, width) = (whole / one, whole % one, digits as usize);
        format!("{whole}.{rest:0width$}")
    };
    Some(match unit {
        Unit::One => whole.to_string(),
        Unit::Words => u128::from(whole).saturating_mul(4).to_string(),
        Unit::Nano => decimal(9),
        Unit::Micro => decimal(6),
    })
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn name<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The page.
pub(crate) fn page(source: &Source) -> String {
    let Source { stat, metrics, resources, links, scrapes } = source;
    let mut samples = Samples::default();
    samples.add(BUILD, &[("version", env!("CARGO_PKG_VERSION"))], &1.into());
    samples.add(SCRAPES, &[], &(*scrapes).into());
    samples.group(SERVER, &[], stat);
    let engine = stat.get("engine").unwrap_or(&Value::Null);
    samples.group(ENGINE, &[], engine);
    // Where tenants are apart there are several, by worker.
    for (worker, engine) in engine.as_object().into_iter().flatten().filter(|(_, engine)| engine.is_object())
    {
        samples.group(ENGINE, &[("worker", worker)], engine);
    }
    for hca in list(metrics, "hcas") {
        let labels = [("adapter", name(hca, "name"))];
        samples.group(SLOT, &labels, hca);
        samples.group(FUNCTION, &labels, hca);
    }
    for hca in list(resources, "hcas") {
        let labels = [("adapter", name(hca, "name"))];
        samples.by_key(OBJECTS, "kind", &labels, hca.get("now").unwrap_or(&Value::Null));
    }
    for hca in list(stat, "hcas") {
        let labels = [("adapter", name(hca, "name"))];
        let part = |key| hca.get(key).unwrap_or(&Value::Null);
        samples.group(ADAPTER, &labels, part("adapter"));
        samples.group(UNITS, &labels, part("units"));
        caches(&mut samples, name(hca, "name"), part("units").as_object());
        samples.by_key(QUEUE, "event", &labels, part("q_counters"));
    }
    for node in list(stat, "hcas").chain(list(stat, "switches")) {
        for port in list(node, "ports") {
            let number = port.get("port").map(Value::to_string).unwrap_or_default();
            let labels = [("node", name(node, "name")), ("port", number.as_str())];
            samples.group(PORT, &labels, port.get("counters").unwrap_or(&Value::Null));
        }
    }
    for link in list(links, "links") {
        let ends: Vec<&str> = list(link, "between").filter_map(Value::as_str).collect();
        let end = |i: usize| ends.get(i).copied().unwrap_or_default();
        samples.group(LINK, &[("a", end(0)), ("b", end(1))], link);
    }
    if let Some(tunnels) = metrics.get("tunnels") {
        samples.group(TUNNELS, &[], tunnels);
        for tunnel in list(tunnels, "links") {
            samples.group(TUNNEL, &[("link", name(tunnel, "link")), ("peer", name(tunnel, "peer"))], tunnel);
        }
    }
    for outside in list(stat, "outsides") {
        let labels = [
            ("outside", name(outside, "name")),
            ("link", name(outside, "link")),
            ("medium", name(outside, "medium")),
        ];
        samples.group(OUTSIDE, &labels, outside);
    }
    samples.text()
}

fn caches(samples: &mut Samples, adapter: &str, units: Option<&Map<String, Value>>) {
    for (key, value) in units.into_iter().flatten() {
        let result = [("_hits", "hit"), ("_misses", "miss")];
        for (cache, result) in
            result.iter().filter_map(|(end, result)| Some((key.strip_suffix(end)?, result)))
        {
            samples.add(CACHE, &[("adapter", adapter), ("cache", cache), ("result", result)], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use hca_model::HcaId;
    use serde_json::json;

    use super::*;
    use crate::metrics::Metrics;
    use crate::scrape::families;
    use crate::topology::Topology;
    use crate::{counters, model};

    const GOLDEN: &str = "\
# HELP softhca_build_info Always 1; the version is a label.
# TYPE softhca_build_info gauge
softhca_build_info{version=\"0.1.0\"} 1
# HELP softhca_scrapes_total Pages of metrics sent before this one.
# TYPE softhca_scrapes_total counter
softhca_scrapes_total 7
# HELP softhca_model_time_seconds Model time.
# TYPE softhca_model_time_seconds gauge
softhca_model_time_seconds 1.000000005
# HELP softhca_round_longest_seconds The longest round so far.
# TYPE softhca_round_longest_seconds gauge
softhca_round_longest_seconds 0.000071
# HELP softhca_adapter_attached Whether a host is attached to the adapter.
# TYPE softhca_adapter_attached gauge
softhca_adapter_attached{adapter=\"a\\\"\\\\\\n\"} 1
softhca_adapter_attached{adapter=\"b/hca0\"} 0
# HELP softhca_objects Objects that the adapter holds, by kind.
# TYPE softhca_objects gauge
softhca_objects{adapter=\"b/hca0\",kind=\"qps\"} 3
# HELP softhca_cache_lookups_total Look-ups in the adapter's caches, by their result.
# TYPE softhca_cache_lookups_total counter
softhca_cache_lookups_total{adapter=\"b/hca0\",cache=\"key\",result=\"hit\"} 5
softhca_cache_lookups_total{adapter=\"b/hca0\",cache=\"key\",result=\"miss\"} 6
# HELP softhca_port_transmitted_bytes_total Bytes sent, in words of four.
# TYPE softhca_port_transmitted_bytes_total counter
softhca_port_transmitted_bytes_total{node=\"b/hca0\",port=\"1\"} 73786976294838206460
softhca_port_transmitted_bytes_total{node=\"sw0\",port=\"3\"} 8
# HELP softhca_link_up Whether the link has trained.
# TYPE softhca_link_up gauge
softhca_link_up{a=\"a/hca0\",b=\"sw0/1\"} 1
# HELP softhca_tunnel_joined Whether a session is open.
# TYPE softhca_tunnel_joined gauge
softhca_tunnel_joined{link=\"x - y\",peer=\"right\"} 0
";

    #[test]
    fn the_page_is_as_it_was() {
        let port = |number: u8, words: u64| json!({"port": number, "counters": {"xmit_data_words": words}});
        let source = Source {
            stat: json!({
                "time_ns": 1_000_000_005u64,
                "engine": {"longest_us": 71},
                "hcas": [{"name": "b/hca0", "ports": [port(1, u64::MAX)], "units": {"key_hits": 5, "key_misses": 6}}],
                "switches": [{"name": "sw0", "ports": [port(3, 2)]}],
            }),
            metrics: json!({
                "hcas": [{"name": "a\"\\\n", "attached": true}, {"name": "b/hca0", "attached": false}],
                "tunnels": {"links": [{"link": "x - y", "peer": "right", "joined": false}]},
            }),
            resources: json!({"hcas": [{"name": "b/hca0", "now": {"qps": 3}}]}),
            links: json!({"links": [{"between": ["a/hca0", "sw0/1"], "up": true}]}),
            scrapes: 7,
        };
        assert_eq!(page(&source), GOLDEN);
    }

    #[test]
    fn names_follow_the_conventions() {
        let all = families::all();
        let names: BTreeSet<&str> = all.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), all.len(), "a name is there twice");
        for Family { name, help, kind, unit, .. } in all {
            let usual = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.starts_with("softhca_") && name.chars().all(usual), "{name}");
            assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}");
            let of = name.trim_end_matches("_total");
            assert_eq!(of.ends_with("_seconds"), matches!(unit, Unit::Nano | Unit::Micro), "{name}");
            assert!(unit != Unit::Words || of.ends_with("_bytes"), "{name}");
        }
    }

    /// A new counter has a metric, too.
    #[test]
    fn every_number_of_stat_is_on_the_page() {
        let topology = Topology::parse("test", "[[host]]\nname = \"a\"\n[[host.hca]]\n").unwrap();
        let (world, _) = model::world(&topology, &topology.part(None).unwrap()).unwrap();
        let stat = counters::totals(&world, HcaId(0));
        let port = &stat["ports"][0]["counters"];
        let metrics = json!(Metrics::default());
        for (object, families) in
            [(&stat["adapter"], ADAPTER), (&stat["units"], UNITS), (port, PORT), (&metrics, FUNCTION)]
        {
            let keys: Vec<&String> = object.as_object().unwrap().keys().collect();
            assert!(!keys.is_empty());
            for key in keys {
                let cached = key.ends_with("_hits") || key.ends_with("_misses");
                assert!(cached || families.iter().any(|family| family.key == key), "{key} has no metric");
            }
            for family in families.iter().filter(|f| !["dma_errors", "diagnoses"].contains(&f.key)) {
                assert!(object.get(family.key).is_some(), "{}: there is no {}", family.name, family.key);
            }
        }
    }
}
