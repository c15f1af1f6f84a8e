//! Lasting settings: what an adapter's firmware keeps in its flash, and begins the next start with.
//!
//! Each has three values: that of now, that of the next start, and the one it was delivered with. A reset of a function
//! is no start. Source: the mlx5 driver (`lib/nv_param.c`) and mstflint (`mlxconfig`) for the layouts and for what they
//! read (field use).

use hca_spec::management::{NvBaseMacGuid, NvBaseMacGuidCap, NvVpiLinkType};
use hca_spec::register::{Mnvda, NvGlobalPciCap, NvGlobalPciConf, NvSwOffloadConf, class, setting};

use crate::failure::{Failure, bad_param};

/// Most bytes of a setting.
const MOST: usize = 0x14;
/// Values of [`NvVpiLinkType::DEFAULT_LINK_TYPE`].
const INFINIBAND: u32 = 1;
const ETHERNET: u32 = 2;

/// Which of them: class and parameter, as [`Mnvda`] names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    class: u32,
    parameter: u32,
}

impl Name {
    /// From the word of a register.
    pub(crate) fn of(word: u32) -> Self {
        Self { class: word >> 24, parameter: word & 0xff_ffff }
    }

    /// The link layer of the port of that number.
    const fn link_type(port: u8) -> Self {
        Self { class: class::PORT, parameter: (port as u32) << 16 | setting::LINK_TYPE }
    }

    fn word(self) -> u32 {
        self.class << 24 | self.parameter
    }
}

/// One of them.
#[derive(Debug, Clone, Copy)]
struct Setting {
    name: Name,
    len: usize,
    writable: bool,
    /// Version of its layout.
    version: u32,
    delivered: [u8; MOST],
    current: [u8; MOST],
    next: [u8; MOST],
}

impl Setting {
    fn new(name: Name, writable: bool, value: &[u8]) -> Self {
        let mut delivered = [0; MOST];
        delivered.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
        let len = value.len().min(MOST);
        Self { name, len, writable, version: 0, delivered, current: delivered, next: delivered }
    }
}

/// What of an adapter was decided when it was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// Whether its first port is Ethernet; `None`: that can't be changed.
    pub(crate) ethernet: Option<bool>,
    /// The first of its GUIDs.
    pub(crate) guid: u64,
    /// The first of its MAC addresses.
    pub(crate) mac: [u8; 6],
    /// Ports: each has one of both.
    pub(crate) ports: u8,
}

/// What a setting can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Support {
    pub(crate) writable: bool,
    /// Version of its layout.
    pub(crate) version: u32,
}

/// All lasting settings of an adapter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings(Vec<Setting>);

impl Settings {
    /// As delivered.
    pub(crate) fn new(delivered: &Delivered) -> Self {
        let adapter = |parameter| Name { class: class::ADAPTER, parameter };
        let mut addresses = NvBaseMacGuid::new();
        let [a, b, c, d, e, f] = delivered.mac;
        addresses.set(NvBaseMacGuid::BASE_MAC_H, u32::from_be_bytes([0, 0, a, b]));
        addresses.set(NvBaseMacGuid::BASE_MAC_L, u32::from_be_bytes([c, d, e, f]));
        addresses.set(NvBaseMacGuid::BASE_GUID, delivered.guid);
        let (ports, mut numbers) = (u32::from(delivered.ports), NvBaseMacGuidCap::new());
        numbers.set(NvBaseMacGuidCap::MAC_EN, 1).set(NvBaseMacGuidCap::GUID_EN, 1);
        numbers.set(NvBaseMacGuidCap::NUM_GUIDS, ports).set(NvBaseMacGuidCap::NUM_MACS, ports);
        let mut all = vec![
            Setting::new(adapter(setting::ADDRESSES), false, addresses.bytes()),
            Setting::new(adapter(setting::ADDRESS_NUMBERS), false, numbers.bytes()),
            Setting::new(adapter(setting::PCI), true, NvGlobalPciConf::new().bytes()),
            // There are no virtual functions.
            Setting::new(adapter(setting::PCI_CAPABILITIES), false, NvGlobalPciCap::new().bytes()),
            Setting {
                version: 1,
                ..Setting::new(
                    adapter(setting::SOFTWARE_OFFLOADS),
                    true,
                    NvSwOffloadConf::new().set(NvSwOffloadConf::UCTX_EN, 1).bytes(),
                )
            },
        ];
        if let Some(ethernet) = delivered.ethernet {
            let code = if ethernet { ETHERNET } else { INFINIBAND };
            let mut link = NvVpiLinkType::new();
            link.set(NvVpiLinkType::DEFAULT_LINK_TYPE, code).set(NvVpiLinkType::NETWORK_LINK_TYPE, code);
            all.push(Setting::new(Name::link_type(1), true, link.bytes()));
        }
        Self(all)
    }

    fn find(&mut self, name: Name) -> Option<&mut Setting> {
        self.0.iter_mut().find(|setting| setting.name == name)
    }

    /// What the setting of that name can do; `None`: there is none.
    pub(crate) fn support(&self, name: Name) -> Option<Support> {
        let setting = self.0.iter().find(|setting| setting.name == name)?;
        Some(Support { writable: setting.writable, version: setting.version })
    }

