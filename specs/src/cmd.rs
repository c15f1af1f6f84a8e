//! Inputs and outputs of the commands, the 16-byte headers included.
//!
//! Source: PRM "Command Reference", each command's input and output layout. Commands that only name
//! an object share [`ObjectIn`] and [`ObjectOut`].

use crate::caps;
use crate::layout::layout;
use crate::mkc::Mkc;
use crate::qpc::{Qpc, QpcExt};
use crate::queue::{Cqc, Eqc, Rmpc, Sqc, Srqc};

/// Bits of [`ModifyCqIn::FIELD_SELECT`] with [`MODIFY_CQ_RESIZE`]: which fields of the context the new buffer's shape is made of; the
/// others stay. The size of entries has no bit, and is taken always.
pub mod resize_cq {
    /// `LOG_CQ_SIZE`.
    pub const LOG_SIZE: u32 = 1 << 0;
    /// `PAGE_OFFSET`.
    pub const PAGE_OFFSET: u32 = 1 << 1;
    /// `LOG_PAGE_SIZE`.
    pub const LOG_PAGE_SIZE: u32 = 1 << 2;
}

/// MODIFY_CQ op_mod: a new buffer.
pub const MODIFY_CQ_RESIZE: u32 = 1;

/// Bit of [`ModifyRmpIn::BITMASK`]: the limit water mark.
pub const MODIFY_RMP_LWM: u64 = 1 << 0;

/// Offset of the page or translation list in CREATE_* and MODIFY_CQ inputs.
pub const PAS_OFFSET: usize = 0x110;

