//! Registers of management, which all adapters have: what there is, versions, updates, lasting settings, sensors.
//!
//! Drivers and tools were made at different times: what lacks of such a register is zero. Source: PRM "Management
//! Registers"; the mlx5 driver and mstflint for what they read and write.

use hca_spec::caps::General;
use hca_spec::cmd::reg;
use hca_spec::command::Status;
use hca_spec::management::{
    BOOT_IMAGE, Mcam, Mcc, Mcda, Mcqi, McqiActivation, McqiCapabilities, McqiVersion, Mcqs, Mfrl, Mgir,
    Mnvgc, Mnvia, Mnvqc, Mpein, Mqis, Mtcap, Mtmp, component_info, mcam_feature, reset_level, update_error,
};
use hca_spec::pcie::{MPCNT_COUNTERS, Mpcnt};
use hca_spec::register::Mnvda;

use super::register::Denied;
use crate::effect::Effect;
use crate::failure::{Failure, bad_param};
use crate::firmware::Firmware;
use crate::flash::{COMPONENT, LOG_WORD, MOST, MOST_AT_ONCE};
use crate::personality::FirmwareVersion;
use crate::ports::CHIP_SENSOR;
use crate::sensor::Sensor;
use crate::settings::Name;
use crate::sync_reset::NotNow;

/// Longest register of these, with what comes behind it.
const MOST_BYTES: usize = 0x10c;
/// First register of these, and how many are told of at a time.
const FIRST: u32 = 0x9000;
const GROUP: u32 = 0x80;
/// Groups that MCAM knows.
const GROUPS: u32 = 4;

/// Whether it is one of these.
pub(super) fn is_one(register: u32) -> bool {
    matches!(
        register,
        reg::MCAM
            | reg::MGIR
            | reg::MCQS
            | reg::MCQI
            | reg::MCC
            | reg::MCDA
            | reg::MQIS
            | reg::MTCAP
            | reg::MTMP
            | reg::MFRL
            | reg::MPEIN
            | reg::MPCNT
            | reg::MNVDA
            | reg::MNVDI
            | reg::MNVQC
            | reg::MNVIA
            | reg::MNVGC
    )
}

/// Reads or writes one of them: what came, and what goes back.
pub(super) fn access(
    fw: &mut Firmware,
    register: u32,
    write: bool,
    data: &[u8],
    effects: &mut Vec<Effect>,
) -> Result<Vec<u8>, Denied> {
    const READ_ONLY: Failure = bad_param("register of management: op_mod: it can't be written");
    const WRITE_ONLY: Failure = bad_param("register of management: op_mod: it can't be read");
    let data = data.get(..MOST_BYTES).unwrap_or(data);
    Ok(match (register, write) {
        (reg::MCAM, false) => present(fw, data)?,
        (reg::MGIR, false) => general(fw),
        (reg::MCQS, false) => component(fw, data)?,
        (reg::MCQI, false) => about_component(fw, data)?,
        (reg::MCC, write) => control(fw, write, data)?,
        (reg::MCDA, true) => piece(fw, data)?,
        (reg::MQIS, false) => text(fw, data)?,
        (reg::MTCAP, false) => sensors(),
        (reg::MTMP, write) => temperature(fw, write, data, effects)?,
        (reg::MFRL, write) => restart(fw, write, data, effects)?,
        (reg::MPEIN, false) => pci_link(fw),
        (reg::MPCNT, _) => pci_counters(fw, data)?,
        (reg::MNVDA, write) => {
            let mut value = data.to_vec();
            value.resize(value.len().max(Mnvda::SIZE), 0);
            fw.ports.settings.access(write, &mut value)?;
            value
        }
        (reg::MNVDI, true) => {
            let header = Mnvda::from_prefix_or_zero(data);
            let word = header.get(Mnvda::TYPE_CLASS) << 24 | header.get(Mnvda::PARAMETER);
            fw.ports.settings.forget(Name::of(word))?;
            header.bytes().to_vec()
        }
        (reg::MNVQC, false) => setting(fw, data)?,
        (reg::MNVIA, true) => forget_settings(fw, data)?,
        (reg::MNVGC, false) => {
            let mut out = Mnvgc::new();
            out.set(Mnvgc::NVDA_READ_CURRENT_SETTINGS, 1).set(Mnvgc::NVDA_READ_FACTORY_SETTINGS, 1);
            out.bytes().to_vec()
        }
        (_, true) => return Err(Denied::Method(READ_ONLY.of(register))),
        (_, false) => return Err(Denied::Method(WRITE_ONLY.of(register))),
    })
}

