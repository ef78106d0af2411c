//! From a path to a connection of a generation that is known: the steps of opening, in their order.

mod keep;

use rusqlite::Connection;

use crate::admission::Entry;
use crate::connect;
use crate::error::{Error, Failure, Reason, Result};
use crate::family::{Family, Generation, Identity, Member};
use crate::flush::Committer;
use crate::generation::Record;
use crate::members::{self, Registration};
use crate::options::{Event, Options, Schema};
use crate::prepare::{self, Prepared};
use crate::secure::Inspected;
use crate::turnstile::Turnstile;
use crate::{capture, captures, doubt, flush, incidents, putback, recovery, replaced, side, suspect};

/// How often an open is begun anew because the main file was replaced, or a generation retired, meanwhile.
const TRIES: usize = 21;

/// How long one who found a generation that retired just then waits before it begins anew.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// How long opening again waits for SQLite's locks at a time.
const REOPEN: std::time::Duration = std::time::Duration::from_millis(500);

/// A connection that may write, and the generation that it uses.
pub(crate) struct Opened {
    pub(crate) connection: Committer,
    pub(crate) record: Record,
    /// What says to everybody that this process has the database open.
    pub(crate) member: Registration,
}

/// Opens for a process that has nothing of this database open. Before anything else it goes through the gate, where it waits
/// while somebody does structural work.
pub(crate) fn open(family: &Family, options: &Options) -> Result<(Entry, Opened)> {
    let mut entry = Entry::find(family, options.patience)?;
    let opened = open_with(family, options, &mut |place| {
        // Only when everything was prepared is there a directory for it.
        let make = entry.is_none();
        if make {
            entry = Some(Entry::make(place, options.patience)?);
        }
        Ok(make)
    })?;
    match entry {
        Some(entry) => Ok((entry, opened)),
        None => Err(Error::refused(Reason::Changed, family.side_directory(), "it was removed while it was used")),
    }
}

/// As [`open`], for one who has its place among the members.
pub(crate) fn open_as_member(family: &Family, options: &Options) -> Result<Opened> {
    open_with(family, options, &mut |_| Ok(false))
}

/// As [`open`]; `enter` takes a place among the members if there is none yet. After that everything is looked at again.
fn open_with(family: &Family, options: &Options, enter: &mut dyn FnMut(&Inspected) -> Result<bool>) -> Result<Opened> {
    let begun = std::time::Instant::now();
    for n in 0..TRIES {
        let before = generation(family)?;
        let goes_on = n + 1 < TRIES;
        match once(family, options, enter, &Try { number: n, goes_on, begun }) {
            Ok(Some(opened)) => return Ok(opened),
            Ok(None) => {}
            // Somebody removes or replaces the files one after another: what was found between two steps is not what there is.
            Err(e) if goes_on && may_be_amid(&e) && generation(family)? != before => std::thread::sleep(PAUSE),
            Err(e) => return Err(e),
        }
    }
    Err(Error::refused(Reason::Changed, family.main(), "it was replaced again and again"))
}

fn generation(family: &Family) -> Result<Generation> {
    family.generation().map_err(|e| Error::io("look at", &family.main(), e))
}

/// True for what may be the answer to files that were taken away in the middle of opening.
fn may_be_amid(e: &Error) -> bool {
    matches!(
        e,
        Error::Refused(_)
            | Error::Retired { .. }
            | Error::LocksLost
            | Error::Damaged { .. }
            | Error::Io { .. }
            | Error::Sqlite(_)
    )
}

/// Which attempt it is.
struct Try {
    number: usize,
    /// There is another one after it.
    goes_on: bool,
    begun: std::time::Instant,
}

/// One attempt; `None` if everything is to be looked at again.
fn once(
    family: &Family,
    options: &Options,
    enter: &mut dyn FnMut(&Inspected) -> Result<bool>,
    attempt: &Try,
) -> Result<Option<Opened>> {
    if captures::main_is_missing(family)? {
        bring_back(family, options)?;
    }
    let prepared = match prepare::prepare(family, options.create, options.application_id) {
        // Whoever notices that its log was removed moves such a log aside.
        Err(e)
            if e.reason() == Some(Reason::WalHeader)
                && attempt.number == 0
                && side::open(&family.side_directory())?.is_some() =>
        {
            prepare::wait_for_ours(family)?;
            drop(recovery::shared(family, options.patience)?);
            return Ok(None);
        }
        // Another process makes the same database at this moment.
        Err(e) if e.reason() == Some(Reason::Changed) && options.create && attempt.goes_on => {
            std::thread::sleep(PAUSE);
            return Ok(None);
        }
        prepared => prepared?,
    };
    match as_prepared(family, options, enter, attempt, &prepared) {
        Ok(Some(opened)) => Ok(Some(opened)),
        other => {
            keep::keep(family, options, &prepared)?;
            other
        }
    }
}

