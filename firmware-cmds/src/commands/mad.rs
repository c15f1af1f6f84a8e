//! Management datagrams by command. Source: PRM "MAD_IFC".

use hca_spec::cmd::MadIfc;
use hca_spec::command::Status;
use hca_spec::mad::{CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_TRAP_REPRESS, Mad, attr};

use super::call::{done, reply};
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::sma::Source;

/// op_mod: the datagram is the host's own; its M_Key is not checked.
const IGNORE_M_KEY: u32 = 1;

pub(super) fn mad_ifc(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const PORT: Failure = bad_param("MAD_IFC: port: the adapter has no such port");
    const UNANSWERED: Failure = Failure::new(
        Status::BadPacket,
        "MAD_IFC: the datagram is no Get or Set that an agent answers, or its M_Key is wrong",
    );
    let mad_in = call.view::<MadIfc>()?;
    let port = mad_in.get(MadIfc::PORT);
    let number = fw.ports.named(port).filter(|_| port != 0);
    let number = number.ok_or(PORT.got(port).limit(fw.ports.numbers().len() as u64))?;
    let request = *mad_in.mad();
    let source = Source::Host { trusted: call.op_mod & IGNORE_M_KEY != 0 };
    let Some(answer) = fw.ports.agents(number, &request, source, effects) else {
        if request.get(Mad::METHOD) == METHOD_TRAP_REPRESS {
            // Heard, and nothing to say.
            let mut out = done();
            out.resize(MadIfc::SIZE, 0);
            return Ok(out);
        }
        return Err(UNANSWERED.got(request.get(Mad::METHOD)));
    };
    let mut out = MadIfc::new();
    *out.mad_mut() = answer;
    Ok(reply(&out))
}

/// MAD_IFC: Get of PortInfo.
pub(super) fn template(_: &Fixture) -> Vec<u8> {
    let mut request = MadIfc::new();
    request.set(MadIfc::PORT, 1);
    let mad = request.mad_mut();
    mad.set(Mad::BASE_VERSION, 1).set(Mad::CLASS_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED);
    mad.set(Mad::METHOD, METHOD_GET).set(Mad::ATTRIBUTE_ID, attr::PORT_INFO).set(Mad::ATTRIBUTE_MODIFIER, 1);
    input(request.bytes(), IGNORE_M_KEY, [])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use hca_spec::command::Opcode;
    use hca_spec::mad::{CLASS_SUBN_DIRECTED, METHOD_SET, PortInfo, port_cap};

    fn smp(class: u32, method: u32, attribute: u32) -> MadIfc {
        let mut m = MadIfc::new();
        m.set(MadIfc::PORT, 1).set(MadIfc::OP_MOD, 3);
        m.mad_mut().set(Mad::BASE_VERSION, 1).set(Mad::CLASS_VERSION, 1).set(Mad::MGMT_CLASS, class);
        m.mad_mut().set(Mad::METHOD, method).set(Mad::ATTRIBUTE_ID, attribute);
        m.mad_mut().set(Mad::TRANSACTION_ID, 0x1234);
        m
    }

    /// NodeInfo by a directed route, as byte offsets that the driver parses.
    #[test]
    fn golden_node_info() {
        let mut b = Bench::initialized();
        let mut m = smp(CLASS_SUBN_DIRECTED, METHOD_GET, attr::NODE_INFO);
        m.mad_mut().set(Mad::HOP_POINTER, 1).set(Mad::HOP_COUNT, 1).set(Mad::DR_SLID, 0xffff);
        let r = b.put(Opcode::MadIfc, &m, 0x110);
        assert_eq!((r.status(), r.output.len()), (Status::Ok, 0x110));
        let mad = &r.output[0x10..];
        assert_eq!(mad[..8], [1, 0x81, 1, 0x81, 0x80, 0, 1, 1], "GetResp, the D bit, the same hops");
        assert_eq!(mad[8..16], 0x1234u64.to_be_bytes());
        let data = &mad[64..];
        assert_eq!(data[..4], [1, 1, 1, 1]);
        assert_eq!(data[12..20], b.fw.config.node_guid.to_be_bytes());
        assert_eq!(data[28..32], [0, 32, 0x10, 0x13], "P_Keys and device id");
        assert_eq!(data[36..40], [1, 0, 2, 0xc9], "local port and vendor");
    }

    #[test]
    fn what_has_no_answer() {
        let mut b = Bench::initialized();
        let r =
            b.put(Opcode::MadIfc, &smp(CLASS_SUBN_LID_ROUTED, METHOD_TRAP_REPRESS, attr::NODE_INFO), 0x110);
        assert_eq!((r.status(), r.output.len()), (Status::Ok, 0x110));
        let response = smp(CLASS_SUBN_LID_ROUTED, 0x81, attr::NODE_INFO);
        assert_eq!(b.put(Opcode::MadIfc, &response, 0x110).status(), Status::BadPacket);
        let mut other = smp(CLASS_SUBN_LID_ROUTED, METHOD_GET, attr::NODE_INFO);
        other.set(MadIfc::PORT, 2);
        assert_eq!(b.put(Opcode::MadIfc, &other, 0x110).status(), Status::BadParam);
    }

    /// A Set with the wrong M_Key is ignored, unless it is the host's own.
    #[test]
    fn management_key() {
        let mut b = Bench::initialized();
        let mut m = smp(CLASS_SUBN_LID_ROUTED, METHOD_GET, attr::PORT_INFO);
        *m.mad_mut().port_info_mut() = b.fw.ports.ports[0].port.info();
        m.mad_mut().set(Mad::METHOD, METHOD_SET);
        m.mad_mut().port_info_mut().set(PortInfo::M_KEY, 0x55).set(PortInfo::PORT_STATE, 0);
        assert_eq!(b.put(Opcode::MadIfc, &m, 0x110).status(), Status::Ok);
        m.mad_mut().port_info_mut().set(PortInfo::MASTER_SM_LID, 9);
        assert_eq!(b.put(Opcode::MadIfc, &m, 0x110).status(), Status::Ok, "the host's own");
        m.set(MadIfc::OP_MOD, 0);
        assert_eq!(b.put(Opcode::MadIfc, &m, 0x110).status(), Status::BadPacket);
        assert_eq!(b.fw.ports.ports[0].port.info().get(PortInfo::M_KEY_VIOLATIONS), 1);
        m.mad_mut().set(Mad::M_KEY, 0x55);
        assert_eq!(b.put(Opcode::MadIfc, &m, 0x110).status(), Status::Ok);
        assert_eq!(b.fw.ports.ports[0].port.info().get(PortInfo::CAPABILITY_MASK) & port_cap::IS_SM, 0);
    }
}
