//! The network of a cell: adapters, queue pairs and their memory.

use super::star::{Spoilt, Star};
use super::{Cell, Service, Shape};
use crate::counters::port_counters;
use crate::in_process::{ModelBus, ModelMemory, Simulation};
use crate::pair::{PORT, wait_active};
use crate::seeded::Random;
use crate::worlds;
use hca_driver::qp::{Path, QpConfig};
use hca_driver::wqe::Datagram;
use hca_driver::{Access, Bus, Config, Cq, CqConfig, Dma, Hca, InitAttr, Mr, Qp, RtrAttr, RtsAttr, Sge};
use hca_model::link::LinkRate;
use hca_model::{HcaId, LinkConfig};
use hca_spec::ids::{Pd, Psn};
use hca_spec::qpc::ServiceType;
use std::sync::atomic::Ordering;

/// Memory of a host besides what the queue pairs register.
const DRIVER_MEMORY: usize = 4 << 20;
/// Memory of the queues of one queue pair.
const QUEUE_MEMORY: usize = 128 << 10;
/// Entries of completion queues and receive queues.
const ENTRIES: u32 = 128;
/// Basic blocks of send rings.
const SEND_BLOCKS: u32 = 128;
/// Q_Key of datagram queue pairs.
const QKEY: u32 = 0x1357_9bdf;
/// Wait of a sender that met no receive request: 0.01 ms (IBTA table 45).
const RNR_TIMER: u8 = 1;

/// Records of a trace that are kept; all of them are hashed.
const TRACE_RECORDS: usize = 1;

/// Where things are in the registered memory of an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Bytes of a message.
    pub(super) message: usize,
    /// Bytes of a slot: a message and what guards it on both sides.
    slot: usize,
    /// Slots that the peer's requests go to.
    pub(super) inbound: usize,
    /// Slots for own results: reads and atomics.
    pub(super) results: usize,
}

/// Bytes before and behind the message in a slot, which nobody may touch; a multiple of 8.
pub(super) const GUARD: usize = 64;
/// Bytes of the source region beyond one message: requests start at different places.
pub(super) const SOURCE_EXTRA: usize = 512;
/// Words for atomics.
pub(super) const WORDS: usize = 2;
/// What slots are filled with.
pub(super) const EMPTY: u8 = 0xee;

impl Layout {
    /// Slots for messages with `before` bytes in front of them.
    pub(super) fn new(message: usize, before: usize, inbound: usize, results: usize) -> Self {
        let slot = (before + message.max(8) + 2 * GUARD).next_multiple_of(64);
        Self { message, slot, inbound, results }
    }

    /// Where the message of inbound slot `i` is.
    pub(super) const fn inbound(&self, i: usize) -> usize {
        i * self.slot + GUARD
    }

    /// Where the data of result slot `i` is.
    pub(super) const fn result(&self, i: usize) -> usize {
        (self.inbound + i) * self.slot + GUARD
    }

    /// Where the words for atomics are.
    pub(super) const fn word(&self, i: usize) -> usize {
        (self.inbound + self.results) * self.slot + 8 * i
    }

    /// Where the data to send and to be read is.
    pub(super) const fn source(&self) -> usize {
        self.word(WORDS)
    }

    fn size(&self) -> usize {
        self.source() + self.message + SOURCE_EXTRA
    }
}

/// A queue pair and its memory.
pub(super) struct End {
    pub(super) home: usize,
    pub(super) peer: usize,
    pub(super) qp: Qp<ModelMemory>,
    pub(super) send_cq: Cq<ModelMemory>,
    pub(super) recv_cq: Cq<ModelMemory>,
    pub(super) memory: ModelMemory,
    pub(super) mr: Mr,
    /// What the source region holds.
    pub(super) source: Vec<u8>,
    /// The address vector of the peer, for datagrams.
    pub(super) to: Datagram,
    pub(super) global: bool,
}

impl End {
    pub(super) fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { address: self.mr.address + offset as u64, len: len as u32, key: self.mr.key }
    }

    pub(super) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes);
        bytes
    }
}

/// The network.
pub(super) struct Network {
    pub(super) simulation: Simulation,
    pub(super) hcas: Vec<Hca<ModelBus>>,
    pub(super) ends: Vec<End>,
    pub(super) layout: Layout,
    pds: Vec<Pd>,
    spoilt: Option<Spoilt>,
    memory: usize,
}

