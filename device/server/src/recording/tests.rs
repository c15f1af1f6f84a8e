//! Files that are whole, cut, changed, and made up.

use std::io::{Cursor, Write};
use std::path::PathBuf;

use hca_model::World;
use proptest::prelude::*;

use super::file::{self, beginning, chunk_head};
use super::*;
use crate::pci::Space;
use crate::topology::Topology;

const ONE: &str = "[[host]]\nname = \"a\"\n[[host.hca]]\n";

fn header() -> Header {
    Header {
        softhca: "0.0.0".into(),
        topology: ONE.into(),
        process: None,
        check: false,
        m_key: Some(7),
        adapters: vec!["a/hca0".into()],
    }
}

fn world() -> World {
    let topology = Topology::parse("test", ONE).unwrap();
    crate::model::world(&topology, &topology.part(None).unwrap()).unwrap().0
}

fn records() -> Vec<Record> {
    let hca = 0;
    let mut all = vec![Record::Attach { hca }];
    for i in 0..30u64 {
        all.push(Record::Write { hca, space: Space::Bar0, offset: i * 8, data: vec![i as u8; 8] });
        all.push(Record::Advance { until: i * 1000 });
        all.push(Record::DmaRead { hca, iova: i << 12, data: (0..64).map(|b| (b * i) as u8).collect() });
        all.push(Record::DmaWrite {
            hca,
            iova: i << 12,
            data: Bytes::of(&vec![1; i as usize * 20]),
            done: true,
        });
        all.push(Record::Now { at: i * 1000 });
        all.push(Record::Look { hca, iova: 0, len: 4, data: (i % 2 == 0).then(|| vec![1, 2, 3, 4].into()) });
        all.push(Record::Answer { hca, answer: DmaAnswer::Read { ticket: i, data: vec![9; 9] } });
    }
    all
}

