//! For tests only: sibling processes, an adversary, and eyes of its own.
//!
//! The tests of Statehouse run whole processes on real files and real kernel locks. This crate starts and stops those
//! processes ([`process`]), provokes the damage that the product must survive ([`stray`]), drives other programs that
//! use the same database ([`visitor`], [`peers`]), and looks at the result without a line of the product's own code
//! ([`kernel`], [`snapshot`]): a product that judged itself could be wrong twice in the same way.
//!
//! Invariants: every child dies with the test that started it; every wait is for a condition and has an end; every
//! random run prints its seed and takes one. A failure here is a failure of the test, so these functions panic with
//! what was seen instead of returning errors.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what fails here fails the test that called it, with a message"
)]

pub mod disk;
pub mod home;
pub mod kernel;
pub mod killat;
pub mod need;
pub mod peers;
pub mod powercut;
mod preload;
pub mod process;
pub mod seed;
pub mod snapshot;
pub mod stray;
pub mod thief;
pub mod user;
pub mod visitor;
pub mod volume;
pub mod wait;

pub use home::{Home, TestDir};
pub use process::{Child, Finished, run};
pub use seed::Seed;
pub use snapshot::Snapshot;
pub use wait::{until, until_some};
