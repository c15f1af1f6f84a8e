//! Memory keys: large pages and regions, lists of pieces of other keys, and work requests that change keys.

use hca_driver::umr::{page_list, pieces, strided};
use hca_driver::wqe::SendOp;
use hca_driver::{Access, Bus, Dma, Error, KeyChange, KeyKind, SendRequest, Sge};
use hca_spec::command::Status;
use hca_spec::cqe::Syndrome;
use hca_spec::ids::Mkey;
use hca_tests::in_process::ModelBus;
use hca_tests::pair::{Options, Pair, pattern};
use hca_tests::rig::{close, everywhere, loopback};

/// Posts a change of a key at an end and gives how it ended.
fn change(pair: &mut Pair<ModelBus>, end: usize, change: KeyChange, translations: &[u8]) -> Option<Syndrome> {
    pair.send(end, &SendRequest::new(77, SendOp::Change(change), &[]).inline(translations));
    pair.sent(end).1.syndrome()
}

/// Makes a key of pieces at an end, in use from the start.
fn list_key(pair: &mut Pair<ModelBus>, end: usize, translations: &[u8], len: usize) -> Mkey {
    let (home, pd) = (pair.ends[end].home, pair.ends[end].pd);
    let room = translations.len().div_ceil(16) as u32;
    let key = pair.hcas[home].alloc_key(pd, KeyKind::Pieces, room, true).expect("CREATE_MKEY");
    let enable = KeyChange::new(key).enable(key.variant()).access(Access::ALL).range(0, len as u64);
    assert_eq!(change(pair, end, enable, translations), None);
    key
}

fn free(pair: &mut Pair<ModelBus>, end: usize, key: Mkey) {
    let home = pair.ends[end].home;
    pair.hcas[home].free_key(key).expect("DESTROY_MKEY");
}

/// Writes from the near end and gives how it ended.
fn write(pair: &mut Pair<ModelBus>, sge: Sge, address: u64, rkey: Mkey) -> Option<Syndrome> {
    pair.send(0, &SendRequest::write(1, &[sge], address, rkey));
    pair.sent(0).1.syndrome()
}

/// Pages up to 1 GiB: memory of the first bytes of such pages.
#[test]
pub(crate) fn pages_up_to_1_gib() {
    for log_page_size in [22, 25, 28, 30] {
        let mut pair = loopback(&Options::default());
        let page = 1u64 << log_page_size;
        let memory = &mut pair.ends[0].memory;
        let at = memory.bus_address();
        let first = at & !(page - 1);
        let data = pattern(log_page_size.into(), 2000);
        memory.write(0, &data);
        // The same page three times, at an address that has the place within the page.
        let start = 0x7000_0000_0000 + (at - first);
        let len = 2 * page + 5000;
        let mr = pair.hcas[0]
            .register_pages(pair.ends[0].pd, &[first; 3], log_page_size, start, len, Access::ALL)
            .expect("CREATE_MKEY");
        for i in 0..3 {
            let sge = Sge { address: start + i * page + 1000, len: 1000, key: mr.key };
            pair.fill(1, 0, &[0; 1000]);
            let far = pair.ends[1].mr;
            assert_eq!(write(&mut pair, sge, far.address, far.key), None);
            assert!(pair.ends[1].bytes(0, 1000) == data[1000..], "pages of {page} bytes");
        }
        let beyond = Sge { address: start + len - 999, len: 1000, key: mr.key };
        let far = pair.ends[1].mr;
        assert_eq!(write(&mut pair, beyond, far.address, far.key), Some(Syndrome::LocalProtection));
        pair.hcas[0].deregister(mr).expect("DESTROY_MKEY");
        close(pair);
    }
}

