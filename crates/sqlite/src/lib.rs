//! One SQLite database family kept whole while many processes use it.
//!
//! Start with [`Database`] for all of it: checked opening, one writer that groups commits, readers, and a watch that
//! notices when the files are unlinked or replaced.

pub mod admission;
pub mod anchor;
pub mod backlog;
mod busy;
mod captures;
mod connect;
mod content;
pub mod database;
pub mod destroyed;
mod doubt;
pub mod error;
mod examine;
pub mod family;
pub mod files;
pub mod filesystem;
mod flush;
mod gate;
pub mod generation;
pub mod headers;
pub mod holders;
pub mod image;
mod index;
mod keeper;
pub mod locks;
pub mod members;
pub mod ofd;
mod opening;
mod options;
mod park;
mod prepare;
pub mod process;
mod proof;
mod putback;
mod readers;
mod recovery;
mod retired;
pub mod secure;
mod shared;
pub mod side;
mod signals;
pub mod ticket;
pub mod turnstile;
pub mod wal;
mod write_thread;
mod writer;

pub use connect::immutable;
pub use database::Database;
pub use error::{Destruction, Error, Failure, Reason, Result};
pub use family::{Family, Generation, Identity, Member, Status};
pub use locks::protect;
pub use options::{Event, Observer, Options, Schema};
pub use rusqlite;
pub use ticket::Ticket;
