//! The store of conversations, turns and jobs, behind one trait.
//!
//! [`Store`] is the door that the services know; [`SqliteStore`] stands behind it.

pub mod document;
pub mod error;
mod fold;
pub mod import;
mod json;
mod query;
pub mod sqlite;
pub mod store;
pub mod types;

pub use error::{Error, Result};
pub use import::{ImportOptions, ImportProgress};
pub use sqlite::{OpenMode, SqliteStore};
pub use store::{Canary, Destroyed, Health, Store};
pub use types::*;
