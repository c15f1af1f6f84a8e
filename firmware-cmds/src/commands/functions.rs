//! Which function a command is about: the caller's own, or a virtual one of it.
//!
//! Source: PRM "ENABLE_HCA", "DISABLE_HCA", "SET_HCA_CAP"; the mlx5 driver (`sriov.c: mlx5_device_enable_sriov`, `vport.c:
//! mlx5_vport_set_other_func_cap`) for what a physical function does for its virtual ones.

use hca_spec::caps::General;
use hca_spec::cmd::{FunctionIn, QueryHcaCapIn, SetHcaCapIn};
use hca_spec::command::Status;

use super::row::Call;
use crate::effect::Effect;
use crate::failure::{Failure, bad_param};
use crate::firmware::{Firmware, Snapshot, State};
use crate::function::FunctionId;
use crate::pages::Pages;
use crate::ports::Ports;
use crate::virtual_functions::Capabilities;

/// `embedded_cpu_function`, and what comes with it.
pub(super) const EMBEDDED: Failure =
    bad_param("embedded_cpu_function: the adapter has no processor with functions of its own: must be 0");
const EMBEDDED_VIRTUAL: Failure =
    bad_param("ec_vf_function: the adapter has no processor with functions of its own: must be 0");
const ABSENT: Failure = bad_param("function_id: there is no such virtual function");
const FOREIGN: Failure =
    bad_param("function_id: only the physical function may name another, and this is a virtual one");

/// Which function a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    /// The caller's.
    Own,
    /// The caller's virtual function of that number, from 1. It is there.
    Virtual(u32),
}

/// The function of that number, as the caller names it.
fn numbered(fw: &Firmware, number: u32) -> Result<Function, Failure> {
    if fw.config.function != FunctionId::FIRST {
        return Err(FOREIGN.got(number));
    }
    match fw.ports.virtual_functions.numbered(number) {
        _ if number == 0 => Ok(Function::Own),
        Some(_) => Ok(Function::Virtual(number)),
        None => Err(ABSENT.got(number)),
    }
}

/// That of ENABLE_HCA and DISABLE_HCA. To each function it is itself that has number 0.
pub(super) fn named(fw: &Firmware, call: &Call<'_>) -> Result<Function, Failure> {
    let input = call.view::<FunctionIn>()?;
    if input.get(FunctionIn::EMBEDDED_CPU_FUNCTION) == 1 {
        return Err(EMBEDDED.got(1u32));
    }
    match input.get(FunctionIn::FUNCTION_ID) {
        0 => Ok(Function::Own),
        number => numbered(fw, number),
    }
}

/// An input that may name another function.
pub(super) trait NamesOther {
    /// Whether it does, whether the number is of a processor's virtual functions, and the number.
    fn other(&self) -> (bool, bool, u32);
}

impl NamesOther for QueryHcaCapIn {
    fn other(&self) -> (bool, bool, u32) {
        let is = |field| self.get(field) == 1;
        (
            is(QueryHcaCapIn::OTHER_FUNCTION),
            is(QueryHcaCapIn::EC_VF_FUNCTION),
            self.get(QueryHcaCapIn::FUNCTION_ID),
        )
    }
}

impl NamesOther for SetHcaCapIn {
    fn other(&self) -> (bool, bool, u32) {
        let is = |field| self.get(field) == 1;
        (is(SetHcaCapIn::OTHER_FUNCTION), is(SetHcaCapIn::EC_VF_FUNCTION), self.get(SetHcaCapIn::FUNCTION_ID))
    }
}

/// That of QUERY_HCA_CAP and SET_HCA_CAP: the number counts if the input says that another function is meant.
pub(super) fn other(fw: &Firmware, input: &impl NamesOther) -> Result<Function, Failure> {
    match input.other() {
        (false, ..) => Ok(Function::Own),
        (true, true, _) => Err(EMBEDDED_VIRTUAL.got(1u32)),
        (true, false, number) => numbered(fw, number),
    }
}

