//! A program that uses plain `rusqlite` beside the lock core, or a whole `Database`, told what to do line by line on
//! standard input.
//!
//! It shows what `protect()` is for: try `protect`, `connect a rw /tmp/x.db`, `sql a ...`, then `stray /tmp/x.db`, and look
//! at `/proc/locks`. `open PATH` and `put KEY` show the other door: what `put` has answered is kept. The crate's own tests
//! drive it as a second process that does everything a program should not do.
//! Each order is answered by one line, `ok ...` or `error ...`.
#![expect(
    unsafe_code,
    reason = "it forks, steals descriptors and loads a second SQLite, which only unsafe code can do"
)]
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "doing it by ordinary means is the point, and it is a tool at the end of a pipe"
)]

#[path = "holder_parts/sabotage.rs"]
mod sabotage;

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{BufRead, Write};
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use statehouse_sqlite::admission::{Admission, Wanted};
use statehouse_sqlite::generation::Record;
use statehouse_sqlite::turnstile::Turnstile;
use statehouse_sqlite::{Database, Event, Failure, Family, Options, Schema, Status, locks};

type Answer = Result<String, String>;

fn main() {
    let mut connections = HashMap::new();
    let mut database = None;
    let mut reading = None;
    let mut admission = None;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match verb {
            "open" => open(rest).map(|opened| {
                database = Some(opened);
                String::new()
            }),
            // admit DRAIN|- force|- PATH, then `admitted SQL` any number of times, then `release`.
            "admit" => admit(rest).map(|proof| {
                let text = proof.overridden().join("; ");
                admission = Some(proof);
                text
            }),
            "admitted" => match &admission {
                Some(proof) => sql(proof.connection(), rest),
                None => Err("nobody was admitted".into()),
            },
            "release" => {
                admission = None;
                Ok(String::new())
            }
            "put" | "set" | "after" | "count" | "leave" | "tight" => match &database {
                Some(open) => with_database(open, verb, rest),
                None => Err("no database is open".into()),
            },
            "put-when" | "batter" | "read-on" | "read-emptied" => match &database {
                None => Err("no database is open".into()),
                Some(open) if verb == "put-when" => sabotage::put_when(open, rest).map(|()| String::new()),
                Some(open) if verb == "batter" => sabotage::batter(open, rest),
                Some(open) if verb == "read-emptied" => sabotage::read_emptied(open, rest),
                // A read that goes on until it is told to `read-end`.
                Some(open) => sabotage::Reading::begin(open).map(|begun| {
                    reading = Some(begun);
                    String::new()
                }),
            },
            "read-end" => reading.take().ok_or("nothing is being read".into()).and_then(sabotage::Reading::end),
            _ => order(&mut connections, &line),
        };
        match answer {
            Ok(text) => println!("ok {text}"),
            Err(text) => println!("error {}", text.replace('\n', " ")),
        }
        std::io::stdout().flush().expect("somebody listens");
    }
}

