//! Transport domains, transport interfaces of senders (TIS) and receivers (TIR), tables of receive queues (RQT).
//!
//! Source: PRM "ALLOC_TRANSPORT_DOMAIN", "CREATE_TIS", "CREATE_TIR", "CREATE_RQT", "MODIFY_RQT".

use alloc::vec::Vec;

use hca_spec::command::{Opcode, OutHeader};
use hca_spec::ids::Rqn;
use hca_spec::transport::{
    CreateRqtIn, CreateTirIn, CreateTisIn, MODIFY_RQT_LIST, ModifyRqtIn, ModifyTirIn, Rqtc, TIR_DIRECT,
    TIR_INDIRECT, Tirc, Tisc, modify_tir,
};

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;

/// A transport domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransportDomain(pub u32);

/// A transport interface of senders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tis(pub u32);

/// A transport interface of receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tir(pub u32);

/// A table of receive queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rqt(pub u32);

/// How a TIR hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashRules {
    /// Values of [`Tirc::RX_HASH_FN`]: 0 none, 1 exclusive or, 2 Toeplitz.
    pub function: u32,
    /// The same for both directions.
    pub symmetric: bool,
    /// Key of Toeplitz.
    pub key: [u8; 40],
    /// What is hashed: bits of [`Tirc::RX_HASH_FIELD_OUTER`].
    pub fields: u32,
}

/// Which segments of TCP a TIR has merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeRules {
    /// Over IPv4.
    pub v4: bool,
    /// Over IPv6.
    pub v6: bool,
    /// The longest TCP header and data, in units of 256 bytes.
    pub most: u8,
    /// How long segments are gathered for, in microseconds: a period that the adapter has
    /// ([`hca_spec::caps::EthernetOffloads::LRO_TIMER_SUPPORTED_PERIODS_0`] and those behind it).
    pub timeout: u16,
}

fn list(fixed: &[u8], queues: &[Rqn]) -> Vec<u8> {
    let numbers = queues.iter().flat_map(|rqn| rqn.0.to_be_bytes());
    fixed.iter().copied().chain(numbers).collect()
}

impl<B: Bus> Hca<B> {
    /// Allocates a transport domain.
    pub fn alloc_transport_domain(&mut self) -> Result<TransportDomain, Error> {
        self.allocate(Opcode::AllocTransportDomain).map(TransportDomain)
    }

    /// Frees a transport domain that nothing is in.
    pub fn dealloc_transport_domain(&mut self, domain: TransportDomain) -> Result<(), Error> {
        self.object_command(Opcode::DeallocTransportDomain, domain.0)
    }

    /// Creates a transport interface of senders; `priority` 0 to 7.
    pub fn create_tis(&mut self, domain: TransportDomain, priority: u8) -> Result<Tis, Error> {
        let mut input = CreateTisIn::new();
        input.tisc_mut().set(Tisc::TRANSPORT_DOMAIN, domain.0).set(Tisc::PRIO, u32::from(priority) * 2);
        self.create(Opcode::CreateTis, 0, input.bytes().to_vec()).map(Tis)
    }

    /// Destroys one that no send queue uses.
    pub fn destroy_tis(&mut self, tis: Tis) -> Result<(), Error> {
        self.object_command(Opcode::DestroyTis, tis.0)
    }

    /// Creates a table of these queues, which may become as long as `max`.
    pub fn create_rqt(&mut self, queues: &[Rqn], max: u16) -> Result<Rqt, Error> {
        let mut input = CreateRqtIn::new();
        input.rqtc_mut().set(Rqtc::RQT_MAX_SIZE, max.into()).set(Rqtc::RQT_ACTUAL_SIZE, queues.len() as u32);
        self.create(Opcode::CreateRqt, 0, list(input.bytes(), queues)).map(Rqt)
    }

