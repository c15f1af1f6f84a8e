//! ACCESS_REGISTER: receive buffers of an Ethernet port.
//!
//! Source: PRM "PBMC", "PPTB"; the mlx5 driver (`en/port_buffer.c`, `en/port.c`, field use).

use hca_spec::register::{PBMC_BUFFERS, Pbmc, PbmcBuffer, Pptb};

use crate::failure::{Failure, bad_param};
use crate::port::Ethernet;
use crate::port::buffers::{BUFFERS, Buffer, Layout, MEMORY};
use crate::port::ethernet::PRIORITIES;

/// Bits of a buffer's number in [`Pptb::PRIO_X_BUFF`].
const NUMBER_BITS: usize = 4;

/// What PBMC says of a buffer.
fn written(of: &PbmcBuffer) -> Result<Buffer, Failure> {
    const SHARED: Failure = bad_param("PBMC: epsb: there is no memory that buffers share");
    const ORDER: Failure =
        bad_param("PBMC: of a buffer that loses nothing: xon_threshold <= xoff_threshold <= size");
    if of.get(PbmcBuffer::EPSB) == 1 {
        return Err(SHARED);
    }
    let word = |field| of.get(field) as u16;
    let buffer = Buffer {
        size: word(PbmcBuffer::CELLS),
        lossy: of.get(PbmcBuffer::LOSSY) == 1,
        xoff: word(PbmcBuffer::XOFF_THRESHOLD),
        xon: word(PbmcBuffer::XON_THRESHOLD),
    };
    if !buffer.lossy && !(buffer.xon..=buffer.size).contains(&buffer.xoff) {
        return Err(ORDER.got(buffer.xoff).limit(buffer.size));
    }
    Ok(buffer)
}

/// PBMC. The memory's size and the last two buffers, which are the adapter's own and empty, are told and not written; so is when
/// a buffer counts as full, which nothing counts.
pub(super) fn memory(of: &mut Ethernet, write: bool, value: &mut Pbmc) -> Result<(), Failure> {
    const MUCH: Failure = bad_param("PBMC: the buffers have more cells than the port");
    const TIMER: Failure = bad_param("PBMC: xoff_refresh must be less than xoff_timer_value, and not 0");
    if write {
        let (all, _) =
            value.bytes().get(PBMC_BUFFERS..).unwrap_or_default().as_chunks::<{ PbmcBuffer::SIZE }>();
        let mut layout = Layout { buffers: [Buffer::default(); BUFFERS], ..*of.buffers.layout() };
        for (to, bytes) in layout.buffers.iter_mut().zip(all) {
            *to = written(&PbmcBuffer::from_prefix_or_zero(bytes))?;
        }
        if layout.used() > MEMORY.into() {
            return Err(MUCH.got(layout.used()).limit(MEMORY));
        }
        let [timer, refresh] =
            [Pbmc::XOFF_TIMER_VALUE, Pbmc::XOFF_REFRESH].map(|field| value.get(field) as u16);
        if refresh == 0 || refresh >= timer {
            return Err(TIMER.got(refresh).limit(timer));
        }
        (of.buffers.xoff_timer, of.buffers.xoff_refresh) = (timer, refresh);
        of.buffers.set(layout);
    }
    let mut out = Pbmc::new();
    out.set(Pbmc::LOCAL_PORT, value.get(Pbmc::LOCAL_PORT)).set(Pbmc::PORT_BUFFER_SIZE, MEMORY.into());
    out.set(Pbmc::XOFF_TIMER_VALUE, of.buffers.xoff_timer.into());
    out.set(Pbmc::XOFF_REFRESH, of.buffers.xoff_refresh.into());
    let room = out.bytes_mut().get_mut(PBMC_BUFFERS..).unwrap_or_default();
    for (buffer, to) in of.buffers.layout().buffers.iter().zip(room.as_chunks_mut::<{ PbmcBuffer::SIZE }>().0)
    {
        let mut told = PbmcBuffer::new();
        told.set(PbmcBuffer::LOSSY, buffer.lossy.into()).set(PbmcBuffer::CELLS, buffer.size.into());
        told.set(PbmcBuffer::XOFF_THRESHOLD, buffer.xoff.into());
        told.set(PbmcBuffer::XON_THRESHOLD, buffer.xon.into());
        *to = *told.bytes();
    }
    *value = out;
    Ok(())
}

