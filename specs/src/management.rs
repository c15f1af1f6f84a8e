//! What tools manage an adapter with: the vendor specific capability and its spaces, the ICMD mailbox, and the registers of
//! management that all adapters have.
//!
//! Source: PRM "Management Registers"; the mlx5 driver (`lib/pci_vsc.c`, `fw.c`, `fw_reset.c`, `hwmon.c`) and mstflint
//! (`mtcr_ul`, `tools_layouts`) for what they read and write (field use).

use crate::layout::layout;

/// Registers of the vendor specific capability, as offsets in it; they are little-endian like all of configuration space.
pub mod vsc {
    /// Bytes of the capability.
    pub const LEN: usize = 0x18;
    /// Space in bits 15..0; in bits 31..24 what [`SIZE_VALID`] and others say.
    pub const CONTROL: usize = 0x04;
    /// A number that is another one at each read, and never 0.
    pub const COUNTER: usize = 0x08;
    /// 0 = the window is free. What is written sticks while it is 0; 0 frees it.
    pub const SEMAPHORE: usize = 0x0c;
    /// Flag in bit 31, syndrome in bit 30, address in bits 29..0.
    pub const ADDRESS: usize = 0x10;
    /// The word.
    pub const DATA: usize = 0x14;

    /// Bits of [`CONTROL`] that name a space.
    pub const SPACE: u32 = 0xffff;
    /// Of [`CONTROL`]: place of why the last access failed.
    pub const SYNDROME_SHIFT: u32 = 24;
    /// A syndrome: there is nothing at the address.
    pub const OUT_OF_RANGE: u32 = 3;
    /// Of [`CONTROL`]: [`ADDRESS`] has the size of the space that was selected.
    pub const SIZE_VALID: u32 = 1 << 28;
    /// Of [`CONTROL`]: the space is there.
    pub const SUPPORTED: u32 = 1 << 29;
    /// Of [`ADDRESS`]: to write; when a read is done the adapter sets it, when a write is done it clears it.
    pub const FLAG: u32 = 1 << 31;
    /// Of [`ADDRESS`]: the last access failed.
    pub const FAILED: u32 = 1 << 30;
    /// Of [`ADDRESS`]: the address.
    pub const ADDRESS_BITS: u32 = (1 << 30) - 1;
}

/// Spaces behind the vendor specific capability.
pub mod space {
    /// The ICMD mailbox, for commands with long inputs: tools look whether it is there.
    pub const ICMD_EXT: u32 = 0x1;
    /// Configuration registers.
    pub const CR: u32 = 0x2;
    /// The ICMD mailbox.
    pub const ICMD: u32 = 0x3;
    /// Configuration registers that dumps may read: FreeBSD's driver calls the space protected (`mlx5_fwdump.c`).
    pub const CR_PROTECTED: u32 = 0x6;
    /// Configuration registers, in the order of a dump: a read leaves the next address in the window.
    pub const SCAN: u32 = 0x7;
    /// Semaphores that the driver and tools share.
    pub const SEMAPHORES: u32 = 0xa;
}

/// Addresses in [`space::SEMAPHORES`].
pub mod semaphore {
    /// Of the ICMD mailbox.
    pub const ICMD: u32 = 0x0;
    /// Of who resets the firmware.
    pub const RESET: u32 = 0x20;
}

/// Addresses in [`space::CR`].
pub mod cr {
    /// Bytes of the space.
    pub const SIZE: u32 = 0x12_0000;
    /// Hardware id in bits 15..0, revision in bits 19..16.
    pub const HARDWARE_ID: u32 = 0xf_0014;
    /// Bit 31: the firmware has not come up yet.
    pub const FIRMWARE_STATUS: u32 = 0xb_0004;
}

/// The ICMD mailbox: addresses in [`space::ICMD`], numbers and states.
pub mod icmd {
    /// Opcode in bits 31..16, status in bits 15..8, busy in bit 0.
    pub const CONTROL: u32 = 0x0;
    /// Most bytes of a command, read only.
    pub const MAILBOX_SIZE: u32 = 0x1000;
    /// The mailbox.
    pub const MAILBOX: u32 = 0x10_0000;
    /// What [`MAILBOX_SIZE`] says.
    pub const MAILBOX_BYTES: usize = 0x340;
    /// Of [`CONTROL`]: execute, and not done yet.
    pub const BUSY: u32 = 1 << 0;
    /// Of [`CONTROL`]: the mailbox is in memory of the host.
    pub const EXTERNAL: u32 = 1 << 1;

