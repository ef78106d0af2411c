//! Orders by which the process drops its own locks in the ways that no lock core can prevent: it unlocks on the description
//! that owns them, has another process do so that has the same description, or takes the owner's number away.

use std::collections::HashMap;
use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use statehouse_sqlite::{Database, Family, rusqlite};

use super::{Answer, owner, put};

/// unlock PATH [START LENGTH]: on the owner's own description; without a range everything.
pub(crate) fn unlock(rest: &str) -> Answer {
    let mut words = rest.split(' ');
    let number = owner(words.next().unwrap_or_default())?;
    let mut range = words.map(|w| w.parse::<i64>().map_err(|_| "not a number"));
    let (start, length) = (range.next().transpose()?.unwrap_or(0), range.next().transpose()?.unwrap_or(0));
    if unlock_bytes(number, start, length) == 0 { Ok(String::new()) } else { Err(last_error()) }
}

fn unlock_bytes(number: i32, start: i64, length: i64) -> i32 {
    let lock = libc::flock {
        l_type: libc::F_UNLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: the command takes a pointer to a `flock`, which is whole and outlives the call.
    unsafe { libc::fcntl(number, libc::F_OFD_SETLK, &raw const lock) }
}

/// shut PATH: closes the owner's number.
pub(crate) fn shut(rest: &str) -> Answer {
    let number = owner(rest)?;
    // SAFETY: closing a number touches no memory. That it is not this code's to close is the point.
    if unsafe { libc::close(number) } == 0 { Ok(String::new()) } else { Err(last_error()) }
}

fn last_error() -> String {
    std::io::Error::last_os_error().to_string()
}

/// accomplice GO FILE...: a copy of the process that no handler knows of, with the owners of these files. As soon as GO
/// exists it unlocks them all (one byte of one that is followed by `@BYTE`), and says so by a file `GO.done`.
pub(crate) fn accomplice(rest: &str) -> Answer {
    let (go, files) = rest.split_once(' ').ok_or("accomplice GO FILE...")?;
    let owners = files.split(' ').map(|file| match file.split_once('@') {
        None => Ok((owner(file)?, 0, 0)),
        Some((file, byte)) => Ok((owner(file)?, byte.parse().map_err(|_| "not a number")?, 1)),
    });
    let owners = owners.collect::<Result<Vec<_>, String>>()?;
    let wanted = CString::new(go).map_err(|e| e.to_string())?;
    let done = CString::new(format!("{go}.done")).map_err(|e| e.to_string())?;
    // SAFETY: without CLONE_VM and a stack this is a fork that runs no handlers; the child only makes system calls on what was
    // made ready before it.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if pid == 0 {
        // SAFETY: the calls read C strings of this process; the last one never returns.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            while libc::access(wanted.as_ptr(), libc::F_OK) != 0 {
                libc::usleep(500);
            }
            let failed = owners.iter().any(|(number, start, length)| unlock_bytes(*number, *start, *length) != 0);
            if !failed {
                libc::open(done.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600);
            }
            libc::_exit(i32::from(failed));
        }
    }
    if pid > 0 { Ok(pid.to_string()) } else { Err(last_error()) }
}

