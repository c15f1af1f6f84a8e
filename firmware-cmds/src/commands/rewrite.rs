//! Contexts of what entries of flow tables do to packets: headers that are put before them, and lists of changes of fields.
//!
//! Source: PRM "ALLOC_PACKET_REFORMAT_CONTEXT", "ALLOC_MODIFY_HEADER_CONTEXT" and their companions; mlx5 driver (field use).
//! QUERY_MODIFY_HEADER_CONTEXT is not here: the layout of its output is not public.

use hca_spec::command::Status;
use hca_spec::flow::TableType;
use hca_spec::rewrite::{
    AllocModifyHeaderContextIn, AllocPacketReformatContextIn, FieldAction, PacketReformat,
    QueryPacketReformatOut, RewriteContext, field, field_action, reformat,
};

use super::call::{done, named, reply};
use super::fixture::Fixture;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::object::Kind;
use crate::steering::{HeaderChanges, Reformat, ReformatKind, Rewrite, is_valid};

/// Where the header begins in ALLOC_PACKET_REFORMAT_CONTEXT's input.
pub(super) const REFORMAT_HEADER: usize =
    AllocPacketReformatContextIn::SIZE - PacketReformat::SIZE + PacketReformat::DATA;

/// Whether entries can change packets.
pub(super) fn has_rewriting(fw: &Firmware) -> bool {
    fw.icm.steering.offer().rewrite.is_some()
}

fn offer(fw: &Firmware) -> Result<Rewrite, Failure> {
    const ABSENT: Failure = Failure::new(Status::BadOp, "entries of flow tables don't change packets");
    fw.icm.steering.offer().rewrite.ok_or(ABSENT)
}

pub(super) fn alloc_reformat(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const TYPE: Failure = bad_param(
        "ALLOC_PACKET_REFORMAT_CONTEXT: reformat_type: must be 2 (L2 to a tunnel), 3 (out of a tunnel) or 4 (L3 to a tunnel)",
    );
    const LONG: Failure =
        bad_param("ALLOC_PACKET_REFORMAT_CONTEXT: reformat_data_size: above max_encap_header_size, or odd");
    const SHORT: Failure = Failure::new(
        Status::BadInputLength,
        "ALLOC_PACKET_REFORMAT_CONTEXT: the header is shorter than reformat_data_size",
    );
    const FULL: Failure =
        no_room("ALLOC_PACKET_REFORMAT_CONTEXT: there are 2^log_max_packet_reformat_context");
    let limit = offer(fw)?.max_header;
    let context = call.view::<AllocPacketReformatContextIn>()?.context();
    let bits = context.get(PacketReformat::REFORMAT_TYPE);
    let kind = ReformatKind::from_bits(bits).ok_or(TYPE.got(bits))?;
    let size = context.get(PacketReformat::REFORMAT_DATA_SIZE);
    if size > limit || !size.is_multiple_of(2) {
        return Err(LONG.got(size).limit(limit));
    }
    let header = call
        .input
        .get(REFORMAT_HEADER..)
        .unwrap_or_default()
        .get(..size as usize)
        .ok_or(SHORT.least(size))?;
    let context = Reformat { kind, header: header.into(), users: 0 };
    named(fw.icm.steering.create_reformat(context).ok_or(FULL)?)
}

pub(super) fn dealloc_reformat(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const USED: Failure = Failure::new(
        Status::BadResourceState,
        "DEALLOC_PACKET_REFORMAT_CONTEXT: entries of flow tables name the context",
    );
    let number = call.number();
    let users = fw.icm.steering.reformat(number).ok_or(NO_REFORMAT.of(number))?.users;
    if users > 0 {
        return Err(USED.of(number).got(users));
    }
    fw.icm.steering.destroy_reformat(number);
    Ok(done())
}

const NO_REFORMAT: Failure = bad_resource("reformat contexts: there is none of that number");
const NO_LIST: Failure = bad_resource("lists of changes: there is none of that number");

pub(super) fn query_reformat(fw: &Firmware, call: &Call<'_>) -> Outcome {
    const AT: usize = QueryPacketReformatOut::SIZE - PacketReformat::SIZE + PacketReformat::DATA;
    let number = call.number();
    let context = fw.icm.steering.reformat(number).ok_or(NO_REFORMAT.of(number))?;
    let mut out = QueryPacketReformatOut::new();
    let head = out.context_mut();
    head.set(PacketReformat::REFORMAT_TYPE, context.kind.bits());
    head.set(PacketReformat::REFORMAT_DATA_SIZE, context.header.len() as u32);
    let mut output = reply(&out);
    output.truncate(AT);
    output.extend_from_slice(&context.header);
    Ok(output)
}