layout! {
    /// Input of commands that name one object: DESTROY_*, DEALLOC_*, QUERY_*, 2RST, 2ERR...
    pub struct ObjectIn[0x10] {
        /// The object's number (DESTROY_EQ: 8 bits used).
        NUMBER: 0x8 [23:0];
        /// Second parameter, e.g. ARM_RQ's limit water mark.
        LWM: 0xc [15:0];
    }

    /// Output of commands that return one object: CREATE_*, ALLOC_*.
    pub struct ObjectOut[0x10] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
        /// Syndrome of the command.
        SYNDROME: 0x4 [31:0];
        /// The object's number.
        NUMBER: 0x8 [23:0];
    }

    /// ENABLE_HCA, DISABLE_HCA, INIT_HCA, TEARDOWN_HCA, QUERY_PAGES and MANAGE_PAGES input.
    pub struct FunctionIn[0x10] {
        /// FUNCTION_ID is of a processor on the adapter.
        EMBEDDED_CPU_FUNCTION: 0x8 [31:31];
        /// The function; 0 = self.
        FUNCTION_ID: 0x8 [15:0];
        /// TEARDOWN_HCA: 0 = graceful close, 1 = forced, 2 = fast; both leave event queues.
        PROFILE: 0x8 [15:0];
        /// MANAGE_PAGES: entries of the page list.
        INPUT_NUM_ENTRIES: 0xc [31:0];
    }

    /// QUERY_PAGES output.
    pub struct QueryPagesOut[0x10] {
        /// The function.
        FUNCTION_ID: 0x8 [15:0];
        /// Pages wanted, signed.
        NUM_PAGES: 0xc [31:0];
    }

    /// MANAGE_PAGES output; a page list follows for "take".
    pub struct ManagePagesOut[0x10] {
        /// Pages given back.
        OUTPUT_NUM_ENTRIES: 0x8 [31:0];
    }

    /// SET_ISSI input.
    pub struct SetIssiIn[0x10] {
        /// Interface step sequence id the driver speaks.
        CURRENT_ISSI: 0x8 [15:0];
    }

    /// QUERY_ISSI output.
    pub struct QueryIssiOut[0x70] {
        /// Interface step sequence id in force.
        CURRENT_ISSI: 0x8 [15:0];
        /// Bit mask of supported ids 31..0.
        SUPPORTED_ISSI_DW0: 0x6c [31:0];
    }

    /// QUERY_HCA_CAP input.
    pub struct QueryHcaCapIn[0x10] {
        /// Capability type << 1; bit 0: [`CAP_CURRENT`].
        OP_MOD: 0x4 [15:0];
        /// Another function is meant, that of FUNCTION_ID.
        OTHER_FUNCTION: 0x8 [31:31];
        /// FUNCTION_ID is a virtual function of a processor on the adapter.
        EC_VF_FUNCTION: 0x8 [30:30];
        /// The other function: 0 = the physical one, its virtual functions from 1 on.
        FUNCTION_ID: 0x8 [15:0];
    }

    /// QUERY_HCA_CAP output: 4 KiB of capabilities.
    pub struct QueryHcaCapOut[0x1010] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The general capabilities.
        general, general_mut: 0x10 caps::General;
        /// The atomic capabilities.
        atomic, atomic_mut: 0x10 caps::Atomic;
        /// The on-demand paging capabilities.
        odp, odp_mut: 0x10 caps::Odp;
        /// The second page of general capabilities.
        general_2, general_2_mut: 0x10 caps::General2;
        /// The offloads of Ethernet.
        ethernet, ethernet_mut: 0x10 caps::EthernetOffloads;
        /// The RoCE capabilities.
        roce, roce_mut: 0x10 caps::Roce;
        /// The capabilities of rates.
        qos, qos_mut: 0x10 caps::Qos;
        /// The flow table capabilities of a NIC.
        flow_tables, flow_tables_mut: 0x10 caps::FlowTables;
        /// The capabilities of debugging.
        debug, debug_mut: 0x10 caps::Debug;
        /// The capabilities of device memory.
        device_memory, device_memory_mut: 0x10 caps::DeviceMemory;
        /// The capabilities of encryption.
        crypto, crypto_mut: 0x10 crate::crypto::Crypto;
    }

    /// SET_HCA_CAP input: 4 KiB of capabilities.
    pub struct SetHcaCapIn[0x1010] {
        /// Capability type << 1.
        OP_MOD: 0x4 [15:0];
        /// Another function is meant, that of FUNCTION_ID.
        OTHER_FUNCTION: 0x8 [31:31];
        /// FUNCTION_ID is a virtual function of a processor on the adapter.
        EC_VF_FUNCTION: 0x8 [30:30];
        /// The other function: 0 = the physical one, its virtual functions from 1 on.
        FUNCTION_ID: 0x8 [15:0];
    } views {
        /// The general capabilities.
        general, general_mut: 0x10 caps::General;
        /// The atomic capabilities.
        atomic, atomic_mut: 0x10 caps::Atomic;
        /// The on-demand paging capabilities.
        odp, odp_mut: 0x10 caps::Odp;
        /// The RoCE capabilities.
        roce, roce_mut: 0x10 caps::Roce;
    }

    /// QUERY_ADAPTER output.
    pub struct QueryAdapterOut[0x110] {
        /// IEEE company id of the vendor.
        IEEE_VENDOR_ID: 0x28 [23:0];
        /// Vendor of the vendor specific data.
        VSD_VENDOR_ID: 0x2c [15:0];
        /// Board id (PSID), 16 ASCII characters, first half.
        PSID_H: 0x100 u64;
        /// Board id, second half.
        PSID_L: 0x108 u64;
    }

    /// QUERY_LAG output.
    pub struct QueryLagOut[0x10] {
        /// How queues are spread over the ports of a link aggregation; 0 = there is none.
        LAG_STATE: 0x8 [2:0];
    }

    /// CONFIG_INT_MODERATION input and output.
    pub struct IntModeration[0x10] {
        /// Least time between two interrupts of the vector, in us; 0 = none.
        MIN_DELAY: 0x8 [27:16];
        /// The MSI-X vector.
        INT_VECTOR: 0x8 [15:0];
    }

    /// ADD_VXLAN_UDP_DPORT and DELETE_VXLAN_UDP_DPORT input.
    pub struct VxlanUdpDportIn[0x10] {
        /// The UDP port.
        VXLAN_UDP_PORT: 0xc [15:0];
    }

    /// QUERY_SPECIAL_CONTEXTS output.
    pub struct QuerySpecialContextsOut[0x20] {
        /// Key for the dump-fill pattern.
        DUMP_FILL_MKEY: 0x8 [31:0];
        /// Reserved lkey.
        RESD_LKEY: 0xc [31:0];
        /// Null key.
        NULL_MKEY: 0x10 [31:0];
    }

    /// PAGE_FAULT_RESUME input.
    pub struct PageFaultResumeIn[0x10] {
        /// 1 = the pages can't be had: the work request or the peer's request fails.
        ERROR: 0x8 [31:31];
        /// The event's [`crate::eqe::page_fault`] type.
        TYPE: 0x8 [26:24];
        /// The event's queue number; of an RDMA fault, its token.
        WQ_NUMBER: 0x8 [23:0];
        /// The event's token.
        TOKEN: 0xc [23:0];
        /// Of the memory scheme: the event's token, bits 47 to 32.
        FAULT_TOKEN_47_32: 0x8 [15:0];
        /// Bits 31 to 0 of that.
        FAULT_TOKEN_31_0: 0xc [31:0];
    }

    /// ACCESS_REGISTER input; the register's data follows.
    pub struct AccessRegIn[0x10] {
        /// 0 = write, 1 = read.
        OP_MOD: 0x4 [15:0];
        /// The register.
        REGISTER_ID: 0x8 [15:0];
        /// The register's argument.
        ARGUMENT: 0xc [31:0];
    }

    /// CREATE_MKEY input; MTTs or KLMs follow at [`PAS_OFFSET`].
    pub struct CreateMkeyIn[0x110] {
        /// 1 = the list's entries carry access bits.
        PG_ACCESS: 0xc [31:31];
        /// 1 = the pages are those of a user memory, no list follows.
        MKEY_UMEM_VALID: 0xc [30:30];
        /// Entries of the list, 16-byte units.
        TRANSLATIONS_OCTWORD_ACTUAL_SIZE: 0x60 [31:0];
        /// The user memory.
        MKEY_UMEM_ID: 0x64 [31:0];
        /// Where in the user memory the key begins, in bytes.
        MKEY_UMEM_OFFSET: 0x68 u64;
    } views {
        /// The key's context.
        mkc, mkc_mut: 0x10 Mkc;
    }

    /// QUERY_MKEY output.
    pub struct QueryMkeyOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The key's context.
        mkc, mkc_mut: 0x10 Mkc;
    }

    /// ALLOC_MEMIC input.
    pub struct AllocMemicIn[0x20] {
        /// Alignment of the piece: 64 << value bytes.
        LOG_MEMIC_ADDR_ALIGNMENT: 0xc [7:0];
        /// Where in BAR0 the driver has pages for it, in bytes from its begin.
        RANGE_START_ADDR: 0x10 u64;
        /// How many bytes of BAR0 those pages are.
        RANGE_SIZE: 0x18 [31:0];
        /// Bytes of the piece.
        MEMIC_SIZE: 0x1c [31:0];
    }

    /// ALLOC_MEMIC output.
    pub struct AllocMemicOut[0x10] {
        /// Where in BAR0 the piece begins.
        MEMIC_START_ADDR: 0x8 u64;
    }

    /// DEALLOC_MEMIC input.
    pub struct DeallocMemicIn[0x20] {
        /// Where in BAR0 the piece begins.
        MEMIC_START_ADDR: 0x10 u64;
        /// Its bytes.
        MEMIC_SIZE: 0x18 [31:0];
    }

    /// MODIFY_MEMIC input.
    pub struct ModifyMemicIn[0x40] {
        /// What it does: see [`modify_memic`].
        OP_MOD: 0x4 [15:0];
        /// Which operation: see [`crate::caps::memic_operation`].
        MEMIC_OPERATION_TYPE: 0xc [7:0];
        /// Where in BAR0 the piece begins.
        MEMIC_START_ADDR: 0x10 u64;
    }

    /// MODIFY_MEMIC output.
    pub struct ModifyMemicOut[0x40] {
        /// Where in BAR0 accesses do the operation on the piece's first byte.
        MEMIC_OPERATION_ADDR: 0x10 u64;
    }

    /// CREATE_EQ input; the page list follows at [`PAS_OFFSET`].
    pub struct CreateEqIn[0x110] {
        /// Event mask, word 0: bit n = event type n.
        EVENT_BITMASK_0: 0x58 u64;
        /// Event mask, word 1.
        EVENT_BITMASK_1: 0x60 u64;
        /// Event mask, word 2.
        EVENT_BITMASK_2: 0x68 u64;
        /// Event mask, word 3.
        EVENT_BITMASK_3: 0x70 u64;
    } views {
        /// The queue's context.
        eqc, eqc_mut: 0x10 Eqc;
    }

    /// QUERY_EQ output; the page list follows at [`PAS_OFFSET`].
    pub struct QueryEqOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
        /// Event mask, word 0.
        EVENT_BITMASK_0: 0x58 u64;
    } views {
        /// The queue's context.
        eqc, eqc_mut: 0x10 Eqc;
    }

    /// CREATE_CQ input; the page list follows at [`PAS_OFFSET`].
    pub struct CreateCqIn[0x110] {
        /// Modifier: 0.
        OP_MOD: 0x4 [15:0];
        /// Where in the user memory the queue begins, in bytes.
        CQ_UMEM_OFFSET: 0x50 u64;
        /// The user memory.
        CQ_UMEM_ID: 0x58 [31:0];
        /// 1 = the queue lies in a user memory, no page list follows.
        CQ_UMEM_VALID: 0x5c [31:31];
    } views {
        /// The queue's context.
        cqc, cqc_mut: 0x10 Cqc;
    }

    /// QUERY_CQ output; the page list follows at [`PAS_OFFSET`].
    pub struct QueryCqOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The queue's context.
        cqc, cqc_mut: 0x10 Cqc;
    }

    /// MODIFY_CQ input; the page list follows at [`PAS_OFFSET`].
    pub struct ModifyCqIn[0x110] {
        /// 0 = moderation, 1 = resize.
        OP_MOD: 0x4 [15:0];
        /// The queue.
        CQN: 0x8 [23:0];
        /// Which fields change. Moderation: bit 0 period, bit 1 count. Resize: bit 0 size, 1 offset, 2 page size.
        FIELD_SELECT: 0xc [31:0];
        /// Where in the user memory the queue begins, in bytes.
        CQ_UMEM_OFFSET: 0x50 u64;
        /// The user memory.
        CQ_UMEM_ID: 0x58 [31:0];
        /// 1 = the queue lies in a user memory, no page list follows.
        CQ_UMEM_VALID: 0x5c [31:31];
    } views {
        /// The new context.
        cqc, cqc_mut: 0x10 Cqc;
    }

    /// CREATE_QP input; the page list follows at [`PAS_OFFSET`].
    pub struct CreateQpIn[0x110] {
        /// Between context and page list there is an extension of the context.
        QPC_EXT: 0x8 [31:31];
        /// Optional parameters.
        OPT_PARAM_MASK: 0x10 [31:0];
        /// Where in the user memory the work queues begin, in bytes.
        WQ_UMEM_OFFSET: 0x100 u64;
        /// The user memory.
        WQ_UMEM_ID: 0x108 [31:0];
        /// 1 = the work queues lie in a user memory, no page list follows.
        WQ_UMEM_VALID: 0x10c [31:31];
    } views {
        /// The QP's context.
        qpc, qpc_mut: 0x18 Qpc;
    }

    /// Input of the QP transitions that carry a context (RST2INIT .. SQD2RTS).
    pub struct ModifyQpIn[0x110] {
        /// RTS2SQD: send an event when the send queue is drained (as in earlier adapters of the family).
        SQD_EVENT: 0x8 [31:31];
        /// The queue pair.
        QPN: 0x8 [23:0];
        /// Optional parameters ([`crate::qpc::opt`]).
        OPT_PARAM_MASK: 0x10 [31:0];
        /// INIT2INIT, RTS2RTS: further optional parameters ([`crate::qpc::opt_95_32`]).
        OPT_PARAM_MASK_95_32: 0x108 u64;
    } views {
        /// New values.
        qpc, qpc_mut: 0x18 Qpc;
    }

    /// The same with an extension of the context: INIT2INIT and RTS2RTS.
    pub struct ModifyQpExtIn[0x1d0] {
        /// The extension counts.
        QPC_EXT: 0x8 [31:31];
    } views {
        /// New values of the extension.
        ext, ext_mut: 0x110 QpcExt;
    }

    /// QUERY_QP input.
    pub struct QueryQpIn[0x10] {
        /// Between context and page list there is the extension of the context.
        QPC_EXT: 0x8 [31:31];
        /// The queue pair.
        QPN: 0x8 [23:0];
    }

    /// QUERY_QP output; the page list follows at [`PAS_OFFSET`].
    pub struct QueryQpOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
        /// Optional parameters.
        OPT_PARAM_MASK: 0x10 [31:0];
    } views {
        /// The QP's context.
        qpc, qpc_mut: 0x18 Qpc;
    }

    /// CREATE_SRQ and CREATE_XRC_SRQ input; the page list follows at [`PAS_OFFSET`].
    pub struct CreateSrqIn[0x110] {
        /// Modifier.
        OP_MOD: 0x4 [15:0];
        /// XRC: where in the user memory the queue begins, in bytes.
        SRQ_UMEM_OFFSET: 0x50 u64;
        /// XRC: the user memory.
        SRQ_UMEM_ID: 0x58 [31:0];
        /// XRC: 1 = the queue lies in a user memory, no page list follows.
        SRQ_UMEM_VALID: 0x5c [31:31];
    } views {
        /// The queue's context.
        srqc, srqc_mut: 0x10 Srqc;
    }

    /// QUERY_SRQ and QUERY_XRC_SRQ output; the page list follows at [`PAS_OFFSET`].
    pub struct QuerySrqOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The queue's context.
        srqc, srqc_mut: 0x10 Srqc;
    }

    /// CREATE_SQ input; the page list follows at [`PAS_OFFSET`].
    pub struct CreateSqIn[0x110] {
        /// Modifier.
        OP_MOD: 0x4 [15:0];
    } views {
        /// The queue's context.
        sqc, sqc_mut: 0x20 Sqc;
    }

    /// MODIFY_SQ input.
    pub struct ModifySqIn[0x110] {
        /// Current state.
        SQ_STATE: 0x8 [31:28];
        /// The queue.
        SQN: 0x8 [23:0];
        /// Optional values that count.
        MODIFY_BITMASK: 0x10 u64;
    } views {
        /// New values.
        sqc, sqc_mut: 0x20 Sqc;
    }

    /// QUERY_SQ output; the page list follows at [`PAS_OFFSET`].
    pub struct QuerySqOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The queue's context.
        sqc, sqc_mut: 0x20 Sqc;
    }

    /// CREATE_RMP input; the page list follows at [`PAS_OFFSET`].
    pub struct CreateRmpIn[0x110] {
        /// Modifier.
        OP_MOD: 0x4 [15:0];
    } views {
        /// The pool's context.
        rmpc, rmpc_mut: 0x20 Rmpc;
    }

    /// MODIFY_RMP input.
    pub struct ModifyRmpIn[0x110] {
        /// Current state.
        RMP_STATE: 0x8 [31:28];
        /// The pool.
        RMPN: 0x8 [23:0];
        /// What changes: [`MODIFY_RMP_LWM`].
        BITMASK: 0x10 u64;
    } views {
        /// New values.
        rmpc, rmpc_mut: 0x20 Rmpc;
    }

    /// QUERY_RMP output; the page list follows at [`PAS_OFFSET`].
    pub struct QueryRmpOut[0x110] {
        /// Status of the command.
        STATUS: 0x0 [31:24];
    } views {
        /// The pool's context.
        rmpc, rmpc_mut: 0x20 Rmpc;
    }

    /// CREATE_UCTX input.
    pub struct CreateUctxIn[0x20] {
        /// What the context may do beyond its own objects ([`crate::caps::uctx_cap`]).
        CAP: 0x10 [31:0];
    }

    /// CREATE_UCTX output.
    pub struct CreateUctxOut[0x10] {
        /// The context's number, which commands of its user carry.
        UID: 0x8 [15:0];
    }

    /// DESTROY_UCTX input.
    pub struct DestroyUctxIn[0x10] {
        /// The context.
        UID: 0x8 [15:0];
    }

    /// CREATE_UMEM input; the page list follows at its end.
    pub struct CreateUmemIn[0x30] {
        /// log2 of the page size in 4 KiB units.
        LOG_PAGE_SIZE: 0x20 [4:0];
        /// Where in the first page the memory begins, in bytes.
        PAGE_OFFSET: 0x24 [31:0];
        /// Entries of the page list.
        NUM_OF_MTT: 0x28 u64;
    }

    /// Input of the *_GENERAL_OBJECT commands.
    pub struct GeneralObjectIn[0x10] {
        /// Kind of object.
        OBJ_TYPE: 0x4 [15:0];
        /// The object.
        OBJ_ID: 0x8 [31:0];
        /// CREATE_GENERAL_OBJECT: log2 of how many there are in one.
        LOG_OBJ_RANGE: 0xc [28:24];
    }

    /// QUERY_GENERAL_OBJECT output of reserved QP numbers, which have no other attributes.
    pub struct QueryReservedQpnOut[0x20] {
        /// The first number.
        OBJ_ID: 0x8 [31:0];
    }

    /// QUERY_Q_COUNTER input.
    pub struct QueryQCounterIn[0x20] {
        /// 1 = the counters start again from 0.
        CLEAR: 0x18 [31:31];
        /// The set.
        COUNTER_SET_ID: 0x1c [7:0];
    }

    /// MAD_IFC input and output.
    pub struct MadIfc[0x110] {
        /// Input: bit 0 ignore M_Key, bit 1 ignore B_Key.
        OP_MOD: 0x4 [15:0];
        /// Input: the port, from 1.
        PORT: 0x8 [7:0];
    } views {
        /// The management datagram.
        mad, mad_mut: 0x10 crate::mad::Mad;
    }

    /// ATTACH_TO_MCG and DETACH_FROM_MCG input.
    pub struct McgIn[0x20] {
        /// The queue pair.
        QPN: 0x8 [23:0];
        /// Multicast GID, first half.
        GID_H: 0x10 u64;
        /// Multicast GID, second half.
        GID_L: 0x18 u64;
    }

    /// QUERY_HCA_VPORT_CONTEXT, _GID and _PKEY input.
    pub struct QueryHcaVportIn[0x10] {
        /// 1 = another function's port.
        OTHER_VPORT: 0x8 [31:31];
        /// Port number.
        PORT_NUM: 0x8 [19:16];
        /// Which.
        VPORT_NUMBER: 0x8 [15:0];
        /// Index of the GID or P_Key; 0xffff = all.
        INDEX: 0xc [15:0];
    }

    /// QUERY_VPORT_COUNTER input.
    pub struct QueryVportCounterIn[0x20] {
        /// 1 = the counters begin anew at zero.
        CLEAR: 0x18 [31:31];
    } views {
        /// The port.
        port, port_mut: 0x0 QueryHcaVportIn;
    }

    /// QUERY_HCA_VPORT_CONTEXT output.
    pub struct QueryHcaVportContextOut[0x210] {
        /// The subnet manager is aware of virtualization.
        SM_VIRT_AWARE: 0x30 [31:31];
        /// QP0 exists.
        HAS_SMI: 0x30 [30:30];
        /// Raw packets are there.
        HAS_RAW: 0x30 [29:29];
        /// Packets must carry a GRH.
        GRH_REQUIRED: 0x30 [28:28];
        /// Physical port state (IBTA PortInfo).
        PORT_PHYSICAL_STATE: 0x30 [15:12];
        /// Logical port state (IBTA PortInfo).
        VPORT_STATE: 0x30 [3:0];
        /// System image GUID.
        SYSTEM_IMAGE_GUID: 0x38 u64;
        /// Port GUID.
        PORT_GUID: 0x40 u64;
        /// Node GUID.
        NODE_GUID: 0x48 u64;
        /// Capability mask.
        CAP_MASK1: 0x50 [31:0];
        /// Which bits of the capability mask may be changed.
        CAP_MASK1_FIELD_SELECT: 0x54 [31:0];
        /// Capability mask 2.
        CAP_MASK2: 0x58 [31:0];
        /// LID.
        LID: 0x70 [31:16];
        /// Init type reply.
        INIT_TYPE_REPLY: 0x70 [11:8];
        /// LID mask control.
        LMC: 0x70 [7:5];
        /// Subnet timeout.
        SUBNET_TIMEOUT: 0x70 [4:0];
        /// LID of the subnet manager.
        SM_LID: 0x74 [31:16];
        /// Service level of the subnet manager.
        SM_SL: 0x74 [15:12];
        /// Q_Key violations.
        QKEY_VIOLATION_COUNTER: 0x78 [31:16];
        /// P_Key violations.
        PKEY_VIOLATION_COUNTER: 0x78 [15:0];
    }
}

