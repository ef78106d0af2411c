//! Product tests: whole processes, one real store. Each file is one promise.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests; and the test process itself never has a database open"
)]

mod acceptance;
mod anchor;
mod bad_input;
mod cli;
mod crash;
mod destroyed;
mod durability;
mod health;
mod hermes;
mod house;
mod incidents;
mod io_errors;
mod maintenance;
mod modes;
mod readme;
mod refusals;
mod removed;
mod restore;
mod retired_anchored;
mod retired_capture;
mod retired_ends;
mod retired_ghosts;
mod retired_merge;
mod retired_trouble;
mod rounds;
mod situations;
mod snapshot_trouble;
mod snapshots;
mod starting;
mod up;
mod verify;