/// More than 4 GiB in one region: with large pages, and with a million small ones.
#[test]
pub(crate) fn regions_of_more_than_4_gib() {
    for log_page_size in [12, 30] {
        let mut pair = loopback(&Options::default());
        let page = 1u64 << log_page_size;
        let memory = &mut pair.ends[1].memory;
        let bus = memory.bus_address();
        let first = bus & !(page - 1);
        let len: u64 = (5 << 30) + 4096;
        let start = bus - first;
        let count = (len + start).div_ceil(page) as usize;
        // Only the last page is the far end's memory.
        let elsewhere = pair.ends[0].memory.bus_address() & !(page - 1);
        let mut pages = vec![elsewhere; count];
        let last = pages.last_mut().expect("a page");
        *last = first;
        let mr = pair.hcas[0]
            .register_pages(pair.ends[1].pd, &pages, log_page_size, start, len, Access::ALL)
            .expect("CREATE_MKEY");
        let data = pattern(9, 3000);
        pair.fill(0, 0, &data);
        let sge = pair.ends[0].sge(0, 3000);
        let address = (count as u64 - 1) * page + start;
        assert_eq!(write(&mut pair, sge, address, mr.key), None);
        assert!(pair.ends[1].bytes(0, 3000) == data);
        pair.hcas[0].deregister(mr).expect("DESTROY_MKEY");
        close(pair);
    }
}

/// A list of pieces is one range, for local and remote use.
#[test]
pub(crate) fn lists_of_pieces() {
    everywhere(&Options::default(), |pair| {
        let near = [pair.ends[0].sge(10, 100), pair.ends[0].sge(5000, 3000), pair.ends[0].sge(200, 1)];
        let far = [pair.ends[1].sge(0, 1), pair.ends[1].sge(9000, 2000), pair.ends[1].sge(20, 1100)];
        let len = 3101;
        let near_key = list_key(pair, 0, &pieces(&near), len);
        let far_key = list_key(pair, 1, &pieces(&far), len);
        let data = pattern(5, len);
        for (offset, part) in [(10, 0..100), (5000, 100..3100), (200, 3100..3101)] {
            pair.fill(0, offset, &data[part]);
        }
        let whole = Sge { address: 0, len: len as u32, key: near_key };
        assert_eq!(write(pair, whole, 0, far_key), None);
        let far_bytes =
            [pair.ends[1].bytes(0, 1), pair.ends[1].bytes(9000, 2000), pair.ends[1].bytes(20, 1100)];
        assert!(far_bytes.concat() == data);
        // A part, read back into a part.
        pair.fill(0, 0, &[0; 8192]);
        let part = Sge { address: 50, len: 3000, key: near_key };
        pair.send(0, &SendRequest::read(2, &[part], 101, far_key));
        pair.sent_ok(0, 2);
        assert!(pair.ends[0].bytes(60, 50) == data[101..151]);
        assert!(pair.ends[0].bytes(5000, 2950) == data[151..3101]);
        free(pair, 0, near_key);
        free(pair, 1, far_key);
    });
}

/// Blocks of data and blocks of checksums, interleaved: what storage initiators do.
#[test]
pub(crate) fn strided_layouts() {
    everywhere(&Options::default(), |pair| {
        let (data, sums) = (pair.ends[0].sge(0, 512), pair.ends[0].sge(40000, 8));
        let layout = strided(10, &[(data, 100), (sums, 0)]);
        let key = list_key(pair, 0, &layout, 5200);
        let content = pattern(6, 65536);
        pair.fill(0, 0, &content);
        let whole = Sge { address: 0, len: 5200, key };
        let far = pair.ends[1].mr;
        assert_eq!(write(pair, whole, far.address, far.key), None);
        let expected: Vec<u8> = (0..10)
            .flat_map(|i| [&content[i * 612..][..512], &content[40000 + i * 8..][..8]].concat())
            .collect();
        assert!(pair.ends[1].bytes(0, 5200) == expected);
        // From the middle of one cycle to the middle of a later one.
        let part = Sge { address: 3 * 520 + 510, len: 1000, key };
        assert_eq!(write(pair, part, far.address, far.key), None);
        assert!(pair.ends[1].bytes(0, 1000) == expected[3 * 520 + 510..][..1000]);
        free(pair, 0, key);
    });
}

