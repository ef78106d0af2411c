//! The store of conversations, turns and jobs, behind one trait.

pub mod document;
pub mod error;
pub mod store;
pub mod types;

pub use error::{Error, Result};
pub use store::{Health, Store};
pub use types::*;
