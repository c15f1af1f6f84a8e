//! What all agents do with a datagram before they look at its attribute, and with the answer.
//!
//! Source: IBTA 13.4.5 (methods), 13.4.7 (status), 13.5 (who gets what).

use hca_spec::mad::{
    CLASS_PERF, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_GET_RESP, METHOD_SET,
    METHOD_TRAP_REPRESS, Mad, STATUS_BAD_METHOD, STATUS_BAD_VERSION, attr,
};

use crate::datagram::Address;

/// Bit 7 of a method: a response.
const RESPONSE: u32 = 0x80;

/// Which agent a datagram is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Get or Set of subnet management.
    Subnet { set: bool },
    /// Get or Set of performance management.
    Performance { set: bool },
    /// A trap was heard.
    Repress,
    /// An answer with that status: no agent understands it.
    Refuse(u32),
    /// No answer: it is a response itself.
    Ignore,
}

/// Whether the class is subnet management.
fn is_subnet(mad: &Mad) -> bool {
    matches!(mad.get(Mad::MGMT_CLASS), CLASS_SUBN_LID_ROUTED | CLASS_SUBN_DIRECTED)
}

/// Whether a datagram came the way of its class: subnet management from QP0 to QP0, all else between others
/// (IBTA 13.5.1).
pub(crate) fn is_well_addressed(address: &Address, mad: &Mad) -> bool {
    let subnet = is_subnet(mad);
    address.is_smp() == subnet && (address.source_qp.0 == 0) == subnet
}

/// Whether the subnet management agent of an adapter's port takes a datagram to QP0, even if a driver has a queue pair that
/// receives there: what it answers itself, and what represses its traps. A manager's own datagrams (SMInfo, responses, traps) are
/// the driver's.
pub fn takes(mad: &Mad) -> bool {
    match request(mad) {
        Request::Subnet { .. } => mad.get(Mad::ATTRIBUTE_ID) != attr::SM_INFO,
        Request::Repress => true,
        Request::Performance { .. } | Request::Refuse(_) | Request::Ignore => false,
    }
}

/// Looks at a datagram's header.
pub(crate) fn request(mad: &Mad) -> Request {
    let method = mad.get(Mad::METHOD);
    let set = method == METHOD_SET;
    match mad.get(Mad::MGMT_CLASS) {
        _ if method & RESPONSE != 0 => Request::Ignore,
        _ if method == METHOD_TRAP_REPRESS && is_subnet(mad) => Request::Repress,
        _ if method == METHOD_TRAP_REPRESS => Request::Ignore,
        _ if mad.get(Mad::BASE_VERSION) != 1 => Request::Refuse(STATUS_BAD_VERSION),
        CLASS_SUBN_LID_ROUTED | CLASS_SUBN_DIRECTED | CLASS_PERF if method != METHOD_GET && !set => {
            Request::Refuse(STATUS_BAD_METHOD)
        }
        CLASS_SUBN_LID_ROUTED | CLASS_SUBN_DIRECTED => Request::Subnet { set },
        CLASS_PERF => Request::Performance { set },
        _ => Request::Refuse(STATUS_BAD_VERSION),
    }
}

/// Makes the response of a request: GetResp, the status, and of a directed route the direction.
pub(crate) fn answer(mad: &Mad, status: u32) -> Mad {
    let mut m = *mad;
    m.set(Mad::METHOD, METHOD_GET_RESP).set(Mad::STATUS, status);
    if m.get(Mad::MGMT_CLASS) == CLASS_SUBN_DIRECTED {
        m.set(Mad::DIRECTION, 1);
    }
    m
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca_spec::mad::METHOD_TRAP;

    #[test]
    fn what_a_driver_gets_of_subnet_management() {
        for class in [CLASS_SUBN_LID_ROUTED, CLASS_SUBN_DIRECTED] {
            for (method, attribute, agents) in [
                (METHOD_GET, attr::NODE_INFO, true),
                (METHOD_SET, attr::PORT_INFO, true),
                (METHOD_GET, 0xff90, true),
                (METHOD_TRAP_REPRESS, attr::NOTICE, true),
                (METHOD_GET, attr::SM_INFO, false),
                (METHOD_SET, attr::SM_INFO, false),
                (METHOD_GET_RESP, attr::PORT_INFO, false),
                (METHOD_TRAP, attr::NOTICE, false),
            ] {
                let mut mad = Mad::new();
                mad.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, class).set(Mad::METHOD, method);
                mad.set(Mad::ATTRIBUTE_ID, attribute);
                assert_eq!(takes(&mad), agents, "class {class:#x}, method {method:#x}, {attribute:#x}");
            }
        }
        let mut counters = Mad::new();
        counters.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_PERF).set(Mad::METHOD, METHOD_GET);
        assert!(!takes(&counters));
    }
}
