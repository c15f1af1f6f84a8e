//! Event queues. Source: PRM "CREATE_EQ", "DESTROY_EQ", "QUERY_EQ".

use hca_spec::caps::General;
use hca_spec::cmd::{CreateEqIn, QueryEqOut};
use hca_spec::ids::Eqn;
use hca_spec::put_be64;
use hca_spec::queue::Eqc;

use super::call::{check_uar, done, named, reply, with_pages};
use super::fixture::{Fixture, input};
use super::row::{Call, Outcome};
use crate::effect::Effect;
use crate::failure::{Failure, bad_param, bad_resource, busy, no_room};
use crate::firmware::Firmware;
use crate::icm::Eq;
use crate::object::Kind;

const NO_EQ: Failure = bad_resource("there is no EQ of that number");
/// EQE size in bytes.
const EQE: u64 = 64;

pub(super) fn create(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const SIZE: Failure = bad_param("CREATE_EQ: log_eq_size is above log_max_eq_sz");
    const UAR: Failure = bad_resource("CREATE_EQ: uar_page: the UAR page is not allocated");
    const VECTOR: Failure = bad_param("CREATE_EQ: intr: the adapter has no such MSI-X vector");
    const FULL: Failure = no_room("CREATE_EQ: every EQ is in use");
    let create = call.view::<CreateEqIn>()?;
    let mut ctx = *create.eqc();
    let log_size = ctx.get(Eqc::LOG_EQ_SIZE);
    let limit = fw.general.get(General::LOG_MAX_EQ_SZ);
    if log_size > limit {
        return Err(SIZE.got(log_size).limit(limit));
    }
    check_uar(fw, ctx.get(Eqc::UAR_PAGE), UAR)?;
    let (vector, vectors) = (ctx.get(Eqc::INTR), fw.personality().pci.msix_vectors);
    if vector >= vectors.into() {
        return Err(VECTOR.got(vector).limit(vectors.saturating_sub(1)));
    }
    let buffer = call.buffer(ctx.get(Eqc::LOG_PAGE_SIZE), ctx.get(Eqc::PAGE_OFFSET), EQE << log_size)?;
    let pages = buffer.pages().len();
    let events = [
        create.get(CreateEqIn::EVENT_BITMASK_0),
        create.get(CreateEqIn::EVENT_BITMASK_1),
        create.get(CreateEqIn::EVENT_BITMASK_2),
        create.get(CreateEqIn::EVENT_BITMASK_3),
    ];
    ctx.set(Eqc::STATUS, 0);
    let number = fw.icm.eqs.insert(Eq { ctx, events, buffer, users: 0 }).map_err(|_| FULL)?;
    fw.icm.count_pages(pages);
    effects.push(Effect::EqCreated(Eqn(number as u8)));
    named(number)
}

pub(super) fn destroy(fw: &mut Firmware, call: &Call<'_>, effects: &mut Vec<Effect>) -> Outcome {
    const USED: Failure = busy("DESTROY_EQ: CQs still report to the EQ");
    let number = call.number();
    let users = fw.icm.eqs.get(number).ok_or(NO_EQ.of(number))?.users;
    if users > 0 {
        return Err(USED.of(number).got(users));
    }
    let eq = fw.icm.eqs.remove(number).ok_or(NO_EQ.of(number))?;
    fw.icm.uncount_pages(eq.buffer.pages().len());
    effects.push(Effect::EqDestroyed(Eqn(number as u8)));
    Ok(done())
}

pub(super) fn query(fw: &Firmware, call: &Call<'_>) -> Outcome {
    let number = call.number();
    let eq = fw.icm.eqs.get(number).ok_or(NO_EQ.of(number))?;
    let mut out = QueryEqOut::new();
    *out.eqc_mut() = eq.ctx;
    let mut out = reply(&out);
    for (i, mask) in eq.events.iter().enumerate() {
        put_be64(&mut out, QueryEqOut::EVENT_BITMASK_0.offset() + i * 8, *mask);
    }
    Ok(with_pages(out, &eq.buffer))
}

