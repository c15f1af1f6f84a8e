//! Pages that the project makes, in a real browser without a window.

mod report;
