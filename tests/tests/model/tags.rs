//! Tag matching: messages find buffers by their tags, and data that they announce is fetched.

use hca_driver::qp::QpConfig;
use hca_driver::tags::{ListChange, announcement, eager};
use hca_driver::{
    Completion, Config, InitAttr, Path, Qp, RtrAttr, RtsAttr, SendOp, SendRequest, Sge, Srq, TagChange,
    TagList, TagQueueConfig, TagReport,
};
use hca_model::link::Faults;
use hca_model::personality::Personality;
use hca_model::timing::Profile;
use hca_model::{FirmwareConfig, HcaConfig, World, WorldConfig};
use hca_spec::cqe::{CqeOpcode, Syndrome};
use hca_spec::ids::Mkey;
use hca_spec::qpc::QpState;
use hca_spec::xrq::{TagHeader, Xrqc, app_op, message};
use hca_tests::in_process::{ModelBus, ModelMemory, Simulation};
use hca_tests::pair::{Options, PORT, Pair, pattern};
use hca_tests::rig::{assert_state, close, open_with};
use hca_tests::worlds;

use crate::device_memory::world_of;

/// log2 of the entries of the list.
const LOG_TAGS: u32 = 4;
/// Bytes of a header.
const HEADER: usize = TagHeader::SIZE;
/// Bytes of a packet.
const MTU: usize = 2048;
/// What completions call the queue.
const MARK: u32 = 0x5a5a;

/// End 1 receives from a queue with tag matching.
pub(crate) struct Tags {
    pub(crate) pair: Pair<ModelBus>,
    queue: Srq<ModelMemory>,
    pub(crate) list: TagList,
    /// By this the list is changed.
    commands: Qp<ModelMemory>,
}

/// How end 1 fetches what messages announce.
#[derive(Clone, Copy)]
pub(crate) struct Fetching {
    queue: bool,
    pair: bool,
}

pub(crate) const FETCHING: Fetching = Fetching { queue: true, pair: true };

fn options() -> Options {
    Options { memory: 1 << 20, mtu: 4, ..Options::default() }
}

/// Two adapters over a link with faults.
fn world_of_two(faults: Faults) -> World {
    two_of(["connectx5"; 2], faults)
}

