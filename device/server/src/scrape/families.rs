//! Which metrics there are, and where `softhca stat` has them.

/// What a number does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It grows, and starts at zero with the server.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// From a number to its base unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// It has none, or is in bytes.
    One,
    /// Words of four bytes.
    Words,
    /// Nanoseconds.
    Nano,
    /// Microseconds.
    Micro,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    /// Its key in the object that it is in.
    pub(super) key: &'static str,
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: Unit,
}

const fn family(key: &'static str, name: &'static str, help: &'static str, kind: Kind, unit: Unit) -> Family {
    Family { key, name, help, kind, unit }
}

const fn counter(key: &'static str, name: &'static str, help: &'static str) -> Family {
    family(key, name, help, Kind::Counter, Unit::One)
}

const fn gauge(key: &'static str, name: &'static str, help: &'static str) -> Family {
    family(key, name, help, Kind::Gauge, Unit::One)
}

/// Of the server.
pub(super) const SERVER: &[Family] = &[
    family("time_ns", "softhca_model_time_seconds", "Model time.", Kind::Gauge, Unit::Nano),
    family(
        "lag_ns",
        "softhca_model_lag_seconds",
        "How far model time is behind the clock.",
        Kind::Gauge,
        Unit::Nano,
    ),
];

/// Of the engine.
pub(super) const ENGINE: &[Family] = &[
    counter("rounds", "softhca_rounds_total", "Rounds of the engine."),
    counter("late", "softhca_rounds_late_total", "Rounds that took more than twice their budget."),
    family(
        "longest_us",
        "softhca_round_longest_seconds",
        "The longest round so far.",
        Kind::Gauge,
        Unit::Micro,
    ),
    family(
        "budget_us",
        "softhca_round_budget_seconds",
        "Host time that a round may take.",
        Kind::Gauge,
        Unit::Micro,
    ),
];

/// Of an adapter, beside its other objects.
pub(super) const SLOT: &[Family] =
    &[gauge("attached", "softhca_adapter_attached", "Whether a host is attached to the adapter.")];

/// Of an adapter's connection to hosts.
pub(super) const FUNCTION: &[Family] = &[
    counter("clients", "softhca_adapter_clients_total", "Hosts that attached."),
    counter("messages", "softhca_adapter_messages_total", "Requests of hosts handled."),
    counter("reads", "softhca_adapter_register_reads_total", "Reads of configuration space and BARs."),
    counter("writes", "softhca_adapter_register_writes_total", "Writes to configuration space and BARs."),
    counter("interrupts", "softhca_adapter_interrupts_signalled_total", "Interrupts signalled to the host."),
    counter("interrupts_held", "softhca_adapter_interrupts_held_total", "Interrupts kept pending."),
    counter(
        "interrupts_dropped",
        "softhca_adapter_interrupts_dropped_total",
        "Interrupts that could not be told.",
    ),
    counter("resets", "softhca_adapter_resets_total", "Resets."),
    counter("dma_errors", "softhca_adapter_dma_errors_total", "Accesses to memory of the host that failed."),
    counter("diagnoses", "softhca_adapter_diagnoses_total", "Mistakes of drivers that were explained."),
];

/// Of an adapter's work.
pub(super) const ADAPTER: &[Family] = &[
    counter("commands", "softhca_adapter_commands_total", "Commands executed."),
    counter("doorbells", "softhca_adapter_doorbells_total", "Send doorbells, BlueFlame copies included."),
    counter("blueflame", "softhca_adapter_blueflame_total", "Work requests that came with their doorbell."),
    counter("fetches", "softhca_adapter_fetches_total", "Fetches of send work requests."),
    counter(
        "packets_dropped",
        "softhca_adapter_packets_dropped_total",
        "Packets that arrived and were dropped.",
    ),
    counter("cqes", "softhca_adapter_completions_total", "Completions written."),
    counter("eqes", "softhca_adapter_events_total", "Events written."),
    counter("interrupts", "softhca_adapter_interrupts_raised_total", "Interrupts raised."),
    counter("requests_started", "softhca_adapter_requests_started_total", "Work requests begun."),
    counter("requests_done", "softhca_adapter_requests_done_total", "Work requests done without error."),
    counter("requests_failed", "softhca_adapter_requests_failed_total", "Work requests that ended in error."),
    counter("request_packets", "softhca_adapter_request_packets_total", "Request packets built."),
    counter("request_bytes", "softhca_adapter_request_bytes_total", "Bytes of request packets."),
    counter("response_packets", "softhca_adapter_response_packets_total", "Response packets built."),
    counter("response_bytes", "softhca_adapter_response_bytes_total", "Bytes of response packets."),
    counter(
        "executed_packets",
        "softhca_adapter_executed_packets_total",
        "Request packets of peers executed.",
    ),
    counter("executed_bytes", "softhca_adapter_executed_bytes_total", "Payload of peers' requests executed."),
    counter("duplicates", "softhca_adapter_duplicates_total", "Request packets of peers that came again."),
    counter("answers", "softhca_adapter_answers_total", "Answers of peers that counted."),
    counter("held", "softhca_adapter_held_total", "Times that a queue pair had to wait with work to do."),
    counter("timeouts", "softhca_adapter_timeouts_total", "ACK timeouts."),
    counter("retries", "softhca_adapter_retries_total", "Times that a queue pair went back to send again."),
];