/// MCAM: a bit for each register of the group that there is.
fn present(fw: &Firmware, data: &[u8]) -> Result<Vec<u8>, Failure> {
    const ALWAYS: u64 = mcam_feature::PCIE_PERFORMANCE | mcam_feature::SENSOR_MAP | mcam_feature::PCI_POWER;
    const NO_GROUP: Failure = bad_param("MCAM: access_reg_group: there is no such group");
    let mut out = Mcam::from_prefix_or_zero(data);
    let group = out.get(Mcam::ACCESS_REG_GROUP);
    if group >= GROUPS {
        return Err(NO_GROUP.got(group).limit(GROUPS - 1));
    }
    let first = FIRST.saturating_add(group.saturating_mul(GROUP));
    let mask = |from: u32| {
        let there = |bit: &u32| super::register::is_present(fw.config.port_kind, from.saturating_add(*bit));
        (0..u64::BITS).filter(there).fold(0, |mask, bit| mask | 1u64 << bit)
    };
    out.set(Mcam::MNG_ACCESS_REG_CAP_MASK_L, mask(first));
    out.set(Mcam::MNG_ACCESS_REG_CAP_MASK_H, mask(first.saturating_add(u64::BITS)));
    let features = match out.get(Mcam::FEATURE_GROUP) {
        0 if asks_drivers(fw) => ALWAYS | mcam_feature::PCI_SYNC | mcam_feature::RESET_STATE,
        0 => ALWAYS,
        _ => 0,
    };
    out.set(Mcam::MNG_FEATURE_CAP_MASK_L, features).set(Mcam::MNG_FEATURE_CAP_MASK_H, 0);
    Ok(out.bytes().to_vec())
}

fn general(fw: &Firmware) -> Vec<u8> {
    let kind = fw.personality();
    let version = fw.ports.flash.running();
    let mut out = Mgir::new();
    out.set(Mgir::DEVICE_HW_REVISION, kind.pci.revision.into()).set(Mgir::DEVICE_ID, kind.pci.device.into());
    out.set(Mgir::NUM_PORTS, fw.ports.numbers().len() as u32).set(Mgir::HW_DEV_ID, kind.hardware_id);
    let [a, b, c, d, e, f] = fw.config.mac_of_port(1);
    out.set(Mgir::MANUFACTURING_BASE_MAC_H, u32::from_be_bytes([0, 0, a, b]));
    out.set(Mgir::MANUFACTURING_BASE_MAC_L, u32::from_be_bytes([c, d, e, f]));
    let FirmwareVersion { major, minor, subminor } = version;
    let [major, minor, subminor] = [major, minor, subminor].map(u32::from);
    out.set(Mgir::MAJOR, major).set(Mgir::MINOR, minor).set(Mgir::SUB_MINOR, subminor);
    out.set(Mgir::EXTENDED_MAJOR, major).set(Mgir::EXTENDED_MINOR, minor);
    out.set(Mgir::EXTENDED_SUB_MINOR, subminor);
    let [first, last] = kind.psid();
    out.set(Mgir::PSID_FIRST, first).set(Mgir::PSID_LAST, last);
    out.bytes().to_vec()
}

/// The component that a register names.
fn known_component(index: u32) -> Result<(), Failure> {
    const NONE: Failure = bad_param("component_index: there is no such component");
    if index == COMPONENT { Ok(()) } else { Err(NONE.got(index).limit(COMPONENT)) }
}

