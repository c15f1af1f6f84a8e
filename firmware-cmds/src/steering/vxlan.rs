//! UDP ports at which packets are looked into for VXLAN.

use hca_spec::ether::VXLAN_PORT;

/// As many as drivers take for granted where the capabilities tell of none (mlx5 driver, `lib/vxlan.c`).
pub const MOST_VXLAN_PORTS: usize = 4;

/// The ports: the usual one, and those that a driver added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanPorts {
    ports: [u16; MOST_VXLAN_PORTS],
    count: usize,
}

impl Default for VxlanPorts {
    fn default() -> Self {
        let mut ports = [0; MOST_VXLAN_PORTS];
        ports[0] = VXLAN_PORT;
        Self { ports, count: 1 }
    }
}

impl VxlanPorts {
    /// All of them.
    #[inline]
    pub fn as_slice(&self) -> &[u16] {
        self.ports.get(..self.count).unwrap_or_default()
    }

    /// Adds a port that is not there yet. `None`: there is no room.
    pub fn add(&mut self, port: u16) -> Option<()> {
        if self.as_slice().contains(&port) {
            return Some(());
        }
        *self.ports.get_mut(self.count)? = port;
        self.count += 1;
        Some(())
    }

    /// Takes a port out; the usual one stays. `None`: it is not there.
    pub fn remove(&mut self, port: u16) -> Option<()> {
        let at = self.as_slice().iter().position(|there| *there == port)?;
        if port != VXLAN_PORT {
            self.ports.get_mut(at..self.count)?.rotate_left(1);
            self.count = self.count.saturating_sub(1);
        }
        Some(())
    }
}
