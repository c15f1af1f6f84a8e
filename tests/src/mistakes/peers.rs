//! Two ends that do not agree.

use hca_driver::eth::ROCE_FRAME;
use hca_driver::qp::Path;
use hca_driver::{Datagram, InitAttr, RtrAttr, RtsAttr, SendOp, SendRequest};
use hca_model::fault::{Fault, PortChange, TimeAction, Trigger, What};
use hca_model::{HcaId, Ps};
use hca_spec::ids::{Gid, Lid, Psn, Qpn};

use super::Mistake;
use super::bench::{Bench, Hand};
use crate::pair::{Options, PORT, Pair};
use crate::rig::datagrams;

pub(super) const ALL: &[Mistake] = &[
    Mistake::driver("remote QPN that the peer does not have", "remote QPN", |b| {
        connect(b, true, |rtr| rtr.remote_qpn = Qpn(0x777));
    }),
    Mistake::driver("remote QPN that the peer does not have, over RoCE", "remote QPN", |b| {
        connect(b, true, |rtr| rtr.remote_qpn = Qpn(0x777));
    })
    .on_ethernet(),
    Mistake::driver("peer over RoCE that is still in RESET", "peer's state", |b| {
        let ready = !b.is_wrong();
        connect(b, ready, |_| {});
    })
    .on_ethernet(),
    Mistake::driver("LID that nobody has", "primary path", |b| {
        connect(b, true, |rtr| rtr.path = Path::lid(Lid(0x77)))
    }),
    Mistake::driver("peer that is still in RESET", "peer's state", |b| {
        let ready = !b.is_wrong();
        connect(b, ready, |_| {});
    }),
    Mistake::driver("PSNs ahead of what the peer expects", "PSN", |b| psn(b, 0x500)),
    Mistake::driver("PSNs behind what the peer expects", "PSN", |b| psn(b, 0xff_ff00)),
    Mistake::driver("wrong destination GID in the GRH of a connection", "dgid", |b| {
        connect_global(b, |gid| Gid::new(hca_spec::be64(&gid.0, 0), 0x0002_c903_0bad_0bad));
    }),
    Mistake::driver("GID of another prefix in the GRH of a connection", "dgid", |b| {
        connect_global(b, |gid| Gid::new(0xfec0 << 48, hca_spec::be64(&gid.0, 8)));
    }),
    Mistake::driver("path MTU larger than the peer's", "mtu", |b| {
        let wrong = b.is_wrong();
        let mut pair = apart(b);
        to_rts(&mut pair, 1, Psn::new(0), |_| {});
        to_rts(
            &mut pair,
            0,
            Psn::new(0),
            if wrong { |rtr: &mut RtrAttr| rtr.mtu = 5 } else { |_: &mut RtrAttr| {} },
        );
        write(b, pair, 4096);
    }),
    Mistake::driver("path MTU that frames of the port have no room for", "admin_mtu", |b| {
        let frame = b.pick(1522, ROCE_FRAME);
        let mut pair = apart(b);
        let options = b.options(&Options { mtu: 5, ..Options::default() });
        pair.hcas.iter_mut().for_each(|hca| hca.set_port_mtu(PORT, frame).expect("PMTU"));
        [1, 0].into_iter().for_each(|end| to_rts_over(&mut pair, &options, end, Psn::new(0), |_| {}));
        write(b, pair, 4096);
    })
    .on_ethernet(),
    Mistake::driver("P_Key of a partition that the peer is not in", "P_Key", |b| {
        let index = b.pick(1, 0);
        let mut pair = apart(b);
        let change = PortChange::Pkey { index: 1, pkey: 0x8001 };
        let what = What::Time { every: None, action: TimeAction::Port { port: PORT, change } };
        let fault = Fault { name: "the subnet manager".into(), what, trigger: Trigger::default() };
        b.simulation.world(|world, now| world.add_fault(now, HcaId(0), fault)).expect("the adapter");
        b.simulation.run(Ps::from_ms(1));
        to_rts(&mut pair, 1, Psn::new(0), |_| {});
        let init =
            InitAttr { access: Options::default().queue_access, pkey_index: index, ..InitAttr::default() };
        let options = Options { rts: hasty(), ..Options::default() };
        pair.to_rts_with(0, &options, &init).expect("RTS");
        write(b, pair, 8);
    }),
    Mistake::driver("datagram with another Q_Key than its receiver's", "q_key", |b| {
        let qkey = b.pick(0x2222_2222, 0x1111_1111);
        let mut pair = apart(b);
        let lid = pair.hcas[1].lid(PORT).expect("a LID");
        let mut made = Vec::new();
        for (hca, end) in pair.hcas.iter_mut().zip(&pair.ends) {
            made.push(datagrams(hca, end.pd, (&end.send_cq, &end.recv_cq), 0x1111_1111));
        }
        let [near, far] = &mut made[..] else { unreachable!("one at each end") };
        far.post_recv(1, &[pair.ends[1].sge(0, 64)]).expect("room");
        let to = Datagram { qpn: far.number(), qkey, lid, sl: 0, gid: None };
        let (op, sge) = (SendOp::Datagram { to, imm: None }, [pair.ends[0].sge(0, 8)]);
        near.post_send(pair.hcas[0].bus_mut(), &SendRequest::new(1, op, &sge)).expect("room");
        b.simulation.run(Ps::from_ms(1));
        assert!(pair.ends[0].send_cq.poll().expect("it is sent").status.is_ok());
        assert_eq!(pair.ends[1].recv_cq.poll().is_none(), b.is_wrong());
        made.into_iter().for_each(|qp| b.keep(qp));
        b.keep(pair);
    }),
    Mistake::driver("more reads outstanding than the peer has resources for", "log_rra_max", |b| {
        let wrong = b.is_wrong();
        let mut pair = apart(b);
        to_rts(
            &mut pair,
            1,
            Psn::new(0),
            if wrong { |rtr: &mut RtrAttr| rtr.responder_reads = 1 } else { |_: &mut RtrAttr| {} },
        );
        to_rts(&mut pair, 0, Psn::new(0), |_| {});
        let (sge, far) = ([pair.ends[0].sge(0, 4096)], pair.ends[1].mr);
        for i in 0..4 {
            let read = SendOp::Read { address: far.address, rkey: far.key };
            pair.ends[0].qp.queue_send(&SendRequest::new(i, read, &sge)).expect("room");
        }
        let hca = &mut pair.hcas[0];
        pair.ends[0].qp.ring_doorbell(hca.bus_mut());
        b.simulation.run(Ps::from_ms(1));
        while pair.try_sent(0).is_some() {}
        b.keep(pair);
    }),
];