fn component(fw: &Firmware, data: &[u8]) -> Result<Vec<u8>, Failure> {
    const IN_USE: u32 = 2;
    let mut out = Mcqs::from_prefix_or_zero(data);
    known_component(out.get(Mcqs::COMPONENT_INDEX))?;
    out.set(Mcqs::LAST_INDEX_FLAG, 1).set(Mcqs::IDENTIFIER, BOOT_IMAGE).set(Mcqs::COMPONENT_STATUS, IN_USE);
    out.set(Mcqs::COMPONENT_UPDATE_STATE, fw.ports.flash.update_state());
    Ok(out.bytes().to_vec())
}

fn about_component(fw: &Firmware, data: &[u8]) -> Result<Vec<u8>, Failure> {
    const PENDING: Failure = bad_param("MCQI: read_pending_component: no other image was activated");
    const KIND: Failure = bad_param("MCQI: info_type: there is no such information");
    const OFFSET: Failure = bad_param("MCQI: offset is behind the information");
    let mut out = Mcqi::from_prefix_or_zero(data);
    known_component(out.get(Mcqi::COMPONENT_INDEX))?;
    let flash = &fw.ports.flash;
    let version = match out.get(Mcqi::READ_PENDING_COMPONENT) == 1 {
        true => flash.pending().ok_or(PENDING)?,
        false => flash.running(),
    };
    let info = match out.get(Mcqi::INFO_TYPE) {
        component_info::CAPABILITIES => {
            let mut c = McqiCapabilities::new();
            let kinds = [component_info::CAPABILITIES, component_info::VERSION, component_info::ACTIVATION];
            let mask = kinds.iter().fold(0, |mask, kind| mask | 1 << kind);
            c.set(McqiCapabilities::SUPPORTED_INFO_BITMASK, mask);
            c.set(McqiCapabilities::MAX_COMPONENT_SIZE, MOST);
            c.set(McqiCapabilities::LOG_MCDA_WORD_SIZE, LOG_WORD);
            c.set(McqiCapabilities::MCDA_MAX_WRITE_SIZE, MOST_AT_ONCE);
            c.set(McqiCapabilities::MATCH_CHIP_ID, 1).set(McqiCapabilities::MATCH_PSID, 1);
            c.bytes().to_vec()
        }
        component_info::VERSION => {
            const TEXT: usize = 0x20;
            let FirmwareVersion { major, minor, subminor } = version;
            let word = u32::from(major) << 24 | u32::from(minor) << 16 | u32::from(subminor);
            let text = format!("{major:02}.{minor:02}.{subminor:04}");
            let mut v = McqiVersion::new();
            v.set(McqiVersion::VERSION_STRING_LENGTH, text.len() as u32).set(McqiVersion::VERSION, word);
            v.bytes_mut().iter_mut().skip(TEXT).zip(text.bytes()).for_each(|(to, from)| *to = from);
            v.bytes().to_vec()
        }
        component_info::ACTIVATION => {
            let mut a = McqiActivation::new();
            a.set(McqiActivation::PENDING_SERVER_REBOOT, 1).set(McqiActivation::PENDING_FW_RESET, 1);
            a.bytes().to_vec()
        }
        other => return Err(KIND.got(other)),
    };
    out.set(Mcqi::INFO_SIZE, info.len() as u32);
    let offset = out.get(Mcqi::OFFSET);
    let rest = usize::try_from(offset).ok().and_then(|offset| info.get(offset..));
    let rest = rest.ok_or(OFFSET.got(offset).limit(info.len() as u64))?;
    let wanted = out.get(Mcqi::DATA_SIZE) as usize;
    let part = rest.get(..wanted).unwrap_or(rest);
    out.set(Mcqi::DATA_SIZE, part.len() as u32);
    Ok([out.bytes(), part].concat())
}