/// Of an adapter's units; `_hits` and `_misses` are [`CACHE`].
pub(super) const UNITS: &[Family] = &[
    counter("jobs", "softhca_unit_jobs_total", "Jobs of the processing units."),
    family(
        "busy_ns",
        "softhca_unit_busy_seconds_total",
        "Model time that units were busy.",
        Kind::Counter,
        Unit::Nano,
    ),
    counter("list_entries", "softhca_list_entries_total", "Entries of long indirect keys that were walked."),
    counter("pcie_reads", "softhca_pcie_reads_total", "Reads of host memory."),
    counter("pcie_read_bytes", "softhca_pcie_read_bytes_total", "Bytes of host memory read."),
    counter("pcie_writes", "softhca_pcie_writes_total", "Writes to host memory."),
    counter("pcie_written_bytes", "softhca_pcie_written_bytes_total", "Bytes of host memory written."),
    counter("pcie_stores", "softhca_pcie_stores_total", "Stores of the host to the adapter."),
    counter("pcie_stored_bytes", "softhca_pcie_stored_bytes_total", "Bytes of such stores."),
];

/// Of a port of an adapter or a switch ("PortCounters", IBTA 16.1.3.5).
pub(super) const PORT: &[Family] = &[
    counter("xmit_packets", "softhca_port_transmitted_packets_total", "Packets sent."),
    counter("rcv_packets", "softhca_port_received_packets_total", "Packets received."),
    words("xmit_data_words", "softhca_port_transmitted_bytes_total", "Bytes sent, in words of four."),
    words("rcv_data_words", "softhca_port_received_bytes_total", "Bytes received, in words of four."),
    counter(
        "multicast_xmit_packets",
        "softhca_port_multicast_transmitted_packets_total",
        "Multicast packets sent.",
    ),
    counter(
        "multicast_rcv_packets",
        "softhca_port_multicast_received_packets_total",
        "Multicast packets received.",
    ),
    words(
        "multicast_xmit_data_words",
        "softhca_port_multicast_transmitted_bytes_total",
        "Multicast bytes sent.",
    ),
    words(
        "multicast_rcv_data_words",
        "softhca_port_multicast_received_bytes_total",
        "Multicast bytes received.",
    ),
    counter("symbol_errors", "softhca_port_symbol_errors_total", "SymbolErrorCounter."),
    counter("rcv_errors", "softhca_port_receive_errors_total", "PortRcvErrors."),
    counter(
        "rcv_remote_physical_errors",
        "softhca_port_receive_remote_physical_errors_total",
        "PortRcvRemotePhysicalErrors.",
    ),
    counter(
        "rcv_switch_relay_errors",
        "softhca_port_receive_switch_relay_errors_total",
        "PortRcvSwitchRelayErrors.",
    ),
    counter(
        "rcv_constraint_errors",
        "softhca_port_receive_constraint_errors_total",
        "PortRcvConstraintErrors.",
    ),
    counter(
        "xmit_constraint_errors",
        "softhca_port_transmit_constraint_errors_total",
        "PortXmitConstraintErrors.",
    ),
    counter("xmit_discards", "softhca_port_transmit_discards_total", "PortXmitDiscards."),
    counter("xmit_wait_ticks", "softhca_port_transmit_wait_ticks_total", "PortXmitWait."),
    counter("link_error_recovery", "softhca_port_link_error_recovery_total", "LinkErrorRecoveryCounter."),
    counter("link_downed", "softhca_port_link_downed_total", "LinkDownedCounter."),
    counter("vl15_dropped", "softhca_port_vl15_dropped_total", "VL15Dropped."),
];

const fn words(key: &'static str, name: &'static str, help: &'static str) -> Family {
    family(key, name, help, Kind::Counter, Unit::Words)
}

/// Of a link.
pub(super) const LINK: &[Family] = &[
    gauge("up", "softhca_link_up", "Whether the link has trained."),
    gauge("cable", "softhca_link_cable", "Whether the cable is in."),
    gauge("peer", "softhca_link_peer", "Whether the process at the other end is there."),
];

/// Of the tunnels together.
pub(super) const TUNNELS: &[Family] = &[
    counter(
        "strangers",
        "softhca_tunnel_strangers_total",
        "Datagrams of addresses or for links that are nobody's.",
    ),
    counter("unsent", "softhca_tunnel_unsent_total", "Datagrams that the system did not take."),
];

