//! Our side of a measurement, in a process of its own: the same work as `peer.py`, through the store's own door.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use statehouse_sessions::sqlite::{OpenMode, SqliteStore};
use statehouse_sessions::{ListOptions, NewMessage, NewSession, Role, SessionId, Store};

fn texts(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).context("the file of messages")?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn session(store: &SqliteStore, title: &str) -> Result<SessionId> {
    let id = SessionId::new();
    store.create_session(NewSession { id, parent_id: None, title: Some(title.into()), source: "bench".into() })?;
    Ok(id)
}

/// A store with `count` messages, in sessions of 100.
pub(crate) fn seed(path: &Path, count: &str, lines: &Path) -> Result<()> {
    let (count, lines) = (count.parse::<usize>()?, texts(lines)?);
    let store = SqliteStore::open(path, "bench", OpenMode::create())?;
    for first in (0..count).step_by(100) {
        let id = session(&store, &format!("seed {first}"))?;
        let tickets: Vec<_> = (first..(first + 100).min(count))
            .map(|n| {
                let role = if n % 2 == 0 { Role::User } else { Role::Assistant };
                store.append_ticket(NewMessage::text(id, role, lines[n % lines.len()].as_str()))
            })
            .collect();
        for ticket in tickets {
            ticket.wait()?;
        }
    }
    store.close();
    Ok(())
}

/// Appends to one session until the time is over, with up to `flight` messages whose answer is not there yet.
pub(crate) fn append(path: &Path, name: &str, lines: &Path, seconds: &str, flight: &str) -> Result<()> {
    let (lines, flight) = (texts(lines)?, flight.parse::<usize>()?);
    let duration = Duration::from_secs_f64(seconds.parse()?);
    let store = SqliteStore::open(path, "bench", OpenMode::existing())?;
    let id = session(&store, name)?;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let end = Instant::now() + duration;
    let mut open = VecDeque::with_capacity(flight);
    let mut latencies: Vec<u64> = Vec::new();
    let mut failures: Vec<String> = Vec::new();
    let mut finish = |(begun, ticket): (Instant, statehouse_sqlite::Ticket<_>)| {
        // Answers come in the order of the requests, so waiting for the oldest measures each where it ends.
        match ticket.wait() {
            Ok(statehouse_sessions::Message { .. }) => latencies.push(begun.elapsed().as_micros() as u64),
            Err(e) => failures.push(e.to_string()),
        }
    };
    for n in 0.. {
        if open.len() == flight
            && let Some(oldest) = open.pop_front()
        {
            finish(oldest);
        }
        if Instant::now() >= end {
            break;
        }
        let text = lines[n % lines.len()].as_str();
        open.push_back((Instant::now(), store.append_ticket(NewMessage::text(id, Role::User, text))));
    }
    open.into_iter().for_each(&mut finish);
    println!("{}", json!({"latencies": latencies, "failures": failures}));
    store.close();
    Ok(())
}

/// Microseconds from nothing to the first row read.
pub(crate) fn open(path: &Path) -> Result<()> {
    let begun = Instant::now();
    let store = SqliteStore::open(path, "bench", OpenMode::existing())?;
    store.sessions(&ListOptions { limit: Some(1), ..ListOptions::default() })?;
    println!("{}", begun.elapsed().as_micros());
    store.close();
    Ok(())
}
