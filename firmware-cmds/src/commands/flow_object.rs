//! General objects that entries of flow tables name: meters, and what entries that drivers write compare (definers).
//!
//! Source: mlx5dv (`dr_devx.c`, `dr_matcher.c`, field use); DPDK's mlx5 driver (what a modification chooses). By inference: what is
//! refused.

use hca_spec::caps::Qos;
use hca_spec::flow::TableType;
use hca_spec::rewrite::{DefinerIn, FlowMeterIn, meter_field};

use super::call::{done, named};
use super::general_object::{MANY, whole};
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, bad_resource, no_room};
use crate::firmware::Firmware;
use crate::icm::GeneralObject;
use crate::object::{Kind, Object};
use crate::steering::{Definer, MOST_DEFINERS, Meter, Parameters, address_of_meter};

/// The table that a meter sends packets to.
pub(super) fn names(call: &Call<'_>) -> Vec<(Object, bool)> {
    let table = whole(call, FlowMeterIn::from_prefix_or_zero).get(FlowMeterIn::DESTINATION_TABLE_ID);
    vec![(Object::new(Kind::FlowTable, table), false)]
}

pub(super) fn create_meter(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const TYPE: Failure = bad_param("CREATE_GENERAL_OBJECT: table_type: tables of that type have no meters");
    const NO_TABLE: Failure = bad_resource(
        "CREATE_GENERAL_OBJECT: destination_table_id: there is no flow table of that number and type",
    );
    const REGISTER: Failure =
        bad_param("CREATE_GENERAL_OBJECT: return_reg_id: no register for colors (flow_meter_reg_id)");
    const COLOR: Failure = bad_param("CREATE_GENERAL_OBJECT: start_color must be 0, 1 or 2");
    const FULL: Failure =
        no_room("CREATE_GENERAL_OBJECT: there are as many meters as there can be (log_max_flow_meter)");
    let input = whole(call, FlowMeterIn::from_prefix_or_zero);
    let qos = fw.personality().capabilities.ethernet.qos;
    let bits = input.get(FlowMeterIn::TABLE_TYPE);
    let kind = TableType::from_bits(bits).ok_or(TYPE.got(bits))?;
    fw.icm.steering.offer().of(kind).filter(|offer| offer.software).ok_or(TYPE.got(bits))?;
    let register = input.get(FlowMeterIn::RETURN_REG_ID);
    if qos.get(Qos::FLOW_METER_REG_ID) >> register & 1 == 0 {
        return Err(REGISTER.got(register));
    }
    let parameters = Parameters::of(&input).ok_or_else(|| COLOR.got(input.get(FlowMeterIn::START_COLOR)))?;
    let table = input.get(FlowMeterIn::DESTINATION_TABLE_ID);
    fw.icm.steering.table(table).filter(|table| table.kind == kind).ok_or(NO_TABLE.of(table))?;
    let most = 1 << qos.get(Qos::LOG_MAX_FLOW_METER);
    if fw.icm.steering.meters() >= most {
        return Err(FULL.limit(most));
    }
    let number = fw.icm.general.insert(GeneralObject::Meter).map_err(|_| MANY)?;
    fw.icm.steering.create_meter(number, Meter::new(table, register, parameters));
    named(number)
}

pub(super) fn modify_meter(fw: &mut Firmware, number: u32, call: &Call<'_>) -> Outcome {
    const ALL: u32 =
        meter_field::ACTIVE | meter_field::CBS | meter_field::CIR | meter_field::EBS | meter_field::EIR;
    const SELECT: Failure =
        bad_param("MODIFY_GENERAL_OBJECT: modify_field_select: of a meter only bits 0 to 4 can be chosen");
    let mut input = whole(call, FlowMeterIn::from_prefix_or_zero);
    let select = input.get(FlowMeterIn::MODIFY_FIELD_SELECT);
    if select & !ALL != 0 {
        return Err(SELECT.got(select).limit(ALL));
    }
    // The color is not changed, so whatever is said of it is as good as none.
    input.set(FlowMeterIn::START_COLOR, 0);
    if let (Some(meter), Some(new)) = (fw.icm.steering.meter_mut(number), Parameters::of(&input)) {
        meter.modify(new, select);
    }
    Ok(done())
}

pub(super) fn describe_meter(fw: &Firmware, number: u32) -> FlowMeterIn {
    let mut out = FlowMeterIn::new();
    if let Some(meter) = fw.icm.steering.meter(number) {
        meter.describe(&mut out);
        let kind = fw.icm.steering.table(meter.table).map_or(0, |table| table.kind as u32);
        let address = address_of_meter(number);
        out.set(FlowMeterIn::TABLE_TYPE, kind);
        out.set(FlowMeterIn::ICM_ADDRESS_RX, address).set(FlowMeterIn::ICM_ADDRESS_TX, address);
    }
    out
}

pub(super) fn create_definer(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const FORMAT: Failure = bad_param(
        "CREATE_GENERAL_OBJECT: format_id: there is no such format (match_definer_format_supported)",
    );
    const LONG: Failure =
        bad_param("CREATE_GENERAL_OBJECT: match_mask_dw_11_8 must be 0: tags of the format have eight words");
    const MASK: Failure = bad_param(
        "CREATE_GENERAL_OBJECT: match_mask_dw_7_0: the mask has bits of fields that are not compared",
    );
    const FULL: Failure =
        no_room("CREATE_GENERAL_OBJECT: there are as many definers as there can be (max_num_match_definer)");
    let input = whole(call, DefinerIn::from_prefix_or_zero);
    let format = input.get(DefinerIn::FORMAT_ID);
    let comparable = Definer::comparable(format).ok_or(FORMAT.got(format))?;
    let bytes = |range| input.bytes().get(range).unwrap_or_default();
    if bytes(DefinerIn::LONG_MASK).iter().any(|byte| *byte != 0) {
        return Err(LONG);
    }
    let mut definer = Definer { format, mask: comparable };
    definer.mask.iter_mut().zip(bytes(DefinerIn::MASK)).for_each(|(to, byte)| *to = *byte);
    let words = definer.mask.as_chunks::<4>().0.iter().zip(comparable.as_chunks::<4>().0);
    for (n, (mask, may)) in words.enumerate() {
        let (mask, may) = (u32::from_be_bytes(*mask), u32::from_be_bytes(*may));
        if mask & !may != 0 {
            return Err(MASK.of(n as u32).got(mask).limit(may));
        }
    }
    named(fw.icm.steering.definers.insert(definer).map_err(|_| FULL.limit(MOST_DEFINERS))?)
}

pub(super) fn describe_definer(fw: &Firmware, number: u32) -> DefinerIn {
    let mut out = DefinerIn::new();
    if let Some(definer) = fw.icm.steering.definers.get(number) {
        out.set(DefinerIn::FORMAT_ID, definer.format);
        let to = out.bytes_mut().get_mut(DefinerIn::MASK).unwrap_or_default();
        to.iter_mut().zip(definer.mask).for_each(|(to, byte)| *to = byte);
    }
    out
}

/// A definer that compares all that its format has.
pub(super) fn definer_template() -> DefinerIn {
    const FORMAT: u32 = 22;
    let mut input = DefinerIn::new();
    input.set(DefinerIn::FORMAT_ID, FORMAT);
    let mask = Definer::comparable(FORMAT).unwrap_or_default();
    let to = input.bytes_mut().get_mut(DefinerIn::MASK).unwrap_or_default();
    to.iter_mut().zip(mask).for_each(|(to, byte)| *to = byte);
    input
}

#[cfg(test)]
mod tests;
