//! The victim: two hosts that write to, read from and send to each other, look at every byte of their memory, and read
//! registers. What it waits for is counted in such reads: each is a turn of the server.

use std::time::{Duration, Instant};

use hca_driver::vfio_user::VfioUserBus;
use hca_driver::{Bus, Hca, RtsAttr, SendRequest};
use hca_spec::ids::{Lid, Mkey, Qpn};
use hca_spec::mad::{PortInfo, SmpData, attr, port_state};
use hca_spec::qpc::Qpc;

use crate::pair::{Options, PORT, Pair, pattern};
use crate::process::Process;
use crate::seeded::Random;

/// Bytes of registered memory of each host.
const LEN: usize = 1 << 16;
/// Reads of a register until what is under way is done.
const TURNS: u32 = 200_000;

/// What an attacker may have guessed of the victim.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guessed {
    /// Of its port.
    pub lid: Lid,
    /// Of its queue pair.
    pub qpn: Qpn,
    /// What that expects next.
    pub psn: u32,
    /// Of its memory.
    pub address: u64,
    /// The key of that.
    pub key: Mkey,
}

/// What the victim waited for at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waited {
    /// Reads of a register until a request was done.
    pub turns: u32,
    /// Time of one access to a register, in which the server did not wait for a processor.
    pub access: Duration,
    /// Requests done.
    pub requests: u64,
}

/// The victim.
pub struct Victim {
    pair: Pair<VfioUserBus>,
    server: Process,
    /// What the memory of the two has to hold.
    expected: [Vec<u8>; 2],
    stall: Option<Duration>,
    number: u64,
    waited: Waited,
}

impl Victim {
    /// Connects two adapters. An access to a register may take `stall`, if that is to be looked at.
    ///
    /// # Panics
    /// If a command fails.
    pub fn new(hcas: Vec<Hca<VfioUserBus>>, server: Process, stall: Option<Duration>) -> Self {
        // What a busy machine does between two processes is not a loss.
        let rts = RtsAttr { timeout: 18, ..RtsAttr::default() };
        let options = Options { memory: LEN, rts, ..Options::default() };
        let mut pair = Pair::connect(hcas, &options).expect("the victim's adapters come up");
        let expected = [1, 2].map(|seed| pattern(seed, LEN));
        for (end, bytes) in expected.iter().enumerate() {
            pair.fill(end, 0, bytes);
        }
        Self { pair, server, expected, stall, number: 0, waited: Waited::default() }
    }

    /// What somebody who guesses right knows of each host.
    ///
    /// # Panics
    /// If a command fails.
    pub fn guessed(&mut self) -> [Guessed; 2] {
        [0, 1].map(|end| {
            let Pair { hcas, ends } = &mut self.pair;
            let (end, hca) = (&ends[end], &mut hcas[end]);
            let lid = hca.lid(PORT).expect("the victim's LID");
            let psn = hca.query_qp(&end.qp).expect("the victim's queue pair").get(Qpc::NEXT_RCV_PSN);
            Guessed { lid, qpn: end.qp.number(), psn, address: end.mr.address, key: end.mr.key }
        })
    }

    /// What it waited for so far.
    pub fn waited(&self) -> Waited {
        self.waited
    }

    /// Reads a register of a host.
    fn read(&mut self, hca: usize) -> Result<(), String> {
        let before = self.stall.map(|_| self.server.waited());
        let start = Instant::now();
        let value = self.pair.hcas[hca].bus_mut().mmio_read32(0);
        let took = start.elapsed();
        if value == u32::MAX {
            let why = self.pair.hcas[hca].bus_mut().error().unwrap_or("no error").to_owned();
            return Err(format!("a register of the victim reads as all ones: {why}"));
        }
        if let (Some(limit), Some(before)) = (self.stall, before) {
            let own = took.saturating_sub(self.server.waited().saturating_sub(before));
            self.waited.access = self.waited.access.max(own);
            if own > limit {
                return Err(format!("a register access of the victim took {own:?} ({took:?})"));
            }
        }
        Ok(())
    }