/// PPTB. Frames of MAC control wait in no buffer: that of theirs is told as 0, and not written.
pub(super) fn priorities(of: &mut Ethernet, write: bool, value: &mut Pptb) -> Result<(), Failure> {
    const BUFFER: Failure = bad_param("PPTB: prio_x_buff: there are buffers 0 to 7");
    const MODE: Failure = bad_param("PPTB: mm: frames to one station and to groups share their buffers");
    const BEYOND: Failure = bad_param("PPTB: pm_msb: there are priorities 0 to 7");
    const UNTAGGED: Failure =
        bad_param("PPTB: untagged_buff: frames without a tag are in the buffer of their priority");
    let told = |layout: &Layout| {
        let numbers = layout.of_priority.iter().rev();
        numbers.fold(0u32, |all, buffer| all << NUMBER_BITS | u32::from(*buffer))
    };
    if write {
        for (field, why) in [(Pptb::MM, MODE), (Pptb::PM_MSB, BEYOND)] {
            if value.get(field) != 0 {
                return Err(why.got(value.get(field)));
            }
        }
        let (mask, all) = (value.get(Pptb::PM), value.get(Pptb::PRIO_X_BUFF));
        let mut layout = *of.buffers.layout();
        for (priority, buffer) in layout.of_priority.iter_mut().enumerate().take(PRIORITIES) {
            let wanted = all >> (NUMBER_BITS * priority) & 0xf;
            if mask >> priority & 1 == 0 {
                continue;
            }
            *buffer =
                u8::try_from(wanted).ok().filter(|b| usize::from(*b) < BUFFERS).ok_or(BUFFER.got(wanted))?;
        }
        let untagged = value.get(Pptb::UNTAGGED_BUFF);
        if value.get(Pptb::UM) == 1 && untagged != u32::from(layout.of(0)) {
            return Err(UNTAGGED.got(untagged).limit(layout.of(0)));
        }
        of.buffers.set(layout);
    }
    let layout = of.buffers.layout();
    let mut out = Pptb::new();
    out.set(Pptb::LOCAL_PORT, value.get(Pptb::LOCAL_PORT)).set(Pptb::PRIO_X_BUFF, told(layout));
    out.set(Pptb::PM, 0xff).set(Pptb::UNTAGGED_BUFF, layout.of(0).into());
    *value = out;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::{Bench, ethernet};
    use crate::port::buffers::Buffers;
    use hca_spec::cmd::reg;
    use hca_spec::command::Status;
    use hca_spec::register::{PFCC_BY_FIRMWARE, PFCC_BY_SOFTWARE, Pfcc};

    fn of_port(b: &Bench) -> Buffers {
        b.fw.ports.port(1).unwrap().ethernet().unwrap().buffers
    }

    fn pbmc(b: &mut Bench) -> Pbmc {
        let mut ask = Pbmc::new();
        ask.set(Pbmc::LOCAL_PORT, 1);
        Pbmc::from_prefix_or_zero(&b.access_reg(reg::PBMC, false, ask.bytes()).output[0x10..])
    }

    fn pptb(b: &mut Bench) -> Pptb {
        let mut ask = Pptb::new();
        ask.set(Pptb::LOCAL_PORT, 1);
        Pptb::from_prefix_or_zero(&b.access_reg(reg::PPTB, false, ask.bytes()).output[0x10..])
    }

    /// Changes a buffer in what is written.
    fn buffer(all: &mut Pbmc, index: usize, change: impl Fn(&mut PbmcBuffer)) {
        let at = PBMC_BUFFERS + index * PbmcBuffer::SIZE;
        let bytes = &mut all.bytes_mut()[at..at + PbmcBuffer::SIZE];
        let mut of = PbmcBuffer::from_prefix_or_zero(bytes);
        change(&mut of);
        bytes.copy_from_slice(of.bytes());
    }

    fn owner(b: &mut Bench) -> u32 {
        let mut ask = Pfcc::new();
        ask.set(Pfcc::LOCAL_PORT, 1);
        Pfcc::from_prefix_or_zero(&b.access_reg(reg::PFCC, false, ask.bytes()).output[0x10..])
            .get(Pfcc::BUF_OWNERSHIP)
    }

    #[test]
    fn software_divides_the_memory() {
        let mut b = Bench::initialized_with(ethernet());
        assert_eq!(owner(&mut b), PFCC_BY_FIRMWARE);
        let mut all = pbmc(&mut b);
        assert_eq!(all.get(Pbmc::PORT_BUFFER_SIZE), 2047);
        assert_eq!(all.bytes()[PBMC_BUFFERS..PBMC_BUFFERS + 8], [0, 0, 0x3, 0xff, 0x1, 0xff, 0, 0xff]);
        buffer(&mut all, 0, |of| _ = of.set(PbmcBuffer::CELLS, 1000).set(PbmcBuffer::LOSSY, 1));
        buffer(&mut all, 3, |of| {
            of.set(PbmcBuffer::LOSSY, 0).set(PbmcBuffer::CELLS, 24);
            of.set(PbmcBuffer::XOFF_THRESHOLD, 20).set(PbmcBuffer::XON_THRESHOLD, 10);
        });
        all.set(Pbmc::XOFF_TIMER_VALUE, 1000).set(Pbmc::XOFF_REFRESH, 500).set(Pbmc::PORT_BUFFER_SIZE, 0);
        let r = b.access_reg(reg::PBMC, true, all.bytes());
        assert_eq!(r.status(), Status::Ok);
        all.set(Pbmc::PORT_BUFFER_SIZE, 2047);
        assert_eq!((r.output[0x10..].to_vec(), owner(&mut b)), (all.bytes().to_vec(), PFCC_BY_SOFTWARE));
        assert_eq!(pbmc(&mut b), all);
        let buffers = of_port(&b);
        assert_eq!((buffers.xoff_timer, buffers.xoff_refresh), (1000, 500));
        assert_eq!(buffers.layout().buffers[3], Buffer { size: 24, lossy: false, xoff: 20, xon: 10 });
        for change in [
            (|all| buffer(all, 5, |of| _ = of.set(PbmcBuffer::CELLS, 1))) as fn(&mut Pbmc),
            |all| buffer(all, 3, |of| _ = of.set(PbmcBuffer::XOFF_THRESHOLD, 25)),
            |all| buffer(all, 3, |of| _ = of.set(PbmcBuffer::XON_THRESHOLD, 21)),
            |all| buffer(all, 0, |of| _ = of.set(PbmcBuffer::EPSB, 1)),
            |all| _ = all.set(Pbmc::XOFF_REFRESH, 1000),
            |all| _ = all.set(Pbmc::XOFF_REFRESH, 0),
        ] {
            let mut wrong = all;
            change(&mut wrong);
            assert_eq!(b.access_reg(reg::PBMC, true, wrong.bytes()).status(), Status::BadParam);
        }
        assert_eq!(of_port(&b), buffers, "a refusal changes nothing");
    }

    #[test]
    fn priorities_go_to_buffers() {
        let mut b = Bench::initialized_with(ethernet());
        let mut all = pptb(&mut b);
        assert_eq!((all.get(Pptb::PRIO_X_BUFF), all.get(Pptb::PM)), (0, 0xff));
        all.set(Pptb::PM, 0b1001_0000).set(Pptb::PRIO_X_BUFF, 0x7654_3210);
        let r = b.access_reg(reg::PPTB, true, all.bytes());
        assert_eq!((r.status(), pptb(&mut b).get(Pptb::PRIO_X_BUFF)), (Status::Ok, 0x7004_0000));
        assert_eq!(of_port(&b).layout().of_priority, [0, 0, 0, 0, 4, 0, 0, 7]);
        let before = of_port(&b);
        for change in [
            (|all| _ = all.set(Pptb::PM, 0xff).set(Pptb::PRIO_X_BUFF, 8 << 4)) as fn(&mut Pptb),
            |all| _ = all.set(Pptb::MM, 1),
            |all| _ = all.set(Pptb::PM_MSB, 1),
            |all| _ = all.set(Pptb::UM, 1).set(Pptb::UNTAGGED_BUFF, 1),
        ] {
            let mut wrong = pptb(&mut b);
            change(&mut wrong);
            assert_eq!(b.access_reg(reg::PPTB, true, wrong.bytes()).status(), Status::BadParam);
        }
        assert_eq!(of_port(&b), before);
    }

    /// As long as software says nothing, the buffers follow flow control.
    #[test]
    fn buffers_follow_flow_control() {
        let mut b = Bench::initialized_with(ethernet());
        let mut pfc = Pfcc::new();
        pfc.set(Pfcc::LOCAL_PORT, 1).set(Pfcc::PRIO_MASK_TX, 0xff).set(Pfcc::PFCTX, 0b1000);
        assert_eq!(b.access_reg(reg::PFCC, true, pfc.bytes()).status(), Status::Ok);
        assert_eq!(pptb(&mut b).get(Pptb::PRIO_X_BUFF), 0x1000);
        assert_eq!(owner(&mut b), PFCC_BY_FIRMWARE);
    }
}
