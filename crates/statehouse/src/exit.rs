//! What the process's exit status means. Programs rely on these; their meaning never changes.

/// Done, or healthy.
pub(crate) const OK: u8 = 0;
/// The work was tried and failed.
pub(crate) const FAILED: u8 = 1;
/// The command line or the configuration is wrong; nothing was tried.
pub(crate) const USAGE: u8 = 2;
/// The work was done and found something that is not healthy.
pub(crate) const FINDING: u8 = 3;
/// Refused: a path or file is not safe, is held, or is not provably quiet. Nothing was done.
pub(crate) const REFUSED: u8 = 4;
/// A lock was held for longer than the given patience. Nothing was done.
pub(crate) const BUSY: u8 = 5;
