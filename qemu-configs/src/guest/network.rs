//! Names and addresses of a guest's network devices that belong to the topology: Ethernet adapters, and cards of QEMU's own.
//!
//! Devices of the same place in their hosts' lists are in one network: the first of each host in 10.1.0.0/16 and
//! fd00:1::/64, the second in 10.2.0.0/16, and so on. 10.0.0.0/16 is the network beside the fabric.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::topology::{Host, PortType};

const PREFIX: u8 = 16;
const PREFIX_6: u8 = 64;

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// What it is called in the guest: its name in the topology.
    pub name: String,
    /// How the guest finds it.
    pub place: Place,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its other address.
    pub address_6: Ipv6Addr,
    /// MTU, if not the driver's.
    pub mtu: Option<u16>,
}

/// How a guest finds a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is that of the adapter with this place in the order of PCI addresses, the first is 1.
    Adapter(usize),
    /// It has this hardware address.
    Mac(String),
}

/// The devices of the host with that place in the topology, the first is 0.
pub fn devices(host: &Host, index: usize) -> Vec<Device> {
    let adapters = host.hcas.iter().enumerate().map(|(number, hca)| {
        let is_ethernet = hca.port_type == PortType::Eth;
        is_ethernet.then(|| (hca.name.clone(), Place::Adapter(number + 1), None))
    });
    let cards = host.nics.iter().map(|nic| Some((nic.name.clone(), Place::Mac(nic.mac.clone()), nic.mtu)));
    // Those that are InfiniBand keep their network free.
    let all = adapters.chain(cards).enumerate();
    all.filter_map(|(network, device)| {
        let (name, place, mtu) = device?;
        let network = u8::try_from(network + 1).ok()?;
        let [.., high, low] = (index as u32 + 1).to_be_bytes();
        Some(Device {
            name,
            place,
            address: Ipv4Addr::new(10, network, high, low),
            address_6: Ipv6Addr::new(0xfd00, network.into(), 0, 0, 0, 0, 0, u16::from_be_bytes([high, low])),
            mtu,
        })
    })
    .collect()
}

impl Device {
    /// Lines of `/etc/hosts`: `HOST-DEVICE` is the one address, `HOST-DEVICE-6` the other.
    pub fn names(&self, host: &str) -> String {
        let Device { name, address, address_6, .. } = self;
        format!("{address} {host}-{name}\n{address_6} {host}-{name}-6\n")
    }
}

/// What `hca-net` reads: a line for each device.
pub(super) fn table(devices: &[Device]) -> String {
    let line = |device: &Device| {
        let place = match &device.place {
            Place::Adapter(number) => format!("adapter {number}"),
            Place::Mac(mac) => format!("mac {mac}"),
        };
        let mtu = device.mtu.map_or("-".to_owned(), |mtu| mtu.to_string());
        let Device { name, address, address_6, .. } = device;
        format!("{place} {name} {address}/{PREFIX} {address_6}/{PREFIX_6} {mtu}\n")
    };
    devices.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_network() {
        let text = r#"{"name":"b","memory_bytes":1,"cpus":1,
            "hcas":[{"name":"hca0","socket":"x"},{"name":"e","socket":"y","port_type":"eth"}],
            "nics":[{"name":"nic0","mac":"02:00:00:00:00:01","mtu":9000,"local":"l","remote":"r"}]}"#;
        let host: Host = serde_json::from_str(text).unwrap();
        let devices = devices(&host, 1);
        assert_eq!(
            table(&devices),
            "adapter 2 e 10.2.0.2/16 fd00:2::2/64 -\nmac 02:00:00:00:00:01 nic0 10.3.0.2/16 fd00:3::2/64 9000\n"
        );
        assert_eq!(devices[0].names("b"), "10.2.0.2 b-e\nfd00:2::2 b-e-6\n");
    }
}
