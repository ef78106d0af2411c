//! Taking over conversations from other programs.
//!
//! An import can be repeated: ids follow from what a row is, so what was taken before is recognised, wherever the
//! source lies now. What has no place of its own here is kept as JSON beside the row, so nothing of it is lost.

mod convert;
mod hermes;
mod source;

pub use hermes::check_hermes;

/// How to import.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImportOptions {
    /// Count only; nothing is written to the store.
    pub dry_run: bool,
}

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportProgress {
    /// Messages of the source that were looked at.
    pub done: u64,
    /// Messages of the source.
    pub total: u64,
}
