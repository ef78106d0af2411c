//! The store through its door, on real files.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a test stops at what it did not expect")]
#![expect(clippy::disallowed_methods, reason = "the files that tests make and copy are open nowhere")]

mod conversations;
mod import;
mod jobs;
mod merge;
mod schema;
mod search;
mod turns;

use statehouse_sessions::*;

/// A store in a directory of its own.
struct House {
    store: SqliteStore,
    home: tempfile::TempDir,
}

impl House {
    fn new() -> House {
        let home = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&home.path().join("state.db"), "test", OpenMode::create()).unwrap();
        House { store, home }
    }

    fn path(&self) -> std::path::PathBuf {
        self.home.path().join("state.db")
    }

    fn session(&self) -> SessionId {
        self.titled(None)
    }

    fn titled(&self, title: Option<&str>) -> SessionId {
        let new =
            NewSession { id: SessionId::new(), parent_id: None, title: title.map(Into::into), source: "cli".into() };
        self.store.create_session(new).unwrap().id
    }

    fn say(&self, session: SessionId, text: &str) -> Message {
        self.store.append(NewMessage::text(session, Role::User, text)).unwrap()
    }
}
