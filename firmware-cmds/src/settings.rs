//! Lasting settings: what an adapter's firmware keeps in its flash, and begins the next start with.
//!
//! Each has three values: that of now, that of the next start, and the one it was delivered with. A reset of a function
//! is no start. Source: the mlx5 driver (`lib/nv_param.c`, field use) for the layouts and for which it reads.

use hca_spec::register::{Mnvda, NvGlobalPciCap, NvGlobalPciConf, NvSwOffloadConf, setting};

use crate::failure::{Failure, bad_param};

/// Most bytes of a setting.
const MOST: usize = 0x14;

/// One of them.
#[derive(Debug, Clone, Copy)]
struct Setting {
    /// Number of it among the adapter's.
    parameter: u32,
    len: usize,
    writable: bool,
    /// As it was delivered, and is now: nothing starts an adapter anew.
    delivered: [u8; MOST],
    next: [u8; MOST],
}

impl Setting {
    fn new(parameter: u32, writable: bool, value: &[u8]) -> Self {
        let mut delivered = [0; MOST];
        delivered.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
        Self { parameter, len: value.len().min(MOST), writable, delivered, next: delivered }
    }
}

/// All lasting settings of an adapter.
#[derive(Debug, Clone)]
pub(crate) struct Settings([Setting; 3]);

impl Default for Settings {
    fn default() -> Self {
        Self([
            Setting::new(setting::PCI, true, NvGlobalPciConf::new().bytes()),
            // There are no virtual functions.
            Setting::new(setting::PCI_CAPABILITIES, false, NvGlobalPciCap::new().bytes()),
            Setting::new(
                setting::SOFTWARE_OFFLOADS,
                true,
                NvSwOffloadConf::new().set(NvSwOffloadConf::UCTX_EN, 1).bytes(),
            ),
        ])
    }
}

impl Settings {
    /// Reads or writes one: `value` is the register MNVDA as it came, and as it goes back.
    pub(crate) fn access(&mut self, write: bool, value: &mut [u8]) -> Result<(), Failure> {
        const NONE: Failure = bad_param("MNVDA: the adapter does not have this setting");
        const ROOM: Failure = bad_param("MNVDA: the register has no room for the setting");
        const LENGTH: Failure = bad_param("MNVDA: length: the setting has another one");
        const NEXT: Failure =
            bad_param("MNVDA: access_mode: only the value of the next start can be written");
        const FIXED: Failure = bad_param("MNVDA: the setting can't be written");
        const ADAPTER: u32 = 0;
        const NEXT_START: u32 = 0;
        let mut header = Mnvda::from_prefix_or_zero(value);
        let (class, parameter) = (header.get(Mnvda::TYPE_CLASS), header.get(Mnvda::PARAMETER));
        let found = self.0.iter_mut().find(|setting| class == ADAPTER && setting.parameter == parameter);
        let setting = found.ok_or(NONE.of(class << 24 | parameter))?;
        let of = parameter;
        let room = value.len();
        let data = value.get_mut(Mnvda::SIZE..).and_then(|data| data.get_mut(..setting.len));
        let data = data.ok_or(ROOM.of(of).got(room as u64).limit((Mnvda::SIZE + setting.len) as u64))?;
        let mode = header.get(Mnvda::ACCESS_MODE);
        if write {
            let len = header.get(Mnvda::LENGTH);
            match () {
                () if !setting.writable => return Err(FIXED.of(of)),
                () if mode != NEXT_START => return Err(NEXT.of(of).got(mode)),
                () if len as usize != setting.len => {
                    return Err(LENGTH.of(of).got(len).limit(setting.len as u64));
                }
                () => setting.next.iter_mut().zip(&*data).for_each(|(to, from)| *to = *from),
            }
        }
        let told = if mode == NEXT_START { &setting.next } else { &setting.delivered };
        data.iter_mut().zip(told).for_each(|(to, from)| *to = *from);
        header.set(Mnvda::LENGTH, setting.len as u32).set(Mnvda::RD_EN, 1);
        header.set(Mnvda::OVER_EN, setting.writable.into());
        value.iter_mut().zip(header.bytes()).for_each(|(to, from)| *to = *from);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(parameter: u32, mode: u32, data: &[u8]) -> Vec<u8> {
        let mut header = Mnvda::new();
        header.set(Mnvda::PARAMETER, parameter).set(Mnvda::ACCESS_MODE, mode);
        header.set(Mnvda::LENGTH, data.len() as u32);
        [header.bytes(), data].concat()
    }

    #[test]
    fn the_next_start_has_what_was_written() {
        let mut settings = Settings::default();
        let read = |settings: &mut Settings, mode| {
            let mut value = register(setting::SOFTWARE_OFFLOADS, mode, &[0; 64]);
            settings.access(false, &mut value).unwrap();
            assert_eq!(Mnvda::from_prefix_or_zero(&value).get(Mnvda::LENGTH), 8);
            value[Mnvda::SIZE..][..8].to_vec()
        };
        assert_eq!(read(&mut settings, 0), [0, 0, 1, 0, 0, 0, 0, 0]);
        let mut write = register(setting::SOFTWARE_OFFLOADS, 0, &[0, 0, 1, 1, 0, 0, 0, 0]);
        settings.access(true, &mut write).unwrap();
        assert_eq!(
            (read(&mut settings, 0)[3], read(&mut settings, 1)[3], read(&mut settings, 2)[3]),
            (1, 0, 0)
        );
    }

    #[test]
    fn refusals() {
        let mut settings = Settings::default();
        let mut refused = |write, mut value: Vec<u8>| settings.access(write, &mut value).is_err();
        assert!(refused(false, register(0x77, 0, &[0; 64])), "no such setting");
        assert!(refused(false, register(setting::PCI | 1 << 20, 0, &[0; 64])), "no such setting");
        assert!(refused(false, register(setting::PCI, 0, &[0; 11])), "no room");
        assert!(refused(false, Vec::new()), "no room");
        assert!(refused(true, register(setting::PCI_CAPABILITIES, 0, &[0; 20])), "read only");
        assert!(refused(true, register(setting::PCI, 1, &[0; 12])), "the value of now");
        assert!(refused(true, register(setting::PCI, 0, &[0; 16])), "another length");
        assert!(!refused(true, register(setting::PCI, 0, &[0; 12])));
    }
}