pub(super) fn alloc_changes(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const TYPE: Failure =
        bad_param("ALLOC_MODIFY_HEADER_CONTEXT: table_type: entries of such tables don't change fields");
    const MANY: Failure =
        bad_param("ALLOC_MODIFY_HEADER_CONTEXT: num_of_actions is 0, or above max_modify_header_actions");
    const SHORT: Failure = Failure::new(
        Status::BadInputLength,
        "ALLOC_MODIFY_HEADER_CONTEXT: the list is shorter than num_of_actions says",
    );
    const ACTION: Failure = bad_param(
        "ALLOC_MODIFY_HEADER_CONTEXT: actions: a field, an offset or a length that can't be changed",
    );
    const FULL: Failure = no_room("ALLOC_MODIFY_HEADER_CONTEXT: there are 2^log_max_modify_header_context");
    let alloc = call.view::<AllocModifyHeaderContextIn>()?;
    let bits = alloc.get(AllocModifyHeaderContextIn::TABLE_TYPE);
    let kind = TableType::from_bits(bits).and_then(|kind| fw.icm.steering.offer().of(kind));
    let most = kind.filter(|offer| offer.max_changes > 0).ok_or(TYPE.got(bits))?.max_changes;
    let count = alloc.get(AllocModifyHeaderContextIn::NUM_OF_ACTIONS);
    if count == 0 || count > most {
        return Err(MANY.got(count).limit(most));
    }
    let (list, _) = call.input.get(AllocModifyHeaderContextIn::SIZE..).unwrap_or_default().as_chunks::<8>();
    let list = list.get(..count as usize).ok_or(SHORT.got(list.len() as u64).least(count))?;
    let actions: Box<[FieldAction]> =
        list.iter().map(|bytes| FieldAction::from_prefix_or_zero(bytes)).collect();
    if let Some(wrong) = actions.iter().find(|action| !is_valid(action)) {
        return Err(ACTION.got(wrong.get(FieldAction::FIELD)));
    }
    named(fw.icm.steering.create_header_changes(HeaderChanges { actions, users: 0 }).ok_or(FULL)?)
}

pub(super) fn dealloc_changes(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const USED: Failure = Failure::new(
        Status::BadResourceState,
        "DEALLOC_MODIFY_HEADER_CONTEXT: entries of flow tables name the list",
    );
    let number = call.number();
    let users = fw.icm.steering.header_changes(number).ok_or(NO_LIST.of(number))?.users;
    if users > 0 {
        return Err(USED.of(number).got(users));
    }
    fw.icm.steering.destroy_header_changes(number);
    Ok(done())
}

/// SYNC_STEERING: what was written before is seen by packets that come after. It always is.
pub(super) fn sync(_: &Firmware, _: &Call<'_>) -> Outcome {
    Ok(done())
}

/// Whether drivers write entries themselves.
pub(super) fn has_software(fw: &Firmware) -> bool {
    fw.icm.steering.offer().has_software()
}

/// ALLOC_PACKET_REFORMAT_CONTEXT: a header of layer 2.
pub(super) fn reformat_template(_: &Fixture) -> Vec<u8> {
    const HEADER: usize = 14;
    let mut alloc = AllocPacketReformatContextIn::new();
    let context = alloc.context_mut();
    context.set(PacketReformat::REFORMAT_TYPE, reformat::L2_TO_L2_TUNNEL);
    context.set(PacketReformat::REFORMAT_DATA_SIZE, HEADER as u32);
    let mut input = alloc.bytes().to_vec();
    input.resize(AllocPacketReformatContextIn::SIZE + HEADER, 0xab);
    input
}

/// ALLOC_MODIFY_HEADER_CONTEXT: frames that are received get another source address.
pub(super) fn changes_template(_: &Fixture) -> Vec<u8> {
    let mut alloc = AllocModifyHeaderContextIn::new();
    alloc.set(AllocModifyHeaderContextIn::NUM_OF_ACTIONS, 1);
    let mut action = FieldAction::new();
    action.set(FieldAction::ACTION_TYPE, field_action::SET).set(FieldAction::FIELD, field::SMAC_15_0);
    action.set(FieldAction::LENGTH, 16).set(FieldAction::DATA, 7);
    [alloc.bytes(), &action.bytes()[..]].concat()
}

