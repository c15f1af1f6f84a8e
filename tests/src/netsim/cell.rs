//! The axes of the matrix and their names.

use hca_model::Ps;
use hca_model::link::Faults;
use std::fmt;
use std::str::FromStr;

/// Transport service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// What goes wrong on the links.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Fault {
    /// Packets are lost.
    Loss,
    /// Packets overtake each other.
    Reorder,
    /// Packets arrive twice.
    Duplicate,
    /// Bits flip on a cable: the VCRC is wrong.
    Corrupt,
    /// Bits flip within a switch: the VCRC is right, the ICRC is not.
    Inside,
    /// Packets are late, in order.
    Delay,
    /// A little of everything.
    Mix,
    /// So much loss and so few retries that connections give up.
    Storm,
}

/// Message size, relative to the path MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Size {
    /// No byte.
    Zero,
    /// One byte.
    One,
    /// One byte less than a packet.
    Below,
    /// A packet.
    Mtu,
    /// One byte more than a packet.
    Above,
    /// Several packets, the last one odd.
    Several,
    /// 1 MiB.
    Mebibyte,
}

/// Who talks to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Shape {
    /// Cables between two adapters each; connections over the cables and within adapters.
    Pairs,
    /// A star; each adapter talks to the next.
    Ring,
    /// A star; each adapter talks to each.
    All,
}

/// A topology.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Net {
    /// Who talks to whom.
    pub shape: Shape,
    /// Adapters, 2..=16.
    pub hcas: usize,
}

/// One combination.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Cell {
    /// Transport service.
    pub service: Service,
    /// What goes wrong.
    pub fault: Fault,
    /// Message size.
    pub size: Size,
    /// Topology.
    pub net: Net,
}

const SERVICES: [(Service, &str); 3] = [(Service::Rc, "rc"), (Service::Uc, "uc"), (Service::Ud, "ud")];
const FAULTS: [(Fault, &str); 8] = [
    (Fault::Loss, "loss"),
    (Fault::Reorder, "reorder"),
    (Fault::Duplicate, "duplicate"),
    (Fault::Corrupt, "corrupt"),
    (Fault::Inside, "corrupt-inside"),
    (Fault::Delay, "delay"),
    (Fault::Mix, "mix"),
    (Fault::Storm, "storm"),
];
const SIZES: [(Size, &str); 7] = [
    (Size::Zero, "0"),
    (Size::One, "1"),
    (Size::Below, "mtu-1"),
    (Size::Mtu, "mtu"),
    (Size::Above, "mtu+1"),
    (Size::Several, "several"),
    (Size::Mebibyte, "1mib"),
];
const SHAPES: [(Shape, &str); 3] = [(Shape::Pairs, "pairs"), (Shape::Ring, "ring"), (Shape::All, "all")];
const NETS: [Net; 10] = [
    Net { shape: Shape::Pairs, hcas: 2 },
    Net { shape: Shape::Pairs, hcas: 8 },
    Net { shape: Shape::Pairs, hcas: 16 },
    Net { shape: Shape::Ring, hcas: 3 },
    Net { shape: Shape::Ring, hcas: 7 },
    Net { shape: Shape::Ring, hcas: 16 },
    Net { shape: Shape::All, hcas: 3 },
    Net { shape: Shape::All, hcas: 5 },
    Net { shape: Shape::All, hcas: 8 },
    Net { shape: Shape::All, hcas: 16 },
];

/// Payload of a datagram: what the port's MTU allows.
pub(super) const DATAGRAM_MTU: usize = 4096;
const MEBIBYTE: usize = 1 << 20;

impl Size {
    /// In bytes, for that MTU.
    pub const fn bytes(self, mtu: usize) -> usize {
        match self {
            Self::Zero => 0,
            Self::One => 1,
            Self::Below => mtu - 1,
            Self::Mtu => mtu,
            Self::Above => mtu + 1,
            Self::Several => 5 * mtu + 13,
            Self::Mebibyte => MEBIBYTE,
        }
    }
}

