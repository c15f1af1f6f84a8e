//! The resource dump: contexts of objects, as the firmware has them.
//!
//! A dump is a row of segments, each with a head that says what it is and how many words it has. Source: mlx5 driver
//! (`diag/rsc_dump.c`, `mlx5_ifc.h`), mstflint (`resourcedump_lib`), field use.

use crate::layout::layout;

/// Bytes of a dump that fit into the register itself.
pub const INLINE_BYTES: usize = 208;
/// Where they are in the register.
pub const INLINE_FROM: usize = 0x30;
/// [`ResourceDump::NUM_OF_OBJ1`]: all objects from the index on.
pub const ALL: u32 = 0xffff;
/// [`ResourceDump::NUM_OF_OBJ1`]: all objects from the index on that are in use.
pub const ACTIVE: u32 = 0xfffe;

/// Kinds of segments: those that structure a dump. What there is beside them, the menu says.
pub mod segment {
    /// A remark: [`super::DumpNotice`].
    pub const NOTICE: u32 = 0xfff9;
    /// What was asked for: [`super::DumpCommand`].
    pub const COMMAND: u32 = 0xfffa;
    /// The last segment: [`super::DumpEnd`].
    pub const TERMINATE: u32 = 0xfffb;
    /// Why it can't be had: [`super::DumpNotice`].
    pub const ERROR: u32 = 0xfffc;
    /// Names another dump.
    pub const REFERENCE: u32 = 0xfffd;
    /// About the dump: [`super::DumpInfo`].
    pub const INFO: u32 = 0xfffe;
    /// What can be dumped: [`super::DumpMenu`].
    pub const MENU: u32 = 0xffff;
}

