//! `statehouse restore ID|FILE [PATH]`: a good file in the place of a database.

use std::path::Path;
use std::time::Duration;

use statehouse_ops::maintenance::Wanted;
use statehouse_ops::restore::{self, Asked, Change, Compared, How, Next, Planned, Restored, Tables};

use super::Context;
use super::progress::Bar;
use crate::args::Restore;
use crate::exit;
use crate::failure::{Failure, Result};
use crate::home::Place;
use crate::store;
use crate::text::{bytes, escape_line, shell_word, table};

/// How long processes of ours are waited for that are asked to let go of the database, unless somebody says otherwise.
const DRAIN: Duration = Duration::from_secs(10);

pub(crate) fn run(context: &Context, args: &Restore) -> Result {
    let path = Place::of(args.target.path.as_deref(), &context.home).database;
    let bar = Bar::new();
    let say = |text: &str| bar.say(text);
    let told = |compared: &Compared| {
        if context.output.terminal() {
            bar.say(&format!("this is replaced:\n{}", rows(&compared.tables, &compared.schema)));
        }
    };
    let scratch = std::env::temp_dir();
    let asked = Asked {
        source: &args.source,
        path: &path,
        ours: args.target.path.is_none(),
        scratch: &scratch,
        wanted: Wanted {
            what: "restore",
            drain: Some(args.structural.drain.unwrap_or(DRAIN)),
            force: args.structural.force,
            patience: context.patience,
            tell: &say,
        },
        watch: &|progress| bar.told(progress),
        before: &told,
    };
    if let Some(to) = &args.to {
        return written(context, args, &asked, &bar, to);
    }
    store::must_exist(&path)?;
    if args.structural.dry_run {
        let planned = restore::plan(&asked);
        bar.clear();
        return dry(context, planned?);
    }
    let done = restore::run(&asked);
    bar.clear();
    context.output.answer(&done?, text);
    Ok(exit::OK)
}

fn written(context: &Context, args: &Restore, asked: &Asked<'_>, bar: &Bar, to: &Path) -> Result {
    if args.structural.dry_run {
        return Err(Failure::new(exit::USAGE, crate::failure::code::USAGE, "--to and --dry-run do not go together")
            .hint("Writing a new file changes nothing else: leave --dry-run out."));
    }
    let done = restore::to(asked, to);
    bar.clear();
    context.output.answer(&done?, text);
    Ok(exit::OK)
}

/// What would be done, and what stands against it now.
fn dry(context: &Context, mut planned: Planned) -> Result {
    let refused = planned.refused.take().map(Failure::from);
    super::dry::answer(context, planned, refused, |planned| {
        let mut out = format!("would {}\n{}", escape_line(&planned.would), rows(&planned.tables, &planned.schema));
        if let Some(room) = &planned.room {
            out.push_str(&format!(
                "it takes {} for what is replaced and {} for the new content; {} are free\n",
                bytes(room.before),
                bytes(room.new + room.grows),
                bytes(room.free)
            ));
        }
        out + &lines(&planned.notes) + &to_type(&planned.next)
    })
}

fn text(r: &Restored) -> String {
    let mut out = match r.how {
        How::To => format!("{} was written from the {} {}\n", escape_line(&r.path), r.kind, escape_line(&r.source)),
        _ => format!("{} was restored from the {} {}\n", escape_line(&r.path), r.kind, escape_line(&r.source)),
    };
    out.push_str(&rows(&r.tables, &r.schema));
    if let Some(before) = &r.before {
        let why = escape_line(before.reason.as_deref().unwrap_or_default());
        out.push_str(&match (&before.id, &before.path) {
            (Some(id), _) => format!(
                "the state before it is the snapshot {0}; to go back: statehouse restore {0} {1}\n",
                escape_line(id),
                shell_word(&r.path)
            ),
            (None, Some(path)) => format!(
                "there is no snapshot of the state before it, because {why}; its files are in {}\n",
                escape_line(path)
            ),
            (None, None) => format!("nothing was there that could be kept: {why}\n"),
        });
    }
    if !r.held_by.is_empty() {
        out.push_str(&format!("in use by {}\n", escape_line(&r.held_by.join("; "))));
    }
    out.push_str(&lines(&r.notes));
    out.push_str(&to_type(&r.next));
    out.push_str(&r.overridden.iter().map(|w| format!("done in spite of {}\n", escape_line(w))).collect::<String>());
    out.push_str("opened anew and compared with its source: the same\n");
    out
}

fn to_type(next: &[Next]) -> String {
    next.iter().map(|n| format!("{}\n  {}\n", escape_line(&n.why), escape_line(&n.command))).collect()
}

fn lines(notes: &[String]) -> String {
    notes.iter().map(|n| format!("note: {}\n", escape_line(n))).collect()
}

fn rows(tables: &Tables, schema: &[Change]) -> String {
    let number = |n: Option<i64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let row = |(name, t): (&String, &restore::Table)| {
        let numbers = [t.here, t.there, t.only_here, t.only_there, t.different].map(number);
        [vec![escape_line(name)], numbers.to_vec()].concat()
    };
    let rows: Vec<Vec<String>> = tables.iter().map(row).collect();
    let mut out = table(&["TABLE", "HERE", "SOURCE", "ONLY HERE", "ONLY SOURCE", "DIFFERENT"], &rows);
    out.extend(schema.iter().map(|c| format!("schema: {}\n", escape_line(&c.sentence()))));
    let unknown = tables.iter().filter_map(|(name, t)| Some((name, t.not_compared.as_ref()?)));
    out.extend(unknown.map(|(name, why)| format!("{} was not compared: {}\n", escape_line(name), escape_line(why))));
    out
}
