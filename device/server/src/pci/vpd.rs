//! Vital product data: what a card says of itself, behind two registers.
//!
//! Source: "PCI Local Bus Specification" 3.0, appendix I; PCIe 7.9.18. The data is written at the factory: it can't be written here.

use hca_model::personality::Personality;

/// Offset of the address in the capability: bits 14..0, and a flag. Who writes 0 there asks for four bytes, and reads 1 when
/// they are in the data register; who writes 1 wants them written, and reads 0 when that is done.
pub(super) const ADDRESS: usize = 0x02;
/// Offset of the data.
pub(super) const DATA: usize = 0x04;
/// The flag.
pub(super) const FLAG: u16 = 1 << 15;

const IDENTIFIER: u8 = 0x82;
const READ_ONLY: u8 = 0x90;
const END: u8 = 0x78;

/// The data of an adapter of that kind with that serial number.
pub(super) fn data(kind: &Personality, serial: &str) -> Vec<u8> {
    /// A large resource with its length.
    fn resource(tag: u8, bytes: &[u8]) -> Vec<u8> {
        let [low, high] = u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes();
        [&[tag, low, high], bytes].concat()
    }
    fn field(keyword: [u8; 2], bytes: &[u8]) -> Vec<u8> {
        let [a, b] = keyword;
        [&[a, b, u8::try_from(bytes.len()).unwrap_or(u8::MAX)], bytes].concat()
    }
    let mut data = resource(IDENTIFIER, kind.product.as_bytes());
    let lanes = format!("PCIeGen{} x{}", kind.pci.link.speed as u8, kind.pci.link.lanes);
    let mut fields = [
        field(*b"PN", kind.part_number.as_bytes()),
        field(*b"EC", b"A1"),
        field(*b"SN", serial.as_bytes()),
        field(*b"V0", lanes.as_bytes()),
    ]
    .concat();
    // Its one byte makes the sum of all up to it zero.
    fields.extend(field(*b"RV", &[0]));
    data.extend(resource(READ_ONLY, &fields));
    let sum = data.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    if let Some(last) = data.last_mut() {
        *last = sum.wrapping_neg();
    }
    data.push(END);
    data
}

/// Four bytes of it, as the data register has them; zeros behind the end.
pub(super) fn word(data: &[u8], at: u16) -> [u8; 4] {
    let mut word = [0; 4];
    let from = data.get(usize::from(at & !FLAG)..).unwrap_or_default();
    word.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources() {
        let data = data(&Personality::default_kind(), "0002c90300a00001");
        let name = usize::from(u16::from_le_bytes([data[1], data[2]]));
        assert_eq!((data[0], data[3 + name], data.last()), (IDENTIFIER, READ_ONLY, Some(&END)));
        assert_eq!(data[6 + name..9 + name], [b'P', b'N', 12]);
        let sum = data[..data.len() - 1].iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!(sum, 0, "checksum");
        assert!(data.windows(19).any(|w| w == b"SN\x100002c90300a00001"));
        assert_eq!(word(&data, 0)[0], IDENTIFIER);
        assert_eq!((word(&data, 0x7fff), word(&[1, 2], 1)), ([0; 4], [2, 0, 0, 0]));
    }
}
