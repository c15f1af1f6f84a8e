//! Memory windows: what they open, for whom, until when.

use hca_driver::wqe::SendOp;
use hca_driver::{Access, KeyChange, Opening, SendRequest, Window, WindowType};
use hca_spec::cqe::Syndrome;
use hca_spec::ids::{Mkey, Qpn};
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{close, everywhere, loopback};

/// Where the window opens the far end's memory, and how much of it.
const AT: usize = 0x1234;
const LEN: usize = 5000;

/// A region that peers can't reach but through windows.
fn closed() -> Options {
    Options { access: Access::LOCAL_WRITE, ..Options::default() }
}

fn window(pair: &mut Pair<ModelBus>, kind: WindowType) -> Window {
    let (home, pd) = (pair.ends[1].home, pair.ends[1].pd);
    pair.hcas[home].alloc_window(pd, kind).expect("CREATE_MKEY")
}

fn free(pair: &mut Pair<ModelBus>, window: Window) {
    let home = pair.ends[1].home;
    pair.hcas[home].free_window(window).expect("DESTROY_MKEY");
}

fn opening(pair: &Pair<ModelBus>, access: Access) -> Opening {
    Opening {
        address: pair.ends[1].mr.address + AT as u64,
        len: LEN as u64,
        access: Access::LOCAL_WRITE | access,
        zero_based: false,
    }
}

/// Posts a change of a key at the far end and gives how it ended.
fn change(pair: &mut Pair<ModelBus>, change: KeyChange, translations: &[u8]) -> Option<Syndrome> {
    pair.send(1, &SendRequest::new(77, SendOp::Change(change), &[]).inline(translations));
    pair.sent(1).1.syndrome()
}

fn bind_for(pair: &mut Pair<ModelBus>, window: &mut Window, opening: &Opening, qpn: Qpn) -> Option<Syndrome> {
    let (wr, piece) = window.bind(qpn, &pair.ends[1].mr.clone(), opening).expect("a window");
    change(pair, wr, &piece)
}

fn bind(pair: &mut Pair<ModelBus>, window: &mut Window, access: Access) {
    let (opening, qpn) = (opening(pair, access), pair.ends[1].qp.number());
    assert_eq!(bind_for(pair, window, &opening, qpn), None, "the window is bound");
}

/// Writes `len` bytes at `address` under `rkey` from the near end.
fn write(pair: &mut Pair<ModelBus>, rkey: Mkey, address: u64, len: usize) -> Option<Syndrome> {
    let sge = [pair.ends[0].sge(0, len)];
    pair.send(0, &SendRequest::write(1, &sge, address, rkey));
    pair.sent(0).1.syndrome()
}

fn read(pair: &mut Pair<ModelBus>, rkey: Mkey, address: u64, len: usize) -> Option<Syndrome> {
    let sge = [pair.ends[0].sge(0, len)];
    pair.send(0, &SendRequest::read(1, &sge, address, rkey));
    pair.sent(0).1.syndrome()
}