/// Two adapters of those kinds.
pub(crate) fn two_of(kinds: [&'static str; 2], faults: Faults) -> World {
    let hca = |n: usize| {
        let personality = Personality::named(kinds[n]).expect("there is one");
        let guid = 0x0002_c903_00a0_0001 + n as u64;
        let firmware = FirmwareConfig { personality, ..FirmwareConfig::with_guid(guid) };
        HcaConfig { name: format!("hca{n}"), firmware, timing: None }
    };
    let config = WorldConfig {
        hcas: (0..2).map(hca).collect(),
        switches: Vec::new(),
        links: vec![worlds::between(faults)],
        subnet_manager: true,
        management_key: None,
        seed: 1,
        profile: Profile::named(kinds[0]).expect("there is one"),
    };
    World::new(config).expect("a valid topology")
}

impl Tags {
    fn new(simulation: &Simulation, hcas: usize, fetching: Fetching) -> Self {
        Self::with(simulation, hcas, fetching, Config::default())
    }

    /// With a driver's choices.
    pub(crate) fn with(simulation: &Simulation, hcas: usize, fetching: Fetching, config: Config) -> Self {
        let options = Options { global: hcas == 2, ..options() };
        let hcas = (0..hcas).map(|n| open_with(simulation, n, config)).collect();
        let mut pair = Pair::apart(hcas, [&options; 2]).expect("two ends");
        let (home, pd) = (pair.ends[1].home, pair.ends[1].pd);
        let (hca, here) = (&mut pair.hcas[home], &mut pair.ends[1]);
        let config = TagQueueConfig {
            pd,
            cq: here.recv_cq.number(),
            requests: 15,
            sges: 1,
            log_tags: LOG_TAGS,
            fetches: fetching.queue,
            user_index: Some(MARK),
        };
        let queue = hca.create_tag_queue(&config).expect("CREATE_XRQ");
        let shared = QpConfig {
            srq: Some(queue.number()),
            recv_requests: 0,
            ..QpConfig::rc(pd, &here.recv_cq, &here.recv_cq)
        };
        let qp = hca.create_qp(&QpConfig { send_blocks: 0, fetches: fetching.pair, ..shared });
        hca.destroy_qp(std::mem::replace(&mut here.qp, qp.expect("CREATE_QP"))).expect("DESTROY_QP");
        let mut commands = hca.create_qp(&shared).expect("CREATE_QP");
        let way = Path::lid(hca.lid(PORT).expect("the port's LID"));
        hca.qp_to_init(&mut commands, &InitAttr::default()).expect("INIT");
        let itself = RtrAttr::new(commands.number(), way);
        hca.qp_to_rtr(&mut commands, &itself).expect("RTR");
        hca.qp_to_rts(&mut commands, &RtsAttr::default()).expect("RTS");
        for end in 0..2 {
            pair.to_rts(end, &options).expect("connect");
        }
        Self { pair, queue, list: TagList::new(LOG_TAGS), commands }
    }

    /// Two ends of one adapter.
    fn loopback(fetching: Fetching) -> Self {
        Self::new(&Simulation::new(world_of("connectx5")), 1, fetching)
    }

    /// Over a link with faults.
    fn linked(faults: Faults) -> Self {
        Self::new(&Simulation::new(world_of_two(faults)), 2, FETCHING)
    }

    pub(crate) fn close(self) {
        let Self { mut pair, queue, commands, .. } = self;
        let home = pair.ends[1].home;
        let (hca, here) = (&mut pair.hcas[home], &mut pair.ends[1]);
        hca.destroy_qp(commands).expect("DESTROY_QP");
        let own = hca.create_qp(&QpConfig::rc(here.pd, &here.send_cq, &here.recv_cq)).expect("CREATE_QP");
        hca.destroy_qp(std::mem::replace(&mut here.qp, own)).expect("DESTROY_QP");
        hca.destroy_srq(queue).expect("DESTROY_XRQ");
        close(pair);
    }

    /// The next completion at end 1.
    pub(crate) fn next(&mut self) -> (Completion, TagReport) {
        for _ in 0..100_000 {
            if let Some(completion) = self.pair.ends[1].recv_cq.poll() {
                assert_eq!((completion.srqn.0, completion.has_grh), (MARK, false));
                return (completion, completion.tags.expect("it is about tags"));
            }
            self.pair.hcas[0].wait(None);
        }
        panic!("no completion");
    }

    /// No completion is there.
    fn silent(&mut self) {
        assert!(self.pair.ends[1].recv_cq.peek().is_none());
    }

    fn post(&mut self, change: TagChange, place: (usize, usize)) {
        let sge = [self.pair.ends[1].sge(place.0, place.1)];
        self.post_pieces(change, if place.1 > 0 { &sge } else { &[] });
    }

    /// The same for data that goes anywhere.
    pub(crate) fn post_pieces(&mut self, change: TagChange, sges: &[Sge]) {
        let home = self.pair.ends[1].home;
        let request = SendRequest::new(0, SendOp::Tags(change), sges).unsignaled();
        self.commands.post_send(self.pair.hcas[home].bus_mut(), &request).expect("post_send");
    }

    /// Changes the list; returns what is told of it.
    fn change(&mut self, change: TagChange, place: (usize, usize)) -> TagReport {
        self.post(change, place);
        let (completion, report) = self.next();
        assert_eq!((completion.status, completion.opcode), (Ok(()), Some(CqeOpcode::NoPacket)));
        report
    }

    /// Appends an entry for messages with exactly that tag.
    fn append(&mut self, tag: u64, place: (usize, usize)) -> u16 {
        let (index, append) = self.list.append(tag, u64::MAX).expect("an entry is free");
        let report = self.change(TagChange::told(append), place);
        assert_eq!((report.what, report.index, report.done), (app_op::APPEND, index, true));
        index
    }

    fn sync(&mut self, seen: u16) -> TagReport {
        let report = self.change(TagChange::told(ListChange::Nothing).having_seen(seen), (0, 0));
        assert_eq!((report.what, report.done), (app_op::NOP, true));
        report
    }

    /// End 0 sends these bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.pair.fill(0, 0, bytes);
        let sge = [self.pair.ends[0].sge(0, bytes.len())];
        self.pair.send(0, &SendRequest::send(1, &sge));
    }

    /// End 0 sends a message with its data.
    fn eager(&mut self, tag: u64, data: &[u8]) {
        self.send(&[eager(tag, 0xabcd).bytes().as_slice(), data].concat());
        self.pair.sent_ok(0, 1);
    }

    /// End 1 posts a receive request for what no entry is for.
    fn recv(&mut self, wr_id: u64, offset: usize, len: usize) {
        let sge = self.pair.ends[1].sge(offset, len);
        self.queue.post_recv(wr_id, &[sge]).expect("post_recv");
    }

    /// The next message goes into a receive request.
    fn received(&mut self, what: u32, wr_id: u64, len: usize) {
        let (completion, report) = self.next();
        assert_eq!((completion.status, completion.opcode), (Ok(()), Some(CqeOpcode::RespSend)));
        assert_eq!((report.what, report.tag, completion.byte_len as usize), (what, 0, len));
        assert_eq!(self.queue.finish(&completion), Some(wr_id));
    }

    /// The next message uses an entry, which has data or not.
    pub(crate) fn used(&mut self, what: u32, index: u16, tag: u64) -> Completion {
        let (completion, report) = self.next();
        assert_eq!((completion.status, report.what, report.index), (Ok(()), what, index));
        assert_eq!((report.tag, report.word), (tag, 0xabcd));
        assert_eq!(self.queue.finish(&completion), None, "no receive request was used");
        completion
    }

    /// The data of an entry is there.
    pub(crate) fn there(&mut self, index: u16, len: usize) {
        let (completion, report) = self.next();
        assert_eq!((completion.status, completion.opcode), (Ok(()), Some(CqeOpcode::RespSend)));
        assert_eq!((report.what, report.index, report.tag), (app_op::EXPECTED, index, 0));
        assert_eq!(completion.byte_len as usize, len);
        self.list.release(index);
    }

    /// The data of an entry will not come.
    fn canceled(&mut self, index: u16) {
        let (completion, report) = self.next();
        assert_eq!((completion.opcode, report.what), (Some(CqeOpcode::NoPacket), app_op::CANCELED));
        assert_eq!(report.index, index);
        self.list.release(index);
    }

    fn data(&self, offset: usize, len: usize) -> Vec<u8> {
        self.pair.ends[1].bytes(offset, len)
    }

    /// Connects both ends anew; end 1 may not send yet.
    fn receives_only(&mut self) {
        let (options, pair) = (options(), &mut self.pair);
        let (home, peer) = (pair.ends[1].home, pair.ends[0].qp.number());
        let hca = &mut pair.hcas[home];
        for end in &mut pair.ends {
            hca.qp_to_reset(&mut end.qp).expect("2RST_QP");
        }
        let way = Path::lid(hca.lid(PORT).expect("the port's LID"));
        let receive_psn = options.rts.send_psn;
        let rtr = RtrAttr { mtu: options.mtu, receive_psn, ..RtrAttr::new(peer, way) };
        hca.qp_to_init(&mut pair.ends[1].qp, &InitAttr::default()).expect("INIT");
        hca.qp_to_rtr(&mut pair.ends[1].qp, &rtr).expect("RTR");
        pair.to_rts(0, &options).expect("connect");
    }

    fn context(&mut self) -> Xrqc {
        let home = self.pair.ends[1].home;
        self.pair.hcas[home].tag_queue(&self.queue).expect("QUERY_XRQ")
    }

    /// End 0 announces `len` bytes of its memory.
    pub(crate) fn announce(&mut self, tag: u64, len: usize, key: Option<Mkey>) -> [u8; 32] {
        let near = self.pair.ends[0].mr;
        let place = (near.address + 0x1000, key.unwrap_or(near.key), len as u32);
        let headers = announcement(tag, 0xabcd, place);
        self.send(&headers);
        headers
    }
}

