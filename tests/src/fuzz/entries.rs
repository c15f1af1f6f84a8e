//! Entries of flow tables that drivers write into the adapter's memory, changes of headers, and frames that pass them.

use std::ops::RangeInclusive;

use hca_driver::eth::Mac;
use hca_firmware::PortKind;
use hca_firmware::object::Kind;
use hca_firmware::personality::Personality;
use hca_firmware::steering::{Delivery, Frame, MOST_COPIES, MOST_TABLES, Verdict, VxlanPorts};
use hca_model::nic::flow_key::parser;
use hca_spec::caps::{DeviceMemory, object_type};
use hca_spec::cmd::GeneralObjectIn;
use hca_spec::command::{InHeader, Opcode, OutHeader};
use hca_spec::flow::{
    CreateFlowGroupIn, CreateFlowTableIn, FlowContext, FlowListEntry, FlowTableContext, SetFlowTableRootIn,
    SetFteIn, TableType, action as deed, destination,
};
use hca_spec::put_be32;
use hca_spec::rewrite::{AllocModifyHeaderContextIn, FieldAction, SwIcmIn};
use hca_spec::ste::{Ste, SteAction, action, lookup};

use super::commands;
use super::feed::Feed;
use super::mailbox::{Direct, direct};
use super::objects::{Executor, Objects, good};
use crate::frames::{Flow, framed};

/// Steps of one input.
const MOST: usize = 96;
/// log2 of the bytes of memory for lists of changes.
const LOG_LISTS: u32 = 13;
/// Longest frame that entries may make.
const LONGEST: usize = 1 << 14;
/// What lies in the bits of an address above these is the adapter's choice, which it tells drivers by queries.
const HIGH: u32 = 32;

/// Lookup types that there are, and one that there is not.
const LOOKUPS: RangeInclusive<u32> = lookup::L2_TUNNEL..=lookup::TUNNEL_HEADER_16 + 1;
/// Actions that there are, and some that there are not.
const ACTIONS: RangeInclusive<u32> = action::NOP..=action::MODIFY_LIST + 1;

/// An adapter whose tables of frames that are received and sent are entries in its memory.
struct Ways {
    e: Direct,
    objects: Objects,
    /// Where entries and lists begin.
    entries: u64,
    lists: u64,
    /// A table by commands, and the group in it that all frames are in.
    table: u32,
    group: u32,
}

/// Writes entries and lists made of `data`, changes of headers by commands, and has frames pass them.
///
/// # Panics
/// If the adapter does, if a frame passes more tables or has more copies than one may, becomes longer than any may be, or if the
/// adapter does not work afterwards.
pub fn entries(data: &[u8]) {
    let mut feed = Feed::new(data);
    let mut ways = Ways::new();
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        match feed.below(8) {
            0..3 => ways.write_entry(&mut feed),
            3 => ways.write_list(&mut feed),
            4 => ways.change_by_command(&mut feed),
            _ => ways.pass(&mut feed),
        }
    }
    let answer = ways.e.execute(&commands::object(Opcode::QueryIssi, 0), 0x100);
    assert_eq!(OutHeader::from_prefix_or_zero(&answer).get(OutHeader::STATUS), 0, "the adapter works");
}

