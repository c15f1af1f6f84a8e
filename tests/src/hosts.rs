//! Reliable connections between ports and functions of adapters, with one write at a time: for tests that have more of them
//! than a [`crate::pair::Pair`] has ends.

use hca_driver::qp::{Path, QpConfig};
use hca_driver::{
    Access, Bus, Config, Cq, CqConfig, Dma, Hca, InitAttr, Mr, Qp, RtrAttr, RtsAttr, SendRequest,
};
use hca_model::FunctionRef;
use hca_spec::cqe::Syndrome;
use hca_spec::mad::{PortInfo, port_state};

use crate::in_process::{ModelBus, ModelMemory, Simulation};
use crate::pair::pattern;
use crate::rig::HOST_MEMORY;

/// Bytes of a write: all memory of an end.
pub const LEN: usize = 16 << 10;
/// 4.096 us * 2^8: about a millisecond.
pub const TIMEOUT: u8 = 8;

/// Waits until the subnet manager has brought a port up.
pub fn wait_active(hca: &mut Hca<ModelBus>, port: u8) {
    for _ in 0..1_000_000 {
        if hca.port_info(port).expect("PortInfo").get(PortInfo::PORT_STATE) == port_state::ACTIVE {
            return;
        }
        hca.wait(None);
    }
    panic!("port {port} does not come up");
}

/// An end of a connection: at which adapter and port.
pub struct End {
    /// Place of its driver in [`Hosts::hcas`].
    pub hca: usize,
    /// The port.
    pub port: u8,
    cq: Cq<ModelMemory>,
    /// The queue pair.
    pub qp: Qp<ModelMemory>,
    memory: ModelMemory,
    mr: Mr,
}

/// Drivers of one world, and connections between their ports.
pub struct Hosts {
    /// The world.
    pub simulation: Simulation,
    /// The drivers.
    pub hcas: Vec<Hca<ModelBus>>,
}

impl Hosts {
    /// Drivers of these functions.
    pub fn open(simulation: Simulation, functions: impl IntoIterator<Item = FunctionRef>) -> Self {
        let bus = |function| simulation.bus(function, HOST_MEMORY);
        let open = |function| Hca::open(bus(function), Config::default()).expect("the function comes up");
        let hcas = functions.into_iter().map(open).collect();
        Self { simulation, hcas }
    }

    fn end(&mut self, (hca, port): (usize, u8)) -> End {
        let adapter = &mut self.hcas[hca];
        let pd = adapter.alloc_pd().expect("ALLOC_PD");
        let cq = adapter.create_cq(CqConfig::new(64)).expect("CREATE_CQ");
        let qp = adapter.create_qp(&QpConfig::rc(pd, &cq, &cq)).expect("CREATE_QP");
        let memory = adapter.bus_mut().dma_alloc(LEN, 4096).expect("memory");
        let mr = adapter.register(pd, &memory, LEN, Access::ALL).expect("CREATE_MKEY");
        End { hca, port, cq, qp, memory, mr }
    }

    /// Two connected queue pairs.
    pub fn connect(&mut self, ends: [(usize, u8); 2]) -> [End; 2] {
        let mut ends = ends.map(|place| self.end(place));
        for i in 0..2 {
            let (peer, port) = (ends[1 - i].qp.number(), ends[1 - i].port);
            let lid = self.hcas[ends[1 - i].hca].lid(port).expect("PortInfo");
            let End { hca, port, qp, .. } = &mut ends[i];
            let hca = &mut self.hcas[*hca];
            let init = InitAttr { port: *port, access: Access::ALL, ..InitAttr::default() };
            hca.qp_to_init(qp, &init).expect("INIT");
            hca.qp_to_rtr(qp, &RtrAttr::new(peer, Path::lid(lid))).expect("RTR");
            let rts = RtsAttr { timeout: TIMEOUT, retries: 2, ..RtsAttr::default() };
            hca.qp_to_rts(qp, &rts).expect("RTS");
        }
        ends
    }

    /// Posts a write of all memory from the first end to the second.
    pub fn post(&mut self, [from, to]: &mut [End; 2], id: u64) {
        from.memory.write(0, &pattern(id, LEN));
        let sge = [hca_driver::Sge { address: from.mr.address, len: LEN as u32, key: from.mr.key }];
        let request = SendRequest::write(id, &sge, to.mr.address, to.mr.key);
        from.qp.post_send(self.hcas[from.hca].bus_mut(), &request).expect("post_send");
    }

    /// Waits until the write is done, and looks whether the bytes are there. Returns how it went wrong.
    pub fn done(&mut self, [from, to]: &mut [End; 2], id: u64) -> Option<Syndrome> {
        let completion = (0..1_000_000).find_map(|_| {
            let found = from.cq.poll();
            if found.is_none() {
                self.hcas[from.hca].wait(None);
            }
            found
        });
        let completion = completion.expect("a completion");
        assert_eq!(from.qp.finish(&completion), Some(id));
        if completion.status.is_ok() {
            let mut bytes = vec![0; LEN];
            to.memory.read(0, &mut bytes);
            assert!(bytes == pattern(id, LEN), "the bytes of write {id}");
        }
        completion.syndrome()
    }
}
