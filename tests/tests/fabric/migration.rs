//! Automatic path migration: two paths between two adapters, by two LIDs of each port.

use hca_driver::qp::Path;
use hca_driver::{Error, Event, RtsAttr, SendRequest};
use hca_model::link::{Carrier, Delivery, LinkRate};
use hca_model::link_layer::Packet;
use hca_model::{HcaId, Ps};
use hca_spec::command::Status;
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::ids::{Gid, Lid};
use hca_spec::mad::{PortInfo, SmpData, attr};
use hca_spec::qpc::{AddressPath, Qpc, path_migration};
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, PORT, Pair, wait_active};
use hca_tests::rig::{close, drain_events, open};
use hca_tests::worlds;
use std::sync::{Arc, Mutex, PoisonError};

/// First LIDs of the two ports; each has two.
const LIDS: [u16; 2] = [0x10, 0x20];
const TIMEOUT: u8 = 8;

/// What is cut, and what passed.
#[derive(Default)]
struct Seen {
    cut: Vec<u16>,
    /// End, destination and MigReq.
    passed: Vec<(usize, u16, bool)>,
}

/// A link that forgets packets to some LIDs and remembers MigReq of the others.
#[derive(Clone, Default)]
struct Paths(Arc<Mutex<Seen>>);

impl Paths {
    fn cut(&self, lids: &[u16]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).cut = lids.to_vec();
    }

    /// End, destination and MigReq of what passed since.
    fn passed(&self) -> Vec<(usize, u16, bool)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).passed)
    }
}

impl Carrier for Paths {
    fn transmit(&mut self, now: Ps, from: usize, packet: Packet, out: &mut Vec<Delivery>) {
        let inner = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lid = packet.ib().dlid.0;
        if inner.cut.contains(&lid) {
            return;
        }
        if let Ok((_, repr, _)) = packet.parse() {
            inner.passed.push((from, lid, repr.migrated));
        }
        out.push(Delivery { at: now + Ps::from_ns(5), end: 1 - from, packet });
    }
}

fn pair() -> (Pair<ModelBus>, Paths) {
    let paths = Paths::default();
    let mut world = worlds::many(2, Vec::new(), 1);
    let connected = world.connect(vec![HcaId(0), HcaId(1)], LinkRate::Edr, 4, Box::new(paths.clone()));
    assert_eq!(connected, Ok(()));
    let simulation = Simulation::new(world);
    let mut hcas = vec![open(&simulation, 0), open(&simulation, 1)];
    for (hca, lid) in hcas.iter_mut().zip(LIDS) {
        wait_active(hca).expect("PortInfo");
        let mut info = hca.port_info(PORT).expect("PortInfo");
        info.set(PortInfo::LID, lid.into()).set(PortInfo::LMC, 1);
        info.set(PortInfo::PORT_STATE, 0).set(PortInfo::PORT_PHYSICAL_STATE, 0);
        let mut data = SmpData::new();
        data.bytes_mut().copy_from_slice(info.bytes());
        hca.smp_set(PORT, attr::PORT_INFO, PORT.into(), &data).expect("SubnSet(PortInfo)");
    }
    let rts = RtsAttr { timeout: TIMEOUT, retries: 2, ..RtsAttr::default() };
    let mut pair = Pair::connect(hcas, &Options { rts, ..Options::default() }).expect("connected");
    for hca in &mut pair.hcas {
        drain_events(hca);
    }
    (pair, paths)
}

/// The second LIDs of both ports.
fn alternate(end: usize) -> Path {
    Path { source_bits: 1, ..Path::lid(Lid(LIDS[1 - end] + 1)) }
}

fn rearm(pair: &mut Pair<ModelBus>, end: usize, path: &Path) -> Result<(), Error> {
    pair.hcas[end].qp_rearm(&mut pair.ends[end].qp, path, TIMEOUT)
}

fn write(pair: &mut Pair<ModelBus>, end: usize) -> Option<Syndrome> {
    let far = pair.ends[1 - end].mr;
    pair.send(end, &SendRequest::write(1, &[], far.address, far.key).inline(b"hello"));
    pair.sent(end).1.syndrome()
}

/// State of migration and destination at each end.
fn states(pair: &mut Pair<ModelBus>) -> [(u32, u32); 2] {
    [0, 1].map(|end| {
        let hca = &mut pair.hcas[end];
        let state = hca.qp_migration(&pair.ends[end].qp).expect("QUERY_QP");
        let qpc: Qpc = hca.query_qp(&pair.ends[end].qp).expect("QUERY_QP");
        (state, qpc.primary_path().get(AddressPath::RLID))
    })
}