impl Ways {
    fn new() -> Self {
        let (mut e, objects) = direct(PortKind::Ethernet);
        let personality = Personality::named("connectx6dx").expect("there is one");
        let memory = &personality.capabilities.device_memory;
        let entries = memory.get(DeviceMemory::STEERING_SW_ICM_START_ADDRESS);
        let lists = memory.get(DeviceMemory::HEADER_MODIFY_SW_ICM_START_ADDRESS);
        // Memory for entries is one of the objects that there are.
        let mut create = SwIcmIn::new();
        create.set(SwIcmIn::SW_ICM_START_ADDR, lists).set(SwIcmIn::LOG_SW_ICM_SIZE, LOG_LISTS);
        let mut head = GeneralObjectIn::from_prefix_or_zero(create.bytes());
        head.set(GeneralObjectIn::OBJ_TYPE, object_type::SW_ICM);
        let mut input = commands::of(Opcode::CreateGeneralObject, &objects.fixture);
        input.truncate(InHeader::OP_MOD.offset());
        input.extend_from_slice(head.bytes().get(input.len()..).unwrap_or_default());
        input.extend_from_slice(create.bytes().get(GeneralObjectIn::SIZE..).unwrap_or_default());
        good(&mut e, &input, 0x100);
        let mut ways = Self { e, objects, entries, lists, table: 0, group: 0 };
        for kind in [TableType::NicRx, TableType::NicTx] {
            let table = ways.create_table(kind, Some(entries));
            let input = commands::of(Opcode::SetFlowTableRoot, &ways.objects.fixture);
            let mut root = SetFlowTableRootIn::from_prefix_or_zero(&input);
            root.set(SetFlowTableRootIn::TABLE_TYPE, kind as u32).set(SetFlowTableRootIn::TABLE_ID, table);
            good(&mut ways.e, root.bytes(), 0x100);
        }
        ways.table = ways.create_table(TableType::NicRx, None);
        let mut fixture = ways.objects.fixture.clone();
        fixture.set(Kind::FlowTable, ways.table);
        let input = commands::of(Opcode::CreateFlowGroup, &fixture);
        let mut group = CreateFlowGroupIn::from_prefix_or_zero(&input);
        group.set(CreateFlowGroupIn::MATCH_CRITERIA_ENABLE, 0);
        *group.criteria_mut() = hca_spec::flow::MatchParam::new();
        ways.group = ways.made(group.bytes());
        ways
    }

    /// Executes a command that makes something; its number.
    fn made(&mut self, input: &[u8]) -> u32 {
        let output = good(&mut self.e, input, 0x100);
        let command = commands::row_of(input).expect("a command of the adapter");
        command.made(&output).next().expect("a number")
    }

    fn create_table(&mut self, kind: TableType, entries: Option<u64>) -> u32 {
        let input = commands::of(Opcode::CreateFlowTable, &self.objects.fixture);
        let mut create = CreateFlowTableIn::from_prefix_or_zero(&input);
        create.set(CreateFlowTableIn::TABLE_TYPE, kind as u32);
        if let Some(entries) = entries {
            create.context_mut().set(FlowTableContext::SW_OWNER, 1);
            create.context_mut().set(FlowTableContext::SW_OWNER_ICM_ROOT_0, entries);
        } else {
            create.context_mut().set(FlowTableContext::REFORMAT_EN, 1);
        }
        self.made(create.bytes())
    }

    /// Where packets may go: mostly to an entry that was written or not.
    fn address(&self, feed: &mut Feed<'_>) -> u64 {
        let objects = &self.objects.fixture;
        match feed.below(12) {
            0 => feed.u64() & ((1 << 40) - 1),
            1 => u64::from(feed.u8()) << HIGH | u64::from(feed.u8()) << 6,
            2 => 0x40 << HIGH | u64::from(objects.number(Kind::Tir)) << 6,
            3 => 0x50 << HIGH | u64::from(self.table) << 6,
            4 => 0x60 << HIGH,
            5 => 0x61 << HIGH,
            6 => self.entries + u64::from(feed.u16()) * Ste::SIZE as u64,
            _ => self.entries + feed.below(16) as u64 * Ste::SIZE as u64,
        }
    }