    /// Opcode: access to a register, an [`super::OperationTlv`] and a [`super::RegisterTlv`].
    pub const REGISTER: u32 = 0x9001;
    /// Opcode: which firmware runs, an [`super::IcmdFirmwareInfo`].
    pub const FIRMWARE_INFO: u32 = 0x8007;
    /// Opcode: what there is, an [`super::IcmdCapabilities`].
    pub const QUERY_CAP: u32 = 0x8400;
    /// Status: done.
    pub const OK: u32 = 0;
    /// Status: there is no such opcode.
    pub const INVALID_OPCODE: u32 = 1;
    /// Status: the mailbox is not what the opcode takes.
    pub const INVALID_COMMAND: u32 = 2;
    /// Status: a value is not what the opcode takes.
    pub const BAD_PARAMETER: u32 = 4;
}

/// States of [`OperationTlv::STATUS`].
pub mod tlv_status {
    /// Done.
    pub const OK: u32 = 0;
    /// A TLV of that kind is not known.
    pub const UNKNOWN_TLV: u32 = 3;
    /// There is no such register.
    pub const NO_REGISTER: u32 = 4;
    /// There is no such class.
    pub const CLASS: u32 = 5;
    /// The register can't be read, or not be written.
    pub const METHOD: u32 = 6;
    /// A value is not one that the register takes.
    pub const BAD_PARAMETER: u32 = 7;
    /// What it is about is in use.
    pub const RESOURCE: u32 = 8;
    /// The register is longer.
    pub const TOO_SHORT: u32 = 0x24;
}

/// [`OperationTlv::METHOD`]: read.
pub const METHOD_GET: u32 = 1;
/// [`OperationTlv::METHOD`]: write.
pub const METHOD_SET: u32 = 2;
/// [`OperationTlv::CLASS`]: registers.
pub const CLASS_REGISTER: u32 = 1;