#[test]
pub(crate) fn messages_find_their_buffers() {
    for mut t in [Tags::loopback(FETCHING), Tags::linked(Faults::loss(0.01))] {
        for (round, len) in [0, 1, 100, MTU - HEADER, MTU - HEADER + 1, 5000, 70_000].into_iter().enumerate()
        {
            let (tag, data) = (0x1000 + round as u64, pattern(round as u64, len));
            // Others are before it.
            let other = t.append(tag + 1, (0, 64));
            let index = t.append(tag, (4096, len));
            t.eager(tag, &data);
            if len + HEADER <= MTU {
                let told = t.used(app_op::CONSUMED_MSG, index, tag);
                assert_eq!((told.byte_len as usize, told.opcode), (len, Some(CqeOpcode::RespSend)));
                t.list.release(index);
            } else {
                t.used(app_op::CONSUMED, index, tag);
                t.there(index, len);
            }
            assert!(t.data(4096, len) == data, "{len} bytes, and no header");
            let removed = t.change(TagChange::told(ListChange::Remove(other)), (0, 0));
            assert_eq!((removed.what, removed.index, removed.done), (app_op::REMOVE, other, true));
            t.list.release(other);
        }
        let ctx = t.context();
        assert_eq!((ctx.get(Xrqc::HW_PHASE_CNT), ctx.get(Xrqc::SW_PHASE_CNT)), (0, 0));
        t.close();
    }
}