    fn write_entry(&mut self, feed: &mut Feed<'_>) {
        let mut ste = Ste::new();
        let kind = feed.pick(&LOOKUPS.collect::<Vec<_>>());
        ste.set(Ste::ENTRY_FORMAT, if feed.one_in(4) { feed.u8().into() } else { kind >> 8 });
        ste.set(Ste::MATCH_DEFINER, kind & 0xff).set(Ste::MATCH_POLARITY, u32::from(feed.one_in(8)));
        ste.set(Ste::REPARSE, u32::from(feed.one_in(2)));
        if feed.one_in(4) {
            ste.set(Ste::COUNTER_ID, self.objects.fixture.number(Kind::FlowCounter));
        }
        let miss = self.address(feed);
        ste.set(Ste::MISS_ADDRESS_39_32, (miss >> 32) as u32).set(Ste::MISS_ADDRESS_31_6, miss as u32 >> 6);
        // A table of 2^n entries begins at a multiple of its size.
        let entries = 1u64 << feed.below(6);
        let place = (self.address(feed) / (entries * Ste::SIZE as u64) * entries * 2) | entries;
        ste.set(Ste::NEXT_TABLE_39_32, (place >> 27) as u32)
            .set(Ste::NEXT_TABLE_31_5, place as u32 & 0x7ff_ffff);
        let next = feed.pick(&LOOKUPS.collect::<Vec<_>>());
        ste.set(Ste::NEXT_ENTRY_FORMAT, next >> 8).set(Ste::HASH_DEFINER, next & 0xff);
        ste.set(Ste::BYTE_MASK, feed.u16().into());
        let bytes = ste.bytes_mut();
        let mut at = Ste::ACTIONS;
        while at < Ste::ACTIONS_END {
            let one = self.action(feed);
            let words = action::words(u32::from(one[0])).unwrap_or(1);
            for (to, from) in bytes.iter_mut().take(Ste::ACTIONS_END).skip(at).zip(&one[..4 * words]) {
                *to = *from;
            }
            at += 4 * words;
        }
        // What is not compared is no obstacle.
        if feed.one_in(4) {
            feed.mutate(&mut bytes[Ste::MASK..], 4);
        }
        if feed.one_in(8) {
            feed.mutate(bytes, 3);
        }
        let place = self.entries + if feed.one_in(4) { 0 } else { feed.below(16) as u64 * Ste::SIZE as u64 };
        assert!(self.e.firmware.icm.steering.memory.write(place, bytes), "there is memory");
    }

    /// An action, with what belongs to a kind that there may be.
    fn action(&self, feed: &mut Feed<'_>) -> [u8; 8] {
        let mut one = SteAction::new();
        one.set(SteAction::ACTION_ID, feed.pick(&ACTIONS.collect::<Vec<_>>()));
        one.bytes_mut()[1..8].iter_mut().for_each(|byte| *byte = feed.u8());
        match one.get(SteAction::ACTION_ID) {
            action::MODIFY_LIST => _ = one.set(SteAction::LIST_POINTER, feed.u8().into()),
            action::INSERT_POINTER => {
                one.set(SteAction::DATA, self.objects.fixture.number(Kind::ReformatContext));
            }
            action::REMOVE_BY_SIZE | action::REMOVE_HEADERS | action::INSERT_INLINE if !feed.one_in(4) => {
                one.set(SteAction::START_ANCHOR, feed.pick(&[0, 2, 7, 0x13, 0x19]));
            }
            _ => {}
        }
        std::array::from_fn(|i| one.bytes()[i])
    }

    fn write_list(&mut self, feed: &mut Feed<'_>) {
        let at = self.lists + feed.below(64) as u64 * 64;
        let bytes: Vec<u8> = (0..feed.below(32)).flat_map(|_| self.action(feed)).collect();
        assert!(self.e.firmware.icm.steering.memory.write(at, &bytes), "there is memory");
    }