/// Register ids of ACCESS_REGISTER.
pub mod reg {
    /// Node description.
    pub const NODE_DESC: u32 = 0x6001;
    /// Host endianness.
    pub const HOST_ENDIANNESS: u32 = 0x7004;
    /// Port capabilities.
    pub const PCAP: u32 = 0x5001;
    /// Port MTU.
    pub const PMTU: u32 = 0x5003;
    /// Port type and speed.
    pub const PTYS: u32 = 0x5004;
    /// Port administrative and operational status.
    pub const PAOS: u32 = 0x5006;
    /// Port flow control.
    pub const PFCC: u32 = 0x5007;
    /// Port counters.
    pub const PPCNT: u32 = 0x5008;
    /// Buffers of priorities.
    pub const PPTB: u32 = 0x500b;
    /// Receive buffers of a port.
    pub const PBMC: u32 = 0x500c;
    /// Port lanes and modules.
    pub const PMLP: u32 = 0x5002;
    /// Trust of the priorities of frames.
    pub const QPTS: u32 = 0x4002;
    /// Enhanced transmission selection.
    pub const QETCR: u32 = 0x4005;
    /// Traffic classes of priorities.
    pub const QTCT: u32 = 0x400a;
    /// Priorities of DSCPs.
    pub const QPDPM: u32 = 0x4013;
    /// Registers of priorities that there are.
    pub const QCAM: u32 = 0x4019;
    /// Timers and restarts of RoCE.
    pub const ROCE_ACCL: u32 = 0x402c;
    /// Ways of a port back to itself.
    pub const PPLR: u32 = 0x5018;
    /// State of a module.
    pub const PMAOS: u32 = 0x5012;
    /// Forward error correction.
    pub const PPLM: u32 = 0x5023;
    /// What the physical layer of a port does.
    pub const PDDR: u32 = 0x5031;
    /// Transmitter of a lane.
    pub const SLTP: u32 = 0x5027;
    /// Receiver of a lane.
    pub const SLRG: u32 = 0x5028;
    /// Port checks.
    pub const PCMR: u32 = 0x5041;
    /// Registers of ports that there are.
    pub const PCAM: u32 = 0x507f;
    /// Memory of a module.
    pub const MCIA: u32 = 0x9014;
    /// Lasting settings.
    pub const MNVDA: u32 = 0x9024;
    /// A lasting setting becomes what was delivered.
    pub const MNVDI: u32 = 0x9025;
    /// Whether there is a lasting setting.
    pub const MNVQC: u32 = 0x9030;
    /// All lasting settings become what was delivered.
    pub const MNVIA: u32 = 0x9033;
    /// What of lasting settings can be read.
    pub const MNVGC: u32 = 0x9034;
    /// Registers of management that there are.
    pub const MCAM: u32 = 0x907f;
    /// General information.
    pub const MGIR: u32 = 0x9020;
    /// Restart of the firmware.
    pub const MFRL: u32 = 0x9028;
    /// The port's light, by which a person finds it.
    pub const MLCR: u32 = 0x902b;
    /// Sensors of temperature that there are.
    pub const MTCAP: u32 = 0x9009;
    /// Temperature.
    pub const MTMP: u32 = 0x900a;
    /// PCI Express link.
    pub const MPEIN: u32 = 0x9050;
    /// Counters of the PCI Express link.
    pub const MPCNT: u32 = 0x9051;
    /// What the firmware's tracer can do, and who has it.
    pub const MTRC_CAP: u32 = 0x9040;
    /// Where traces go.
    pub const MTRC_CONF: u32 = 0x9041;
    /// Strings of traces.
    pub const MTRC_STDB: u32 = 0x9042;
    /// The tracer on and off.
    pub const MTRC_CTRL: u32 = 0x9043;
    /// The firmware traces what it is about.
    pub const CORE_DUMP: u32 = 0x402e;
    /// Contexts of objects.
    pub const RESOURCE_DUMP: u32 = 0xc000;
    /// Credential and key of keys of an adapter that imports wrapped keys ([`crate::crypto::CryptoOperational`]).
    pub const CRYPTO_OPERATIONAL: u32 = 0xc002;
    /// Components that can be updated.
    pub const MCQS: u32 = 0x9060;
    /// About a component.
    pub const MCQI: u32 = 0x9061;
    /// Control of an update.
    pub const MCC: u32 = 0x9062;
    /// Data of an update.
    pub const MCDA: u32 = 0x9063;
    /// Texts about the adapter.
    pub const MQIS: u32 = 0x9064;
    /// Port virtual lanes.
    pub const PVLC: u32 = 0x500f;
    /// Default timeouts.
    pub const DTOR: u32 = 0xc00e;
}