/// Of a tunnel.
pub(super) const TUNNEL: &[Family] = &[
    gauge("joined", "softhca_tunnel_joined", "Whether a session is open."),
    counter("sent", "softhca_tunnel_datagrams_sent_total", "Datagrams sent."),
    counter("received", "softhca_tunnel_datagrams_received_total", "Datagrams received, good and bad."),
    counter("packets_sent", "softhca_tunnel_packets_sent_total", "Packets sent."),
    counter("packets_received", "softhca_tunnel_packets_received_total", "Packets received whole."),
    counter(
        "packets_unsent",
        "softhca_tunnel_packets_unsent_total",
        "Packets for a process that was not there.",
    ),
    counter(
        "packets_crowded",
        "softhca_tunnel_packets_crowded_total",
        "Packets that found too many waiting.",
    ),
    counter(
        "packets_incomplete",
        "softhca_tunnel_packets_incomplete_total",
        "Packets of which pieces were missing.",
    ),
    counter("sessions", "softhca_tunnel_sessions_total", "Sessions begun."),
    counter("malformed", "softhca_tunnel_malformed_total", "Datagrams that are none of the protocol."),
    counter("unauthenticated", "softhca_tunnel_unauthenticated_total", "Datagrams whose tag is wrong."),
    counter("stale", "softhca_tunnel_stale_total", "Datagrams of another session."),
    counter("replayed", "softhca_tunnel_replayed_total", "Datagrams seen before, or too late to know."),
    counter("other_terms", "softhca_tunnel_other_terms_total", "Hellos with other properties of the link."),
];

/// Of an end at which other software is.
pub(super) const OUTSIDE: &[Family] = &[
    gauge("lit", "softhca_outside_lit", "Whether somebody is, or may be, at the other end."),
    counter("frames_sent", "softhca_outside_frames_sent_total", "Frames that went out."),
    counter("bytes_sent", "softhca_outside_sent_bytes_total", "Bytes of them."),
    counter("frames_received", "softhca_outside_frames_received_total", "Frames that came in."),
    counter("bytes_received", "softhca_outside_received_bytes_total", "Bytes of them, without padding."),
    counter("short", "softhca_outside_short_total", "Messages without a whole header."),
    counter("long", "softhca_outside_long_total", "Messages longer than any frame."),
    counter(
        "crowded",
        "softhca_outside_crowded_total",
        "Frames that found too many others waiting to leave.",
    ),
    counter("unsent", "softhca_outside_unsent_total", "Frames for nobody, or that the system did not take."),
    counter("strangers", "softhca_outside_strangers_total", "Datagrams of others than the peer."),
    counter("connections", "softhca_outside_connections_total", "Connections."),
    counter("malformed", "softhca_outside_malformed_total", "Connections that a length ended which is none."),
];

/// Numbers whose key is a label.
pub(super) const CACHE: Family =
    counter("", "softhca_cache_lookups_total", "Look-ups in the adapter's caches, by their result.");
/// The same, of QUERY_Q_COUNTER.
pub(super) const QUEUE: Family = counter("", "softhca_queue_events_total", "Counters of queues, by name.");
/// The same, of objects.
pub(super) const OBJECTS: Family = gauge("", "softhca_objects", "Objects that the adapter holds, by kind.");
/// This program.
pub(super) const BUILD: Family = gauge("", "softhca_build_info", "Always 1; the version is a label.");
/// Of this page.
pub(super) const SCRAPES: Family =
    counter("", "softhca_scrapes_total", "Pages of metrics sent before this one.");

/// All there are, for tests.
#[cfg(test)]
pub(super) fn all() -> Vec<Family> {
    let groups = [SERVER, ENGINE, SLOT, FUNCTION, ADAPTER, UNITS, PORT, LINK, TUNNELS, TUNNEL, OUTSIDE];
    let labelled = [CACHE, QUEUE, OBJECTS, BUILD, SCRAPES];
    groups.into_iter().flatten().copied().chain(labelled).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    const DASHBOARD: &str = include_str!("../../../../packaging/grafana/softhca.json");

    /// The queries below a part of the dashboard.
    fn queries(part: &Value) -> Vec<&str> {
        let own = part.get("expr").and_then(Value::as_str);
        let below: Vec<&Value> = match part {
            Value::Array(all) => all.iter().collect(),
            Value::Object(all) => all.values().collect(),
            _ => Vec::new(),
        };
        own.into_iter().chain(below.into_iter().flat_map(queries)).collect()
    }

    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
        let known: BTreeSet<&str> = all().iter().map(|family| family.name).collect();
        let queries = queries(&dashboard);
        assert!(queries.len() >= 10, "{queries:?}");
        for query in queries {
            let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let ours: Vec<&str> = words.filter(|word| word.starts_with("softhca_")).collect();
            assert!(!ours.is_empty(), "{query}");
            ours.iter().for_each(|name| assert!(known.contains(name), "{query}: there is no {name}"));
            for name in ours.iter().filter(|name| name.ends_with("_total")) {
                assert!(query.contains(&format!("rate({name}")) || query.contains("increase("), "{query}");
            }
        }
    }
}
