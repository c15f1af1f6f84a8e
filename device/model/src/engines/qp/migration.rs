//! Automatic path migration: a connection that goes on over its alternate path.
//!
//! Both ends get an alternate path and are told to rearm; each tells the other with the bit MigReq of its packets: 0
//! means "I have one". An end that hears it is armed. From then on either may migrate: because it is told to, or
//! because its retries are used up. It says so with MigReq 1, and the other end follows if the packet comes over the
//! alternate path that it knows.
//!
//! Source: IBTA vol 1 17.2.8 (automatic path migration), 9.2.3 (MigReq), 11.6.3.1 (its events).

use hca_spec::qpc::{ServiceType, path_migration};

use super::QueuePair;
use crate::engines::view::View;
use crate::link_layer::{Path, Route};
use crate::wire::Repr;

/// What a packet of the peer says of its paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MigrationStep {
    Nothing,
    /// It has an alternate path: this end, which rearms, is armed now.
    Armed,
    /// It has migrated, to the alternate path that is known here.
    Migrated,
    /// It has migrated to another path; that is told once.
    Refused,
}

impl QueuePair {
    /// Whether packets say that this end has migrated, or never had where to.
    pub(crate) fn says_migrated(&self) -> bool {
        !self.has_paths() || self.params.path_migration == path_migration::MIGRATED
    }

    /// Whether the service knows paths and alternate paths.
    fn has_paths(&self) -> bool {
        matches!(self.service, ServiceType::Rc | ServiceType::Uc | ServiceType::Xrc)
    }

    /// Whether it matters what packets of the peer say of paths.
    #[inline]
    pub(crate) fn heeds_migration(&self) -> bool {
        let step = self.params.path_migration;
        matches!(step, path_migration::REARM | path_migration::ARMED) && self.has_paths()
    }

    /// Whether it may go on over its alternate path.
    #[inline]
    pub(crate) fn may_migrate(&self) -> bool {
        self.params.path_migration == path_migration::ARMED && self.has_paths()
    }

    /// Whether packets of the peer that say so of its paths change nothing.
    pub(crate) fn keeps_its_way(&self, migrated: bool) -> bool {
        let may_change = match self.params.path_migration {
            path_migration::REARM => !migrated,
            path_migration::ARMED => migrated,
            _ => false,
        };
        !(self.has_paths() && may_change)
    }

    /// Whether a packet of the peer that says so asks this end to go to the alternate path: then it is of that path, in its partition too
    /// (IBTA 9.6.1.5, 17.2.8; qib driver, `qib_ruc_check_hdr`).
    #[inline]
    pub(super) fn is_asked_to_migrate(&self, migrated: bool) -> bool {
        migrated && self.may_migrate()
    }

    /// The alternate path.
    fn alternate(&self, view: &View<'_>) -> Option<Route> {
        let qp = view.icm().qps.get(self.qpn.0)?;
        Some(view.route_of(qp.ctx.secondary_path()))
    }

    /// The P_Key of the alternate path; 0, which matches nothing, without one.
    #[cold]
    pub(super) fn alternate_pkey(&self, view: &View<'_>) -> u16 {
        let alternate = self.alternate(view);
        alternate.and_then(|route| Some(route.pkey(view.port(route.port())?))).unwrap_or(0)
    }

    /// Takes what a packet of the peer says of its paths, of one that heeds it.
    pub(crate) fn check_migration(
        &mut self,
        view: &View<'_>,
        port: u8,
        (path, repr): (&Path, &Repr),
    ) -> MigrationStep {
        match self.params.path_migration {
            path_migration::REARM if !repr.migrated && self.check_way(view, port, path).is_ok() => {
                self.params.path_migration = path_migration::ARMED;
                self.migration_refused = false;
                MigrationStep::Armed
            }
            path_migration::ARMED if repr.migrated => {
                let leads_there = |route: Route| {
                    let wrong = view.port(port).and_then(|port| route.wrong_gid(port, path));
                    route.port() == port && route.peer() == path.source() && wrong.is_none()
                };
                match self.alternate(view).is_some_and(leads_there) {
                    true => MigrationStep::Migrated,
                    false if !std::mem::replace(&mut self.migration_refused, true) => MigrationStep::Refused,
                    false => MigrationStep::Nothing,
                }
            }
            _ => MigrationStep::Nothing,
        }
    }
}
