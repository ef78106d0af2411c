//! What an operator does to a database: look at it, and prove that it is healthy.
//!
//! Invariant: nothing here changes a database, but for the one row or the empty transaction that a proof of writing asks
//! for by name, and for [`maintenance`] and [`restore`], which are asked for by name and are admitted first. When a process holds the database in a way that makes opening it dangerous, it is not opened at all: what
//! can be said from outside is said, and the rest is skipped with the reason.

mod attach;
pub mod canary;
pub mod check;
pub mod incidents;
pub mod maintenance;
pub mod progress;
pub mod restore;
pub mod retired;
pub mod snapshots;
pub mod status;
mod target;
pub mod verify;
pub mod who;

pub use check::{Check, Outcome};
pub use status::{StatusDocument, status};
pub use verify::{OtherProcess, Proof, Seen, Verification, read, verify};
