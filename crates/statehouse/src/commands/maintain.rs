//! `statehouse checkpoint | vacuum | optimize | journal-mode [PATH]`: what is done to a whole database, admitted first.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use statehouse_ops::maintenance::checkpoint::{self, Checkpointed, Mode};
use statehouse_ops::maintenance::journal_mode::{self, Changed};
use statehouse_ops::maintenance::optimize::{self, Optimized};
use statehouse_ops::maintenance::vacuum::{self, How, Vacuumed, Worth};
use statehouse_ops::maintenance::{Error, Forecast, Look, Plan, Step, Temporary, Wanted, forecast, look};
use statehouse_ops::who;
use statehouse_sqlite::Family;
use statehouse_sqlite::headers::Journal;
use statehouse_sqlite::words;

use super::Context;
use super::progress::{Bar, Following};
use crate::args::{Checkpoint, JournalMode, JournalModeName, Optimize, Structural, Vacuum};
use crate::exit;
use crate::failure::{Failure, Result};
use crate::home::Place;
use crate::store;
use crate::text::{bytes, escape_line};

pub(crate) fn checkpoint(context: &Context, args: &Checkpoint) -> Result {
    let work = Work::new(context, "checkpoint", args.target.path.as_deref(), &args.structural)?;
    let mode = if args.truncate { Mode::Truncate } else { Mode::Passive };
    if args.structural.dry_run {
        let (seen, forecast) = work.look()?;
        return work.dry(checkpoint::plan(&seen, mode, forecast)?);
    }
    let done = match mode {
        Mode::Passive => checkpoint::passive(&work.path, context.patience)?,
        Mode::Truncate => work.with(|wanted| checkpoint::run(&work.path, wanted, &|step| work.shown.step(step)))?,
    };
    work.answer(&done, checkpointed);
    Ok(exit::OK)
}

pub(crate) fn vacuum(context: &Context, args: &Vacuum) -> Result {
    let work = Work::new(context, "vacuum", args.target.path.as_deref(), &args.structural)?;
    let worth = if args.anyway { Worth::ANYWAY } else { Worth::ASKED };
    let temporary = temporary();
    if args.structural.dry_run {
        let (seen, forecast) = work.look()?;
        return work.dry(vacuum::plan(&seen, worth, &temporary, forecast));
    }
    let how = How { worth, temporary: &temporary, watch: &|step| work.shown.step(step) };
    let done = work.with(|wanted| vacuum::run(&work.path, wanted, &how))?;
    work.answer(&done, vacuumed);
    Ok(exit::OK)
}

pub(crate) fn optimize(context: &Context, args: &Optimize) -> Result {
    let work = Work::new(context, "optimize", args.target.path.as_deref(), &args.structural)?;
    if args.structural.dry_run {
        let (seen, forecast) = work.look()?;
        return work.dry(optimize::plan(&seen, forecast));
    }
    let done = work.with(|wanted| optimize::run(&work.path, wanted, &|step| work.shown.step(step)))?;
    work.answer(&done, optimized);
    Ok(exit::OK)
}

pub(crate) fn journal_mode(context: &Context, args: &JournalMode) -> Result {
    let work = Work::new(context, "journal-mode", args.target.path.as_deref(), &args.structural)?;
    let to = match args.mode {
        JournalModeName::Wal => Journal::Wal,
        JournalModeName::Delete => Journal::Rollback,
    };
    if args.structural.dry_run {
        let (seen, forecast) = work.look()?;
        return work.dry(journal_mode::plan(&seen, to, forecast));
    }
    let done = work.with(|wanted| journal_mode::run(&work.path, to, wanted, &|step| work.shown.step(step)))?;
    if done.changed {
        tracing::info!("{}: the journal mode was {} and is {}", escape_line(&done.path), done.before, done.on_disk);
    }
    work.answer(&done, changed);
    Ok(exit::OK)
}

/// Where SQLite would put temporary files (<https://www.sqlite.org/tempfiles.html#temporary_file_storage_locations>).
pub(crate) fn temporary() -> Temporary {
    let named = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let usual = ["/var/tmp", "/usr/tmp", "/tmp"].map(PathBuf::from);
    Temporary { chosen: named("SQLITE_TMPDIR"), others: named("TMPDIR").into_iter().chain(usual).collect() }
}

/// One piece of work, as it was asked for.
struct Work<'a> {
    context: &'a Context,
    what: &'static str,
    path: PathBuf,
    structural: &'a Structural,
    shown: Shown,
}