layout! {
    /// Operation TLV: what to do with the register that follows.
    pub struct OperationTlv[0x10] {
        /// Kind of TLV: 1.
        TYPE: 0x0 [31:27];
        /// Words of this TLV: 4.
        LEN: 0x0 [26:16];
        /// Status of the answer: [`tlv_status`].
        STATUS: 0x0 [14:8];
        /// Register.
        REGISTER_ID: 0x4 [31:16];
        /// 1 = an answer.
        RESPONSE: 0x4 [15:15];
        /// 1 = read, 2 = write.
        METHOD: 0x4 [14:8];
        /// 1 = registers.
        CLASS: 0x4 [7:0];
        /// Comes back as it was.
        TRANSACTION_ID: 0x8 u64;
    }

    /// Register TLV: the register's bytes follow.
    pub struct RegisterTlv[0x4] {
        /// Kind of TLV: 3.
        TYPE: 0x0 [31:27];
        /// Words, with this one.
        LEN: 0x0 [26:16];
    }

    /// What the ICMD mailbox and the firmware behind it can do.
    pub struct IcmdCapabilities[0x8] {
        /// 1 = lasting settings can be accessed.
        NV_ACCESS: 0x0 [31:31];
        /// 1 = every register can be accessed by the mailbox.
        ALLOW_ICMD_ACCESS_REG_ON_ALL_REGISTERS: 0x0 [29:29];
        /// 1 = there is the register PCAM.
        PCAM_REG: 0x0 [27:27];
        /// 1 = there is the register MCAM.
        MCAM_REG: 0x0 [26:26];
        /// 1 = there is the register QCAM.
        QCAM_REG: 0x0 [25:25];
    }

    /// Which firmware runs.
    pub struct IcmdFirmwareInfo[0x24] {
        /// Its version.
        INFO_MAJOR: 0x0 [31:16];
        /// The release.
        INFO_MINOR: 0x4 [31:16];
        /// The build.
        INFO_SUBMINOR: 0x4 [15:0];
        /// Board id (PSID), 16 characters: the first eight.
        INFO_PSID_FIRST: 0x14 u64;
        /// The other eight.
        INFO_PSID_LAST: 0x1c u64;
    }

    /// MCAM: which registers of management there are, and which features of them.
    pub struct Mcam[0x48] {
        /// Group of features.
        FEATURE_GROUP: 0x0 [23:16];
        /// Group of registers: 0 = 0x9000 to 0x907f, 1 = 0x9080 to 0x90ff, and so on.
        ACCESS_REG_GROUP: 0x0 [7:0];
        /// The group's upper 64 registers: bit n is that of number 64 + n.
        MNG_ACCESS_REG_CAP_MASK_H: 0x8 u64;
        /// Its lower 64 registers.
        MNG_ACCESS_REG_CAP_MASK_L: 0x10 u64;
        /// Features, upper half.
        MNG_FEATURE_CAP_MASK_H: 0x28 u64;
        /// Features, lower half.
        MNG_FEATURE_CAP_MASK_L: 0x30 u64;
    }

    /// MGIR: general information of hardware and firmware.
    pub struct Mgir[0xa0] {
        /// Revision of the chip.
        DEVICE_HW_REVISION: 0x0 [31:16];
        /// PCI device id.
        DEVICE_ID: 0x0 [15:0];
        /// Ports.
        NUM_PORTS: 0x4 [23:16];
        /// Id of the silicon.
        HW_DEV_ID: 0x8 [15:0];
        /// MAC address that the board was made with, upper two bytes.
        MANUFACTURING_BASE_MAC_H: 0x10 [15:0];
        /// Its lower four bytes.
        MANUFACTURING_BASE_MAC_L: 0x14 [31:0];
        /// Version of the firmware that runs, cut off to 8 bits each.
        MAJOR: 0x20 [23:16];
        /// The release.
        MINOR: 0x20 [15:8];
        /// The build.
        SUB_MINOR: 0x20 [7:0];
        /// Board id (PSID), 16 characters: the first eight.
        PSID_FIRST: 0x30 u64;
        /// The other eight.
        PSID_LAST: 0x38 u64;
        /// The version whole.
        EXTENDED_MAJOR: 0x44 [31:0];
        /// The release.
        EXTENDED_MINOR: 0x48 [31:0];
        /// The build.
        EXTENDED_SUB_MINOR: 0x4c [31:0];
    }

    /// MCQS: a component that can be updated.
    pub struct Mcqs[0x10] {
        /// 1 = there is none behind it.
        LAST_INDEX_FLAG: 0x0 [31:31];
        /// Number of the component.
        COMPONENT_INDEX: 0x0 [15:0];
        /// What it is: 1 = the image that the adapter starts with.
        IDENTIFIER: 0x4 [15:0];
        /// 0 = not there, 1 = there, 2 = in use.
        COMPONENT_STATUS: 0x8 [8:4];
        /// See [`update_state`].
        COMPONENT_UPDATE_STATE: 0x8 [3:0];
    }

    /// MCQI: about a component; the data follows.
    pub struct Mcqi[0x18] {
        /// 1 = of what will be in use after the next start.
        READ_PENDING_COMPONENT: 0x0 [31:31];
        /// Number of the component.
        COMPONENT_INDEX: 0x0 [15:0];
        /// 0 = [`McqiCapabilities`], 1 = [`McqiVersion`], 5 = [`McqiActivation`].
        INFO_TYPE: 0x8 [4:0];
        /// Bytes that there are.
        INFO_SIZE: 0xc [31:0];
        /// First byte that is wanted.
        OFFSET: 0x10 [31:0];
        /// Bytes that are wanted, and that come.
        DATA_SIZE: 0x14 [15:0];
    }

    /// Data of [`Mcqi`]: what can be done with a component.
    pub struct McqiCapabilities[0x14] {
        /// Bit n: information of kind n is there.
        SUPPORTED_INFO_BITMASK: 0x0 [31:0];
        /// Bytes of it; 0 = not known.
        COMPONENT_SIZE: 0x4 [31:0];
        /// Most bytes of it.
        MAX_COMPONENT_SIZE: 0x8 [31:0];
        /// Pieces are a multiple of this power of two.
        LOG_MCDA_WORD_SIZE: 0xc [31:28];
        /// Most bytes of a piece.
        MCDA_MAX_WRITE_SIZE: 0xc [15:0];
        /// 1 = it can be read back.
        RD_EN: 0x10 [31:31];
        /// 1 = it has to be for this chip.
        MATCH_CHIP_ID: 0x10 [29:29];
        /// 1 = it has to be for this board.
        MATCH_PSID: 0x10 [28:28];
    }

    /// Data of [`Mcqi`]: version of a component.
    pub struct McqiVersion[0x7c] {
        /// Bytes of the version as text, from 0x20 on.
        VERSION_STRING_LENGTH: 0x0 [7:0];
        /// Major in bits 31..24, minor in bits 23..16, build in bits 15..0.
        VERSION: 0x4 [31:0];
    }

    /// Data of [`Mcqi`]: how a component comes into use.
    pub struct McqiActivation[0x4] {
        /// 1 = when the host restarts.
        PENDING_SERVER_REBOOT: 0x0 [29:29];
        /// 1 = when the firmware restarts.
        PENDING_FW_RESET: 0x0 [28:28];
    }

    /// MCC: control of an update.
    pub struct Mcc[0x20] {
        /// What to do: [`instruction`].
        INSTRUCTION: 0x0 [7:0];
        /// Number of the component.
        COMPONENT_INDEX: 0x4 [15:0];
        /// The update; 0 = which one is next.
        UPDATE_HANDLE: 0x8 [23:0];
        /// Percent that are done.
        CONTROL_PROGRESS: 0xc [22:16];
        /// Why the last instruction failed: [`update_error`].
        ERROR_CODE: 0xc [15:8];
        /// See [`control_state`].
        CONTROL_STATE: 0xc [3:0];
        /// Bytes that will come.
        COMPONENT_SIZE: 0x10 [31:0];
    }

    /// MCDA: a piece of a component; the data follows, in words of which each has the image's four bytes backwards.
    pub struct Mcda[0x10] {
        /// The update.
        UPDATE_HANDLE: 0x0 [23:0];
        /// Where it belongs, bytes.
        OFFSET: 0x4 [31:0];
        /// Bytes.
        LEN: 0x8 [15:0];
    }

    /// MQIS: texts about the adapter; the text follows.
    pub struct Mqis[0x10] {
        /// 1 = its name, 2 = what it is.
        INFO_TYPE: 0x0 [7:0];
        /// Bytes that there are.
        INFO_LENGTH: 0x4 [15:0];
        /// First byte that is wanted.
        READ_OFFSET: 0x8 [31:16];
        /// Bytes that are wanted, and that come.
        READ_LENGTH: 0x8 [15:0];
    }

    /// MTCAP: sensors of temperature.
    pub struct Mtcap[0x10] {
        /// How many.
        SENSOR_COUNT: 0x0 [6:0];
        /// Bit n: number n is there.
        SENSOR_MAP: 0x8 u64;
    }

    /// MTMP: a sensor of temperature. Temperatures are in eighths of a degree Celsius.
    pub struct Mtmp[0x20] {
        /// Which.
        SENSOR_INDEX: 0x0 [11:0];
        /// What it measures.
        TEMPERATURE: 0x4 [15:0];
        /// 1 = it keeps the highest value.
        MTE: 0x8 [31:31];
        /// Write 1 = the highest value begins anew.
        MTR: 0x8 [30:30];
        /// Highest value.
        MAX_TEMPERATURE: 0x8 [15:0];
        /// Whether events tell of limits that are passed.
        TEE: 0xc [31:30];
        /// Upper limit.
        TEMPERATURE_THRESHOLD_HI: 0xc [15:0];
        /// Lower limit.
        TEMPERATURE_THRESHOLD_LO: 0x10 [15:0];
        /// Its name, 8 characters.
        SENSOR_NAME: 0x18 u64;
    }

    /// MFRL: restart of the firmware.
    pub struct Mfrl[0x8] {
        /// 1 = drivers of all functions are asked first, by one of them; 0 = not; 2 = by the firmware.
        PCI_SYNC_START: 0x4 [30:29];
        /// A driver answers: 1 = it agrees, 2 = it does not.
        PCI_SYNC_RESP: 0x4 [28:27];
        /// Which of the kinds is meant; 0 = the whole chip.
        RST_TYPE_SEL: 0x4 [26:24];
        /// What the drivers are to do to PCI Express; 0 = the link goes down and up.
        PCI_RESET_REQ_METHOD: 0x4 [23:21];
        /// What becomes of the restart that drivers are asked about: [`reset_state`].
        RESET_STATE: 0x4 [19:16];
        /// Kinds of restart that there are, a bit each.
        RESET_TYPE: 0x4 [15:8];
        /// By what it starts again: read, a bit for each that there is; written, the one that is meant. See [`reset_level`].
        RESET_LEVEL: 0x4 [7:0];
    }

    /// MPEIN: the PCI Express link.
    pub struct Mpein[0x30] {
        /// Lanes that are wanted.
        LINK_WIDTH_ENABLED: 0x8 [23:16];
        /// Speeds that are wanted: a bit each, from 2.5 GT/s on.
        LINK_SPEED_ENABLED: 0x8 [15:0];
        /// Lanes that hold.
        LINK_WIDTH_ACTIVE: 0xc [23:16];
        /// The speed that holds: a bit.
        LINK_SPEED_ACTIVE: 0xc [15:0];
        /// Functions.
        NUM_OF_PFS: 0x10 [31:16];
        /// Bus (8 bits), device (5) and function (3) of the first.
        BDF0: 0x14 [31:16];
        /// 1 = the slot gives power enough.
        PWR_STATUS: 0x18 [18:16];
        /// Power that the slot gives, W; 0 = not known.
        PCI_POWER: 0x1c [11:0];
    }

    /// MNVQC: whether there is a lasting setting.
    pub struct Mnvqc[0x8] {
        /// The setting, as in [`crate::register::Mnvda`].
        TYPE: 0x0 [31:0];
        /// Version of its layout.
        VERSION: 0x4 [7:4];
        /// 1 = it can be written.
        SUPPORT_WR: 0x4 [1:1];
        /// 1 = it can be read.
        SUPPORT_RD: 0x4 [0:0];
    }

    /// MNVGC: what of lasting settings can be read.
    pub struct Mnvgc[0x10] {
        /// 1 = values of now.
        NVDA_READ_CURRENT_SETTINGS: 0x0 [1:1];
        /// 1 = values as delivered.
        NVDA_READ_FACTORY_SETTINGS: 0x0 [0:0];
    }

    /// MNVIA: all lasting settings become what was delivered.
    pub struct Mnvia[0x8] {
        /// Whose: 0 = all.
        TARGET: 0x0 [2:0];
    }

    /// The lasting setting of a port's link layer.
    pub struct NvVpiLinkType[0x4] {
        /// 1 = InfiniBand, 2 = Ethernet.
        DEFAULT_LINK_TYPE: 0x0 [3:2];
        /// The same, as programs before an operating system read it.
        NETWORK_LINK_TYPE: 0x0 [1:0];
    }

    /// The lasting setting of addresses that the adapter was made with; it can't be written.
    pub struct NvBaseMacGuid[0x10] {
        /// MAC address, upper two bytes.
        BASE_MAC_H: 0x0 [15:0];
        /// Its lower four bytes.
        BASE_MAC_L: 0x4 [31:0];
        /// GUID.
        BASE_GUID: 0x8 u64;
    }

    /// Head of a firmware image of softhca; what follows is not looked at, but for its digest.
    pub struct ImageHead[0x40] {
        /// [`IMAGE_MAGIC`].
        MAGIC: 0x0 u64;
        /// Version of this layout: 1.
        FORMAT: 0x8 [31:0];
        /// Bytes of the image, this head included.
        LENGTH: 0xc [31:0];
        /// CRC-32 (IEEE 802.3) of all bytes behind this word.
        DIGEST: 0x10 [31:0];
        /// Id of the silicon that it is for.
        HARDWARE_ID: 0x14 [31:0];
        /// Version: the family of adapters.
        MAJOR: 0x18 [31:16];
        /// The release.
        MINOR: 0x18 [15:0];
        /// The build.
        SUBMINOR: 0x1c [31:16];
        /// Board id (PSID) that it is for, 16 characters: the first eight.
        PSID_FIRST: 0x20 u64;
        /// The other eight.
        PSID_LAST: 0x28 u64;
    }

    /// How many of [`NvBaseMacGuid`] the adapter has.
    pub struct NvBaseMacGuidCap[0x8] {
        /// 1 = there is a MAC address.
        MAC_EN: 0x0 [31:31];
        /// 1 = there is a GUID.
        GUID_EN: 0x0 [30:30];
        /// GUIDs.
        NUM_GUIDS: 0x4 [31:16];
        /// MAC addresses.
        NUM_MACS: 0x4 [15:0];
    }
}

