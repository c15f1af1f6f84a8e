//! The window of tools: accesses to its registers ([`crate::engines::gateway`]), which may have the firmware do something.

use hca_firmware::commands::icmd::dumped_by;
use hca_spec::management::vsc;

use super::core::Executor;
use crate::engines::gateway::{Answer, Identity};
use crate::ground::time::Ps;

impl Executor<'_> {
    /// Software reads a register of the vendor specific capability ([`vsc`]).
    pub(crate) fn window_read(&mut self, register: usize) -> u32 {
        self.side.window.read(register)
    }

    /// Software writes one.
    pub(crate) fn window_write(&mut self, now: Ps, register: usize, value: u32) {
        let Some(access) = self.side.window.write(register, value) else { return };
        let core = &mut self.core;
        let (kind, script) = (core.function.fw.personality(), core.chip.script.as_ref());
        let identity = Identity {
            hardware_id: kind.hardware_id,
            revision: kind.pci.revision,
            initializing: script.is_some_and(|script| script.firmware.is_initializing()),
        };
        let stopped = script.is_some_and(|script| script.firmware.is_stopped());
        let answer = match core.chip.spaces.access(access, identity) {
            Ok(answer) => answer,
            Err(opcode) => {
                let mut effects = Vec::new();
                // Firmware that is stopped leaves the mailbox busy.
                if !stopped {
                    core.trace_time(now);
                    let objects = dumped_by(&core.function.fw, opcode, core.chip.spaces.mailbox());
                    self.write_back_all(&objects);
                    let core = &mut self.core;
                    let chip = &mut *core.chip;
                    let mailbox = chip.spaces.mailbox();
                    let status = core.function.fw.icmd(&mut chip.managed, opcode, mailbox, &mut effects);
                    chip.spaces.executed(status);
                }
                self.apply(now, effects);
                self.core.plan_traces(now);
                self.core.agents_poll_later(now);
                Answer::Word(access.write.unwrap_or(0))
            }
        };
        self.side.window.answer(access, answer);
    }

    /// The driver has disabled the function.
    pub(crate) fn disabled(&mut self, now: Ps) {
        let mut effects = Vec::new();
        self.core.function.fw.disable(&mut self.core.chip.managed, &mut effects);
        self.apply(now, effects);
    }

    /// The physical function has taken this one away.
    pub(crate) fn taken_away(&mut self, now: Ps) {
        // Its keys go, as by a command of its own.
        self.core.function.key_changes += 1;
        let mut effects = Vec::new();
        self.core.function.fw.taken_away(&mut self.core.chip.managed, &mut effects);
        self.apply(now, effects);
    }

    /// Drivers were waited for: what that wait was about has come to nothing, if it is not over.
    pub(crate) fn sync_reset_late(&mut self, now: Ps, wait: u32) {
        let mut effects = Vec::new();
        self.core.chip.managed.sync_reset.late(wait, &mut effects);
        self.apply(now, effects);
    }
}

/// Whether a write of that register may have the firmware do something.
pub(crate) fn is_access(register: usize) -> bool {
    register == vsc::ADDRESS
}