impl Fault {
    /// The faults of a link for messages of so many packets: the longer the messages, the rarer, so that whole
    /// ones come through on services that repair nothing.
    pub fn on_link(self, packets: usize, repaired: bool) -> Faults {
        let often = if repaired { 0.03 } else { (0.4 / packets as f64).min(0.1) };
        let none = Faults { delay_by: Ps::from_us(4), ..Faults::default() };
        match self {
            Self::Loss => Faults { loss: often, ..none },
            Self::Reorder => Faults { reorder: often, ..none },
            Self::Duplicate => Faults { duplicate: 3.0 * often, ..none },
            Self::Corrupt => Faults { corrupt: often, ..none },
            Self::Inside => none,
            Self::Delay => Faults { delay: 3.0 * often, ..none },
            Self::Mix => {
                let (some, less) = (often / 2.0, often / 4.0);
                Faults { loss: less, reorder: less, corrupt: less, duplicate: some, delay: some, ..none }
            }
            Self::Storm => Faults { loss: 0.6, ..none },
        }
    }

    /// How often the star itself spoils a packet.
    pub(super) fn inside_star(self, packets: usize, repaired: bool) -> f64 {
        match self {
            Self::Inside => Self::Corrupt.on_link(packets, repaired).corrupt,
            _ => 0.0,
        }
    }

    /// Whether a packet may arrive twice, or behind one that was sent later: what a service that repairs nothing
    /// then shows its user.
    pub const fn repeats(self) -> bool {
        matches!(self, Self::Duplicate | Self::Reorder | Self::Mix)
    }
}

impl Cell {
    /// Whether it is part of the matrix: spoiling within a switch needs a star, giving up a reliable service, and
    /// 240 flows of 1 MiB messages more memory than a test should take.
    fn is_possible(&self) -> bool {
        let pairs = self.net.shape == Shape::Pairs;
        let huge = self.size == Size::Mebibyte && self.net.shape == Shape::All && self.net.hcas > 8;
        !huge
            && (self.fault != Fault::Inside || !pairs)
            && (self.fault != Fault::Storm || self.service == Service::Rc)
    }
}

/// Every combination.
pub fn matrix() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (service, _) in SERVICES {
        for (fault, _) in FAULTS {
            for (size, _) in SIZES {
                cells.extend(NETS.map(|net| Cell { service, fault, size, net }));
            }
        }
    }
    cells.retain(Cell::is_possible);
    cells
}

/// A few combinations in which every value of each axis occurs, and each service meets each fault.
pub fn fast() -> Vec<Cell> {
    let small = |cell: &Cell| cell.net.hcas <= 8 && (cell.size != Size::Mebibyte || cell.net.hcas <= 3);
    let mut cells: Vec<Cell> = matrix().into_iter().filter(small).step_by(12).collect();
    let biggest = Net { shape: Shape::All, hcas: 16 };
    cells.extend(SERVICES.map(|(service, _)| Cell {
        service,
        fault: Fault::Mix,
        size: Size::Above,
        net: biggest,
    }));
    cells
}

fn name<T: PartialEq>(of: &[(T, &'static str)], value: &T) -> &'static str {
    of.iter().find(|(v, _)| v == value).map_or("?", |(_, name)| name)
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { service, fault, size, net } = self;
        let (service, fault) = (name(&SERVICES, service), name(&FAULTS, fault));
        write!(f, "{service}/{fault}/{}/{}-{}", name(&SIZES, size), name(&SHAPES, &net.shape), net.hcas)
    }
}

impl FromStr for Cell {
    type Err = String;

    /// Takes what `Display` prints.
    fn from_str(text: &str) -> Result<Self, String> {
        let found = matrix().into_iter().find(|cell| cell.to_string() == text);
        found.ok_or_else(|| {
            format!("no cell {text:?}: SERVICE/FAULT/SIZE/SHAPE-HCAS, such as rc/loss/mtu+1/ring-7")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_round_trip() {
        for cell in matrix() {
            assert_eq!(cell.to_string().parse(), Ok(cell));
        }
        assert!("rc/loss".parse::<Cell>().is_err());
    }

    #[test]
    fn the_fast_subset_reaches_everything() {
        let of = |cells: &[Cell]| -> [HashSet<String>; 4] {
            let set = |f: fn(&Cell) -> String| cells.iter().map(f).collect();
            [
                set(|c| format!("{:?} {:?}", c.service, c.fault)),
                set(|c| format!("{:?} {:?}", c.service, c.size)),
                set(|c| format!("{:?} {:?}", c.service, c.net.shape)),
                set(|c| format!("{:?} {:?}", c.fault, c.net.shape)),
            ]
        };
        let (all, few) = (matrix(), fast());
        assert!(few.len() * 8 < all.len());
        for (all, few) in of(&all).iter().zip(of(&few)) {
            assert_eq!(all.difference(&few).collect::<Vec<_>>(), Vec::<&String>::new());
        }
    }
}
