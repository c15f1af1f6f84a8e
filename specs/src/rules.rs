//! Rules of the interface that a driver can break.
//!
//! Where the firmware refuses a command, a status and a syndrome say so, and [`crate::command::Status`] has its name. Here is the
//! rest: what hardware answers with a completion, a delivery status or an event, or by ignoring an access; and what it keeps
//! silent about. Each rule has a name, the page that explains it, and one sentence.

/// A rule that a driver keeps.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name: words with hyphens.
    pub name: &'static str,
    /// Page of `specs/doc`, with the heading behind `#`.
    pub page: &'static str,
    /// The rule in one sentence.
    pub says: &'static str,
    /// What hardware does when it is broken.
    pub then: Then,
}

/// What hardware does when a rule is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Nothing that a driver hears of.
    Nothing,
    /// It ignores an access, or drops a packet.
    Ignores,
    /// The command comes back with a delivery status, or a work request completes with error, or an event tells.
    Answers,
}

macro_rules! rules {
    ($($then:ident: { $($name:ident = $word:literal, $page:literal, $says:literal;)* })*) => {
        $($(#[doc = $says]
        pub static $name: Rule = Rule { name: $word, page: $page, says: $says, then: Then::$then };)*)*

        /// Every rule, in the order of the page that lists them.
        pub static RULES: &[&Rule] = &[$($(&$name,)*)*];
    };
}