/// Values of [`Mcqs::COMPONENT_UPDATE_STATE`].
pub mod update_state {
    /// Nothing goes on.
    pub const IDLE: u32 = 0;
    /// An update goes on.
    pub const IN_PROGRESS: u32 = 1;
    /// It comes into use with the next start.
    pub const ACTIVE_PENDING_RESET: u32 = 4;
}

/// Values of [`Mcc::INSTRUCTION`].
pub mod instruction {
    /// Begins with an update of this number.
    pub const LOCK_UPDATE_HANDLE: u32 = 1;
    /// Ends it.
    pub const RELEASE_UPDATE_HANDLE: u32 = 2;
    /// A component of that size is to come.
    pub const UPDATE_COMPONENT: u32 = 3;
    /// It is whole.
    pub const VERIFY_COMPONENT: u32 = 4;
    /// It is what the adapter starts with from now on.
    pub const ACTIVATE_COMPONENT: u32 = 5;
    /// All that were verified are.
    pub const ACTIVATE: u32 = 6;
    /// The component is read.
    pub const READ_COMPONENT: u32 = 7;
    /// What is under way is given up.
    pub const CANCEL: u32 = 8;
    /// Whether the update goes on.
    pub const CHECK_UPDATE_HANDLE: u32 = 9;
    /// Ends an update of whomever.
    pub const FORCE_HANDLE_RELEASE: u32 = 0xa;
}

