//! Receive buffers of a port: what software makes of its memory holds.

use hca_driver::eth::MergeRules;
use hca_model::Ps;
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::Opcode;
use hca_spec::ether::ethertype;
use hca_spec::register::{PBMC_BUFFERS, Pbmc, PbmcBuffer, Pptb};
use hca_tests::frames::{Flow, Segment, framed};
use hca_tests::lan::{Lan, Station};
use hca_tests::pair::pattern;

/// Bytes before a register in a command and its answer.
const HEADER: usize = 16;

fn access(station: &mut Station, register: u32, write: bool, data: &[u8]) -> Vec<u8> {
    let mut input = AccessRegIn::new();
    input.set(AccessRegIn::REGISTER_ID, register);
    let input = [input.bytes(), data].concat();
    let op_mod = u32::from(!write);
    station.hca.execute(Opcode::AccessReg, op_mod, input, HEADER + data.len()).expect("ACCESS_REG")[HEADER..]
        .to_vec()
}

/// Divides the memory: size and thresholds in cells, by buffer; priority 3 is in buffer 1, all others are in buffer 0.
fn divide(station: &mut Station, buffers: [(u32, u32, u32, bool); 2]) {
    let mut ask = Pbmc::new();
    ask.set(Pbmc::LOCAL_PORT, 1);
    let mut all = Pbmc::from_prefix_or_zero(&access(station, reg::PBMC, false, ask.bytes()));
    for (i, (cells, xoff, xon, lossy)) in buffers.into_iter().enumerate() {
        let mut buffer = PbmcBuffer::new();
        buffer.set(PbmcBuffer::CELLS, cells).set(PbmcBuffer::LOSSY, lossy.into());
        buffer.set(PbmcBuffer::XOFF_THRESHOLD, xoff).set(PbmcBuffer::XON_THRESHOLD, xon);
        let at = PBMC_BUFFERS + i * PbmcBuffer::SIZE;
        all.bytes_mut()[at..at + PbmcBuffer::SIZE].copy_from_slice(buffer.bytes());
    }
    access(station, reg::PBMC, true, all.bytes());
    let mut of = Pptb::new();
    of.set(Pptb::LOCAL_PORT, 1).set(Pptb::PM, 0xff).set(Pptb::PRIO_X_BUFF, 0x1000);
    access(station, reg::PPTB, true, of.bytes());
}

/// Frames of a priority, faster than the second station takes them: how many were lost there, and how often it asked the first one to
/// wait.
fn overload(lan: &mut Lan, priority: u8) -> (u64, u64) {
    let data = pattern(1, 1400);
    overload_with(lan, priority, 600, |_| (0x88b5, data.clone()))
}

/// The same with so many frames, of which `make` says type and payload.
fn overload_with(
    lan: &mut Lan,
    priority: u8,
    count: u32,
    make: impl Fn(u32) -> (u16, Vec<u8>),
) -> (u64, u64) {
    let (to, from) = (lan.stations[1].mac, lan.stations[0].mac);
    let (mut sent, mut idle) = (0, 0);
    while idle < 500 {
        while sent < count && lan.stations[0].sq.room() > 0 {
            let (kind, payload) = make(sent);
            lan.stations[0].send(&framed(to, from, Some(u16::from(priority) << 13 | 7), kind, &payload));
            sent += 1;
        }
        lan.simulation.run(Ps::from_us(2));
        lan.stations[0].sent();
        idle = if lan.stations[1].received().is_empty() { idle + 1 } else { 0 };
    }
    let counted = lan.counted(1);
    let place = usize::from(priority);
    (counted.rx.priorities[place].discards, counted.tx.priorities[place].pause)
}

/// A buffer that may lose something loses it when it is full; one that may not has its peer wait, if there is room for what is on its
/// way.
#[test]
pub(crate) fn buffers_hold_what_they_have() {
    let over = |delay, priority, buffers: Option<[(u32, u32, u32, bool); 2]>| {
        let mut lan = Lan::long_slow_cable(delay);
        for station in &mut lan.stations {
            station.set_pfc(1 << 3);
        }
        if let Some(buffers) = buffers {
            divide(&mut lan.stations[1], buffers);
        }
        overload(&mut lan, priority)
    };
    let run = |priority, buffers| over(Ps::from_ns(5), priority, buffers);
    // As the firmware divides it: half for priority 3, which loses nothing, half for all others.
    let (lost, asked) = run(0, None);
    assert!(lost > 0 && asked == 0, "{lost} {asked}");
    let (kept, often) = run(3, None);
    assert!(kept == 0 && often > 0, "{kept} {often}");
    // Nearly everything for the others: they lose less. Priority 3 has little, and asks early.
    let uneven = Some([(1700, 0, 0, true), (347, 20, 10, false)]);
    let (less, asked) = run(0, uneven);
    assert!(less < lost && asked == 0, "{less} of {lost}, {asked}");
    let (kept, early) = run(3, uneven);
    assert!(kept == 0 && early > often, "{kept} {early} {often}");
    // Less room than what is on its way when the peer is asked to wait: 400 metres hold more than the two frames that fit.
    let (lost, asked) = over(Ps::from_us(2), 3, Some([(1023, 0, 0, true), (36, 22, 1, false)]));
    assert!(lost > 0 && asked > 0, "{lost} {asked}");
    // A buffer that may lose something asks nobody.
    let (lost, asked) = run(3, Some([(1023, 0, 0, true), (100, 0, 0, true)]));
    assert!(lost > 0 && asked == 0, "{lost} {asked}");
}

/// Segments that are merged keep their places in the buffer until the adapter is done with those before them, as all frames do: it asks
/// its peer to wait, and loses nothing.
#[test]
pub(crate) fn merged_segments_hold_what_they_have() {
    let mut lan = Lan::slow_cable();
    for station in &mut lan.stations {
        station.set_pfc(1 << 3);
    }
    let tir = lan.stations[1].tir;
    let rules = MergeRules { v4: true, v6: false, most: 7, timeout: 1024 };
    lan.stations[1].hca.merge_segments(tir, &rules).expect("MODIFY_TIR");
    let (flow, data) = (Flow::default(), pattern(1, 800));
    let (lost, asked) = overload_with(&mut lan, 3, 1000, |i| {
        let of = Segment { sequence: i * data.len() as u32, acknowledged: 7, flags: 0x10 };
        (ethertype::IPV4, flow.segment(true, &of, &data))
    });
    assert!(lost == 0 && asked > 0, "{lost} {asked}");
    assert_eq!(lan.counted(1).rx.discards, 0);
}