fn order(connections: &mut HashMap<String, Connection>, line: &str) -> Answer {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
    match verb {
        // From now on no lock of SQLite's can be dropped by accident.
        "protect" => statehouse_sqlite::protect().map(|()| String::new()).map_err(|e| e.to_string()),
        // connect NAME MODE PATH
        "connect" => {
            let (mode, path) = second.split_once(' ').ok_or("connect NAME rw|ro PATH")?;
            let access = if mode == "ro" {
                OpenFlags::SQLITE_OPEN_READ_ONLY
            } else {
                OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE
            };
            let connection = Connection::open_with_flags(path, access).map_err(text)?;
            connection.busy_timeout(std::time::Duration::ZERO).map_err(text)?;
            connections.insert(first.to_owned(), connection);
            Ok(String::new())
        }
        "sql" => sql(connections.get(first).ok_or("no such connection")?, second),
        "close" => {
            connections.remove(first).ok_or("no such connection")?.close().map_err(|(_, e)| text(e))?;
            Ok(String::new())
        }
        // Opens and closes a file by ordinary means: this drops every POSIX lock that the process has on it.
        "stray" => std::fs::File::open(rest).map(|_| String::new()).map_err(|e| e.to_string()),
        "dup" => {
            // SAFETY: duplicating and closing a number that the order names touches no memory.
            let copy = unsafe { libc::dup(rest.parse().map_err(|_| "not a number")?) };
            // SAFETY: as above; the copy is this process's own.
            unsafe { libc::close(copy) };
            Ok(String::new())
        }
        "counts" => {
            let (owners, descriptors) = locks::counts();
            Ok(format!("{owners} {descriptors}"))
        }
        "owner" => Ok(owner(rest)?.to_string()),
        // Frees the owner's number and lets another file have it, as something that closes all descriptors would.
        "steal" => replace(&owner(first)?.to_string(), second),
        // Whether the locks of the generation at the path stand, by a record that is made now.
        "locked" => {
            let family = Family::of(Path::new(rest)).map_err(|e| e.to_string())?;
            Ok(Record::take(&family).map_err(|e| e.to_string())?.locked().to_string())
        }
        "unlock" => sabotage::unlock(rest),
        "shut" => sabotage::shut(rest),
        // Holds the two locks of the database at this path, or lets go of those that it holds.
        "anchor" => sabotage::anchor(Some(rest)),
        "unanchor" => sabotage::anchor(None),
        "accomplice" => sabotage::accomplice(rest),
        // replace NUMBER PATH: what was open by this number is closed, and the file is open by it instead.
        "replace" => replace(first, second),
        // A copy of the process that the C library knows nothing of; it does nothing and dies with it.
        "shadow" => shadow(),
        // fork VERB ...: the child carries out the order with everything that it inherited, and exits without cleaning up.
        "fork" => fork(connections, rest),
        "second" => second_library(first, second),
        "scan" => scan(first, second),
        "turns" => turns(rest),
        // Takes the turn below this directory and keeps it until the process ends.
        "take-turn" => {
            let turnstile = Box::leak(Box::new(Turnstile::open(Path::new(rest)).map_err(|e| e.to_string())?));
            std::mem::forget(turnstile.enter().map_err(|e| e.to_string())?);
            Ok(String::new())
        }
        _ => Err(format!("unknown order {verb}")),
    }
}

/// scan N PATH: looks N times at who uses the database, while two threads open and close other files. The answer is how many
/// looks raised an alarm, which children are left, and the kilobytes in memory.
fn scan(count: &str, path: &str) -> Answer {
    let count: u64 = count.parse().map_err(|_| "not a number")?;
    let family = statehouse_sqlite::Family::of(Path::new(path)).map_err(|e| e.to_string())?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let done = || stop.load(std::sync::atomic::Ordering::Relaxed);
    let mut alarms = 0;
    let outcome = std::thread::scope(|scope| {
        for file in ["/etc/passwd", "/proc/self/status"] {
            scope.spawn(move || {
                while !done() {
                    drop(std::fs::File::open(file));
                    std::thread::sleep(std::time::Duration::from_micros(100));
                }
            });
        }
        let scans = (0..count).try_for_each(|_| {
            let report = statehouse_sqlite::holders::scan(&family).map_err(|e| e.to_string())?;
            // Some machines have processes that not even root may look at.
            let usual = |l: &String| l.contains("namespace") || l.contains("cannot be listed");
            alarms += u64::from(report.alarming() || !report.limits.iter().all(usual));
            Ok::<(), String>(())
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        scans
    });
    outcome?;
    // SAFETY: asks for any child of any kind without waiting, and stores nothing.
    let children = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
    Ok(format!("{alarms} {children} {}", resident()?))
}

/// Kilobytes of this process in memory.
fn resident() -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|e| e.to_string())?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    line.trim().trim_end_matches("kB").trim().parse().map_err(|_| "not a number".to_owned())
}

fn replace(number: &str, path: &str) -> Answer {
    let number = number.parse().map_err(|_| "not a number")?;
    let other = CString::new(path).map_err(|e| e.to_string())?;
    // SAFETY: the path is a C string, and dup2 onto the number closes what was there, which is the point.
    let taken = unsafe { libc::dup2(libc::open(other.as_ptr(), libc::O_RDWR), number) };
    if taken == number { Ok(String::new()) } else { Err(std::io::Error::last_os_error().to_string()) }
}

fn shadow() -> Answer {
    // SAFETY: without CLONE_VM and a stack this is a fork that runs no handlers; the child only makes system calls.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if pid == 0 {
        // SAFETY: neither call touches memory of this process; the second never returns.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    }
    if pid > 0 { Ok(pid.to_string()) } else { Err(std::io::Error::last_os_error().to_string()) }
}

/// One table of keys, each written once.
struct Keys;

impl Schema for Keys {
    fn current(&self, connection: &Connection) -> statehouse_sqlite::Result<bool> {
        Ok(connection.table_exists(None, "k")?)
    }

