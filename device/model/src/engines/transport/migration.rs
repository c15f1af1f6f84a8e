//! Automatic path migration: a connection that goes on over its alternate path.
//!
//! Both ends get an alternate path and are told to rearm; each tells the other with the bit MigReq of its packets: 0
//! means "I have one". An end that hears it is armed. From then on either may migrate: because it is told to, or
//! because its retries are used up. It says so with MigReq 1, and the other end follows if the packet comes over the
//! alternate path that it knows.
//!
//! Source: IBTA vol 1 17.2.8 (automatic path migration), 9.2.3 (MigReq), 11.6.3.1 (its events).

use hca_spec::eqe::EventType;
use hca_spec::qpc::{AddressPath, Qpc, ServiceType, path_migration};

use super::{Params, QueuePair};
use crate::adapter::core::Core;
use crate::ground::time::Ps;
use crate::wire::Repr;

impl QueuePair {
    /// Whether packets say that this end has migrated, or never had where to.
    pub(super) fn says_migrated(&self) -> bool {
        !self.has_paths() || self.params.path_migration == path_migration::MIGRATED
    }

    /// Whether the service knows paths and alternate paths.
    fn has_paths(&self) -> bool {
        matches!(self.service, ServiceType::Rc | ServiceType::Uc | ServiceType::Xrc)
    }

    /// What a packet of the peer says of its paths.
    pub(super) fn hear_migration(&mut self, core: &mut Core, now: Ps, repr: &Repr) {
        if !self.has_paths() {
            return;
        }
        let from = u32::from(repr.slid.0);
        match self.params.path_migration {
            path_migration::REARM if !repr.migrated && from == self.params.path.get(AddressPath::RLID) => {
                self.params.path_migration = path_migration::ARMED;
                self.migration_refused = false;
                if let Some(qp) = core.fw.icm.qps.get_mut(self.qpn.0) {
                    qp.ctx.set(Qpc::PM_STATE, path_migration::ARMED);
                }
            }
            path_migration::ARMED if repr.migrated => {
                let qp = core.fw.icm.qps.get(self.qpn.0);
                let known = qp.map(|qp| qp.ctx.secondary_path().get(AddressPath::RLID));
                if known == Some(from) {
                    self.migrate(core, now);
                } else if !std::mem::replace(&mut self.migration_refused, true) {
                    core.diagnose(
                        now,
                        format_args!(
                            "QP {}: the peer migrates to LID {:#x}, which is not the alternate path here (IBTA 17.2.8)",
                            self.qpn,
                            repr.slid.0
                        ),
                    );
                    core.push_qp_event(now, EventType::PathMigrationFailed, self.qpn);
                }
            }
            _ => {}
        }
    }

    /// The retries are used up: goes on over the alternate path, if both ends have one.
    pub(super) fn migrate_if_armed(&mut self, core: &mut Core, now: Ps) -> bool {
        let armed = self.has_paths() && self.params.path_migration == path_migration::ARMED;
        if armed {
            self.migrate(core, now);
            self.requester.retries_left = self.params.retry_count;
        }
        armed
    }

    fn migrate(&mut self, core: &mut Core, now: Ps) {
        let Some(qp) = core.fw.icm.qps.get_mut(self.qpn.0) else { return };
        *qp.ctx.primary_path_mut() = *qp.ctx.secondary_path();
        qp.ctx.set(Qpc::PM_STATE, path_migration::MIGRATED);
        self.params = Params::new(&qp.ctx);
        core.push_qp_event(now, EventType::PathMigrated, self.qpn);
    }
}
