use super::*;
use hca_spec::tracer::TraceEvent;

/// The text at an address.
fn text(address: u32) -> String {
    let from = (address - STRINGS_AT) as usize;
    let bytes = strings().get(from..).unwrap();
    String::from_utf8(bytes.iter().copied().take_while(|b| *b != 0).collect()).unwrap()
}

/// What a driver makes of a block: messages as time, string, parameters, lost.
type Read = (u64, String, Vec<u32>, bool);

/// Reads blocks in the way of a driver: parts by number, times by the next time above them.
fn read(blocks: &[Block]) -> Vec<Read> {
    let mut all = Vec::new();
    let mut ready: Vec<(u32, Read)> = Vec::new();
    let mut latest = 0;
    for block in blocks {
        for event in block.bytes.chunks(8) {
            if TraceEvent::from_prefix_or_zero(event).get(TraceEvent::EVENT_ID) == TIMESTAMP {
                let e = TimestampEvent::from_prefix_or_zero(event);
                let time = u64::from(e.get(TimestampEvent::TIMESTAMP_52_40)) << 40
                    | u64::from(e.get(TimestampEvent::TIMESTAMP_39_8)) << 8
                    | u64::from(e.get(TimestampEvent::TIMESTAMP_7_0));
                for (_, mut message) in ready.drain(..) {
                    let high = if message.0 < time & 0x7f { time } else { time - 1 };
                    message.0 |= high & !0x7f;
                    all.push(message);
                }
                assert!(time >= latest);
                latest = time;
                continue;
            }
            let e = StringEvent::from_prefix_or_zero(event);
            assert_eq!(e.get(StringEvent::STRING_EVENT_ID), STRING_EVENT);
            let (number, word) = (e.get(StringEvent::TMSN), e.get(StringEvent::STRING_PARAM));
            match e.get(StringEvent::TDSN) {
                0 => {
                    let lost = e.get(StringEvent::STRING_LOST) == 1;
                    let low = e.get(StringEvent::STRING_TIMESTAMP).into();
                    ready.push((number, (low, text(word), Vec::new(), lost)));
                }
                part => {
                    let (_, message) = ready.iter_mut().find(|(of, _)| *of == number).unwrap();
                    message.2.push(word);
                    assert_eq!(message.2.len(), part as usize);
                }
            }
        }
        assert!(ready.is_empty(), "a block ends with a time");
    }
    all
}

fn running() -> Tracer {
    let mut tracer = Tracer::default();
    tracer.acquire(FunctionId::FIRST);
    tracer.configure(0x1234, 6);
    tracer.on = true;
    tracer
}

fn blocks(tracer: &mut Tracer) -> Vec<Block> {
    std::iter::from_fn(|| tracer.block()).collect()
}

/// Drivers take only these conversions, and count percent signs.
#[test]
fn strings_are_what_drivers_take() {
    for text in strings().split(|b| *b == 0).map(|b| std::str::from_utf8(b).unwrap()) {
        let conversions = text.split('%').skip(1).map(|rest| rest.chars().next());
        assert!(conversions.clone().all(|c| matches!(c, Some('x' | 'u' | 'd'))), "{text}");
        assert!(conversions.count() <= MOST_PARAMETERS, "{text}");
    }
    assert!(strings().len().is_multiple_of(ALIGNED));
    let names = [Opcode::Rst2InitQp, Opcode::QueryHcaCap, Opcode::MadIfc].map(name);
    assert_eq!(names, ["RST2INIT_QP", "QUERY_HCA_CAP", "MAD_IFC"]);
}

