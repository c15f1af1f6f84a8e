//! Streams of initiators of dynamic connections carried out: what fails takes its stream along, and no more ([`crate::engines::qp::dci`]).

use hca_spec::cqe::Syndrome;
use hca_spec::qpc::{QpState, ServiceType};

use super::core::Core;
use crate::engines::qp::QueuePair;
use crate::engines::qp::wqe::Wqe;
use crate::ground::time::Ps;

impl Core<'_> {
    /// Whether a WQE is flushed because its stream is in error.
    pub(super) fn is_stream_in_error(&self, qp: &QueuePair, wqe: &Wqe) -> bool {
        let (true, Some(stream)) = (qp.has_streams(), wqe.stream) else { return false };
        self.function.fw.icm.qps.get(qp.qpn.0).is_some_and(|qp| qp.errored_streams.contains(&stream))
    }

    /// The oldest request went wrong: its stream fails, or the queue pair.
    pub(crate) fn fail_requests(&mut self, now: Ps, qp: &mut QueuePair, syndrome: Syndrome) {
        if !self.fail_stream(now, qp, syndrome) {
            self.fail_sends(now, qp, Some(syndrome));
        }
    }

    /// The stream of what is under way is in error: its requests are completed, the oldest with `syndrome`. `false`: there are no
    /// streams, as many are in error as may be, or nobody knows where the next WQE begins; then the queue pair fails.
    fn fail_stream(&mut self, now: Ps, qp: &mut QueuePair, syndrome: Syndrome) -> bool {
        let (Some(stream), Some(most)) = (qp.current_stream(), qp.params.most_errored) else { return false };
        let readable = qp.requester.messages.iter().all(|m| m.connect || m.wqe.stream.is_some());
        if qp.service != ServiceType::Dci
            || !readable
            || !matches!(qp.state, QpState::Rts | QpState::SqDraining)
        {
            return false;
        }
        let Some(context) = self.function.fw.icm.qps.get_mut(qp.qpn.0) else { return false };
        let known = context.errored_streams.contains(&stream);
        if !known && context.errored_streams.len().saturating_add(1) >= most {
            return false;
        }
        context.errored_streams.insert(stream);
        let mut cause = syndrome;
        for message in qp.requester.abandon(usize::MAX).into_iter().filter(|m| !m.connect) {
            self.complete_send_error(now, qp, (&*message.wqe).into(), cause);
            cause = Syndrome::WorkRequestFlushed;
        }
        // Nothing was sent since the connection was made if the WQE itself was flushed: that one stays.
        if !known {
            qp.forget_target();
        }
        self.drain(now, qp);
        if qp.sends() {
            self.ask_turn(now, qp);
        }
        true
    }
}