    fn migrate(&self, transaction: &Connection) -> Result<(), Failure> {
        Ok(transaction
            .execute_batch("CREATE TABLE k(n INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, role TEXT) STRICT")?)
    }

    fn merge(&self, transaction: &Connection, retired: &Connection) -> Result<u64, Failure> {
        let mut read = retired.prepare("SELECT key, role FROM k ORDER BY n")?;
        let mut rows = read.query([])?;
        let mut taken = 0;
        while let Some(row) = rows.next()? {
            let (key, role): (String, String) = (row.get(0)?, row.get(1)?);
            taken += transaction.execute("INSERT OR IGNORE INTO k(key, role) VALUES(?1, ?2)", (key, role))? as u64;
        }
        Ok(taken)
    }
}

fn open(path: &str) -> Result<Database, String> {
    let role = format!("holder-{}", std::process::id());
    let observer = |event: &Event| eprintln!("{event:?}");
    let options = Options {
        role,
        create: true,
        schema: Some(std::sync::Arc::new(Keys)),
        observer: Some(std::sync::Arc::new(observer)),
        ..Options::default()
    };
    Database::open(Path::new(path), options).map_err(|e| format!("{} {e}", e.code()))
}

fn admit(rest: &str) -> Result<Admission, String> {
    let mut words = rest.splitn(3, ' ');
    let (Some(drain), Some(force), Some(path)) = (words.next(), words.next(), words.next()) else {
        return Err("admit DRAIN|- force|- PATH".into());
    };
    let family = Family::of(Path::new(path)).map_err(|e| e.to_string())?;
    let tell = |text: &str| eprintln!("{text}");
    let wanted = Wanted {
        what: "test",
        drain: drain.parse().ok().map(std::time::Duration::from_secs_f64),
        force: force == "force",
        patience: std::time::Duration::from_secs(2),
        tell: &tell,
    };
    Admission::obtain(&family, &wanted).map_err(|e| format!("{} {e}", e.code()))
}

fn with_database(database: &Database, verb: &str, rest: &str) -> Answer {
    let fail = |e: statehouse_sqlite::Error| format!("{} {e}", e.code());
    match verb {
        "put" => put(database, rest.to_owned()).map(|_| String::new()).map_err(fail),
        // set KEY ROLE: the last one counts. after KEY OTHER: refused as long as OTHER is not there.
        "set" | "after" => {
            let (key, second) = rest.split_once(' ').ok_or("KEY and a second word")?;
            let (verb, key, second) = (verb.to_owned(), key.to_owned(), second.to_owned());
            database.write(move |c| change(c, &verb, &key, &second)).map(|()| String::new()).map_err(fail)
        }
        "count" => {
            // count [MILLISECONDS]: so long does the read stay open.
            let stay = std::time::Duration::from_millis(rest.parse().unwrap_or(0));
            let count: i64 = database
                .read(|c| {
                    let count = c.query_row("SELECT count(*) FROM k", [], |r| r.get(0))?;
                    std::thread::sleep(stay);
                    Ok(count)
                })
                .map_err(fail)?;
            Ok(count.to_string())
        }
        "leave" => database.close().map(|()| String::new()).map_err(fail),
        // tight SECONDS FILE: one row after the other without a pause; FILE gets when each was asked for and done, and its
        // place in the order of commits.
        _ => {
            let (seconds, file) = rest.split_once(' ').ok_or("tight SECONDS FILE")?;
            let end = now() + seconds.parse::<u64>().map_err(|_| "not a number")? * 1_000_000_000;
            let mut log = String::new();
            let mut n = 0;
            while now() < end {
                let asked = now();
                let place = put(database, format!("{}-{n}", std::process::id())).map_err(fail)?;
                log.push_str(&format!("{asked} {} {place}\n", now()));
                n += 1;
            }
            std::fs::write(file, log).map_err(|e| e.to_string())?;
            Ok(n.to_string())
        }
    }
}

fn put(database: &Database, key: String) -> statehouse_sqlite::Result<i64> {
    let role = std::process::id().to_string();
    database.write(move |c| {
        c.prepare_cached("INSERT OR IGNORE INTO k(key, role) VALUES(?1, ?2)")?.execute((&key, &role))?;
        Ok(c.last_insert_rowid())
    })
}