/// put-when KEY GO: a write that stays inside its transaction until GO exists.
pub(crate) fn put_when(database: &Database, rest: &str) -> Result<(), String> {
    let (key, go) = rest.split_once(' ').ok_or("put-when KEY GO")?;
    let (key, go) = (key.to_owned(), go.to_owned());
    let written = database.write(move |c| {
        c.execute("INSERT OR IGNORE INTO k(key, role) VALUES(?1, 'slow')", [&key])?;
        std::fs::write(format!("{go}.inside"), "").expect("the directory of the test");
        while !Path::new(&go).exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    written.map_err(|e| format!("{} {e}", e.code()))
}

/// Reads, and in the middle of the transaction byte 128 is dropped and the index emptied, as a stranger does who opens the database
/// then.
pub(crate) fn read_emptied(database: &Database, path: &str) -> Answer {
    let read = database.read(|c| {
        c.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get::<_, i64>(0))?;
        let shm = format!("{path}-shm");
        unlock(&format!("{shm} 128 1")).expect("byte 128 is held");
        let file = std::fs::OpenOptions::new().write(true).open(&shm).expect("the index");
        file.set_len(3).and_then(|()| file.set_len(32 * 1024)).expect("the index is emptied");
        count(c)
    });
    read.map(|rows| rows.to_string()).map_err(|e| format!("{} {e}", e.code()))
}

/// A read transaction that stays open on a thread of its own.
pub(crate) struct Reading {
    end: Sender<()>,
    thread: JoinHandle<Result<(i64, i64), String>>,
}

impl Reading {
    /// Begins it, and returns once it has read.
    pub(crate) fn begin(database: &Database) -> Result<Reading, String> {
        let database = database.clone();
        let (end, ended) = channel();
        let (begin, begun) = channel();
        let thread = std::thread::spawn(move || {
            let read = database.read(|c| {
                let count = || c.query_row("SELECT count(*) FROM k", [], |r| r.get(0));
                let first = count()?;
                let _ = begin.send(());
                let _ = ended.recv();
                Ok((first, count()?))
            });
            read.map_err(|e| format!("{} {e}", e.code()))
        });
        match begun.recv() {
            Ok(()) => Ok(Reading { end, thread }),
            Err(_) => Err(format!("{:?}", thread.join())),
        }
    }

    /// What it counted first and now.
    pub(crate) fn end(self) -> Answer {
        let _ = self.end.send(());
        let (first, second) = self.thread.join().map_err(|_| "it panicked")??;
        Ok(format!("{first} {second}"))
    }
}

/// batter SEED DROPS SECONDS FILE PATH: writes and reads without a pause while the locks are dropped at random; FILE gets every
/// key that was acknowledged. Answers how many drops there were and what was counted.
pub(crate) fn batter(database: &Database, rest: &str) -> Answer {
    let words: Vec<&str> = rest.splitn(5, ' ').collect();
    let [seed, drops, seconds, file, path] = words[..] else {
        return Err("batter SEED DROPS SECONDS FILE PATH".into());
    };
    let mut random = seed.parse::<u64>().map_err(|_| "not a number")? | 1;
    let wanted = drops.parse::<u64>().map_err(|_| "not a number")?;
    let limit = Duration::from_secs(seconds.parse().map_err(|_| "not a number")?);
    let stop = AtomicBool::new(false);
    // What was in the table before is acknowledged as well.
    let known = AtomicI64::new(database.read(count).map_err(|e| e.to_string())?);
    let mut tally = HashMap::new();
    let (acknowledged, stale) = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|n| {
                scope.spawn({
                    let (stop, known) = (&stop, &known);
                    move || write_until(database, n, stop, known)
                })
            })
            .collect();
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(|| read_until(database, &stop, &known))).collect();
        let begun = Instant::now();
        let mut dropped = 0;
        while dropped < wanted && begun.elapsed() < limit {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            std::thread::sleep(Duration::from_micros((random >> 30) % 20_000));
            let what = drop_something(random, path);
            dropped += u64::from(what != "nothing");
            *tally.entry(what).or_insert(0) += 1;
        }
        stop.store(true, Ordering::Relaxed);
        let acknowledged: Vec<String> = writers.into_iter().flat_map(|w| w.join().expect("a writer")).collect();
        let stale: u64 = readers.into_iter().map(|r| r.join().expect("a reader")).sum();
        (acknowledged, stale)
    });
    std::fs::write(file, acknowledged.join("\n")).map_err(|e| e.to_string())?;
    let mut tally: Vec<_> = tally.into_iter().map(|(what, n)| format!("{what} {n}")).collect();
    tally.sort();
    Ok(format!("{} acknowledged, {stale} stale reads; {}", acknowledged.len(), tally.join(", ")))
}

fn drop_something(random: u64, path: &str) -> &'static str {
    let shm = format!("{path}-shm");
    // What another drop has just taken away is not there to be dropped.
    match (random >> 20) % 8 {
        0 | 1 => unlock(path).map_or("nothing", |_| "shared"),
        2 | 3 => unlock(&format!("{shm} 128 1")).map_or("nothing", |_| "presence"),
        4 => unlock(path).and(unlock(&format!("{shm} 128 1"))).map_or("nothing", |_| "both"),
        5 => unlock(&shm).map_or("nothing", |_| "all of the index"),
        6 => shut(path).map_or("nothing", |_| "owner of main"),
        _ => shut(&shm).map_or("nothing", |_| "owner of shm"),
    }
}

fn write_until(database: &Database, writer: u32, stop: &AtomicBool, known: &AtomicI64) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{}-{writer}-{n:06}", std::process::id());
        match put(database, key.clone()) {
            Ok(_) => {
                known.fetch_add(1, Ordering::SeqCst);
                acknowledged.push(key);
            }
            Err(e) => eprintln!("put: {} {e}", e.code()),
        }
    }
    acknowledged
}

/// How often a read saw fewer rows than were acknowledged before it began. A row that is there before it is acknowledged may go
/// and come again: then its write is made once more.
fn read_until(database: &Database, stop: &AtomicBool, known: &AtomicI64) -> u64 {
    let mut stale = 0;
    while !stop.load(Ordering::Relaxed) {
        let acknowledged = known.load(Ordering::SeqCst);
        match database.read(count) {
            Ok(rows) => stale += u64::from(rows < acknowledged),
            Err(e) => eprintln!("read: {} {e}", e.code()),
        }
    }
    stale
}

fn count(connection: &rusqlite::Connection) -> statehouse_sqlite::Result<i64> {
    Ok(connection.query_row("SELECT count(*) FROM k", [], |r| r.get(0))?)
}

/// Holds the two locks of the database at `path` in the place of those held before, or none.
pub(crate) fn anchor(path: Option<&str>) -> Answer {
    static HELD: std::sync::Mutex<Option<statehouse_sqlite::anchor::Anchor>> = std::sync::Mutex::new(None);
    let mut held = HELD.lock().map_err(|e| e.to_string())?;
    *held = None;
    if let Some(path) = path {
        let family = Family::of(Path::new(path)).map_err(|e| e.to_string())?;
        *held = Some(statehouse_sqlite::anchor::hold(&family).map_err(|e| format!("{} {e}", e.code()))?);
    }
    Ok(String::new())
}