/// A layout may be followed by more pieces, and end before the range does.
#[test]
pub(crate) fn strided_layouts_in_lists() {
    let mut pair = loopback(&Options::default());
    let mut layout = strided(2, &[(pair.ends[0].sge(0, 10), 6)]);
    layout.truncate(32);
    layout.extend(pieces(&[pair.ends[0].sge(1000, 50)]));
    let key = list_key(&mut pair, 0, &layout, 71);
    let content = pattern(7, 2000);
    pair.fill(0, 0, &content);
    let far = pair.ends[1].mr;
    assert_eq!(write(&mut pair, Sge { address: 0, len: 70, key }, far.address, far.key), None);
    let expected = [&content[..10], &content[16..26], &content[1000..1050]].concat();
    assert!(pair.ends[1].bytes(0, 70) == expected);
    let beyond = Sge { address: 0, len: 71, key };
    assert_eq!(write(&mut pair, beyond, far.address, far.key), Some(Syndrome::LocalProtection));
    free(&mut pair, 0, key);
    close(pair);
    // A block that says it has more pieces than there are.
    let mut pair = loopback(&Options::default());
    let mut layout = strided(2, &[(pair.ends[0].sge(0, 10), 0)]);
    layout[15] = 200;
    let key = list_key(&mut pair, 0, &layout, 20);
    let far = pair.ends[1].mr;
    let whole = Sge { address: 0, len: 20, key };
    assert_eq!(write(&mut pair, whole, far.address, far.key), Some(Syndrome::LocalProtection));
    free(&mut pair, 0, key);
    close(pair);
}

/// Equally long pieces: found without walking the list.
#[test]
pub(crate) fn lists_of_blocks() {
    let mut pair = loopback(&Options::default());
    let blocks: Vec<Sge> = [3, 1, 2].iter().map(|b| pair.ends[0].sge(b * 4096, 4096)).collect();
    let key = pair.hcas[0].alloc_key(pair.ends[0].pd, KeyKind::Blocks(12), 3, false).expect("CREATE_MKEY");
    let enable = KeyChange::new(key).enable(key.variant()).access(Access::ALL).range(1 << 40, 3 * 4096);
    assert_eq!(change(&mut pair, 0, enable, &pieces(&blocks)), None);
    let content = pattern(8, 4 * 4096);
    pair.fill(0, 0, &content);
    let far = pair.ends[1].mr;
    let sge = Sge { address: (1 << 40) + 100, len: 3 * 4096 - 100, key };
    assert_eq!(write(&mut pair, sge, far.address, far.key), None);
    let expected = [&content[3 * 4096 + 100..], &content[4096..3 * 4096]].concat();
    assert!(pair.ends[1].bytes(0, 3 * 4096 - 100) == expected);
    free(&mut pair, 0, key);
    close(pair);
}

/// Keys of keys end somewhere, and a key that names itself leads nowhere.
#[test]
pub(crate) fn depth_is_limited() {
    for levels in [4, 5] {
        let mut pair = loopback(&Options::default());
        let mut keys = vec![pair.ends[0].mr.key];
        let mut address = pair.ends[0].mr.address;
        for _ in 0..levels {
            let inner = Sge { address, len: 64, key: keys[keys.len() - 1] };
            keys.push(list_key(&mut pair, 0, &pieces(&[inner]), 64));
            address = 0;
        }
        let far = pair.ends[1].mr;
        let sge = Sge { address: 0, len: 64, key: keys[keys.len() - 1] };
        let expected = if levels > 4 { Some(Syndrome::LocalProtection) } else { None };
        assert_eq!(write(&mut pair, sge, far.address, far.key), expected, "{levels} levels");
        keys.drain(1..).for_each(|key| free(&mut pair, 0, key));
        close(pair);
    }
    let mut pair = loopback(&Options::default());
    let key = list_key(&mut pair, 0, &[0; 64], 64);
    let own = pieces(&[Sge { address: 0, len: 64, key }]);
    assert_eq!(change(&mut pair, 0, KeyChange::new(key), &own), None);
    let far = pair.ends[1].mr;
    let sge = Sge { address: 0, len: 64, key };
    assert_eq!(write(&mut pair, sge, far.address, far.key), Some(Syndrome::LocalProtection));
    free(&mut pair, 0, key);
    close(pair);
}