/// Values of [`Mcc::CONTROL_STATE`].
pub mod control_state {
    /// No update goes on.
    pub const IDLE: u32 = 0;
    /// Somebody has the handle.
    pub const LOCKED: u32 = 1;
    /// Pieces are taken.
    pub const DOWNLOAD: u32 = 3;
    /// Pieces are given.
    pub const UPLOAD: u32 = 7;
}

/// Values of [`Mcc::ERROR_CODE`].
pub mod update_error {
    /// None.
    pub const OK: u32 = 0;
    /// It is not allowed in that state.
    pub const ERROR: u32 = 1;
    /// The image's digest is wrong.
    pub const DIGEST: u32 = 2;
    /// It is for another chip or board.
    pub const NOT_APPLICABLE: u32 = 3;
    /// It is no image.
    pub const BAD_FORMAT: u32 = 8;
    /// What was activated before has to be started first.
    pub const BLOCKED_PENDING_RESET: u32 = 9;
}

/// Values of [`Mfrl::RESET_LEVEL`], a bit each.
pub mod reset_level {
    /// A reset of the PCI Express link.
    pub const PCI_RESET: u32 = 1 << 3;
    /// A restart of the host.
    pub const WARM_REBOOT: u32 = 1 << 6;
}

/// Values of [`Mfrl::RESET_STATE`].
pub mod reset_state {
    /// Nothing, or the firmware has started.
    pub const IDLE: u32 = 0;
    /// Drivers are asked.
    pub const NEGOTIATION: u32 = 1;
    /// They let go.
    pub const IN_PROGRESS: u32 = 2;
    /// One has not answered.
    pub const NEGOTIATION_TIMEOUT: u32 = 3;
    /// One did not agree.
    pub const REFUSED: u32 = 4;
    /// One has not let go.
    pub const UNLOAD_TIMEOUT: u32 = 5;
}

