//! Memory keys and domains: how they are made, and how they are used.

use hca_driver::umr::pieces;
use hca_driver::{Access, Bus, DataKey, Dma, KeyChange, KeyKind, SendOp, SendRequest, Sge};
use hca_spec::bsf::{BSF_WITH_INLINE, Bsf, Dif, GUARD_CRC};
use hca_spec::cmd::CreateMkeyIn;
use hca_spec::command::Opcode;
use hca_spec::crypto::{BSF_TYPE_CRYPTO, CryptoBsf, order};
use hca_spec::ids::Mkey;
use hca_spec::mkc::Mkc;

use super::Mistake;
use super::bench::{Bench, CONTEXT, Hand};
use crate::pair::{Options, Pair};

pub(super) const ALL: &[Mistake] = &[
    Mistake::command("CREATE_MKEY with a PD that is not allocated", "pd", Opcode::CreateMkey, |c| {
        c.set(CONTEXT, Mkc::PD, 0x777);
    }),
    Mistake::command(
        "CREATE_MKEY with an access mode that there is not",
        "access_mode",
        Opcode::CreateMkey,
        |c| {
            c.set(CONTEXT, Mkc::ACCESS_MODE_4_2, 1);
        },
    ),
    Mistake::command("CREATE_MKEY with pages below 4 KiB", "log_page_size", Opcode::CreateMkey, |c| {
        c.set(CONTEXT, Mkc::LOG_PAGE_SIZE, 11);
    }),
    Mistake::command(
        "CREATE_MKEY with fewer pages than its region has",
        "translations",
        Opcode::CreateMkey,
        |c| {
            c.set(CONTEXT, Mkc::LEN, 1 << 20);
        },
    ),
    Mistake::command(
        "CREATE_MKEY of a region beyond the address space",
        "start_addr, len",
        Opcode::CreateMkey,
        |c| {
            c.set(CONTEXT, Mkc::START_ADDR, u64::MAX - 0xfff);
        },
    ),
    Mistake::command(
        "CREATE_MKEY with more translations than it has room for",
        "translations_octword_size",
        Opcode::CreateMkey,
        |c| {
            c.set(CONTEXT, Mkc::TRANSLATIONS_OCTWORD_SIZE, 0);
        },
    ),
    Mistake::command(
        "CREATE_MKEY with a shorter list than it says",
        "translations_octword_actual_size",
        Opcode::CreateMkey,
        |c| {
            c.set(0, CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, 7);
        },
    ),
    Mistake::driver("DESTROY_MKEY twice", "mkey_index", |b| {
        let mut pair = b.pair(&Options::default());
        let key = spare(&mut pair, Access::ALL);
        for _ in 0..b.pick(2, 1) {
            b.object(&mut pair.hcas[0], Opcode::DestroyMkey, key.index());
        }
        b.keep(pair);
    })
    .after("DESTROY_MKEY of mkey"),
    Mistake::driver("DEALLOC_PD while keys are in it", "users", |b| {
        let mut pair = b.pair(&Options::default());
        let pd = match b.is_wrong() {
            true => {
                let pd = pair.hcas[0].alloc_pd().expect("ALLOC_PD");
                let end = &pair.ends[0];
                let _ = pair.hcas[0].register(pd, &end.memory, 4096, Access::ALL).expect("CREATE_MKEY");
                pd
            }
            false => pair.hcas[0].alloc_pd().expect("ALLOC_PD"),
        };
        b.object(&mut pair.hcas[0], Opcode::DeallocPd, pd.0);
        b.keep(pair);
    }),
    Mistake::driver("DEALLOC_PD while queue pairs are in it", "users", |b| {
        let mut pair = b.pair(&Options::default());
        let pd = b.pick(pair.ends[0].pd, pair.hcas[0].alloc_pd().expect("ALLOC_PD"));
        b.object(&mut pair.hcas[0], Opcode::DeallocPd, pd.0);
        b.keep(pair);
    }),
    Mistake::driver("DEALLOC_PD twice", "pd", |b| {
        let mut hca = b.open(0);
        let pd = hca.alloc_pd().expect("ALLOC_PD");
        for _ in 0..b.pick(2, 1) {
            b.object(&mut hca, Opcode::DeallocPd, pd.0);
        }
        b.keep(hca);
    })
    .after("DEALLOC_PD of PD"),
    Mistake::driver("DEALLOC_UAR while an EQ rings there", "users", |b| {
        let mut hca = b.open(0);
        if b.is_wrong() {
            let uar = hca.uar().0;
            b.object(&mut hca, Opcode::DeallocUar, uar);
        }
        b.keep(hca);
    }),
    Mistake::driver("send with a local key that was destroyed", "key", |b| {
        local(b, Access::ALL, |pair, sge| {
            pair.hcas[0]
                .deregister(hca_driver::Mr { key: sge.key, address: 0, len: 0 })
                .expect("DESTROY_MKEY");
        });
    })
    .after("DESTROY_MKEY of mkey"),
    Mistake::driver("send with the wrong variant byte of a local key", "mkey_7_0", |b| {
        local(b, Access::ALL, |_, sge| sge.key = Mkey(sge.key.0 ^ 0xff));
    }),
    Mistake::driver("send with mkey index instead of key", "key", |b| {
        local(b, Access::ALL, |_, sge| sge.key = Mkey(sge.key.0 >> 8 | 0x7700_0000));
    }),
    Mistake::driver("send from beyond the end of a region", "address, length", |b| {
        local(b, Access::ALL, |_, sge| sge.address += 0x2000);
    }),
    Mistake::driver("send from before the start of a region", "address, length", |b| {
        local(b, Access::ALL, |_, sge| sge.address -= 8);
    }),
    Mistake::driver("send with a key of another protection domain", "pd", |b| {
        local(b, Access::ALL, |pair, sge| {
            let pd = pair.hcas[0].alloc_pd().expect("ALLOC_PD");
            let mr = pair.hcas[0].register(pd, &pair.ends[0].memory, 4096, Access::ALL).expect("CREATE_MKEY");
            (sge.key, sge.address) = (mr.key, mr.address);
        });
    }),
    Mistake::driver("read into memory without local write", "lw", |b| {
        let mut pair = b.pair(&Options::default());
        let key = spare(&mut pair, b.pick(Access::LOCAL_READ, Access::LOCAL_WRITE));
        let (sge, far) = ([Sge { key, ..pair.ends[0].sge(0, 8) }], pair.ends[1].mr);
        finish(b, pair, SendOp::Read { address: far.address, rkey: far.key }, sge);
    }),
    Mistake::driver("memory of a key unmapped while the key is used", "bus address", |b| {
        let mut pair = b.pair(&Options::default());
        let memory = pair.hcas[0].bus_mut().dma_alloc(4096, 4096).expect("memory");
        let mr = pair.hcas[0].register(pair.ends[0].pd, &memory, 4096, Access::ALL).expect("CREATE_MKEY");
        if b.is_wrong() {
            pair.hcas[0].bus_mut().inner().clone().unmap(&memory);
        }
        let (sge, far) = ([Sge { key: mr.key, address: memory.bus_address(), len: 8 }], pair.ends[1].mr);
        b.keep(memory);
        finish(b, pair, SendOp::Write { address: far.address, rkey: far.key, imm: None }, sge);
    })
    .after("the host unmapped"),
    Mistake::driver("write with a remote key that does not exist", "key", |b| {
        remote(b, Access::ALL, |_, _, rkey| *rkey = Mkey(0x00ab_cd00));
    }),
    Mistake::driver("write with the wrong variant byte of the remote key", "mkey_7_0", |b| {
        remote(b, Access::ALL, |_, _, rkey| *rkey = Mkey(rkey.0 ^ 1));
    }),
    Mistake::driver("write beyond the end of the remote region", "address, length", |b| {
        remote(b, Access::ALL, |_, address, _| *address += 1 << 16);
    }),
    Mistake::driver("write to memory without remote write", "rw", |b| {
        remote(b, Access::LOCAL_WRITE, |_, _, _| {});
    }),
    Mistake::driver("write to memory of another protection domain", "pd", |b| {
        remote(b, Access::ALL, |pair, _, rkey| {
            let pd = pair.hcas[1].alloc_pd().expect("ALLOC_PD");
            let end = &pair.ends[1];
            let mr = pair.hcas[1].register(pd, &end.memory, 4096, Access::ALL).expect("CREATE_MKEY");
            *rkey = mr.key;
        });
    }),
    Mistake::driver("read from memory without remote read", "rr", |b| {
        let access = b.pick(Access::LOCAL_WRITE | Access::REMOTE_WRITE, Access::ALL);
        let pair = b.pair(&Options { access, ..Options::default() });
        let sge = [pair.ends[0].sge(0, 8)];
        let (sge, far) = match b.is_wrong() {
            // Of the first adapter another key: its own has no local write then.
            true => (sge, pair.ends[1].mr),
            false => (sge, pair.ends[1].mr),
        };
        finish(b, pair, SendOp::Read { address: far.address, rkey: far.key }, sge);
    }),
    Mistake::driver("atomic on memory without remote atomics", "a", |b| {
        let access = b.pick(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ, Access::ALL);
        let pair = b.pair(&Options { access, ..Options::default() });
        let (sge, far) = ([pair.ends[0].sge(0, 8)], pair.ends[1].mr);
        finish(b, pair, SendOp::FetchAdd { address: far.address, rkey: far.key, add: 1 }, sge);
    }),
    Mistake::driver("reserved local key in a queue pair that may not use it", "rlky", |b| {
        let mut pair = b.pair(&Options { physical: b.pick(false, true), ..Options::default() });
        let key = pair.hcas[0].reserved_lkey().expect("QUERY_SPECIAL_CONTEXTS");
        let sge = [Sge { key, address: pair.ends[0].memory.bus_address(), len: 8 }];
        let far = pair.ends[1].mr;
        finish(b, pair, SendOp::Write { address: far.address, rkey: far.key, imm: None }, sge);
    }),
    Mistake::driver("key whose list is shorter than its region", "translations", |b| {
        let mut pair = b.pair(&Options { fast_registration: true, ..Options::default() });
        let pd = pair.ends[0].pd;
        let key = pair.hcas[0].alloc_key(pd, KeyKind::Pieces, 4, false).expect("CREATE_MKEY");
        let list = pieces(&[pair.ends[0].sge(0, b.pick(32, 64))]);
        loaded(&mut pair, KeyChange::new(key), &list);
        let (far, sge) = (pair.ends[1].mr, [Sge { key, address: 0, len: 64 }]);
        finish(b, pair, SendOp::Write { address: far.address, rkey: far.key, imm: None }, sge);
    }),
    Mistake::driver("signature values of a key destroyed while it is used", "psv_index", |b| {
        let mut pair = b.pair(&Options { fast_registration: true, ..Options::default() });
        let pd = pair.ends[0].pd;
        let psvs = pair.hcas[0].create_psvs(pd, 2).expect("CREATE_PSV");
        let key = pair.hcas[0].alloc_signature_key(pd, 4).expect("CREATE_MKEY");
        let mut bsf = Bsf::new();
        bsf.set(Bsf::PARTS, BSF_WITH_INLINE).set(Bsf::CHECK_MASK, 0xff).set(Bsf::RAW_DATA_SIZE, u32::MAX);
        bsf.set(Bsf::WIRE, 1).set(Bsf::MEMORY_PSV, psvs[0]).set(Bsf::WIRE_PSV, psvs[1]);
        let dif = bsf.wire_dif_mut();
        dif.set(Dif::VALID, 1).set(Dif::REFRESH, 1).set(Dif::REPEAT, 1).set(Dif::GUARD, GUARD_CRC);
        let list = pieces(&[pair.ends[0].sge(0, 512)]);
        loaded(&mut pair, KeyChange::new(key).signatures(bsf, 1), &list);
        for psv in psvs {
            if b.is_wrong() {
                pair.hcas[0].destroy_psv(psv).expect("DESTROY_PSV");
            } else {
                pair.send(0, &SendRequest::new(1, SendOp::SetPsv { psv, value: 0 }, &[]));
                pair.sent_ok(0, 1);
            }
        }
        let (far, sge) = (pair.ends[1].mr, [Sge { key, address: 0, len: 520 }]);
        finish(b, pair, SendOp::Write { address: far.address, rkey: far.key, imm: None }, sge);
    }),
    Mistake::driver("key that encrypts used before its encryption part is loaded", "encryption part", |b| {
        let mut pair = b.pair(&Options { fast_registration: true, ..Options::default() });
        let pd = pair.ends[0].pd;
        let dek = DataKey { pd, bytes: &[7; 32], long: false, tagged: false };
        let dek = pair.hcas[0].create_data_key(&dek).expect("CREATE_GENERAL_OBJECT");
        let key = pair.hcas[0].alloc_encrypting_key(pd, 4).expect("CREATE_MKEY");
        let mut part = CryptoBsf::new();
        part.set(CryptoBsf::PARTS, BSF_WITH_INLINE).set(CryptoBsf::TYPE, BSF_TYPE_CRYPTO);
        part.set(CryptoBsf::ENCRYPTION_ORDER, order::WIRE_SIGNATURE).set(CryptoBsf::BLOCK_SIZE, 1);
        part.set(CryptoBsf::RAW_DATA_SIZE, u32::MAX).set(CryptoBsf::DEK, dek);
        let (change, list) = (KeyChange::new(key), pieces(&[pair.ends[0].sge(0, 512)]));
        loaded(&mut pair, if b.is_wrong() { change } else { change.encryption(part) }, &list);
        let (far, sge) = (pair.ends[1].mr, [Sge { key, address: 0, len: 512 }]);
        finish(b, pair, SendOp::Write { address: far.address, rkey: far.key, imm: None }, sge);
    })
    .on("connectx6dx"),
];