/// What pieces name is checked when it is used: domain, life, rights, bounds.
#[test]
pub(crate) fn pieces_are_checked() {
    let foreign = |pair: &Pair<ModelBus>| pair.ends[1].sge(0, 64);
    let variant = |pair: &Pair<ModelBus>| {
        let sge = pair.ends[0].sge(0, 64);
        Sge { key: Mkey(sge.key.0 ^ 1), ..sge }
    };
    let beyond = |pair: &Pair<ModelBus>| pair.ends[0].sge((1 << 16) - 63, 64);
    type Piece = fn(&Pair<ModelBus>) -> Sge;
    let cases: [(&str, Piece); 3] =
        [("another domain's", foreign), ("another variant", variant), ("beyond the region", beyond)];
    for (what, piece) in cases {
        let mut pair = loopback(&Options::default());
        let bad = piece(&pair);
        let good = pair.ends[0].sge(100, 64);
        let key = list_key(&mut pair, 0, &pieces(&[good, bad]), 128);
        let far = pair.ends[1].mr;
        let first = Sge { address: 0, len: 64, key };
        assert_eq!(write(&mut pair, first, far.address, far.key), None, "{what}: the good part");
        let whole = Sge { address: 0, len: 128, key };
        assert_eq!(write(&mut pair, whole, far.address, far.key), Some(Syndrome::LocalProtection), "{what}");
        free(&mut pair, 0, key);
        close(pair);
    }
    // The same seen from the peer: what it reads breaks off, what it sends does not arrive.
    for case in 0..3 {
        let mut pair = loopback(&Options::default());
        let (good, bad) = (pair.ends[1].sge(0, 3000), pair.ends[0].sge(0, 64));
        let key = list_key(&mut pair, 1, &pieces(&[good, bad]), 3064);
        let local = [pair.ends[0].sge(0, 3064)];
        let list = Sge { address: 0, len: 3064, key };
        let (request, expected) = match case {
            0 => (SendRequest::read(1, &local, 0, key), Syndrome::RemoteAccess),
            1 => (SendRequest::write(1, &local, 0, key), Syndrome::RemoteAccess),
            _ => {
                assert_eq!(pair.ends[1].qp.post_recv(5, &[list]), Ok(()));
                (SendRequest::send(1, &local), Syndrome::RemoteOperation)
            }
        };
        pair.send(0, &request);
        let completion = pair.sent(0).1;
        assert_eq!(completion.syndrome(), Some(expected), "case {case}");
        assert_eq!(completion.status.err().map(|f| f.vendor), Some(expected.vendor()));
        if case == 2 {
            assert_eq!(pair.received(1).1.syndrome(), Some(Syndrome::LocalProtection));
        }
        free(&mut pair, 1, key);
        close(pair);
    }
    // A peer writes through a list to memory that can't be written.
    let mut pair = loopback(&Options { access: Access::REMOTE_WRITE, ..Options::default() });
    let piece = pair.ends[1].sge(0, 64);
    let key = list_key(&mut pair, 1, &pieces(&[piece]), 64);
    let sge = pair.ends[0].sge(0, 64);
    assert_eq!(write(&mut pair, sge, 0, key), Some(Syndrome::RemoteAccess));
    free(&mut pair, 1, key);
    close(pair);
}

