//! Who may do structural work on a database, and the proof.

mod aside;
#[expect(dead_code, reason = "what takes these locks is being built")]
pub(crate) mod lock;

pub use aside::{ANCHOR, Aside, AsideError, Seat};
