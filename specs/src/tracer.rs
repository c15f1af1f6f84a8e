//! The firmware's tracer: registers that say where traces go and when, and what is written there.
//!
//! Source: mlx5 driver (`diag/fw_tracer.c`, `mlx5_ifc.h`), mstflint (`mstfwtrace`), field use.

use crate::layout::layout;

/// Bytes of a block of the trace buffer: [`EVENTS`] of 8 bytes. The last one of a block is a [`TimestampEvent`], by which a driver
/// sees that the block is new.
pub const BLOCK: usize = 256;
/// Events of a block.
pub const EVENTS: usize = 32;
/// Most parameters of a message.
pub const MOST_PARAMETERS: usize = 7;
/// [`TraceEvent::EVENT_ID`] of a [`TimestampEvent`].
pub const TIMESTAMP: u32 = 0xff;
/// Pages of the trace buffer have this many bytes.
pub const PAGE: u64 = 4096;
/// Data of MTRC_STDB follows the head.
pub const STRINGS_FROM: usize = MtrcStdb::SIZE;

/// [`MtrcConf::TRACE_MODE`]: into memory of the host.
pub const MODE_MEMORY: u32 = 1;
/// Bit of [`MtrcCtrl::MODIFY_FIELD_SELECT`]: the status is set.
pub const SELECT_STATUS: u32 = 1 << 0;
/// [`CoreDump::CORE_DUMP_TYPE`]: of the adapter.
pub const CORE_DUMP_GENERAL: u32 = 0;

/// Sub-types of [`crate::eqe::EventType::DeviceTracer`].
pub mod tracer_event {
    /// Who has the tracer changed: it may be taken.
    pub const OWNERSHIP: u8 = 0;
    /// Blocks were written.
    pub const TRACES: u8 = 1;
    /// The firmware has other strings.
    pub const STRINGS: u8 = 2;
}