/// The other commands: what is there.
pub(super) fn template(fixture: &Fixture) -> Vec<u8> {
    let number = fixture.number(Kind::ReformatContext);
    RewriteContext::new().set(RewriteContext::NUMBER, number).bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use crate::personality::{Personality, PortKind};
    use crate::profile::Config;
    use hca_spec::command::Opcode;

    fn bench() -> Bench {
        let personality = Personality::named("connectx6dx").expect("it is there");
        Bench::initialized_with(Config { personality, port_kind: PortKind::Ethernet, ..Config::default() })
    }

    fn alloc(b: &mut Bench, kind: u32, size: u32, given: usize) -> (Status, u32) {
        let mut alloc = AllocPacketReformatContextIn::new();
        alloc.context_mut().set(PacketReformat::REFORMAT_TYPE, kind);
        alloc.context_mut().set(PacketReformat::REFORMAT_DATA_SIZE, size);
        let mut input = alloc.bytes().to_vec();
        input.truncate(AllocPacketReformatContextIn::SIZE - 2);
        input.extend((0..given).map(|i| i as u8));
        let answer = b.run(Opcode::AllocPacketReformatContext, 0, &input[8..], 16);
        let status = answer.status();
        (status, if status == Status::Ok { answer.number() } else { 0 })
    }

    #[test]
    fn headers() {
        let mut b = bench();
        let (status, number) = alloc(&mut b, reformat::L2_TO_L2_TUNNEL, 50, 50);
        assert_eq!(status, Status::Ok);
        let mut query = RewriteContext::new();
        query.set(RewriteContext::NUMBER, number);
        let answer = b.put(Opcode::QueryPacketReformatContext, &query, 0x100);
        assert_eq!(answer.status(), Status::Ok);
        assert_eq!(answer.output[0x1c..0x25], [2, 0, 0, 50, 0, 0, 0, 1, 2]);
        assert_eq!(answer.output.len(), 0x22 + 50);
        for (kind, size, given, expected) in [
            (0, 50, 50, Status::BadParam),
            (5, 50, 50, Status::BadParam),
            (reformat::L2_TO_L2_TUNNEL, 130, 130, Status::BadParam),
            (reformat::L2_TO_L2_TUNNEL, 51, 51, Status::BadParam),
            (reformat::L2_TO_L2_TUNNEL, 50, 48, Status::BadInputLength),
        ] {
            assert_eq!(alloc(&mut b, kind, size, given).0, expected, "{kind} {size} {given}");
        }
        for expected in [Status::Ok, Status::BadResource] {
            assert_eq!(b.put(Opcode::DeallocPacketReformatContext, &query, 16).status(), expected);
        }
        let mut other = Bench::initialized_with(crate::commands::testing::ethernet());
        assert_eq!(alloc(&mut other, reformat::L2_TO_L2_TUNNEL, 50, 50).0, Status::BadOp, "a ConnectX-4");
    }

    #[test]
    fn lists_of_changes() {
        let mut b = bench();
        let mut alloc = |kind: u32, action: FieldAction, count: u32| {
            let mut alloc = AllocModifyHeaderContextIn::new();
            alloc
                .set(AllocModifyHeaderContextIn::TABLE_TYPE, kind)
                .set(AllocModifyHeaderContextIn::NUM_OF_ACTIONS, count);
            let input = [alloc.bytes(), &action.bytes()[..]].concat();
            b.run(Opcode::AllocModifyHeaderContext, 0, &input[8..], 16).status()
        };
        let set = |field: u32, offset: u32, length: u32| {
            let mut action = FieldAction::new();
            action.set(FieldAction::ACTION_TYPE, field_action::SET).set(FieldAction::FIELD, field);
            *action.set(FieldAction::OFFSET, offset).set(FieldAction::LENGTH, length)
        };
        let good = set(field::SMAC_47_16, 0, 0);
        assert_eq!(alloc(TableType::NicRx as u32, good, 1), Status::Ok);
        assert_eq!(alloc(TableType::NicTx as u32, set(field::METADATA_REG_C_0 + 5, 8, 24), 1), Status::Ok);
        for (kind, action, count, expected) in [
            (TableType::RdmaRx as u32, good, 1, Status::BadParam),
            (99, good, 1, Status::BadParam),
            (0, good, 0, Status::BadParam),
            (0, good, 33, Status::BadParam),
            (0, good, 2, Status::BadInputLength),
            (0, set(0, 0, 8), 1, Status::BadParam),
            (0, set(field::SMAC_15_0, 1, 16), 1, Status::BadParam),
            (0, set(field::METADATA_REG_B, 0, 8), 1, Status::BadParam),
            (0, FieldAction::new(), 1, Status::BadParam),
        ] {
            assert_eq!(alloc(kind, action, count), expected, "{kind} {action:?} {count}");
        }
    }
}