/// Which adapters are connected.
fn connections(cell: &Cell) -> Vec<(usize, usize)> {
    let n = cell.net.hcas;
    match cell.net.shape {
        Shape::Pairs => (0..n / 2).flat_map(|i| [(2 * i, 2 * i + 1), (2 * i, 2 * i)]).collect(),
        Shape::Ring => (0..n).map(|i| (i, (i + 1) % n)).collect(),
        Shape::All => (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect(),
    }
}

/// How the queue pairs of a cell shall be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) layout: Layout,
    /// Path MTU, IBTA code.
    pub(super) mtu: u8,
    pub(super) retries: u8,
    pub(super) ack_timeout: u8,
    /// Mixed into the seeds of what goes wrong between the adapters.
    pub(super) faults: u64,
    /// Hash everything that happens.
    pub(super) traced: bool,
}

impl Network {
    /// Adapters up, queue pairs in RTS.
    pub(super) fn new(cell: &Cell, parameters: &Parameters, random: &mut Random) -> Result<Self, String> {
        let Parameters { layout, mtu, faults: others, traced, .. } = *parameters;
        let packets = layout.message.div_ceil(128 << mtu).max(1);
        let repaired = cell.service == Service::Rc;
        let faults = cell.fault.on_link(packets, repaired);
        let pairs = connections(cell);
        let links = match cell.net.shape {
            Shape::Pairs => (0..cell.net.hcas / 2)
                .map(|i| LinkConfig {
                    faults: faults.clone(),
                    ..worlds::cable(HcaId(2 * i), HcaId(2 * i + 1))
                })
                .collect(),
            _ => Vec::new(),
        };
        let mut world = worlds::many(cell.net.hcas, links, random.bits() ^ others);
        let mut spoilt = None;
        if cell.net.shape != Shape::Pairs {
            let inside = cell.fault.inside_star(packets, repaired);
            let (star, count) = Star::new(cell.net.hcas, cell.fault, &faults, inside, random.bits() ^ others);
            let ends: Vec<HcaId> = (0..cell.net.hcas).map(HcaId).collect();
            world.connect(ends, LinkRate::Edr, 4, Box::new(star)).map_err(|e| e.to_string())?;
            spoilt = Some(count);
        }
        if traced {
            world.start_trace(TRACE_RECORDS);
        }
        let simulation = Simulation::new(world);
        let most = (0..cell.net.hcas)
            .map(|h| pairs.iter().map(|(a, b)| usize::from(*a == h) + usize::from(*b == h)).sum::<usize>())
            .max()
            .unwrap_or(0);
        let memory = (DRIVER_MEMORY + most * (layout.size().next_multiple_of(4096) + QUEUE_MEMORY))
            .next_power_of_two();
        let mut network =
            Self { simulation, hcas: Vec::new(), ends: Vec::new(), layout, pds: Vec::new(), spoilt, memory };
        network.bring_up(cell, parameters, &pairs, random).map_err(|e| format!("bring-up: {e}"))?;
        Ok(network)
    }

    fn bring_up(
        &mut self,
        cell: &Cell,
        parameters: &Parameters,
        pairs: &[(usize, usize)],
        random: &mut Random,
    ) -> Result<(), hca_driver::Error> {
        let mut lids = Vec::new();
        let mut gids = Vec::new();
        for i in 0..cell.net.hcas {
            let mut hca = Hca::open(self.simulation.bus(HcaId(i), self.memory), Config::default())?;
            wait_active(&mut hca)?;
            lids.push(hca.lid(PORT)?);
            gids.push(hca.gid(PORT, 0)?);
            self.pds.push(hca.alloc_pd()?);
            self.hcas.push(hca);
        }
        for (a, b) in pairs {
            let first = self.ends.len();
            let global = random.one_in(3);
            for (i, (home, far)) in [(*a, *b), (*b, *a)].into_iter().enumerate() {
                let gid = global.then(|| gids[far]);
                let to = Datagram { qpn: Default::default(), qkey: QKEY, lid: lids[far], sl: 0, gid };
                let end = self.new_end(cell.service, home, first + 1 - i, to, random)?;
                self.ends.push(end);
            }
            let psns = [random.bits() as u32, random.bits() as u32].map(|p| Psn::new(p & 0xff_ffff));
            for i in 0..2 {
                let peer = self.ends[first + 1 - i].qp.number();
                let end = &mut self.ends[first + i];
                end.to.qpn = peer;
                let hca = &mut self.hcas[end.home];
                let init = InitAttr { access: Access::ALL, qkey: QKEY, ..InitAttr::default() };
                hca.qp_to_init(&mut end.qp, &init)?;
                if cell.service == Service::Ud {
                    hca.ud_to_rtr(&mut end.qp)?;
                } else {
                    let path = Path { gid: end.to.gid, ..Path::lid(end.to.lid) };
                    let (receive_psn, rnr_timer) = (psns[1 - i], RNR_TIMER);
                    let mtu = parameters.mtu;
                    let rtr = RtrAttr { mtu, receive_psn, rnr_timer, ..RtrAttr::new(peer, path) };
                    hca.qp_to_rtr(&mut end.qp, &rtr)?;
                }
                let Parameters { retries, ack_timeout: timeout, .. } = *parameters;
                let send_psn = psns[i];
                hca.qp_to_rts(&mut end.qp, &RtsAttr { send_psn, timeout, retries, ..RtsAttr::default() })?;
            }
        }
        Ok(())
    }

