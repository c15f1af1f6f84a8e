//! Traffic classes of an Ethernet port: which class a priority is in, which class sends next, and by what the priority of a
//! frame that arrives is told.
//!
//! Source: IEEE 802.1Q 8.6.8 and clause 37 (transmission selection, ETS), RFC 2474 (DSCP); PRM "QTCT", "QETCR", "QPTS",
//! "QPDPM".

use super::ethernet::PRIORITIES;
use crate::limits::TRAFFIC_CLASSES;

/// Traffic classes, and groups of them.
pub const CLASSES: usize = TRAFFIC_CLASSES;
/// Code points of differentiated services.
pub const CODE_POINTS: usize = 64;

/// A traffic class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Its group: one with a higher number sends first.
    pub group: u8,
    /// Percent of what its group gets. A class without a share sends when no class of its group with one has something.
    pub share: u8,
    /// Most that it sends, in Mb/s; `None`: as much as there is room for.
    pub limit: Option<u32>,
}

/// By what a port tells the priority of frames that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// The VLAN tag; without one it is 0.
    #[default]
    Tag,
    /// The code point of IP; that of what is not IP is told by the tag.
    CodePoint,
}

/// Traffic classes of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    /// The class of each priority.
    pub of_priority: [u8; PRIORITIES],
    /// The classes.
    pub classes: [Class; CLASSES],
    /// Most that the port sends, in Mb/s.
    pub limit: Option<u32>,
    /// By what the priority of frames is told.
    pub trust: Trust,
    /// The priority of each code point.
    pub of_code_point: [u8; CODE_POINTS],
}

impl Default for Classes {
    /// At power-on: a class for each priority, all equal; priorities of code points by their upper three bits (RFC 2474 4.2.2).
    fn default() -> Self {
        const EQUAL: Class = Class { group: 0, share: 100, limit: None };
        Self {
            of_priority: std::array::from_fn(|priority| priority as u8),
            classes: [EQUAL; CLASSES],
            limit: None,
            trust: Trust::default(),
            of_code_point: std::array::from_fn(|point| (point >> 3) as u8),
        }
    }
}

impl Classes {
    /// The priority of a frame that arrives, by what the port trusts: of its tag, and its code point, if it has them.
    pub fn priority(&self, tag: Option<u8>, code_point: Option<u8>) -> u8 {
        let trusted = code_point.filter(|_| self.trust == Trust::CodePoint);
        match trusted.and_then(|point| self.of_code_point.get(usize::from(point))) {
            Some(priority) => *priority,
            None => tag.unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities() {
        let mut classes = Classes::default();
        assert_eq!((classes.priority(Some(5), Some(46)), classes.priority(None, Some(46))), (5, 0));
        classes.trust = Trust::CodePoint;
        assert_eq!((classes.priority(Some(2), Some(46)), classes.priority(Some(2), None)), (5, 2));
        classes.of_code_point[46] = 7;
        assert_eq!((classes.priority(None, Some(46)), classes.priority(None, None)), (7, 0));
    }
}
