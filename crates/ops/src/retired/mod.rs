//! What only a capture of a retired generation has, and bringing it back.
//!
//! Invariant: no row of either side is lost. What is in the database is never changed or taken away; what only the capture has is
//! added, in one transaction; and where the two cannot both be, the capture's row stays in the capture and is listed.
//!
//! The comparison is two-way. It cannot know that a row which only the capture has was deleted from the database on purpose after
//! the two had parted, nor which of two versions of a row is the newer one: the first comes back, the second is a conflict.

mod apply;
mod base;
mod beyond;
mod cell;
mod compare;
mod conflicts;
mod doubt;
mod error;
mod evidence;
mod into;
mod live;
mod merge;
mod own;
mod pair;
mod probe;
mod proved;
mod quiet;
mod rebuild;
mod renames;
mod rest;
mod room;
mod rules;
mod schema;
mod scratch;
mod show;
mod source;
mod sql;
mod stand;
#[cfg(test)]
mod tests;
mod told;
mod triggers;
mod unplaced;
mod virtuals;

pub use error::{Error, Result};
pub use evidence::keep;
pub use merge::{Evidence, Merged, merge, merge_into, preview};
pub use own::offer;
pub use rebuild::Rebuild;
pub use room::Needs;
pub use show::{Asked, Listed, Shown, TableShown, show};
pub use source::{Kind, Opening, Source};
pub(crate) use stand::{counted, stand};
pub use told::restored;