#[test]
pub(crate) fn windows_open_a_part_of_a_region() {
    for kind in [WindowType::One, WindowType::Two] {
        everywhere(&closed(), |pair| {
            let mut window = window(pair, kind);
            bind(pair, &mut window, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
            let start = pair.ends[1].mr.address + AT as u64;
            let data = pattern(3, LEN);
            pair.fill(0, 0, &data);
            assert_eq!(write(pair, window.rkey, start, LEN), None);
            assert!(pair.ends[1].bytes(AT, LEN) == data);
            pair.fill(0, 0, &[0; LEN]);
            assert_eq!(read(pair, window.rkey, start + 100, LEN - 100), None);
            assert!(pair.ends[0].bytes(0, LEN - 100) == data[100..]);
            let sge = [pair.ends[0].sge(0, 8)];
            let aligned = start.next_multiple_of(8);
            let add = SendOp::FetchAdd { address: aligned, rkey: window.rkey, add: 1 };
            pair.send(0, &SendRequest::new(2, add, &sge));
            pair.sent_ok(0, 2);
            free(pair, window);
        });
    }
}

/// The region itself stays closed, and so does what is beside the window.
#[test]
pub(crate) fn nothing_else_is_open() {
    let start = |pair: &Pair<ModelBus>| pair.ends[1].mr.address + AT as u64;
    type Attempt = fn(&mut Pair<ModelBus>, Mkey, u64) -> Option<Syndrome>;
    let attempts: [(&str, Access, Attempt); 7] = [
        ("before", Access::REMOTE_WRITE, |p, k, s| write(p, k, s - 1, 8)),
        ("after", Access::REMOTE_WRITE, |p, k, s| write(p, k, s + 1, LEN)),
        ("another variant", Access::REMOTE_WRITE, |p, k, s| write(p, Mkey(k.0 ^ 1), s, 8)),
        ("write without right", Access::REMOTE_READ, |p, k, s| write(p, k, s, 8)),
        ("read without right", Access::REMOTE_WRITE, |p, k, s| read(p, k, s, 8)),
        ("atomic without right", Access::REMOTE_WRITE, |p, k, s| {
            let sge = [p.ends[0].sge(0, 8)];
            let op = SendOp::FetchAdd { address: s.next_multiple_of(8), rkey: k, add: 1 };
            p.send(0, &SendRequest::new(1, op, &sge));
            p.sent(0).1.syndrome()
        }),
        ("the region's own key", Access::REMOTE_WRITE, |p, _, s| {
            let key = p.ends[1].mr.key;
            write(p, key, s, 8)
        }),
    ];
    for (what, access, attempt) in attempts {
        let mut pair = loopback(&closed());
        let mut window = window(&mut pair, WindowType::Two);
        bind(&mut pair, &mut window, access);
        let start = start(&pair);
        let before = pair.ends[1].bytes(0, 1 << 16);
        assert_eq!(attempt(&mut pair, window.rkey, start), Some(Syndrome::RemoteAccess), "{what}");
        assert!(pair.ends[1].bytes(0, 1 << 16) == before, "{what}");
        free(&mut pair, window);
        close(pair);
    }
}

/// A window gives no right that its region does not have locally.
#[test]
pub(crate) fn a_window_is_no_stronger_than_its_region() {
    let mut pair = loopback(&Options { access: Access::LOCAL_READ, ..Options::default() });
    let mut window = window(&mut pair, WindowType::One);
    bind(&mut pair, &mut window, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let start = pair.ends[1].mr.address + AT as u64;
    // The near end's region can't be written either, so nothing is read into it: zero bytes do.
    assert_eq!(read(&mut pair, window.rkey, start, 0), None);
    assert_eq!(write(&mut pair, window.rkey, start, 8), Some(Syndrome::RemoteAccess));
    free(&mut pair, window);
    close(pair);
}

/// A window over a key of another domain opens nothing.
#[test]
pub(crate) fn windows_stay_in_their_domain() {
    let mut pair = loopback(&closed());
    let mut window = window(&mut pair, WindowType::One);
    let foreign = pair.ends[0].mr;
    let opening = Opening { address: foreign.address, ..opening(&pair, Access::REMOTE_WRITE) };
    let (wr, piece) = window.bind(pair.ends[1].qp.number(), &foreign, &opening).expect("a window");
    assert_eq!(change(&mut pair, wr, &piece), None);
    assert_eq!(write(&mut pair, window.rkey, foreign.address, 8), Some(Syndrome::RemoteAccess));
    free(&mut pair, window);
    close(pair);
    // And only queue pairs of its domain can bind it.
    let mut pair = loopback(&closed());
    let mut foreign = pair.hcas[0].alloc_window(pair.ends[0].pd, WindowType::One).expect("CREATE_MKEY");
    let (opening, qpn) = (self::opening(&pair, Access::REMOTE_WRITE), pair.ends[1].qp.number());
    assert_eq!(bind_for(&mut pair, &mut foreign, &opening, qpn), Some(Syndrome::MemoryWindowBind));
    free(&mut pair, foreign);
    close(pair);
}

/// A window of type 2 serves the queue pair it is bound to.
#[test]
pub(crate) fn type_2_is_bound_to_a_queue_pair() {
    let mut pair = loopback(&closed());
    let mut window = window(&mut pair, WindowType::Two);
    let (opening, other) = (opening(&pair, Access::REMOTE_WRITE), pair.ends[0].qp.number());
    assert_eq!(bind_for(&mut pair, &mut window, &opening, other), None);
    assert_eq!(write(&mut pair, window.rkey, opening.address, 8), Some(Syndrome::RemoteAccess));
    free(&mut pair, window);
    close(pair);
    // Nor can another one unbind it.
    let mut pair = loopback(&closed());
    let mut window = self::window(&mut pair, WindowType::Two);
    assert_eq!(bind_for(&mut pair, &mut window, &opening, other), None);
    assert_eq!(change(&mut pair, window.unbind(), &[]), Some(Syndrome::MemoryWindowBind));
    free(&mut pair, window);
    close(pair);
}

#[test]
pub(crate) fn unbinding_closes() {
    for kind in [WindowType::One, WindowType::Two] {
        let mut pair = loopback(&closed());
        let mut window = window(&mut pair, kind);
        bind(&mut pair, &mut window, Access::REMOTE_WRITE);
        let start = pair.ends[1].mr.address + AT as u64;
        assert_eq!(write(&mut pair, window.rkey, start, 8), None);
        assert_eq!(change(&mut pair, window.unbind(), &[]), None);
        // Free again: it can be bound again, with another key.
        let old = window.rkey;
        bind(&mut pair, &mut window, Access::REMOTE_WRITE);
        assert_ne!(old, window.rkey);
        assert_eq!(write(&mut pair, window.rkey, start, 8), None);
        assert_eq!(write(&mut pair, old, start, 8), Some(Syndrome::RemoteAccess), "{kind:?}: the old key");
        free(&mut pair, window);
        close(pair);
    }
}

/// Type 1 moves by binding again; type 2 has to be unbound first.
#[test]
pub(crate) fn binding_what_is_bound() {
    let mut pair = loopback(&closed());
    let mut one = window(&mut pair, WindowType::One);
    bind(&mut pair, &mut one, Access::REMOTE_WRITE);
    bind(&mut pair, &mut one, Access::REMOTE_WRITE);
    let start = pair.ends[1].mr.address + AT as u64;
    assert_eq!(write(&mut pair, one.rkey, start, 8), None);
    let mut two = window(&mut pair, WindowType::Two);
    bind(&mut pair, &mut two, Access::REMOTE_WRITE);
    let (opening, qpn) = (opening(&pair, Access::REMOTE_WRITE), pair.ends[1].qp.number());
    assert_eq!(bind_for(&mut pair, &mut two, &opening, qpn), Some(Syndrome::MemoryWindowBind));
    free(&mut pair, one);
    free(&mut pair, two);
    close(pair);
}

#[test]
pub(crate) fn peers_invalidate_windows_of_type_2() {
    everywhere(&closed(), |pair| {
        let mut window = window(pair, WindowType::Two);
        bind(pair, &mut window, Access::REMOTE_WRITE);
        pair.recv(1, 5, 0, 64);
        let sge = [pair.ends[0].sge(0, 64)];
        let op = SendOp::SendInvalidate { rkey: window.rkey };
        pair.send(0, &SendRequest::new(1, op, &sge));
        pair.sent_ok(0, 1);
        let received = pair.received_ok(1, 5);
        assert_eq!(received.invalidated, Some(window.rkey), "the completion names the key");
        // It is free now, so it can be bound again.
        let old = window.rkey;
        bind(pair, &mut window, Access::REMOTE_WRITE);
        let start = pair.ends[1].mr.address + AT as u64;
        assert_eq!(write(pair, old, start, 8), Some(Syndrome::RemoteAccess));
        free(pair, window);
    });
}

/// What a peer can't invalidate: windows of type 1, regions, what is free, windows of other queue pairs.
#[test]
pub(crate) fn peers_invalidate_nothing_else() {
    for case in 0..4 {
        let mut pair = loopback(&closed());
        let kind = if case == 0 { WindowType::One } else { WindowType::Two };
        let mut window = window(&mut pair, kind);
        let (opening, other) = (opening(&pair, Access::REMOTE_WRITE), pair.ends[0].qp.number());
        let rkey = match case {
            0 => {
                bind(&mut pair, &mut window, Access::REMOTE_WRITE);
                window.rkey
            }
            1 => pair.ends[1].mr.key,
            2 => window.rkey,
            _ => {
                assert_eq!(bind_for(&mut pair, &mut window, &opening, other), None);
                window.rkey
            }
        };
        pair.recv(1, 5, 0, 64);
        let sge = [pair.ends[0].sge(0, 64)];
        pair.send(0, &SendRequest::new(1, SendOp::SendInvalidate { rkey }, &sge));
        assert_eq!(pair.sent(0).1.syndrome(), Some(Syndrome::RemoteAccess), "case {case}");
        let (wr_id, received) = pair.received(1);
        assert_eq!((wr_id, received.syndrome()), (5, Some(Syndrome::RemoteAccess)), "case {case}");
        free(&mut pair, window);
        close(pair);
    }
}

/// Peers count from 0, wherever the window is.
#[test]
pub(crate) fn zero_based_windows() {
    let mut pair = loopback(&closed());
    let mut window = window(&mut pair, WindowType::Two);
    let opening = Opening { zero_based: true, ..opening(&pair, Access::REMOTE_WRITE) };
    let qpn = pair.ends[1].qp.number();
    assert_eq!(bind_for(&mut pair, &mut window, &opening, qpn), None);
    let data = pattern(4, 1000);
    pair.fill(0, 0, &data);
    assert_eq!(write(&mut pair, window.rkey, 17, 1000), None);
    assert!(pair.ends[1].bytes(AT + 17, 1000) == data);
    assert_eq!(write(&mut pair, window.rkey, opening.address, 8), Some(Syndrome::RemoteAccess));
    free(&mut pair, window);
    close(pair);
}