impl<'a> Work<'a> {
    fn new(
        context: &'a Context,
        what: &'static str,
        path: Option<&Path>,
        structural: &'a Structural,
    ) -> Result<Work<'a>> {
        let path = Place::of(path, &context.home).database;
        store::must_exist(&path)?;
        let shown = Shown::new(Family::of(&path)?);
        Ok(Work { context, what, path, structural, shown })
    }

    fn look(&self) -> Result<(Look, Forecast)> {
        let seen = look(&self.path)?;
        let forecast = forecast(seen.family())?;
        Ok((seen, forecast))
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&Wanted<'_>) -> statehouse_ops::maintenance::Result<T>,
    ) -> statehouse_ops::maintenance::Result<T> {
        let tell = |text: &str| self.shown.say(text);
        let begun = Instant::now();
        let done = work(&Wanted {
            what: self.what,
            drain: self.structural.drain,
            force: self.structural.force,
            patience: self.context.patience,
            tell: &tell,
        });
        done.map_err(|e| match e {
            Error::Database(e) => who::named(e, &self.shown.family, begun).into(),
            e => e,
        })
    }

    fn answer<T: Serialize>(&self, done: &T, text: impl FnOnce(&T) -> String) {
        self.shown.clear();
        self.context.output.answer(done, text);
    }

    fn dry<T: Serialize>(&self, mut plan: Plan<T>) -> Result {
        let refused = plan.refused.take().map(Failure::from);
        super::dry::answer(self.context, plan, refused, |plan| format!("would {}\n", escape_line(&plan.would)))
    }
}

/// Tells the steps of maintenance, and follows a rewrite by what was written to its files.
struct Shown {
    bar: Bar,
    family: Family,
    following: RefCell<Option<Following>>,
}

impl Shown {
    fn new(family: Family) -> Shown {
        Shown { bar: Bar::new(), family, following: RefCell::default() }
    }

    fn say(&self, text: &str) {
        self.bar.say(text);
    }

    fn step(&self, step: Step) {
        self.following.borrow_mut().take();
        let (text, length) = match step {
            Step::Copying => ("copying the log", None),
            Step::Checking => ("checking the structure", None),
            Step::Counting => ("counting rows", None),
            Step::Merging => ("merging a search index", None),
            Step::Rewriting { bytes } => ("rewriting", Some(bytes)),
        };
        self.bar.begins(text, length);
        if length.is_some() {
            let family = self.family.clone();
            *self.following.borrow_mut() = self.bar.follow(move || vacuum::written(&family));
        }
    }

    fn clear(&self) {
        self.following.borrow_mut().take();
        self.bar.clear();
    }
}

fn checkpointed(c: &Checkpointed) -> String {
    let mut out = match (&c.reason, c.done) {
        (Some(reason), false) if c.log == 0 => format!("nothing to do: {}\n", escape_line(reason)),
        (_, true) if c.log == 0 => "the log is empty: everything is in the main file\n".to_owned(),
        _ => format!(
            "{} of {} of the log {} in the main file; the log has {}\n",
            c.checkpointed,
            words::count(c.log, "frame"),
            words::verb(c.checkpointed, "is", "are"),
            bytes(c.wal_size_after)
        ),
    };
    if !c.done && c.log > 0 {
        out.push_str(&format!("{}\n", escape_line(c.reason.as_deref().unwrap_or_default())));
    }
    for pin in &c.pinned_by {
        let who = pin.pid.map_or_else(|| "a process that cannot be seen".to_owned(), |p| format!("PID {p}"));
        out.push_str(&escape_line(&format!("{who} lets frame {} be the last; to stop it: {}", pin.up_to, pin.stop)));
        out.push('\n');
    }
    out + &overridden(&c.overridden)
}

fn vacuumed(v: &Vacuumed) -> String {
    let head = match &v.reason {
        Some(reason) => format!("nothing was done, it is not worth it: {}\n", escape_line(reason)),
        None => format!(
            "rewritten in {:.1} s: {} before, {} now\n",
            v.ms / 1000.0,
            bytes(v.size_before),
            bytes(v.size_after)
        ),
    };
    let log = match v.done && !v.log_emptied {
        true => {
            "the log is as long as that, because a reader needs it; the next `statehouse checkpoint --truncate` empties it\n"
        }
        false => "",
    };
    head + log + &overridden(&v.overridden)
}

fn optimized(o: &Optimized) -> String {
    let mut out = format!("done in {:.1} s\n", o.ms / 1000.0);
    for index in &o.search_indexes {
        out.push_str(&match &index.reason {
            None => format!("search index {}: merged\n", escape_line(&index.name)),
            Some(why) => format!("search index {}: left alone, {}\n", escape_line(&index.name), escape_line(why)),
        });
    }
    out + &overridden(&o.overridden)
}

fn changed(c: &Changed) -> String {
    let head = match c.changed {
        true => format!("the journal mode was {} and is {} on the disk\n", c.before, c.on_disk),
        false => format!("the journal mode is {} already\n", c.on_disk),
    };
    head + &overridden(&c.overridden)
}

fn overridden(what: &[String]) -> String {
    what.iter().map(|w| format!("done in spite of {}\n", escape_line(w))).collect()
}
