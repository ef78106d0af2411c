//! The tools of the tests, tried on programs that are not ours.

#![expect(clippy::unwrap_used, reason = "tests")]

mod adversary;
mod disk;