rules! {
    Nothing: {
        SEND_COUNTER = "send-counter", "uar.md#order",
            "The send counter in the doorbell record is raised before the doorbell is rung.";
        SEND_COUNTER_RANGE = "send-counter-range", "uar.md#the-record",
            "The send counter moves forward, and by no more than the send queue holds.";
        SEND_STATE = "send-state", "qpc.md#transitions",
            "A send doorbell is rung in RTS: before that nothing is sent. What was posted waits until RTR2RTS; a send queue (SQ) needs a new doorbell.";
        SEND_DOORBELL = "send-doorbell", "uar.md#order",
            "A doorbell is rung after the send counter was raised.";
        RECEIVE_COUNTER = "receive-counter", "uar.md#the-record",
            "The receive counter, in word 0 of the doorbell record, is raised after receive WQEs were written.";
        RECEIVE_COUNTER_RANGE = "receive-counter-range", "uar.md#the-record",
            "The receive counter moves forward, and by no more than the receive queue holds.";
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
        RECORD_MAPPED = "record-mapped", "uar.md#the-record",
            "The doorbell record of a queue lies in memory that the adapter reaches.";
        RECORD_ALIGNED = "record-aligned", "uar.md#the-record",
            "The address of a doorbell record is a multiple of 8; that of a send queue of frames may be its send counter's, 4 further.";
        QUEUE_MAPPED = "queue-mapped", "queue-contexts.md#traps",
            "The pages of a queue lie in memory that the adapter reaches.";
        ENTRY_SIGNATURE = "entry-signature", "command-queue.md#traps",
            "A command entry has a signature of 0, or one with which all its bytes add up to 0xff by exclusive or.";
        MAILBOX_SIGNATURE = "mailbox-signature", "command-queue.md#traps",
            "A signature of a mailbox is 0, or with it the bytes that it covers add up to 0xff by exclusive or.";
        PAGE_OWNED = "page-owned", "commands.md#pages",
            "A page that the firmware was given is its own until MANAGE_PAGES has taken it back.";
        PAGES_RETURNED = "pages-returned", "commands.md#pages",
            "Between TEARDOWN_HCA and DISABLE_HCA all pages are taken back.";
        OBJECTS_DESTROYED = "objects-destroyed", "reset.md#going-down-in-order",
            "Objects are destroyed before TEARDOWN_HCA, a reset of the function, and before the driver goes.";
        BUS_MASTER = "bus-master", "pci.md#traps",
            "Bus mastering is on before the adapter is to reach memory or to interrupt.";
        MEMORY_SPACE = "memory-space", "pci.md#traps",
            "Memory space is enabled before a BAR is accessed.";
        MSIX_ENABLED = "msix-enabled", "pci.md#traps",
            "MSI-X is enabled, and the vector unmasked, before an event queue is armed that raises it.";
        INITIALIZING = "initializing", "init-segment.md#traps",
            "Until the initializing bit has cleared nothing but the initialization segment is read, and no doorbell is rung.";
        POWER_STATE = "power-state", "pci.md#traps",
            "The function is in D0 while its BARs are accessed and while it works.";
    }
    Ignores: {
        COMMAND_OWNERSHIP = "command-ownership", "command-queue.md#who-writes-what-when",
            "A command entry is the hardware's when its doorbell is rung, and in memory that the adapter reaches.";
        COMMAND_BUSY = "command-busy", "command-queue.md#who-writes-what-when",
            "The doorbell of a command slot is rung once for each command.";
        REGISTER_WIDTH = "register-width", "uar.md#the-page",
            "Registers are accessed with 4 or 8 bytes, at a multiple of 4.";
        DOORBELL_WHOLE = "doorbell-whole", "uar.md#the-page",
            "A 64-bit doorbell is written at once, or its first half right before its second.";
        DOORBELL_PLACE = "doorbell-place", "uar.md#the-page",
            "Doorbells are written to the offsets of a UAR page that have one.";
        UAR_ALLOCATED = "uar-allocated", "uar.md#the-page",
            "Doorbells are rung in UAR pages that were allocated.";
        UAR_OWN = "uar-own", "uar.md#the-page",
            "The doorbell of an object is rung in the UAR page that its context names.";
        DOORBELL_OBJECT = "doorbell-object", "uar.md#order",
            "A doorbell names an object that exists.";
        RECORD_READ = "record-read", "uar.md#the-record",
            "The doorbell record stays where the adapter reaches it as long as its queue exists.";
        DATAGRAM_KEY = "datagram-key", "qpc.md#transitions",
            "A datagram carries the Q_Key of the queue pair that it is for.";
        PEER_GID = "peer-gid", "qpc.md#transitions",
            "Packets of a connected queue pair whose address path has a GRH have one, too; the GIDs in it are those of both ends' address paths, those of a datagram its receiver's.";
        PORT_MTU = "port-mtu", "registers.md#mtu",
            "What a port sends is no longer than its MTU: a frame, of RoCE with all its headers, than that of PMTU, an InfiniBand packet's payload than NeighborMTU.";
    }
    Answers: {
        COMMAND_ENTRY = "command-entry", "command-queue.md#who-writes-what-when",
            "A command entry has type 7, and lengths of at least a header.";
        MAILBOX_POINTER = "mailbox-pointer", "command-queue.md#who-writes-what-when",
            "Mailboxes are aligned to 1024 bytes, in memory that the adapter reaches.";
        MAILBOX_TOKEN = "mailbox-token", "command-queue.md#who-writes-what-when",
            "Every mailbox of a command carries the token of its entry.";
        MAILBOX_NUMBER = "mailbox-number", "command-queue.md#who-writes-what-when",
            "The mailboxes of a chain are numbered from 0 on.";
        KEY_EXISTS = "key-exists", "mkc.md#traps",
            "A key names an mkey by its index, with its variant byte, that is not free.";
        KEY_DOMAIN = "key-domain", "mkc.md#who-writes-what-when",
            "A key and the queue pair that uses it are in one protection domain.";
        KEY_OWNER = "key-owner", "mkc.md#who-writes-what-when",
            "A key that is bound to a queue pair is used by that one alone.";
        KEY_RIGHTS = "key-rights", "mkc.md#who-writes-what-when",
            "A key allows what is done with it.";
        KEY_BOUNDS = "key-bounds", "mkc.md#who-writes-what-when",
            "An access lies within the region of its key.";
        KEY_TRANSLATION = "key-translation", "mkc.md#who-writes-what-when",
            "A key has a translation for every page that is accessed.";
        KEY_SIGNATURE = "key-signature", "signatures.md#traps",
            "The signature values of a key are in its protection domain.";
        KEY_ENCRYPTION = "key-encryption", "encryption.md#traps",
            "A key that encrypts has an encryption part with a DEK of its protection domain, and is used by whole blocks.";
        MEMORY_MAPPED = "memory-mapped", "mkc.md#traps",
            "Memory stays where the adapter reaches it as long as a key, a queue or a work request names it.";
        WQE_FORMAT = "wqe-format", "wqe.md#send-wqes",
            "A WQE has a known opcode, and the segments that its opcode needs, in as many bytes as DS says.";
        WQE_OPERATION = "wqe-operation", "wqe.md#send-wqes",
            "A work request is one that the service and the limits of its queue pair allow.";
        REQUEST_VALID = "request-valid", "qpc.md#transitions",
            "A request is one that the context of the responder's queue pair allows.";
        RECEIVE_ROOM = "receive-room", "wqe.md#receive-wqes",
            "A receive WQE has room for the message that takes it.";
        CQ_ROOM = "cq-room", "cqe.md#ownership",
            "A completion queue has room for every completion that may come before its consumer index moves.";
        EQ_ROOM = "eq-room", "eqe.md#ownership",
            "The consumer index of an event queue moves before the queue is full.";
    }
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
