//! Host pages. Source: PRM "QUERY_PAGES", "MANAGE_PAGES".

use hca_spec::cmd::{
    FunctionIn, ManagePagesOut, PAGES_BOOT, PAGES_CANT_GIVE, PAGES_GIVE, PAGES_INIT, PAGES_REGULAR,
    PAGES_TAKE, QueryPagesOut,
};
use hca_spec::command::Status;

use super::call::{addresses, done, reply};
use super::fixture::{Fixture, input};
use super::functions::EMBEDDED;
use super::row::{Call, Outcome};
use crate::failure::{Failure, bad_param, no_room};
use crate::firmware::Firmware;
use crate::pages::NotTaken;

/// Each function has its pages from its own driver, virtual ones too.
const SELF_ONLY: Failure = bad_param("function_id: a function gives its own pages only: must be 0");

fn check_function(call: &Call<'_>) -> Result<(), Failure> {
    let input = call.view::<FunctionIn>()?;
    if input.get(FunctionIn::EMBEDDED_CPU_FUNCTION) == 1 {
        return Err(EMBEDDED.got(1u32));
    }
    match input.get(FunctionIn::FUNCTION_ID) {
        0 => Ok(()),
        other => Err(SELF_ONLY.got(other)),
    }
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    const WHICH: Failure = bad_param("QUERY_PAGES: op_mod must be 1 (boot), 2 (init) or 3 (regular)");
    check_function(call)?;
    let pages = match call.op_mod {
        PAGES_BOOT => fw.pages.boot(),
        PAGES_INIT => fw.pages.init(),
        PAGES_REGULAR => fw.pages.regular(),
        other => return Err(WHICH.got(other)),
    };
    Ok(reply(QueryPagesOut::new().set(QueryPagesOut::NUM_PAGES, pages)))
}

pub(super) fn manage(fw: &mut Firmware, call: &Call<'_>) -> Outcome {
    const WHICH: Failure = bad_param("MANAGE_PAGES: op_mod must be 0 (can't give), 1 (give) or 2 (take)");
    check_function(call)?;
    let n = call.view::<FunctionIn>()?.get(FunctionIn::INPUT_NUM_ENTRIES);
    match call.op_mod {
        PAGES_CANT_GIVE => {
            fw.pages.cant_give();
            Ok(done())
        }
        PAGES_GIVE => give(fw, call, n),
        PAGES_TAKE => {
            // No more than the output has room for: a page that is not named would be lost.
            let room = call.output_len.saturating_sub(ManagePagesOut::SIZE) / 8;
            let pages = fw.pages.take(n.min(room as u32));
            let mut out = ManagePagesOut::new();
            out.set(ManagePagesOut::OUTPUT_NUM_ENTRIES, pages.len() as u32);
            let mut out = reply(&out);
            pages.iter().for_each(|page| out.extend_from_slice(&page.to_be_bytes()));
            Ok(out)
        }
        other => Err(WHICH.got(other)),
    }
}

fn give(fw: &mut Firmware, call: &Call<'_>, n: u32) -> Outcome {
    const SHORT_LIST: Failure =
        Failure::new(Status::BadInputLength, "MANAGE_PAGES: the list is shorter than input_num_entries");
    const UNALIGNED: Failure = bad_param("MANAGE_PAGES: pas: a page address must be a multiple of 4096");
    const NOWHERE: Failure = bad_param("MANAGE_PAGES: pas: a page must be in the host's memory");
    const TWICE: Failure = bad_param("MANAGE_PAGES: pas: a page must be given once");
    const MANY: Failure = no_room(
        "MANAGE_PAGES: input_num_entries: more pages than the firmware can use, or than 16384 at a time",
    );
    let list = call.input.get(FunctionIn::SIZE..).unwrap_or_default();
    if (list.len() / 8) < n as usize {
        return Err(SHORT_LIST.got(list.len() as u64 / 8).least(n));
    }
    // Before any of them is looked at: to find the window of each costs more than to name it.
    if !fw.pages.takes(n as usize) {
        return Err(MANY.got(n));
    }
    let pages = addresses(list).take(n as usize);
    if let Some(page) = pages.clone().find(|p| p % 4096 != 0) {
        return Err(UNALIGNED.got(page));
    }
    if let Some(page) = pages.clone().find(|page| !(call.reaches)(*page)) {
        return Err(NOWHERE.got(page));
    }
    fw.pages.give(n as usize, pages).map_err(|why| match why {
        NotTaken::Twice(page) => TWICE.got(page),
        NotTaken::TooMany => MANY.got(n),
    })?;
    Ok(done())
}

/// QUERY_PAGES: those to boot with.
pub(super) fn query_template(_: &Fixture) -> Vec<u8> {
    input(FunctionIn::new().bytes(), PAGES_BOOT, [])
}