fn control(fw: &mut Firmware, write: bool, data: &[u8]) -> Result<Vec<u8>, Failure> {
    const REFUSED: Failure = bad_param("MCC: instruction: not allowed in this state, or by this handle");
    let mut out = Mcc::from_prefix_or_zero(data);
    let kind = std::sync::Arc::clone(&fw.config.personality);
    let flash = &mut fw.ports.flash;
    if write {
        let (what, handle) = (out.get(Mcc::INSTRUCTION), out.get(Mcc::UPDATE_HANDLE));
        let (component, size) = (out.get(Mcc::COMPONENT_INDEX), out.get(Mcc::COMPONENT_SIZE));
        // What is wrong with an image is told by the state.
        if flash.instruct(&kind, what, handle, component, size) == Err(update_error::ERROR) {
            return Err(REFUSED.of(what).got(flash.state().2));
        }
    }
    let (handle, error, state) = flash.state();
    out.set(Mcc::UPDATE_HANDLE, handle).set(Mcc::ERROR_CODE, error).set(Mcc::CONTROL_STATE, state);
    out.set(Mcc::CONTROL_PROGRESS, flash.progress());
    Ok(out.bytes().to_vec())
}

fn piece(fw: &mut Firmware, data: &[u8]) -> Result<Vec<u8>, Failure> {
    const REFUSED: Failure =
        bad_param("MCDA: offset, size: the piece does not fit, or none is taken of this handle now");
    let head = Mcda::from_prefix_or_zero(data);
    let (offset, size) = (head.get(Mcda::OFFSET), head.get(Mcda::LEN));
    let bytes = data.get(Mcda::SIZE..).and_then(|bytes| bytes.get(..size as usize));
    let bytes = bytes.filter(|_| size <= MOST_AT_ONCE).ok_or(REFUSED.got(size).limit(MOST_AT_ONCE))?;
    // The words of the register are those of the image, whose bytes go the other way.
    let bytes: Vec<u8> = bytes.chunks(4).flat_map(|word| word.iter().rev().copied()).collect();
    let taken = fw.ports.flash.piece(head.get(Mcda::UPDATE_HANDLE), offset, &bytes);
    taken.map_err(|()| REFUSED.got(offset))?;
    Ok(data.to_vec())
}

fn text(fw: &Firmware, data: &[u8]) -> Result<Vec<u8>, Failure> {
    const KIND: Failure = bad_param("MQIS: info_type: there is no such text");
    const NAME: u32 = 1;
    const DESCRIPTION: u32 = 2;
    let mut out = Mqis::from_prefix_or_zero(data);
    let text = match out.get(Mqis::INFO_TYPE) {
        NAME => fw.personality().part_number,
        DESCRIPTION => fw.personality().product,
        other => return Err(KIND.got(other)),
    };
    let (from, wanted) = (out.get(Mqis::READ_OFFSET) as usize, out.get(Mqis::READ_LENGTH) as usize);
    let rest = text.as_bytes().get(from..).unwrap_or_default();
    let part = rest.get(..wanted).unwrap_or(rest);
    out.set(Mqis::INFO_LENGTH, text.len() as u32).set(Mqis::READ_LENGTH, part.len() as u32);
    Ok([out.bytes(), part].concat())
}

/// That of the first module.
const MODULES: u32 = 64;

fn sensors() -> Vec<u8> {
    let mut out = Mtcap::new();
    out.set(Mtcap::SENSOR_COUNT, 1).set(Mtcap::SENSOR_MAP, 1 << CHIP_SENSOR);
    out.bytes().to_vec()
}

