//! Commands for the firmware alone.

use hca_firmware::personality::Personality;
use hca_firmware::{Config, Effect, Execution, Firmware, PortKind, PortLink};
use hca_spec::cmd::{AccessRegIn, ObjectOut, reg};
use hca_spec::command::{InHeader, Opcode, OutHeader};
use hca_spec::ids::Lid;

use super::commands;
use super::feed::Feed;
use super::memory;
use super::objects::{Executor, Objects, bring_up, good};

/// Commands of one input.
const MOST: usize = 64;
/// Longest output that is asked for.
const OUTPUT: usize = 0x2000;

pub(super) struct Direct {
    pub(super) firmware: Firmware,
    pub(super) effects: Vec<Effect>,
}

impl Executor for Direct {
    fn execute(&mut self, input: &[u8], output_len: usize) -> Vec<u8> {
        match self.firmware.execute(input, output_len, &mut self.effects) {
            Execution::Done(output) => output,
            Execution::NeedPages => Vec::new(),
        }
    }
}

/// An adapter's firmware that has every command of its link layer, up to INIT_HCA, and objects of every kind.
pub(super) fn direct(port_kind: PortKind) -> (Direct, Objects) {
    let personality = Personality::named("connectx6dx").expect("the one with the most commands");
    let config =
        Config { personality, blueflame: true, memory_page_faults: true, port_kind, ..Config::default() };
    let mut e = Direct { firmware: Firmware::new(config), effects: Vec::new() };
    e.firmware.ports.set_link(1, Some(PortLink::default()), &mut e.effects);
    bring_up(&mut e);
    let objects = Objects::create(&mut e, Lid(1));
    (e, objects)
}

/// What becomes of each template ([`commands::templates`]) on an adapter as the fuzzers have it: command and status.
pub fn template_statuses() -> Vec<(&'static str, u32)> {
    let of_kind = |kind: PortKind| {
        let (adapter, objects) = direct(kind);
        let offered = |input: &Vec<u8>| {
            let register = AccessRegIn::from_prefix_or_zero(input).get(AccessRegIn::REGISTER_ID);
            let command = commands::row_of(input);
            let of_other_ports = command.is_some_and(|command| command.opcode == Opcode::AccessReg)
                && register == reg::PCAP
                && kind == PortKind::Ethernet;
            !of_other_ports && command.is_none_or(|command| (command.offered)(&adapter.firmware))
        };
        let templates: Vec<_> = commands::templates(&objects).into_iter().filter(offered).collect();
        templates.into_iter().map(move |input| {
            let output = direct(kind).0.execute(&input, OUTPUT);
            let name = commands::row_of(&input).map_or("unknown", |command| command.name);
            (name, OutHeader::from_prefix_or_zero(&output).get(OutHeader::STATUS))
        })
    };
    [PortKind::InfiniBand, PortKind::Ethernet].into_iter().flat_map(of_kind).collect()
}

/// Runs an adapter's firmware, up to INIT_HCA and with objects of every kind, on commands made of `data`.
///
/// # Panics
/// If the firmware does, or breaks a promise: an output is never longer than asked for, always has a
/// status, and a good adapter comes up again afterwards.
pub fn command_mailbox(data: &[u8]) {
    let mut feed = Feed::new(data);
    let kind = feed.pick(&[PortKind::InfiniBand, PortKind::Ethernet]);
    let (mut e, objects) = direct(kind);
    if feed.one_in(2) {
        // The host listens to page requests: commands may have to wait.
        let mask = 1 << 0xb;
        good(&mut e, &commands::create_eq(objects.uar, 0, mask, memory::EQ), ObjectOut::SIZE);
    }
    let templates = commands::templates(&objects);
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        run_one(&mut e, &mut feed, &templates);
        e.effects.clear();
    }
    // What the commands did to the adapter is over with DISABLE_HCA.
    for opcode in [Opcode::TeardownHca, Opcode::DisableHca] {
        e.execute(&commands::object(opcode, 0), OutHeader::SIZE);
    }
    let now = e.firmware.resources().now;
    assert_eq!(now, Default::default(), "objects survived DISABLE_HCA");
    bring_up(&mut e);
    Objects::create(&mut e, Lid(1));
}

fn run_one(e: &mut Direct, feed: &mut Feed<'_>, templates: &[Vec<u8>]) {
    let mut input = if feed.one_in(32) {
        let len = feed.below(256);
        feed.bytes(len).to_vec()
    } else {
        commands::pick(feed, templates)
    };
    match feed.below(8) {
        0 => input.truncate(usize::from(feed.u16()) % (input.len() + 1)),
        1 => input.resize(input.len() + usize::from(feed.u8()) * 16, feed.u8()),
        _ => {}
    }
    // Mostly the fields, seldom the opcode.
    let fixed = if feed.one_in(8) { 0 } else { InHeader::OP_MOD.offset() };
    if let Some(fields) = input.get_mut(fixed..) {
        if feed.one_in(2) {
            // Most fields of most commands lie in the first bytes.
            let n = fields.len().min(0x60);
            feed.mutate(&mut fields[..n], 4);
        } else {
            feed.mutate(fields, 6);
        }
    }
    let output_len = if feed.one_in(4) { usize::from(feed.u16()) % OUTPUT } else { OUTPUT };
    match e.firmware.execute(&input, output_len, &mut e.effects) {
        Execution::Done(output) => {
            assert!(output.len() <= output_len.max(8), "{} bytes, {output_len} asked for", output.len());
            assert!(output.len() >= output_len.min(8), "no status: {output:02x?}");
        }
        Execution::NeedPages => {
            let pages = commands::give_pages(feed.u64() >> 40, 512);
            e.execute(&pages, OutHeader::SIZE);
        }
    }
}
