//! The book as it is committed: what it says, and what it names.

mod pages;
mod paths;