/// Bits of [`Mcam::MNG_FEATURE_CAP_MASK_L`].
pub mod mcam_feature {
    /// [`crate::pcie::Mpcnt`] has its group of performance.
    pub const PCIE_PERFORMANCE: u64 = 1 << 0;
    /// [`super::Mtcap::SENSOR_MAP`].
    pub const SENSOR_MAP: u64 = 1 << 6;
    /// [`super::Mpein::PWR_STATUS`] and [`super::Mpein::PCI_POWER`].
    pub const PCI_POWER: u64 = 1 << 17;
    /// [`super::Mfrl::PCI_SYNC_START`].
    pub const PCI_SYNC: u64 = 1 << 19;
    /// [`super::Mfrl::RESET_STATE`].
    pub const RESET_STATE: u64 = 1 << 21;
}

/// MCQI: kinds of information.
pub mod component_info {
    /// [`super::McqiCapabilities`].
    pub const CAPABILITIES: u32 = 0;
    /// [`super::McqiVersion`].
    pub const VERSION: u32 = 1;
    /// [`super::McqiActivation`].
    pub const ACTIVATION: u32 = 5;
}

/// [`ImageHead::MAGIC`]: "SOFTHCA!".
pub const IMAGE_MAGIC: u64 = u64::from_be_bytes(*b"SOFTHCA!");
/// Where the digest of a firmware image begins to count.
pub const IMAGE_DIGEST_FROM: usize = 0x14;