/// Writes a recording of these, with a flush behind every 60.
fn write(name: &str, records: &[Record], limit: Option<u64>) -> Vec<u8> {
    let name = format!("softhca-recording-{}-{name}", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(name);
    let recorder = Recorder::begin(&Options { file: path.clone(), limit }, &header()).unwrap();
    let world = world();
    for some in records.chunks(60) {
        some.iter().for_each(|record| recorder.keep(record));
        recorder.flush();
        recorder.look(&world);
    }
    recorder.end(&world);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

fn read(bytes: Vec<u8>) -> Result<(Vec<Record>, Ending), RecordingError> {
    let mut recording = Recording::read("test", Cursor::new(bytes))?;
    let mut all = Vec::new();
    while let Some(item) = recording.next_record()? {
        assert_eq!(item.number, all.len() as u64);
        all.push(item.record);
    }
    Ok((all, recording.ending().expect("the end was reached")))
}

#[test]
fn what_is_written_is_read() {
    let (read, ending) = read(write("whole", &records(), None)).unwrap();
    assert_eq!(ending, Ending::Whole(End::Stopped));
    let (last, rest) = read.split_last().unwrap();
    assert_eq!((last, rest), (&Record::End { why: End::Stopped }, &records()[..]));
}

#[test]
fn a_file_that_is_cut_has_what_was_flushed() {
    let bytes = write("cut", &records(), None);
    let all = records();
    let (mut most, mut steps) = (0, 0);
    for cut in 0..bytes.len() {
        let cut_off = bytes[..cut].to_vec();
        match read(cut_off.clone()) {
            Ok((read, ending)) => {
                assert_eq!(ending, Ending::Cut, "cut at {cut}");
                assert!(all.starts_with(&read), "cut at {cut}: what is read was written");
                assert!(read.len() >= most, "a longer file has no fewer records");
                most = read.len();
            }
            Err(RecordingError::Stranger { .. } | RecordingError::Header { .. }) => {}
            Err(why) => panic!("cut at {cut}: {why}"),
        }
        // A step that is not all there is left out.
        let Ok(mut recording) = Recording::read("test", Cursor::new(cut_off)) else { continue };
        let mut whole = 0;
        while let Some(step) = recording.next_step().unwrap().pop_front() {
            assert!(step.record.is_step());
            whole += 1;
        }
        assert!(whole >= steps && whole <= most, "{whole} steps of {most} records");
        steps = whole;
    }
    assert_eq!(most, all.len(), "all but the end");
}

#[test]
fn a_file_that_is_changed_is_refused() {
    let bytes = write("changed", &records(), None);
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        match read(changed) {
            Ok((_, ending)) => {
                assert_eq!(ending, Ending::Cut, "a chunk that ends behind the file, byte {at}")
            }
            Err(why) => assert!(why.to_string().starts_with("test: "), "{why}"),
        }
    }
}

#[test]
fn errors_say_what_and_where() {
    let whole = write("errors", &records(), None);
    let said = |bytes: Vec<u8>| read(bytes).unwrap_err().to_string();
    assert_eq!(said(b"{}".to_vec()), "test: is no recording of softhca");
    let mut other = whole.clone();
    other[16] = 2;
    let expected = "test: has version 2 of the format, and this program reads version 1; record anew";
    assert_eq!(said(other), expected);
    let mut changed = whole.clone();
    let last = changed.len() - 1;
    changed[last] ^= 1;
    let said = said(changed);
    // The last one: where the recording ends.
    assert!(
        said.starts_with(&format!("test: damaged in record {}, after 29.000 ns", records().len())),
        "{said}"
    );
    assert!(said.ends_with("the checksum of a chunk is wrong"), "{said}");
}

#[test]
fn a_recording_ends_at_its_limit() {
    // So that nothing is packed well.
    let random = |seed: u64| (0..4096).map(|i| ((i * seed * 2_654_435_761) >> 13) as u8).collect();
    let many: Vec<Record> =
        (1..400).map(|i| Record::Write { hca: 0, space: Space::Bar0, offset: 0, data: random(i) }).collect();
    let bytes = write("limit", &many, Some(100_000));
    assert!((100_000..1_000_000).contains(&bytes.len()), "{}", bytes.len());
    let (read, ending) = read(bytes).unwrap();
    assert_eq!(ending, Ending::Whole(End::Limit));
    assert_eq!(read.last(), Some(&Record::End { why: End::Limit }));
    assert!(read.len() < many.len() && many.starts_with(&read[..read.len() - 1]));
}

/// A file with that stream.
fn made_up(stream: &[u8]) -> Vec<u8> {
    let mut packer = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    packer.write_all(stream).unwrap();
    let packed = packer.finish().unwrap();
    let mut bytes = beginning(&header()).unwrap();
    bytes.extend_from_slice(&chunk_head(&packed));
    bytes.extend_from_slice(&packed);
    bytes
}

#[test]
fn lengths_have_bounds() {
    for stream in [[0xff; 6].to_vec(), vec![0x80, 0x80, 0x80, 0x80, 0x7f]] {
        let said = read(made_up(&stream)).unwrap_err().to_string();
        assert!(said.contains("longer than any"), "{said}");
    }
    // An end that comes first is one.
    let mut stream = Vec::new();
    file::put(&mut stream, &Record::End { why: End::Limit }, &mut Vec::new()).unwrap();
    assert_eq!(read(made_up(&stream)).unwrap().1, Ending::Whole(End::Limit));
    // What comes of no step is refused.
    let mut stream = Vec::new();
    file::put(&mut stream, &Record::Now { at: 1 }, &mut Vec::new()).unwrap();
    let mut recording = Recording::read("test", Cursor::new(made_up(&stream))).unwrap();
    assert!(recording.next_step().unwrap_err().to_string().contains("of no step"));
}

proptest! {
    #[test]
    fn any_stream_is_records_or_an_error(stream in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = read(made_up(&stream));
    }

    /// Steps that no server ever recorded are an error or a divergence.
    #[test]
    fn any_steps_are_played(
        picks in prop::collection::vec((0usize..20, any::<u16>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..20)), 0..20)
    ) {
        let mut stream = Vec::new();
        for (pick, small, large, data) in picks {
            let hca = small % 2;
            let spaces = [Space::Bar0, Space::Bar2, Space::Config];
            let space = spaces[usize::from(small) % 3];
            let record = match pick {
                0 => Record::Attach { hca },
                1 => Record::Detach { hca, reason: "so".into() },
                2 => Record::Read { hca, space, offset: large, len: u32::from(small) },
                3 => Record::Write { hca, space, offset: large % 4096, data },
                4 => Record::Map { hca, iova: large, size: 1, readable: true, writable: true, later: small > 9, done: true },
                5 => Record::MemoryChanged { hca },
                6 => Record::Connect { hca, vector: small.into(), connected: large > 9 },
                7 => Record::Trigger { hca, vector: small.into() },
                8 => Record::Reset { hca },
                9 => Record::StoresEnd { hca },
                10 => Record::Answers { hca, all_written: true, news: true },
                11 => Record::Run,
                12 => Record::Packet { link: small, data },
                13 => Record::Light { link: small, light: Some((4, small as u8)) },
                14 => Record::Control { request: String::from_utf8_lossy(&data).into() },
                15 => Record::Advance { until: large % 1_000_000_000_000 },
                16 => Record::Now { at: large % 1_000_000_000_000 },
                17 => Record::Skip { to: large % 1_000_000_000_000 },
                18 => Record::DmaRead { hca, iova: large, data },
                _ => Record::Mark { hash: large, count: small.into() },
            };
            file::put(&mut stream, &record, &mut Vec::new()).unwrap();
        }
        let recording = Recording::read("test", Cursor::new(made_up(&stream))).unwrap();
        let _ = Replay::of(recording, false, None).unwrap().run();
    }
}