/// MANAGE_PAGES: gives some.
pub(super) fn manage_template(fixture: &Fixture) -> Vec<u8> {
    let mut give = FunctionIn::new();
    give.set(FunctionIn::INPUT_NUM_ENTRIES, Fixture::PAGES);
    input(give.bytes(), PAGES_GIVE, (0..Fixture::PAGES).map(|i| fixture.pages + (u64::from(i) << 12)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Effect;
    use crate::commands::testing::Bench;
    use crate::firmware::Execution;
    use crate::pages::MOST_AT_ONCE;
    use hca_spec::command::Opcode;

    fn wanted(b: &mut Bench, which: u32) -> u32 {
        let r = b.run(Opcode::QueryPages, which, &[], 16);
        assert_eq!(r.status(), Status::Ok);
        hca_spec::be32(&r.output, 0xc)
    }

    /// The start of the stock driver: boot pages, then those to initialize.
    #[test]
    fn pages_to_start_with() {
        let mut b = Bench::new();
        b.ok(Opcode::EnableHca, 0);
        assert_eq!(b.object(Opcode::InitHca, 0).status(), Status::NoResources, "without pages");
        for which in [PAGES_BOOT, PAGES_INIT] {
            let n = wanted(&mut b, which);
            assert!((1..1024).contains(&n));
            b.give_pages(n);
            assert_eq!(wanted(&mut b, which), 0);
        }
        b.ok(Opcode::InitHca, 0);
        assert_eq!(wanted(&mut b, PAGES_REGULAR), 0);
        assert_eq!(b.run(Opcode::QueryPages, 9, &[], 16).status(), Status::BadParam);
        assert_eq!(b.run(Opcode::QueryPages, 1, &[0, 0, 0, 1], 16).status(), Status::BadParam);
    }

    #[test]
    fn bad_lists() {
        let mut b = Bench::new();
        b.ok(Opcode::EnableHca, 0);
        let give = |b: &mut Bench, body: &[u8]| b.run(Opcode::ManagePages, PAGES_GIVE, body, 16).status();
        assert_eq!(give(&mut b, &[0; 8]), Status::Ok, "no page is legal: old drivers do it");
        assert_eq!(give(&mut b, &[0, 0, 0, 0, 0, 0, 0, 1]), Status::BadInputLength);
        let body = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x10, 1];
        assert_eq!(give(&mut b, &body), Status::BadParam, "not on a page");
        assert_eq!(give(&mut b, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), Status::BadInputLength);
        let body = [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0];
        assert_eq!(give(&mut b, &body), Status::BadParam, "twice");
        // So many that none is looked at: that these are nowhere is not found out.
        let many = (MOST_AT_ONCE + 1).to_be_bytes();
        let nowhere = (0..=u64::from(MOST_AT_ONCE)).flat_map(|i| ((1 << 63) + (i << 12)).to_be_bytes());
        let body: Vec<u8> = [0; 4].into_iter().chain(many).chain(nowhere).collect();
        assert_eq!(give(&mut b, &body), Status::ExceedLimit);
        assert_eq!(b.fw.resources().now.pages, 0);
    }

    /// After TEARDOWN_HCA everything comes back, and only what the output has room for.
    #[test]
    fn pages_go_home() {
        let mut b = Bench::initialized();
        b.connection();
        let given = b.fw.resources().now.pages;
        b.ok(Opcode::TeardownHca, 0);
        let take = |b: &mut Bench, n: u32, output_len| {
            let mut body = [0; 8];
            body[4..].copy_from_slice(&n.to_be_bytes());
            let r = b.run(Opcode::ManagePages, PAGES_TAKE, &body, output_len);
            assert_eq!(r.output.len() as u32, 16 + 8 * hca_spec::be32(&r.output, 8));
            hca_spec::be32(&r.output, 8)
        };
        assert_eq!(take(&mut b, 768, 16 + 5 * 8), 5);
        let mut left = given - 5;
        while left > 0 {
            let n = take(&mut b, 100, 16 + 100 * 8);
            assert_eq!(n, left.min(100));
            left -= n;
        }
        assert_eq!(take(&mut b, 100, 16 + 100 * 8), 0);
        b.ok(Opcode::DisableHca, 0);
        assert_eq!(b.fw.resources().at_last_teardown.map(|s| s.pages), Some(0));
    }

    /// Objects use pages up; the host is asked before and, at the very end, commands wait.
    #[test]
    fn pages_run_out() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        b.page_eq(rc.uar);
        let mut asked = None;
        let parked = (0..100_000).any(|_| {
            let execution = b.try_qp(&rc);
            for effect in b.effects.drain(..) {
                if let Effect::PageRequest { pages } = effect {
                    assert_eq!(asked.replace(pages), None, "one question at a time");
                }
            }
            execution == Execution::NeedPages
        });
        assert!(parked);
        let asked = asked.expect("asked before the end") as u32;
        assert_eq!(wanted(&mut b, PAGES_REGULAR), asked);

        // The host can't: the command that waited fails, and the next one asks again.
        b.ok_mod(Opcode::ManagePages, PAGES_CANT_GIVE);
        let Execution::Done(out) = b.try_qp(&rc) else { panic!("still waiting") };
        assert_eq!(out[0], Status::ExceedLimit as u8);
        assert_eq!(b.try_qp(&rc), Execution::NeedPages);
        assert!(b.effects.iter().any(|e| matches!(e, Effect::PageRequest { .. })));
        b.give_pages(asked);
        let Execution::Done(out) = b.try_qp(&rc) else { panic!("still waiting") };
        assert_eq!(out[0], Status::Ok as u8);

        let used = b.fw.pages.used();
        let free = b.fw.resources().now.pages - used;
        assert!(free < asked, "pages in use stay with the adapter");
    }

    /// Without an event queue for page requests nobody would hear the question.
    #[test]
    fn nobody_listens() {
        let mut b = Bench::initialized();
        let rc = b.connection();
        let refused = loop {
            match b.try_qp(&rc) {
                Execution::Done(out) if out[0] == 0 => {}
                other => break other,
            }
        };
        let Execution::Done(out) = refused else { panic!("waits for ever") };
        assert_eq!(out[0], Status::ExceedLimit as u8);
        assert!(!b.effects.iter().any(|e| matches!(e, Effect::PageRequest { .. })));
    }
}
