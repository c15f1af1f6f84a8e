//! Version negotiation ("VFIO_USER_VERSION").
//!
//! Anything legal is tolerated: no version data at all, unknown capabilities, capabilities of a
//! newer minor version. Only what cannot be understood (another major version, text that is not
//! JSON, a capability of the wrong type) is refused.

use nix::errno::Errno;
use serde_json::{Value, json};

use super::wire::{Fields, MAX_DATA_XFER, MAX_MSG_FDS};
use crate::memory::MAX_WINDOWS;

/// Major version of the protocol spoken here.
const MAJOR: u16 = 0;
/// Highest minor version spoken here.
const MINOR: u16 = 1;
/// `max_data_xfer_size` of a peer that names none.
const DEFAULT_DATA_XFER: u64 = 1 << 20;
/// Smallest `max_data_xfer_size` of a peer: a page. Otherwise one DMA of the adapter would be thousands of messages.
const MIN_DATA_XFER: u64 = 4096;
/// Bytes of a VERSION message that are read: QEMU sends some 200.
const LONGEST: usize = 4096;
/// Page sizes of DMA windows that we serve, or'ed: 4 KiB.
const PAGE_SIZES: u64 = 4096;

/// What a client told about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientCaps {
    /// Minor version both sides will use.
    pub minor: u16,
    /// Largest `count` of a DMA message to the client.
    pub max_data_xfer: usize,
    /// True if `REGION_WRITE_MULTI` was offered.
    pub write_multiple: bool,
}

/// Parses the payload of a client's VERSION message.
///
/// # Errors
/// `EINVAL` with a reason if the payload is short, another major version, or not understandable.
pub fn parse(payload: &[u8]) -> Result<ClientCaps, (Errno, String)> {
    let refuse = |reason: String| (Errno::EINVAL, reason);
    if payload.len() > LONGEST {
        return Err(refuse(format!(
            "version message of {} bytes, at most {LONGEST} are read",
            payload.len()
        )));
    }
    let mut fields = Fields(payload);
    let (Ok(major), Ok(minor)) = (fields.u16(), fields.u16()) else {
        return Err(refuse("message is shorter than its fixed part".into()));
    };
    if major != MAJOR {
        return Err(refuse(format!("protocol {major}.{minor} asked for, only {MAJOR}.x is spoken")));
    }
    let text = fields.0.split(|&b| b == 0).next().unwrap_or_default();
    let data: Value = if text.is_empty() {
        Value::Object(Default::default())
    } else {
        serde_json::from_slice(text).map_err(|e| refuse(format!("version data is not JSON: {e}")))?
    };
    if !data.is_object() {
        return Err(refuse("version data is not a JSON object".into()));
    }
    let caps = match data.get("capabilities") {
        None | Some(Value::Null) => &Value::Null,
        Some(caps @ Value::Object(_)) => caps,
        Some(other) => {
            return Err(refuse(format!("capabilities is not an object: {other}")));
        }
    };
    let number = |key: &str, default: u64| match caps.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => {
            value.as_u64().ok_or_else(|| refuse(format!("capability {key} is not a number: {value}")))
        }
    };
    let max_data_xfer = number("max_data_xfer_size", DEFAULT_DATA_XFER)?;
    if max_data_xfer < MIN_DATA_XFER {
        return Err(refuse(format!(
            "max_data_xfer_size {max_data_xfer}: no less than {MIN_DATA_XFER} bytes are served"
        )));
    }
    // Not used by us, but a wrong type shows a confused client.
    number("max_msg_fds", 1)?;
    number("max_dma_maps", 0)?;
    let write_multiple = match caps.get("write_multiple") {
        None | Some(Value::Null) => false,
        Some(value) => value
            .as_bool()
            .ok_or_else(|| refuse(format!("capability write_multiple is not true or false: {value}")))?,
    };
    Ok(ClientCaps {
        minor: minor.min(MINOR),
        max_data_xfer: usize::try_from(max_data_xfer).unwrap_or(MAX_DATA_XFER).min(MAX_DATA_XFER),
        write_multiple,
    })
}

