//! Management datagrams and virtual port queries.
//!
//! Source: PRM "MAD_IFC", "QUERY_HCA_VPORT_CONTEXT", "MODIFY_HCA_VPORT_CONTEXT",
//! "QUERY_HCA_VPORT_GID", "QUERY_HCA_VPORT_PKEY".

use hca_spec::be32;
use hca_spec::cmd::{MadIfc, QueryHcaVportContextOut as Context, QueryHcaVportIn};
use hca_spec::command::{Opcode, Status};
use hca_spec::mad::PortInfo;

use super::{Outcome, done, view};
use crate::effect::Effect;
use crate::failure::{Failure, SHORT, bad_param};
use crate::firmware::Firmware;
use crate::profile::{GUIDS, PKEYS};

const PORT: Failure = bad_param("the adapter has one port, 1");
const OTHER: Failure = bad_param("other_vport: the adapter has no other functions");

pub(super) fn mad_ifc(fw: &mut Firmware, input: &[u8], effects: &mut Vec<Effect>) -> Outcome {
    const UNANSWERED: Failure =
        Failure::new(Status::BadPacket, "MAD_IFC: the datagram is not a Get or Set that an agent answers");
    let mad_in = view::<MadIfc>(input)?;
    let port = mad_in.get(MadIfc::PORT) as u8;
    if port != 1 {
        return Err(PORT);
    }
    let request = *mad_in.mad();
    let answer = fw.mad(port, &request, effects).ok_or(UNANSWERED)?;
    let mut out = MadIfc::new();
    *out.mad_mut() = answer;
    Ok(out.bytes().to_vec())
}

fn check_port(input: &[u8]) -> Result<&QueryHcaVportIn, Failure> {
    let query = view::<QueryHcaVportIn>(input)?;
    if query.get(QueryHcaVportIn::OTHER_VPORT) == 1 {
        return Err(OTHER);
    }
    // Single-port functions leave the port number at zero.
    if query.get(QueryHcaVportIn::PORT_NUM) > 1 {
        return Err(PORT);
    }
    Ok(query)
}

pub(super) fn vport_context(fw: &Firmware, input: &[u8]) -> Outcome {
    check_port(input)?;
    let info = fw.port.info();
    let mut out = Context::new();
    out.set(Context::HAS_SMI, 1);
    out.set(Context::PORT_PHYSICAL_STATE, info.get(PortInfo::PORT_PHYSICAL_STATE));
    out.set(Context::VPORT_STATE, info.get(PortInfo::PORT_STATE));
    out.set(Context::SYSTEM_IMAGE_GUID, fw.config.system_image_guid);
    out.set(Context::PORT_GUID, fw.config.port_guid).set(Context::NODE_GUID, fw.config.node_guid);
    out.set(Context::CAP_MASK1, info.get(PortInfo::CAPABILITY_MASK));
    out.set(Context::CAP_MASK1_FIELD_SELECT, u32::MAX);
    out.set(Context::LID, info.get(PortInfo::LID)).set(Context::LMC, info.get(PortInfo::LMC));
    out.set(Context::SUBNET_TIMEOUT, info.get(PortInfo::SUBNET_TIMEOUT));
    out.set(Context::SM_LID, info.get(PortInfo::MASTER_SM_LID))
        .set(Context::SM_SL, info.get(PortInfo::MASTER_SM_SL));
    out.set(Context::QKEY_VIOLATION_COUNTER, info.get(PortInfo::Q_KEY_VIOLATIONS));
    out.set(Context::PKEY_VIOLATION_COUNTER, info.get(PortInfo::P_KEY_VIOLATIONS));
    Ok(out.bytes().to_vec())
}

pub(super) fn modify_vport_context(fw: &mut Firmware, input: &[u8]) -> Outcome {
    /// Offset of the context in the input; it has the layout of the query's output from 0x10 on.
    const CONTEXT: usize = 0x20;
    const END: usize = CONTEXT + 0x48;
    check_port(input)?;
    if input.len() < END {
        return Err(SHORT);
    }
    let value = be32(input, CONTEXT + 0x40);
    let mask = be32(input, CONTEXT + 0x44);
    fw.port.change_capabilities(mask, value);
    Ok(done())
}

pub(super) fn vport_table(fw: &Firmware, opcode: Opcode, input: &[u8]) -> Outcome {
    const INDEX: Failure = Failure::new(Status::BadIndex, "the GID or P_Key index is beyond the table");
    const ALL: u32 = 0xffff;
    let index = check_port(input)?.get(QueryHcaVportIn::INDEX);
    let mut out = done();
    if opcode == Opcode::QueryHcaVportGid {
        let count = GUIDS as u32;
        let range = if index == ALL { 0..count } else { index..index + 1 };
        if range.end > count {
            return Err(INDEX);
        }
        hca_spec::put_be32(&mut out, 8, range.len() as u32);
        range.for_each(|i| out.extend_from_slice(&fw.port.gid(i).0));
    } else {
        let count = PKEYS as u32;
        let range = if index == ALL { 0..count } else { index..index + 1 };
        if range.end > count {
            return Err(INDEX);
        }
        range.for_each(|i| {
            out.extend_from_slice(&[0, 0]);
            out.extend_from_slice(&fw.port.pkey(i).to_be_bytes());
        });
    }
    Ok(out)
}
