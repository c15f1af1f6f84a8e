//! The queue pair's state machine: random sequences of transition commands against a small table.

use hca_spec::cmd::QueryQpOut;
use hca_spec::command::{Opcode, OutHeader, Status};
use hca_spec::cqe::{Cqe, Syndrome};
use hca_spec::qpc::{QpState, Qpc};
use hca_tests::fuzz::commands;
use hca_tests::fuzz::two_adapters::TwoAdapters;
use proptest::prelude::*;

/// The arrows of IBTA vol 1 10.3.1 (figure "QP state diagram"): state, command, state.
const ARROWS: [(QpState, Opcode, QpState); 8] = {
    use QpState::*;
    [
        (Reset, Opcode::Rst2InitQp, Init),
        (Init, Opcode::Init2InitQp, Init),
        (Init, Opcode::Init2RtrQp, Rtr),
        (Rtr, Opcode::Rtr2RtsQp, Rts),
        (Rts, Opcode::Rts2RtsQp, Rts),
        (Rts, Opcode::Rts2SqdQp, SqDrained),
        (SqDrained, Opcode::Sqd2SqdQp, SqDrained),
        (SqDrained, Opcode::Sqd2RtsQp, Rts),
    ]
};

/// Commands, the frequent way up more often than the rest.
const COMMANDS: [Opcode; 15] = [
    Opcode::Rst2InitQp,
    Opcode::Rst2InitQp,
    Opcode::Init2RtrQp,
    Opcode::Init2RtrQp,
    Opcode::Rtr2RtsQp,
    Opcode::Rtr2RtsQp,
    Opcode::Rts2SqdQp,
    Opcode::Init2InitQp,
    Opcode::Rts2RtsQp,
    Opcode::SqErr2RtsQp,
    Opcode::Sqd2SqdQp,
    Opcode::Sqd2RtsQp,
    Opcode::ToErrQp,
    Opcode::ToRstQp,
    Opcode::QueryQp,
];

/// Where a command leads. `None`: it is refused.
fn expected(from: QpState, command: Opcode) -> Option<QpState> {
    match command {
        // From any state.
        Opcode::ToErrQp => Some(QpState::Error),
        Opcode::ToRstQp => Some(QpState::Reset),
        Opcode::QueryQp => Some(from),
        _ => ARROWS.iter().find(|a| a.0 == from && a.1 == command).map(|a| a.2),
    }
}

fn state(adapters: &mut TwoAdapters, number: u32) -> QpState {
    let out = adapters.execute(&commands::object(Opcode::QueryQp, number), QueryQpOut::SIZE);
    let out = QueryQpOut::from_prefix_or_zero(&out);
    assert_eq!(out.get(QueryQpOut::STATUS), 0);
    QpState::from_bits(out.qpc().get(Qpc::STATE)).expect("a state")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Of every service type: each command does what the table says, or is refused and changes nothing.
    #[test]
    fn transitions_follow_the_table(
        which in 0usize..10,
        sequence in prop::collection::vec(prop::sample::select(&COMMANDS[..]), 1..40),
    ) {
        let mut adapters = TwoAdapters::new();
        let number = adapters.objects.qps[which].number;
        let mut now = QpState::Rts;
        for command in sequence {
            let input = match command {
                Opcode::ToErrQp | Opcode::ToRstQp | Opcode::QueryQp => commands::object(command, number),
                _ => adapters.objects.transition(command, which),
            };
            let output = adapters.execute(&input, QueryQpOut::SIZE);
            let status = OutHeader::from_prefix_or_zero(&output).get(OutHeader::STATUS);
            let next = expected(now, command);
            let due = if next.is_some() { Status::Ok } else { Status::BadQpState };
            prop_assert_eq!(status, due as u32, "{:?} in {:?}", command, now);
            now = next.unwrap_or(now);
            prop_assert_eq!(state(&mut adapters, number), now, "after {:?}", command);
        }
    }

    /// Whatever was posted when a queue pair goes to error is flushed, once, in order; in RESET it is
    /// dropped in silence.
    #[test]
    fn error_flushes_and_reset_forgets(receives in 0u16..16, error in any::<bool>()) {
        let mut adapters = TwoAdapters::new();
        let qp = adapters.objects.qps[0];
        adapters.ram().put(qp.record, &u32::from(receives).to_be_bytes());
        let command = if error { Opcode::ToErrQp } else { Opcode::ToRstQp };
        adapters.execute(&commands::object(command, qp.number), 16);
        let flushed: Vec<u32> = adapters
            .completions()
            .iter()
            .inspect(|c| assert_eq!(c.get(Cqe::SYNDROME), Syndrome::WorkRequestFlushed as u32))
            .map(|c| c.get(Cqe::WQE_COUNTER))
            .collect();
        let due: Vec<u32> = if error { (0..receives.into()).collect() } else { Vec::new() };
        prop_assert_eq!(flushed, due);
    }
}
