//! ACCESS_REGISTER: priorities and traffic classes of an Ethernet port.
//!
//! Source: PRM "QTCT", "QETCR"; the mlx5 driver for QPTS, QPDPM and QCAM. IEEE 802.1Q clause 37.

use hca_spec::cmd::reg;
use hca_spec::register::{
    EtsClass, QETCR_CLASSES, QPDPM_PRIORITIES, Qcam, Qetcr, Qpdpm, Qpts, Qtct, TRUST_DSCP, TRUST_PCP,
};

use crate::failure::{Failure, bad_param};
use crate::port::classes::{CLASSES, CODE_POINTS, Class, Classes, Trust};

/// Registers of priorities that there are, as QCAM tells them.
const PRESENT: [u32; 5] = [reg::QPTS, reg::QETCR, reg::QTCT, reg::QPDPM, reg::QCAM];
/// Units of a limit, and what they are in Mb/s.
const UNITS: [(u32, u32); 2] = [(3, 100), (4, 1000)];

/// QTCT.
pub(super) fn class(all: &mut Classes, write: bool, value: &mut Qtct) -> Result<(), Failure> {
    let priority = value.get(Qtct::PRIO) as usize;
    // The field has no more values than there are priorities and classes.
    let Some(class) = all.of_priority.get_mut(priority) else { return Ok(()) };
    if write {
        *class = value.get(Qtct::TCLASS) as u8;
    }
    value.set(Qtct::TCLASS, u32::from(*class));
    Ok(())
}

/// The limit that a class says, in Mb/s.
fn limit_of(class: &EtsClass) -> Result<Option<u32>, Failure> {
    const UNIT: Failure = bad_param("QETCR: max_bw_units must be 0 (none), 3 (100 Mb/s) or 4 (1 Gb/s)");
    const NOTHING: Failure = bad_param("QETCR: max_bw_value: a limit of nothing");
    let (unit, value) = (class.get(EtsClass::MAX_BW_UNITS), class.get(EtsClass::MAX_BW_VALUE));
    if unit == 0 {
        return Ok(None);
    }
    let (_, mbps) = UNITS.iter().find(|(code, _)| *code == unit).ok_or(UNIT.got(unit))?;
    match value {
        0 => Err(NOTHING),
        value => Ok(Some(value.saturating_mul(*mbps))),
    }
}

/// Puts a limit into a class: in the smaller unit if it fits.
fn tell_limit(class: &mut EtsClass, limit: Option<u32>) {
    const LARGEST: u32 = 0xff;
    let Some(limit) = limit else { return };
    let fits = |(_, mbps): &&(u32, u32)| limit % mbps == 0 && limit / mbps <= LARGEST;
    if let Some((unit, mbps)) = UNITS.iter().find(fits) {
        class.set(EtsClass::MAX_BW_UNITS, *unit).set(EtsClass::MAX_BW_VALUE, limit / mbps);
    }
}

/// What a class becomes by what is written of it.
fn changed(old: &Class, class: &EtsClass) -> Result<Class, Failure> {
    const GROUP: Failure = bad_param("QETCR: group: there are groups 0 to 7");
    const SHARE: Failure = bad_param("QETCR: bw_allocation is above 100 percent");
    const WHOLE: u32 = 100;
    let mut new = *old;
    let (group, share) = (class.get(EtsClass::GROUP), class.get(EtsClass::BW_ALLOCATION));
    if class.get(EtsClass::G) == 1 {
        new.group = u8::try_from(group).ok().filter(|g| usize::from(*g) < CLASSES).ok_or(GROUP.got(group))?;
    }
    if class.get(EtsClass::B) == 1 {
        new.share = u8::try_from(share.min(WHOLE + 1)).unwrap_or(u8::MAX);
        if share > WHOLE {
            return Err(SHARE.got(share).limit(WHOLE));
        }
    }
    if class.get(EtsClass::R) == 1 {
        new.limit = limit_of(class)?;
    }
    Ok(new)
}

/// QETCR.
pub(super) fn selection(all: &mut Classes, write: bool, value: &mut Qetcr) -> Result<(), Failure> {
    let (classes, _) =
        value.bytes().get(QETCR_CLASSES..).unwrap_or_default().as_chunks::<{ EtsClass::SIZE }>();
    let mut new = *all;
    if write {
        for (class, bytes) in new.classes.iter_mut().zip(classes) {
            *class = changed(class, &EtsClass::from_prefix_or_zero(bytes))?;
        }
        if value.port().get(EtsClass::R) == 1 {
            new.limit = limit_of(value.port())?;
        }
        *all = new;
    }
    let mut out = Qetcr::new();
    out.set(Qetcr::PORT_NUMBER, value.get(Qetcr::PORT_NUMBER));
    tell_limit(out.port_mut(), new.limit);
    let room = out.bytes_mut().get_mut(QETCR_CLASSES..).unwrap_or_default();
    for (class, bytes) in new.classes.iter().zip(room.as_chunks_mut::<{ EtsClass::SIZE }>().0) {
        let mut told = EtsClass::new();
        told.set(EtsClass::GROUP, class.group.into()).set(EtsClass::BW_ALLOCATION, class.share.into());
        tell_limit(&mut told, class.limit);
        *bytes = *told.bytes();
    }
    *value = out;
    Ok(())
}

