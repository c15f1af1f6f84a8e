//! What is in a cage fails or is pulled out, and the chip gets hot: what drivers are told, and what registers say.

use hca_driver::{Event, Hca};
use hca_model::fault::{Fault, FaultId, Lasting, ModuleError, TimeAction, Trigger, What};
use hca_model::link::Faults;
use hca_model::{HcaId, Ps};
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::eqe::{module_error, module_status, port_change};
use hca_spec::management::Mtmp;
use hca_spec::module::Pmaos;
use hca_spec::register::{Mcia, mcia_status};
use hca_tests::in_process::{ModelBus, Simulation};
use hca_tests::pair::{Options, Pair};
use hca_tests::rig::{drain_events, linked};

/// How long a fault lasts, and when its end has been noticed.
const LASTING: Ps = Ps::from_ms(1);
const AFTER: Ps = Ps::from_ms(5000);

fn pair() -> (Simulation, Pair<ModelBus>) {
    let mut pair = linked(&Options::default(), Faults::default(), 1);
    pair.hcas.iter_mut().for_each(|hca| drop(drain_events(hca)));
    let simulation = pair.hcas[0].bus_mut().simulation().clone();
    (simulation, pair)
}

fn add(simulation: &Simulation, action: TimeAction) -> FaultId {
    let what = What::Time { every: None, action };
    let fault = Fault { name: "test".into(), what, trigger: Trigger::default() };
    simulation.world(|world, now| world.add_fault(now, HcaId(0), fault)).expect("there is such an adapter")
}

/// A register, read or (with `write`) written.
fn access(hca: &mut Hca<ModelBus>, register: u32, write: bool, value: &[u8]) -> Vec<u8> {
    let mut input = AccessRegIn::new();
    input.set(AccessRegIn::REGISTER_ID, register);
    let input = [input.bytes(), value].concat();
    let size = OutHeader::SIZE + value.len();
    let out = hca.execute(Opcode::AccessReg, u32::from(!write), input, size).expect("the register");
    out[OutHeader::SIZE..].to_vec()
}

/// What MCIA says of the cage.
fn cage(hca: &mut Hca<ModelBus>) -> u32 {
    let mut head = Mcia::new();
    head.set(Mcia::I2C_DEVICE_ADDRESS, 0x50).set(Mcia::LENGTH, 16);
    let mut value = head.bytes().to_vec();
    value.resize(0x40, 0);
    Mcia::from_prefix_or_zero(&access(hca, reg::MCIA, false, &value)).get(Mcia::STATUS)
}

/// What PMAOS says of it: the event that a driver had last.
fn state(hca: &mut Hca<ModelBus>) -> Event {
    let pmaos = Pmaos::from_prefix_or_zero(&access(hca, reg::PMAOS, false, &[0; Pmaos::SIZE]));
    module(pmaos.get(Pmaos::OPER_STATUS), pmaos.get(Pmaos::ERROR_TYPE))
}

fn sensor(hca: &mut Hca<ModelBus>, write: Option<&Mtmp>) -> Mtmp {
    let value = write.copied().unwrap_or_default();
    Mtmp::from_prefix_or_zero(&access(hca, reg::MTMP, write.is_some(), value.bytes()))
}

fn module(status: u32, error: u32) -> Event {
    Event::Module { module: 0, status: status as u8, error: error as u8 }
}

/// What came of modules.
fn of_modules(events: &[Event]) -> Vec<Event> {
    events.iter().filter(|event| matches!(event, Event::Module { .. })).copied().collect()
}

/// At one end, where its driver is told; the other end has its plug still, and no light.
#[test]
fn a_cable_that_is_pulled_out() {
    let (simulation, mut pair) = pair();
    add(&simulation, TimeAction::Unplug { port: 1, lasting: Lasting::For(LASTING) });
    let down = Event::PortChange { port: 1, change: port_change::DOWN };
    let heard = [0, 1].map(|end| drain_events(&mut pair.hcas[end]));
    assert_eq!(of_modules(&heard[0]), [module(module_status::UNPLUGGED, 0)]);
    assert_eq!(state(&mut pair.hcas[0]), module(module_status::UNPLUGGED, 0));
    assert_eq!(of_modules(&heard[1]), []);
    assert!(heard.iter().all(|heard| heard.contains(&down)), "{heard:?}");
    assert_eq!([0, 1].map(|end| cage(&mut pair.hcas[end])), [mcia_status::NOT_CONNECTED, mcia_status::GOOD]);
    simulation.run(AFTER);
    assert_eq!(of_modules(&drain_events(&mut pair.hcas[0])), [module(module_status::PLUGGED, 0)]);
    assert_eq!(of_modules(&drain_events(&mut pair.hcas[1])), []);
    assert_eq!(cage(&mut pair.hcas[0]), mcia_status::GOOD);
    assert!(simulation.world(|world, _| world.link_is_up(0)));
}

