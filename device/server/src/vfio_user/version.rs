//! Version negotiation ("VFIO_USER_VERSION").
//!
//! Anything legal is tolerated: no version data at all, unknown capabilities, capabilities of a
//! newer minor version, text as long as a message can be. Only what cannot be understood (another major version, text that is not
//! JSON, a capability of the wrong type) is refused.

use std::fmt;

use nix::errno::Errno;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
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

/// Parses the payload of a client's VERSION message, in one go: nothing is kept of what is not asked for, so that the largest message, 1 MiB,
/// costs some 3 ms at worst, once on a connection.
///
/// # Errors
/// `EINVAL` with a reason if the payload is short, another major version, or not understandable.
pub fn parse(payload: &[u8]) -> Result<ClientCaps, (Errno, String)> {
    let refuse = |reason: String| (Errno::EINVAL, reason);
    let mut fields = Fields(payload);
    let (Ok(major), Ok(minor)) = (fields.u16(), fields.u16()) else {
        return Err(refuse("message is shorter than its fixed part".into()));
    };
    if major != MAJOR {
        return Err(refuse(format!("protocol {major}.{minor} asked for, only {MAJOR}.x is spoken")));
    }
    let text = fields.0.split(|&b| b == 0).next().unwrap_or_default();
    let Data(offered) = if text.is_empty() {
        Data::default()
    } else {
        let text = std::str::from_utf8(text).map_err(|e| refuse(format!("version data is not text: {e}")))?;
        serde_json::from_str(text).map_err(|e| refuse(format!("version data: {e}")))?
    };
    let number = |key: &str, given: Given, default: u64| match given {
        Given::Nothing => Ok(default),
        Given::Number(number) => Ok(number),
        Given::Truth(_) => Err(refuse(format!("capability {key} is not a number"))),
    };
    let max_data_xfer = number("max_data_xfer_size", offered.max_data_xfer_size, DEFAULT_DATA_XFER)?;
    if max_data_xfer < MIN_DATA_XFER {
        return Err(refuse(format!(
            "max_data_xfer_size {max_data_xfer}: no less than {MIN_DATA_XFER} bytes are served"
        )));
    }
    // Not used by us, but a wrong type shows a confused client.
    number("max_msg_fds", offered.max_msg_fds, 1)?;
    number("max_dma_maps", offered.max_dma_maps, 0)?;
    let write_multiple = match offered.write_multiple {
        Given::Nothing => false,
        Given::Truth(offered) => offered,
        Given::Number(_) => {
            return Err(refuse("capability write_multiple is not true or false".into()));
        }
    };
    Ok(ClientCaps {
        minor: minor.min(MINOR),
        max_data_xfer: usize::try_from(max_data_xfer).unwrap_or(MAX_DATA_XFER).min(MAX_DATA_XFER),
        write_multiple,
    })
}

/// What is asked for in version data: an object with capabilities, or without.
#[derive(Default)]
struct Data(Offered);

/// The capabilities that are looked at. Of several with one name the last counts.
#[derive(Clone, Copy, Default)]
struct Offered {
    max_msg_fds: Given,
    max_data_xfer_size: Given,
    max_dma_maps: Given,
    write_multiple: Given,
}

/// The value of a capability that is looked at: anything else is refused where it begins.
#[derive(Clone, Copy, Default)]
enum Given {
    /// None, or null.
    #[default]
    Nothing,
    Number(u64),
    Truth(bool),
}

/// The name of a capability.
#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Name {
    Capabilities,
    MaxMsgFds,
    MaxDataXferSize,
    MaxDmaMaps,
    WriteMultiple,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Data, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Data;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Data, A::Error> {
                let mut data = Data::default();
                while let Some(name) = map.next_key()? {
                    match name {
                        Name::Capabilities => data.0 = map.next_value()?,
                        _ => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                Ok(data)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl<'de> Deserialize<'de> for Offered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Offered, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Offered;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of capabilities")
            }
            fn visit_unit<E>(self) -> Result<Offered, E> {
                Ok(Offered::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Offered, A::Error> {
                let mut offered = Offered::default();
                while let Some(name) = map.next_key()? {
                    let (place, name) = match name {
                        Name::MaxMsgFds => (&mut offered.max_msg_fds, "max_msg_fds"),
                        Name::MaxDataXferSize => (&mut offered.max_data_xfer_size, "max_data_xfer_size"),
                        Name::MaxDmaMaps => (&mut offered.max_dma_maps, "max_dma_maps"),
                        Name::WriteMultiple => (&mut offered.write_multiple, "write_multiple"),
                        Name::Capabilities | Name::Other => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *place =
                        map.next_value().map_err(|e| A::Error::custom(format!("capability {name}: {e}")))?;
                }
                Ok(offered)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Given, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Given;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or true or false")
            }
            fn visit_unit<E>(self) -> Result<Given, E> {
                Ok(Given::Nothing)
            }
            fn visit_bool<E>(self, truth: bool) -> Result<Given, E> {
                Ok(Given::Truth(truth))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Given, E> {
                Ok(Given::Number(number))
            }
        }
        deserializer.deserialize_any(Reader)
    }
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
    use super::super::wire::{HEADER_LEN, MAX_MESSAGE};
    use super::*;

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
            r#"{"capabilities":null}"#,
            r#"{"capabilities":{"max_msg_fds":null,"write_multiple":null}}"#,
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
            message(0, 0, r#"{"capabilities":{"max_data_xfer_size":4096.5}}"#),
            message(0, 0, r#"{"capabilities":{"max_data_xfer_size":[4096]}}"#),
            message(0, 0, r#"{"capabilities":{"max_dma_maps":true}}"#),
            message(0, 0, r#"{"capabilities":{"write_multiple":1}}"#),
            message(0, 0, r#"{"capabilities":{"write_multiple":{}}}"#),
            message(0, 0, r#"{"capabilities":{}}}"#),
            message(0, 0, "\u{fffd}\u{fffd}"),
        ] {
            assert!(parse(&payload).is_err(), "{payload:?}");
        }
    }

    /// What is behind much that nobody asks for is found, whatever that is.
    #[test]
    fn text_is_as_long_as_a_message() {
        let size = MAX_MESSAGE - HEADER_LEN - 200;
        let (open, close) = ("[".repeat(size / 2), "]".repeat(size / 2));
        let pairs = "\"\":0,".repeat(size / 5);
        for unheard_of in
            [format!("\"text\":\"{}\",", "x".repeat(size)), format!("\"deep\":{open}{close},"), pairs]
        {
            let json =
                format!("{{{unheard_of}\"capabilities\":{{{unheard_of}\"max_data_xfer_size\":4096}}}}");
            assert_eq!(parse(&message(0, 1, &json)).unwrap().max_data_xfer, 4096);
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