    /// A list of changes by command, which the entry of the table that commands make does to all frames.
    fn change_by_command(&mut self, feed: &mut Feed<'_>) {
        let count = feed.below(12);
        let mut alloc = AllocModifyHeaderContextIn::new();
        alloc.set(AllocModifyHeaderContextIn::NUM_OF_ACTIONS, count as u32);
        let mut input = commands::of(Opcode::AllocModifyHeaderContext, &self.objects.fixture);
        input.truncate(InHeader::OP_MOD.offset());
        input.extend_from_slice(alloc.bytes().get(InHeader::OP_MOD.offset()..).unwrap_or_default());
        for _ in 0..count {
            let mut one = FieldAction::new();
            one.bytes_mut().iter_mut().for_each(|byte| *byte = feed.u8());
            if !feed.one_in(8) {
                one.set(FieldAction::ACTION_TYPE, 1 + feed.below(3) as u32);
                one.set(FieldAction::FIELD, feed.below(0x60) as u32);
            }
            input.extend_from_slice(one.bytes());
        }
        let answer = self.e.execute(&input, 0x100);
        let made = commands::row_of(&input).and_then(|command| command.made(&answer).next());
        let refused = OutHeader::from_prefix_or_zero(&answer).get(OutHeader::STATUS) != 0;
        let (Some(number), false) = (made, refused) else { return };
        let input = commands::of(Opcode::SetFlowTableEntry, &self.objects.fixture);
        let mut set = SetFteIn::from_prefix_or_zero(&input);
        set.set(SetFteIn::TABLE_ID, self.table);
        let decap = if feed.one_in(4) { deed::DECAP } else { 0 };
        let context = set.context_mut();
        context.set(FlowContext::GROUP_ID, self.group).set(FlowContext::FLOW_COUNTER_LIST_SIZE, 0);
        context.set(FlowContext::ACTION, deed::FORWARD | deed::MODIFY_HEADER | decap);
        context.set(FlowContext::DESTINATION_LIST_SIZE, 1).set(FlowContext::MODIFY_HEADER_ID, number);
        let mut to = FlowListEntry::new();
        to.set(FlowListEntry::DESTINATION_TYPE, destination::TIR);
        to.set(FlowListEntry::DESTINATION_ID, self.objects.fixture.number(Kind::Tir));
        let mut delete = commands::of(Opcode::DeleteFlowTableEntry, &self.objects.fixture);
        put_be32(&mut delete, SetFteIn::TABLE_ID.offset(), self.table);
        self.e.execute(&delete, 0x100);
        self.e.execute(&[set.bytes().as_slice(), to.bytes()].concat(), 0x100);
    }

    /// A frame passes the tables of a type.
    fn pass(&mut self, feed: &mut Feed<'_>) {
        let mut bytes = frame(feed);
        feed.mutate(&mut bytes, 3);
        if feed.one_in(8) {
            bytes.truncate(feed.u8().into());
        }
        let parser = parser(true);
        let vxlan = VxlanPorts::default();
        let sight = parser(&bytes, &vxlan);
        let kind = feed.pick(&[TableType::NicRx, TableType::NicTx]);
        let mut verdict = Verdict::default();
        let frame = Frame { bytes: &bytes, sight: &sight, parser, vxlan, now: 0 };
        self.e.firmware.icm.steering.walk(kind, &frame, &mut verdict);
        assert!(verdict.tables <= MOST_TABLES && verdict.deliveries.len() <= MOST_COPIES, "{verdict:?}");
        let long = |one: &Delivery| one.frame.as_ref().is_some_and(|frame| frame.len() > LONGEST);
        assert!(!verdict.deliveries.iter().any(long), "a frame of more than {LONGEST} bytes");
    }
}

/// A frame that entries have something to do with: of TCP or UDP, with a tag, in a tunnel.
fn frame(feed: &mut Feed<'_>) -> Vec<u8> {
    const TO: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const FROM: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const VXLAN: u16 = 4789;
    const GENEVE: u16 = 6081;
    let tci = if feed.one_in(3) { Some(feed.u16()) } else { None };
    let (v6, tcp) = (feed.one_in(2), feed.one_in(2));
    let payload = vec![0x5a; feed.u8().into()];
    let inner = Flow { v6, tcp, ..Flow::default() }.frame(TO, FROM, tci, true, &payload);
    let tunnel = |port, header: [u8; 8]| {
        let flow = Flow { tcp: false, v6: tcp, ports: (1234, port), ..Flow::default() };
        flow.frame(TO, FROM, None, true, &[&header[..], &inner].concat())
    };
    match feed.below(6) {
        0 => tunnel(VXLAN, [8, 0, 0, 0, 0, 0, 42, 0]),
        1 => tunnel(GENEVE, [0, 0, 0x65, 0x58, 0, 0, 42, 0]),
        2 => framed(TO, FROM, tci, feed.u16(), &payload),
        _ => inner,
    }
}
