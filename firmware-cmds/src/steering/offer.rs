//! What an adapter offers of flow steering: the capability page "flow table" as values.

use hca_spec::caps::{FlowTableProperties, FlowTables, General};
use hca_spec::flow::TableType;

use super::entry::{ALLOW, DROP};
use super::fields::field_support;

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
    /// Entries may put headers before packets (`reformat`).
    pub reformat: bool,
    /// Entries may take tunnels off (`decap`).
    pub decap: bool,
    /// Changes of a list that entries may make; 0: none (`max_modify_header_actions`).
    pub max_changes: u32,
    /// Drivers may write entries themselves (`sw_owner_v2`).
    pub software: bool,
}

/// What is offered of changes to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewrite {
    /// log2 of the number of reformat contexts.
    pub log_max_reformats: u32,
    /// Bytes of the longest header of one.
    pub max_header: u32,
    /// log2 of the number of lists of changes.
    pub log_max_lists: u32,
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
    /// Entries may change packets.
    pub rewrite: Option<Rewrite>,
    /// Geneve is looked into: it can be compared, and taken off.
    pub geneve: bool,
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
    reformat: false,
    decap: false,
    max_changes: 0,
    software: false,
};

/// log2 of the counters that drivers are told to read at once: 16 KiB of output.
const LOG_COUNTERS_READ: u32 = 10;

impl TypeOffer {
    /// The properties of the type's tables, as the capability page has them.
    fn properties(&self, of: &Offer) -> FlowTableProperties {
        use FlowTableProperties as P;
        let mut p = P::new();
        p.set(P::FT_SUPPORT, 1).set(P::FLOW_COUNTER, self.log_max_counters.is_some().into());
        p.set(P::FLOW_MODIFY_EN, self.modify_entries.into()).set(P::MODIFY_ROOT, self.modify_root.into());
        p.set(P::IDENTIFIED_MISS_TABLE_MODE, self.miss_table.into());
        p.set(P::FLOW_TABLE_MODIFY, self.modify_tables.into());
        p.set(P::IGNORE_FLOW_LEVEL, self.ignore_level.into());
        p.set(P::TABLE_MISS_ACTION_DOMAIN, self.switch_domain.into());
        p.set(P::LOG_MAX_FT_SIZE, self.log_max_size).set(P::MAX_FT_LEVEL, self.max_level);
        p.set(P::LOG_MAX_FT_NUM, self.log_max_tables).set(P::LOG_MAX_FLOW, self.log_max_entries);
        p.set(P::LOG_MAX_FLOW_COUNTER, self.log_max_counters.unwrap_or(0));
        p.set(P::LOG_MAX_DESTINATION, self.log_max_destinations);
        p.set(P::REFORMAT, self.reformat.into()).set(P::REFORMAT_L2_TO_L3_TUNNEL, self.reformat.into());
        p.set(P::DECAP, self.decap.into()).set(P::REFORMAT_L3_TUNNEL_TO_L2, self.decap.into());
        p.set(P::SW_OWNER_V2, self.software.into());
        if self.max_changes > 0 {
            p.set(P::MAX_MODIFY_HEADER_ACTIONS, self.max_changes);
            p.set(P::LOG_MAX_MODIFY_HEADER_CONTEXT, of.rewrite.map_or(0, |rewrite| rewrite.log_max_lists));
        }
        let [outer, inner, misc, _] = field_support(of.geneve);
        p.set(P::FT_FIELD_SUPPORT_OUTER, outer).set(P::FT_FIELD_BITMASK_OUTER, outer);
        p.set(P::FT_FIELD_SUPPORT_INNER, inner).set(P::FT_FIELD_BITMASK_INNER, inner);
        p.set(P::FT_FIELD_SUPPORT_MISC, misc).set(P::FT_FIELD_BITMASK_MISC, misc);
        p
    }
}

impl Offer {
    /// The capability page of flow tables: what QUERY_HCA_CAP says of this offer.
    pub fn page(&self) -> FlowTables {
        let mut page = FlowTables::new();
        if self.nic_rx.is_some() {
            // A destination is a destination, whatever kind it is of.
            page.set(FlowTables::NIC_RX_MULTI_PATH_TIRS, 1).set(FlowTables::NIC_RX_MULTI_PATH_TIRS_FTS, 1);
        }
        if self.nic_rx.is_some() && self.sniffer_rx.is_some() {
            page.set(FlowTables::ALLOW_SNIFFER_AND_NIC_RX_SHARED_TIR, 1);
        }
        let of = |offer: &Option<TypeOffer>| {
            offer.as_ref().map_or_else(FlowTableProperties::new, |offer| offer.properties(self))
        };
        if let Some(rewrite) = self.rewrite {
            page.set(FlowTables::ENCAP_GENERAL_HEADER, 1);
            page.set(FlowTables::LOG_MAX_PACKET_REFORMAT_CONTEXT, rewrite.log_max_reformats);
            page.set(FlowTables::MAX_ENCAP_HEADER_SIZE, rewrite.max_header);
        }
        if self.has_software() {
            page.set(FlowTables::SW_STEERING_NIC_RX_ACTION_DROP_ICM_ADDRESS, DROP);
            page.set(FlowTables::SW_STEERING_NIC_TX_ACTION_DROP_ICM_ADDRESS, DROP);
            page.set(FlowTables::SW_STEERING_NIC_TX_ACTION_ALLOW_ICM_ADDRESS, ALLOW);
        }
        *page.nic_receive_mut() = of(&self.nic_rx);
        *page.nic_receive_rdma_mut() = of(&self.rdma_rx);
        *page.nic_receive_sniffer_mut() = of(&self.sniffer_rx);
        *page.nic_transmit_mut() = of(&self.nic_tx);
        *page.nic_transmit_rdma_mut() = of(&self.rdma_tx);
        *page.nic_transmit_sniffer_mut() = of(&self.sniffer_tx);
        page
    }

