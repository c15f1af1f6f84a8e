//! Attributes of a port as the agents of adapters and of switches both answer them.

use hca_spec::mad::{Mad, PortInfo};
use hca_spec::put_be32;

use super::{Port, PortEvents};

/// Get and Set of a port's PortInfo; the status. The answer's LocalPortNum is the port's own number.
pub(crate) fn port_info(
    port: &mut Port,
    set: bool,
    mad: &Mad,
    response: &mut Mad,
    effects: &mut impl PortEvents,
) -> u32 {
    let new = mad.port_info();
    let status = if set { port.set_info(new, effects) } else { 0 };
    *response.port_info_mut() = port.info();
    if set {
        // The bit is echoed, not kept.
        let again = new.get(PortInfo::CLIENT_REREGISTER);
        response.port_info_mut().set(PortInfo::CLIENT_REREGISTER, again);
    }
    status
}

/// The vendor's ExtendedPortInfo, written first if `new` is given: speeds beyond the standard ones.
pub(crate) fn vendor_port_info(port: &mut Port, new: Option<&[u8; 64]>) -> [u8; 64] {
    /// Which fields a Set changes: bit 0 = the enabled speeds.
    const STATE_CHANGE_ENABLE: usize = 3;
    const SUPPORTED: usize = 4;
    const ENABLED: usize = 8;
    const ACTIVE: usize = 12;
    if let Some(new) = new
        && new.get(STATE_CHANGE_ENABLE).is_some_and(|e| e & 1 == 1)
    {
        port.enable_vendor_speeds(hca_spec::be32(new, ENABLED));
    }
    let (supported, enabled, active) = port.vendor_speeds();
    let mut data = [0; 64];
    for (at, value) in [(SUPPORTED, supported), (ENABLED, enabled), (ACTIVE, active)] {
        put_be32(&mut data, at, value);
    }
    data
}