/// A message that no entry is for goes whole into a receive request; entries that come later are for later ones, once software says
/// that it has seen it.
#[test]
pub(crate) fn messages_that_nothing_is_for() {
    let mut t = Tags::loopback(FETCHING);
    let data = pattern(3, 200);
    let first = t.append(7, (0, 256));
    t.recv(50, 4096, 4096);
    t.eager(8, &data);
    t.received(app_op::UNEXPECTED, 50, HEADER + data.len());
    assert_eq!(t.data(4096, HEADER), *eager(8, 0xabcd).bytes());
    assert_eq!(t.data(4096 + HEADER, data.len()), data);
    let (index, append) = t.list.append(8, u64::MAX).expect("an entry is free");
    let report = t.change(TagChange::told(append), (8192, 256));
    assert_eq!((report.done, report.came), (true, 1));
    // It is not looked at yet, what was there before is.
    t.recv(51, 4096, 4096);
    t.eager(8, &data);
    t.received(app_op::UNEXPECTED, 51, HEADER + data.len());
    t.eager(7, &data);
    t.used(app_op::CONSUMED_MSG, first, 7);
    assert_eq!(t.sync(1).came, 2, "there was another");
    t.recv(52, 4096, 4096);
    t.eager(8, &data);
    t.received(app_op::UNEXPECTED, 52, HEADER + data.len());
    t.sync(3);
    t.eager(8, &data);
    t.used(app_op::CONSUMED_MSG, index, 8);
    assert_eq!(t.data(8192, data.len()), data);
    let ctx = t.context();
    assert_eq!((ctx.get(Xrqc::HW_PHASE_CNT), ctx.get(Xrqc::SW_PHASE_CNT)), (3, 3));
    assert_eq!(ctx.get(Xrqc::APPEND_NEXT_INDEX), 2);
    t.close();
}

/// Without a receive request nothing counts as unexpected: the peer sends again.
#[test]
pub(crate) fn receiver_not_ready() {
    let mut t = Tags::loopback(FETCHING);
    t.send(&[eager(8, 0).bytes().as_slice(), &pattern(1, 40)].concat());
    for _ in 0..100 {
        t.pair.hcas[0].wait(None);
    }
    assert_eq!(t.context().get(Xrqc::HW_PHASE_CNT), 0);
    t.recv(1, 0, 4096);
    t.received(app_op::UNEXPECTED, 1, HEADER + 40);
    t.pair.sent_ok(0, 1);
    assert_eq!(t.context().get(Xrqc::HW_PHASE_CNT), 1);
    t.close();
}

#[test]
pub(crate) fn messages_without_a_tag() {
    let mut t = Tags::loopback(FETCHING);
    let any = t.list.append(0, 0).expect("an entry is free");
    t.change(TagChange::told(any.1), (0, 64));
    let with = |opcode: u32| [vec![opcode as u8], pattern(2, 99)].concat();
    let short = eager(0, 0).bytes()[..15].to_vec();
    for (n, bytes) in [with(message::NO_TAG), with(message::FIN), with(9), short, vec![]].iter().enumerate() {
        t.recv(n as u64, 4096, 4096);
        t.send(bytes);
        t.pair.sent_ok(0, 1);
        t.received(app_op::NO_TAG, n as u64, bytes.len());
        assert_eq!(t.data(4096, bytes.len()), *bytes);
    }
    // The immediate of a write takes one, too.
    t.recv(70, 0, 64);
    let far = t.pair.ends[1].mr;
    let write = SendOp::Write { address: far.address, rkey: far.key, imm: Some(5) };
    t.pair.send(0, &SendRequest::new(2, write, &[]));
    t.pair.sent_ok(0, 2);
    let (completion, report) = t.next();
    assert_eq!((report.what, completion.imm), (app_op::NO_TAG, Some(5)));
    assert_eq!(t.queue.finish(&completion), Some(70));
    assert_eq!(t.context().get(Xrqc::HW_PHASE_CNT), 0);
    t.close();
}

