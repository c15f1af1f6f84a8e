//! How a port's RoCE connections deal with loss, beyond what the specification says.
//!
//! Source: the register ROCE_ACCL (field use); NVIDIA, "RoCE accelerations" (what each does, not how).

/// What is switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Acceleration {
    /// A requester waits for answers as long as these usually take, and not as long as its queue pair's timeout says.
    pub adaptive_retransmission: bool,
    /// A flow that sends again sends slower, as if it had been told of congestion.
    pub slow_restart: bool,
}
