//! What recordings may cost the host: bytes of each file, and bytes of packets of each adapter.

use std::io::{self, Write};

use hca_model::{HcaId, NodeId, PortRef};
use serde_json::{Value, json};

/// Bytes of a file unless told.
pub(crate) const FILE: u64 = 4 << 30;

/// Understands `512M`, `2G`, `1048576`: powers of 1024.
///
/// # Errors
/// What is possible, as text.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..).unwrap_or_default() {
        "" => Some(0),
        "K" => Some(10),
        "M" => Some(20),
        "G" => Some(30),
        "T" => Some(40),
        _ => None,
    };
    let bytes = shift.and_then(|shift| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| format!("{text:?} is not a size such as 512M or 4G"))
}

/// A file that counts its bytes.
pub(crate) struct Counted<W> {
    out: W,
    written: u64,
}

impl<W: Write> Counted<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, written: 0 }
    }

    /// Bytes so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.written = self.written.saturating_add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What packets of adapters have cost, and may cost.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    adapters: Vec<Quota>,
}

#[derive(Debug)]
struct Quota {
    name: String,
    most: u64,
    spent: u64,
    left_out: u64,
}

impl Quotas {
    /// Of adapters of these names, in bytes.
    pub(crate) fn new(adapters: impl IntoIterator<Item = (String, u64)>) -> Self {
        let quota = |(name, most)| Quota { name, most, spent: 0, left_out: 0 };
        Self { adapters: adapters.into_iter().map(quota).collect() }
    }

    /// Whether a packet of so many bytes at that port is recorded; the first that is not is told of.
    pub(crate) fn admits(&mut self, port: PortRef, bytes: usize, tell: &mut Vec<String>) -> bool {
        // Ports of switches are nobody's.
        let NodeId::Hca(HcaId(hca)) = port.node else { return true };
        let Some(quota) = self.adapters.get_mut(hca) else { return true };
        let spent = quota.spent.saturating_add(bytes as u64);
        if spent <= quota.most {
            quota.spent = spent;
            return true;
        }
        if quota.left_out == 0 {
            tell.push(format!(
                "{}: {} bytes of its packets are captured, its quota; others are left out",
                quota.name, quota.spent
            ));
        }
        quota.left_out += 1;
        false
    }

    pub(crate) fn status(&self) -> Value {
        let of = |quota: &Quota| {
            let Quota { name, most, spent, left_out } = quota;
            json!({ "name": name, "quota": most, "bytes": spent, "packets_left_out": left_out })
        };
        self.adapters.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!((size("7"), size("3K"), size("2G")), (Ok(7), Ok(3 << 10), Ok(2 << 30)));
        for text in ["", "0", "M", "1X", "-1", "99999999999999999999", "99999999T", "é"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_adapter_spends_its_own_quota() {
        let mut quotas = Quotas::new([("a".into(), 100), ("b".into(), 100)]);
        let mut told = Vec::new();
        let mut admits = |hca, bytes| quotas.admits(PortRef::from(HcaId(hca)), bytes, &mut told);
        assert!(admits(0, 60) && !admits(0, 60) && admits(0, 40) && !admits(0, 1) && admits(1, 100));
        assert!(admits(7, 1000), "one without a quota");
        assert_eq!(told, ["a: 60 bytes of its packets are captured, its quota; others are left out"]);
        assert_eq!(quotas.status()[0]["packets_left_out"], 2);
    }
}