/// The payload of our VERSION reply.
pub fn reply(caps: &ClientCaps) -> Vec<u8> {
    let mut offered = json!({
        "max_msg_fds": MAX_MSG_FDS,
        "max_data_xfer_size": MAX_DATA_XFER,
        "max_dma_maps": MAX_WINDOWS,
        "pgsizes": PAGE_SIZES,
    });
    if caps.write_multiple
        && let Some(map) = offered.as_object_mut()
    {
        map.insert("write_multiple".into(), Value::Bool(true));
    }
    let mut out = Vec::new();
    out.extend_from_slice(&MAJOR.to_ne_bytes());
    out.extend_from_slice(&caps.minor.to_ne_bytes());
    out.extend_from_slice(json!({ "capabilities": offered }).to_string().as_bytes());
    out.push(0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_not_read() {
        let long = format!("{{{}}}", " ".repeat(LONGEST));
        let (errno, why) = parse(&message(0, 1, &long)).unwrap_err();
        assert!(errno == Errno::EINVAL && why.contains("at most 4096"), "{why}");
    }

    fn message(major: u16, minor: u16, json: &str) -> Vec<u8> {
        let mut out = major.to_ne_bytes().to_vec();
        out.extend_from_slice(&minor.to_ne_bytes());
        out.extend_from_slice(json.as_bytes());
        out
    }

    #[test]
    fn legal_forms_are_accepted() {
        let qemu = r#"{"capabilities":{"pgsizes":4096,"max_msg_fds":16,"max_dma_maps":65535,
            "max_data_xfer_size":1048576,"migration":{"pgsize":4096,"max_bitmap_size":268435456},
            "write_multiple":true}}"#;
        let caps = parse(&message(0, 0, &format!("{qemu}\0"))).unwrap();
        assert_eq!(caps, ClientCaps { minor: 0, max_data_xfer: 1 << 20, write_multiple: true });
        for json in [
            "",
            "\0",
            "{}\0",
            r#"{"capabilities":{}}"#,
            r#"{"capabilities":{"migration":{}}}"#,
            r#"{"capabilities":{"unheard_of":[1,2]},"also":3}"#,
        ] {
            assert!(parse(&message(0, 9, json)).is_ok(), "{json:?}");
        }
        assert_eq!(parse(&message(0, 9, "")).unwrap().minor, MINOR);
    }

    #[test]
    fn nonsense_is_refused() {
        for payload in [
            Vec::new(),
            vec![0, 0],
            message(1, 0, "{}\0"),
            message(0, 0, "{\0"),
            message(0, 0, "[]\0"),
            message(0, 0, r#"{"capabilities":3}"#),
            message(0, 0, r#"{"capabilities":{"max_msg_fds":"x"}}"#),
            message(0, 0, r#"{"capabilities":{"max_data_xfer_size":-1}}"#),
            message(0, 0, "\u{fffd}\u{fffd}"),
        ] {
            assert!(parse(&payload).is_err(), "{payload:?}");
        }
    }

    #[test]
    fn transfers_below_a_page_are_refused() {
        let with = |size: u64| {
            parse(&message(0, 0, &format!("{{\"capabilities\":{{\"max_data_xfer_size\":{size}}}}}")))
        };
        for size in [0, 1, 4095] {
            assert!(with(size).unwrap_err().1.contains("max_data_xfer_size"), "{size}");
        }
        assert_eq!(with(4096).unwrap().max_data_xfer, 4096);
        assert_eq!(with(u64::MAX).unwrap().max_data_xfer, MAX_DATA_XFER);
    }

    #[test]
    fn reply_is_nul_terminated_json() {
        let caps = parse(&message(0, 0, "")).unwrap();
        let bytes = reply(&caps);
        let (nul, text) = bytes[4..].split_last().unwrap();
        assert_eq!(*nul, 0);
        let json: Value = serde_json::from_slice(text).unwrap();
        assert_eq!(json["capabilities"]["max_msg_fds"], MAX_MSG_FDS);
        assert!(json["capabilities"].get("write_multiple").is_none());
    }
}
