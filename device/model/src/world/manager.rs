//! The built-in subnet manager: gives LIDs by the order of the adapters and brings ports up.

use hca_spec::ids::Lid;
use hca_spec::mad::{CLASS_SUBN_LID_ROUTED, METHOD_GET, METHOD_SET, Mad, PortInfo, attr, port_state};

use super::config::{HCA_PORT, NodeId, PortRef};
use super::{HcaId, World};

/// LID of the built-in subnet manager: the last unicast one.
const SUBNET_MANAGER_LID: u32 = 0xbfff;

impl World {
    /// Brings a port up that waits for its subnet manager.
    pub(super) fn manage(&mut self, port: PortRef) {
        if !self.subnet_manager || self.port(port).is_none_or(|p| p.state != port_state::INIT) {
            return;
        }
        match port.node {
            NodeId::Hca(id) => self.manage_hca(id),
            NodeId::Switch(_) => {}
        }
    }

    fn manage_hca(&mut self, id: HcaId) {
        let now = self.now;
        let Some(hca) = self.hcas.get_mut(id.0) else { return };
        let lid = Lid(id.0 as u16 + 1);
        let mut effects = Vec::new();
        for state in [port_state::ARMED, port_state::ACTIVE] {
            let mut smp = Mad::new();
            smp.set(Mad::BASE_VERSION, 1)
                .set(Mad::MGMT_CLASS, CLASS_SUBN_LID_ROUTED)
                .set(Mad::CLASS_VERSION, 1);
            smp.set(Mad::METHOD, METHOD_GET).set(Mad::ATTRIBUTE_ID, attr::PORT_INFO);
            smp.set(Mad::ATTRIBUTE_MODIFIER, HCA_PORT.into());
            let Some(mut smp) = hca.core.fw.mad(HCA_PORT, &smp, &mut effects) else { break };
            smp.set(Mad::METHOD, METHOD_SET).set(Mad::STATUS, 0);
            smp.port_info_mut()
                .set(PortInfo::LID, lid.0.into())
                .set(PortInfo::MASTER_SM_LID, SUBNET_MANAGER_LID)
                .set(PortInfo::PORT_STATE, state)
                .set(PortInfo::PORT_PHYSICAL_STATE, 0)
                .set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
            let answer = hca.core.fw.mad(HCA_PORT, &smp, &mut effects);
            if answer.is_none_or(|a| a.get(Mad::STATUS) != 0) {
                tracing::error!("the built-in subnet manager could not configure adapter {}", id.0);
                break;
            }
        }
        self.apply(id, now, effects);
    }
}