layout! {
    /// MTRC_CAP: what the tracer can do, and who has it.
    pub struct MtrcCap[0x80] {
        /// Written: 1 = takes it, 0 = gives it back. Read: 1 = who asks has it.
        TRACE_OWNER: 0x0 [31:31];
        /// 1 = it can write into memory of the host.
        TRACE_TO_MEMORY: 0x0 [30:30];
        /// Format of timestamps: 0 = bit 2 of [`TimestampEvent::URTS`] says that it can't be relied on.
        TRC_VER: 0x0 [25:24];
        /// Databases of strings.
        NUM_STRING_DB: 0x0 [3:0];
        /// First [`TraceEvent::EVENT_ID`] of events with strings.
        FIRST_STRING_TRACE: 0x4 [31:24];
        /// How many follow it.
        NUM_STRING_TRACE: 0x4 [23:16];
        /// log2 of the pages of the largest buffer.
        LOG_MAX_TRACE_BUFFER_SIZE: 0x8 [7:0];
        /// The first database (eight of them have room): what addresses of its strings count from.
        STRING_DB_BASE_ADDRESS: 0x10 [31:0];
        /// Its bytes, a multiple of 64.
        STRING_DB_SIZE: 0x14 [23:0];
    }

    /// MTRC_CONF: where traces go.
    pub struct MtrcConf[0x80] {
        /// 1 = into memory of the host.
        TRACE_MODE: 0x0 [3:0];
        /// log2 of the buffer's pages.
        LOG_TRACE_BUFFER_SIZE: 0x4 [7:0];
        /// The key of the buffer, which begins where the key does.
        TRACE_MKEY: 0x8 [31:0];
    }

    /// MTRC_STDB: a piece of a database of strings, which follows.
    pub struct MtrcStdb[0x8] {
        /// Which database.
        STRING_DB_INDEX: 0x0 [31:28];
        /// Bytes that are wanted: a multiple of 64.
        READ_SIZE: 0x0 [23:0];
        /// First byte.
        START_OFFSET: 0x4 [31:0];
    }

    /// MTRC_CTRL: on and off.
    pub struct MtrcCtrl[0x40] {
        /// 1 = traces are written.
        TRACE_STATUS: 0x0 [31:30];
        /// 1 = an event tells when there are new ones, once.
        ARM_EVENT: 0x0 [27:27];
        /// What a write sets: bit 0 the status.
        MODIFY_FIELD_SELECT: 0x0 [15:0];
        /// Time now, in ticks of the adapter's clock: the upper 21 bits.
        CURRENT_TIMESTAMP_H: 0x8 [20:0];
        /// The lower 32.
        CURRENT_TIMESTAMP_L: 0xc [31:0];
    }

    /// CORE_DUMP: the firmware traces what it is about.
    pub struct CoreDump[0x40] {
        /// Of what: 0 = of the adapter.
        CORE_DUMP_TYPE: 0x0 [7:0];
        /// Which function.
        VHCA_ID: 0x8 [15:0];
        /// Which queue pair.
        QPN: 0xc [23:0];
    }

    /// What all events of the trace buffer have.
    pub struct TraceEvent[0x8] {
        /// 1 = events before it were lost.
        LOST: 0x0 [31:31];
        /// What it is: [`TIMESTAMP`], or one of those of [`MtrcCap::FIRST_STRING_TRACE`].
        EVENT_ID: 0x0 [23:16];
    }

    /// A part of a message: its string, or one of its parameters.
    pub struct StringEvent[0x8] {
        /// 1 = events before it were lost.
        STRING_LOST: 0x0 [31:31];
        /// The lower bits of its time.
        STRING_TIMESTAMP: 0x0 [30:24];
        /// What it is.
        STRING_EVENT_ID: 0x0 [23:16];
        /// The message that it is a part of.
        TMSN: 0x0 [15:3];
        /// Which part: 0 = the string, others its parameters.
        TDSN: 0x0 [2:0];
        /// Address of the string, or the parameter.
        STRING_PARAM: 0x4 [31:0];
    }

    /// A time: messages before it are no later.
    pub struct TimestampEvent[0x8] {
        /// Bits 7..0 of the time.
        TIMESTAMP_7_0: 0x0 [31:24];
        /// [`TIMESTAMP`].
        TIMESTAMP_EVENT_ID: 0x0 [23:16];
        /// Whether it can be relied on.
        URTS: 0x0 [15:13];
        /// Bits 52..40.
        TIMESTAMP_52_40: 0x0 [12:0];
        /// Bits 39..8.
        TIMESTAMP_39_8: 0x4 [31:0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_events() {
        let mut e = StringEvent::new();
        e.set(StringEvent::STRING_LOST, 1).set(StringEvent::STRING_TIMESTAMP, 0x7f);
        e.set(StringEvent::STRING_EVENT_ID, 2).set(StringEvent::TMSN, 3).set(StringEvent::TDSN, 1);
        e.set(StringEvent::STRING_PARAM, 0x1234_5678);
        assert_eq!(*e.bytes(), [0xff, 2, 0, 0x19, 0x12, 0x34, 0x56, 0x78]);
        let mut e = TimestampEvent::new();
        e.set(TimestampEvent::TIMESTAMP_7_0, 0xab).set(TimestampEvent::TIMESTAMP_EVENT_ID, TIMESTAMP);
        e.set(TimestampEvent::URTS, 4).set(TimestampEvent::TIMESTAMP_52_40, 0x1001);
        e.set(TimestampEvent::TIMESTAMP_39_8, 0x1234_5678);
        assert_eq!(*e.bytes(), [0xab, 0xff, 0x90, 0x01, 0x12, 0x34, 0x56, 0x78]);
    }

    #[test]
    fn golden_registers() {
        let mut r = MtrcCap::new();
        r.set(MtrcCap::TRACE_OWNER, 1).set(MtrcCap::TRACE_TO_MEMORY, 1).set(MtrcCap::NUM_STRING_DB, 1);
        r.set(MtrcCap::FIRST_STRING_TRACE, 1).set(MtrcCap::NUM_STRING_TRACE, 2);
        assert_eq!(r.bytes()[..8], [0xc0, 0, 0, 1, 1, 2, 0, 0]);
        let mut r = MtrcCtrl::new();
        r.set(MtrcCtrl::TRACE_STATUS, 1).set(MtrcCtrl::ARM_EVENT, 1).set(MtrcCtrl::MODIFY_FIELD_SELECT, 1);
        assert_eq!(r.bytes()[..4], [0x48, 0, 0, 1]);
        let mut r = MtrcStdb::new();
        r.set(MtrcStdb::STRING_DB_INDEX, 1).set(MtrcStdb::READ_SIZE, 256).set(MtrcStdb::START_OFFSET, 64);
        assert_eq!(*r.bytes(), [0x10, 0, 1, 0, 0, 0, 0, 64]);
    }
}
