//! Copies of a main file and a log that belong to one moment, although their process goes on writing.
//!
//! The main file is copied first and the log after it. Whatever a checkpoint has written into the main file by then comes from
//! frames that are in the log, so the log's last commit puts every page right, as long as the log was not begun anew
//! meanwhile. Its header tells that: it changes each time, and no two are alike. So it is looked at before and after, and
//! the whole is done again until both looks agree. The process is never stopped for it.
//!
//! The log is read once. Its running checksum is verified as it passes, it is written and hashed up to its last commit, and
//! what the copy lacks behind that was acknowledged to nobody.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::family::Status;
use crate::image::Sink as _;
use crate::wal::{self, Checksum, FRAME_HEADER_BYTES, HEADER_BYTES, Header, ReadAt};

/// How long two looks may go on disagreeing.
const LIMIT: Duration = Duration::from_secs(10);
/// And how often at least it is tried.
const TRIES: u32 = 5;

const BLOCK: usize = 1 << 20;

/// A transaction that is longer than this is not kept in memory to be hashed when its commit comes.
const CARRY: usize = 32 << 20;

/// What was copied of a log.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Its header, if SQLite would accept it.
    pub(super) header: Option<Header>,
    /// Where in the copy the newest page of each number begins.
    pub(super) pages: BTreeMap<u32, u64>,
    /// Pages of the database after the last commit; 0 if there is none.
    pub(super) size: u32,
    pub(super) frames: u64,
    pub(super) transactions: u64,
    /// Length of the copy.
    pub(super) bytes: u64,
    pub(super) blake3: String,
}

/// Told how many bytes of the main file and of the log were read.
pub(super) type Watch<'a> = &'a dyn Fn(u64);

/// Two looks at what must not change while both files are copied.
#[derive(PartialEq, Eq)]
enum Look {
    /// The header of the log.
    Header([u8; HEADER_BYTES as usize]),
    /// Without one, lengths and times of both files.
    Times([Option<(u64, i64, i64)>; 2]),
}

impl Look {
    fn at(main: Option<&File>, log: Option<&File>) -> io::Result<Look> {
        let mut header = [0; HEADER_BYTES as usize];
        if let Some(log) = log
            && log.fill_at(&mut header, 0)?
            && Header::parse(&header).is_some()
        {
            return Ok(Look::Header(header));
        }
        let times = |file: Option<&File>| {
            let status = file.map(|f| Status::of_descriptor(f.as_fd())).transpose()?;
            Ok::<_, io::Error>(status.map(|s| (s.size, s.modified_ns, s.changed_ns)))
        };
        Ok(Look::Times([times(main)?, times(log)?]))
    }
}

/// Copies both as of one commit. `None` if they never stood still for as long as it takes; then the copies are worth nothing.
pub(super) fn both(
    main: Option<(&File, &mut File)>,
    log: Option<(&File, &mut File)>,
    watch: Watch<'_>,
) -> io::Result<Option<Log>> {
    let (mut main, mut log) = (main, log);
    let begun = Instant::now();
    for tries in 1.. {
        let look = |main: &Option<(&File, &mut File)>, log: &Option<(&File, &mut File)>| {
            Look::at(main.as_ref().map(|(live, _)| *live), log.as_ref().map(|(live, _)| *live))
        };
        let before = look(&main, &log)?;
        let mut done = 0;
        if let Some((live, copy)) = &mut main {
            done = follow(live, copy, watch)?;
        }
        let copied = match &mut log {
            Some((live, copy)) => copy_log(live, copy, &|bytes| watch(done + bytes))?,
            None => Log::default(),
        };
        if look(&main, &log)? == before {
            return Ok(Some(copied));
        }
        if tries >= TRIES && begun.elapsed() > LIMIT {
            break;
        }
        // Whoever begins the log anew with every commit needs the processor for that.
        std::thread::sleep(Duration::from_micros(u64::from(tries % 8) * 200));
    }
    Ok(None)
}

