//! What the templates of commands name.

use hca_spec::ids::Lid;

use crate::object::Kind;

/// Objects and memory that templates name ([`super::Command::template`]).
#[derive(Debug, Clone, Default)]
pub struct Fixture {
    numbers: [u32; Kind::ALL.len()],
    /// A UD queue pair, for multicast groups. That of [`Kind::Qp`] is an RC queue pair.
    pub datagram_qp: u32,
    /// The queue pair that [`Kind::Qp`] is connected to.
    pub peer_qp: u32,
    /// LID of the port where it is.
    pub peer_lid: Lid,
    /// Types of general objects that the adapter has, a bit for each.
    pub object_types: u64,
    /// General objects beside that of [`Kind::GeneralObject`], which has QP numbers: type and number.
    pub typed_objects: Vec<(u32, u32)>,
    /// DMA address of two contiguous pages for a queue.
    pub queue: u64,
    /// DMA address of a doorbell record.
    pub record: u64,
    /// DMA address of the first of [`Fixture::PAGES`] contiguous pages that the firmware does not have.
    pub pages: u64,
}

impl Fixture {
    /// Pages that the template of MANAGE_PAGES gives.
    pub const PAGES: u32 = 16;
    /// log2 of the entries of event and completion queues: 4 KiB.
    pub const LOG_QUEUE: u32 = 6;
    /// log2 of the entries of receive queues.
    pub const LOG_RECV: u32 = 4;
    /// Code of a receive queue's stride: 16 << 2 = 64 bytes.
    pub const RECV_STRIDE: u32 = 2;
    /// log2 of the entries of a list of tags.
    pub const LOG_LIST: u32 = 4;
    /// log2 of the basic blocks of send queues.
    pub const LOG_SEND: u32 = 6;
    /// Q_Key of queue pairs.
    pub const Q_KEY: u32 = 0x1111_1111;
    /// Access key of the DC target.
    pub const DC_KEY: u64 = 0x0123_4567_89ab_cdef;

    /// Nothing but memory.
    pub fn new(queue: u64, record: u64, pages: u64) -> Self {
        Self { queue, record, pages, ..Self::default() }
    }

    /// The object of that kind; 0 if there is none.
    pub fn number(&self, kind: Kind) -> u32 {
        self.numbers.get(kind as usize).copied().unwrap_or(0)
    }

    /// Names the object of that kind.
    pub fn set(&mut self, kind: Kind, number: u32) -> &mut Self {
        if let Some(to) = self.numbers.get_mut(kind as usize) {
            *to = number;
        }
        self
    }
}

/// An input: a command's layout with a modifier, and a list behind it.
pub(super) fn input(fixed: &[u8], op_mod: u32, list: impl IntoIterator<Item = u64>) -> Vec<u8> {
    use hca_spec::command::InHeader;
    let mut header = InHeader::from_prefix_or_zero(fixed);
    header.set(InHeader::OP_MOD, op_mod);
    let rest = fixed.get(InHeader::SIZE..).unwrap_or_default();
    let mut bytes = [header.bytes(), rest].concat();
    bytes.extend(list.into_iter().flat_map(u64::to_be_bytes));
    bytes
}