    /// One request, and a look at all memory.
    ///
    /// # Errors
    /// What went wrong.
    pub fn work(&mut self, random: &mut Random) -> Result<(), String> {
        self.number += 1;
        let number = self.number;
        let len = if random.one_in(4) { random.below(LEN) + 1 } else { random.below(4096) + 1 };
        let (from, to) = (random.below(LEN - len + 1), random.below(LEN - len + 1));
        let end = random.below(2);
        let other = 1 - end;
        let (near, far) = ([self.pair.ends[end].sge(from, len)], self.pair.ends[other].mr);
        let at = far.address + to as u64;
        let what = random.below(3);
        let request = match what {
            0 => SendRequest::write(number, &near, at, far.key),
            1 => SendRequest::read(number, &near, at, far.key),
            _ => {
                self.pair.recv(other, number, to, len);
                SendRequest::send(number, &near)
            }
        };
        if what == 1 {
            let bytes = self.expected[other][to..to + len].to_vec();
            self.expected[end][from..from + len].copy_from_slice(&bytes);
        } else {
            // New bytes each time, so that it is seen whether they came.
            let bytes = pattern(number.wrapping_add(2), len);
            self.pair.fill(end, from, &bytes);
            self.expected[end][from..from + len].copy_from_slice(&bytes);
            self.expected[other][to..to + len].copy_from_slice(&bytes);
        }
        self.pair.send(end, &request);
        let name = ["write", "read", "send"][what];
        self.wait(&format!("the victim's {name} {number} of {len} bytes"), |pair| pair.try_sent(end))?;
        if what == 2 {
            self.wait(&format!("the victim's receive {number}"), |pair| pair.try_received(other))?;
        }
        self.waited.requests += 1;
        for (end, expected) in self.expected.iter().enumerate() {
            let found = self.pair.ends[end].bytes(0, LEN);
            if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
                return Err(format!(
                    "byte {at} of the victim's memory at end {end} is {:#x} and not {:#x} after {name} {number} \
                     of {len} bytes from {from} to {to}",
                    found[at], expected[at]
                ));
            }
        }
        Ok(())
    }

    fn wait(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Pair<VfioUserBus>) -> Option<(u64, hca_driver::Completion)>,
    ) -> Result<(), String> {
        for turn in 0..TURNS {
            self.read(turn as usize % 2)?;
            let Some((number, completion)) = done(&mut self.pair) else { continue };
            self.waited.turns = self.waited.turns.max(turn);
            return match (number, completion.status) {
                (n, Ok(())) if n == self.number => Ok(()),
                (n, status) => Err(format!("{what} ended as {n} with {status:?}")),
            };
        }
        Err(format!("{what} is not done after {TURNS} reads of a register"))
    }
}

/// What a subnet manager would do to the port at one end of a cable: gives it a LID and makes it active.
///
/// # Panics
/// If a command fails, or the cable does not train.
pub fn manage(hca: &mut Hca<VfioUserBus>, lid: Lid) {
    let up = |hca: &mut Hca<VfioUserBus>| {
        hca.port_info(PORT).expect("PortInfo").get(PortInfo::PORT_STATE) != port_state::DOWN
    };
    assert!((0..TURNS).any(|_| up(hca)), "the victim's cable trains");
    for state in [port_state::ARMED, port_state::ACTIVE] {
        let mut info = hca.port_info(PORT).expect("PortInfo");
        info.set(PortInfo::LID, lid.0.into()).set(PortInfo::PORT_STATE, state);
        info.set(PortInfo::PORT_PHYSICAL_STATE, 0).set(PortInfo::LINK_DOWN_DEFAULT_STATE, 0);
        let data = SmpData::from_prefix_or_zero(info.bytes());
        hca.smp_set(PORT, attr::PORT_INFO, PORT.into(), &data).expect("SubnSet(PortInfo)");
    }
}