/// QUERY_HCA_CAP op_mod: bit 0 set = current values, clear = maximum values.
pub const CAP_CURRENT: u32 = 1;
/// QUERY_PAGES op_mod: pages to boot with.
pub const PAGES_BOOT: u32 = 1;
/// QUERY_PAGES op_mod: pages to initialize with.
pub const PAGES_INIT: u32 = 2;
/// QUERY_PAGES op_mod: pages in regular operation.
pub const PAGES_REGULAR: u32 = 3;
/// MANAGE_PAGES op_mod: the host can't give pages.
pub const PAGES_CANT_GIVE: u32 = 0;
/// MANAGE_PAGES op_mod: the host gives pages.
pub const PAGES_GIVE: u32 = 1;
/// MANAGE_PAGES op_mod: the host takes pages back.
pub const PAGES_TAKE: u32 = 2;

/// Values of [`ModifyMemicIn::OP_MOD`].
pub mod modify_memic {
    /// Addresses at which the operation is done.
    pub const ALLOC: u32 = 0;
    /// No longer.
    pub const DEALLOC: u32 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{InHeader, Opcode};
    use zerocopy::FromBytes;

    /// A CREATE_EQ input as the driver lays it out: header, EQC at 0x10, mask at 0x58.
    #[test]
    fn golden_create_eq() {
        let mut c = CreateEqIn::new();
        if let Ok((h, _)) = InHeader::mut_from_prefix(c.bytes_mut()) {
            h.set(InHeader::OPCODE, Opcode::CreateEq as u32);
        }
        c.eqc_mut().set(Eqc::LOG_EQ_SIZE, 8).set(Eqc::UAR_PAGE, 0x10).set(Eqc::INTR, 1);
        c.set(CreateEqIn::EVENT_BITMASK_0, 1 << 0xa);
        let b = c.bytes();
        assert_eq!(b[..4], [3, 1, 0, 0]);
        assert_eq!(b[0x1c..0x28], [8, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(b[0x58..0x60], [0, 0, 0, 0, 0, 0, 4, 0]);
    }

    #[test]
    fn golden_modify_qp() {
        let mut c = ModifyQpIn::new();
        c.set(ModifyQpIn::QPN, 0x102).set(ModifyQpIn::OPT_PARAM_MASK, 0xe);
        c.qpc_mut().set(Qpc::RWE, 1).set(Qpc::RRE, 1);
        let b = c.bytes();
        assert_eq!(b[8..0x14], [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0xe]);
        assert_eq!(b[0x18 + 0x90..0x18 + 0x94], [0, 0, 0xc0, 0]);
    }

    /// Reserved QP numbers as mlx5dv asks for them, then gives them back.
    #[test]
    fn golden_general_object() {
        let mut c = GeneralObjectIn::new();
        c.set(GeneralObjectIn::OBJ_TYPE, 0x2c).set(GeneralObjectIn::LOG_OBJ_RANGE, 6);
        assert_eq!(*c.bytes(), [0, 0, 0, 0, 0, 0, 0, 0x2c, 0, 0, 0, 0, 6, 0, 0, 0]);
        c.set(GeneralObjectIn::LOG_OBJ_RANGE, 0).set(GeneralObjectIn::OBJ_ID, 0x40_0040);
        assert_eq!(c.bytes()[8..], [0, 0x40, 0, 0x40, 0, 0, 0, 0]);
    }

    #[test]
    fn golden_vport_context() {
        let mut c = QueryHcaVportContextOut::new();
        c.set(QueryHcaVportContextOut::HAS_SMI, 1).set(QueryHcaVportContextOut::VPORT_STATE, 4);
        c.set(QueryHcaVportContextOut::LID, 1).set(QueryHcaVportContextOut::SM_LID, 2);
        assert_eq!(c.bytes()[0x30..0x34], [0x40, 0, 0, 4]);
        assert_eq!(c.bytes()[0x70..0x78], [0, 1, 0, 0, 0, 2, 0, 0]);
    }
}