/// [`Mcqs::IDENTIFIER`]: the image that the adapter starts with.
pub const BOOT_IMAGE: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_tlvs() {
        let mut t = OperationTlv::new();
        t.set(OperationTlv::TYPE, 1).set(OperationTlv::LEN, 4).set(OperationTlv::STATUS, 4);
        t.set(OperationTlv::REGISTER_ID, 0x9020).set(OperationTlv::METHOD, METHOD_GET);
        t.set(OperationTlv::CLASS, CLASS_REGISTER);
        assert_eq!(t.bytes()[..8], [0x08, 4, 4, 0, 0x90, 0x20, 1, 1]);
        let mut t = RegisterTlv::new();
        t.set(RegisterTlv::TYPE, 3).set(RegisterTlv::LEN, 0x29);
        assert_eq!(*t.bytes(), [0x18, 0x29, 0, 0]);
    }

    #[test]
    fn golden_components() {
        let mut m = Mcqs::new();
        m.set(Mcqs::LAST_INDEX_FLAG, 1).set(Mcqs::IDENTIFIER, BOOT_IMAGE).set(Mcqs::COMPONENT_STATUS, 2);
        m.set(Mcqs::COMPONENT_UPDATE_STATE, update_state::ACTIVE_PENDING_RESET);
        assert_eq!(*m.bytes(), [0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x24, 0, 0, 0, 0]);
        let mut m = Mcqi::new();
        m.set(Mcqi::READ_PENDING_COMPONENT, 1).set(Mcqi::INFO_TYPE, 1).set(Mcqi::DATA_SIZE, 0x7c);
        assert_eq!((m.bytes()[0], m.bytes()[0xb], m.bytes()[0x17]), (0x80, 1, 0x7c));
        let mut m = Mcc::new();
        m.set(Mcc::INSTRUCTION, instruction::ACTIVATE).set(Mcc::UPDATE_HANDLE, 0x10_0000);
        m.set(Mcc::ERROR_CODE, update_error::DIGEST).set(Mcc::CONTROL_STATE, control_state::DOWNLOAD);
        assert_eq!(m.bytes()[..0x10], [0, 0, 0, 6, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 2, 3]);
        let mut m = Mcam::new();
        m.set(Mcam::MNG_ACCESS_REG_CAP_MASK_H, 1 << 0x20).set(Mcam::MNG_ACCESS_REG_CAP_MASK_L, 1 << 0x20);
        assert_eq!((m.bytes()[0xb], m.bytes()[0x13]), (1, 1), "MCQS and MGIR where drivers look for them");
    }

    #[test]
    fn golden_settings() {
        let mut s = NvVpiLinkType::new();
        s.set(NvVpiLinkType::DEFAULT_LINK_TYPE, 2).set(NvVpiLinkType::NETWORK_LINK_TYPE, 1);
        assert_eq!(*s.bytes(), [0, 0, 0, 9]);
        let mut s = Mnvqc::new();
        s.set(Mnvqc::SUPPORT_RD, 1).set(Mnvqc::SUPPORT_WR, 1).set(Mnvqc::VERSION, 1);
        assert_eq!(s.bytes()[4..], [0, 0, 0, 0x13]);
        let mut s = Mfrl::new();
        s.set(Mfrl::RESET_LEVEL, reset_level::PCI_RESET | reset_level::WARM_REBOOT);
        assert_eq!(s.bytes()[4..], [0, 0, 0, 0x48]);
        s.set(Mfrl::PCI_SYNC_START, 1)
            .set(Mfrl::PCI_SYNC_RESP, 2)
            .set(Mfrl::RESET_STATE, reset_state::REFUSED);
        assert_eq!(s.bytes()[4..], [0x30, 4, 0, 0x48]);
    }
}
