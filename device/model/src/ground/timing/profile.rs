//! The profile file: numbers with their sources, checked while they are read.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

use crate::ground::time::Ps;

/// The numbers of the timing model, from a TOML file.
///
/// Every key is required and no other is known, so that a misspelt one can't go unnoticed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub(crate) name: String,
    pub(crate) pcie: Pcie,
    pub(crate) host: Host,
    pub(crate) units: Processing,
    pub(crate) send: Send,
    pub(crate) receive: Receive,
    pub(crate) completion: Completion,
    pub(crate) cache: Cache,
    pub(crate) port: Port,
    pub(crate) ethernet: Ethernet,
    pub(crate) fabric: Fabric,
    pub(crate) command: Command,
    pub(crate) clock: Clock,
}

/// Why a text is not a profile: the line, the key and the reason.
#[derive(Clone, Debug, thiserror::Error)]
#[error("timing profile: {0}")]
pub struct ProfileError(#[from] toml::de::Error);

/// The profiles that the crate carries, by name: the only place that lists them.
const PROFILES: [(&str, &str); 6] = [
    ("connectib", include_str!("../../../profiles/connectib.toml")),
    ("connectx3", include_str!("../../../profiles/connectx3.toml")),
    ("connectx4", include_str!("../../../profiles/connectx4.toml")),
    ("connectx5", include_str!("../../../profiles/connectx5.toml")),
    ("connectx6", include_str!("../../../profiles/connectx6.toml")),
    ("connectx6dx", include_str!("../../../profiles/connectx6dx.toml")),
];

/// The profile that is meant where none is named.
const DEFAULT: &str = "connectx4";

impl Profile {
    /// ConnectX-4, PCIe Gen3 x16, EDR InfiniBand.
    pub fn connectx4() -> Self {
        match Self::named(DEFAULT) {
            Some(profile) => profile,
            None => unreachable!("the embedded profiles are checked by a test"),
        }
    }

    /// Names of the embedded profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|(name, _)| *name)
    }

    /// The embedded profile of that name.
    pub fn named(name: &str) -> Option<Self> {
        match Self::from_toml(Self::text(name)?) {
            Ok(profile) => Some(profile),
            Err(why) => unreachable!("the embedded profiles are checked by a test: {why}"),
        }
    }

    /// The file of the embedded profile of that name.
    pub fn text(name: &str) -> Option<&'static str> {
        PROFILES.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// It is no TOML, or a key is missing, unknown or out of its range.
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        Ok(toml::from_str(text)?)
    }

    /// The profile's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// From a port's start to its link's being up.
    pub const fn link_training(&self) -> Ps {
        self.port.link_training_ms.0
    }

    /// Sets how long links take to train.
    pub fn set_link_training(&mut self, time: Ps) {
        self.port.link_training_ms = Ms(time);
    }

    /// The same slot with another speed, in gigatransfers per second of a lane, and width.
    #[must_use]
    pub fn with_pcie_link(self, gt_per_s: f64, lanes: u8) -> Self {
        let size = |count: Count| u32::try_from(count.get()).unwrap_or(u32::MAX);
        let (payload, request) = (size(self.pcie.max_payload), size(self.pcie.max_read_request));
        self.with_pcie(gt_per_s, lanes.into(), payload, request)
    }

    /// The slot that the adapter is in: gigatransfers per second of a lane, lanes, and what the host allows as payload and
    /// read request, in bytes. Gen3 and later have the line code 128b/130b.
    #[must_use]
    pub fn with_pcie(mut self, gt_per_s: f64, lanes: u32, max_payload: u32, max_read_request: u32) -> Self {
        let pcie = &mut self.pcie;
        pcie.lane_gt_per_s = Real(gt_per_s.clamp(1.0, 1000.0));
        pcie.encoding = if gt_per_s < 8.0 { (Count(8), Count(10)) } else { (Count(128), Count(130)) };
        pcie.lanes = Count(lanes.max(1).into());
        pcie.max_payload = Count(max_payload.max(1).into());
        pcie.max_read_request = Count(max_read_request.max(1).into());
        self
    }

    /// One crossing of the PCI Express link that posted writes in either direction and both ways of a read have in common, at most: a
    /// link to the host that somebody else simulates may take as long.
    pub fn pcie_crossing(&self) -> Ps {
        self.pcie.mmio_write_ns.0.min(self.pcie.write_ns.0).min(Ps(self.pcie.read_ns.0.0 / 2))
    }

    /// Somebody else simulates the link to the host, and each crossing takes `crossing` there: the profile keeps the rest of posted
    /// writes. A read still takes all of its time, of which there and back are a part.
    ///
    /// # Errors
    /// Something takes less altogether; what.
    pub fn leave_crossing(&mut self, crossing: Ps) -> Result<(), String> {
        let pcie = &mut self.pcie;
        let all = [
            ("mmio_write_ns", pcie.mmio_write_ns.0, 1),
            ("write_ns", pcie.write_ns.0, 1),
            ("read_ns", pcie.read_ns.0, 2),
        ];
        if let Some((key, all, times)) = all.into_iter().find(|(_, all, times)| crossing.times(*times) > *all)
        {
            return Err(format!(
                "{} ns, {times} of which are more than the {} ns of pcie.{key} in profile {}",
                crossing.as_ns(),
                all.as_ns(),
                self.name
            ));
        }
        for whole in [&mut pcie.mmio_write_ns, &mut pcie.write_ns] {
            whole.0 = whole.0.since(crossing);
        }
        pcie.crossing += crossing;
        Ok(())
    }

    /// Where reads of host memory are answered from.
    pub fn set_memory(&mut self, memory: Memory) {
        self.host.memory = memory;
    }

    /// Whether the host translates the adapter's addresses.
    pub fn set_iommu(&mut self, iommu: bool) {
        self.host.iommu = iommu;
    }

    /// Whether the memory is at another socket than the adapter.
    pub fn set_remote(&mut self, remote: bool) {
        self.host.remote = remote;
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self::connectx4()
    }
}

