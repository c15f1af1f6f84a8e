//! Scenarios, rows and pages of the bench from end to end.

mod compare;
mod dynamic;
mod ethernet;
mod frames;
mod pages;
mod properties;
mod scenarios;
