//! The proof of the whole content, made before a handle goes on after its content was in doubt, and the search for a cause when
//! SQLite says that something is damaged. Reads all of the log, and [`prove`] all of the database.

use std::collections::BTreeMap;

use rusqlite::Connection;

use crate::error::{Error, Result};
use crate::examine::{Examiner, PAUSE, Seen, TRIES};
use crate::family::{Family, Generation, Member};
use crate::index::Index;
use crate::locks::OpenFile;
use crate::sums::{sum_of, sums};
use crate::wal::{Frames, Header};

/// Whether the log is whole up to its last commit and the main file has what was copied from it; what is wrong otherwise.
pub(crate) fn agreement(family: &Family, generation: &Generation) -> Result<Option<(Member, String)>> {
    let examiner = Examiner { family, generation };
    let (Some(main), Some(log)) = (examiner.file(Member::Main), examiner.file(Member::Wal)) else { return Ok(None) };
    let io = |e| Error::io("read", &family.path(Member::Wal), e);
    for _ in 0..TRIES {
        // An index that is being written says nothing; one that stays so is rebuilt by SQLite.
        let Some(index) = examiner.index() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        let wrong = disagreement(&main, &log, &index).map_err(io)?;
        let same = examiner.index().is_some_and(|now| now.checkpoint() == index.checkpoint());
        if same {
            return Ok(wrong);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}

fn disagreement(main: &OpenFile, log: &OpenFile, index: &Index) -> std::io::Result<Option<(Member, String)>> {
    if index.frames == 0 {
        return Ok(None);
    }
    let mut newest: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut pending = Vec::new();
    let mut whole = 0;
    if let Some(header) = Header::read(log)? {
        let mut frames = Frames::new(log, header);
        while whole < u64::from(index.frames)
            && let Some(frame) = frames.next()?
        {
            whole = frame.index + 1;
            pending.push((frame.page, (frame.index, sum_of(frames.page()))));
            if frame.commit != 0 {
                newest.extend(pending.drain(..));
                // What a smaller database does not have was not copied either.
                let _ = newest.split_off(&frame.commit.saturating_add(1));
            }
        }
    }
    if whole < u64::from(index.frames) {
        return Ok(Some((
            Member::Wal,
            format!("overwritten by another program: {whole} of its {} frames are whole", index.frames),
        )));
    }
    if index.quiet().is_none() {
        return Ok(None);
    }
    newest.retain(|_, (frame, _)| *frame < u64::from(index.copied));
    let pages: Vec<u32> = newest.keys().copied().collect();
    let in_main: BTreeMap<u32, u64> = sums(main, index.page_size, &pages).into_iter().collect();
    for (page, (_, in_log)) in newest {
        if in_main.get(&page) != Some(&in_log) {
            return Ok(Some((
                Member::Main,
                format!("overwritten by another program: page {page} is not what was copied into it"),
            )));
        }
    }
    Ok(None)
}

/// Proves the whole content: log against index, main file against log, and the structure of what they make together.
///
/// # Errors
/// [`Error::Destroyed`] with what is wrong, or what SQLite answered.
pub(crate) fn prove(family: &Family, generation: &Generation, connection: &Connection) -> Result<()> {
    let examiner = Examiner { family, generation };
    let wrong = match agreement(family, generation)? {
        Some(wrong) => Some(wrong),
        None => match connection.query_row("PRAGMA quick_check(1)", [], |r| r.get::<_, String>(0)).map_err(Error::from)
        {
            Ok(verdict) if verdict == "ok" => None,
            Ok(detail) | Err(Error::Damaged { detail }) => return Err(damaged(family, generation, &detail)),
            Err(e) => return Err(e),
        },
    };
    wrong.map_or(Ok(()), |(member, what)| Err(destroyed(&examiner, member, what)))
}

/// What SQLite finds wrong with a database of which it is known that another program has written into its main file.
pub(crate) fn damaged(family: &Family, generation: &Generation, detail: &str) -> Error {
    let what = format!("written into by another program: {detail}");
    destroyed(&Examiner { family, generation }, Member::Main, what)
}

fn destroyed(examiner: &Examiner<'_>, member: Member, what: String) -> Error {
    let seen = Seen { index: examiner.index(), ..Seen::default() };
    examiner.destroyed(&seen, member, what)
}

/// Up to how many bytes the indexes are compared with their tables as well, which looks up each row in each of its indexes. A
/// larger database would keep everybody waiting for longer than the loss of an index is worth.
const WITH_INDEXES: i64 = 256 << 20;

/// True if all of it, with its indexes, is looked through in a time that nobody minds.
pub(crate) fn is_looked_through_quickly(connection: &Connection) -> Result<bool> {
    let number = |pragma: &str| connection.query_row(pragma, [], |r| r.get::<_, i64>(0));
    Ok(number("PRAGMA page_count")?.saturating_mul(number("PRAGMA page_size")?) <= WITH_INDEXES)
}
