//! Frames at the border of the model: what is let in, and in which form.
//!
//! On both sides a frame is everything from the destination address to the end of the payload. The FCS is on neither: the
//! model's links add it and check it, and a frame that was spoiled on the way does not get this far. What others may give and
//! take besides is said here, in [`to_frame`] and [`from_frame`], and nowhere else.

/// Two addresses and a type (IEEE 802.3 3.1.1): without them nothing is a frame.
const HEADER: usize = 14;
/// A MAC that sends pads to so many bytes, without FCS (IEEE 802.3 3.2.8). Other software does not.
const PADDED: usize = 60;
/// The longest that an adapter takes: an MTU of 9978, header and VLAN tag.
pub(super) const LONGEST: usize = 9978 + HEADER + 4;
/// The longest message of QEMU's sockets (`NET_BUFSIZE`, include/net/net.h).
pub(super) const MESSAGE: usize = 4096 + 65536;

/// Why something from outside is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It has not even a header.
    Short,
    /// No port takes as much.
    Long,
}

/// What came from outside, as a frame of the model.
///
/// # Errors
/// It is none.
pub(super) fn to_frame(message: &[u8]) -> Result<Vec<u8>, Refused> {
    match message.len() {
        ..HEADER => Err(Refused::Short),
        HEADER..=LONGEST => {
            let mut frame = Vec::with_capacity(message.len().max(PADDED));
            frame.extend_from_slice(message);
            frame.resize(message.len().max(PADDED), 0);
            Ok(frame)
        }
        _ => Err(Refused::Long),
    }
}

/// A frame of the model, as others take it.
///
/// # Errors
/// It is none.
pub(super) fn from_frame(frame: Vec<u8>) -> Result<Vec<u8>, Refused> {
    match frame.len() {
        ..HEADER => Err(Refused::Short),
        HEADER..=LONGEST => Ok(frame),
        _ => Err(Refused::Long),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        for (length, padded) in [
            (0, Err(Refused::Short)),
            (13, Err(Refused::Short)),
            (14, Ok(60)),
            (42, Ok(60)),
            (60, Ok(60)),
            (61, Ok(61)),
            (9996, Ok(9996)),
            (9997, Err(Refused::Long)),
            (MESSAGE, Err(Refused::Long)),
        ] {
            let message = vec![7; length];
            let frame = to_frame(&message);
            assert_eq!(
                frame.as_ref().map(Vec::len),
                padded.as_ref().map(|length: &usize| *length),
                "{length}"
            );
            if let Ok(frame) = frame {
                assert!(frame[..length].iter().all(|b| *b == 7) && frame[length..].iter().all(|b| *b == 0));
            }
            let out = from_frame(message.clone());
            assert_eq!(out.map_err(Some), padded.map(|_| message).map_err(Some), "{length}");
        }
    }
}