fn events(pair: &mut Pair<ModelBus>, end: usize) -> Vec<u8> {
    let all = drain_events(&mut pair.hcas[end]);
    all.iter().filter_map(|e| if let Event::Qp { kind, .. } = e { Some(*kind) } else { None }).collect()
}

fn arm(pair: &mut Pair<ModelBus>) {
    for end in 0..2 {
        rearm(pair, end, &alternate(end)).expect("RTS2RTS");
    }
    assert_eq!(write(pair, 0), None);
    assert_eq!(states(pair), [(path_migration::ARMED, 0x20), (path_migration::ARMED, 0x10)]);
    assert!(events(pair, 0).is_empty() && events(pair, 1).is_empty());
}

const BOTH_MIGRATED: [(u32, u32); 2] = [(path_migration::MIGRATED, 0x21), (path_migration::MIGRATED, 0x11)];

/// Armed is who has heard that the peer has an alternate path; packets say it.
#[test]
fn arming_takes_both() {
    let (mut pair, paths) = pair();
    assert_eq!(write(&mut pair, 0), None);
    assert!(paths.passed().iter().all(|p| p.2), "at first nobody has an alternate path");
    rearm(&mut pair, 0, &alternate(0)).expect("RTS2RTS");
    assert_eq!(write(&mut pair, 0), None);
    assert_eq!(states(&mut pair), [(path_migration::REARM, 0x20), (path_migration::MIGRATED, 0x10)]);
    assert!(paths.passed().iter().all(|p| p.2 == (p.0 == 1)), "only the far end says MigReq");
    arm(&mut pair);
    // Migrating is for both; what was the alternate path can be armed again.
    pair.hcas[0].qp_migrate(&mut pair.ends[0].qp).expect("RTS2RTS");
    assert_eq!(write(&mut pair, 0), None);
    assert_eq!(states(&mut pair), BOTH_MIGRATED);
    for end in 0..2 {
        assert_eq!(events(&mut pair, end), [EventType::PathMigrated as u8], "end {end}");
        rearm(&mut pair, end, &Path::lid(Lid(LIDS[1 - end]))).expect("RTS2RTS");
    }
    assert_eq!(write(&mut pair, 1), None);
    assert_eq!(states(&mut pair), [(path_migration::ARMED, 0x21), (path_migration::ARMED, 0x11)]);
    close(pair);
}

/// The primary path breaks: nothing is lost, and both ends are told.
#[test]
fn a_broken_path_is_left() {
    for who in 0..2 {
        let (mut pair, paths) = pair();
        arm(&mut pair);
        paths.cut(&LIDS);
        paths.passed();
        assert_eq!(write(&mut pair, who), None);
        assert!(
            paths.passed().iter().all(|p| p.2 && p.1 & 1 == 1),
            "all over the alternate path, with MigReq"
        );
        assert_eq!(pair.ends[1 - who].bytes(0, 5), b"hello");
        assert_eq!(states(&mut pair), BOTH_MIGRATED);
        for end in 0..2 {
            assert_eq!(events(&mut pair, end), [EventType::PathMigrated as u8], "end {end}");
        }
        // There is no third path.
        paths.cut(&[0x11, 0x21]);
        assert_eq!(write(&mut pair, who), Some(Syndrome::TransportRetryExceeded));
        close(pair);
    }
}

/// A peer that migrates to where nobody expects it is not followed.
#[test]
fn an_unknown_path_is_refused() {
    let (mut pair, _) = pair();
    rearm(&mut pair, 0, &alternate(0)).expect("RTS2RTS");
    // The far end expects the near one where it is already.
    rearm(&mut pair, 1, &Path::lid(Lid(LIDS[0]))).expect("RTS2RTS");
    assert_eq!(write(&mut pair, 0), None);
    pair.hcas[0].qp_migrate(&mut pair.ends[0].qp).expect("RTS2RTS");
    assert_eq!(write(&mut pair, 0), Some(Syndrome::TransportRetryExceeded));
    assert_eq!(events(&mut pair, 0), [EventType::PathMigrated as u8]);
    assert_eq!(events(&mut pair, 1), [EventType::PathMigrationFailed as u8], "once");
    assert_eq!(states(&mut pair)[1], (path_migration::ARMED, 0x10));
    close(pair);
}

