//! What stands between packets and queues: transport interfaces of senders (TIS) and receivers (TIR), and the tables of
//! receive queues over which a receiver spreads packets (RQT).
//!
//! Source: PRM "TIS Context", "TIR Context", "RQT Context"; mlx5 driver (field use).

use hca_spec::ids::Rqn;

/// A transport interface of senders: what send queues that name it have in common.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tis {
    /// Transport domain.
    pub td: u32,
    /// Priority of what is sent; software gives a user priority times two.
    pub prio: u8,
    /// Protection domain; 0 = none.
    pub pd: u32,
    /// Port of a bond that packets leave by; kept and told, an adapter without bonds has one way out.
    pub lag_tx_port_affinity: u8,
    /// Whether that port is the only one; kept and told, as above.
    pub strict_lag_affinity: bool,
    /// Send queues that name it.
    pub users: u32,
}

/// A table of receive queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rqt {
    /// The queues: the actual size of the table, at least one. A queue may be there several times.
    pub rqns: Vec<Rqn>,
    /// The largest size that the table may be given.
    pub max: u32,
    /// TIRs that name it.
    pub users: u32,
}

/// How a receiver chooses the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// Always this one.
    Direct(Rqn),
    /// That of a table, by the packet's hash.
    Indirect(u32),
}

impl Default for Dispatch {
    fn default() -> Self {
        Self::Direct(Rqn(0))
    }
}

/// Hash of a packet's headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashFunction {
    /// None: the hash is zero.
    #[default]
    None,
    /// The exclusive or of all bytes of the input, inverted.
    InvertedXor8,
    /// Toeplitz, with the receiver's key.
    Toeplitz,
}

impl HashFunction {
    /// The function with that number in [`hca_spec::transport::Tirc::RX_HASH_FN`], if there is one.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::None,
            1 => Self::InvertedXor8,
            2 => Self::Toeplitz,
            _ => return None,
        })
    }
}

/// Fields of a packet's headers that go into the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a bit of the selector")]
pub struct HashFields {
    /// The packets are IPv6; else IPv4.
    pub v6: bool,
    /// The packets are UDP; else TCP.
    pub udp: bool,
    /// Source address.
    pub src_ip: bool,
    /// Destination address.
    pub dst_ip: bool,
    /// Source port.
    pub src_port: bool,
    /// Destination port.
    pub dst_port: bool,
    /// Security parameter index.
    pub spi: bool,
}

impl HashFields {
    const V6: u32 = 1 << 31;
    const UDP: u32 = 1 << 30;
    const SRC_IP: u32 = 1 << 0;
    const DST_IP: u32 = 1 << 1;
    const SRC_PORT: u32 = 1 << 2;
    const DST_PORT: u32 = 1 << 3;
    const SPI: u32 = 1 << 4;

    /// The selector with those bits; `None` if it has reserved ones (PRM "RX Hash Field Select").
    pub const fn from_bits(bits: u32) -> Option<Self> {
        const ALL: u32 = HashFields::V6
            | HashFields::UDP
            | HashFields::SRC_IP
            | HashFields::DST_IP
            | HashFields::SRC_PORT
            | HashFields::DST_PORT
            | HashFields::SPI;
        if bits & !ALL != 0 {
            return None;
        }
        Some(Self {
            v6: bits & Self::V6 != 0,
            udp: bits & Self::UDP != 0,
            src_ip: bits & Self::SRC_IP != 0,
            dst_ip: bits & Self::DST_IP != 0,
            src_port: bits & Self::SRC_PORT != 0,
            dst_port: bits & Self::DST_PORT != 0,
            spi: bits & Self::SPI != 0,
        })
    }

    /// The selector as bits.
    pub fn bits(self) -> u32 {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        bit(self.v6, Self::V6)
            | bit(self.udp, Self::UDP)
            | bit(self.src_ip, Self::SRC_IP)
            | bit(self.dst_ip, Self::DST_IP)
            | bit(self.src_port, Self::SRC_PORT)
            | bit(self.dst_port, Self::DST_PORT)
            | bit(self.spi, Self::SPI)
    }
}

/// Which packets of senders of its own transport domain a receiver takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllowSelf {
    /// Those to one station.
    pub unicast: bool,
    /// Those to a group.
    pub multicast: bool,
}

/// Which packets of TCP a receiver has merged (LRO), in the units of its context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Merge {
    /// TCP over IPv4.
    pub v4: bool,
    /// TCP over IPv6.
    pub v6: bool,
    /// The largest IP payload, in units of [`MERGE_UNIT`] bytes.
    pub most: u8,
    /// How long packets are gathered for, in microseconds.
    pub timeout: u16,
}

/// Bytes of a unit of [`Merge::most`].
pub const MERGE_UNIT: u32 = 256;

impl Merge {
    /// Whether it merges anything.
    pub const fn is_on(&self) -> bool {
        self.v4 || self.v6
    }
}

/// Bytes of a Toeplitz key.
pub const HASH_KEY: usize = 40;

/// A transport interface of receivers: where packets go that flow steering brings to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tir {
    /// How the queue is chosen.
    pub dispatch: Dispatch,
    /// The hash.
    pub hash: HashFunction,
    /// The hash is the same for both directions of a flow.
    pub symmetric: bool,
    /// Key of the Toeplitz hash.
    pub key: [u8; HASH_KEY],
    /// Fields of the outer headers that go into the hash.
    pub outer: HashFields,
    /// Fields of the inner headers.
    pub inner: HashFields,
    /// Packets of tunnels shall be looked into: no more than a note, as the adapter knows none.
    pub tunnels: bool,
    /// Packets of its own transport domain.
    pub allow_self: AllowSelf,
    /// Packets that are merged.
    pub merge: Merge,
    /// Transport domain.
    pub td: u32,
    /// Flow table entries that name it are counted by flow steering; this counts other users.
    pub users: u32,
}

impl Default for Tir {
    fn default() -> Self {
        Self {
            dispatch: Dispatch::default(),
            hash: HashFunction::default(),
            symmetric: false,
            tunnels: false,
            key: [0; HASH_KEY],
            outer: HashFields::default(),
            inner: HashFields::default(),
            allow_self: AllowSelf::default(),
            merge: Merge::default(),
            td: 0,
            users: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_their_bits() {
        for bit in [0, 1, 2, 3, 4, 30, 31] {
            let fields = HashFields::from_bits(1 << bit).unwrap();
            assert_eq!(fields.bits(), 1 << bit);
        }
        assert_eq!(HashFields::from_bits(1 << 5), None);
        let both = HashFields::from_bits(0xc000_000f).unwrap();
        assert!(both.v6 && both.udp && both.src_ip && both.dst_port && !both.spi);
    }
}
