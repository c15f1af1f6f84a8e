use hca_spec::caps::object_type;
use hca_spec::cmd::GeneralObjectIn;
use hca_spec::command::{Opcode, Status};
use hca_spec::definer::{Definer2, Definer22, FORMATS};
use hca_spec::rewrite::meter_color;

use super::*;
use crate::commands::testing::{Answer, Bench};
use crate::personality::{Personality, PortKind};
use crate::profile::Config;
use crate::steering::{FlowTable, Miss};

fn bench_of(name: &str) -> Bench {
    let personality = Personality::named(name).expect("it is there");
    let port_kind = PortKind::Ethernet;
    Bench::initialized_with(Config { personality, port_kind, ..Config::default() })
}

fn bench() -> Bench {
    bench_of("connectx6dx")
}

/// A command about an object of that type and number.
fn send(b: &mut Bench, op: Opcode, (kind, id): (u32, u32), attributes: &[u8]) -> Answer {
    let mut head = GeneralObjectIn::new();
    head.set(GeneralObjectIn::OBJ_TYPE, kind).set(GeneralObjectIn::OBJ_ID, id);
    let mut input = attributes.to_vec();
    input[..8].copy_from_slice(&head.bytes()[..8]);
    input[8..12].copy_from_slice(&head.bytes()[8..12]);
    input[..2].copy_from_slice(&(op as u16).to_be_bytes());
    b.raw(&input, 0x90)
}

const METER: u32 = object_type::FLOW_METER;
const DEFINER: u32 = object_type::MATCH_DEFINER;

fn table(b: &mut Bench, kind: TableType) -> u32 {
    b.fw.icm.steering.create_table(FlowTable::new(kind, 1, 4, Miss::Default)).expect("a table")
}

fn meter_input(table: u32) -> FlowMeterIn {
    let mut input = FlowMeterIn::new();
    input.set(FlowMeterIn::TABLE_TYPE, TableType::NicRx as u32).set(FlowMeterIn::RETURN_REG_ID, 3);
    input.set(FlowMeterIn::DESTINATION_TABLE_ID, table).set(FlowMeterIn::ACTIVE, 1);
    input.set(FlowMeterIn::VALID, 1).set(FlowMeterIn::START_COLOR, meter_color::GREEN);
    input.set(FlowMeterIn::BUCKET_OVERFLOW, 1).set(FlowMeterIn::METER_MODE, 3);
    input.set(FlowMeterIn::CBS_MANTISSA, 5).set(FlowMeterIn::CBS_EXPONENT, 7);
    *input.set(FlowMeterIn::CIR_MANTISSA, 1).set(FlowMeterIn::CIR_EXPONENT, 6)
}

#[test]
fn life_of_a_meter() {
    let mut b = bench();
    let rx = table(&mut b, TableType::NicRx);
    let input = meter_input(rx);
    let made = send(&mut b, Opcode::CreateGeneralObject, (METER, 0), input.bytes());
    assert_eq!(made.status(), Status::Ok);
    let number = made.number();
    let told = |b: &mut Bench| {
        let answer = send(b, Opcode::QueryGeneralObject, (METER, number), FlowMeterIn::new().bytes());
        assert_eq!(answer.status(), Status::Ok);
        FlowMeterIn::from_prefix_or_zero(&answer.output)
    };
    let out = told(&mut b);
    assert_eq!(out.bytes()[0x18..0x80], input.bytes()[0x18..0x80], "it tells what it was told");
    let address = out.get(FlowMeterIn::ICM_ADDRESS_RX);
    assert!(address != 0 && address == out.get(FlowMeterIn::ICM_ADDRESS_TX));
    assert_eq!(b.fw.icm.steering.table(rx).map(|table| table.users), Some(1));
    // Only what is chosen changes.
    let mut change = FlowMeterIn::new();
    change.set(FlowMeterIn::MODIFY_FIELD_SELECT, meter_field::CIR | meter_field::ACTIVE);
    change.set(FlowMeterIn::CIR_MANTISSA, 9).set(FlowMeterIn::CBS_MANTISSA, 9);
    let modify = |b: &mut Bench, input: &FlowMeterIn| {
        send(b, Opcode::ModifyGeneralObject, (METER, number), input.bytes()).status()
    };
    assert_eq!(modify(&mut b, &change), Status::Ok);
    let mut expected = input;
    expected.set(FlowMeterIn::ACTIVE, 0).set(FlowMeterIn::CIR_MANTISSA, 9).set(FlowMeterIn::CIR_EXPONENT, 0);
    assert_eq!(told(&mut b).bytes()[0x18..0x80], expected.bytes()[0x18..0x80]);
    assert_eq!(
        modify(&mut b, change.set(FlowMeterIn::MODIFY_FIELD_SELECT, 1 << 5)),
        Status::BadParam,
        "there is no such field"
    );
    for expected in [Status::Ok, Status::BadResource] {
        let gone = send(&mut b, Opcode::DestroyGeneralObject, (METER, number), FlowMeterIn::new().bytes());
        assert_eq!(gone.status(), expected);
    }
    assert_eq!(b.fw.icm.steering.table(rx).map(|table| table.users), Some(0));
}