#[test]
fn no_alternate_path() {
    let (mut pair, _) = pair();
    let refused = rearm(&mut pair, 0, &Path::lid(Lid(0))).expect_err("rearm without a path");
    assert_eq!(refused.status(), Some(Status::BadParam));
    // Migrating from nothing to nothing changes nothing.
    pair.hcas[0].qp_migrate(&mut pair.ends[0].qp).expect("RTS2RTS");
    assert_eq!(states(&mut pair), [(path_migration::MIGRATED, 0x20), (path_migration::MIGRATED, 0x10)]);
    assert!(events(&mut pair, 0).is_empty());
    close(pair);
}

/// Who comes over the alternate path without the GRH that this path has does not migrate its peer.
#[test]
fn the_alternate_path_has_its_gids() {
    let (mut pair, _) = pair();
    let gids = [0, 1].map(|hca: usize| pair.hcas[hca].gid(PORT, 0).expect("a GID"));
    let other = Gid::new(0xfe80 << 48, 0x0bad);
    // What the near end sends has no GRH; has one, and the far end expects another GID; has the one expected.
    for (near, far, migrates) in
        [(None, gids[0], false), (Some(gids[1]), other, false), (Some(gids[1]), gids[0], true)]
    {
        rearm(&mut pair, 0, &Path { gid: near, ..alternate(0) }).expect("RTS2RTS");
        rearm(&mut pair, 1, &Path { gid: Some(far), ..alternate(1) }).expect("RTS2RTS");
        assert_eq!(write(&mut pair, 0), None);
        assert_eq!(states(&mut pair).map(|state| state.0), [path_migration::ARMED; 2]);
        pair.hcas[0].qp_migrate(&mut pair.ends[0].qp).expect("RTS2RTS");
        assert_eq!(write(&mut pair, 0).is_none(), migrates, "{near:?} {far}");
        assert_eq!(
            events(&mut pair, 1),
            [match migrates {
                true => EventType::PathMigrated,
                false => EventType::PathMigrationFailed,
            } as u8]
        );
        assert_eq!(states(&mut pair)[1].1, if migrates { 0x11 } else { 0x10 }, "{near:?} {far}");
        for end in 0..2 {
            pair.hcas[end].qp_to_reset(&mut pair.ends[end].qp).expect("2RST");
        }
        let rts = RtsAttr { timeout: TIMEOUT, retries: 2, ..RtsAttr::default() };
        for end in 0..2 {
            pair.to_rts(end, &Options { rts, ..Options::default() }).expect("connect");
            drain_events(&mut pair.hcas[end]);
        }
    }
    close(pair);
}

/// The alternate path may be of another partition than the primary one: its P_Key is what a packet that migrates has to have (IBTA 9.6.1.5, 17.2.8).
#[test]
fn the_alternate_path_has_its_partition() {
    const KEYS: [u8; 6] = [0xff, 0xff, 0x80, 0x01, 0x80, 0x02];
    // P_Key indices of the near end's alternate path and of the far end's.
    for (near, far, migrates) in [(1, 1, true), (0, 1, false), (1, 2, false), (2, 0, false)] {
        let (mut pair, _) = pair();
        for hca in &mut pair.hcas {
            let mut table = SmpData::new();
            table.bytes_mut()[..KEYS.len()].copy_from_slice(&KEYS);
            hca.smp_set(PORT, attr::PKEY_TABLE, 0, &table).expect("SubnSet(P_KeyTable)");
        }
        let violations = |pair: &mut Pair<ModelBus>| {
            let info = pair.hcas[1].port_info(PORT).expect("PortInfo");
            info.get(PortInfo::P_KEY_VIOLATIONS)
        };
        rearm(&mut pair, 0, &Path { pkey_index: near, ..alternate(0) }).expect("RTS2RTS");
        rearm(&mut pair, 1, &Path { pkey_index: far, ..alternate(1) }).expect("RTS2RTS");
        assert_eq!(write(&mut pair, 0), None, "over the primary path");
        assert_eq!(states(&mut pair).map(|state| state.0), [path_migration::ARMED; 2]);
        for end in 0..2 {
            drain_events(&mut pair.hcas[end]);
        }
        pair.hcas[0].qp_migrate(&mut pair.ends[0].qp).expect("RTS2RTS");
        let what = format!("P_Key indices {near} and {far}");
        assert_eq!(write(&mut pair, 0).is_none(), migrates, "{what}");
        assert_eq!(states(&mut pair)[1].1, if migrates { 0x11 } else { 0x10 }, "{what}");
        assert_eq!(violations(&mut pair) == 0, migrates, "{what}");
        if migrates {
            assert_eq!(events(&mut pair, 1), [EventType::PathMigrated as u8]);
            assert_eq!(write(&mut pair, 1), None);
        }
        close(pair);
    }
}
