//! The way of a command: what holds for all of them is checked by its row in the table, then its handler executes it.

use std::cell::Cell;

use hca_spec::command::{InHeader, Opcode, OutHeader, Status};
use hca_spec::put_be32;

use super::row::{Call, whole_input};
use super::table;
use super::{access_reg, devx};
use crate::effect::Effect;
use crate::failure::{Failure, Refused};
use crate::firmware::{Execution, Firmware, State};
use crate::list::Input;
use crate::tracer::Message;

/// What stands between a command and its handler.
enum Stop {
    Refuse(Failure),
    /// The host has to give pages first.
    WaitForPages,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Refuse(failure)
    }
}

impl Firmware {
    /// Executes a command: `input` with its 16-byte header; the output has at most `output_len` bytes.
    ///
    /// Drivers were made at different times, and for layouts that grew: an input that ends before its layout has zeros
    /// there, one that goes on behind it is not looked at there, and an output is cut off where the room for it ends (the
    /// drivers of Linux and of iPXE send the same commands with different lengths to the same firmware).
    ///
    /// The effects are what the hardware has to follow, in order. A refused command leaves everything
    /// as it was and has no effects but a page request; its output is status and syndrome.
    pub fn execute(&mut self, input: &[u8], output_len: usize, effects: &mut Vec<Effect>) -> Execution {
        self.execute_with(&|_| true, whole_input(input), output_len, effects)
    }

    /// The same; `reaches` says whether a page at a bus address is in the host's memory.
    pub(crate) fn execute_with(
        &mut self,
        reaches: &dyn Fn(u64) -> bool,
        input: Input<'_>,
        output_len: usize,
        effects: &mut Vec<Effect>,
    ) -> Execution {
        const SWAPPED: &str = "an opcode, big-endian: it is one with its bytes swapped";
        const ABSENT: Failure = Failure::new(Status::BadOp, "this adapter does not have the command");
        let Input { bytes: input, list } = input;
        let header = InHeader::from_prefix_or_zero(input);
        let number = header.get(InHeader::OPCODE) as u16;
        let Some(opcode) = Opcode::from_u16(number) else {
            let failure = Failure::new(Status::BadOp, "the interface has no such opcode").got(number);
            let swapped = Opcode::from_u16(number.swap_bytes()).is_some();
            let failure = if swapped { failure.wanted(SWAPPED) } else { failure };
            if self.unknown.insert(number) {
                self.refusal = Some(failure.explained(Refused { name: "command", opcode: number }, None));
            }
            return Execution::Done(failed(failure, output_len));
        };
        let mut target = None;
        let outcome = match table::find(opcode).filter(|command| (command.offered)(self)) {
            Some(command) => {
                let (kept_len, kept) = (list.len(), Cell::new(list));
                let whole: Vec<u8>;
                let input = match input.get(..command.input) {
                    Some(_) => input,
                    None => {
                        whole = [input, &vec![0; command.input.saturating_sub(input.len())]].concat();
                        &whole
                    }
                };
                let call = Call {
                    command,
                    op_mod: header.get(InHeader::OP_MOD),
                    input,
                    kept: &kept,
                    kept_len,
                    user_pages: None,
                    output_len,
                    reaches,
                };
                target = call.names();
                self.run(&call, effects)
            }
            None => Err(Stop::Refuse(ABSENT.got(number))),
        };
        let mut output = match outcome {
            Ok(output) => output,
            Err(Stop::WaitForPages) => {
                self.ports.tracer.record(Message::Waits(number));
                return Execution::NeedPages;
            }
            Err(Stop::Refuse(failure)) => {
                let name = table::find(opcode).map_or("command", |command| command.name);
                self.refusal = Some(failure.explained(Refused { name, opcode: number }, target));
                failed(failure, output_len)
            }
        };
        self.trace(opcode, input, &output);
        if let Some(pages) = self.account_pages() {
            effects.push(Effect::PageRequest { pages: pages as i32 });
        }
        output.truncate(output_len);
        Execution::Done(output)
    }

    /// Traces a command that was executed.
    fn trace(&mut self, opcode: Opcode, input: &[u8], output: &[u8]) {
        let op_mod = InHeader::from_prefix_or_zero(input).get(InHeader::OP_MOD);
        let out = OutHeader::from_prefix_or_zero(output);
        let (status, syndrome) = (out.get(OutHeader::STATUS) as u8, out.get(OutHeader::SYNDROME));
        let message = match opcode {
            Opcode::AccessReg => {
                access_reg::traced(input).map(|register| Message::Register { register, op_mod, status })
            }
            _ => Some(Message::Command { opcode: opcode as u16, op_mod, status, syndrome }),
        };
        message.into_iter().for_each(|message| self.ports.tracer.record(message));
    }

    fn run(&mut self, call: &Call<'_>, effects: &mut Vec<Effect>) -> Result<Vec<u8>, Stop> {
        let placed = devx::before(self, call)?;
        let inner = Call {
            input: placed.input.as_deref().unwrap_or(call.input),
            // Pages of a user memory are paid for with that.
            kept_len: if placed.user_pages.is_some() { 0 } else { call.kept_len },
            user_pages: placed.user_pages.as_ref(),
            ..*call
        };
        self.check_state(&inner)?;
        self.check_pages(&inner, effects)?;
        let mut output = call.command.handler.run(self, &inner, effects)?;
        devx::after(self, call, &placed, &mut output);
        Ok(output)
    }

    /// The adapter's state.
    fn check_state(&self, call: &Call<'_>) -> Result<(), Failure> {
        const NOT_ENABLED: Failure =
            Failure::new(Status::BadSystemState, "the command is legal only after ENABLE_HCA");
        const NOT_INITIALIZED: Failure =
            Failure::new(Status::BadSystemState, "the command is legal only after INIT_HCA");
        match self.state {
            state if state >= call.command.state => Ok(()),
            State::Disabled => Err(NOT_ENABLED.got(self.state as u32).wanted("after ENABLE_HCA (1)")),
            _ => Err(NOT_INITIALIZED.got(self.state as u32).wanted("after INIT_HCA (2)")),
        }
    }

    /// Whether the pages that the host gave hold what the command takes.
    fn check_pages(&mut self, call: &Call<'_>, effects: &mut Vec<Effect>) -> Result<(), Stop> {
        const FULL: Failure =
            Failure::new(Status::ExceedLimit, "the host gave too few pages for this object");
        let bytes = call.command.icm_bytes(call.input).saturating_add(call.kept_len as u64);
        if bytes == 0 || self.pages.has_room(bytes) {
            return Ok(());
        }
        let waits = call.command.icm.waits && self.host_serves_pages();
        if !waits || self.pages.is_beyond(bytes) || self.pages.take_refusal() {
            return Err(FULL.got(bytes).into());
        }
        if let Some(pages) = self.pages.ask_for(bytes) {
            effects.push(Effect::PageRequest { pages: pages as i32 });
        }
        Err(Stop::WaitForPages)
    }
}

/// The output of a command that is refused.
fn failed(failure: Failure, output_len: usize) -> Vec<u8> {
    let mut output = vec![0; OutHeader::SIZE];
    put_be32(&mut output, 0, u32::from(failure.status as u8) << 24);
    put_be32(&mut output, 4, failure.syndrome);
    output.truncate(output_len);
    output
}