/// Retries that are soon over.
fn hasty() -> RtsAttr {
    RtsAttr { timeout: 8, retries: 1, rnr_retries: 1, ..RtsAttr::default() }
}

fn apart(b: &Bench) -> Pair<Hand> {
    b.apart(&Options::default())
}

/// Takes an end to RTS, with its peer's true address but for what is spoiled.
fn to_rts(pair: &mut Pair<Hand>, end: usize, receive_psn: Psn, spoil: impl FnOnce(&mut RtrAttr)) {
    to_rts_over(pair, &Options::default(), end, receive_psn, spoil);
}

/// The same over the ports of `options`.
fn to_rts_over(
    pair: &mut Pair<Hand>,
    options: &Options,
    end: usize,
    receive_psn: Psn,
    spoil: impl FnOnce(&mut RtrAttr),
) {
    let (peer, path) = (pair.ends[1 - end].qp.number(), pair.path_to(1 - end, options).expect("its address"));
    let (hca, qp) = (&mut pair.hcas[end], &mut pair.ends[end].qp);
    hca.qp_to_init(qp, &InitAttr { access: options.queue_access, ..InitAttr::default() }).expect("INIT");
    let mut rtr = RtrAttr { mtu: options.mtu, receive_psn, ..RtrAttr::new(peer, path) };
    spoil(&mut rtr);
    hca.qp_to_rtr(qp, &rtr).expect("RTR");
    hca.qp_to_rts(qp, &hasty()).expect("RTS");
}

/// A write, which fails if the mistake was made.
fn write(b: &mut Bench, mut pair: Pair<Hand>, len: usize) {
    let (sge, far) = ([pair.ends[0].sge(0, len)], pair.ends[1].mr);
    pair.send(0, &SendRequest::write(1, &sge, far.address, far.key));
    let (_, completion) = pair.sent(0);
    assert_eq!(completion.status.is_err(), b.is_wrong(), "{completion:?}");
    b.keep(pair);
}

/// The first end has other values than the second; `ready`: the second is in RTS.
fn connect(b: &mut Bench, ready: bool, spoil: fn(&mut RtrAttr)) {
    let wrong = b.is_wrong();
    let (options, mut pair) = (b.options(&Options::default()), apart(b));
    if ready {
        to_rts_over(&mut pair, &options, 1, Psn::new(0), |_| {});
    }
    to_rts_over(&mut pair, &options, 0, Psn::new(0), |rtr| {
        if wrong {
            spoil(rtr)
        }
    });
    write(b, pair, 8);
}

fn psn(b: &mut Bench, expected: u32) {
    let expected = Psn::new(b.pick(expected, 0));
    let mut pair = apart(b);
    to_rts(&mut pair, 1, expected, |_| {});
    to_rts(&mut pair, 0, Psn::new(0), |_| {});
    write(b, pair, 8);
}

/// Both ends with GRHs; the first has another GID of the second.
fn connect_global(b: &mut Bench, spoil: fn(Gid) -> Gid) {
    let wrong = b.is_wrong();
    let mut pair = apart(b);
    let gids = [0, 1].map(|hca: usize| pair.hcas[hca].gid(PORT, 0).expect("a GID"));
    to_rts(&mut pair, 1, Psn::new(0), |rtr| rtr.path.gid = Some(gids[0]));
    let far = if wrong { spoil(gids[1]) } else { gids[1] };
    to_rts(&mut pair, 0, Psn::new(0), |rtr| rtr.path.gid = Some(far));
    write(b, pair, 8);
}
