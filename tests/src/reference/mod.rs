//! A small reference of the reliable transport, written from the rules of IBTA vol 1 chapter 9 and
//! knowing nothing of our engine, and what compares the two.
//!
//! [`responder`] is the reference: request packets in, answers, completions and memory out. [`peer`] is
//! an adapter whose cable ends in the test: packets go in by `World::inject_packet` and come out of a
//! tap. [`compare`] feeds both with the same random packets, valid and invalid, and stops at the first
//! disagreement: the packets up to there are the counterexample.

pub mod compare;
pub mod peer;
pub mod responder;
