//! The search over conversations, which takes whatever a person types.
//!
//! Oracle: no query is an error; no query answers with more than was asked for; a word of a stored message, typed alone in
//! any case, finds that message.

use anyhow::{Context, Result, ensure};
use statehouse_sessions::{NewMessage, NewSession, OpenMode, Role, SessionId, SqliteStore, Store};
use statehouse_testkit::Seed;

use crate::Budget;

const WORDS: &[&str] =
    &["gateway", "Zürich", "naïve", "状態", "会話記録", "데이터", "🙂", "x86", "Straße", "résumé", "İstanbul"];
const SYNTAX: &[&str] = &[
    "\"",
    "(",
    ")",
    "*",
    "-",
    "OR",
    "NOT",
    "AND",
    "NEAR",
    ":",
    "source:",
    "role:user",
    "in:",
    "before:2020-01-01",
    "after:nonsense",
    "^",
    "%",
    "_",
    "'",
    "--",
    ";",
    "{",
    "\\",
    "\u{0}",
    "\u{301}",
    "\u{200d}",
    " ",
    "\t",
];

pub(crate) fn run(budget: &mut Budget) -> Result<()> {
    let room = tempfile::tempdir()?;
    let store = SqliteStore::open(&room.path().join("state.db"), "fuzz", OpenMode::create())?;
    let session = SessionId::new();
    store.create_session(NewSession { id: session, parent_id: None, title: None, source: "fuzz".into() })?;
    let mut stored = Vec::new();
    for word in WORDS {
        let message = store.append(NewMessage::text(session, Role::User, format!("we said {word} today")))?;
        stored.push((*word, message.id));
    }
    while budget.more() {
        let query = query(&mut budget.seed);
        let limit = budget.seed.below(5);
        let hits = store.search(&query, limit).with_context(|| format!("the query {query:?}"))?;
        ensure!(hits.len() as u64 <= limit, "{} finds of {limit} for {query:?}", hits.len());
        let (word, id) = budget.seed.pick(&stored);
        let typed = if budget.seed.one_in(2) { word.to_uppercase() } else { (*word).to_owned() };
        let hits = store.search(&typed, 100).with_context(|| format!("the word {typed:?}"))?;
        // Folding is by lower case: what upper case makes another word of (ß to SS) is not the same word to a search.
        if typed.to_lowercase() == word.to_lowercase() {
            ensure!(hits.iter().any(|h| h.message_id == *id), "{typed:?} does not find {word:?}");
        }
    }
    store.close();
    Ok(())
}

fn query(seed: &mut Seed) -> String {
    let mut query = String::new();
    for _ in 0..seed.below(12) {
        match seed.below(4) {
            0 => query.push_str(seed.pick::<&str>(WORDS)),
            1 => query.push_str(&String::from_utf8_lossy(&seed.bytes(4))),
            _ => query.push_str(seed.pick::<&str>(SYNTAX)),
        }
        if seed.one_in(2) {
            query.push(' ');
        }
    }
    if seed.one_in(200) {
        query = query.repeat(500);
    }
    query
}