/// Where reads of host memory are answered from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// The last-level cache: what was used a short time ago.
    Llc,
    /// Memory itself.
    Dram,
}

/// The host that the adapter is in, as far as PCIe feels it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Host {
    pub(crate) memory: Memory,
    pub(crate) dram_ns: Ns,
    pub(crate) remote: bool,
    pub(crate) remote_ns: Ns,
    pub(crate) iommu: bool,
    pub(crate) iommu_ns: Ns,
    pub(crate) iommu_entries: Count,
    pub(crate) iommu_walkers: Count,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pcie {
    pub(crate) lane_gt_per_s: Real,
    pub(crate) encoding: (Count, Count),
    pub(crate) lanes: Count,
    pub(crate) max_payload: Count,
    pub(crate) max_read_request: Count,
    pub(crate) completion_chunk: Count,
    pub(crate) request_overhead: Count,
    pub(crate) completion_overhead: Count,
    pub(crate) dllp_bytes: Count,
    pub(crate) skp_share: Real,
    pub(crate) mmio_write_ns: Ns,
    pub(crate) read_ns: Ns,
    pub(crate) write_ns: Ns,
    pub(crate) read_tags: Count,
    /// What of a posted write somebody else simulates.
    #[serde(skip)]
    pub(crate) crossing: Ps,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Processing {
    pub(crate) count: Count,
    pub(crate) miss_ns: Ns,
    pub(crate) wqe_miss_ns: Ns,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Send {
    pub(crate) wqe_ns: Ns,
    pub(crate) gather_ns: Ns,
    pub(crate) datagram_ns: Ns,
    pub(crate) packet_ns: Ns,
    pub(crate) pause_ns: Ns,
    pub(crate) pipeline_ns: Ns,
    pub(crate) shared_ns: Ns,
    pub(crate) shared_line_ns: Ns,
    pub(crate) prefetch_bytes: Count,
    pub(crate) prefetches: Count,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Receive {
    pub(crate) request_ns: Ns,
    pub(crate) answer_ns: Ns,
    pub(crate) write_ns: Ns,
    pub(crate) piece_ns: Ns,
    pub(crate) respond_ns: Ns,
    pub(crate) line_ns: Ns,
    pub(crate) wqe_ns: Ns,
    pub(crate) atomic_ns: Ns,
    pub(crate) atomic_slots: Count,
    pub(crate) atomic_queues: Count,
    pub(crate) atomic_buckets: Count,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Completion {
    pub(crate) cqe_ns: Ns,
    pub(crate) eqe_ns: Ns,
    pub(crate) interrupt_ns: Ns,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cache {
    pub(crate) context_entries: Count,
    pub(crate) contexts_on_chip: Count,
    pub(crate) context_bytes: Count,
    pub(crate) cq_entries: Count,
    pub(crate) cq_bytes: Count,
    pub(crate) translation_lines: Count,
    pub(crate) key_entries: Count,
    pub(crate) key_bytes: Count,
    pub(crate) wqe_blocks: Count,
    pub(crate) wqe_ways: Count,
    pub(crate) umr_ns: Ns,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Port {
    pub(crate) loopback_ns: Ns,
    pub(crate) phy_ns: Ns,
    pub(crate) link_training_ms: Ms,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ethernet {
    pub(crate) frame_ns: Ns,
    pub(crate) segment_ns: Ns,
    pub(crate) send_ns: Ns,
    pub(crate) receive_ns: Ns,
    pub(crate) hop_ns: Ns,
    pub(crate) hash_ns: Ns,
    pub(crate) deliver_ns: Ns,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fabric {
    pub(crate) hop_ns: Ns,
    pub(crate) switch_phy_ns: Ns,
    pub(crate) switch_buffer: Count,
    pub(crate) adapter_buffer: Count,
    pub(crate) egress_bytes: Count,
    pub(crate) agent_us: Us,
    pub(crate) agent_queue: Count,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Command {
    pub(crate) query_us: Us,
    pub(crate) create_us: Us,
    pub(crate) destroy_us: Us,
    pub(crate) modify_us: Us,
    pub(crate) pages_us: Us,
    pub(crate) lifecycle_us: Us,
    pub(crate) mad_us: Us,
    pub(crate) other_us: Us,
    pub(crate) input_ps_per_byte: PerByte,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Clock {
    pub(crate) timer_khz: Count,
    pub(crate) health_tick_ms: Ms,
}

/// A whole number from 1 to 10^9.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count(u64);

impl Count {
    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}

/// A number above 0, up to 10^9.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Real(f64);

impl Real {
    pub(crate) const fn get(self) -> f64 {
        self.0
    }
}

/// Picoseconds per byte, not negative.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerByte(u64);

impl PerByte {
    /// The time that `bytes` take.
    pub(crate) const fn times(self, bytes: usize) -> Ps {
        Ps((bytes as u64).saturating_mul(self.0))
    }
}

/// A duration given in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ns(pub(crate) Ps);

/// A duration given in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Us(pub(crate) Ps);

/// A duration given in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ms(pub(crate) Ps);

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
impl Profile {
    /// Another number for `section.key`, as in the file.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let text = Self::text(&self.name).ok_or("no embedded profile")?;
        let (section, key) = key.split_once('.').ok_or("not section.key")?;
        let (mut here, mut found, mut edited) = (false, false, String::new());
        for line in text.lines() {
            if line.starts_with('[') {
                here = line.trim_end() == format!("[{section}]");
            }
            let hit = here && line.split('=').next().is_some_and(|k| k.trim() == key);
            found |= hit;
            edited += &if hit { format!("{key} = {value}\n") } else { format!("{line}\n") };
        }
        *self = Self::from_toml(&edited).map_err(|e| e.to_string())?;
        found.then_some(()).ok_or(format!("no key {key}"))
    }
}

#[cfg(test)]
mod tests {
    use hca_firmware::personality::{PciSpeed, Personality};

    use super::*;

    fn edited(from: &str, to: &str) -> String {
        let text = Profile::text(DEFAULT).unwrap();
        assert!(text.contains(from), "{from}");
        Profile::from_toml(&text.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn the_embedded_profiles_are_some() {
        for name in Profile::names() {
            assert_eq!(Profile::named(name).unwrap().name(), name);
        }
        assert!(Profile::named("connectx9").is_none());
        let profile = Profile::default();
        assert_eq!(profile.name(), "connectx4");
        assert_eq!(profile.port.link_training_ms.0, Ps::from_ms(10));
    }

    /// What a link elsewhere takes is taken out once, and no more than there is.
    #[test]
    fn crossings_of_a_link_elsewhere() {
        for name in Profile::names() {
            let whole = Profile::named(name).unwrap();
            let mut rest = whole.clone();
            rest.leave_crossing(whole.pcie_crossing()).unwrap();
            let (before, after) = (&whole.pcie, &rest.pcie);
            assert_eq!(after.write_ns.0 + after.crossing, before.write_ns.0, "{name}");
            assert_eq!(after.mmio_write_ns.0 + after.crossing, before.mmio_write_ns.0, "{name}");
            assert_eq!(after.read_ns.0, before.read_ns.0, "{name}");
            let timing = super::super::Timing::new(&rest);
            assert_eq!(timing.acknowledge(), timing.respond() + after.crossing);
        }
        let mut profile = Profile::default();
        let why = profile.leave_crossing(Ps::from_ns(141)).unwrap_err();
        assert_eq!(
            why,
            "141 ns, 1 of which are more than the 140 ns of pcie.mmio_write_ns in profile connectx4"
        );
        profile.set("pcie.mmio_write_ns", "900").unwrap();
        profile.pcie.write_ns = profile.pcie.mmio_write_ns;
        let why = profile.leave_crossing(Ps::from_ns(202)).unwrap_err();
        assert_eq!(why, "202 ns, 2 of which are more than the 403 ns of pcie.read_ns in profile connectx4");
    }

    /// Each kind of adapter has a timing profile, for the slot that its PCI function shows.
    #[test]
    fn every_personality_has_a_profile() {
        for name in Personality::names() {
            let kind = Personality::named(name).unwrap();
            let profile = Profile::named(kind.timing).unwrap();
            let gt_per_s = match kind.pci.link.speed {
                PciSpeed::Gen1 => 2.5,
                PciSpeed::Gen2 => 5.0,
                PciSpeed::Gen3 => 8.0,
                PciSpeed::Gen4 => 16.0,
            };
            assert_eq!(profile.pcie.lane_gt_per_s.0, gt_per_s, "{name}");
            assert_eq!(profile.pcie.lanes.get(), kind.pci.link.lanes.into(), "{name}");
        }
    }

    #[test]
    fn a_slot_can_be_another() {
        let profile = Profile::connectx4().with_pcie(5.0, 8, 128, 256);
        assert_eq!((profile.pcie.lanes.get(), profile.pcie.encoding.0.get()), (8, 8));
        assert_eq!((profile.pcie.max_payload.get(), profile.pcie.max_read_request.get()), (128, 256));
    }

    #[test]
    fn errors_name_the_key() {
        for (from, to, key, reason) in [
            ("lanes = 16", "lanes = -1", "lanes", "out of range"),
            ("lanes = 16", "lanes = nan", "lanes", "out of range"),
            ("lanes = 16", "lanes = \"many\"", "lanes", "expected a number"),
            ("lanes = 16", "lanes = 0", "lanes", "whole number from 1 on"),
            ("lanes = 16", "lanes = 1.5", "lanes", "whole number from 1 on"),
            ("skp_share = 0.0026", "skp_share = 0", "skp_share", "above 0"),
            ("lanes = 16", "", "lanes", "missing field"),
            ("lanes = 16", "lanes = 16\nlane = 64", "lane", "unknown field"),
            ("memory = \"llc\"", "memory = \"ram\"", "memory", "unknown variant"),
            ("[clock]", "[clocks]", "clocks", "unknown field"),
        ] {
            let error = edited(from, to);
            assert!(error.contains(key) && error.contains(reason), "{to}: {error}");
        }
    }
}
