//! The command queue: entry, mailbox block, headers, opcodes and status codes.
//!
//! Source: PRM "Command Interface" (command queue entry, mailboxes, return status).

use crate::layout::layout;

/// `type` of every command queue entry: PCIe transport.
pub const ENTRY_TYPE_PCIE: u32 = 7;
/// Payload bytes in one mailbox block.
pub const MAILBOX_DATA: usize = 512;
/// Bytes of input and of output that lie in the entry itself.
pub const INLINE: usize = 16;

layout! {
    /// Command queue entry, 64 bytes.
    pub struct CommandEntry[64] {
        /// Transport: [`ENTRY_TYPE_PCIE`].
        TYPE: 0x0 [31:24];
        /// Input length in bytes, the 16 inline ones included.
        INPUT_LENGTH: 0x4 [31:0];
        /// DMA address of the first input mailbox; 0 when all input is inline.
        INPUT_MAILBOX: 0x8 u64;
        /// DMA address of the first output mailbox.
        OUTPUT_MAILBOX: 0x30 u64;
        /// Room for output in bytes, the 16 inline ones included.
        OUTPUT_LENGTH: 0x38 [31:0];
        /// Token; the mailboxes carry the same.
        TOKEN: 0x3c [31:24];
        /// Signature over the entry. Hardware checks it if SET_HCA_CAP asks for that (`cmdif_checksum`); softhca refuses a value
        /// other than 0.
        SIGNATURE: 0x3c [23:16];
        /// Delivery status ([`Delivery`]).
        STATUS: 0x3c [7:1];
        /// 1 = the hardware owns the entry.
        OWNERSHIP: 0x3c [0:0];
    }

    /// Mailbox block, 576 bytes: 512 of data, then the chain.
    pub struct MailboxBlock[576] {
        /// DMA address of the following block.
        NEXT: 0x230 u64;
        /// Place of this block in the chain, from 0.
        BLOCK_NUMBER: 0x238 [31:0];
        /// The entry's token.
        TOKEN: 0x23c [23:16];
        /// Signature over the control part.
        CTRL_SIGNATURE: 0x23c [15:8];
        /// Signature over the block.
        SIGNATURE: 0x23c [7:0];
    }

    /// Header of every command's input.
    pub struct InHeader[16] {
        /// Which command: [`Opcode`].
        OPCODE: 0x0 [31:16];
        /// User context the command is executed for (DevX), 0 = privileged.
        UID: 0x0 [15:0];
        /// Modifier of the opcode.
        OP_MOD: 0x4 [15:0];
    }

    /// Header of every command's output.
    pub struct OutHeader[16] {
        /// Outcome: [`Status`].
        STATUS: 0x0 [31:24];
        /// Firmware's number of the place that failed.
        SYNDROME: 0x4 [31:0];
    }
}

/// Byte offset of the inline input in a command entry.
pub const INLINE_INPUT: usize = 0x10;
/// Byte offset of the inline output in a command entry.
pub const INLINE_OUTPUT: usize = 0x20;
/// Byte offset of the status and ownership byte in a command entry.
pub const OWNERSHIP_BYTE: usize = 0x3f;

/// Delivery status of a command entry, bits 7..1 of its last byte (PRM "Command delivery status").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Delivery {
    /// The command reached the firmware.
    Ok = 0x0,
    /// Signature error.
    Signature = 0x1,
    /// A mailbox carries another token than the entry.
    Token = 0x2,
    /// Bad block number.
    BadBlockNumber = 0x3,
    /// Bad output pointer.
    BadOutputPointer = 0x4,
    /// Bad input pointer.
    BadInputPointer = 0x5,
    /// Internal error.
    Internal = 0x6,
    /// Input length too short for a header.
    BadInputLength = 0x7,
    /// Output length too short for a header.
    BadOutputLength = 0x8,
    /// Reserved field not zero.
    ReservedNotZero = 0x9,
    /// Bad entry type.
    BadType = 0x10,
}