    /// Whether the port of that number is Ethernet from now on, if there is a choice.
    pub(crate) fn ethernet(&self, port: u8) -> Option<bool> {
        let setting = self.0.iter().find(|setting| setting.name == Name::link_type(port))?;
        let link = NvVpiLinkType::from_prefix_or_zero(&setting.current);
        Some(link.get(NvVpiLinkType::DEFAULT_LINK_TYPE) == ETHERNET)
    }

    /// The adapter starts: what was written holds from now on.
    pub(crate) fn restart(&mut self) {
        self.0.iter_mut().for_each(|setting| setting.current = setting.next);
    }

    /// All become what was delivered, with the next start.
    pub(crate) fn forget_all(&mut self) {
        self.0.iter_mut().for_each(|setting| setting.next = setting.delivered);
    }

    /// One does.
    pub(crate) fn forget(&mut self, name: Name) -> Result<(), Failure> {
        let setting = self.find(name).ok_or(NONE.of(name.word()))?;
        setting.next = setting.delivered;
        Ok(())
    }

    /// Reads or writes one: `value` is the register MNVDA as it came, and as it goes back.
    pub(crate) fn access(&mut self, write: bool, value: &mut [u8]) -> Result<(), Failure> {
        const ROOM: Failure = bad_param("MNVDA: the register has no room for the setting");
        const LENGTH: Failure = bad_param("MNVDA: length: the setting has another one");
        const NEXT: Failure =
            bad_param("MNVDA: access_mode: only the value of the next start can be written");
        const FIXED: Failure = bad_param("MNVDA: the setting can't be written");
        const NEXT_START: u32 = 0;
        const NOW: u32 = 1;
        let mut header = Mnvda::from_prefix_or_zero(value);
        let name = Name { class: header.get(Mnvda::TYPE_CLASS), parameter: header.get(Mnvda::PARAMETER) };
        let setting = self.find(name).ok_or(NONE.of(name.word()))?;
        let of = name.word();
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
                () => check(name, data)?,
            }
            setting.next.iter_mut().zip(&*data).for_each(|(to, from)| *to = *from);
        }
        let told = match mode {
            NEXT_START => &setting.next,
            NOW => &setting.current,
            _ => &setting.delivered,
        };
        data.iter_mut().zip(told).for_each(|(to, from)| *to = *from);
        header.set(Mnvda::LENGTH, setting.len as u32).set(Mnvda::RD_EN, 1);
        header.set(Mnvda::OVER_EN, setting.writable.into()).set(Mnvda::VERSION, setting.version);
        value.iter_mut().zip(header.bytes()).for_each(|(to, from)| *to = *from);
        Ok(())
    }
}

const NONE: Failure = bad_param("lasting setting: type: the adapter does not have it");

/// Whether the adapter could start with that value.
fn check(name: Name, data: &[u8]) -> Result<(), Failure> {
    const LINK: Failure =
        bad_param("lasting setting: default_link_type must be 1 (InfiniBand) or 2 (Ethernet)");
    if name.class == class::PORT && name.parameter & 0xffff == setting::LINK_TYPE {
        let kind = NvVpiLinkType::from_prefix_or_zero(data).get(NvVpiLinkType::DEFAULT_LINK_TYPE);
        if !matches!(kind, INFINIBAND | ETHERNET) {
            return Err(LINK.got(kind));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered() -> Settings {
        let mac = [0, 2, 0xc9, 0xa0, 0, 1];
        Settings::new(&Delivered { ethernet: Some(false), guid: 0x0002_c903_00a0_0001, mac, ports: 1 })
    }

    fn register(parameter: u32, mode: u32, data: &[u8]) -> Vec<u8> {
        let mut header = Mnvda::new();
        header.set(Mnvda::PARAMETER, parameter).set(Mnvda::ACCESS_MODE, mode);
        header.set(Mnvda::LENGTH, data.len() as u32);
        [header.bytes(), data].concat()
    }

    #[test]
    fn the_next_start_has_what_was_written() {
        let mut settings = delivered();
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
        let mut settings = delivered();
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

    /// What is written holds from the next start on, and can be taken back.
    #[test]
    fn the_link_layer_of_a_port() {
        let mut settings = delivered();
        let name = Name::link_type(1);
        let write = |settings: &mut Settings, kind: u8| {
            let mut value = register(0, 0, &[0, 0, 0, kind << 2]);
            value[4..8].copy_from_slice(&name.word().to_be_bytes());
            settings.access(true, &mut value)
        };
        assert_eq!((settings.ethernet(1), settings.ethernet(2)), (Some(false), None));
        write(&mut settings, 2).unwrap();
        assert_eq!(settings.ethernet(1), Some(false));
        settings.restart();
        assert_eq!(settings.ethernet(1), Some(true));
        assert!(write(&mut settings, 0).is_err() && write(&mut settings, 3).is_err());
        settings.forget(name).unwrap();
        assert_eq!(settings.ethernet(1), Some(true));
        settings.restart();
        assert_eq!(settings.ethernet(1), Some(false));
        write(&mut settings, 2).unwrap();
        settings.forget_all();
        settings.restart();
        assert_eq!(settings.ethernet(1), Some(false));
        assert!(settings.forget(Name::of(0x77)).is_err());
        assert_eq!(settings.support(name), Some(Support { writable: true, version: 0 }));
        assert_eq!(settings.support(Name::of(2)).map(|s| s.writable), Some(false));
        assert_eq!(settings.support(Name::of(0x0100_0012)), None, "no port");
    }
}