/// QPTS.
pub(super) fn trust(all: &mut Classes, write: bool, value: &mut Qpts) -> Result<(), Failure> {
    const TRUST: Failure = bad_param("QPTS: trust_state must be 1 (tag) or 2 (DSCP)");
    if write {
        all.trust = match value.get(Qpts::TRUST_STATE) {
            TRUST_PCP => Trust::Tag,
            TRUST_DSCP => Trust::CodePoint,
            other => return Err(TRUST.got(other)),
        };
    }
    value.set(Qpts::TRUST_STATE, if all.trust == Trust::Tag { TRUST_PCP } else { TRUST_DSCP });
    Ok(())
}

/// QPDPM.
pub(super) fn code_points(all: &mut Classes, write: bool, value: &mut Qpdpm) -> Result<(), Failure> {
    const PRIORITY: Failure = bad_param("QPDPM: prio: there are priorities 0 to 7");
    const WRITTEN: u16 = 1 << 15;
    const BITS: u16 = 0xf;
    let entries = value.bytes_mut().get_mut(QPDPM_PRIORITIES..).unwrap_or_default().as_chunks_mut::<2>().0;
    let mut new = all.of_code_point;
    if write {
        for (priority, entry) in new.iter_mut().zip(&*entries) {
            let entry = u16::from_be_bytes(*entry);
            if entry & WRITTEN != 0 {
                let wanted = (entry & BITS) as u8;
                if usize::from(wanted) >= CLASSES {
                    return Err(PRIORITY.got(u32::from(wanted)));
                }
                *priority = wanted;
            }
        }
        all.of_code_point = new;
    }
    for (entry, priority) in entries.iter_mut().take(CODE_POINTS).zip(new) {
        *entry = u16::from(priority).to_be_bytes();
    }
    Ok(())
}

