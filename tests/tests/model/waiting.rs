//! Events that nothing comes of any more don't pile up.

use hca_driver::qp::Path;
use hca_driver::{Error, InitAttr, RtrAttr, RtsAttr, SendRequest};
use hca_spec::ids::{Lid, Qpn};
use hca_tests::pair::Options;
use hca_tests::rig;

/// Times that a request is posted; every tenth gets so far that its timer begins, of more than two hours of model time.
const TIMES: usize = 120_000;
/// 4.096 us * 2^31.
const LONGEST: u8 = 31;
/// So many events are looked through, and here nearly all go (`world/waiting.rs`).
const MOST: usize = 4096;

/// A queue pair asks nobody, with the longest timeout, and is reset, over and over: each time an event for the timer is left.
#[test]
fn timers_of_queue_pairs_that_were_reset() {
    let mut pair = rig::loopback(&Options::default());
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    let waiting = || simulation.world(|world, _| world.waiting_events());
    let before = waiting();
    let rts = RtsAttr { timeout: LONGEST, ..RtsAttr::default() };
    let (sge, far) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
    let mut most = 0;
    let ask = |pair: &mut hca_tests::pair::Pair<_>| -> Result<(), Error> {
        let (hca, qp) = (&mut pair.hcas[0], &mut pair.ends[0].qp);
        hca.qp_to_reset(qp)?;
        hca.qp_to_init(qp, &InitAttr::default())?;
        hca.qp_to_rtr(qp, &RtrAttr::new(Qpn(0xff_fff0), Path::lid(Lid(1))))?;
        hca.qp_to_rts(qp, &rts)?;
        qp.post_send(hca.bus_mut(), &SendRequest::write(1, &sge, far.address, far.key))
    };
    for _ in 0..TIMES {
        ask(&mut pair).expect("a connection to nobody");
        most = most.max(waiting());
    }
    assert!((MOST / 2..=MOST).contains(&most), "{most} events waited");
    // A timer that runs still does: with a short one the request fails in time.
    let (hca, qp) = (&mut pair.hcas[0], &mut pair.ends[0].qp);
    hca.qp_to_reset(qp).expect("2RST");
    assert!(waiting() >= before);
    let options =
        Options { rts: RtsAttr { timeout: 8, retries: 1, ..RtsAttr::default() }, ..Options::default() };
    pair.to_rts(0, &options).expect("RTS");
    // The other end is not ready to answer any more.
    let Ok(()) = pair.hcas[0].qp_to_reset(&mut pair.ends[1].qp) else { panic!("2RST") };
    pair.send(0, &SendRequest::write(2, &sge, far.address, far.key));
    let (_, completion) = pair.sent(0);
    assert!(completion.status.is_err(), "{completion:?}");
}
