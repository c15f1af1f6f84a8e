//! Memory of the adapter's own (device memory), by pieces that keys name.
//!
//! A piece lies in BAR0: the host reads and writes it there, and under a key its first byte has address 0.

use crate::bus::Bus;
use crate::error::Error;
use crate::hca::Hca;
use crate::mr::{Access, Mr};
use hca_spec::caps;
use hca_spec::cmd::{
    AllocMemicIn, AllocMemicOut, CreateMkeyIn, DeallocMemicIn, ModifyMemicIn, ModifyMemicOut, modify_memic,
};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::ids::Pd;
use hca_spec::mkc::{AccessMode, Mkc};

/// A piece of device memory.
#[must_use = "a piece stays allocated until it is freed"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceMemory {
    /// Where in BAR0 it begins.
    pub offset: u64,
    /// Its bytes.
    pub len: u32,
}

impl<B: Bus> Hca<B> {
    /// What the adapter has of device memory; all zeros if it has none.
    pub fn device_memory_caps(&mut self) -> Result<caps::DeviceMemory, Error> {
        let page = self.query_caps(caps::TYPE_DEVICE_MEMORY, false)?;
        Ok(caps::DeviceMemory::from_prefix_or_zero(&page))
    }

    /// Allocates `len` bytes, a multiple of the smallest piece, that lie in BAR0 at `offset`: the caller knows which pages of the
    /// window are free. They are zero.
    pub fn alloc_device_memory(&mut self, offset: u64, len: u32) -> Result<DeviceMemory, Error> {
        let mut input = AllocMemicIn::new();
        input.set(AllocMemicIn::RANGE_START_ADDR, offset).set(AllocMemicIn::MEMIC_SIZE, len);
        input.set(AllocMemicIn::RANGE_SIZE, len.next_multiple_of(crate::PAGE_SIZE as u32));
        let out = self.execute(Opcode::AllocMemic, 0, input.bytes().to_vec(), AllocMemicOut::SIZE)?;
        let out = AllocMemicOut::from_prefix_or_zero(&out);
        Ok(DeviceMemory { offset: out.get(AllocMemicOut::MEMIC_START_ADDR), len })
    }

    /// Frees a piece. Accesses by keys that name it fail from then on.
    pub fn free_device_memory(&mut self, piece: DeviceMemory) -> Result<(), Error> {
        let mut input = DeallocMemicIn::new();
        input.set(DeallocMemicIn::MEMIC_START_ADDR, piece.offset).set(DeallocMemicIn::MEMIC_SIZE, piece.len);
        self.execute(Opcode::DeallocMemic, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Where in BAR0 accesses do an operation ([`caps::memic_operation`]) on the piece's bytes, from its first one on.
    pub fn map_device_memory_operation(
        &mut self,
        piece: &DeviceMemory,
        operation: u32,
    ) -> Result<u64, Error> {
        let out = self.modify_device_memory(piece, operation, modify_memic::ALLOC)?;
        Ok(out.get(ModifyMemicOut::MEMIC_OPERATION_ADDR))
    }

    /// Takes these addresses away.
    pub fn unmap_device_memory_operation(
        &mut self,
        piece: &DeviceMemory,
        operation: u32,
    ) -> Result<(), Error> {
        self.modify_device_memory(piece, operation, modify_memic::DEALLOC).map(drop)
    }

    fn modify_device_memory(
        &mut self,
        piece: &DeviceMemory,
        operation: u32,
        mode: u32,
    ) -> Result<ModifyMemicOut, Error> {
        let mut input = ModifyMemicIn::new();
        input.set(ModifyMemicIn::MEMIC_START_ADDR, piece.offset);
        input.set(ModifyMemicIn::MEMIC_OPERATION_TYPE, operation);
        let out = self.execute(Opcode::ModifyMemic, mode, input.bytes().to_vec(), ModifyMemicOut::SIZE)?;
        Ok(ModifyMemicOut::from_prefix_or_zero(&out))
    }

    /// Registers a piece; under the key its first byte has address 0.
    pub fn register_device_memory(
        &mut self,
        pd: Pd,
        piece: &DeviceMemory,
        access: Access,
    ) -> Result<Mr, Error> {
        let mut input = CreateMkeyIn::new();
        let mkc = input.mkc_mut();
        mkc.set_access_mode(AccessMode::Memic);
        mkc.set(Mkc::START_ADDR, piece.offset).set(Mkc::LEN, u64::from(piece.len));
        self.create_key(pd, access, input, &[], 0, piece.len.into())
    }
}