layout! {
    /// RESOURCE_DUMP: asks for a part of a dump.
    pub struct ResourceDump[0x100] {
        /// 1 = the dump goes on: it is asked again with what came.
        MORE_DUMP: 0x0 [31:31];
        /// 1 = the part comes in the register; 0 = into memory.
        INLINE_DUMP: 0x0 [30:30];
        /// 1 = `VHCA_ID` counts.
        VHCA_ID_VALID: 0x0 [29:29];
        /// Number of the part; the answer has the next one.
        SEQ_NUM: 0x0 [19:16];
        /// What is dumped: one of the menu's, or the menu.
        SEGMENT_TYPE: 0x0 [15:0];
        /// Whose objects.
        VHCA_ID: 0x4 [15:0];
        /// First object.
        INDEX1: 0x8 [31:0];
        /// First object of another kind, for what has two.
        INDEX2: 0xc [31:0];
        /// How many from the first on; 0 = one.
        NUM_OF_OBJ1: 0x10 [31:16];
        /// How many of the other kind.
        NUM_OF_OBJ2: 0x10 [15:0];
        /// Where the dump goes on: comes back as it was told.
        DEVICE_OPAQUE: 0x18 u64;
        /// The key of the memory.
        MKEY: 0x20 [31:0];
        /// Bytes that there is room for; in the answer, bytes of the part.
        DUMP_SIZE: 0x24 [31:0];
        /// Where in the memory.
        ADDRESS: 0x28 u64;
    }

    /// What all segments begin with.
    pub struct SegmentHead[0x4] {
        /// Words, with this one.
        LENGTH_DW: 0x0 [31:16];
        /// What it is.
        KIND: 0x0 [15:0];
    }

    /// About the dump.
    pub struct DumpInfo[0x10] {
        /// Words: 4.
        INFO_LENGTH_DW: 0x0 [31:16];
        /// [`segment::INFO`].
        INFO_KIND: 0x0 [15:0];
        /// Version of the format.
        DUMP_VERSION: 0x4 [7:0];
        /// The chip.
        HW_VERSION: 0x8 [31:0];
        /// The firmware.
        FW_VERSION: 0xc [31:0];
    }

    /// What was asked for.
    pub struct DumpCommand[0x14] {
        /// Words: 5.
        COMMAND_LENGTH_DW: 0x0 [31:16];
        /// [`segment::COMMAND`].
        COMMAND_KIND: 0x0 [15:0];
        /// What.
        SEGMENT_CALLED: 0x4 [31:16];
        /// Whose.
        COMMAND_VHCA_ID: 0x4 [15:0];
        /// First object.
        COMMAND_INDEX1: 0x8 [31:0];
        /// First object of another kind.
        COMMAND_INDEX2: 0xc [31:0];
        /// How many.
        COMMAND_NUM_OF_OBJ1: 0x10 [31:16];
        /// How many of the other kind.
        COMMAND_NUM_OF_OBJ2: 0x10 [15:0];
    }

    /// An object: its bytes follow.
    pub struct DumpObject[0x10] {
        /// Words, with those of the object.
        OBJECT_LENGTH_DW: 0x0 [31:16];
        /// What it is.
        OBJECT_KIND: 0x0 [15:0];
        /// Its number.
        OBJECT_INDEX1: 0x8 [31:0];
        /// Number of another kind.
        OBJECT_INDEX2: 0xc [31:0];
    }

    /// What can be dumped: records follow.
    pub struct DumpMenu[0x8] {
        /// Words, with those of the records.
        MENU_LENGTH_DW: 0x0 [31:16];
        /// [`segment::MENU`].
        MENU_KIND: 0x0 [15:0];
        /// How many.
        NUM_OF_RECORDS: 0x4 [15:0];
    }

    /// One of the menu. Names are text with zeros behind.
    pub struct MenuRecord[0x34] {
        /// The second number of objects can be "in use".
        NUM_OF_OBJ2_ACTIVE: 0x0 [27:27];
        /// It can be "all".
        NUM_OF_OBJ2_ALL: 0x0 [26:26];
        /// It has to be there.
        MUST_HAVE_NUM_OF_OBJ2: 0x0 [25:25];
        /// It can be there.
        SUPPORT_NUM_OF_OBJ2: 0x0 [24:24];
        /// The first number of objects can be "in use".
        NUM_OF_OBJ1_ACTIVE: 0x0 [23:23];
        /// It can be "all".
        NUM_OF_OBJ1_ALL: 0x0 [22:22];
        /// It has to be there.
        MUST_HAVE_NUM_OF_OBJ1: 0x0 [21:21];
        /// It can be there.
        SUPPORT_NUM_OF_OBJ1: 0x0 [20:20];
        /// The second index has to be there.
        MUST_HAVE_INDEX2: 0x0 [19:19];
        /// It can be there.
        SUPPORT_INDEX2: 0x0 [18:18];
        /// The first index has to be there.
        MUST_HAVE_INDEX1: 0x0 [17:17];
        /// It can be there.
        SUPPORT_INDEX1: 0x0 [16:16];
        /// What to ask for.
        RECORD_SEGMENT_TYPE: 0x0 [15:0];
        /// Its name, 16 characters: the first eight.
        NAME_FIRST: 0x4 u64;
        /// The other eight.
        NAME_LAST: 0xc u64;
        /// Name of the first index, 16 characters: the first eight.
        INDEX1_FIRST: 0x14 u64;
        /// The other eight.
        INDEX1_LAST: 0x1c u64;
    }

    /// A remark, or why something can't be had. The text has 32 characters, from 0x10 on.
    pub struct DumpNotice[0x30] {
        /// Words: 12.
        NOTICE_LENGTH_DW: 0x0 [31:16];
        /// [`segment::NOTICE`] or [`segment::ERROR`].
        NOTICE_KIND: 0x0 [15:0];
        /// A number for the reason.
        SYNDROME_ID: 0x4 [15:0];
    }

    /// The end of a dump.
    pub struct DumpEnd[0x8] {
        /// Words: 2.
        END_LENGTH_DW: 0x0 [31:16];
        /// [`segment::TERMINATE`].
        END_KIND: 0x0 [15:0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_register() {
        let mut r = ResourceDump::new();
        r.set(ResourceDump::MORE_DUMP, 1).set(ResourceDump::SEQ_NUM, 5);
        r.set(ResourceDump::SEGMENT_TYPE, segment::MENU).set(ResourceDump::NUM_OF_OBJ1, ALL);
        r.set(ResourceDump::DEVICE_OPAQUE, 7).set(ResourceDump::DUMP_SIZE, 0x1000);
        assert_eq!(r.bytes()[..4], [0x80, 5, 0xff, 0xff]);
        assert_eq!((r.bytes()[0x10], r.bytes()[0x11], r.bytes()[0x1f], r.bytes()[0x26]), (255, 255, 7, 0x10));
    }

    #[test]
    fn golden_menu() {
        let mut r = MenuRecord::new();
        r.set(MenuRecord::SUPPORT_INDEX1, 1).set(MenuRecord::MUST_HAVE_INDEX1, 1);
        r.set(MenuRecord::SUPPORT_NUM_OF_OBJ1, 1).set(MenuRecord::NUM_OF_OBJ1_ALL, 1);
        r.set(MenuRecord::RECORD_SEGMENT_TYPE, 0x1234);
        r.set(MenuRecord::NAME_FIRST, u64::from_be_bytes(*b"FULL_QPC"));
        assert_eq!(r.bytes()[..8], [0, 0x53, 0x12, 0x34, b'F', b'U', b'L', b'L']);
    }
}
