//! An adapter whose cable ends in the test.

use crate::in_process::{ModelBus, ModelMemory, Simulation};
use crate::pair::{PORT, wait_active};
use crate::rig::open;
use crate::worlds;
use hca_driver::qp::{Path, QpConfig};
use hca_driver::{Access, Bus, Cq, CqConfig, Error, Hca, InitAttr, Mr, Qp, RtrAttr, RtsAttr};
use hca_model::link::{Carrier, Delivery, LinkRate};
use hca_model::link_layer::{Packet, ib::Address};
use hca_model::wire::Repr;
use hca_model::{HcaId, Ps};
use hca_spec::ids::{Lid, Psn, Qpn};
use std::sync::{Arc, Mutex, PoisonError};

/// The LID that the test has.
pub const PEER_LID: Lid = Lid(0x77);
/// The queue pair that the test has.
pub const PEER_QPN: Qpn = Qpn(0x1234);

/// What came out of the adapter.
#[derive(Clone, Default)]
struct Tap(Arc<Mutex<Vec<Packet>>>);

impl Carrier for Tap {
    fn transmit(&mut self, _now: Ps, _from: usize, packet: Packet, _out: &mut Vec<Delivery>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(packet);
    }
}

/// An adapter with one queue pair, connected to the test.
pub struct Peer {
    /// The adapter.
    pub hca: Hca<ModelBus>,
    /// Its queue pair.
    pub qp: Qp<ModelMemory>,
    /// Completions of sends.
    pub send_cq: Cq<ModelMemory>,
    /// Completions of receives.
    pub recv_cq: Cq<ModelMemory>,
    /// Registered memory.
    pub memory: ModelMemory,
    /// Its key, for local use.
    pub mr: Mr,
    /// The key of its start, which the test may access.
    pub exposed: Mr,
    lid: Lid,
    tap: Tap,
}

/// How the queue pair shall be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of registered memory.
    pub memory: usize,
    /// How much of it, from the start on, the test may access.
    pub exposed: usize,
    /// Path MTU, IBTA code.
    pub mtu: u8,
    /// The test's first PSN.
    pub receive_psn: u32,
    /// Rights of the queue pair; the key has all.
    pub access: Access,
    /// Reads and atomics that are remembered; a power of two.
    pub responder_reads: u8,
    /// RNR timer code.
    pub rnr_timer: u8,
    /// Values of the transition to RTS.
    pub rts: RtsAttr,
}

impl Peer {
    /// An adapter with one reliable connection in RTS.
    ///
    /// # Errors
    /// A command failed.
    pub fn new(options: &Options) -> Result<Self, Error> {
        let tap = Tap::default();
        let mut world = worlds::one();
        let connected = world.connect(vec![HcaId(0)], LinkRate::Edr, 4, Box::new(tap.clone()));
        assert_eq!(connected, Ok(()));
        let simulation = Simulation::new(world);
        let mut hca = open(&simulation, 0);
        wait_active(&mut hca)?;
        let lid = hca.lid(PORT)?;
        let pd = hca.alloc_pd()?;
        let send_cq = hca.create_cq(CqConfig::new(256))?;
        let recv_cq = hca.create_cq(CqConfig::new(256))?;
        let mut qp = hca.create_qp(&QpConfig::rc(pd, &send_cq, &recv_cq))?;
        let memory = hca.bus_mut().dma_alloc(options.memory, 4096).ok_or(Error::OutOfMemory)?;
        let mr = hca.register(pd, &memory, options.memory, Access::LOCAL_WRITE)?;
        let exposed = hca.register(pd, &memory, options.exposed, Access::ALL)?;
        hca.qp_to_init(&mut qp, &InitAttr { access: options.access, ..InitAttr::default() })?;
        let rtr = RtrAttr {
            mtu: options.mtu,
            receive_psn: Psn::new(options.receive_psn),
            responder_reads: options.responder_reads,
            rnr_timer: options.rnr_timer,
            ..RtrAttr::new(PEER_QPN, Path::lid(PEER_LID))
        };
        hca.qp_to_rtr(&mut qp, &rtr)?;
        hca.qp_to_rts(&mut qp, &options.rts)?;
        Ok(Self { hca, qp, send_cq, recv_cq, memory, mr, exposed, lid, tap })
    }

    /// The simulation the adapter is in.
    pub fn simulation(&mut self) -> Simulation {
        self.hca.bus_mut().simulation().clone()
    }

    /// Sends a packet to the queue pair: `repr` with the addresses filled in.
    pub fn inject(&mut self, repr: Repr, payload: &[u8]) {
        let path = Address::between(PEER_LID, self.lid).into();
        let repr = Repr { dest_qp: self.qp.number(), migrated: true, ..repr };
        let packet = Packet::build(&path, &repr, payload.len(), |buf| {
            buf.copy_from_slice(payload);
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(packet) = packet;
        self.inject_packet(packet);
    }

    /// Sends a packet as it is.
    pub fn inject_packet(&mut self, packet: Packet) {
        self.simulation().world(|world, now| world.inject_packet(now, HcaId(0), packet));
    }

    /// Lets `time` pass; gives what the adapter sent, all of it to the test's queue pair.
    pub fn run(&mut self, time: Ps) -> Vec<(Repr, Vec<u8>)> {
        self.simulation().run(time);
        let packets = std::mem::take(&mut *self.tap.0.lock().unwrap_or_else(PoisonError::into_inner));
        let parsed = packets.iter().map(|packet| {
            let (path, repr, payload) = packet.parse().expect("the adapter sends good packets");
            assert_eq!((path, repr.dest_qp), (Address::between(self.lid, PEER_LID).into(), PEER_QPN));
            (repr, payload.to_vec())
        });
        parsed.collect()
    }
}
