//! Rules of the interface that a driver can break without a word from the adapter.
//!
//! Where hardware refuses, a status or an error completion says so, and [`crate::command::Status`] or
//! [`crate::cqe::Syndrome`] has its name. Here is what hardware keeps silent about: each rule with a name, the page that
//! explains it, and one sentence.

/// A rule that a driver keeps.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name: words with hyphens.
    pub name: &'static str,
    /// Page of `specs/doc`, with the heading behind `#`.
    pub page: &'static str,
    /// The rule in one sentence.
    pub says: &'static str,
}

macro_rules! rules {
    ($($name:ident = $word:literal, $page:literal, $says:literal;)*) => {
        $(#[doc = $says] pub static $name: Rule = Rule { name: $word, page: $page, says: $says };)*

        /// Every rule, in the order of the page that lists them.
        pub static RULES: &[&Rule] = &[$(&$name),*];
    };
}

rules! {
    SEND_COUNTER = "send-counter", "uar.md#order",
        "The send counter in the doorbell record is raised before the doorbell is rung.";
    SEND_COUNTER_RANGE = "send-counter-range", "uar.md#the-record",
        "The send counter moves forward, and by no more than the send queue holds.";
    SEND_DOORBELL = "send-doorbell", "uar.md#order",
        "A doorbell is rung after the send counter was raised.";
    RECEIVE_COUNTER = "receive-counter", "uar.md#the-record",
        "The receive counter, in word 0 of the doorbell record, is raised after receive WQEs were written.";
    BYTE_ORDER = "byte-order", "uar.md#the-record",
        "Counters in doorbell records are big-endian.";
    CQ_ARM_SEQUENCE = "cq-arm-sequence", "uar.md#order",
        "The sequence number of an arming counts the events that the completion queue has sent, modulo 4.";
    CQ_ARM_INDEX = "cq-arm-index", "uar.md#order",
        "A completion queue is armed with the consumer index of the entries that were read.";
    CQ_POLLED = "cq-polled", "cqe.md#ownership",
        "A completion queue is read, or armed and its events are waited for.";
    CQ_CONSUMER = "cq-consumer", "uar.md#the-record",
        "The consumer index in the doorbell record follows the entries that were read.";
    EQ_CONSUMER = "eq-consumer", "eqe.md#ownership",
        "Entries of an event queue are read, and its consumer index follows by its doorbell.";
    EQ_ARMED = "eq-armed", "eqe.md#ownership",
        "An event queue raises its interrupt only if it was armed by its doorbell.";
    PEER_EXISTS = "peer-exists", "qpc.md#transitions",
        "The remote queue pair number names a queue pair that the peer has.";
    PEER_RECEIVES = "peer-receives", "qpc.md#transitions",
        "The peer's queue pair is in RTR or later, and of the same service, before anything is sent to it.";
    PEER_ADDRESS = "peer-address", "qpc.md#transitions",
        "Both ends name each other: primary path, port and remote queue pair number.";
    PEER_PARTITION = "peer-partition", "qpc.md#transitions",
        "Both ends have a P_Key of the same partition, one of them as full member.";
    PEER_PSN = "peer-psn", "qpc.md#transitions",
        "The next receive PSN of one end, set by INIT2RTR, is the next send PSN of the other, set by RTR2RTS.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_words() {
        for (i, rule) in RULES.iter().enumerate() {
            assert!(rule.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", rule.name);
            assert!(RULES.iter().skip(i + 1).all(|other| other.name != rule.name), "{}", rule.name);
            assert!(rule.says.ends_with('.') && rule.page.contains(".md"), "{}", rule.name);
        }
    }
}