/// Makes `copy` what `live` is, and writes only what differs: the second time that is little.
fn follow(live: &File, copy: &mut File, watch: Watch<'_>) -> io::Result<u64> {
    let known = copy.metadata()?.len();
    let (mut buffer, mut old) = (vec![0; BLOCK], Vec::new());
    let mut at = 0;
    loop {
        let read = fill(live, &mut buffer, at)?;
        let new = &buffer[..read];
        let end = at + read as u64;
        let mut same = false;
        if end <= known && read > 0 {
            old.resize(read, 0);
            same = copy.fill_at(&mut old, at)? && old == new;
        }
        if !same {
            copy.write_at(new, at)?;
        }
        at = end;
        watch(at);
        if read < buffer.len() {
            copy.set_len(at)?;
            return Ok(at);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Copies a log up to its last commit. One without a valid header is copied as it is.
pub(super) fn copy_log(live: &File, copy: &mut File, watch: Watch<'_>) -> io::Result<Log> {
    copy.set_len(0)?;
    let mut head = [0; HEADER_BYTES as usize];
    let whole = live.fill_at(&mut head, 0)?;
    let Some(header) = Header::parse(&head).filter(|_| whole) else {
        let bytes = follow(live, copy, watch)?;
        return Ok(Log { bytes, blake3: hash(copy)?, ..Log::default() });
    };
    copy.write_at(&head, 0)?;
    let mut pass = Pass::new(header, &head);
    let frame = FRAME_HEADER_BYTES as usize + header.page_size as usize;
    let mut buffer = vec![0; frame * (BLOCK / frame).max(1)];
    loop {
        let at = pass.end;
        let read = fill(live, &mut buffer, at)?;
        let valid = pass.take(&buffer[..read], frame);
        copy.write_at(&buffer[..valid], at)?;
        watch(pass.end);
        if valid < buffer.len() {
            return pass.finish(copy);
        }
    }
}

/// What is known of a log while it passes.
struct Pass {
    log: Log,
    header: Header,
    checksum: Checksum,
    /// Frames that have passed, and where they end.
    next: u64,
    end: u64,
    /// Pages of the transaction that has no commit yet.
    pending: Vec<(u32, u64)>,
    hasher: blake3::Hasher,
    /// What has passed and is not hashed, for its commit has not come.
    carry: Vec<u8>,
    /// The transaction was too long to be kept, so the copy is hashed in the end.
    overlong: bool,
}

impl Pass {
    fn new(header: Header, head: &[u8]) -> Pass {
        let mut hasher = blake3::Hasher::new();
        hasher.update(head);
        let log = Log { header: Some(header), bytes: HEADER_BYTES, ..Log::default() };
        let (next, end) = (0, HEADER_BYTES);
        let (pending, carry) = (Vec::new(), Vec::new());
        Pass { log, header, checksum: header.checksum, next, end, pending, hasher, carry, overlong: false }
    }

    /// Takes whole frames up to the first that is not valid; returns how many bytes that are.
    fn take(&mut self, bytes: &[u8], length: usize) -> usize {
        let (mut valid, mut committed) = (0, 0);
        for frame in bytes.chunks_exact(length) {
            let Some((found, checksum)) = wal::verify(&self.header, frame, self.next, self.checksum) else { break };
            (self.checksum, self.next) = (checksum, self.next + 1);
            self.pending.push((found.page, self.end + valid as u64 + FRAME_HEADER_BYTES));
            valid += length;
            if found.commit != 0 {
                self.log.pages.extend(self.pending.drain(..));
                self.log.size = found.commit;
                self.log.frames = self.next;
                self.log.transactions += 1;
                committed = valid;
            }
        }
        self.end += valid as u64;
        if committed > 0 {
            self.log.bytes = self.end - (valid - committed) as u64;
            self.hasher.update(&self.carry);
            self.hasher.update(&bytes[..committed]);
            self.carry.clear();
        }
        if self.carry.len() < CARRY && !self.overlong {
            self.carry.extend_from_slice(&bytes[committed..valid]);
        } else if committed < valid {
            (self.overlong, self.carry) = (true, Vec::new());
        }
        valid
    }

    fn finish(self, copy: &File) -> io::Result<Log> {
        let mut log = self.log;
        copy.set_len(log.bytes)?;
        // A transaction that made the database smaller leaves frames of pages that are gone.
        let _ = log.pages.split_off(&log.size.saturating_add(1));
        log.blake3 = if self.overlong { hash(copy)? } else { self.hasher.finalize().to_hex().to_string() };
        Ok(log)
    }
}

/// BLAKE3 of a file, in hexadecimal.
pub(super) fn hash(file: &File) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; BLOCK];
    let mut at = 0;
    loop {
        let read = fill(file, &mut buffer, at)?;
        hasher.update(&buffer[..read]);
        at += read as u64;
        if read < buffer.len() {
            return Ok(hasher.finalize().to_hex().to_string());
        }
    }
}
