//! What an Ethernet queue does with frames, alone: `cargo bench -p hca-tests --bench frames`.
//!
//! - `frame of 64 B`: headers, RSS hash, completion.
//! - `LSO of 64 KiB`: frames of 1448 bytes of data, with checksums, beside a plain copy of the same bytes in the same run: the ratio is
//!   what to compare between machines.

#![allow(missing_docs, reason = "criterion_group makes a public function")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use hca_firmware::steering::VxlanPorts;
use hca_firmware::{HashFields, HashFunction};
use hca_model::nic::receive::{ReceiveRules, Steered};
use hca_model::nic::rss::{HashRules, Hasher, KEY_SIZE, KeyTables};
use hca_model::nic::segment::Lso;
use hca_model::nic::transmit::{Checksums, Finish};
use hca_model::wire::checksum::Sum;
use hca_model::wire::ethernet::Headers;

const ALL: Checksums = Checksums { l3: true, l4: true, inner_l3: false, inner_l4: false };

/// A frame of TCP over IPv4, without checksums.
fn tcp_frame(payload: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let len = (40 + payload) as u16;
    frame.extend([0x45, 0, len.to_be_bytes()[0], len.to_be_bytes()[1], 0, 1, 0x40, 0, 64, 6, 0, 0]);
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([3, 0xe8, 7, 0xd0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..payload).map(|i| i as u8));
    frame
}

fn small(c: &mut Criterion) {
    let mut frame = tcp_frame(6);
    let finish = Finish { checksums: ALL, vlan: None, max_frame: 1514, vxlan_ports: VxlanPorts::default() };
    assert!(finish.apply(&mut frame).is_ok());
    let outer =
        HashFields { src_ip: true, dst_ip: true, src_port: true, dst_port: true, ..HashFields::default() };
    let function = HashFunction::Toeplitz;
    let key = [0x6d; KEY_SIZE];
    let rules = HashRules { function, symmetric: true, key, outer, inner: HashFields::default() };
    let hasher = Hasher::new(rules, &mut KeyTables::default());
    let queue = ReceiveRules { strip_vlan: true, ..ReceiveRules::default() };

    let mut group = c.benchmark_group("frame of 64 B");
    group.throughput(Throughput::Elements(1));
    group.bench_function("headers", |b| b.iter(|| Headers::parse(black_box(&frame))));
    group.bench_function("headers and hash", |b| {
        b.iter(|| Headers::parse(black_box(&frame)).map(|headers| hasher.hash(&headers, None).index(128)));
    });
    group.bench_function("headers, hash and completion", |b| {
        b.iter(|| {
            let headers = Headers::parse(black_box(&frame))?;
            let steered = Steered { hash: hasher.hash(&headers, None), flow_tag: 0, merged: None };
            Some(black_box(queue.receive(&frame, &headers, steered, 1, 1522)).cqe)
        });
    });
    group.finish();
}

fn large(c: &mut Criterion) {
    const LEN: usize = 64 << 10;
    const MSS: u16 = 1448;
    let header = tcp_frame(0);
    let data = vec![0x5au8; LEN];
    let mut to = vec![0u8; LEN];
    let mut group = c.benchmark_group("LSO of 64 KiB");
    group.throughput(Throughput::Bytes(LEN as u64));
    group.bench_function("memcpy", |b| {
        b.iter(|| {
            to.copy_from_slice(black_box(&data));
            black_box(&mut to);
        });
    });
    group.bench_function("sum", |b| b.iter(|| Sum::of(black_box(&data))));
    for (name, sums) in [("frames", ALL), ("frames without checksums", Checksums::default())] {
        let mut frame = Vec::with_capacity(2048);
        group.bench_function(name, |b| {
            b.iter(|| {
                let Ok(lso) = Lso::new(&header, LEN as u64, MSS, sums, &VxlanPorts::default()) else {
                    return;
                };
                for i in 0..lso.frames() {
                    let range = lso.data(i);
                    let part = data.get(range.start as usize..range.end as usize).unwrap_or_default();
                    lso.write(i, &header, part, &mut frame);
                    black_box(&mut frame);
                }
            });
        });
    }
    group.finish();
}

fn quick() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
}

criterion_group! { name = benches; config = quick(); targets = small, large }
criterion_main!(benches);