fn change(c: &Connection, verb: &str, key: &str, second: &str) -> Result<(), Failure> {
    if verb == "set" {
        let sql = "INSERT INTO k(key, role) VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET role = excluded.role";
        return Ok(c.execute(sql, [key, second]).map(drop)?);
    }
    if !c.query_row("SELECT EXISTS (SELECT 1 FROM k WHERE key = ?1)", [second], |r| r.get::<_, bool>(0))? {
        return Err(Failure::Abort(format!("{second} is not there").into()));
    }
    Ok(c.execute("INSERT OR IGNORE INTO k(key, role) VALUES(?1, 'after')", [key]).map(drop)?)
}

/// turns SECONDS DIRECTORY FILE: takes one turn after the other at the turnstile, each as long as a short commit; FILE gets
/// when each was asked for and when it came, twice.
fn turns(rest: &str) -> Answer {
    let mut words = rest.splitn(3, ' ');
    let (Some(seconds), Some(directory), Some(file)) = (words.next(), words.next(), words.next()) else {
        return Err("turns SECONDS DIRECTORY FILE".into());
    };
    let turnstile = Turnstile::open(Path::new(directory)).map_err(|e| e.to_string())?;
    let end = now() + seconds.parse::<u64>().map_err(|_| "not a number")? * 1_000_000_000;
    let mut log = String::new();
    let mut count = 0;
    while now() < end {
        let asked = now();
        let turn = turnstile.enter().map_err(|e| e.to_string())?;
        let came = now();
        while now() < came + 100_000 {
            std::hint::spin_loop();
        }
        drop(turn);
        log.push_str(&format!("{asked} {came} {came}\n"));
        count += 1;
    }
    std::fs::write(file, log).map_err(|e| e.to_string())?;
    Ok(count.to_string())
}

/// Nanoseconds of a clock that all processes of the machine share.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn text(e: rusqlite::Error) -> String {
    e.to_string()
}

fn sql(connection: &Connection, sql: &str) -> Answer {
    let mut statement = connection.prepare(sql).map_err(text)?;
    let mut rows = statement.query([]).map_err(text)?;
    let mut first = None;
    while let Some(row) = rows.next().map_err(text)? {
        first.get_or_insert_with(|| match row.get_ref(0) {
            Ok(ValueRef::Text(t)) => String::from_utf8_lossy(t).into_owned(),
            Ok(ValueRef::Integer(i)) => i.to_string(),
            other => format!("{other:?}"),
        });
    }
    Ok(first.unwrap_or_default())
}

fn owner(path: &str) -> Result<i32, String> {
    let status = Status::of(Path::new(path)).map_err(|e| e.to_string())?.ok_or("no such file")?;
    Ok(locks::owned(status.identity).ok_or("no owner")?.owner)
}

fn fork(connections: &mut HashMap<String, Connection>, line: &str) -> Answer {
    std::io::stdout().flush().map_err(|e| e.to_string())?;
    // SAFETY: the process has one thread, so the child may go on as the parent would.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = match order(connections, line) {
            Ok(text) => {
                println!("child ok {text}");
                0
            }
            Err(text) => {
                println!("child error {text}");
                1
            }
        };
        std::io::stdout().flush().expect("somebody listens");
        // SAFETY: ends the child at once, without running what the parent registered.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for an int, and the pid is that of the child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    Ok(format!("{}", libc::WEXITSTATUS(status)))
}

/// Opens, runs and closes with the system's own SQLite, which knows nothing of the lock core in this process.
fn second_library(path: &str, sql: &str) -> Answer {
    type OpenFn = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
    type ExecFn =
        unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void, *const c_void, *const c_void) -> c_int;
    type CloseFn = unsafe extern "C" fn(*mut c_void) -> c_int;
    let path = CString::new(path).map_err(|e| e.to_string())?;
    let sql = CString::new(sql).map_err(|e| e.to_string())?;
    // SAFETY: the library is SQLite's shared library and the three symbols have the documented signatures; the
    // handle is used between open and close only; the strings outlive the calls.
    unsafe {
        let library = libc::dlopen(c"libsqlite3.so.0".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            return Err("no second library".into());
        }
        let open: OpenFn = std::mem::transmute(libc::dlsym(library, c"sqlite3_open".as_ptr()));
        let exec: ExecFn = std::mem::transmute(libc::dlsym(library, c"sqlite3_exec".as_ptr()));
        let close: CloseFn = std::mem::transmute(libc::dlsym(library, c"sqlite3_close".as_ptr()));
        let mut handle = std::ptr::null_mut();
        let opened = open(path.as_ptr(), &raw mut handle);
        let ran = exec(handle, sql.as_ptr(), std::ptr::null(), std::ptr::null(), std::ptr::null());
        let closed = close(handle);
        Ok(format!("{opened} {ran} {closed}"))
    }
}