#[test]
pub(crate) fn entries_are_taken_out() {
    let mut t = Tags::loopback(FETCHING);
    let index = t.append(7, (0, 256));
    t.eager(7, &[1; 10]);
    t.used(app_op::CONSUMED_MSG, index, 7);
    let late = t.change(TagChange::told(ListChange::Remove(index)), (0, 0));
    assert_eq!((late.what, late.done), (app_op::REMOVE, false), "a message was faster");
    t.list.release(index);
    // What isn't told of is done all the same.
    for _ in 0..3 * (1 << LOG_TAGS) {
        let (index, append) = t.list.append(7, u64::MAX).expect("an entry is free");
        t.post(TagChange { told: false, ..TagChange::told(append) }, (0, 64));
        t.post(TagChange { told: false, ..TagChange::told(ListChange::Remove(index)) }, (0, 0));
        t.list.release(index);
        t.sync(0);
    }
    t.silent();
    t.recv(1, 0, 4096);
    t.eager(7, &[1; 10]);
    t.received(app_op::UNEXPECTED, 1, HEADER + 10);
    t.close();
}

#[test]
pub(crate) fn announced_data_is_fetched() {
    for mut t in [Tags::loopback(FETCHING), Tags::linked(Faults::loss(0.01))] {
        for (round, len) in [0, 1, 4096, 5000, 200_000].into_iter().enumerate() {
            let (tag, data) = (0x77 + round as u64, pattern(round as u64, len));
            let index = t.append(tag, (0x1000, len.max(1)));
            t.pair.recv(0, 60, 0x80_000, 64);
            t.pair.fill(0, 0x1000, &data);
            let headers = t.announce(tag, len, None);
            t.pair.sent_ok(0, 1);
            t.used(app_op::CONSUMED, index, tag);
            t.there(index, len);
            assert!(t.data(0x1000, len) == data, "{len} bytes");
            // The sender hears that its buffer is free.
            assert_eq!(t.pair.received_ok(0, 60).byte_len as usize, headers.len());
            let told = t.pair.ends[0].bytes(0x80_000, headers.len());
            assert_eq!((u32::from(told[0]), &told[1..]), (message::FIN, &headers[1..]));
        }
        t.close();
    }
}

/// More at once than reads may be under way; other messages pass.
#[test]
pub(crate) fn many_are_fetched() {
    const MANY: u64 = (1 << LOG_TAGS) - 2;
    let mut t = Tags::loopback(FETCHING);
    let data = pattern(9, 20_000);
    t.pair.fill(0, 0x1000, &data);
    for n in 0..MANY {
        t.append(n, (0x1000, data.len()));
        t.pair.recv(0, n, 0x80_000, 64);
    }
    let eager_entry = t.append(MANY, (0x4_0000, 64));
    for n in 0..MANY {
        t.announce(n, data.len(), None);
        t.pair.sent_ok(0, 1);
    }
    t.eager(MANY, &[5; 8]);
    let (mut consumed, mut there, mut eager) = (0, 0, 0);
    for _ in 0..2 * MANY + 1 {
        let (_, report) = t.next();
        match report.what {
            app_op::CONSUMED => consumed += 1,
            app_op::EXPECTED => {
                assert_eq!(u64::from(report.index), there, "in order");
                there += 1;
            }
            app_op::CONSUMED_MSG => {
                assert_eq!(report.index, eager_entry);
                eager += 1;
            }
            other => panic!("{other:#x}"),
        }
    }
    assert_eq!((consumed, there, eager), (MANY, MANY, 1));
    (0..MANY).for_each(|n| _ = t.pair.received_ok(0, n));
    assert!(t.data(0x1000, data.len()) == data);
    t.close();
}

/// Where the adapter doesn't fetch, or the buffer is too small, the headers are in the buffer.
#[test]
pub(crate) fn announcements_left_to_software() {
    for (fetching, room) in [
        (FETCHING, 999),
        (FETCHING, 20),
        (Fetching { queue: false, ..FETCHING }, 4096),
        (Fetching { pair: false, ..FETCHING }, 4096),
    ] {
        let mut t = Tags::loopback(fetching);
        let index = t.append(5, (0x1000, room));
        let headers = t.announce(5, 1000, None);
        t.pair.sent_ok(0, 1);
        let told = t.used(app_op::CONSUMED_MSG_SW_RENDEZVOUS, index, 5);
        let len = room.min(headers.len());
        assert_eq!(told.byte_len as usize, len);
        assert_eq!(t.data(0x1000, len), headers[..len]);
        t.recv(3, 0, 4096);
        let headers = t.announce(6, 1000, None);
        t.pair.sent_ok(0, 1);
        t.received(app_op::UNEXPECTED, 3, headers.len());
        assert_eq!(t.data(0, headers.len()), headers);
        t.close();
    }
}

