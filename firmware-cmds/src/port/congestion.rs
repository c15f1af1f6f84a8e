//! Congestion control of RoCE at a port (DCQCN): parameters, for which priorities it is on, and counters.
//!
//! Source: NVIDIA, "DCQCN CC Parameters" (meaning, units and defaults of ConnectX-4 and later); mlx5 driver, field use. Y. Li et al.,
//! "HPCC", SIGCOMM 2019, calls 300 us and 4 us the vendor's timers, and its simulation has the same increases for 25 Gb/s.

/// Parameters of the reaction point, which lowers the rate of a flow that is told of congestion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReactionPoint {
    /// Every decrease sets the target rate to the rate before it.
    pub clamp: bool,
    /// One after an increase by the timer does.
    pub clamp_after_time: bool,
    /// Time between increases, us.
    pub time_reset: u32,
    /// Bytes between increases.
    pub byte_reset: u32,
    /// Increases of fast recovery.
    pub threshold: u32,
    /// The highest rate, Mb/s; 0: the link's.
    pub most: u32,
    /// Additive increase, Mb/s.
    pub additive: u32,
    /// Hyper increase, Mb/s.
    pub hyper: u32,
    /// log2 of what alpha (in 1/1024) is divided by.
    pub gd: u32,
    /// The least part of the rate that a decrease leaves, percent.
    pub least_left: u32,
    /// The least rate, Mb/s.
    pub least: u32,
    /// Rate after the first CNP of a flow, Mb/s; 0: as after any other.
    pub first_rate: u32,
    /// What is left of alpha at each update, in 1/1024.
    pub alpha_keep: u32,
    /// Time between updates of alpha, us.
    pub alpha_period: u32,
    /// Time between decreases, us: the rate is lowered at its end if a CNP came in it, and at once after more.
    pub monitor_period: u32,
    /// Alpha at the first CNP, in 1/1024.
    pub initial_alpha: u32,
}

impl Default for ReactionPoint {
    fn default() -> Self {
        Self {
            clamp: false,
            clamp_after_time: true,
            time_reset: 300,
            byte_reset: 32_767,
            threshold: 1,
            additive: 5,
            hyper: 50,
            most: 0,
            gd: 11,
            least_left: 50,
            least: 1,
            first_rate: 0,
            alpha_keep: 1019,
            alpha_period: 1,
            monitor_period: 4,
            initial_alpha: 1023,
        }
    }
}

/// Parameters of the notification point, which tells the sender of a marked packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotificationPoint {
    /// Least time between two CNPs of a flow, us.
    pub min_time: u32,
    /// DSCP of CNPs.
    pub dscp: u8,
    /// CNPs have the priority of the packet that they answer.
    pub same_priority: bool,
    /// Otherwise, this one.
    pub priority: u8,
}

impl Default for NotificationPoint {
    /// The priority and DSCP are estimates: what the driver's users report of such adapters.
    fn default() -> Self {
        Self { min_time: 4, dscp: 48, same_priority: false, priority: 6 }
    }
}

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CongestionCounters {
    /// Flows whose rate is limited now.
    pub limited: u32,
    /// Flows that were ever.
    pub ever_limited: u32,
    /// CNPs that nothing came of.
    pub ignored: u64,
    /// CNPs that lowered a rate.
    pub handled: u64,
    /// Packets that came with a mark.
    pub marked: u64,
    /// CNPs that were sent.
    pub sent: u64,
}

/// Congestion control of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CongestionControl {
    /// Parameters of the reaction point.
    pub reaction: ReactionPoint,
    /// Parameters of the notification point.
    pub notification: NotificationPoint,
    /// Priorities whose flows react, as bits.
    pub reacts: u8,
    /// Priorities whose marks are told of, as bits.
    pub notifies: u8,
    /// What was counted.
    pub counters: CongestionCounters,
}

impl Default for CongestionControl {
    /// On for all priorities ("DCQCN CC Parameters", ROCE_CC_PRIO_MASK).
    fn default() -> Self {
        Self {
            reaction: ReactionPoint::default(),
            notification: NotificationPoint::default(),
            reacts: u8::MAX,
            notifies: u8::MAX,
            counters: CongestionCounters::default(),
        }
    }
}