/// Fast registration as kernel users do it: page lists inline or from memory, in use from its completion
/// to its invalidation.
#[test]
pub(crate) fn fast_registration() {
    for inline in [true, false] {
        let mut pair = loopback(&Options { fast_registration: true, ..Options::default() });
        let pd = pair.ends[1].pd;
        let key = pair.hcas[0].alloc_key(pd, KeyKind::Pages(12), 64, true).expect("CREATE_MKEY");
        let base = pair.ends[1].memory.bus_address();
        let list = page_list(&[base + 0x3000, base + 0x1000]);
        let sge = pair.ends[0].sge(0, 4000);
        let data = pattern(1, 4000);
        pair.fill(0, 0, &data);
        for round in 1..4u8 {
            let enable =
                KeyChange::new(key).if_free().enable(round).access(Access::ALL).range(0x8000_0800, 6000);
            if inline {
                assert_eq!(change(&mut pair, 1, enable, &list), None);
            } else {
                pair.fill(1, 0x8000, &list);
                let from = [pair.ends[1].sge(0x8000, list.len())];
                pair.send(1, &SendRequest::new(1, SendOp::Change(enable), &from));
                pair.sent_ok(1, 1);
            }
            let rkey = Mkey::new(key.index(), round);
            assert_eq!(write(&mut pair, sge, 0x8000_0800, rkey), None, "round {round}");
            assert!(pair.ends[1].bytes(0x3800, 0x800) == data[..0x800]);
            assert!(pair.ends[1].bytes(0x1000, 4000 - 0x800) == data[0x800..]);
            pair.fill(1, 0, &[0; 0x4000]);
            assert_eq!(change(&mut pair, 1, KeyChange::new(rkey).free(), &[]), None);
        }
        let rkey = Mkey::new(key.index(), 3);
        assert_eq!(write(&mut pair, sge, 0x8000_0800, rkey), Some(Syndrome::RemoteAccess), "invalidated");
        free(&mut pair, 1, key);
        close(pair);
    }
}

/// What a work request may not do to a key. Nothing changes, and the queue pair fails.
#[test]
pub(crate) fn changes_that_are_refused() {
    const BIND: Option<Syndrome> = Some(Syndrome::MemoryWindowBind);
    let trusted = Options { fast_registration: true, ..Options::default() };
    type Change = fn(&Pair<ModelBus>, Mkey) -> (KeyChange, Vec<u8>);
    let page: Change = |pair, key| {
        let enable = KeyChange::new(key).enable(1).access(Access::ALL).range(0, 64);
        (enable, page_list(&[pair.ends[1].memory.bus_address()]))
    };
    let cases: [(&str, Options, KeyKind, Option<Syndrome>, Change); 7] = [
        ("trusted", trusted.clone(), KeyKind::Pages(12), None, page),
        ("bus addresses from a program", Options::default(), KeyKind::Pages(12), BIND, page),
        ("no such key", trusted.clone(), KeyKind::Pieces, BIND, |_, _| {
            (KeyChange::new(Mkey(0xffff_ff00)).free(), vec![])
        }),
        ("a key that commands made", trusted.clone(), KeyKind::Pieces, BIND, |pair, _| {
            (KeyChange::new(pair.ends[1].mr.key).free(), vec![])
        }),
        ("another domain", trusted.clone(), KeyKind::Pieces, BIND, |pair, key| {
            (KeyChange::new(key).domain(pair.ends[0].pd), vec![])
        }),
        ("a domain that is none", trusted.clone(), KeyKind::Pieces, BIND, |_, key| {
            (KeyChange::new(key).domain(hca_spec::ids::Pd(0xff_fff0)), vec![])
        }),
        ("more than its room", trusted, KeyKind::Pieces, Some(Syndrome::LocalQpOperation), |_, key| {
            (KeyChange::new(key).enable(1), vec![0; 128])
        }),
    ];
    for (what, options, kind, expected, make) in cases {
        let mut pair = loopback(&options);
        let key = pair.hcas[0].alloc_key(pair.ends[1].pd, kind, 1, true).expect("CREATE_MKEY");
        let (wr, translations) = make(&pair, key);
        assert_eq!(change(&mut pair, 1, wr, &translations), expected, "{what}");
        free(&mut pair, 1, key);
        close(pair);
    }
    // Keys of other programs.
    let mut pair = loopback(&Options::default());
    let key = pair.hcas[0].alloc_key(pair.ends[0].pd, KeyKind::Pieces, 1, true).expect("CREATE_MKEY");
    let enable = KeyChange::new(key).enable(1).access(Access::ALL).range(0, 64);
    assert_eq!(change(&mut pair, 1, enable, &[]), BIND);
    free(&mut pair, 0, key);
    close(pair);
}

