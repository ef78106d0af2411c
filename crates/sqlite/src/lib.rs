//! One SQLite database family kept whole while many processes use it.
//!
//! Start with [`Database`] for all of it: checked opening, one writer that groups commits, readers, and a watch that
//! notices when the files are unlinked or replaced.
//!
//! Linux has all of it. On macOS and Windows this version opens no database: what is there is [`holders`], which says who
//! uses one, and the formats ([`wal`], [`header`], [`image`], [`pages`]) that read a copy. Everything that keeps a database whole rests on
//! `/proc` and on descriptors that name a file without opening it, and what is not there is missing rather than half kept.

#![cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "errors and words that only an open database needs"))]

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
compile_error!("this crate knows Linux; of macOS and Windows it knows who holds a database; it knows no other system");

pub mod error;
pub mod family;
pub mod header;
pub mod holders;
pub mod image;
pub mod pages;
pub mod shell;
pub mod wal;
pub mod words;

#[cfg(target_os = "linux")]
pub mod admission;
#[cfg(target_os = "linux")]
pub mod anchor;
#[cfg(target_os = "linux")]
pub mod backlog;
#[cfg(target_os = "linux")]
mod busy;
#[cfg(target_os = "linux")]
pub mod capture;
#[cfg(target_os = "linux")]
mod captures;
#[cfg(target_os = "linux")]
mod connect;
#[cfg(target_os = "linux")]
mod content;
#[cfg(target_os = "linux")]
pub mod database;
#[cfg(target_os = "linux")]
pub mod destroyed;
#[cfg(target_os = "linux")]
mod doubt;
#[cfg(target_os = "linux")]
mod examine;
#[cfg(target_os = "linux")]
pub mod files;
#[cfg(target_os = "linux")]
pub mod filesystem;
#[cfg(target_os = "linux")]
mod flush;
#[cfg(target_os = "linux")]
mod gate;
#[cfg(target_os = "linux")]
pub mod generation;
#[cfg(target_os = "linux")]
pub mod headers;
#[cfg(target_os = "linux")]
mod heal;
#[cfg(target_os = "linux")]
pub mod incidents;
#[cfg(target_os = "linux")]
mod index;
#[cfg(target_os = "linux")]
mod keeper;
#[cfg(target_os = "linux")]
mod known;
#[cfg(target_os = "linux")]
pub mod locks;
#[cfg(target_os = "linux")]
pub mod members;
#[cfg(target_os = "linux")]
pub mod ofd;
#[cfg(target_os = "linux")]
mod opening;
#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod park;
#[cfg(target_os = "linux")]
mod prepare;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(target_os = "linux")]
mod proof;
#[cfg(target_os = "linux")]
mod putback;
#[cfg(target_os = "linux")]
mod readers;
#[cfg(target_os = "linux")]
pub mod reassemble;
#[cfg(target_os = "linux")]
mod recovery;
#[cfg(target_os = "linux")]
mod remembered;
#[cfg(target_os = "linux")]
mod replaced;
#[cfg(target_os = "linux")]
pub mod resident;
#[cfg(target_os = "linux")]
mod retired;
#[cfg(target_os = "linux")]
pub mod salvage;
#[cfg(target_os = "linux")]
pub mod secure;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
pub mod side;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod sums;
#[cfg(target_os = "linux")]
mod suspect;
#[cfg(target_os = "linux")]
pub mod ticket;
#[cfg(target_os = "linux")]
pub mod turnstile;
#[cfg(target_os = "linux")]
mod write_thread;
#[cfg(target_os = "linux")]
pub mod writeback;
#[cfg(target_os = "linux")]
mod writer;
#[cfg(target_os = "linux")]
mod written;

#[cfg(target_os = "linux")]
pub use connect::{immutable, uri};
#[cfg(target_os = "linux")]
pub use database::Database;
pub use error::{Destruction, Error, Failure, Reason, Result};
pub use family::{Family, Generation, Identity, Member, Status};
#[cfg(target_os = "linux")]
pub use locks::protect;
#[cfg(target_os = "linux")]
pub use options::{Event, Observer, Options, Schema};
pub use rusqlite;
#[cfg(target_os = "linux")]
pub use ticket::Ticket;
