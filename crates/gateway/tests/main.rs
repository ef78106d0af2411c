//! The gateway over a real store, driven by real HTTP on the loopback address.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bad_input;
mod house;
mod limits;
mod messages;
mod openai;
mod status;
mod turns;