    fn new_end(
        &mut self,
        service: Service,
        home: usize,
        peer: usize,
        to: Datagram,
        random: &mut Random,
    ) -> Result<End, hca_driver::Error> {
        let (hca, pd) = (&mut self.hcas[home], self.pds[home]);
        let send_cq = hca.create_cq(CqConfig::new(ENTRIES))?;
        let recv_cq = hca.create_cq(CqConfig::new(ENTRIES))?;
        let service = match service {
            Service::Rc => ServiceType::Rc,
            Service::Uc => ServiceType::Uc,
            Service::Ud => ServiceType::Ud,
        };
        let config = QpConfig::rc(pd, &send_cq, &recv_cq);
        let config =
            QpConfig { service, send_blocks: SEND_BLOCKS, recv_requests: ENTRIES, recv_sges: 2, ..config };
        let qp = hca.create_qp(&config)?;
        let size = self.layout.size();
        let mut memory = hca.bus_mut().dma_alloc(size, 4096).ok_or(hca_driver::Error::OutOfMemory)?;
        let mr = hca.register(pd, &memory, size, Access::ALL)?;
        let source = random.bytes(self.layout.message + SOURCE_EXTRA);
        memory.write(0, &vec![EMPTY; self.layout.word(0)]);
        memory.write(self.layout.source(), &source);
        let global = to.gid.is_some();
        Ok(End { home, peer, qp, send_cq, recv_cq, memory, mr, source, to, global })
    }

    /// Checks that the ports counted what was spoilt; gives how much that was.
    pub(super) fn refused(&mut self) -> Result<u64, String> {
        let mut counted = 0;
        for hca in &mut self.hcas {
            counted += u64::from(port_counters(hca, PORT).map_err(|e| e.to_string())?.rcv_errors);
        }
        match &self.spoilt {
            Some(spoilt) if spoilt.load(Ordering::Relaxed) != counted => Err(format!(
                "{} packets arrived spoilt, the ports counted {counted}",
                spoilt.load(Ordering::Relaxed)
            )),
            _ => Ok(counted),
        }
    }

    /// Destroys everything and checks that the adapters kept nothing.
    pub(super) fn close(self) -> Result<(), String> {
        let Self { mut hcas, ends, pds, memory: host_memory, .. } = self;
        let take_down = || -> Result<(), hca_driver::Error> {
            for End { home, qp, send_cq, recv_cq, memory, mr, .. } in ends {
                let hca = &mut hcas[home];
                hca.destroy_qp(qp)?;
                hca.destroy_cq(send_cq)?;
                hca.destroy_cq(recv_cq)?;
                hca.deregister(mr)?;
                drop(memory);
            }
            Ok(())
        };
        take_down().map_err(|e| format!("teardown: {e}"))?;
        for (mut hca, pd) in hcas.into_iter().zip(pds) {
            hca.dealloc_pd(pd).map_err(|e| format!("teardown: {e}"))?;
            let bus = hca.close().map_err(|e| format!("teardown: {e}"))?;
            if bus.free_memory() != host_memory {
                return Err("DMA memory was leaked".to_string());
            }
            worlds::assert_nothing_held(bus.simulation(), bus.hca());
        }
        Ok(())
    }
}