/// Opens what was looked at, if that is still what there is.
fn as_prepared(
    family: &Family,
    options: &Options,
    enter: &mut dyn FnMut(&Inspected) -> Result<bool>,
    attempt: &Try,
    prepared: &Prepared,
) -> Result<Option<Opened>> {
    if enter(&prepared.inspected)? {
        return Ok(None);
    }
    if suspect::is_suspect(family) {
        prepare::wait_for_ours(family)?;
        let _lock = recovery::exclusive(family, options.patience)?;
        if suspect::is_suspect(family) {
            replaced::settle(family, options)?;
        }
        return Ok(None);
    }
    if putback::unsettled(family) {
        let _lock = recovery::exclusive(family, options.patience)?;
        putback::settle(family)?;
        return Ok(None);
    }
    if putback::is_unpaired(family, &prepared.inspected.generation()) {
        let _lock = recovery::exclusive(family, options.patience)?;
        putback::move_unpaired_log(family)?;
        return Ok(None);
    }
    let lock = recovery::shared(family, options.patience)?;
    if !unchanged(family, prepared)? {
        return Ok(None);
    }
    match prepare::refuse_dangerous_strangers(family) {
        Ok(None) => {}
        Err(e) if !prepare::may_be_ours(family) => return Err(e),
        _ => {
            drop(lock);
            prepare::wait_for_ours(family)?;
            return Ok(None);
        }
    }
    let opened = match connect_to(family, options, prepared) {
        Ok(opened) => opened,
        // Somebody removed or replaced the files in between; or another handle of this process still has to notice it. An
        // old index beside a log that was just removed looks like a log that was cut off.
        Err(Error::Retired { .. } | Error::LocksLost | Error::Destroyed(_)) if attempt.goes_on => {
            drop(lock);
            std::thread::sleep(PAUSE);
            return Ok(None);
        }
        // Another process makes the same database at this moment, and before it has a log SQLite waits for nobody.
        Err(Error::Busy { .. }) if prepared.fresh && attempt.goes_on && attempt.begun.elapsed() < options.patience => {
            drop(lock);
            std::thread::sleep(PAUSE);
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    // A log that came into being only now lies beside the index of the one that was removed a moment ago, if somebody goes on
    // with that and has not noticed yet. What he commits would be in this index and not in this log.
    if opened.record.generation().wal != prepared.inspected.generation().wal {
        match prepare::refuse_dangerous_strangers(family) {
            Ok(None) => {}
            Err(e) if !prepare::may_be_ours(family) => return Err(e),
            _ => {
                drop(opened);
                drop(lock);
                prepare::wait_for_ours(family)?;
                return Ok(None);
            }
        }
    }
    drop(lock);
    if captures::pending(family) || doubt::raised(family) {
        let _lock = recovery::exclusive(family, options.patience)?;
        settle(&opened.record, options, &opened.connection)?;
    }
    Ok(Some(opened))
}

/// Whoever removed the main file may have removed it under processes of ours that are about to put it back, or that did not
/// live to do so after they had captured it; or one is left that can only read it, an anchor: then it is captured from there.
/// Without any of them it is a new home, or the file is missing.
fn bring_back(family: &Family, options: &Options) -> Result<()> {
    prepare::wait_for_ours(family)?;
    if !recovery::was_taken(family) {
        // Whoever removed everything beside it as well has removed what said that there was a database. One that is to be made
        // is made.
        if options.create || capture::of_others(family)?.captures.is_empty() {
            return Ok(());
        }
    }
    let _lock = recovery::exclusive(family, options.patience)?;
    if captures::of_missing_main(family, false).is_none()
        && captures::main_is_missing(family)?
        && let Some(failed) = capture::of_others(family)?.failed.pop()
    {
        return Err(failed.why.into());
    }
    let of = captures::of_missing_main(family, false);
    let captures = capture::list(family).unwrap_or_default();
    if !putback::main_file(family, false)? {
        return Ok(());
    }
    putback::log(family)?;
    if let Some(capture) = captures.iter().find(|c| Some(&c.place) == of.as_ref()) {
        let _ = incidents::put_back(family, &options.role, &capture.manifest.generation);
    }
    Ok(())
}

/// Opens again for a process that holds the exclusive side of the recovery lock and has closed everything. With `considerate`
/// it does not go first while another of our processes has not noticed yet: the log at the path may be that one's and belong
/// to another main file than the one beside it, and rows that only that one has would be missing from the first reads.
///
/// `before` is the main file that it used: another one is proved before anything is opened for good. `did` is told what was done
/// about one that is not whole.
pub(crate) fn reopen(
    family: &Family,
    options: &Options,
    considerate: bool,
    before: Option<Identity>,
    did: &mut dyn FnMut(String),
) -> Result<Opened> {
    prepare::prepare(family, false, options.application_id)?;
    // Those of ours that still use a retired generation wait for the lock of this process, so it does not wait for them here.
    let ours = prepare::refuse_dangerous_strangers(family)?;
    if considerate && ours.is_some() {
        let holder = Some("a process of ours that still uses replaced files".to_owned());
        return Err(Error::Busy { waited: std::time::Duration::ZERO, holder });
    }
    // Others want the lock; among them may be the one that keeps this process waiting.
    let options = &Options { patience: options.patience.min(REOPEN), ..options.clone() };
    putback::settle(family)?;
    // Once more what lies there: the log may have been put back beside a main file that somebody has replaced since.
    putback::move_unpaired_log(family)?;
    let prepared = prepare::prepare(family, false, options.application_id)?;
    let main = prepared.inspected.generation().main;
    let is_believed =
        |main: Option<Identity>| suspect::is_proved(family, main) || main == before && !suspect::is_suspect(family);
    let prepared = match is_believed(main) {
        true => prepared,
        false => {
            replaced::settle(family, options)?.into_iter().for_each(did);
            prepare::prepare(family, false, options.application_id)?
        }
    };
    if !is_believed(prepared.inspected.generation().main) {
        return Err(Error::Retired { members: vec![Member::Main] });
    }
    let opened = connect_to(family, options, &prepared)?;
    putback::succeed(family)?;
    settle(&opened.record, options, &opened.connection)?;
    Ok(opened)
}

/// What is to be done in an open database before anybody is answered from it. To be called with the exclusive side of the
/// recovery lock.
fn settle(record: &Record, options: &Options, connection: &Committer) -> Result<()> {
    if doubt::raised(record.family()) {
        doubt::settle(record.family(), connection)?;
    }
    merge(record, options, connection)
}

fn unchanged(family: &Family, prepared: &Prepared) -> Result<bool> {
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    Ok(now.main == prepared.inspected.generation().main)
}

fn connect_to(family: &Family, options: &Options, prepared: &Prepared) -> Result<Opened> {
    let member = members::register(&prepared.inspected, &options.role)?;
    let checked = prepared.inspected.generation().main;
    let connection = connect::writer(family, checked, options.application_id, options.patience)?;
    let connection = Committer::new(family, connection)?;
    let record = Record::take(family)?;
    if record.generation().main != checked {
        return Err(Error::refused(Reason::Changed, family.main(), "another file took its place"));
    }
    // What was read so far may have been read by an index that somebody cut off. From here on the record would tell.
    record.check()?;
    connection.execute_batch("PRAGMA shrink_memory")?;
    if let Some(schema) = &options.schema
        && !schema.current(&connection)?
    {
        migrate(&record, &connection, schema.as_ref())?;
        // What a process remembers of a log that was destroyed can only be run where the tables are. If somebody reads now, the
        // next checkpoint does it.
        let _ = flush::copy_beside_readers(&connection);
    }
    if prepared.fresh || !prepared.inspected.created_before() {
        side::mark_created(&prepared.inspected)?;
    }
    Ok(Opened { connection, record, member })
}

fn migrate(record: &Record, connection: &Connection, schema: &dyn Schema) -> Result<()> {
    let turnstile = Turnstile::open(&record.family().side_directory())?;
    let _turn = turnstile.enter()?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    // Another process may have done it while this one waited. SQLite notices a schema that has changed when it runs a
    // statement, and not when it is only asked what it knows.
    let noticed = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
    let done = match noticed.map_err(Error::from).and_then(|()| schema.current(connection)) {
        Ok(true) => Ok(()),
        Ok(false) => schema.migrate(connection).map_err(Error::from),
        Err(e) => Err(e),
    };
    match done.and_then(|()| record.check()).and_then(|()| Ok(connection.execute_batch("COMMIT")?)) {
        Ok(()) => Ok(()),
        Err(e) => {
            if !connection.is_autocommit() {
                connection.execute_batch("ROLLBACK")?;
            }
            Err(e)
        }
    }
}

/// Takes over what captures hold that were not merged yet. To be called with the exclusive side of the recovery lock.
pub(crate) fn merge(record: &Record, options: &Options, connection: &Committer) -> Result<()> {
    let Some(schema) = &options.schema else { return Ok(()) };
    let family = record.family();
    if !captures::pending(family) {
        return Ok(());
    }
    let turnstile = Turnstile::open(&family.side_directory())?;
    let _turn = turnstile.enter()?;
    let unmerged = captures::unmerged(family);
    let known_into: Vec<_> = unmerged.iter().filter(|p| p.join(captures::INTO).exists()).cloned().collect();
    let merged = captures::merge(family, connection, &|live, image| {
        let rows = schema.merge(live, image)?;
        record.check().map_err(Failure::abort)?;
        Ok(rows)
    });
    match merged {
        Ok(rows) => {
            options.tell(&Event::Merged { rows });
            // One whose rows are in a log that is not copied yet was told of before.
            let told = |c: &capture::Capture| !unmerged.contains(&c.place) || known_into.contains(&c.place);
            for capture in capture::list(family).unwrap_or_default().into_iter().filter(|c| !told(c)) {
                let _ = incidents::merged(family, &options.role, &capture.manifest.generation, rows);
            }
        }
        // What was taken over may be in this generation alone, so the connection must stay open until it is captured: the
        // handle begins with it, sees the same at its first look, and captures it. The rest is merged after that.
        Err(_) if record.check().is_err() => {}
        Err(e) => return Err(e),
    }
    Ok(())
}