#[test]
fn meters_that_are_refused() {
    let mut b = bench();
    let (rx, tx) = (table(&mut b, TableType::NicRx), table(&mut b, TableType::NicTx));
    let create = |b: &mut Bench, input: &FlowMeterIn| {
        send(b, Opcode::CreateGeneralObject, (METER, 0), input.bytes()).status()
    };
    for register in 6..16 {
        assert_eq!(
            create(&mut b, meter_input(rx).set(FlowMeterIn::RETURN_REG_ID, register)),
            Status::BadParam
        );
    }
    assert_eq!(create(&mut b, meter_input(rx).set(FlowMeterIn::START_COLOR, 3)), Status::BadParam);
    for other in [TableType::RdmaRx as u32, 4, 0xff] {
        assert_eq!(create(&mut b, meter_input(rx).set(FlowMeterIn::TABLE_TYPE, other)), Status::BadParam);
    }
    assert_eq!(create(&mut b, &meter_input(tx)), Status::BadResource, "a table of another type");
    assert_eq!(create(&mut b, &meter_input(0)), Status::BadResource);
    assert_eq!(create(&mut b, &meter_input(rx)), Status::Ok);
    let mut b = bench_of("connectx5");
    let rx = table(&mut b, TableType::NicRx);
    assert_eq!(create(&mut b, &meter_input(rx)), Status::BadParam, "another adapter has none");
}

fn definer_input(format: u32, mask: &[u8]) -> DefinerIn {
    let mut input = DefinerIn::new();
    input.set(DefinerIn::FORMAT_ID, format);
    input.bytes_mut()[DefinerIn::MASK].copy_from_slice(mask);
    input
}

#[test]
fn life_of_a_definer() {
    let mut b = bench();
    for format in FORMATS {
        let mask = Definer::comparable(*format).expect("it is offered");
        let input = definer_input(*format, &mask);
        let made = send(&mut b, Opcode::CreateGeneralObject, (DEFINER, 0), input.bytes());
        assert_eq!(made.status(), Status::Ok, "format {format}");
        let number = made.number();
        assert!((0x10..0x100).contains(&number), "entries have 8 bits for {number:#x}");
        let told = send(&mut b, Opcode::QueryGeneralObject, (DEFINER, number), DefinerIn::new().bytes());
        assert_eq!(told.output[0x10..0x90], input.bytes()[0x10..]);
        for expected in [Status::Ok, Status::BadResource] {
            let gone =
                send(&mut b, Opcode::DestroyGeneralObject, (DEFINER, number), DefinerIn::new().bytes());
            assert_eq!(gone.status(), expected);
        }
    }
    assert_eq!(b.fw.resources().now.general_objects, 0);
}

#[test]
fn definers_that_are_refused() {
    let mut b = bench();
    let create = |b: &mut Bench, input: &DefinerIn| {
        send(b, Opcode::CreateGeneralObject, (DEFINER, 0), input.bytes()).status()
    };
    for format in [1, 23, 32, 34, 61, 0xffff] {
        assert_eq!(create(&mut b, &definer_input(format, &[0; 32])), Status::BadParam, "format {format}");
    }
    // Bits that say how checksums are; the fragment's offset.
    let mut mask = [0; 32];
    mask[31] = 1;
    assert_eq!(create(&mut b, &definer_input(2, &mask)), Status::BadParam);
    assert_eq!(create(&mut b, &definer_input(2, Definer2::new().bytes())), Status::Ok);
    let mut long = definer_input(22, Definer22::new().bytes());
    long.bytes_mut()[DefinerIn::LONG_MASK.start] = 1;
    assert_eq!(create(&mut b, &long), Status::BadParam);
    // As many as entries can name.
    for _ in 1..MOST_DEFINERS {
        assert_eq!(create(&mut b, &definer_input(22, &[0; 32])), Status::Ok);
    }
    assert_eq!(create(&mut b, &definer_input(22, &[0; 32])), Status::ExceedLimit);
    assert_eq!(create(&mut bench_of("connectx5"), &definer_input(22, &[0; 32])), Status::BadParam);
}
