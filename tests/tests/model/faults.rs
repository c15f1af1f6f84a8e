//! What a program gets wrong, as a table: how the request ends at both ends, what is on the wire, which event comes
//! and which counters move; and that nothing else happened, to no memory of either host.
//!
//! What goes wrong at an adapter on script is in [`scripted`], of modules and heat in [`modules`], with packets in [`packets`], towards the host in [`slot`], at a port in [`subnet`].
//!
//! Source: IBTA vol 1 9.7.4 (validation of requests), 9.9.2 and 9.9.3 (errors of requester and responder), 10.6 (keys),
//! 10.9 (partitions); PRM "Completion with error", "QUERY_Q_COUNTER".

mod modules;
mod packets;
mod scripted;
mod slot;
mod subnet;

use hca_driver::wqe::{Datagram, SendOp};
use hca_driver::{Access, InitAttr, Mr, Sge};
use hca_spec::cqe::Syndrome;
use hca_spec::eqe::EventType;
use hca_spec::ids::Mkey;
use hca_spec::qpc::{QpState, ServiceType};
use hca_spec::wire::aeth;
use hca_spec::wqe::{Ctrl, Data, SendOpcode};
use hca_tests::faults::{Bench, MEMORY, Row, counter as c, row};
use hca_tests::pair::{Options, PORT};

/// A piece of a region.
fn piece(mr: Mr, len: u32) -> Sge {
    Sge { address: mr.address, len, key: mr.key }
}

fn variant(key: Mkey) -> Mkey {
    Mkey(key.0 ^ 1)
}

/// A key that nobody has.
const NO_KEY: Mkey = Mkey(0x00ab_cd00);