fn temperature(
    fw: &mut Firmware,
    write: bool,
    data: &[u8],
    effects: &mut Vec<Effect>,
) -> Result<Vec<u8>, Failure> {
    const NONE: Failure = bad_param("MTMP: sensor_index: there is no such sensor");
    let mut out = Mtmp::from_prefix_or_zero(data);
    let index = out.get(Mtmp::SENSOR_INDEX);
    // What is in the cages measures nothing.
    let modules = MODULES..MODULES.saturating_add(fw.ports.numbers().len() as u32);
    if modules.contains(&index) {
        return Ok(Mtmp::new().set(Mtmp::SENSOR_INDEX, index).bytes().to_vec());
    }
    if index != CHIP_SENSOR {
        return Err(NONE.got(index).limit(CHIP_SENSOR));
    }
    let sensor = &mut fw.ports.sensor;
    if write {
        let keeps_highest = out.get(Mtmp::MTE) == 1;
        if keeps_highest != sensor.keeps_highest || out.get(Mtmp::MTR) == 1 {
            sensor.forget_highest();
        }
        sensor.keeps_highest = keeps_highest;
        sensor.events = out.get(Mtmp::TEE);
        sensor.high = out.get(Mtmp::TEMPERATURE_THRESHOLD_HI) as u16;
        sensor.low = out.get(Mtmp::TEMPERATURE_THRESHOLD_LO) as u16;
        if sensor.look() {
            effects.push(Effect::TemperatureWarning { sensors: 1 << CHIP_SENSOR });
        }
    }
    out.set(Mtmp::TEMPERATURE, sensor.measure().into())
        .set(Mtmp::MTE, sensor.keeps_highest.into())
        .set(Mtmp::MTR, 0);
    out.set(Mtmp::MAX_TEMPERATURE, sensor.highest().into());
    out.set(Mtmp::TEE, sensor.events).set(Mtmp::TEMPERATURE_THRESHOLD_HI, sensor.high.into());
    out.set(Mtmp::TEMPERATURE_THRESHOLD_LO, sensor.low.into());
    out.set(Mtmp::SENSOR_NAME, u64::from_be_bytes(Sensor::NAME));
    Ok(out.bytes().to_vec())
}

/// Whether drivers are asked before the firmware starts again.
fn asks_drivers(fw: &Firmware) -> bool {
    fw.general_max.get(General::PCI_SYNC_FOR_FW_UPDATE_EVENT) == 1
}

/// MFRL: by what the firmware starts again. It does so by each of these, whether it was asked to or not, or when all drivers
/// have agreed and let go.
fn restart(
    fw: &mut Firmware,
    write: bool,
    data: &[u8],
    effects: &mut Vec<Effect>,
) -> Result<Vec<u8>, Failure> {
    const LEVEL: Failure = bad_param("MFRL: reset_level: one that the adapter has must be chosen");
    const SYNC: Failure =
        bad_param("MFRL: pci_sync: this adapter's firmware does not ask drivers before it starts again");
    const BY: Failure = bad_param("MFRL: pci_sync_for_fw_update_start: must be 0 or 1 (by a driver)");
    const ANSWER: Failure =
        bad_param("MFRL: pci_sync_for_fw_update_resp: must be 1 (agrees) or 2 (does not)");
    const TYPE: Failure = bad_param("MFRL: rst_type_sel: must be 0 (the whole chip)");
    const METHOD: Failure = bad_param("MFRL: reset_level: drivers are asked about a PCI reset only");
    const UNDER_WAY: Failure =
        Failure::new(Status::ResourceBusy, "MFRL: drivers are asked about a restart already");
    const NOBODY: Failure =
        Failure::new(Status::BadResourceState, "MFRL: no driver hears of restarts (SET_HCA_CAP, INIT_HCA)");
    const LEVELS: u32 = reset_level::PCI_RESET | reset_level::WARM_REBOOT;
    const WHOLE_CHIP: u32 = 1;
    const AGREES: u32 = 1;
    const DISAGREES: u32 = 2;
    let mut out = Mfrl::from_prefix_or_zero(data);
    if write {
        let level = out.get(Mfrl::RESET_LEVEL);
        if level & LEVELS == 0 || !level.is_power_of_two() {
            return Err(LEVEL.got(level));
        }
        let (start, answer) = (out.get(Mfrl::PCI_SYNC_START), out.get(Mfrl::PCI_SYNC_RESP));
        let kind = out.get(Mfrl::RST_TYPE_SEL);
        if (start, answer) != (0, 0) && !asks_drivers(fw) {
            return Err(SYNC.got(start.max(answer)));
        }
        if kind != 0 {
            return Err(TYPE.got(kind));
        }
        if (start, answer) != (0, 0) && level != reset_level::PCI_RESET {
            return Err(METHOD.got(level));
        }
        let me = fw.config.function;
        let sync = &mut fw.ports.sync_reset;
        match (start, answer) {
            (0, 0) => {}
            (0, AGREES | DISAGREES) => sync.answer(me, answer == AGREES, effects),
            (1, 0) => match sync.begin(effects) {
                Ok(()) => {}
                Err(NotNow::UnderWay(state)) => return Err(UNDER_WAY.got(state)),
                Err(NotNow::Nobody) => return Err(NOBODY),
            },
            (0 | 1, answer) => return Err(ANSWER.got(answer)),
            (start, _) => return Err(BY.got(start)),
        }
    } else {
        out.set(Mfrl::RESET_LEVEL, LEVELS);
    }
    out.set(Mfrl::RESET_TYPE, WHOLE_CHIP).set(Mfrl::RESET_STATE, fw.ports.sync_reset.state());
    Ok(out.bytes().to_vec())
}