/// A virtual function begins when the physical one has enabled it.
pub(super) fn may_begin(fw: &Firmware) -> Result<(), Failure> {
    const WAITS: Failure = Failure::new(
        Status::BadSystemState,
        "ENABLE_HCA: the physical function has not enabled this virtual function",
    );
    let waits = fw.ports.virtual_functions.of(fw.config.function).is_some_and(|own| !own.enabled);
    if waits { Err(WAITS) } else { Ok(()) }
}

/// The function is enabled; a virtual one can do what it was let.
pub(super) fn begin(fw: &mut Firmware) {
    fw.state = State::Enabled;
    if let Some(own) = fw.ports.virtual_functions.of(fw.config.function) {
        let most = own.most;
        fw.general_max = most.general;
        fw.set_current(most.initial(&fw.config));
        fw.granted = Some(Box::new(most));
    }
    tell(fw);
}

/// What a virtual function can do now is kept for its physical one to see.
pub(super) fn tell(fw: &mut Firmware) {
    let now = fw.current();
    if let Some(own) = fw.ports.virtual_functions.of_mut(fw.config.function) {
        own.now = (fw.state != State::Disabled).then_some(now);
    }
}

/// The function is disabled: all that its driver made or set is gone. The virtual functions of a physical one go with it.
pub(super) fn leave(fw: &mut Firmware, effects: &mut Vec<Effect>) {
    let mut left = fw.snapshot();
    if let Some(at_teardown) = fw.teardown_snapshot.take() {
        left = Snapshot { pages: left.pages, ..at_teardown };
    }
    fw.at_last_teardown = Some(left);
    fw.drop_objects(effects);
    fw.ports.sync_reset.hears(fw.config.function, false, effects);
    fw.state = State::Disabled;
    fw.issi = 0;
    fw.set_current(fw.most().initial(&fw.config));
    fw.interrupt_delays.clear();
    let pages = std::mem::replace(&mut fw.pages, Pages::new(fw.config.icm_pages));
    fw.disposal.give(pages);
    fw.forget_driver();
    tell(fw);
    if fw.config.function == FunctionId::FIRST {
        let gone = fw.ports.virtual_functions.drop_all(&fw.ports.config);
        effects.extend(gone.into_iter().map(Effect::FunctionTaken));
    }
}

/// The physical function enables a virtual one, which begins anew if it was enabled.
pub(super) fn enable(fw: &mut Firmware, number: u32, effects: &mut Vec<Effect>) -> Result<(), Failure> {
    const EARLY: Failure =
        Failure::new(Status::BadSystemState, "ENABLE_HCA: function_id: the physical function comes first");
    if fw.state == State::Disabled {
        return Err(EARLY.got(number).exactly(0u32));
    }
    let function = fw.ports.virtual_functions.numbered_mut(number).ok_or(ABSENT.got(number))?;
    if std::mem::replace(&mut function.enabled, true) {
        function.now = None;
        effects.push(Effect::FunctionTaken(function.function));
    }
    Ok(())
}

/// The physical function disables a virtual one. What it was let do stays.
pub(super) fn disable(fw: &mut Firmware, number: u32, effects: &mut Vec<Effect>) -> Result<(), Failure> {
    const IDLE: Failure =
        Failure::new(Status::BadSystemState, "DISABLE_HCA: function_id: the virtual function is not enabled");
    let function = fw.ports.virtual_functions.numbered_mut(number).ok_or(ABSENT.got(number))?;
    if !std::mem::replace(&mut function.enabled, false) {
        return Err(IDLE.got(number));
    }
    function.now = None;
    effects.push(Effect::FunctionTaken(function.function));
    Ok(())
}

/// What a virtual function can do: now, or at most from its next start on. One that is not up has what it would begin with.
pub(super) fn capabilities(fw: &Firmware, number: u32, now: bool) -> Result<Capabilities, Failure> {
    let function = fw.ports.virtual_functions.numbered(number).ok_or(ABSENT.got(number))?;
    Ok(match (now, function.now) {
        (true, Some(now)) => now,
        (true, None) => function.most.initial(&fw.config),
        (false, _) => function.most,
    })
}

