//! What this crate does to real files, beside real processes.
#![cfg(target_os = "linux")]
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test builds its situation by ordinary means and stops at the first surprise"
)]

mod admission;
mod anchor;
mod aside;
mod capture;
mod capture_storms;
mod corners;
mod covered;
mod crash;
mod generations;
mod gone;
mod heal;
mod holder;
mod holders;
mod image;
mod inplace;
mod instead;
mod locks;
mod members;
mod pages;
mod powercut;
mod reassembled;
mod remembered;
mod replaced;
mod rescue;
mod salvage;
mod secure;
mod storms;
mod support;
mod systems;
mod turns;
mod unseen;
mod vacant;
mod wal;
mod writing;