/// Status of a command, the first byte of its output (PRM "Command return status").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0x0,
    /// Firmware fault.
    InternalError = 0x1,
    /// Unknown or unsupported opcode or modifier.
    BadOp = 0x2,
    /// A parameter is out of range or reserved.
    BadParam = 0x3,
    /// The adapter's state does not allow the command.
    BadSystemState = 0x4,
    /// No access to the object, or no such object.
    BadResource = 0x5,
    /// The object is in use.
    ResourceBusy = 0x6,
    /// Not ready.
    NotReady = 0x7,
    /// A limit was passed.
    ExceedLimit = 0x8,
    /// The object's state does not allow the command.
    BadResourceState = 0x9,
    /// An index is out of range.
    BadIndex = 0xa,
    /// Nothing left to allocate.
    NoResources = 0xf,
    /// The queue pair's state does not allow the transition.
    BadQpState = 0x10,
    /// The management datagram is malformed.
    BadPacket = 0x30,
    /// A completion queue is too small for its outstanding entries.
    BadSizeOutstandingCqes = 0x40,
    /// Input length is wrong for the command.
    BadInputLength = 0x50,
    /// Output length is wrong for the command.
    BadOutputLength = 0x51,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::InternalError,
        Self::BadOp,
        Self::BadParam,
        Self::BadSystemState,
        Self::BadResource,
        Self::ResourceBusy,
        Self::NotReady,
        Self::ExceedLimit,
        Self::BadResourceState,
        Self::BadIndex,
        Self::NoResources,
        Self::BadQpState,
        Self::BadPacket,
        Self::BadSizeOutstandingCqes,
        Self::BadInputLength,
        Self::BadOutputLength,
    ];

    /// The status with that number, if there is one.
    pub fn from_bits(bits: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|status| *status as u32 == bits)
    }
}