pub(super) fn create_template(fixture: &Fixture) -> Vec<u8> {
    let mut create = CreateEqIn::new();
    create.eqc_mut().set(Eqc::LOG_EQ_SIZE, Fixture::LOG_QUEUE).set(Eqc::UAR_PAGE, fixture.number(Kind::Uar));
    input(create.bytes(), 0, [fixture.queue])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::Bench;
    use hca_spec::command::{Opcode, Status};
    use hca_spec::eqe::EventType;

    /// The driver's command EQ, byte by byte: 256 entries, 4 pages, events 0x0a only.
    #[test]
    fn golden_command_eq() {
        let mut b = Bench::initialized();
        let uar = b.alloc(Opcode::AllocUar);
        let mut input = vec![0; 0x110 + 4 * 8];
        input[..4].copy_from_slice(&[0x03, 0x01, 0, 0]);
        input[0x1c..0x20].copy_from_slice(&(8 << 24 | uar).to_be_bytes());
        input[0x24..0x28].copy_from_slice(&[0, 0, 0, 3]);
        input[0x58..0x60].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0x04, 0]);
        for (i, pas) in input[0x110..].chunks_exact_mut(8).enumerate() {
            pas.copy_from_slice(&(0x10_0000u64 + ((i as u64) << 12)).to_be_bytes());
        }
        let r = b.raw(&input, 16);
        assert_eq!(r.status(), Status::Ok);
        let n = r.number();
        assert_eq!(b.effects, [Effect::EqCreated(Eqn(n as u8))]);
        let eq = b.fw.icm.eqs.get(n).unwrap();
        assert!(eq.wants(EventType::CommandCompletion as u8) && !eq.wants(EventType::PortChange as u8));
        assert_eq!((eq.buffer.len(), eq.buffer.at(0x3000)), (256 * 64, Some((0x10_3000, 0x1000))));

        let r = b.object_into(Opcode::QueryEq, n, 0x110 + 32);
        assert_eq!(r.output[0x10..], input[0x10..], "what was created is what is read");
        assert_eq!(
            b.object_into(Opcode::QueryEq, n, 0x10f).output[..],
            r.output[..0x10f],
            "cut off where the room ends"
        );
        b.ok(Opcode::DestroyEq, n);
        assert_eq!(b.object(Opcode::DestroyEq, n).status(), Status::BadResource);
    }

    #[test]
    fn refusals() {
        let mut b = Bench::initialized();
        let uar = b.alloc(Opcode::AllocUar);
        let mut try_eq = |change: fn(&mut CreateEqIn), pages: usize| {
            let mut c = CreateEqIn::new();
            c.eqc_mut().set(Eqc::LOG_EQ_SIZE, 7).set(Eqc::UAR_PAGE, uar);
            change(&mut c);
            b.put_list(Opcode::CreateEq, &c, &vec![0x1000; pages]).status()
        };
        assert_eq!(try_eq(|_| {}, 2), Status::Ok);
        assert_eq!(try_eq(|_| {}, 1), Status::BadInputLength);
        assert_eq!(try_eq(|c| _ = c.eqc_mut().set(Eqc::LOG_EQ_SIZE, 23), 2), Status::BadParam);
        assert_eq!(try_eq(|c| _ = c.eqc_mut().set(Eqc::LOG_PAGE_SIZE, 31), 2), Status::BadParam);
        assert_eq!(try_eq(|c| _ = c.eqc_mut().set(Eqc::INTR, 64), 2), Status::BadParam);
        assert_eq!(try_eq(|c| _ = c.eqc_mut().set(Eqc::UAR_PAGE, 3), 2), Status::BadResource);
        let numbers = (0..200).take_while(|_| try_eq(|_| {}, 2) == Status::Ok).count();
        assert_eq!(numbers, 126, "127 in all");
    }
}
