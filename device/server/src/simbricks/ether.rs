//! Messages of softhca in Ethernet frames, which others' switches, wires and captures carry.
//!
//! | offset | what |
//! |---|---|
//! | 0 | where it goes: the address of the link's other end (6) |
//! | 6 | where it comes from (6) |
//! | 12 | type: 0x88b5, for local experiments (IEEE 802 9.2.3), big endian |
//! | 14 | length of the message, little endian (2) |
//! | 16 | the message; then zeroes, up to 60 bytes of frame (IEEE 802.3 3.2.8) |
//!
//! Each end of a link has an address of its own, locally administered: 02:53:48, the number of the link (2), the end (1). A switch floods
//! what it does not know; who is not meant leaves it alone.

use super::LinkError;

/// Bytes before a message.
pub const HEADER: usize = 16;
/// The shortest frame without FCS.
const SHORTEST: usize = 60;
/// The type of the frames.
const TYPE: [u8; 2] = [0x88, 0xb5];
/// What addresses begin with.
const PREFIX: [u8; 3] = [0x02, 0x53, 0x48];

/// Two ends of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stations {
    here: [u8; 6],
    there: [u8; 6],
}

impl Stations {
    /// Those of a link, by its number, as seen from one of its ends: 0 or 1.
    pub fn new(link: u16, here: usize) -> Self {
        let [a, b, c] = PREFIX;
        let [high, low] = link.to_be_bytes();
        let station = |end: usize| [a, b, c, high, low, u8::from(end != 0)];
        Self { here: station(here), there: station(1 - here.min(1)) }
    }

    /// What goes before a message of that length, and how many zeroes behind it. `None`: no frame is as long.
    pub(super) fn around(&self, len: usize) -> Option<([u8; HEADER], usize)> {
        let length = u16::try_from(len).ok()?.to_le_bytes();
        let mut header = [0; HEADER];
        let bytes = self.there.iter().chain(&self.here).chain(&TYPE).chain(&length);
        header.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Some((header, SHORTEST.saturating_sub(HEADER + len)))
    }

    /// Leaves of a frame the message. False: it is for somebody else.
    ///
    /// # Errors
    /// It is for this end, and not from the other one, or there is no such message in it.
    pub fn unwrap(&self, frame: &mut Vec<u8>) -> Result<bool, LinkError> {
        let bad = LinkError::Frame(frame.len());
        let Some((to, rest)) = frame.split_first_chunk::<6>() else { return Err(bad) };
        let Some((from, rest)) = rest.split_first_chunk::<6>() else { return Err(bad) };
        let Some((kind, rest)) = rest.split_first_chunk::<2>() else { return Err(bad) };
        if *to != self.here || *kind != TYPE {
            return Ok(false);
        }
        if *from != self.there {
            return Err(LinkError::Stranger(*from));
        }
        let Some((length, message)) = rest.split_first_chunk::<2>() else { return Err(bad) };
        let length = usize::from(u16::from_le_bytes(*length));
        if message.len() < length {
            return Err(bad);
        }
        frame.drain(..HEADER);
        frame.truncate(length);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wrap(stations: &Stations, message: &[u8]) -> Vec<u8> {
        let (header, pad) = stations.around(message.len()).unwrap();
        [&header[..], message, &vec![0; pad]].concat()
    }

    #[test]
    fn golden_bytes() {
        let here = Stations::new(0x0102, 0);
        let frame = wrap(&here, b"abc");
        let head = [2, 0x53, 0x48, 1, 2, 1, 2, 0x53, 0x48, 1, 2, 0, 0x88, 0xb5, 3, 0, b'a', b'b', b'c'];
        assert_eq!((&frame[..19], frame.len()), (&head[..], 60));
        assert!(frame[19..].iter().all(|byte| *byte == 0));
        assert_eq!(here.around(1 << 16), None);
    }

    #[test]
    fn who_is_meant_takes_it() {
        let [here, there] = [0, 1].map(|end| Stations::new(7, end));
        for message in [&[][..], &[9; 44], &[9; 45], &[3; 4000]] {
            let mut frame = wrap(&here, message);
            assert!(there.unwrap(&mut frame).unwrap());
            assert_eq!(frame, message);
            // It comes back to its sender, or to another link, from a switch that floods.
            for other in [here, Stations::new(8, 0), Stations::new(8, 1)] {
                assert!(!other.unwrap(&mut wrap(&here, message)).unwrap());
            }
        }
        let mut other = wrap(&here, b"x");
        other[12] = 8;
        assert!(!there.unwrap(&mut other).unwrap());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let [here, there] = [0, 1].map(|end| Stations::new(7, end));
        let refused = |mut frame: Vec<u8>| there.unwrap(&mut frame).unwrap_err().to_string();
        assert!(refused(vec![0; 13]).contains("13 bytes"));
        assert!(refused(wrap(&here, b"x")[..15].to_vec()).contains("15 bytes"));
        let mut long = wrap(&here, b"x");
        long[14] = 45;
        assert!(refused(long).contains("60 bytes"));
        let mut stranger = wrap(&here, b"x");
        stranger[11] = 9;
        assert!(refused(stranger).contains("02:53:48:00:07:09"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(
            mut frame in prop::collection::vec(any::<u8>(), 0..100),
            meant in any::<bool>(),
            length in any::<u16>(),
        ) {
            let there = Stations::new(7, 1);
            let (header, _) = Stations::new(7, 0).around(length.into()).unwrap();
            if meant {
                frame.iter_mut().zip(header).for_each(|(to, from)| *to = from);
            }
            let len = frame.len();
            if there.unwrap(&mut frame).is_ok_and(|ours| ours) {
                prop_assert!(frame.len() + HEADER <= len);
            }
        }
    }
}