#[test]
fn messages_have_as_many_numbers_as_their_strings() {
    let version = FirmwareVersion { major: 12, minor: 28, subminor: 2006 };
    let function = FunctionId(1);
    let all = [
        Message::Start(version),
        Message::Reset(function),
        Message::AllGone(function),
        Message::Command { opcode: Opcode::CreateCq as u16, op_mod: 0, status: 3, syndrome: 0x1234 },
        Message::Command { opcode: 0xfff0, op_mod: 7, status: 2, syndrome: 1 },
        Message::Register { register: 0x9020, op_mod: 0, status: 0 },
        Message::Register { register: 0x9020, op_mod: 1, status: 0 },
        Message::Waits(0x200),
        Message::Mailbox { opcode: 0x9001, status: 0 },
        Message::Pages(-4),
        Message::Port { port: 1, change: port_change::ACTIVE },
        Message::Port { port: 1, change: 200 },
        Message::State { function, state: 2, given: 7, used: 3 },
        Message::Objects([1, 2, 3, 4, 5, 6]),
    ];
    let mut tracer = running();
    for (message, at) in all.into_iter().zip(1..) {
        tracer.set_time(at * 1000);
        tracer.record(message);
    }
    let said = read(&blocks(&mut tracer));
    assert_eq!(said.len(), all.len());
    for ((at, text, numbers, lost), n) in said.iter().zip(1..) {
        assert_eq!((*at, text.matches('%').count(), *lost), (n * 1000, numbers.len(), false), "{text}");
    }
    assert_eq!(said[0].2, [12, 28, 2006]);
    assert_eq!(said[3].1, "CREATE_CQ op_mod 0x%x: status 0x%x syndrome 0x%x");
    assert_eq!(said[10].1, "port %u: active");
}

/// Times come out as they were, whatever their lower bits are; and a block is newer than the one before.
#[test]
fn times() {
    let mut tracer = running();
    let times: Vec<u64> = (1..40).flat_map(|n| [n * 128 - 1, n * 128, n * 128 + 1, 1 << 45 | n]).collect();
    let mut sorted = times.clone();
    sorted.sort_unstable();
    for time in &sorted {
        tracer.set_time(*time);
        tracer.record(Message::Waits(1));
    }
    let read = read(&blocks(&mut tracer));
    assert_eq!(read.iter().map(|m| m.0).collect::<Vec<_>>(), sorted);
    // Many at one time take blocks of different times.
    for _ in 0..40 {
        tracer.record(Message::Waits(1));
    }
    let more = blocks(&mut tracer);
    let last = |block: &Block| {
        let e = TimestampEvent::from_prefix_or_zero(&block.bytes[BLOCK - 8..]);
        (e.get(TimestampEvent::TIMESTAMP_39_8), e.get(TimestampEvent::TIMESTAMP_7_0))
    };
    assert!(more.len() > 1 && more.windows(2).all(|w| last(&w[0]) < last(&w[1])));
}

#[test]
fn the_buffer_begins_again_behind_its_end() {
    let mut tracer = running();
    tracer.configure(0x1234, 0);
    let mut offsets = Vec::new();
    for at in 1..=18 {
        tracer.set_time(at);
        tracer.record(Message::Pages(1));
        offsets.extend(tracer.block().map(|block| block.offset));
    }
    assert_eq!(offsets[..3], [0, 256, 512]);
    assert_eq!(offsets[15..], [15 * 256, 0, 256]);
}

#[test]
fn more_than_can_wait() {
    let mut tracer = running();
    for n in 0..MOST as i32 + 10 {
        tracer.record(Message::Pages(n));
    }
    let read = read(&blocks(&mut tracer));
    assert_eq!((read.len(), read[0].2[0], read[0].3, read[1].3), (MOST, 10, true, false));
    tracer.record(Message::Pages(1));
    _ = blocks(&mut tracer);
    tracer.not_written();
    tracer.record(Message::Pages(2));
    assert!(self::read(&blocks(&mut tracer))[0].3, "what could not be written is lost, too");
}

#[test]
fn who_has_it_and_when_it_tells() {
    let (first, second) = (FunctionId(0), FunctionId(1));
    let mut tracer = Tracer::default();
    tracer.record(Message::Pages(1));
    assert_eq!((tracer.wants(), tracer.block()), (None, None), "nobody has it");
    tracer.acquire(first);
    tracer.acquire(second);
    assert!(tracer.is_of(first) && !tracer.is_of(second) && !tracer.release(second));
    (tracer.on, tracer.armed) = (true, true);
    assert_eq!((tracer.wants(), tracer.wants()), (Some((first, Soon::Later)), None));
    assert!(!tracer.tells(), "nothing was written");
    assert!(tracer.block().is_some() && tracer.block().is_none());
    assert_eq!((tracer.tells(), tracer.tells()), (true, false));
    for _ in 0..MANY {
        tracer.record(Message::Pages(1));
    }
    assert_eq!((tracer.wants(), tracer.wants()), (Some((first, Soon::Now)), None));
    tracer.function_reset(first);
    assert_eq!((tracer.target(), tracer.block()), (None, None));
    tracer.acquire(second);
    assert!(tracer.is_of(second));
}
