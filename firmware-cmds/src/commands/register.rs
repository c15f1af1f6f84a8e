//! ACCESS_REGISTER. Source: PRM "ACCESS_REGISTER" and the registers' own layouts.

use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::Status;
use hca_spec::mad::PortInfo;
use hca_spec::{be32, put_be32};

use super::{Outcome, view};
use crate::failure::{Failure, SHORT, bad_param};
use crate::firmware::Firmware;

pub(super) fn access(fw: &mut Firmware, input: &[u8]) -> Outcome {
    const UNKNOWN: Failure = bad_param("ACCESS_REGISTER: this adapter does not have the register");
    const READ_ONLY: Failure = bad_param("ACCESS_REGISTER: the register can't be written");
    const WRITE_ONLY: Failure = bad_param("ACCESS_REGISTER: the register can't be read");
    const EMPTY: Failure = Failure::new(Status::BadInputLength, "ACCESS_REGISTER: no register data");
    let access = view::<AccessRegIn>(input)?;
    let write = access.get(AccessRegIn::OP_MOD) == 0;
    let data = input.get(AccessRegIn::SIZE..).unwrap_or_default();
    if data.is_empty() {
        return Err(EMPTY);
    }
    // A register that is written partly would take zeros for what is missing.
    const WORDS: usize = 8;
    if write && data.len() < WORDS {
        return Err(SHORT);
    }
    let mut out = vec![0; AccessRegIn::SIZE];
    out.extend_from_slice(data);
    let into = &mut out[AccessRegIn::SIZE..];
    match (access.get(AccessRegIn::REGISTER_ID), write) {
        // Commands are big-endian whatever the host is; the code only matters for inline data.
        (reg::HOST_ENDIANNESS, true) => {}
        (reg::HOST_ENDIANNESS, false) => return Err(WRITE_ONLY),
        (reg::PCAP, true) => {
            // Word 1: capability bits to set, of one port.
            let value = be32(data, 4);
            fw.port.change_capabilities(u32::MAX, value);
        }
        (reg::PCAP, false) => put_be32(into, 4, fw.port.info().get(PortInfo::CAPABILITY_MASK)),
        (reg::NODE_DESC, true) => fw.port.set_node_description(data),
        (reg::NODE_DESC, false) => {
            for (to, from) in into.iter_mut().zip(fw.port.node_description()) {
                *to = *from;
            }
        }
        (reg::PMTU, false) => {
            const MTU: u32 = 4096;
            put_be32(into, 4, MTU << 16);
            put_be32(into, 8, MTU << 16);
            put_be32(into, 12, MTU << 16);
        }
        (reg::PVLC, false) => {
            const LANES: u32 = 8;
            put_be32(into, 4, LANES);
            put_be32(into, 8, LANES << 16 | LANES);
        }
        (reg::PMTU | reg::PVLC, true) => return Err(READ_ONLY),
        _ => return Err(UNKNOWN),
    }
    Ok(out)
}
