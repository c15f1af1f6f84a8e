//! What an adapter offers of flow steering: the capability page "flow table" as values.

use hca_spec::flow::TableType;

/// What tables of one type can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeOffer {
    /// log2 of the places of a table.
    pub log_max_size: u32,
    /// Highest level.
    pub max_level: u32,
    /// log2 of the number of tables.
    pub log_max_tables: u32,
    /// log2 of the number of entries of all tables of the type.
    pub log_max_entries: u32,
    /// log2 of the destinations of an entry.
    pub log_max_destinations: u32,
    /// log2 of the counters of an entry. `None`: entries don't count.
    pub log_max_counters: Option<u32>,
    /// Entries can be changed (`flow_modify_en`).
    pub modify_entries: bool,
    /// The root can be set (`modify_root`).
    pub modify_root: bool,
    /// Tables can say where packets go that no entry matches (`identified_miss_table_mode`).
    pub miss_table: bool,
    /// They can say so later, too (`flow_table_modify`).
    pub modify_tables: bool,
    /// Entries may name tables of any level (`ignore_flow_level`).
    pub ignore_level: bool,
    /// Packets that no entry matches may go to the root of the NIC's tables (`table_miss_action_domain`).
    pub switch_domain: bool,
}

/// What is offered of flow steering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offer {
    /// Frames that are received.
    pub nic_rx: Option<TypeOffer>,
    /// Frames that are sent.
    pub nic_tx: Option<TypeOffer>,
    /// Copies of frames that are received.
    pub sniffer_rx: Option<TypeOffer>,
    /// Copies of frames that are sent.
    pub sniffer_tx: Option<TypeOffer>,
    /// RoCE packets that are received.
    pub rdma_rx: Option<TypeOffer>,
    /// RoCE packets that are sent.
    pub rdma_tx: Option<TypeOffer>,
    /// Number of flow counters, those of bulks included.
    pub max_counters: u32,
    /// Bit n: counters may be asked for in bulks of 128 * 2^n (`flow_counter_bulk_alloc`).
    pub counter_bulks: u32,
    /// log2 of the largest bulk that may be asked for by its size (`flow_counter_bulk_log_max_alloc`).
    pub log_max_counter_bulk: u32,
}

/// Tables of an Ethernet port. The levels are those of the mlx5 driver, which uses up to 67; the pools it takes sizes from
/// have 2^20 and 2^22 places at most.
const ETHERNET: TypeOffer = TypeOffer {
    log_max_size: 22,
    max_level: 96,
    log_max_tables: 12,
    log_max_entries: 20,
    log_max_destinations: 6,
    log_max_counters: Some(2),
    modify_entries: true,
    modify_root: true,
    miss_table: true,
    modify_tables: true,
    ignore_level: false,
    switch_domain: false,
};

impl Offer {
    /// Nothing: an InfiniBand port.
    pub const fn none() -> Self {
        Self {
            nic_rx: None,
            nic_tx: None,
            sniffer_rx: None,
            sniffer_tx: None,
            rdma_rx: None,
            rdma_tx: None,
            max_counters: 0,
            counter_bulks: 0,
            log_max_counter_bulk: 0,
        }
    }

    /// All of it: an Ethernet port. An adapter that can't carry a type out takes it away here and in its capability page.
    pub const fn ethernet() -> Self {
        Self {
            nic_rx: Some(ETHERNET),
            nic_tx: Some(ETHERNET),
            sniffer_rx: Some(ETHERNET),
            sniffer_tx: Some(ETHERNET),
            rdma_rx: Some(TypeOffer { switch_domain: true, ..ETHERNET }),
            rdma_tx: Some(ETHERNET),
            max_counters: 1 << 16,
            counter_bulks: 1,
            log_max_counter_bulk: 0,
        }
    }

    /// What is offered of a type.
    pub const fn of(&self, kind: TableType) -> Option<&TypeOffer> {
        match kind {
            TableType::NicRx => self.nic_rx.as_ref(),
            TableType::NicTx => self.nic_tx.as_ref(),
            TableType::SnifferRx => self.sniffer_rx.as_ref(),
            TableType::SnifferTx => self.sniffer_tx.as_ref(),
            TableType::RdmaRx => self.rdma_rx.as_ref(),
            TableType::RdmaTx => self.rdma_tx.as_ref(),
            // Those of an embedded switch, which the adapter does not have, and of ports that are bonded.
            TableType::EswEgressAcl
            | TableType::EswIngressAcl
            | TableType::Fdb
            | TableType::PortSelection => None,
        }
    }

    /// Whether there is anything.
    pub const fn is_none(&self) -> bool {
        self.nic_rx.is_none()
            && self.nic_tx.is_none()
            && self.sniffer_rx.is_none()
            && self.sniffer_tx.is_none()
            && self.rdma_rx.is_none()
            && self.rdma_tx.is_none()
    }
}
