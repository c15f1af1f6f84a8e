//! Work requests that send nothing: changes of memory keys, of signature values and of lists of tags.

use hca_firmware::NotChanged;
use hca_spec::cqe::Syndrome;
use hca_spec::ids::Mkey;
use hca_spec::mkc::Mkc;
use hca_spec::rules;

use super::core::Core;
use crate::engines::pieces::spans;
use crate::engines::qp::QueuePair;
use crate::engines::qp::umr::{self, Change};
use crate::engines::qp::wqe::Wqe;
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::time::Ps;

impl Core<'_> {
    /// Executes a WQE that sends nothing.
    pub(super) fn local_message(&mut self, now: Ps, qp: &mut QueuePair, wqe: Box<Wqe>) {
        let executed = match &wqe.tags {
            Some(change) => self.change_list(now, qp, &wqe, change),
            None => self.execute_local(now, qp, &wqe),
        };
        if let Err(syndrome) = executed {
            return self.push_failed(now, qp, wqe, syndrome);
        }
        let at = self.time_local(now, qp, &wqe);
        self.note_started(now, qp, &wqe, qp.requester.next_psn, 0);
        qp.begin(wqe, 0);
        qp.sq.due = at + self.chip.units.completion_latency();
        self.retire(now, qp);
        if qp.sends() {
            self.ask_turn(at, qp);
        }
    }

    /// Changes memory keys and signature values.
    fn execute_local(&mut self, now: Ps, qp: &QueuePair, wqe: &Wqe) -> Result<(), Syndrome> {
        let list = match umr::list_bytes(wqe) {
            0 => Ok(Vec::new()),
            len => {
                let mut bytes = vec![0; len];
                let read = self.keyed().gather(qp.accessor(), &wqe.pieces, 0, &mut bytes);
                read.map(|found| {
                    found.ignore("translations are no message: nobody checks what they are made of");
                    bytes
                })
            }
        };
        let change = list.map_err(umr::Refused::from).and_then(|list| qp.key_change(&self.view(), wqe, list));
        let changed = change.and_then(|change| Ok(self.change_keys(now, change)?));
        self.function.key_changes += 1;
        match changed {
            Ok(()) => Ok(()),
            Err(refused) => {
                let (qpn, opcode, key) = (qp.qpn, wqe.opcode, wqe.imm);
                let (index, why) = (wqe.index, refused.why);
                self.answer_mistake(now, || {
                    let found = format!("WQE {index}: {opcode:?} of key {key:#x}: {why}");
                    let expected = "a change that the key allows";
                    Finding::new(Subject::qp(qpn), "send WQE", found, expected, &rules::WQE_OPERATION)
                });
                Err(refused.syndrome)
            }
        }
    }

    /// Changes keys and signature values in the firmware's tables, as an engine says.
    fn change_keys(&mut self, now: Ps, change: Change<'_>) -> Result<(), NotChanged> {
        match change {
            Change::Nothing => {}
            Change::Free(key) => self.free_key(key),
            Change::Psv { number, value } => {
                if let Some(psv) = self.function.fw.icm.psvs.get_mut(number) {
                    psv.value = value;
                }
            }
            Change::Load(load) => {
                let index = load.key.index();
                let pages = load
                    .room()
                    .map(|bytes| self.function.fw.reserve_translations(index, bytes))
                    .transpose()?;
                if let Some(entry) = self.function.fw.icm.mkeys.get_mut(index) {
                    load.translate(entry);
                }
                if let Some(pd) = load.domain() {
                    self.function.fw.move_key(index, pd)?;
                }
                if let Some(entry) = self.function.fw.icm.mkeys.get_mut(index) {
                    load.change(entry);
                }
                if let Some(pages) = pages.flatten() {
                    self.request_pages(now, pages);
                }
            }
        }
        Ok(())
    }

    /// Takes a key out of use.
    pub(crate) fn free_key(&mut self, key: Mkey) {
        if let Some(entry) = self.function.fw.icm.mkeys.get_mut(key.index()) {
            entry.ctx.set(Mkc::FREE, 1);
        }
    }

    /// When a WQE that sends nothing is executed: one that loads a list from memory waits for it.
    fn time_local(&mut self, now: Ps, qp: &QueuePair, wqe: &Wqe) -> Ps {
        let free = self.chip.units.send(now, qp.qpn.0, self.chip.timing.wqe());
        match (&wqe.umr, wqe.pieces.is_empty()) {
            (Some(_), false) => {
                let list = spans(&self.function.fw.icm, &wqe.pieces, 0, wqe.length as usize);
                self.chip.units.load(now, qp.qpn.0, free, list)
            }
            _ => free,
        }
    }
}
