//! Receive buffers of an Ethernet port: how its memory is divided, which priority is in which buffer, and when a buffer has the
//! peer wait.
//!
//! The firmware divides the memory by itself until software does: from then on nothing but software changes it.
//!
//! Source: PRM "PBMC", "PPTB"; Mellanox, "HowTo Tune Receive Buffers on Mellanox Adapter Cards" (DOC-2933: 262016 bytes, of which
//! two buffers have 130944 each at power-on); the mlx5 driver (`en/port_buffer.c`: cells of 128 bytes, who owns the buffers);
//! IEEE 802.1Q clause 36 (PFC), 802.3 annex 31B (PAUSE).

use super::ethernet::{PRIORITIES, Pause};

/// Bytes of a cell, in which buffers are counted.
pub const CELL: usize = 128;
/// Cells of a port: 262016 bytes.
pub const MEMORY: u16 = 2047;
/// Buffers that frames from the wire come into.
pub const BUFFERS: usize = 8;
/// Quanta of 512 bit times for which a peer is asked to wait, at power-on.
const XOFF_TIMER: u16 = u16::MAX;
/// Quanta after which a peer that is to wait still is asked again, at power-on: 100 us at 100 Gb/s, an estimate.
const XOFF_REFRESH: u16 = 19_531;

/// A buffer; sizes in cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Buffer {
    /// How much it has.
    pub size: u16,
    /// Frames that there is no room for are dropped, and nobody is asked to wait.
    pub lossy: bool,
    /// The peer is asked to wait when more than that is taken.
    pub xoff: u16,
    /// It is let go on when no more than that is taken.
    pub xon: u16,
}

/// How a port's memory is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    /// The buffer of each priority.
    pub of_priority: [u8; PRIORITIES],
    /// The buffers.
    pub buffers: [Buffer; BUFFERS],
}

/// Receive buffers of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    layout: Layout,
    by_software: bool,
    /// Quanta for which a peer is asked to wait; it is let go on before, or asked again.
    pub xoff_timer: u16,
    /// Quanta after which a peer that is to wait still is asked again.
    pub xoff_refresh: u16,
}

impl Layout {
    /// As the firmware divides the memory: each priority that PFC is sent for has a buffer, all others share the first. When to
    /// ask and when to let go on is each maker's own: at half and a quarter of a buffer, an estimate.
    fn by_firmware(pause: Pause) -> Self {
        let lossless = pause.pfc_tx;
        let by_itself = lossless.count_ones().max(1) as usize;
        // Nobody is left to share a first buffer if every priority has one.
        let shared = usize::from(by_itself < BUFFERS);
        let count = by_itself.saturating_add(shared);
        let size = MEMORY / u16::try_from(count).unwrap_or(u16::MAX).max(1);
        let mut layout = Self::default();
        for (i, buffer) in layout.buffers.iter_mut().enumerate() {
            let lossy = if lossless == 0 { !pause.tx } else { i < shared };
            let (xoff, xon) = if lossy { (0, 0) } else { (size / 2, size / 4) };
            *buffer = match i < count {
                true => Buffer { size, lossy, xoff, xon },
                false => Buffer { lossy: true, ..Buffer::default() },
            };
        }
        let mut next = shared as u8;
        for (priority, buffer) in layout.of_priority.iter_mut().enumerate() {
            if lossless >> priority & 1 == 1 {
                *buffer = next;
                next = next.saturating_add(1);
            }
        }
        layout
    }

    /// The buffer of a priority.
    #[inline]
    pub fn of(&self, priority: u8) -> u8 {
        let [first, ..] = self.of_priority;
        self.of_priority.get(usize::from(priority)).copied().unwrap_or(first)
    }

    /// Cells of all buffers.
    pub fn used(&self) -> u32 {
        self.buffers.iter().map(|buffer| u32::from(buffer.size)).sum()
    }
}

impl Buffers {
    /// At power-on, with that flow control.
    pub fn new(pause: Pause) -> Self {
        Self {
            layout: Layout::by_firmware(pause),
            by_software: false,
            xoff_timer: XOFF_TIMER,
            xoff_refresh: XOFF_REFRESH,
        }
    }

    /// How the memory is divided.
    #[inline]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether software divided it.
    pub const fn is_by_software(&self) -> bool {
        self.by_software
    }

    /// Flow control was changed.
    pub fn follow(&mut self, pause: Pause) {
        if !self.by_software {
            self.layout = Layout::by_firmware(pause);
        }
    }

    /// Software divides the memory.
    pub fn set(&mut self, layout: Layout) {
        (self.layout, self.by_software) = (layout, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(tx: bool, pfc_tx: u8) -> Pause {
        Pause { tx, pfc_tx, ..Pause::default() }
    }

    /// What adapters say at power-on.
    #[test]
    fn two_buffers_of_130944_bytes() {
        let buffers = Buffers::new(pause(true, 0));
        let layout = buffers.layout();
        let sizes: Vec<_> = layout.buffers.iter().map(|b| usize::from(b.size) * CELL).collect();
        assert_eq!(sizes, [130_944, 130_944, 0, 0, 0, 0, 0, 0]);
        assert_eq!((usize::from(MEMORY) * CELL, layout.of_priority), (262_016, [0; 8]));
        assert!(!layout.buffers[0].lossy && Buffers::new(pause(false, 0)).layout().buffers[0].lossy);
    }

    #[test]
    fn a_buffer_for_each_priority_with_pfc() {
        for (pfc, of_priority, count) in [
            (0b1000, [0, 0, 0, 1, 0, 0, 0, 0], 2),
            (0b1001_0001, [1, 0, 0, 0, 2, 0, 0, 3], 4),
            (0x7f, [1, 2, 3, 4, 5, 6, 7, 0], 8),
            (0xff, [0, 1, 2, 3, 4, 5, 6, 7], 8),
        ] {
            let layout = Layout::by_firmware(pause(false, pfc));
            assert_eq!(layout.of_priority, of_priority);
            assert_eq!(layout.buffers.iter().filter(|b| b.size > 0).count(), count);
            assert!(layout.used() <= MEMORY.into());
            for priority in 0..8 {
                let buffer = layout.buffers[usize::from(layout.of(priority))];
                assert_eq!(buffer.lossy, pfc >> priority & 1 == 0, "{pfc:#b} {priority}");
                assert_eq!(buffer.xon < buffer.xoff && buffer.xoff < buffer.size, !buffer.lossy);
            }
        }
    }

    #[test]
    fn software_has_the_last_word() {
        let mut buffers = Buffers::new(pause(true, 0));
        buffers.follow(pause(false, 2));
        assert_eq!((buffers.layout().of(1), buffers.is_by_software()), (1, false));
        let own = Layout { of_priority: [3; 8], ..Layout::default() };
        buffers.set(own);
        buffers.follow(pause(false, 0xff));
        assert_eq!((buffers.layout(), buffers.is_by_software(), buffers.layout().of(200)), (&own, true, 3));
    }
}
