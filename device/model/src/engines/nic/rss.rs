//! Receive side scaling (RSS): which queue of a table a frame goes to.
//!
//! Source: PRM "TIR context" (hash functions, field selection); the Toeplitz hash is that of Microsoft's "RSS hashing types". What the
//! manual leaves open, and how it is here:
//!
//! - Symmetric Toeplitz: addresses and ports enter as their OR and their XOR (Linux names this form for these adapters:
//!   `RXH_XFRM_SYM_OR_XOR`), if both of a pair are selected.
//! - Inverted XOR8: the exclusive or of the input's bytes, its bits in the reverse order: mlx5 drivers reverse the bits of the table's
//!   index for it.

use std::sync::{Arc, Weak};

use hca_firmware::{HashFields, HashFunction};
use hca_spec::cqe::{rss_l3, rss_l4};

use crate::wire::ethernet::{Fragment, Headers, Ip, IpVersion, Layer4};

/// Bytes of a key.
pub const KEY_SIZE: usize = 40;
/// The longest input: two addresses of IPv6 and two ports, or an SPI.
const INPUT: usize = 36;
/// Bytes of an address of IPv4, at the end of the 16.
const V4_ADDRESS: usize = 4;

/// Whether anything is selected.
const fn selects(fields: HashFields) -> bool {
    fields.src_ip || fields.dst_ip || fields.src_port || fields.dst_port || fields.spi
}

/// What a TIR says of hashing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashRules {
    /// The function.
    pub function: HashFunction,
    /// Both directions of a flow get the same hash. Only for Toeplitz; the exclusive or is so anyway.
    pub symmetric: bool,
    /// Key of Toeplitz.
    pub key: [u8; KEY_SIZE],
    /// Fields of the outer headers.
    pub outer: HashFields,
    /// Fields of what is in a tunnel. If there are any, frames with a tunnel are hashed by them.
    pub inner: HashFields,
}

/// The hash of a frame, and what it was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hash {
    /// The hash, 0 if there is none.
    pub value: u32,
    /// Which addresses: [`rss_l3`].
    pub l3: u32,
    /// Which part of layer 4: [`rss_l4`].
    pub l4: u32,
}

impl Hash {
    /// The place in a table of `size` queues; 0 of an empty one.
    pub fn index(self, size: usize) -> usize {
        (self.value as usize).checked_rem(size).unwrap_or_default()
    }
}

/// Toeplitz with one key: what each half of a byte adds, at each place of the input.
#[derive(Debug)]
pub struct Toeplitz {
    key: [u8; KEY_SIZE],
    /// By place in half bytes, the high half first, and by value.
    parts: [[u32; 16]; 2 * INPUT],
}

/// The 32 bits of a key from bit `at` on.
fn window(key: &[u8; KEY_SIZE], at: usize) -> u32 {
    let word = key.get(at / 8..).and_then(|rest| rest.first_chunk::<5>()).copied().unwrap_or_default();
    let [a, b, c, d, e] = word;
    let word = u64::from_be_bytes([0, 0, 0, a, b, c, d, e]);
    (word >> (8 - at % 8)) as u32
}

/// What the set bits of the half byte `value` add that begins at bit `at` of the input.
fn half(key: &[u8; KEY_SIZE], at: usize, value: u8) -> u32 {
    (0..4).filter(|bit| value >> (3 - bit) & 1 == 1).fold(0, |hash, bit| hash ^ window(key, at + bit))
}

impl Toeplitz {
    fn new(key: [u8; KEY_SIZE]) -> Self {
        let mut parts = [[0; 16]; 2 * INPUT];
        for (place, part) in parts.iter_mut().enumerate() {
            for (value, of) in part.iter_mut().enumerate() {
                *of = half(&key, 4 * place, value as u8);
            }
        }
        Self { key, parts }
    }

    fn hash(&self, input: &[u8]) -> u32 {
        let (pairs, _) = self.parts.as_chunks::<2>();
        let value = |of: &[u32; 16], at: u8| of.get(usize::from(at)).copied().unwrap_or_default();
        pairs
            .iter()
            .zip(input)
            .fold(0, |hash, ([high, low], byte)| hash ^ value(high, byte >> 4) ^ value(low, byte & 0xf))
    }
}

/// The hash without a table.
fn toeplitz(key: &[u8; KEY_SIZE], input: &[u8]) -> u32 {
    input
        .iter()
        .enumerate()
        .fold(0, |hash, (at, byte)| hash ^ half(key, 8 * at, byte >> 4) ^ half(key, 8 * at + 4, byte & 0xf))
}

/// The tables of the keys in use: TIRs with the same key share one.
///
/// A table has 4.5 KiB. There are at most [`KeyTables::MOST`]; TIRs with more different keys do without, which is slower.
#[derive(Debug, Default)]
pub struct KeyTables(Vec<Weak<Toeplitz>>);

impl KeyTables {
    /// The largest number of tables.
    pub const MOST: usize = 64;

