//! States of an adapter in which registers are tried.

use anyhow::{Context, Result};
use hca_firmware::commands::find;
use hca_firmware::flash::image;
use hca_firmware::{Personality, PortKind, State};
use hca_spec::cmd::{AccessRegIn, reg};
use hca_spec::command::Opcode;
use hca_spec::management::{Mcc, Mcda, instruction};
use hca_spec::put_be32;
use hca_spec::tracer::{MODE_MEMORY, MtrcCap, MtrcConf, MtrcCtrl, SELECT_STATUS};

use super::bench::{Answer, Bench};

/// op_mod: write the register.
pub(super) const WRITE: u32 = 0;
/// op_mod: read it.
pub(super) const READ: u32 = 1;
/// The memory key of the tracer.
const KEY: u32 = 0x1234_5600;
/// Bytes of an image's body, and of a piece.
const BODY: usize = 1000;
const PIECE: usize = 128;

/// What happened to the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Situation {
    /// Its driver is up.
    Fresh,
    /// It was used.
    Used,
    /// The driver has the tracer, which is on.
    Traced,
    /// An image was announced, and another one was none.
    Updated,
    /// An image waits for the next start.
    Activated,
}

impl Situation {
    pub(super) const ALL: [Self; 5] = [Self::Fresh, Self::Used, Self::Traced, Self::Updated, Self::Activated];

    /// Whether the register may tell of it.
    pub(super) fn concerns(self, register: &str) -> bool {
        match self {
            Self::Fresh | Self::Used => true,
            Self::Traced => register.starts_with("MTRC") || register == "CORE_DUMP",
            Self::Updated | Self::Activated => ["MCC", "MCDA", "MCQI", "MCQS"].contains(&register),
        }
    }
}

impl Bench {
    /// For registers: an adapter that is up.
    ///
    /// # Errors
    /// A template, or what makes the situation, is refused.
    pub(super) fn of_registers(port_kind: PortKind, situation: Situation) -> Result<Self> {
        let command = find(Opcode::AccessReg).context("a row")?;
        let mut bench = Self::new(command, port_kind)?.context("every adapter has registers")?;
        if bench.firmware.state() == State::Enabled {
            bench.good(Opcode::InitHca)?;
        }
        match situation {
            Situation::Fresh => {}
            Situation::Used => bench.wear(),
            Situation::Traced => bench.trace()?,
            Situation::Updated => {
                bench.instruct(instruction::LOCK_UPDATE_HANDLE, 0)?;
                bench.instruct(instruction::UPDATE_COMPONENT, PIECE as u32)?;
                // An image without bytes is none; the next one is begun.
                _ = bench.instruct(instruction::VERIFY_COMPONENT, 0);
            }
            Situation::Activated => bench.update()?,
        }
        Ok(bench)
    }

    /// Reads or writes a register.
    ///
    /// # Errors
    /// An adapter that waits for pages.
    pub(super) fn access(&mut self, register: u32, method: u32, data: &[u8]) -> Result<Answer> {
        let mut header = AccessRegIn::new();
        header.set(AccessRegIn::REGISTER_ID, register);
        let mut input = header.bytes().to_vec();
        put_be32(&mut input, 0, (Opcode::AccessReg as u32) << 16);
        put_be32(&mut input, 4, method);
        input.extend_from_slice(data);
        self.run(&input)
    }

    fn write(&mut self, register: u32, data: &[u8]) -> Result<Vec<u8>> {
        let answer = self.access(register, WRITE, data)?;
        match answer.refusal {
            Some(refusal) => Err(anyhow::anyhow!("{register:#x}: {}", refusal.why)),
            None => Ok(answer.output.get(AccessRegIn::SIZE..).unwrap_or_default().to_vec()),
        }
    }

    fn trace(&mut self) -> Result<()> {
        let mut cap = MtrcCap::new();
        self.write(reg::MTRC_CAP, cap.set(MtrcCap::TRACE_OWNER, 1).bytes())?;
        let mut conf = MtrcConf::new();
        conf.set(MtrcConf::TRACE_MODE, MODE_MEMORY).set(MtrcConf::LOG_TRACE_BUFFER_SIZE, 1);
        self.write(reg::MTRC_CONF, conf.set(MtrcConf::TRACE_MKEY, KEY).bytes())?;
        let mut ctrl = MtrcCtrl::new();
        ctrl.set(MtrcCtrl::MODIFY_FIELD_SELECT, SELECT_STATUS).set(MtrcCtrl::TRACE_STATUS, 1);
        self.write(reg::MTRC_CTRL, ctrl.set(MtrcCtrl::ARM_EVENT, 1).bytes())?;
        self.firmware.ports.tracer.set_time(u64::MAX >> 11);
        Ok(())
    }

    /// An instruction about the image under way.
    fn instruct(&mut self, what: u32, size: u32) -> Result<u32> {
        let read = self.access(reg::MCC, READ, Mcc::new().bytes())?;
        let now = Mcc::from_prefix_or_zero(read.output.get(AccessRegIn::SIZE..).unwrap_or_default());
        let handle = now.get(Mcc::UPDATE_HANDLE);
        let mut order = Mcc::new();
        order.set(Mcc::INSTRUCTION, what).set(Mcc::UPDATE_HANDLE, handle).set(Mcc::COMPONENT_SIZE, size);
        self.write(reg::MCC, order.bytes())?;
        Ok(handle)
    }

    fn update(&mut self) -> Result<()> {
        let kind = Personality::named(self.firmware.personality().name).context("its kind")?;
        let new = image(&kind, kind.version, &[7; BODY]);
        let handle = self.instruct(instruction::LOCK_UPDATE_HANDLE, 0)?;
        self.instruct(instruction::UPDATE_COMPONENT, new.len() as u32)?;
        for (piece, number) in new.chunks(PIECE).zip(0..) {
            let mut head = Mcda::new();
            let bytes: Vec<u8> = piece.chunks(4).flat_map(|word| word.iter().rev().copied()).collect();
            head.set(Mcda::UPDATE_HANDLE, handle).set(Mcda::OFFSET, number * PIECE as u32);
            head.set(Mcda::LEN, bytes.len() as u32);
            self.write(reg::MCDA, &[head.bytes().as_slice(), &bytes].concat())?;
        }
        self.instruct(instruction::VERIFY_COMPONENT, 0)?;
        self.instruct(instruction::ACTIVATE, 0)?;
        Ok(())
    }
}