/// A virtual function can do that at most, from its next start on.
pub(super) fn grant(fw: &mut Firmware, number: u32, most: Capabilities) -> Result<(), Failure> {
    let function = fw.ports.virtual_functions.numbered_mut(number).ok_or(ABSENT.got(number))?;
    function.most = most;
    Ok(())
}

/// Whether the function has RoCE, which can be taken from a virtual one.
pub(super) fn has_roce(fw: &Firmware) -> bool {
    fw.general_max.get(General::ROCE) == 1
}

impl Firmware {
    /// The physical function has taken this one away: nothing of what its driver made is left. `ports`: of its chip.
    pub fn taken_away(&mut self, ports: &mut Ports, effects: &mut Vec<Effect>) {
        std::mem::swap(&mut self.ports, ports);
        if self.state != State::Disabled {
            leave(self, effects);
        }
        std::mem::swap(&mut self.ports, ports);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::ethernet;
    use crate::firmware::Execution;
    use crate::list::{Input, List};
    use crate::profile::Config;
    use hca_spec::caps::{Atomic, OdpScheme, TYPE_ATOMIC, TYPE_GENERAL, TYPE_ODP, TYPE_ROCE};
    use hca_spec::cmd::QueryHcaCapOut;
    use hca_spec::command::Opcode;
    use hca_spec::nic_vport::{ModifyNicVportContextIn, NicVportContext, nic_vport_select as select};

    /// A physical function and two virtual ones.
    struct Chip {
        ports: Ports,
        functions: Vec<Firmware>,
        effects: Vec<Effect>,
    }

    impl Chip {
        fn new(config: &Config) -> Self {
            let mut ports = Ports::new(config.clone());
            (1..3).for_each(|id| ports.add_virtual_function(FunctionId(id)));
            let of = |id| Firmware::new(Config { function: FunctionId(id), ..config.clone() });
            Self { ports, functions: (0..3).map(of).collect(), effects: Vec::new() }
        }

        fn up(config: &Config) -> Self {
            let mut chip = Self::new(config);
            assert_eq!(chip.hca(0, Opcode::EnableHca, 0), Status::Ok as u8);
            chip
        }

        fn run(&mut self, function: usize, opcode: Opcode, op_mod: u32, input: &[u8]) -> Vec<u8> {
            let mut input = input.to_vec();
            hca_spec::put_be32(&mut input, 0, (opcode as u32) << 16);
            hca_spec::put_be32(&mut input, 4, op_mod);
            let (ports, input) = (&mut self.ports, Input { bytes: &input, list: List::default() });
            let firmware = &mut self.functions[function];
            let done = firmware.execute_at(ports, &|_| true, input, 0x1010, &mut self.effects);
            let Execution::Done(output) = done else { panic!("waits for pages") };
            // What the hardware does.
            for effect in self.effects.clone() {
                if let Effect::FunctionTaken(FunctionId(gone)) = effect {
                    self.effects.retain(|other| *other != effect);
                    self.functions[usize::from(gone)].taken_away(&mut self.ports, &mut self.effects);
                }
            }
            output
        }

        /// ENABLE_HCA or DISABLE_HCA.
        fn hca(&mut self, function: usize, opcode: Opcode, number: u32) -> u8 {
            let mut input = FunctionIn::new();
            input.set(FunctionIn::FUNCTION_ID, number);
            self.run(function, opcode, 0, input.bytes())[0]
        }

        fn query(&mut self, function: usize, other: Option<u32>, op_mod: u32) -> Result<QueryHcaCapOut, u8> {
            let mut input = QueryHcaCapIn::new();
            input.set(QueryHcaCapIn::OTHER_FUNCTION, other.is_some().into());
            input.set(QueryHcaCapIn::FUNCTION_ID, other.unwrap_or(0));
            let output = self.run(function, Opcode::QueryHcaCap, op_mod, input.bytes());
            if output[0] == 0 { Ok(QueryHcaCapOut::from_prefix_or_zero(&output)) } else { Err(output[0]) }
        }

        fn general(&mut self, function: usize, other: Option<u32>, now: u32) -> General {
            *self.query(function, other, TYPE_GENERAL << 1 | now).unwrap().general()
        }

        /// What a physical function's driver does: it reads the most, changes it and writes it back.
        fn grant(&mut self, number: u32, change: impl FnOnce(&mut General)) -> u8 {
            let mut set = SetHcaCapIn::new();
            *set.general_mut() = self.general(0, Some(number), 0);
            change(set.general_mut());
            set.set(SetHcaCapIn::OTHER_FUNCTION, 1).set(SetHcaCapIn::FUNCTION_ID, number);
            self.run(0, Opcode::SetHcaCap, TYPE_GENERAL << 1, set.bytes())[0]
        }
    }

    const BAD_PARAM: u8 = Status::BadParam as u8;
    const BAD_STATE: u8 = Status::BadSystemState as u8;

    /// All numbers, of the physical function and of a virtual one.
    #[test]
    fn every_number_is_a_function_or_refused() {
        let new = || {
            let mut chip = Chip::up(&Config::default());
            assert_eq!(chip.hca(0, Opcode::EnableHca, 2), 0);
            assert_eq!(chip.hca(2, Opcode::EnableHca, 0), 0);
            chip
        };
        for opcode in [Opcode::EnableHca, Opcode::DisableHca] {
            for number in 0..3 {
                let expected = match (opcode, number) {
                    // It is there, and not enabled.
                    (Opcode::DisableHca, 1) => BAD_STATE,
                    _ => 0,
                };
                assert_eq!(new().hca(0, opcode, number), expected, "{opcode:?} {number}");
            }
            // What is refused changes nothing.
            let mut chip = new();
            for number in 1..=0xffff {
                let absent = number > 2;
                assert!(!absent || chip.hca(0, opcode, number) == BAD_PARAM, "{opcode:?} {number}");
                assert_eq!(
                    chip.hca(2, opcode, number),
                    BAD_PARAM,
                    "{opcode:?} {number} of a virtual function"
                );
            }
            assert_eq!(chip.functions[2].state(), State::Enabled);
        }
        let mut chip = Chip::up(&Config::default());
        for (opcode, number) in [Opcode::EnableHca, Opcode::DisableHca].into_iter().zip([0, 1]) {
            let mut input = FunctionIn::new();
            input.set(FunctionIn::EMBEDDED_CPU_FUNCTION, 1).set(FunctionIn::FUNCTION_ID, number);
            assert_eq!(chip.run(0, opcode, 0, input.bytes())[0], BAD_PARAM, "no such processor");
        }
    }

    #[test]
    fn a_virtual_function_waits_for_the_physical_one() {
        let mut chip = Chip::new(&Config::default());
        assert_eq!(chip.hca(0, Opcode::EnableHca, 1), BAD_STATE, "the physical one comes first");
        assert_eq!(chip.hca(1, Opcode::EnableHca, 0), BAD_STATE);
        assert_eq!(chip.hca(0, Opcode::EnableHca, 0), 0);
        assert_eq!(chip.hca(1, Opcode::EnableHca, 0), BAD_STATE);
        assert_eq!(chip.hca(0, Opcode::EnableHca, 1), 0);
        assert_eq!(chip.hca(1, Opcode::EnableHca, 0), 0);
        assert_eq!(chip.hca(2, Opcode::EnableHca, 0), BAD_STATE, "another one");
        let states = |chip: &Chip| chip.functions.iter().map(Firmware::state).collect::<Vec<_>>();
        assert_eq!(states(&chip), [State::Enabled, State::Enabled, State::Disabled]);
        for end in [Opcode::EnableHca, Opcode::DisableHca] {
            assert_eq!(chip.hca(0, end, 1), 0, "it is taken away, with its driver's work");
            assert_eq!(states(&chip), [State::Enabled, State::Disabled, State::Disabled]);
            let again = chip.hca(1, Opcode::EnableHca, 0);
            assert_eq!(again, if end == Opcode::EnableHca { 0 } else { BAD_STATE });
        }
        assert_eq!(chip.hca(0, Opcode::EnableHca, 1), 0);
        assert_eq!(chip.hca(1, Opcode::EnableHca, 0), 0);
        assert_eq!(chip.hca(0, Opcode::DisableHca, 0), 0, "all of them go");
        assert_eq!(states(&chip), [State::Disabled; 3]);
        assert_eq!(chip.hca(0, Opcode::EnableHca, 0), 0);
        assert_eq!(chip.hca(1, Opcode::EnableHca, 0), BAD_STATE);
    }

    /// What is set is read back at once, and seen by the virtual function from its next start on.
    #[test]
    fn a_virtual_function_can_do_what_it_was_let() {
        let mut chip = Chip::up(&ethernet());
        let before = chip.general(0, Some(1), 0);
        assert_eq!((before, before), (chip.general(0, None, 0), chip.general(0, Some(2), 0)));
        chip.hca(0, Opcode::EnableHca, 1);
        chip.hca(1, Opcode::EnableHca, 0);
        let smaller = |c: &mut General| _ = c.set(General::LOG_MAX_QP, 10).set(General::ROCE, 0);
        assert_eq!(chip.grant(1, smaller), 0);
        let mut expected = before;
        smaller(&mut expected);
        assert_eq!(chip.general(0, Some(1), 0), expected, "read back");
        assert_eq!(chip.general(0, Some(2), 0), before, "of the other one nothing");
        assert_eq!(chip.general(0, None, 0), before, "nor of the physical one");
        assert_eq!(chip.general(1, None, 0), before, "not while it is up");
        assert_eq!(chip.general(0, Some(1), 1), chip.general(1, None, 1), "what it can do now");

        let roce = |chip: &mut Chip| {
            let mut on = ModifyNicVportContextIn::new();
            on.set(ModifyNicVportContextIn::FIELD_SELECT, select::ROCE_EN);
            on.context_mut().set(NicVportContext::ROCE_EN, 1);
            let pages = chip.query(1, None, TYPE_ROCE << 1).unwrap();
            let functions = &mut chip.functions[1];
            functions.state = State::Initialized;
            let has = pages.bytes()[0x10..].iter().any(|byte| *byte != 0);
            (has, chip.run(1, Opcode::ModifyNicVportContext, 0, on.bytes())[0])
        };
        assert_eq!(roce(&mut chip), (true, 0));
        chip.hca(1, Opcode::DisableHca, 0);
        chip.hca(1, Opcode::EnableHca, 0);
        assert_eq!(chip.general(1, None, 0), expected, "from its next start on");
        assert_eq!(chip.general(1, None, 1).get(General::LOG_MAX_QP), 10);
        assert_eq!(roce(&mut chip), (false, BAD_PARAM), "what it was not let do is refused");
        chip.hca(1, Opcode::DisableHca, 0);
        chip.hca(1, Opcode::EnableHca, 0);

        // It may use less of it, which the physical one sees, and no more.
        let mut set = SetHcaCapIn::new();
        for (queue_pairs, status) in [(11, BAD_PARAM), (9, 0)] {
            *set.general_mut() = chip.general(1, None, 1);
            set.general_mut().set(General::LOG_MAX_QP, queue_pairs);
            assert_eq!(chip.run(1, Opcode::SetHcaCap, 0, set.bytes())[0], status);
        }
        let queue_pairs = |c: General| c.get(General::LOG_MAX_QP);
        assert_eq!(queue_pairs(chip.general(0, Some(1), 1)), 9);
        assert_eq!(queue_pairs(chip.general(0, Some(1), 0)), 10);

        // All of it, and not more than the adapter has.
        assert_eq!(chip.grant(1, |c| _ = c.set(General::LOG_MAX_QP, 19)), BAD_PARAM);
        assert_eq!(chip.grant(1, |c| _ = c.set(General::ROCE, 1).set(General::LOG_MAX_QP, 18)), 0);
        assert_eq!(chip.general(0, Some(1), 0), before);
        let mut ib = Chip::up(&Config::default());
        assert_eq!(ib.grant(1, |c| _ = c.set(General::ROCE, 1)), BAD_PARAM, "InfiniBand has none");
    }

    #[test]
    fn other_groups_of_a_virtual_function() {
        let mut chip = Chip::up(&Config::default());
        let mut set = SetHcaCapIn::new();
        set.set(SetHcaCapIn::OTHER_FUNCTION, 1).set(SetHcaCapIn::FUNCTION_ID, 2);
        set.odp_mut().transport_mut().set(OdpScheme::RC, 1);
        assert_eq!(chip.run(0, Opcode::SetHcaCap, TYPE_ODP << 1, set.bytes())[0], 0);
        let mut set = SetHcaCapIn::new();
        set.set(SetHcaCapIn::OTHER_FUNCTION, 1).set(SetHcaCapIn::FUNCTION_ID, 2);
        set.atomic_mut().set(Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE, 1);
        assert_eq!(chip.run(0, Opcode::SetHcaCap, TYPE_ATOMIC << 1, set.bytes())[0], 0);
        chip.hca(0, Opcode::EnableHca, 2);
        chip.hca(2, Opcode::EnableHca, 0);
        for (function, other) in [(0, Some(2)), (2, None)] {
            let odp = *chip.query(function, other, TYPE_ODP << 1).unwrap().odp();
            let transport = odp.transport();
            let paged = (transport.get(OdpScheme::RC), transport.get(OdpScheme::UD));
            assert_eq!(paged, (1, 0), "{other:?}");
            let atomic = *chip.query(function, other, TYPE_ATOMIC << 1 | 1).unwrap().atomic();
            assert_eq!(atomic.get(Atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE), 1, "{other:?}");
        }
        let odp = *chip.query(0, None, TYPE_ODP << 1).unwrap().odp();
        assert_ne!(odp.transport().get(OdpScheme::UD), 0, "the physical one pages as before");
        let mut set = SetHcaCapIn::new();
        *set.odp_mut() = odp;
        assert_eq!(chip.run(2, Opcode::SetHcaCap, TYPE_ODP << 1, set.bytes())[0], BAD_PARAM, "not let");
    }

    /// Whoever asks for another function's capabilities, with every number.
    #[test]
    fn capabilities_of_absent_and_foreign_functions() {
        let mut chip = Chip::up(&Config::default());
        chip.hca(0, Opcode::EnableHca, 1);
        chip.hca(1, Opcode::EnableHca, 0);
        let own = chip.general(0, None, 0);
        assert_eq!(chip.general(0, Some(0), 0), own, "by number 0 it means itself");
        for number in 0..=0xffff {
            let answer = chip.query(0, Some(number), 0).map(drop);
            assert_eq!(answer, if number <= 2 { Ok(()) } else { Err(BAD_PARAM) }, "{number}");
            assert_eq!(chip.query(1, Some(number), 0).map(drop), Err(BAD_PARAM), "a virtual one asks");
        }
        let mut set = SetHcaCapIn::new();
        *set.general_mut() = own;
        for (function, other, embedded, number, status) in [
            (0, 1, 0, 3, BAD_PARAM),
            (0, 1, 1, 1, BAD_PARAM),
            (1, 1, 0, 0, BAD_PARAM),
            // The number is nothing without its bit.
            (0, 0, 1, 3, 0),
            (1, 0, 0, 7, 0),
        ] {
            set.set(SetHcaCapIn::OTHER_FUNCTION, other).set(SetHcaCapIn::EC_VF_FUNCTION, embedded);
            set.set(SetHcaCapIn::FUNCTION_ID, number);
            let got = chip.run(function, Opcode::SetHcaCap, 0, set.bytes())[0];
            assert_eq!(got, status, "{function} {other} {embedded} {number}");
        }
        let mut query = QueryHcaCapIn::new();
        query.set(QueryHcaCapIn::OTHER_FUNCTION, 1).set(QueryHcaCapIn::EC_VF_FUNCTION, 1);
        assert_eq!(chip.run(0, Opcode::QueryHcaCap, 0, query.bytes())[0], BAD_PARAM);
    }
}