macro_rules! opcodes {
    ($($(#[$m:meta])* $name:ident = $value:literal,)*) => {
        /// Command opcodes (PRM "Command opcodes").
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u16)]
        #[allow(missing_docs, reason = "each is named by its command")]
        pub enum Opcode { $($(#[$m])* $name = $value,)* }

        impl Opcode {
            /// The opcode of that number, if this interface has it.
            pub const fn from_u16(value: u16) -> Option<Self> {
                match value { $($value => Some(Self::$name),)* _ => None }
            }

            /// Every opcode this interface has.
            pub const ALL: &'static [Opcode] = &[$(Self::$name,)*];
        }
    };
}

opcodes! {
    QueryHcaCap = 0x100,
    QueryAdapter = 0x101,
    InitHca = 0x102,
    TeardownHca = 0x103,
    EnableHca = 0x104,
    DisableHca = 0x105,
    QueryPages = 0x107,
    ManagePages = 0x108,
    SetHcaCap = 0x109,
    QueryIssi = 0x10a,
    SetIssi = 0x10b,
    SetDriverVersion = 0x10d,
    CreateMkey = 0x200,
    QueryMkey = 0x201,
    DestroyMkey = 0x202,
    QuerySpecialContexts = 0x203,
    /// PAGE_FAULT_RESUME.
    PageFaultResume = 0x204,
    /// ALLOC_MEMIC.
    AllocMemic = 0x205,
    /// DEALLOC_MEMIC.
    DeallocMemic = 0x206,
    /// MODIFY_MEMIC.
    ModifyMemic = 0x207,
    CreateEq = 0x301,
    DestroyEq = 0x302,
    QueryEq = 0x303,
    GenEqe = 0x304,
    CreateCq = 0x400,
    DestroyCq = 0x401,
    QueryCq = 0x402,
    ModifyCq = 0x403,
    CreateQp = 0x500,
    DestroyQp = 0x501,
    Rst2InitQp = 0x502,
    Init2RtrQp = 0x503,
    Rtr2RtsQp = 0x504,
    Rts2RtsQp = 0x505,
    SqErr2RtsQp = 0x506,
    ToErrQp = 0x507,
    Rts2SqdQp = 0x508,
    Sqd2SqdQp = 0x509,
    ToRstQp = 0x50a,
    QueryQp = 0x50b,
    Sqd2RtsQp = 0x50c,
    MadIfc = 0x50d,
    Init2InitQp = 0x50e,
    /// CREATE_PSV.
    CreatePsv = 0x600,
    /// DESTROY_PSV.
    DestroyPsv = 0x601,
    CreateSrq = 0x700,
    DestroySrq = 0x701,
    QuerySrq = 0x702,
    ArmRq = 0x703,
    CreateXrcSrq = 0x705,
    DestroyXrcSrq = 0x706,
    QueryXrcSrq = 0x707,
    ArmXrcSrq = 0x708,
    CreateDct = 0x710,
    DestroyDct = 0x711,
    DrainDct = 0x712,
    QueryDct = 0x713,
    ArmDctForKeyViolation = 0x714,
    /// CREATE_XRQ.
    CreateXrq = 0x717,
    /// DESTROY_XRQ.
    DestroyXrq = 0x718,
    /// QUERY_XRQ.
    QueryXrq = 0x719,
    /// ARM_XRQ.
    ArmXrq = 0x71a,
    QueryVportState = 0x750,
    ModifyVportState = 0x751,
    QueryNicVportContext = 0x754,
    ModifyNicVportContext = 0x755,
    QueryRoceAddress = 0x760,
    SetRoceAddress = 0x761,
    QueryHcaVportContext = 0x762,
    ModifyHcaVportContext = 0x763,
    QueryHcaVportGid = 0x764,
    QueryHcaVportPkey = 0x765,
    QueryVnicEnv = 0x76f,
    QueryVportCounter = 0x770,
    AllocQCounter = 0x771,
    DeallocQCounter = 0x772,
    QueryQCounter = 0x773,
    SetPpRateLimit = 0x780,
    CreateSchedulingElement = 0x782,
    DestroySchedulingElement = 0x783,
    QuerySchedulingElement = 0x784,
    ModifySchedulingElement = 0x785,
    AllocPd = 0x800,
    DeallocPd = 0x801,
    AllocUar = 0x802,
    DeallocUar = 0x803,
    ConfigIntModeration = 0x804,
    AccessReg = 0x805,
    AttachToMcg = 0x806,
    DetachFromMcg = 0x807,
    Nop = 0x80d,
    AllocXrcd = 0x80e,
    DeallocXrcd = 0x80f,
    AllocTransportDomain = 0x816,
    DeallocTransportDomain = 0x817,
    QueryCongStatus = 0x822,
    ModifyCongStatus = 0x823,
    QueryCongParams = 0x824,
    ModifyCongParams = 0x825,
    QueryCongStatistics = 0x826,
    AddVxlanUdpDport = 0x827,
    DeleteVxlanUdpDport = 0x828,
    QueryLag = 0x842,
    CreateTir = 0x900,
    ModifyTir = 0x901,
    DestroyTir = 0x902,
    QueryTir = 0x903,
    CreateSq = 0x904,
    ModifySq = 0x905,
    DestroySq = 0x906,
    QuerySq = 0x907,
    CreateRq = 0x908,
    ModifyRq = 0x909,
    DestroyRq = 0x90a,
    QueryRq = 0x90b,
    CreateRmp = 0x90c,
    ModifyRmp = 0x90d,
    DestroyRmp = 0x90e,
    QueryRmp = 0x90f,
    CreateTis = 0x912,
    ModifyTis = 0x913,
    DestroyTis = 0x914,
    QueryTis = 0x915,
    CreateRqt = 0x916,
    ModifyRqt = 0x917,
    DestroyRqt = 0x918,
    QueryRqt = 0x919,
    SetFlowTableRoot = 0x92f,
    CreateFlowTable = 0x930,
    DestroyFlowTable = 0x931,
    QueryFlowTable = 0x932,
    CreateFlowGroup = 0x933,
    DestroyFlowGroup = 0x934,
    QueryFlowGroup = 0x935,
    SetFlowTableEntry = 0x936,
    QueryFlowTableEntry = 0x937,
    DeleteFlowTableEntry = 0x938,
    AllocFlowCounter = 0x939,
    DeallocFlowCounter = 0x93a,
    QueryFlowCounter = 0x93b,
    ModifyFlowTable = 0x93c,
    /// ALLOC_PACKET_REFORMAT_CONTEXT.
    AllocPacketReformatContext = 0x93d,
    /// DEALLOC_PACKET_REFORMAT_CONTEXT.
    DeallocPacketReformatContext = 0x93e,
    /// QUERY_PACKET_REFORMAT_CONTEXT.
    QueryPacketReformatContext = 0x93f,
    /// ALLOC_MODIFY_HEADER_CONTEXT.
    AllocModifyHeaderContext = 0x940,
    /// DEALLOC_MODIFY_HEADER_CONTEXT.
    DeallocModifyHeaderContext = 0x941,
    CreateGeneralObject = 0xa00,
    ModifyGeneralObject = 0xa01,
    QueryGeneralObject = 0xa02,
    DestroyGeneralObject = 0xa03,
    CreateUctx = 0xa04,
    DestroyUctx = 0xa06,
    CreateUmem = 0xa08,
    DestroyUmem = 0xa0a,
    /// SYNC_STEERING.
    SyncSteering = 0xb00,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_entry() {
        let mut e = CommandEntry::new();
        e.set(CommandEntry::TYPE, ENTRY_TYPE_PCIE).set(CommandEntry::INPUT_LENGTH, 0x110);
        e.set(CommandEntry::INPUT_MAILBOX, 0x1_2345_6400).set(CommandEntry::TOKEN, 0xab);
        e.set(CommandEntry::OWNERSHIP, 1);
        let b = e.bytes();
        assert_eq!(b[..16], [7, 0, 0, 0, 0, 0, 1, 0x10, 0, 0, 0, 1, 0x23, 0x45, 0x64, 0]);
        assert_eq!(b[0x3c..], [0xab, 0, 0, 1]);
    }

    #[test]
    fn opcodes_round_trip() {
        for op in Opcode::ALL {
            assert_eq!(Opcode::from_u16(*op as u16), Some(*op));
        }
        assert_eq!(Opcode::from_u16(0xffff), None);
    }
}
