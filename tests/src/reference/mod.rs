//! A small reference of the reliable transport, written from the rules of IBTA vol 1 chapter 9 and
//! knowing nothing of our engine, and what compares the two.
//!
//! [`responder`] is the reference: request packets in, answers, completions and memory out. [`peer`] is
//! an adapter whose cable ends in the test: packets go in by `World::inject_packet` and come out of a
//! tap. [`compare`] feeds both with the same random packets, valid and invalid, and stops at the first
//! disagreement: the packets up to there are the counterexample. [`requester`] and [`answers`] are the same the
//! other way round: the adapter sends requests, the test answers them as it likes.

pub mod answers;
pub mod compare;
pub mod peer;
pub mod requester;
pub mod responder;
