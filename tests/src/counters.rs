//! A port's counters, read as tools do: from its performance management agent.

use hca_driver::{Bus, Error, Hca};
use hca_spec::be32;
use hca_spec::mad::{CLASS_PERF, METHOD_GET, Mad, SMP_DATA, attr};

/// Counters of a port (IBTA vol 1 16.1.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// `PortRcvErrors`, 16 bits: stops at its end.
    pub rcv_errors: u32,
    /// `PortRcvPkts`, 32 bits.
    pub rcv_packets: u32,
    /// `PortXmitPkts`, 32 bits.
    pub xmit_packets: u32,
}

/// Reads the counters of port `port`.
///
/// # Errors
/// The command failed, or the agent refused.
pub fn port_counters<B: Bus>(hca: &mut Hca<B>, port: u8) -> Result<PortCounters, Error> {
    /// Places in the attribute.
    const PORT_SELECT: usize = 1;
    const RCV_ERRORS: usize = 8;
    const XMIT_PACKETS: usize = 32;
    const RCV_PACKETS: usize = 36;
    let mut mad = Mad::new();
    mad.set(Mad::BASE_VERSION, 1).set(Mad::MGMT_CLASS, CLASS_PERF).set(Mad::CLASS_VERSION, 1);
    mad.set(Mad::METHOD, METHOD_GET).set(Mad::ATTRIBUTE_ID, attr::PORT_COUNTERS);
    mad.bytes_mut()[SMP_DATA + PORT_SELECT] = port;
    let answer = hca.mad(port, &mad)?;
    let word = |at: usize| be32(answer.bytes(), SMP_DATA + at);
    Ok(PortCounters {
        rcv_errors: word(RCV_ERRORS) >> 16,
        rcv_packets: word(RCV_PACKETS),
        xmit_packets: word(XMIT_PACKETS),
    })
}