/// A key that was allocated is loaded: a region of 512 bytes from address 0 on, as the list of pieces says.
fn loaded(pair: &mut Pair<Hand>, change: KeyChange, list: &[u8]) {
    let change = change.enable(change.key.variant()).access(Access::ALL).range(0, 512);
    pair.send(0, &SendRequest::new(9, SendOp::Change(change), &[]).inline(list));
    pair.sent_ok(0, 9);
}

/// One more key of the first page of the first end's memory.
fn spare(pair: &mut Pair<Hand>, access: Access) -> Mkey {
    let end = &pair.ends[0];
    pair.hcas[0].register(end.pd, &end.memory, 4096, access).expect("CREATE_MKEY").key
}

/// The request is made; the queue pair may end in error.
fn finish(b: &mut Bench, mut pair: Pair<Hand>, op: SendOp, sge: [Sge; 1]) {
    pair.send(0, &SendRequest::new(1, op, &sge));
    let (_, completion) = pair.sent(0);
    assert_eq!(completion.status.is_err(), b.is_wrong(), "{completion:?}");
    b.keep(pair);
}

/// A write from memory under a key of its own: the second page of the region's first.
fn local(b: &mut Bench, access: Access, spoil: fn(&mut Pair<Hand>, &mut Sge)) {
    let mut pair = b.pair(&Options::default());
    let key = spare(&mut pair, access);
    let mut sge = Sge { key, ..pair.ends[0].sge(0, 8) };
    if b.is_wrong() {
        spoil(&mut pair, &mut sge);
    }
    let far = pair.ends[1].mr;
    finish(b, pair, SendOp::Write { address: far.address, rkey: far.key, imm: None }, [sge]);
}

/// A write into memory that the far end has registered with `access`, or with all of it in the twin.
fn remote(b: &mut Bench, access: Access, spoil: fn(&mut Pair<Hand>, &mut u64, &mut Mkey)) {
    let access = b.pick(access, Access::ALL);
    let mut pair = b.pair(&Options { access, ..Options::default() });
    let far = pair.ends[1].mr;
    let (mut address, mut rkey) = (far.address, far.key);
    if b.is_wrong() {
        spoil(&mut pair, &mut address, &mut rkey);
    }
    let sge = [pair.ends[0].sge(0, 8)];
    finish(b, pair, SendOp::Write { address, rkey, imm: None }, sge);
}