/// QCAM.
pub(super) fn present(value: &mut Qcam) {
    /// The first register of group 0.
    const FIRST: u32 = 0x4000;
    let mut out = Qcam::new();
    let (features, registers) = (value.get(Qcam::FEATURE_GROUP), value.get(Qcam::ACCESS_REG_GROUP));
    out.set(Qcam::FEATURE_GROUP, features).set(Qcam::ACCESS_REG_GROUP, registers);
    // Other groups have nothing, and there are no features.
    if registers == 0 {
        let mask = PRESENT.iter().fold(0u128, |mask, register| mask | 1 << (register - FIRST));
        out.set(Qcam::QOS_ACCESS_REG_CAP_MASK_H, (mask >> 64) as u64);
        out.set(Qcam::QOS_ACCESS_REG_CAP_MASK_L, mask as u64);
    }
    *value = out;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, ethernet};
    use crate::effect::Effect;
    use hca_spec::be32;
    use hca_spec::command::Status;

    fn bench() -> Bench {
        Bench::initialized_with(ethernet())
    }

    fn of_port(b: &Bench) -> Classes {
        b.fw.ports.port(1).unwrap().ethernet().unwrap().classes
    }

    #[test]
    fn classes_of_priorities() {
        let mut b = bench();
        let mut q = Qtct::new();
        q.set(Qtct::PRIO, 3);
        assert_eq!(be32(&b.access_reg(reg::QTCT, false, q.bytes()).output, 0x14), 3, "as at power-on");
        q.set(Qtct::TCLASS, 6);
        b.effects.clear();
        let r = b.access_reg(reg::QTCT, true, q.bytes());
        assert_eq!((r.status(), be32(&r.output, 0x14)), (Status::Ok, 6));
        assert_eq!(
            (of_port(&b).of_priority, &b.effects[..]),
            ([0, 1, 2, 6, 4, 5, 6, 7], &[Effect::PortConfigured { port: 1 }][..])
        );
    }

    /// Each of group, share and limit is written only where its bit says so.
    #[test]
    fn shares_and_limits() {
        let mut b = bench();
        let write = |b: &mut Bench, number: usize, class: &EtsClass| {
            let mut q = Qetcr::new();
            q.bytes_mut()[QETCR_CLASSES + number * 8..][..8].copy_from_slice(class.bytes());
            b.access_reg(reg::QETCR, true, q.bytes())
        };
        let mut c = EtsClass::new();
        c.set(EtsClass::G, 1).set(EtsClass::GROUP, 7).set(EtsClass::BW_ALLOCATION, 20);
        c.set(EtsClass::MAX_BW_UNITS, 4).set(EtsClass::MAX_BW_VALUE, 9);
        assert_eq!(write(&mut b, 2, &c).status(), Status::Ok);
        assert_eq!(of_port(&b).classes[2], Class { group: 7, share: 100, limit: None });
        c.set(EtsClass::G, 0).set(EtsClass::B, 1).set(EtsClass::GROUP, 0);
        assert_eq!(write(&mut b, 2, &c).status(), Status::Ok);
        assert_eq!(of_port(&b).classes[2], Class { group: 7, share: 20, limit: None });
        c.set(EtsClass::B, 0).set(EtsClass::R, 1);
        let r = write(&mut b, 2, &c);
        assert_eq!(of_port(&b).classes[2], Class { group: 7, share: 20, limit: Some(9000) });
        assert_eq!((be32(&r.output, 0x28), be32(&r.output, 0x2c)), (7 << 16 | 20, 3 << 16 | 90));
        c.set(EtsClass::MAX_BW_VALUE, 200);
        let r = write(&mut b, 2, &c);
        assert_eq!(be32(&r.output, 0x2c), 4 << 16 | 200, "200 Gb/s are too many units of 100 Mb/s");
        let before = of_port(&b);
        let wrong: [fn(&mut EtsClass); 4] = [
            |c| _ = c.set(EtsClass::G, 1).set(EtsClass::GROUP, 8),
            |c| _ = c.set(EtsClass::B, 1).set(EtsClass::BW_ALLOCATION, 101),
            |c| _ = c.set(EtsClass::R, 1).set(EtsClass::MAX_BW_UNITS, 2),
            |c| _ = c.set(EtsClass::R, 1).set(EtsClass::MAX_BW_UNITS, 3),
        ];
        for change in wrong {
            let mut c = EtsClass::new();
            change(&mut c);
            assert_eq!(write(&mut b, 7, &c).status(), Status::BadParam);
        }
        assert_eq!(of_port(&b), before, "what is refused changes nothing");
        let mut q = Qetcr::new();
        q.port_mut().set(EtsClass::R, 1).set(EtsClass::MAX_BW_UNITS, 4).set(EtsClass::MAX_BW_VALUE, 10);
        let r = b.access_reg(reg::QETCR, true, q.bytes());
        assert_eq!((of_port(&b).limit, be32(&r.output, 0x5c)), (Some(10_000), 3 << 16 | 100));
    }

    #[test]
    fn what_priorities_are_told_by() {
        let mut b = bench();
        let mut q = Qpts::new();
        q.set(Qpts::LOCAL_PORT, 1);
        assert_eq!(be32(&b.access_reg(reg::QPTS, false, q.bytes()).output, 0x14), TRUST_PCP);
        q.set(Qpts::TRUST_STATE, TRUST_DSCP);
        assert_eq!(b.access_reg(reg::QPTS, true, q.bytes()).status(), Status::Ok);
        assert_eq!(of_port(&b).trust, Trust::CodePoint);
        for wrong in [0, 3] {
            q.set(Qpts::TRUST_STATE, wrong);
            assert_eq!(b.access_reg(reg::QPTS, true, q.bytes()).status(), Status::BadParam);
        }
        let mut points = [0; Qpdpm::SIZE];
        // The last two; only the first of them is written.
        points[Qpdpm::SIZE - 4..].copy_from_slice(&[0x80, 2, 0, 3]);
        let r = b.access_reg(reg::QPDPM, true, &points);
        assert_eq!(r.output[16 + Qpdpm::SIZE - 4..16 + Qpdpm::SIZE], [0, 2, 0, 7]);
        assert_eq!(of_port(&b).of_code_point[60..], [7, 7, 2, 7]);
        points[Qpdpm::SIZE - 1] = 8;
        points[Qpdpm::SIZE - 2] = 0x80;
        assert_eq!(b.access_reg(reg::QPDPM, true, &points).status(), Status::BadParam);
    }

    #[test]
    fn registers_that_there_are() {
        let mut b = bench();
        let r = b.access_reg(reg::QCAM, false, &[0; Qcam::SIZE]);
        assert_eq!(be32(&r.output, 0x24), 1 << 2 | 1 << 5 | 1 << 0xa | 1 << 0x13 | 1 << 0x19);
        assert_eq!(b.access_reg(reg::QCAM, true, &[0; Qcam::SIZE]).status(), Status::BadParam);
        let mut b = Bench::initialized();
        for other in PRESENT {
            assert_eq!(b.access_reg(other, false, &[0; 0x100]).status(), Status::BadParam);
        }
    }
}