/// The whole cable is taken away: both drivers are told.
#[test]
fn a_cable_that_is_taken_away() {
    let (simulation, mut pair) = pair();
    for (connected, status) in [(false, module_status::UNPLUGGED), (true, module_status::PLUGGED)] {
        simulation.world(|world, now| world.set_cable(now, 0, connected));
        for hca in &mut pair.hcas {
            assert_eq!(of_modules(&drain_events(hca)), [module(status, 0)]);
        }
    }
}

#[test]
fn modules_that_can_not_be_used() {
    for (name, error) in ModuleError::ALL {
        let (simulation, mut pair) = pair();
        add(&simulation, TimeAction::Module { port: 1, error, lasting: Lasting::For(LASTING) });
        let (code, seen) = match error {
            ModuleError::PowerBudget => (module_error::POWER_BUDGET, mcia_status::GOOD),
            ModuleError::LongRange => (module_error::LONG_RANGE, mcia_status::GOOD),
            ModuleError::BusStuck => (module_error::BUS_STUCK, mcia_status::BUS_ERROR),
            ModuleError::NoEeprom => (module_error::NO_EEPROM, mcia_status::NO_MEMORY),
            ModuleError::PartNumber => (module_error::PART_NUMBER, mcia_status::GOOD),
            ModuleError::UnknownIdentifier => (module_error::UNKNOWN_IDENTIFIER, mcia_status::GOOD),
            ModuleError::HighTemperature => (module_error::HIGH_TEMPERATURE, mcia_status::GOOD),
            ModuleError::BadCable => (module_error::BAD_CABLE, mcia_status::GOOD),
            ModuleError::PciePower => (module_error::PCIE_POWER, mcia_status::GOOD),
        };
        let heard = drain_events(&mut pair.hcas[0]);
        assert_eq!(of_modules(&heard), [module(module_status::ERROR, code)], "{name}");
        assert!(
            heard.contains(&Event::PortChange { port: 1, change: port_change::DOWN }),
            "{name}: {heard:?}"
        );
        assert_eq!(cage(&mut pair.hcas[0]), seen, "{name}");
        let states = [0, 1].map(|end| state(&mut pair.hcas[end]));
        assert_eq!(states, [module(module_status::ERROR, code), module(module_status::PLUGGED, 0)], "{name}");
        simulation.run(AFTER);
        assert_eq!(
            of_modules(&drain_events(&mut pair.hcas[0])),
            [module(module_status::PLUGGED, 0)],
            "{name}"
        );
        assert_eq!(of_modules(&drain_events(&mut pair.hcas[1])), [], "{name}: the peer's is all right");
        assert_eq!(cage(&mut pair.hcas[0]), mcia_status::GOOD, "{name}");
        assert_eq!(state(&mut pair.hcas[0]), module(module_status::PLUGGED, 0), "{name}");
        assert!(simulation.world(|world, _| world.link_is_up(0)), "{name}");
    }
}

/// What is pulled out while it can't be used is not there when that is over.
#[test]
fn a_module_that_fails_and_is_pulled_out() {
    let (simulation, mut pair) = pair();
    let hca = &mut pair.hcas[0];
    let error = ModuleError::BusStuck;
    add(&simulation, TimeAction::Module { port: 1, error, lasting: Lasting::For(Ps::from_ms(5)) });
    add(&simulation, TimeAction::Unplug { port: 1, lasting: Lasting::For(Ps::from_ms(50)) });
    let came = of_modules(&drain_events(hca));
    assert_eq!(
        came,
        [module(module_status::ERROR, module_error::BUS_STUCK), module(module_status::UNPLUGGED, 0)]
    );
    simulation.run(Ps::from_ms(20));
    assert_eq!(of_modules(&drain_events(hca)), [], "there is none");
    assert_eq!(cage(hca), mcia_status::NOT_CONNECTED);
    simulation.run(AFTER);
    assert_eq!(of_modules(&drain_events(hca)), [module(module_status::PLUGGED, 0)]);
    assert!(simulation.world(|world, _| world.link_is_up(0)));
}

#[test]
fn a_chip_that_is_hot() {
    let (simulation, mut pair) = pair();
    let hca = &mut pair.hcas[0];
    let mut keep = sensor(hca, None);
    let rest = keep.get(Mtmp::TEMPERATURE);
    keep.set(Mtmp::MTE, 1);
    sensor(hca, Some(&keep));
    add(&simulation, TimeAction::Heat { degrees: 110, lasting: Some(LASTING) });
    let warning = Event::TemperatureWarning { sensors: 1 };
    assert_eq!(drain_events(hca), [warning]);
    assert_eq!(sensor(hca, None).get(Mtmp::TEMPERATURE), 110 * 8);
    simulation.run(AFTER);
    let after = sensor(hca, None);
    assert_eq!((after.get(Mtmp::TEMPERATURE), after.get(Mtmp::MAX_TEMPERATURE)), (rest, 110 * 8));
    assert_eq!(drain_events(hca), []);
    // A limit below what is measured is passed, too.
    let mut low = after;
    low.set(Mtmp::TEMPERATURE_THRESHOLD_HI, rest - 8).set(Mtmp::TEMPERATURE_THRESHOLD_LO, rest - 16);
    sensor(hca, Some(&low));
    assert_eq!(drain_events(hca), [warning]);
}
