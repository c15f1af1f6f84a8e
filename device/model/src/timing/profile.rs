//! The profile file: numbers with their sources, checked while they are read.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

use crate::time::Ps;

/// The numbers of the timing model, from a TOML file.
///
/// Every key is required and no other is known, so that a misspelt one can't go unnoticed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub(super) name: String,
    pub(super) pcie: Pcie,
    pub(super) send: Send,
    pub(super) receive: Receive,
    pub(super) completion: Completion,
    pub(super) cache: Cache,
    pub(super) port: Port,
    pub(super) fabric: Fabric,
    pub(super) command: Command,
    pub(super) clock: Clock,
}

/// Why a text is not a profile: the line, the key and the reason.
#[derive(Clone, Debug, thiserror::Error)]
#[error("timing profile: {0}")]
pub struct ProfileError(#[from] toml::de::Error);

/// The profile that the crate carries.
const CONNECTX4: &str = include_str!("../../profiles/connectx4.toml");

impl Profile {
    /// ConnectX-4, PCIe Gen3 x16, EDR InfiniBand.
    pub fn connectx4() -> Self {
        match Self::from_toml(CONNECTX4) {
            Ok(profile) => profile,
            Err(why) => unreachable!("the embedded profile is checked by a test: {why}"),
        }
    }

    /// Sets how long links take to train.
    pub fn set_link_training(&mut self, time: Ps) {
        self.port.link_training_ms = Ms(time);
    }

    /// The embedded profile of that name.
    pub fn named(name: &str) -> Option<Self> {
        (name == "connectx4").then(Self::connectx4)
    }

    /// The text of the embedded profile of that name, for who wants some of its numbers otherwise.
    pub fn text(name: &str) -> Option<&'static str> {
        (name == "connectx4").then_some(CONNECTX4)
    }

    /// Reads a profile.
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        Ok(toml::from_str(text)?)
    }

    /// The profile's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self::connectx4()
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pcie {
    pub(super) lane_gt_per_s: Real,
    pub(super) encoding: (Count, Count),
    pub(super) lanes: Count,
    pub(super) max_payload: Count,
    pub(super) max_read_request: Count,
    pub(super) request_overhead: Count,
    pub(super) completion_overhead: Count,
    pub(super) dllp_interval: Count,
    pub(super) dllp_bytes: Count,
    pub(super) skp_share: Real,
    pub(super) mmio_write_ns: Ns,
    pub(super) read_ns: Ns,
    pub(super) write_ns: Ns,
    pub(super) read_tags: Count,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Send {
    pub(super) units: Count,
    pub(super) wqe_ns: Ns,
    pub(super) packet_ns: Ns,
    pub(super) packet_ps_per_byte: PerByte,
    pub(super) prefetch_bytes: Count,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Receive {
    pub(super) units: Count,
    pub(super) packet_ns: Ns,
    pub(super) packet_ps_per_byte: PerByte,
    pub(super) respond_ns: Ns,
    pub(super) wqe_ns: Ns,
    pub(super) atomic_ns: Ns,
    pub(super) atomic_issue_ns: Ns,
    pub(super) atomic_buckets: Count,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Completion {
    pub(super) cqe_ns: Ns,
    pub(super) eqe_ns: Ns,
    pub(super) interrupt_ns: Ns,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cache {
    pub(super) context_entries: Count,
    pub(super) context_bytes: Count,
    pub(super) translation_entries: Count,
    pub(super) translation_bytes: Count,
    pub(super) key_entries: Count,
    pub(super) key_bytes: Count,
    pub(super) umr_ns: Ns,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Port {
    pub(super) loopback_ns: Ns,
    pub(super) phy_ns: Ns,
    pub(super) link_training_ms: Ms,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fabric {
    pub(super) hop_ns: Ns,
    pub(super) switch_buffer: Count,
    pub(super) adapter_buffer: Count,
    pub(super) egress_ns: Ns,
    pub(super) agent_us: Us,
    pub(super) agent_queue: Count,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Command {
    pub(super) query_us: Us,
    pub(super) create_us: Us,
    pub(super) destroy_us: Us,
    pub(super) modify_us: Us,
    pub(super) pages_us: Us,
    pub(super) lifecycle_us: Us,
    pub(super) mad_us: Us,
    pub(super) other_us: Us,
    pub(super) input_ps_per_byte: PerByte,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Clock {
    pub(super) timer_khz: Count,
    pub(super) health_tick_ms: Ms,
}

/// A whole number from 1 to 10^9.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count(u64);

impl Count {
    pub(super) const fn get(self) -> u64 {
        self.0
    }
}

/// A number above 0, up to 10^9.
#[derive(Clone, Copy, Debug)]
pub(super) struct Real(f64);

impl Real {
    pub(super) const fn get(self) -> f64 {
        self.0
    }
}

/// Picoseconds per byte, not negative.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerByte(u64);

impl PerByte {
    /// The time that `bytes` take.
    pub(super) const fn times(self, bytes: usize) -> Ps {
        Ps((bytes as u64).saturating_mul(self.0))
    }
}

/// A duration given in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ns(pub(super) Ps);

/// A duration given in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Us(pub(super) Ps);

/// A duration given in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ms(pub(super) Ps);

/// The largest number any key takes: 10^9 milliseconds still fit into a [`Ps`].
const MAX: f64 = 1e9;

/// Takes an integer or a float.
struct Number;

impl de::Visitor<'_> for Number {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let value = from.deserialize_any(Number)?;
    if (0.0..=MAX).contains(&value) {
        Ok(value)
    } else {
        Err(de::Error::custom(format!("{value} is out of range: 0 to 1e9")))
    }
}

/// A duration of a unit of `ps` picoseconds, rounded to the picosecond.
fn duration<'de, D: Deserializer<'de>>(from: D, ps: f64) -> Result<Ps, D::Error> {
    Ok(Ps((number(from)? * ps).round() as u64))
}

impl<'de> Deserialize<'de> for Ns {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        duration(from, 1e3).map(Self)
    }
}

impl<'de> Deserialize<'de> for Us {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        duration(from, 1e6).map(Self)
    }
}

impl<'de> Deserialize<'de> for Ms {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        duration(from, 1e9).map(Self)
    }
}

impl<'de> Deserialize<'de> for PerByte {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(number(from)?.round() as u64))
    }
}

impl<'de> Deserialize<'de> for Real {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match number(from)? {
            value if value > 0.0 => Ok(Self(value)),
            _ => Err(de::Error::custom("must be above 0")),
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match number(from)? {
            value if value >= 1.0 && value.fract() == 0.0 => Ok(Self(value as u64)),
            value => Err(de::Error::custom(format!("{value} must be a whole number from 1 on"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(from: &str, to: &str) -> String {
        assert!(CONNECTX4.contains(from), "{from}");
        Profile::from_toml(&CONNECTX4.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn the_embedded_profile_is_one() {
        let profile = Profile::connectx4();
        assert_eq!(profile.name(), "connectx4");
        assert!(Profile::named("connectx4").is_some() && Profile::named("connectx9").is_none());
        assert_eq!(profile.port.loopback_ns.0, Ps(26_500));
        assert_eq!(profile.port.link_training_ms.0, Ps::from_ms(10));
    }

    #[test]
    fn errors_name_the_key() {
        for (from, to, key, reason) in [
            ("read_ns = 403", "read_ns = -1", "read_ns", "out of range"),
            ("read_ns = 403", "read_ns = nan", "read_ns", "out of range"),
            ("read_ns = 403", "read_ns = \"fast\"", "read_ns", "expected a number"),
            ("read_tags = 64", "read_tags = 0", "read_tags", "whole number from 1 on"),
            ("read_tags = 64", "read_tags = 1.5", "read_tags", "whole number from 1 on"),
            ("skp_share = 0.0026", "skp_share = 0", "skp_share", "above 0"),
            ("read_tags = 64", "", "read_tags", "missing field"),
            ("read_tags = 64", "read_tags = 64\nread_tag = 64", "read_tag", "unknown field"),
            ("[clock]", "[clocks]", "clocks", "unknown field"),
        ] {
            let error = edited(from, to);
            assert!(error.contains(key) && error.contains(reason), "{to}: {error}");
        }
    }
}
