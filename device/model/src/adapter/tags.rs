//! Tag matching carried out: messages find their buffers, lists are changed, announced data is fetched.

use hca_spec::cqe::{Cqe, Syndrome};
use hca_spec::ids::Srqn;
use hca_spec::rules;
use hca_spec::xrq::TagSeg;

use super::core::Core;
use crate::engines::qp::QueuePair;
use crate::engines::qp::recv::{NoReceive, Receive};
use crate::engines::qp::requester::WqeAction;
use crate::engines::qp::responder::Current;
use crate::engines::qp::tags::{BadChange, Found, HEADERS, Offload, Owner};
use crate::engines::qp::wqe::Wqe;
use crate::ground::diagnosis::{Finding, Subject};
use crate::ground::event::Event;
use crate::ground::region::Payload;
use crate::ground::time::Ps;
use crate::wire::Repr;

impl Core<'_> {
    /// A shared receive queue as one that matches tags, if it does.
    pub(super) fn owner_of(&self, srqn: Srqn) -> Option<Owner> {
        Owner::of(srqn, self.function.fw.icm.srqs.get(srqn.0)?)
    }

    /// What a message that begins with this packet is for, if its queue pair receives from a queue that matches tags.
    fn find_tagged(
        &self,
        qp: &QueuePair,
        repr: &Repr,
        payload: Payload<'_>,
    ) -> Option<(Owner, Found, Vec<u8>)> {
        let srqn = qp.rq.shared()?;
        let tags = self.function.srqs.get(srqn.0)?.tags.as_ref()?;
        let owner = self.owner_of(srqn)?;
        let first = payload.split_at(HEADERS).0.bytes().unwrap_or_default().into_owned();
        let whole = QueuePair::ends_receive(repr.operation).is_some();
        Some((owner, tags.find(&first, whole), first))
    }

    /// Takes the receive that a message which begins with this packet is for. `None`: its queue pair's queue matches no tags.
    ///
    /// # Errors
    /// There is none: no receive WQE is posted, or too much is being fetched.
    pub(super) fn take_tagged(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        repr: &Repr,
        payload: Payload<'_>,
    ) -> Result<Option<Receive>, NoReceive> {
        let Some((owner, found, first)) = self.find_tagged(qp, repr, payload) else { return Ok(None) };
        // It comes again: it was looked at before.
        if let Some(spare) = qp.responder.spare.take() {
            return Ok(Some(spare));
        }
        if let Found::Entry(index) = found {
            if qp.fetches_enough() || self.function.requests.kept.is_spent() {
                return Err(NoReceive::NotReady);
            }
            let tags = self.function.srqs.get_mut(owner.srqn.0).and_then(|queue| queue.tags.as_mut());
            let pieces = tags.and_then(|tags| tags.take(index)).ok_or(NoReceive::NotReady)?;
            return Ok(Some(Receive::entry(owner, index, pieces, &first)));
        }
        let receive = self.take_shared(now, owner.srqn)?;
        if found == Found::Unexpected
            && let Some(tags) = self.function.srqs.get_mut(owner.srqn.0).and_then(|queue| queue.tags.as_mut())
        {
            tags.unexpected();
        }
        Ok(Some(receive.untagged(owner, found)))
    }

    /// The receive that such a message will take, if that is an entry.
    pub(super) fn plan_tagged(&self, qp: &QueuePair, repr: &Repr, payload: Payload<'_>) -> Option<Receive> {
        let (owner, found, first) = self.find_tagged(qp, repr, payload)?;
        if let Some(spare) = &qp.responder.spare {
            return Some(spare.clone());
        }
        let Found::Entry(index) = found else { return None };
        let tags = self.function.srqs.get(owner.srqn.0)?.tags.as_ref()?;
        Some(Receive::entry(owner, index, tags.pieces(index)?.to_vec(), &first))
    }

    /// A message has announced data for an entry. What has to be received all the same is returned: software fetches the data, and
    /// the entry takes as much of the headers as it has room for.
    pub(super) fn take_announcement<'a>(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        mut receive: Receive,
        payload: Payload<'a>,
    ) -> Option<(Receive, Payload<'a>)> {
        let offered = receive.tagged.and_then(|tagged| self.function.srqs.get(tagged.owner.srqn.0));
        let offered = offered.and_then(|queue| queue.tags.as_ref()).is_some_and(|tags| tags.fetches());
        let mut headers = [0; HEADERS];
        let first = payload.split_at(HEADERS).0.bytes().unwrap_or_default();
        headers.iter_mut().zip(first.iter()).for_each(|(to, from)| *to = *from);
        if offered && qp.fetch_later(&receive, headers) {
            let (cqn, cqe) = qp.consumed(&mut receive);
            qp.responder.next_msn();
            self.complete_for(now, qp, cqn, cqe, &[]);
            if qp.sends() {
                self.ask_turn(now, qp);
            }
            return None;
        }
        qp.left_to_software(&mut receive);
        let room = usize::try_from(receive.room).unwrap_or(usize::MAX).min(HEADERS);
        Some((receive, payload.split_at(room).0))
    }

    /// The message in progress has used an entry, and has more packets: that is told before its data is there.
    pub(super) fn tell_consumed(&mut self, now: Ps, qp: &mut QueuePair) {
        let Some(Current::Send { mut receive, offset }) = qp.responder.current.take() else { return };
        let (cqn, cqe) = qp.consumed(&mut receive);
        self.complete_for(now, qp, cqn, cqe, &[]);
        qp.responder.current = Some(Current::Send { receive, offset });
    }

    /// Changes the list of the queue that a queue pair receives from, and tells of it.
    ///
    /// # Errors
    /// The syndrome of the work request's completion.
    pub(super) fn change_list(
        &mut self,
        now: Ps,
        qp: &mut QueuePair,
        wqe: &Wqe,
        change: &TagSeg,
    ) -> Result<(), Syndrome> {
        const NO_LIST: BadChange = BadChange("the queue pair receives from no queue with tag matching");
        let owner = qp.rq.shared().and_then(|srqn| self.owner_of(srqn));
        let queue = owner.and_then(|owner| self.function.srqs.get_mut(owner.srqn.0));
        let told = match (owner, queue.and_then(|queue| queue.tags.as_mut())) {
            (Some(owner), Some(tags)) => {
                tags.change(&owner, wqe, change).map(|told| told.map(|cqe| (owner.cqn, cqe)))
            }
            _ => Err(NO_LIST),
        };
        match told {
            Ok(None) => Ok(()),
            Ok(Some((cqn, mut cqe))) => {
                cqe.set(Cqe::QPN, qp.qpn.0);
                self.complete_for(now, qp, cqn, cqe, &[]);
                Ok(())
            }
            Err(why) => {
                let (qpn, index) = (qp.qpn, wqe.index);
                self.answer_mistake(now, || {
                    let found = format!("WQE {index}: {}", why.0);
                    let expected = "a change that the list allows";
                    Finding::new(Subject::qp(qpn), "send WQE", found, expected, &rules::WQE_OPERATION)
                });
                Err(Syndrome::LocalQpOperation)
            }
        }
    }

    /// Begins the next request of the adapter's own. `None`: there is none; `false`: it has to wait, or fails.
    pub(super) fn begin_offload(&mut self, now: Ps, qp: &mut QueuePair) -> Option<bool> {
        let wqe = qp.next_offload()?;
        match qp.classify_wqe(&wqe) {
            WqeAction::Packets(packets) => {
                qp.begin(wqe, packets);
                Some(true)
            }
            WqeAction::Held(why) => {
                qp.put_back(wqe);
                self.note(now, Event::Held { qpn: qp.qpn, why });
                Some(false)
            }
            // More than a message may have.
            _ => {
                qp.requester.push_failed(wqe, Syndrome::LocalLength);
                self.retire(now, qp);
                Some(false)
            }
        }
    }

    /// A request of the adapter's own is done.
    pub(super) fn offload_done(&mut self, now: Ps, qp: &mut QueuePair, wqe: &Wqe, offload: Offload) {
        let Offload::Fetch { owner, headers } = offload else { return };
        let (cqn, cqe) = qp.fetched(wqe, (owner, headers));
        self.complete_for(now, qp, cqn, cqe, &[]);
        if qp.sends() {
            self.ask_turn(now, qp);
        }
    }

    /// A request of the adapter's own will not be done.
    pub(super) fn cancel_offload(&mut self, now: Ps, qp: &mut QueuePair, wqe: &Wqe, offload: Offload) {
        if let Offload::Fetch { owner, .. } = offload {
            let (cqn, cqe) = qp.not_fetched(wqe, owner);
            self.complete_for(now, qp, cqn, cqe, &[]);
        }
    }

    /// What was not begun will not be done either.
    pub(super) fn cancel_offloads(&mut self, now: Ps, qp: &mut QueuePair) {
        while let Some(wqe) = qp.next_offload() {
            if let Some(offload) = wqe.offload {
                self.cancel_offload(now, qp, &wqe, offload);
            }
        }
    }
}
