//! One SQLite database family kept whole while many processes use it.
//!
//! Start with [`Database`] for all of it: checked opening, one writer that groups commits, readers, and a watch that
//! notices when the files are unlinked or replaced.

pub mod database;
pub mod error;
pub mod family;
pub mod files;
pub mod filesystem;
pub mod headers;
pub mod image;
pub mod locks;
pub mod ofd;
pub mod secure;
pub mod side;
pub mod ticket;
pub mod wal;

pub use database::{Database, Options, Schema};
pub use error::{Error, Failure, Reason, Result};
pub use family::{Family, Generation, Identity, Member, Status};
pub use rusqlite;
pub use ticket::Ticket;