/// What reaches remote memory: how it is asked for, and the right that it needs.
type Remote = (&'static str, fn(u64, Mkey) -> SendOp, u32, Access);

const REMOTE: [Remote; 5] = [
    ("write", |address, rkey| SendOp::Write { address, rkey, imm: None }, 104, Access::REMOTE_WRITE),
    (
        "write of many packets",
        |address, rkey| SendOp::Write { address, rkey, imm: None },
        8000,
        Access::REMOTE_WRITE,
    ),
    ("read", |address, rkey| SendOp::Read { address, rkey }, 104, Access::REMOTE_READ),
    ("add", |address, rkey| SendOp::FetchAdd { address, rkey, add: 1 }, 8, Access::REMOTE_ATOMIC),
    (
        "swap",
        |address, rkey| SendOp::CompareSwap { address, rkey, compare: 0xeeee_eeee_eeee_eeee, swap: 1 },
        8,
        Access::REMOTE_ATOMIC,
    ),
];

fn access_refused(row: Row) -> Row {
    row.fails(Syndrome::RemoteAccess, &[c::REQ_REMOTE_ACCESS]).refused(
        aeth::REMOTE_ACCESS_ERROR,
        Some(EventType::AccessError),
        &[c::RESP_REMOTE_ACCESS],
    )
}

fn request_refused(row: Row) -> Row {
    row.fails(Syndrome::RemoteInvalidRequest, &[c::REQ_REMOTE_INVALID]).refused(
        aeth::INVALID_REQUEST,
        Some(EventType::InvalidRequest),
        &[c::RESP_REMOTE_INVALID],
    )
}

fn check(rows: impl IntoIterator<Item = Row>) {
    rows.into_iter().for_each(|row| row.check());
}

/// Keys and ranges at the far end: "remote access error", and an event there.
#[test]
pub(crate) fn remote_keys() {
    type Spoil = fn(&Bench, u32) -> (u64, Mkey);
    let spoils: [(&str, Spoil); 8] = [
        ("wrong variant", |b, _| (b.far().address, variant(b.far().key))),
        ("no such key", |b, _| (b.far().address, NO_KEY)),
        ("key 0", |b, _| (b.far().address, Mkey(0))),
        ("key of another domain", |b, _| (b.foreign(1).address, b.foreign(1).key)),
        ("partly beyond the end", |b, len| {
            (b.far().address + (MEMORY as u64 + 8 - u64::from(len)), b.far().key)
        }),
        ("beyond the end", |b, _| (b.far().address + MEMORY as u64, b.far().key)),
        ("before the start", |b, _| (b.far().address - 8, b.far().key)),
        ("around the end of the address space", |b, _| (u64::MAX - 7, b.far().key)),
    ];
    for (what, op, len, _) in REMOTE {
        check(spoils.map(|(how, spoil)| {
            access_refused(row(format!("{what}, {how}"), move |b| {
                let (address, rkey) = spoil(b, len);
                b.post(op(address, rkey), piece(b.near(), len));
            }))
        }));
    }
}

/// The key lacks the right: as with a wrong key. The queue pair lacks it: an invalid request.
#[test]
pub(crate) fn remote_rights() {
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    for (what, op, len, right) in REMOTE {
        let others = rights.into_iter().filter(|r| *r != right).fold(Access::LOCAL_WRITE, |all, r| all | r);
        let act = move |b: &mut Bench| b.post(op(b.far().address, b.far().key), piece(b.near(), len));
        check([
            access_refused(row(format!("{what}, key without the right"), act))
                .options(|_, far| far.access = others),
            request_refused(row(format!("{what}, queue pair without the right"), act))
                .options(|_, far| far.queue_access = others),
        ]);
    }
    // Atomics work on whole words.
    for (what, op, len, _) in &REMOTE[3..] {
        let (op, len) = (*op, *len);
        check([1u64, 4, 7].map(|off| {
            request_refused(row(format!("{what} at +{off}"), move |b| {
                b.post(op(b.far().address + off, b.far().key), piece(b.near(), len));
            }))
        }));
    }
}

/// Keys and ranges at the near end: the far end hears nothing of it.
#[test]
pub(crate) fn local_keys() {
    type Spoil = fn(&Bench, u32) -> Sge;
    let spoils: [(&str, Spoil); 6] = [
        ("wrong variant", |b, len| Sge { key: variant(b.near().key), ..piece(b.near(), len) }),
        ("no such key", |b, len| Sge { key: NO_KEY, ..piece(b.near(), len) }),
        ("key of another domain", |b, len| piece(b.foreign(0), len)),
        ("beyond the end", |b, len| Sge {
            address: b.near().address + MEMORY as u64,
            ..piece(b.near(), len)
        }),
        ("before the start", |b, len| Sge { address: b.near().address - 8, ..piece(b.near(), len) }),
        ("around the end of the address space", |b, len| Sge {
            address: u64::MAX - 7,
            ..piece(b.near(), len)
        }),
    ];
    for (how, spoil) in spoils {
        let fails = |row: Row| row.fails(Syndrome::LocalProtection, &[c::REQ_LOCAL_PROTECTION]);
        // What is sent is read before the packet leaves.
        check([
            fails(row(format!("send, {how}"), move |b| b.send(spoil(b, 104)))),
            fails(row(format!("write, {how}"), move |b| {
                b.write(spoil(b, 104), b.far().address, b.far().key)
            })),
            // What is read is written when the answer comes.
            fails(row(format!("read, {how}"), move |b| {
                b.post(SendOp::Read { address: b.far().address, rkey: b.far().key }, spoil(b, 104));
            })),
        ]);
        // A receive request: the peer learns of it, there is no event beside the completion.
        check([row(format!("receive, {how}"), move |b| {
            let sge = match how {
                "key of another domain" => piece(b.foreign(1), 104),
                _ => {
                    let wrong = spoil(b, 104);
                    let moved = wrong.address.wrapping_sub(b.near().address);
                    let key = if wrong.key == b.near().key { b.far().key } else { wrong.key };
                    let key = if wrong.key == variant(b.near().key) { variant(b.far().key) } else { key };
                    Sge { address: b.far().address.wrapping_add(moved), len: 104, key }
                }
            };
            b.recv(sge);
            b.send(piece(b.near(), 104));
        })
        .fails(Syndrome::RemoteOperation, &[c::REQ_REMOTE_OPERATION])
        .refused(aeth::REMOTE_OPERATIONAL_ERROR, None, &[c::RESP_LOCAL_PROTECTION])
        .received(Err(Syndrome::LocalProtection))]);
    }
}

/// Local memory that may not be written is not, whoever would write it.
#[test]
pub(crate) fn local_write() {
    check([
        row("read into memory without local write", |b| {
            b.post(SendOp::Read { address: b.far().address, rkey: b.far().key }, piece(b.near(), 100));
        })
        .options(|near, _| near.access = Access::LOCAL_READ)
        .fails(Syndrome::LocalProtection, &[c::REQ_LOCAL_PROTECTION]),
        row("add into memory without local write", |b| {
            let (address, rkey) = (b.far().address, b.far().key);
            b.post(SendOp::FetchAdd { address, rkey, add: 0 }, piece(b.near(), 8));
        })
        .options(|near, _| near.access = Access::LOCAL_READ)
        .fails(Syndrome::LocalProtection, &[c::REQ_LOCAL_PROTECTION]),
        row("receive into memory without local write", |b| {
            b.recv(piece(b.far(), 100));
            b.send(piece(b.near(), 100));
        })
        .options(|_, far| far.access = Access::LOCAL_READ)
        .fails(Syndrome::RemoteOperation, &[c::REQ_REMOTE_OPERATION])
        .refused(aeth::REMOTE_OPERATIONAL_ERROR, None, &[c::RESP_LOCAL_PROTECTION])
        .received(Err(Syndrome::LocalProtection)),
    ]);
}

#[test]
pub(crate) fn lengths() {
    let too_long = |row: Row| {
        row.fails(Syndrome::RemoteInvalidRequest, &[c::REQ_REMOTE_INVALID])
            .refused(aeth::INVALID_REQUEST, None, &[c::RESP_LOCAL_LENGTH])
            .received(Err(Syndrome::LocalLength))
    };
    check([
        too_long(row("one byte too long for the receive", |b| {
            b.recv(piece(b.far(), 99));
            b.send(piece(b.near(), 100));
        })),
        too_long(row("too long by far for the receive", |b| {
            b.recv(piece(b.far(), 99));
            b.send(piece(b.near(), MEMORY as u32));
        })),
        too_long(row("a receive without room", |b| {
            b.recv(piece(b.far(), 0));
            b.send(piece(b.near(), 1));
        })),
        row("longer than any message may be", |b| b.send(piece(b.near(), 0x7fff_ffff)))
            .fails(Syndrome::LocalLength, &[c::REQ_LOCAL_LENGTH]),
        row("an atomic of 4 bytes", |b| {
            let (address, rkey) = (b.far().address, b.far().key);
            b.post(SendOp::FetchAdd { address, rkey, add: 1 }, piece(b.near(), 4));
        })
        .fails(Syndrome::LocalLength, &[c::REQ_LOCAL_LENGTH]),
    ]);
}

/// WQEs that can't be executed: nothing leaves the adapter.
#[test]
pub(crate) fn work_requests() {
    fn ctrl(wqe: &mut [u8], change: impl Fn(&mut Ctrl)) {
        let mut ctrl = Ctrl::from_prefix_or_zero(wqe);
        change(&mut ctrl);
        wqe[..Ctrl::SIZE].copy_from_slice(ctrl.bytes());
    }
    fn inline(wqe: &mut [u8], len: u32) {
        let mut data = Data::new();
        data.set(Data::INLINE, 1).set(Data::INLINE_LENGTH, len);
        wqe[Ctrl::SIZE..][..4].copy_from_slice(&data.bytes()[..4]);
    }
    type Spoil = fn(&mut Vec<u8>);
    let spoils: [(&str, Spoil); 13] = [
        ("unknown opcode", |w| ctrl(w, |c| _ = c.set(Ctrl::OPCODE, 0x7f))),
        ("masked atomic without a size", |w| {
            ctrl(w, |c| _ = c.set(Ctrl::OPCODE, SendOpcode::AtomicMaskedCs as u32))
        }),
        ("DS 0", |w| ctrl(w, |c| _ = c.set(Ctrl::DS, 0))),
        ("DS beyond what was posted", |w| ctrl(w, |c| _ = c.set(Ctrl::DS, 63))),
        ("write without a segment", |w| {
            ctrl(w, |c| _ = c.set(Ctrl::OPCODE, SendOpcode::RdmaWrite as u32).set(Ctrl::DS, 1));
        }),
        ("read without a segment", |w| {
            ctrl(w, |c| _ = c.set(Ctrl::OPCODE, SendOpcode::RdmaRead as u32).set(Ctrl::DS, 1));
        }),
        ("atomic without an atomic segment", |w| {
            ctrl(w, |c| _ = c.set(Ctrl::OPCODE, SendOpcode::AtomicFa as u32).set(Ctrl::DS, 2));
        }),
        ("atomic without data", |w| {
            ctrl(w, |c| _ = c.set(Ctrl::OPCODE, SendOpcode::AtomicCs as u32).set(Ctrl::DS, 3));
        }),
        ("UMR without a segment", |w| {
            ctrl(w, |c| _ = c.set(Ctrl::OPCODE, SendOpcode::Umr as u32).set(Ctrl::DS, 1))
        }),
        ("another queue pair's", |w| ctrl(w, |c| _ = c.set(Ctrl::QPN, 0x00ab_cdef))),
        ("inline data longer than the WQE", |w| inline(w, 0x3ff)),
        ("inline data one byte longer than the WQE", |w| inline(w, 13)),
        ("inline data of a read", |w| {
            w.copy_within(Ctrl::SIZE..Ctrl::SIZE + 16, Ctrl::SIZE + 16);
            inline(&mut w[16..], 8);
            ctrl(w, |c| _ = c.set(Ctrl::OPCODE, SendOpcode::RdmaRead as u32).set(Ctrl::DS, 3));
        }),
    ];
    check(spoils.map(|(what, spoil)| {
        row(what, move |b| b.spoilt(spoil)).fails(Syndrome::LocalQpOperation, &[c::REQ_LOCAL_OPERATION])
    }));
    check([row("a doorbell of no queue pair", Bench::ring_nobody).waits()]);
}

fn with_service(near: ServiceType, far: ServiceType) -> impl Fn(&mut Options, &mut Options) {
    move |n, f| (n.service, f.service) = (near, far)
}

fn retries_exceeded(row: Row) -> Row {
    row.fails(Syndrome::TransportRetryExceeded, &[c::REQ_RETRIES, c::TIMEOUT]).silent()
}

fn hello(b: &mut Bench) {
    b.write(piece(b.near(), 64), b.far().address, b.far().key);
}

/// The far queue pair can't take requests, or the near one can't send any.
#[test]
pub(crate) fn states() {
    check([
        retries_exceeded(row("peer in INIT", |b| {
            let (hca, qp) = (&mut b.pair.hcas[1], &mut b.pair.ends[1].qp);
            hca.qp_to_reset(qp).expect("2RST");
            hca.qp_to_init(qp, &InitAttr { access: Access::ALL, ..InitAttr::default() }).expect("INIT");
            hello(b);
        }))
        .far_state(QpState::Init),
        retries_exceeded(row("peer in ERR", |b| {
            b.pair.hcas[1].qp_to_error(&mut b.pair.ends[1].qp).expect("2ERR");
            hello(b);
        }))
        .far_state(QpState::Error),
        row("a request in RESET", |b| {
            b.pair.hcas[0].qp_to_reset(&mut b.pair.ends[0].qp).expect("2RST");
            hello(b);
        })
        .waits()
        .near_state(QpState::Reset)
        .silent(),
        row("a request in INIT", |b| {
            let (hca, qp) = (&mut b.pair.hcas[0], &mut b.pair.ends[0].qp);
            hca.qp_to_reset(qp).expect("2RST");
            hca.qp_to_init(qp, &InitAttr::default()).expect("INIT");
            hello(b);
        })
        .waits()
        .near_state(QpState::Init)
        .silent(),
    ]);
}

/// Packets of another partition are dropped and counted; so are datagrams with a wrong Q_Key.
#[test]
pub(crate) fn partitions_and_q_keys() {
    let datagram = |b: &mut Bench, qkey: u32| {
        let lid = b.pair.hcas[1].lid(PORT).expect("PortInfo");
        let to = Datagram { qpn: b.pair.ends[1].qp.number(), qkey, lid, sl: 0, gid: None };
        b.recv(piece(b.far(), 200));
        b.post(SendOp::Datagram { to, imm: None }, piece(b.near(), 64));
    };
    let right = InitAttr::default().qkey;
    let both = with_service(ServiceType::Ud, ServiceType::Ud);
    check([
        retries_exceeded(row("another partition", hello)).pkeys(1, 0).violations(1, 0),
        retries_exceeded(row("two limited members", hello)).pkeys(2, 2).violations(1, 0),
        retries_exceeded(row("an empty entry of the P_Key table", hello)).pkeys(3, 3).violations(1, 0),
        row("datagram, another partition", move |b| datagram(b, right))
            .pkeys(0, 1)
            .options(&both)
            .violations(1, 0),
        row("datagram, wrong Q_Key", move |b| datagram(b, right ^ 1)).options(&both).violations(0, 1),
    ]);
}

/// A queue pair hears only packets of its own service.
#[test]
pub(crate) fn services() {
    let uc = with_service(ServiceType::Uc, ServiceType::Uc);
    check([
        row("UC to RC", hello).options(with_service(ServiceType::Uc, ServiceType::Rc)).silent(),
        retries_exceeded(row("RC to UC", hello)).options(with_service(ServiceType::Rc, ServiceType::Uc)),
        row("UD to RC", |b| {
            let lid = b.pair.hcas[1].lid(PORT).expect("PortInfo");
            let qkey = InitAttr::default().qkey;
            let to = Datagram { qpn: b.pair.ends[1].qp.number(), qkey, lid, sl: 0, gid: None };
            b.recv(piece(b.far(), 200));
            b.post(SendOp::Datagram { to, imm: None }, piece(b.near(), 64));
        })
        .options(with_service(ServiceType::Ud, ServiceType::Rc))
        .silent(),
        // An unreliable responder drops what it may not do, and tells nobody.
        row("UC, wrong variant", |b| b.write(piece(b.near(), 64), b.far().address, variant(b.far().key)))
            .options(&uc)
            .silent(),
        row("UC, key of another domain", |b| {
            b.write(piece(b.near(), 64), b.foreign(1).address, b.foreign(1).key)
        })
        .options(&uc)
        .silent(),
        row("UC, queue pair without the right", hello)
            .options(&uc)
            .options(|_, far| far.queue_access = Access::REMOTE_READ)
            .silent(),
        row("UC, too long for the receive", |b| {
            b.recv(piece(b.far(), 99));
            b.send(piece(b.near(), 100));
        })
        .options(&uc)
        .received(Err(Syndrome::LocalLength))
        .counts_far(&[c::RESP_LOCAL_LENGTH])
        .silent(),
        // Its requester stops alone.
        row("UC, wrong local key", |b| b.send(Sge { key: NO_KEY, ..piece(b.near(), 64) }))
            .options(&uc)
            .fails(Syndrome::LocalProtection, &[c::REQ_LOCAL_PROTECTION]),
        row("UC, read", |b| {
            b.post(SendOp::Read { address: b.far().address, rkey: b.far().key }, piece(b.near(), 64));
        })
        .options(&uc)
        .fails(Syndrome::LocalQpOperation, &[c::REQ_LOCAL_OPERATION]),
    ]);
}