/// The entry comes back without its data, and the queue pair is in error.
#[test]
pub(crate) fn data_that_will_not_come() {
    // No room for a message that carries its data, in its first packet or later.
    for (room, len) in [(99, 100), (5000, 9000)] {
        let mut t = Tags::loopback(FETCHING);
        let index = t.append(5, (0x1000, room));
        t.send(&[eager(5, 0xabcd).bytes().as_slice(), &pattern(1, len)].concat());
        assert_eq!(t.pair.sent(0).1.syndrome(), Some(Syndrome::RemoteInvalidRequest));
        if len > MTU {
            t.used(app_op::CONSUMED, index, 5);
        }
        t.canceled(index);
        assert_state(&mut t.pair, 1, QpState::Error);
        t.close();
    }
    // What was announced can't be read.
    let mut t = Tags::loopback(FETCHING);
    let index = t.append(5, (0x1000, 100_000));
    t.announce(5, 90_000, Some(Mkey(0x00de_ad00)));
    // It may have been acknowledged or not before the peer failed.
    t.pair.sent(0);
    t.used(app_op::CONSUMED, index, 5);
    t.canceled(index);
    assert_state(&mut t.pair, 1, QpState::Error);
    t.close();
    // The queue pair goes to error before anything is fetched.
    let mut t = Tags::loopback(FETCHING);
    t.receives_only();
    let entries: Vec<u16> = (0..3).map(|tag| t.append(tag, (0x1000, 100))).collect();
    for (tag, index) in (0..3).zip(&entries) {
        t.announce(tag, 90, None);
        t.pair.sent_ok(0, 1);
        t.used(app_op::CONSUMED, *index, tag);
    }
    let home = t.pair.ends[1].home;
    t.pair.hcas[home].qp_to_error(&mut t.pair.ends[1].qp).expect("2ERR_QP");
    entries.iter().for_each(|index| t.canceled(*index));
    t.close();
}

/// A change that can't be made fails its queue pair, and nothing else.
#[test]
pub(crate) fn changes_that_cannot_be_made() {
    let mut t = Tags::loopback(FETCHING);
    let index = t.append(5, (0x1000, 64));
    let own = TagChange::told(ListChange::Append { tag: 6, mask: u64::MAX, next: u16::from(index == 0) });
    assert_eq!(t.change(own, (0, 64)).what, app_op::APPEND);
    // The next one goes where that one is.
    t.post(own, (0, 64));
    let failed = loop {
        if let Some(completion) = t.pair.ends[1].recv_cq.poll() {
            break completion;
        }
        t.pair.hcas[0].wait(None);
    };
    assert_eq!(failed.syndrome(), Some(Syndrome::LocalQpOperation));
    t.eager(5, &[1; 10]);
    t.used(app_op::CONSUMED_MSG, index, 5);
    t.close();
    // A queue pair that receives elsewhere has no list.
    let mut t = Tags::loopback(FETCHING);
    let change = SendOp::Tags(TagChange::told(ListChange::Nothing));
    t.pair.send(0, &SendRequest::new(8, change, &[]));
    assert_eq!(t.pair.sent(0).1.syndrome(), Some(Syndrome::LocalQpOperation));
    t.close();
}

/// An announcement that comes before the queue pair may send is dealt with when it may.
#[test]
pub(crate) fn fetching_waits_for_ready_to_send() {
    let mut t = Tags::loopback(FETCHING);
    t.receives_only();
    let (index, data) = (t.append(5, (0x1000, 3000)), pattern(4, 3000));
    t.pair.fill(0, 0x1000, &data);
    t.pair.recv(0, 60, 0x80_000, 64);
    t.announce(5, data.len(), None);
    t.pair.sent_ok(0, 1);
    t.used(app_op::CONSUMED, index, 5);
    for _ in 0..50 {
        t.pair.hcas[0].wait(None);
    }
    t.silent();
    let home = t.pair.ends[1].home;
    t.pair.hcas[home].qp_to_rts(&mut t.pair.ends[1].qp, &options().rts).expect("RTS");
    t.there(index, data.len());
    assert_eq!(t.data(0x1000, data.len()), data);
    t.pair.received_ok(0, 60);
    t.close();
}