    /// Gives a table other queues.
    pub fn modify_rqt(&mut self, rqt: Rqt, queues: &[Rqn]) -> Result<(), Error> {
        let mut input = ModifyRqtIn::new();
        input.set(ModifyRqtIn::RQTN, rqt.0).set(ModifyRqtIn::BITMASK, MODIFY_RQT_LIST);
        input.rqtc_mut().set(Rqtc::RQT_ACTUAL_SIZE, queues.len() as u32);
        self.execute(Opcode::ModifyRqt, 0, list(input.bytes(), queues), OutHeader::SIZE).map(drop)
    }

    /// Destroys a table that no TIR uses.
    pub fn destroy_rqt(&mut self, rqt: Rqt) -> Result<(), Error> {
        self.object_command(Opcode::DestroyRqt, rqt.0)
    }

    /// Creates a TIR for one queue.
    pub fn create_direct_tir(&mut self, domain: TransportDomain, queue: Rqn) -> Result<Tir, Error> {
        let mut input = CreateTirIn::new();
        let tirc = input.tirc_mut();
        tirc.set(Tirc::DISP_TYPE, TIR_DIRECT).set(Tirc::INLINE_RQN, queue.0);
        tirc.set(Tirc::TRANSPORT_DOMAIN, domain.0);
        self.create(Opcode::CreateTir, 0, input.bytes().to_vec()).map(Tir)
    }

    /// Creates a TIR that chooses from a table by a hash.
    pub fn create_hashed_tir(
        &mut self,
        domain: TransportDomain,
        table: Rqt,
        rules: &HashRules,
    ) -> Result<Tir, Error> {
        let mut input = CreateTirIn::new();
        let tirc = input.tirc_mut();
        tirc.set(Tirc::DISP_TYPE, TIR_INDIRECT).set(Tirc::INDIRECT_TABLE, table.0);
        tirc.set(Tirc::TRANSPORT_DOMAIN, domain.0);
        tirc.set(Tirc::RX_HASH_FN, rules.function).set(Tirc::RX_HASH_SYMMETRIC, rules.symmetric.into());
        let words = [
            Tirc::RX_HASH_KEY_0,
            Tirc::RX_HASH_KEY_1,
            Tirc::RX_HASH_KEY_2,
            Tirc::RX_HASH_KEY_3,
            Tirc::RX_HASH_KEY_4,
        ];
        for (i, word) in words.into_iter().enumerate() {
            tirc.set(word, hca_spec::be64(&rules.key, i * 8));
        }
        tirc.set(Tirc::RX_HASH_FIELD_OUTER, rules.fields);
        self.create(Opcode::CreateTir, 0, input.bytes().to_vec()).map(Tir)
    }

    /// Which frames of its own transport domain a TIR takes: those to one station, those to groups.
    pub fn allow_own_frames(&mut self, tir: Tir, unicast: bool, multicast: bool) -> Result<(), Error> {
        let mut input = ModifyTirIn::new();
        input.set(ModifyTirIn::TIRN, tir.0).set(ModifyTirIn::BITMASK, modify_tir::SELF_LB);
        input.tirc_mut().set(Tirc::SELF_LB_BLOCK, u32::from(unicast) | u32::from(multicast) << 1);
        self.execute(Opcode::ModifyTir, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Which segments of TCP a TIR has merged (LRO).
    pub fn merge_segments(&mut self, tir: Tir, rules: &MergeRules) -> Result<(), Error> {
        let mut input = ModifyTirIn::new();
        input.set(ModifyTirIn::TIRN, tir.0).set(ModifyTirIn::BITMASK, modify_tir::PACKET_MERGE);
        let tirc = input.tirc_mut();
        tirc.set(Tirc::PACKET_MERGE_MASK, u32::from(rules.v4) | u32::from(rules.v6) << 1);
        tirc.set(Tirc::LRO_MAX_IP_PAYLOAD_SIZE, u32::from(rules.most));
        tirc.set(Tirc::LRO_TIMEOUT_PERIOD_USECS, u32::from(rules.timeout));
        self.execute(Opcode::ModifyTir, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Destroys a TIR that no flow table entry names.
    pub fn destroy_tir(&mut self, tir: Tir) -> Result<(), Error> {
        self.object_command(Opcode::DestroyTir, tir.0)
    }
}