    /// Says in the general capabilities how many counters there are, and in which bulks.
    pub fn count_in(&self, general: &mut General) {
        let (high, low) = (self.max_counters >> 16, self.max_counters & 0xffff);
        general.set(General::MAX_FLOW_COUNTER_31_16, high).set(General::MAX_FLOW_COUNTER_15_0, low);
        general.set(General::FLOW_COUNTER_BULK_ALLOC, self.counter_bulks);
        // A query reads as many as its output has room for.
        general.set(
            General::LOG_MAX_FLOW_COUNTER_BULK,
            if self.max_counters == 0 { 0 } else { LOG_COUNTERS_READ },
        );
    }

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
            rewrite: None,
            geneve: false,
        }
    }

    /// An Ethernet port: all types of tables but those of an embedded switch.
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
            rewrite: None,
            geneve: false,
        }
    }

    /// The same of a ConnectX-6 Dx: entries of the NIC's tables change packets, and drivers may write entries themselves.
    pub const fn connectx6dx() -> Self {
        // Estimates: real ones are said to have more of each.
        const CHANGES: TypeOffer = TypeOffer { max_changes: 32, software: true, ..ETHERNET };
        Self {
            // A table of the types that may have any level.
            nic_rx: Some(TypeOffer { reformat: true, decap: true, ignore_level: true, ..CHANGES }),
            nic_tx: Some(TypeOffer { reformat: true, ignore_level: true, ..CHANGES }),
            rewrite: Some(Rewrite { log_max_reformats: 14, max_header: 128, log_max_lists: 14 }),
            geneve: true,
            ..Self::ethernet()
        }
    }

    /// Whether drivers may write entries of some tables themselves.
    pub const fn has_software(&self) -> bool {
        matches!(&self.nic_rx, Some(offer) if offer.software)
            || matches!(&self.nic_tx, Some(offer) if offer.software)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The page says what commands check.
    #[test]
    fn the_page_is_the_offer() {
        use FlowTableProperties as P;
        let offer = Offer::ethernet();
        let (page, of) = (offer.page(), offer.nic_rx.unwrap());
        for p in [page.nic_receive(), page.nic_transmit()] {
            assert_eq!((p.get(P::LOG_MAX_FT_SIZE), p.get(P::MAX_FT_LEVEL)), (of.log_max_size, of.max_level));
            assert_eq!((p.get(P::LOG_MAX_FLOW), p.get(P::LOG_MAX_FT_NUM)), (of.log_max_entries, 12));
            assert_eq!((p.get(P::FLOW_COUNTER), p.get(P::LOG_MAX_FLOW_COUNTER)), (1, 2));
            assert_eq!((p.get(P::IGNORE_FLOW_LEVEL), p.get(P::TABLE_MISS_ACTION_DOMAIN)), (0, 0));
            assert_eq!(p.get(P::FT_FIELD_SUPPORT_INNER), field_support(false)[1]);
        }
        for p in [page.nic_transmit_rdma(), page.nic_receive_sniffer(), page.nic_transmit_sniffer()] {
            assert_eq!((p.get(P::FT_SUPPORT), p.get(P::TABLE_MISS_ACTION_DOMAIN)), (1, 0));
        }
        assert_eq!(page.get(FlowTables::ALLOW_SNIFFER_AND_NIC_RX_SHARED_TIR), 1);
        assert_eq!(page.nic_receive_rdma().get(P::TABLE_MISS_ACTION_DOMAIN), 1);
        assert_eq!(Offer::none().page(), FlowTables::new());
        let mut general = General::new();
        Offer { max_counters: 0x1_0203, counter_bulks: 3, ..offer }.count_in(&mut general);
        assert_eq!(general.get(General::MAX_FLOW_COUNTER_31_16), 1);
        assert_eq!(general.get(General::MAX_FLOW_COUNTER_15_0), 0x203);
        assert_eq!(general.get(General::FLOW_COUNTER_BULK_ALLOC), 3);
    }
}
