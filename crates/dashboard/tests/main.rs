//! The dashboard over a real store, driven by real HTTP on the loopback address.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod api;
mod gate;
mod house;
mod live;
mod pages;
