use super::*;
use crate::fake::FakeBus;
use alloc::rc::Rc;
use core::cell::RefCell;
use std::vec;

/// Firmware that knows what bring-up needs, and keeps account.
#[derive(Default)]
struct Script {
    log: Vec<(u16, u16)>,
    held: Vec<u64>,
    /// Refuses this opcode with BAD_PARAM.
    refuse: Option<Opcode>,
}

impl Script {
    fn run(&mut self, input: &[u8], out_len: usize) -> Vec<u8> {
        let header = InHeader::from_prefix_or_zero(input);
        let (opcode, op_mod) = (header.get(InHeader::OPCODE) as u16, header.get(InHeader::OP_MOD) as u16);
        self.log.push((opcode, op_mod));
        let mut out = vec![0; out_len];
        let Some(opcode) = Opcode::from_u16(opcode).filter(|o| Some(*o) != self.refuse) else {
            out[0] = 3;
            return out;
        };
        match (opcode, op_mod) {
            (Opcode::QueryIssi, _) => out[0x6f] = 2,
            (Opcode::QueryPages, 1) => out[0xf] = 3,
            (Opcode::QueryPages, 2) => (out[0xe], out[0xf]) = (2, 88),
            (Opcode::ManagePages, 1) => {
                let count = hca_spec::be32(input, 0xc) as usize;
                assert_eq!(input.len(), 16 + count * 8);
                self.held.extend((0..count).map(|i| hca_spec::be64(input, 16 + i * 8)));
            }
            (Opcode::ManagePages, 2) => {
                let count = (hca_spec::be32(input, 0xc) as usize).min(self.held.len());
                assert!(out_len >= 16 + count * 8);
                hca_spec::put_be32(&mut out, 8, count as u32);
                for (i, page) in self.held.split_off(self.held.len() - count).into_iter().enumerate() {
                    hca_spec::put_be64(&mut out, 16 + i * 8, page);
                }
            }
            (Opcode::QueryHcaCap, _) => {
                let mut caps = caps::General::new();
                caps.set(caps::General::RC, 1).set(caps::General::LOG_MAX_QP, 20);
                out[16..16 + caps::General::SIZE].copy_from_slice(caps.bytes());
            }
            (Opcode::SetHcaCap, _) => {
                let caps = caps::General::from_prefix_or_zero(&input[16..]);
                assert_eq!((caps.get(caps::General::RC), caps.get(caps::General::LOG_MAX_QP)), (1, 18));
            }
            (Opcode::AllocUar, _) => out[0xb] = 0x10,
            (Opcode::CreateEq, _) => out[0xb] = 4,
            _ => {}
        }
        out
    }
}

fn script(refuse: Option<Opcode>) -> (Rc<RefCell<Script>>, FakeBus) {
    let script = Rc::new(RefCell::new(Script { refuse, ..Script::default() }));
    let firmware = script.clone();
    (script, FakeBus::new(move |input, out_len| firmware.borrow_mut().run(input, out_len)))
}

const POLLED: Config = Config {
    command_polls: 10,
    init_polls: 10,
    command_events: false,
    async_events: 1024,
    hears_of_restarts: false,
    memory_page_faults: false,
};

#[test]
fn the_order_of_bring_up_and_teardown() {
    let (script, bus) = script(None);
    let hca = Hca::open(bus, POLLED).unwrap();
    assert_eq!(hca.uar(), UarIndex(0x10));
    assert_eq!((hca.firmware_pages(), script.borrow().held.len()), (603, 603));
    assert!(script.borrow().held.iter().all(|p| p % 4096 == 0));
    hca.close().unwrap();
    assert!(script.borrow().held.is_empty());
    let expected = [
        (0x104, 0),
        (0x10a, 0),
        (0x10b, 0),
        (0x107, 1),
        (0x108, 1),
        (0x805, 0),
        (0x100, 0),
        (0x100, 1),
        (0x109, 0),
        (0x107, 2),
        (0x108, 1),
        (0x102, 0),
        (0x100, 1),
        (0x802, 0),
        (0x301, 0),
        (0x302, 0),
        (0x803, 0),
        (0x103, 0),
        (0x108, 2),
        (0x108, 2),
        (0x105, 0),
    ];
    assert_eq!(script.borrow().log, expected);
}

#[test]
fn failure_undoes_what_was_done() {
    for refuse in [Opcode::SetIssi, Opcode::SetHcaCap, Opcode::InitHca, Opcode::AllocUar, Opcode::CreateEq] {
        let (script, bus) = script(Some(refuse));
        let error = Hca::open(bus, POLLED).err().unwrap();
        assert_eq!(error, Error::Command { opcode: refuse as u16, status: 3, syndrome: 0 });
        let script = script.borrow();
        assert!(script.held.is_empty(), "{refuse:?}: pages were not taken back");
        assert_eq!(script.log.last(), Some(&(Opcode::DisableHca as u16, 0)));
        let torn_down = script.log.contains(&(Opcode::TeardownHca as u16, 0));
        assert_eq!(torn_down, matches!(refuse, Opcode::AllocUar | Opcode::CreateEq), "{refuse:?}");
    }
}

#[test]
fn an_adapter_without_issi_is_accepted() {
    let (_, bus) = script(Some(Opcode::QueryIssi));
    assert!(Hca::open(bus, POLLED).is_ok());
}

#[test]
fn an_adapter_that_is_not_there_or_never_ready() {
    let (_, mut bus) = script(None);
    bus.segment_mut().bytes_mut().fill(0xff);
    assert_eq!(Hca::open(bus, POLLED).err(), Some(Error::Absent));
    let (_, mut bus) = script(None);
    bus.segment_mut().set(InitSegment::INITIALIZING, 1);
    let timeout = Error::Timeout { what: "firmware initialization", polls: 10 };
    assert_eq!(Hca::open(bus, POLLED).err(), Some(timeout));
    let (_, mut bus) = script(None);
    bus.segment_mut().set(InitSegment::CMD_INTERFACE_REV, 4);
    assert_eq!(Hca::open(bus, POLLED).err(), Some(Error::InterfaceRevision(4)));
    // Commands are taken and never answered.
    let (script, mut bus) = script(None);
    bus.held = Some(0);
    assert_eq!(Hca::open(bus, POLLED).err(), Some(Error::Timeout { what: "command", polls: 10 }));
    assert!(script.borrow().log.is_empty());
}