/// MPEIN: the link is to be what the edge connector can do, and is what it trained to.
fn pci_link(fw: &Firmware) -> Vec<u8> {
    const SUFFICIENT: u32 = 1;
    let link = fw.personality().pci.link;
    let bit = |speed: u8| 1u32.wrapping_shl(u32::from(speed).saturating_sub(1));
    let (lanes, speed) = (link.lanes, link.speed as u8);
    let (lanes_now, speed_now) = fw.ports.pcie.trained.unwrap_or((lanes, speed));
    let mut out = Mpein::new();
    out.set(Mpein::LINK_WIDTH_ENABLED, lanes.into()).set(Mpein::LINK_WIDTH_ACTIVE, lanes_now.into());
    out.set(Mpein::LINK_SPEED_ENABLED, bit(speed)).set(Mpein::LINK_SPEED_ACTIVE, bit(speed_now));
    out.set(Mpein::NUM_OF_PFS, 1).set(Mpein::PWR_STATUS, SUFFICIENT);
    out.set(Mpein::PCI_POWER, fw.personality().pci.slot_power_watts.into());
    // Behind a port there is device 0 alone.
    out.set(Mpein::BDF0, u32::from(fw.config().bus) << 8);
    out.bytes().to_vec()
}

/// MPCNT: a group of counters. With `CLR` they count from 0 again, read or written, and what comes back is what they were.
fn pci_counters(fw: &mut Firmware, data: &[u8]) -> Result<Vec<u8>, Failure> {
    const GROUP: Failure = bad_param("MPCNT: grp: the adapter does not have the group of counters");
    let mut out = Mpcnt::from_prefix_or_zero(data);
    let group = out.get(Mpcnt::GRP);
    let counters = fw.ports.pcie.group(group).ok_or(GROUP.got(group))?;
    if out.get(Mpcnt::CLR) == 1 {
        fw.ports.pcie.clear(group);
    }
    out.set(Mpcnt::CLR, 0);
    let to = out.bytes_mut().iter_mut().skip(MPCNT_COUNTERS);
    to.zip(counters).for_each(|(to, from)| *to = from);
    Ok(out.bytes().to_vec())
}

fn setting(fw: &Firmware, data: &[u8]) -> Result<Vec<u8>, Failure> {
    const MISSING: Failure = bad_param("MNVQC: type: the adapter does not have this setting");
    /// No setting at all: tools see by it that the register is there.
    const NONE: u32 = 0;
    let mut out = Mnvqc::new();
    let word = Mnvqc::from_prefix_or_zero(data).get(Mnvqc::TYPE);
    out.set(Mnvqc::TYPE, word);
    if word != NONE {
        let support = fw.ports.settings.support(Name::of(word)).ok_or(MISSING.got(word))?;
        out.set(Mnvqc::SUPPORT_RD, 1).set(Mnvqc::SUPPORT_WR, support.writable.into());
        out.set(Mnvqc::VERSION, support.version);
    }
    Ok(out.bytes().to_vec())
}

fn forget_settings(fw: &mut Firmware, data: &[u8]) -> Result<Vec<u8>, Failure> {
    const TARGET: Failure = bad_param("MNVIA: target must be 0 (all)");
    let out = Mnvia::from_prefix_or_zero(data);
    if out.get(Mnvia::TARGET) != 0 {
        return Err(TARGET.got(out.get(Mnvia::TARGET)));
    }
    fw.ports.settings.forget_all();
    Ok(out.bytes().to_vec())
}