    fn get(&mut self, key: &[u8; KEY_SIZE]) -> Option<Arc<Toeplitz>> {
        self.0.retain(|table| table.strong_count() > 0);
        if let Some(known) = self.0.iter().filter_map(Weak::upgrade).find(|table| table.key == *key) {
            return Some(known);
        }
        if self.0.len() >= Self::MOST {
            return None;
        }
        let table = Arc::new(Toeplitz::new(*key));
        self.0.push(Arc::downgrade(&table));
        Some(table)
    }
}

/// What a TIR's frames are hashed with.
#[derive(Debug, Clone)]
pub struct Hasher {
    rules: HashRules,
    table: Option<Arc<Toeplitz>>,
}

/// What of a frame goes into the hash.
#[derive(Debug)]
struct Input {
    bytes: [u8; INPUT],
    len: usize,
    l3: u32,
    l4: u32,
}

impl Input {
    fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self.len = self.len.saturating_add(bytes.len()).min(INPUT);
    }

    /// Source and destination of a layer, those that are selected.
    fn pair<const N: usize>(
        &mut self,
        symmetric: bool,
        source: Option<[u8; N]>,
        destination: Option<[u8; N]>,
    ) {
        match (source, destination) {
            (Some(source), Some(destination)) if symmetric => {
                let with = |op: fn(u8, u8) -> u8| {
                    let mut both = source;
                    both.iter_mut().zip(destination).for_each(|(a, b)| *a = op(*a, b));
                    both
                };
                self.push(&with(|a, b| a | b));
                self.push(&with(|a, b| a ^ b));
            }
            _ => [source, destination].iter().flatten().for_each(|part| self.push(part)),
        }
    }

    fn new(headers: &Headers, ip: &Ip, fields: HashFields, symmetric: bool) -> Self {
        let mut input = Self { bytes: [0; INPUT], len: 0, l3: rss_l3::NONE, l4: rss_l4::NONE };
        let select = |selected: bool, address: [u8; 16]| selected.then_some(address);
        let (source, destination) = (select(fields.src_ip, ip.source), select(fields.dst_ip, ip.destination));
        match ip.version {
            IpVersion::V4 => {
                let last = |address: [u8; 16]| address.last_chunk::<V4_ADDRESS>().copied();
                input.pair(symmetric, source.and_then(last), destination.and_then(last));
            }
            IpVersion::V6 => input.pair(symmetric, source, destination),
        }
        if input.len > 0 {
            input.l3 = if fields.v6 { rss_l3::IPV6 } else { rss_l3::IPV4 };
        }
        if ip.fragment != Fragment::Whole {
            // All fragments of a datagram go the same way: only one has the ports.
            return input;
        }
        let before = input.len;
        let l4 = match headers.layer4 {
            Layer4::Tcp { source, destination, .. } if !fields.udp => (rss_l4::TCP, source, destination),
            Layer4::Udp { source, destination, .. } if fields.udp => (rss_l4::UDP, source, destination),
            Layer4::Esp { spi } | Layer4::Ah { spi } if fields.spi => {
                input.push(&spi.to_be_bytes());
                input.l4 = rss_l4::SPI;
                return input;
            }
            _ => return input,
        };
        let (kind, source, destination) = l4;
        let select = |selected: bool, port: u16| selected.then_some(port.to_be_bytes());
        input.pair(symmetric, select(fields.src_port, source), select(fields.dst_port, destination));
        if input.len > before {
            input.l4 = kind;
        }
        input
    }
}

impl Hasher {
    /// For a TIR with these rules. The adapter has one [`KeyTables`].
    pub fn new(rules: HashRules, tables: &mut KeyTables) -> Self {
        let table = (rules.function == HashFunction::Toeplitz).then(|| tables.get(&rules.key)).flatten();
        Self { rules, table }
    }

    /// Whether frames are hashed by what is in a tunnel, so that somebody has to look at that.
    pub const fn wants_inner(&self) -> bool {
        selects(self.rules.inner)
    }

    /// The hash of a frame with these headers, and with these within a tunnel.
    pub fn hash(&self, outer: &Headers, inner: Option<&Headers>) -> Hash {
        let HashRules { function, symmetric, key, .. } = &self.rules;
        let (headers, fields) = match inner {
            Some(inner) if self.wants_inner() => (inner, self.rules.inner),
            _ => (outer, self.rules.outer),
        };
        let version = if fields.v6 { IpVersion::V6 } else { IpVersion::V4 };
        let Some(ip) = headers.ip.filter(|ip| ip.version == version) else { return Hash::default() };
        let symmetric = *symmetric && *function == HashFunction::Toeplitz;
        let input = Input::new(headers, &ip, fields, symmetric);
        let bytes = input.bytes.get(..input.len).unwrap_or_default();
        let value = match (function, &self.table) {
            _ if bytes.is_empty() => return Hash::default(),
            (HashFunction::None, _) => return Hash::default(),
            (HashFunction::InvertedXor8, _) => {
                bytes.iter().fold(0, |all, byte| all ^ byte).reverse_bits().into()
            }
            (HashFunction::Toeplitz, Some(table)) => table.hash(bytes),
            (HashFunction::Toeplitz, None) => toeplitz(key, bytes),
        };
        Hash { value, l3: input.l3, l4: input.l4 }
    }
}

#[cfg(test)]
mod tests;