/// A domain stays while a key is in it, free or not.
#[test]
pub(crate) fn keys_hold_their_domain() {
    let mut pair = loopback(&Options::default());
    let hca = &mut pair.hcas[0];
    let pd = hca.alloc_pd().expect("ALLOC_PD");
    let key = hca.alloc_key(pd, KeyKind::Pieces, 4, false).expect("CREATE_MKEY");
    assert_eq!(hca.dealloc_pd(pd).err().and_then(|e: Error| e.status()), Some(Status::ResourceBusy));
    hca.free_key(key).expect("DESTROY_MKEY");
    hca.dealloc_pd(pd).expect("DEALLOC_PD");
    close(pair);
}

/// Translations that work requests load take pages, and give them back.
#[test]
pub(crate) fn loaded_translations_take_pages() {
    let mut pair = loopback(&Options { fast_registration: true, ..Options::default() });
    let pd = pair.ends[1].pd;
    let before = pair.hcas[0].firmware_pages();
    let key = pair.hcas[0].alloc_key(pd, KeyKind::Pages(12), 1 << 17, true).expect("CREATE_MKEY");
    let memory = pair.hcas[0].bus_mut().dma_alloc(1 << 20, 4096).expect("memory");
    let all = pair.hcas[0].register(pd, &memory, 1 << 20, Access::LOCAL_WRITE).expect("CREATE_MKEY");
    // 512 KiB of page entries, in two requests.
    for part in 0..2u64 {
        let from = [Sge { address: all.address, len: 1 << 18, key: all.key }];
        let load = KeyChange::new(key).at(part << 14);
        pair.send(1, &SendRequest::new(part, SendOp::Change(load), &from));
        pair.sent_ok(1, part);
        while pair.hcas[0].poll_event().expect("events").is_some() {}
    }
    let loaded = pair.hcas[0].firmware_pages();
    assert!(loaded - before >= 128 - 64, "{before} pages before, {loaded} now");
    free(&mut pair, 1, key);
    pair.hcas[0].deregister(all).expect("DESTROY_MKEY");
    drop(memory);
    close(pair);
}

/// The reserved local key: bus addresses without a region, in queues whose context gives it, and for no peer.
#[test]
pub(crate) fn the_reserved_key_is_for_local_accesses() {
    for physical in [true, false] {
        let mut pair = loopback(&Options { physical, ..Options::default() });
        let key = pair.hcas[0].reserved_lkey().expect("QUERY_SPECIAL_CONTEXTS");
        let data = pattern(7, 1500);
        pair.ends[0].memory.write(64, &data);
        // As bus addresses, which are not those of the region.
        let [from, to] = [0, 1].map(|end| pair.ends[end].memory.bus_address());
        let from = Sge { address: from + 64, len: 1500, key };
        let far = pair.ends[1].mr;
        match physical {
            true => {
                assert_eq!(write(&mut pair, from, far.address + 8, far.key), None);
                assert!(pair.ends[1].bytes(8, 1500) == data);
                let into = Sge { address: to + 4096, len: 2000, key };
                pair.ends[1].qp.post_recv(1, &[into]).expect("a free place");
                pair.send(0, &SendRequest::send(2, &[from]));
                pair.sent_ok(0, 2);
                assert_eq!(pair.received_ok(1, 1).byte_len, 1500);
                assert!(pair.ends[1].bytes(4096, 1500) == data);
                // The peer names regions.
                let near = pair.ends[0].sge(0, 8);
                assert_eq!(write(&mut pair, near, to, key), Some(Syndrome::RemoteAccess));
            }
            false => assert_eq!(
                write(&mut pair, from, far.address, far.key),
                Some(Syndrome::LocalProtection),
                "the context does not give it"
            ),
        }
        close(pair);
    }
    // A number that is only near is a key as any other.
    let mut pair = loopback(&Options { physical: true, ..Options::default() });
    let (key, far) = (pair.hcas[0].reserved_lkey().expect("QUERY_SPECIAL_CONTEXTS"), pair.ends[1].mr);
    let from = Sge { address: pair.ends[0].memory.bus_address(), len: 8, key: Mkey(key.0 + 1) };
    assert_eq!(write(&mut pair, from, far.address, far.key), Some(Syndrome::LocalProtection));
    close(pair);
}
