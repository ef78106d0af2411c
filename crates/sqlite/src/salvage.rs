//! The rows of a log, in a fresh file, where the log and its main file make no database together any more.
//!
//! A generation that was cut off goes on writing into its log, while another one copies its own pages into the main file. Then
//! the log over the main file is no tree: pages above point at pages of the other generation. But each page that the log
//! wrote is whole, and says which rows it had at the log's last commit. Those rows are taken out page by page, put into tables
//! that are made as they were, and compared with the live database by whoever asked.
//!
//! Which table a page belongs to is in `place`. A row that may belong elsewhere, or whose overflow pages may have been
//! written by somebody else meanwhile, goes into `lost_and_found`: nothing is left out, and nothing is put where it is not
//! known to belong.

mod place;
mod proof;
mod readable;
mod survey;
mod tables;
mod write;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::header::MainHeader;
use crate::pages::{
    Chain, Claims, Encoding, FilePages, LogPages, Object, Page, PageSource, Payload, Record, gather, schema,
};
use crate::wal::{Contents, ReadAt, Upto};
use place::{Placer, Tree};
use proof::Proof;
pub use readable::{Other, Readable, readable};
use survey::{Allowance, Survey, chain};
use write::{Output, Place};

/// What was taken out of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// Frames of the log up to its last commit.
    pub frames: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Rows of each table that was made, by its name; zero for one that the log did not write to.
    pub tables: BTreeMap<String, u64>,
    /// The page at which each of them began in the database that the log is of.
    pub roots: BTreeMap<String, u32>,
    /// Rows that are in `lost_and_found`.
    pub unplaced: u64,
    /// The name of the table that has them, if there are any.
    pub lost_and_found: Option<String>,
    /// Tables that this SQLite could not make; their rows are in `lost_and_found`.
    pub unmade: Vec<String>,
    /// Pages of indexes, of search tables and of SQLite's own tables, which follow from others and are not taken over.
    pub derived: u64,
    /// Pages that begin like a page of a table and cannot be read.
    pub unreadable: Vec<u32>,
    /// Rows on readable pages that could not be read, for they go on where nothing fitting is.
    pub broken: u64,
}

/// Why nothing could be taken out.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Writing the new file failed.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// The log holds no complete transaction.
    #[error("the log holds no complete transaction")]
    Empty,
    /// There is a file already.
    #[error("the file to write is there already")]
    Exists,
}

/// Takes every row that lies on a page which the log wrote, as of its last commit, and writes them to a new SQLite file at `output`.
/// What of that file is there after an error is worth nothing, and the caller removes it.
///
/// # Errors
/// [`SalvageError`].
pub fn from_log(main: &dyn ReadAt, wal: &dyn ReadAt, output: &Path) -> Result<Salvaged, SalvageError> {
    from_log_as(main, wal, None, output)
}

/// As [`from_log`], with the names of tables and columns as `named` has them: the database as it was when the log was saved. The
/// main file may have been given other names since, and rows that are under two names would count twice.
///
/// # Errors
/// [`SalvageError`].
pub fn from_log_as(
    main: &dyn ReadAt,
    wal: &dyn ReadAt,
    named: Option<&dyn ReadAt>,
    output: &Path,
) -> Result<Salvaged, SalvageError> {
    let contents = Contents::read(wal, Upto::Last)?;
    let Some(log) = LogPages::of(main, wal, &contents)? else { return Err(SalvageError::Empty) };
    let behind = FilePages::of(main)?.filter(|pages| pages.layout().page_size == log.layout().page_size);
    let survey = Survey::of(&log, &contents)?;
    let mut connection = create(output, &log)?;
    let behind = behind.as_ref().map(|b| b as &dyn PageSource);
    let named = named.map(FilePages::of).transpose()?.flatten();
    let named = named.as_ref().map(|n| n as &dyn PageSource);
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let (trees, unmade) = trees(&mut connection, &log, behind, named)?;
    let (owners, overflow) = Placer::new(&log, behind, &survey, &trees).place()?;
    let tables: Vec<String> =
        trees.iter().filter(|t| !t.is_derived).filter_map(|t| t.table.as_ref()).map(|t| t.name.clone()).collect();
    let mut rows = Rows {
        contents: &contents,
        log: &log,
        proof: Proof::new(&contents, &log, behind),
        output: Output::new(&connection, log.layout().encoding, &tables),
        used: Claims::default(),
        named: &overflow,
        allowance: Allowance::for_pages_of(&log),
        broken: 0,
    };
    let mut derived = 0;
    for (page, tree) in &owners {
        let tree = &trees[*tree];
        if tree.is_derived {
            derived += 1;
        } else {
            rows.page(*page, Some(tree))?;
        }
    }
    // Last, so that what only looks like a page cannot take the overflow pages of one that is.
    for page in survey.found.keys().filter(|p| !owners.contains_key(p) && !overflow.contains_key(p)) {
        rows.page(*page, None)?;
    }
    let unreadable =
        survey.broken.iter().copied().filter(|p| !overflow.contains_key(p) && !rows.used.has(*p)).collect();
    let (output, broken) = (rows.output, rows.broken);
    let salvaged = Salvaged {
        frames: contents.frames,
        transactions: contents.transactions,
        unplaced: output.unplaced,
        lost_and_found: output.lost_and_found(),
        roots: roots(&trees),
        tables: output.rows,
        unmade,
        derived,
        unreadable,
        broken,
    };
    connection.execute_batch("COMMIT")?;
    Ok(salvaged)
}

/// Makes the new file, with what its header says of the old one.
fn create(output: &Path, log: &dyn PageSource) -> Result<Connection, SalvageError> {
    if output.symlink_metadata().is_ok() {
        return Err(SalvageError::Exists);
    }
    crate::locks::protect().map_err(|e| SalvageError::Io(io::Error::other(e)))?;
    drop(crate::files::open_private(output)?);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(output, flags)?;
    let encoding = match log.layout().encoding {
        Encoding::Utf8 => "UTF-8",
        Encoding::Utf16Le => "UTF-16le",
        Encoding::Utf16Be => "UTF-16be",
    };
    connection.execute_batch(&format!(
        "PRAGMA page_size={}; PRAGMA encoding='{encoding}'; PRAGMA journal_mode=MEMORY; PRAGMA foreign_keys=OFF;
         PRAGMA ignore_check_constraints=ON; PRAGMA trusted_schema=OFF",
        log.layout().page_size
    ))?;
    let mut first = Vec::new();
    if log.read(1, &mut first)?
        && let Some(header) = MainHeader::parse(&first)
    {
        connection.pragma_update(None, "user_version", header.user_version.cast_signed())?;
        connection.pragma_update(None, "application_id", header.application_id.cast_signed())?;
    }
    Ok(connection)
}

fn roots(trees: &[Tree]) -> BTreeMap<String, u32> {
    let plain = trees.iter().filter(|t| !t.is_derived);
    plain.filter_map(|t| Some((t.table.as_ref()?.name.clone(), t.root))).collect()
}

/// The trees of the database as the log sees it, with those that only the main file names behind them; and the tables that
/// could not be made. Their names are those of `named`, if that is given.
fn trees(
    output: &mut Connection,
    log: &dyn PageSource,
    main: Option<&dyn PageSource>,
    named: Option<&dyn PageSource>,
) -> Result<(Vec<Tree>, Vec<String>), SalvageError> {
    let mut objects = Vec::new();
    for source in named.into_iter().chain([log]) {
        let known: HashSet<u32> = objects.iter().map(|o: &Object| o.root).collect();
        objects.extend(schema(source)?.0.into_iter().filter(|o| known.is_empty() || !known.contains(&o.root)));
    }
    let behind = main.map(schema).transpose()?.map(|(objects, _)| objects).unwrap_or_default();
    let key = |o: &Object| (o.kind.clone(), o.name.to_ascii_lowercase());
    let roots: HashMap<_, u32> = behind.iter().map(|o| (key(o), o.root)).collect();
    // A table that was given another name is where it was.
    let behind_roots: HashSet<(String, u32)> = behind.iter().map(|o| (o.kind.clone(), o.root)).collect();
    let known: HashSet<_> = objects.iter().map(key).collect();
    let used: HashSet<u32> = objects.iter().map(|o| o.root).collect();
    objects.extend(behind.into_iter().filter(|o| !known.contains(&key(o)) && !used.contains(&o.root)));
    let mut unmade = Vec::new();
    let own = tables::shape("(type TEXT, name TEXT, tbl_name TEXT, rootpage INT, sql TEXT)");
    let mut trees = vec![Tree::derived(own, true, 1, Some(1))];
    for object in objects.iter().filter(|o| o.root != 0) {
        let same_root = || behind_roots.contains(&(object.kind.clone(), object.root)).then_some(object.root);
        let main_root = roots.get(&key(object)).copied().filter(|r| *r != 0).or_else(same_root);
        if object.kind == "table" {
            let has_rowids = root_is_table(log, object.root)?.unwrap_or(true);
            if tables::is_derived(object, &objects) {
                trees.push(Tree::derived(tables::shape(&object.sql), has_rowids, object.root, main_root));
                continue;
            }
            let made = match tables::make(output, object) {
                Err(e) if write::is_of_the_disk(&e) => return Err(e.into()),
                made => made.map_err(|_| has_rowids),
            };
            if made.is_err() {
                unmade.push(object.name.clone());
            }
            trees.push(Tree::of(made, object.root, main_root));
        } else if object.kind == "index" {
            let table = objects.iter().find(|o| o.kind == "table" && o.name.eq_ignore_ascii_case(&object.table));
            let of_rowids = table.map(|t| root_is_table(log, t.root)).transpose()?.flatten();
            trees.push(Tree::index(of_rowids == Some(true), object.root, main_root));
        }
    }
    Ok((trees, unmade))
}

fn root_is_table(source: &dyn PageSource, root: u32) -> io::Result<Option<bool>> {
    let mut bytes = Vec::new();
    let read = source.read(root, &mut bytes)?;
    Ok(Page::parse(&bytes, root, source.layout()).filter(|_| read).map(|p| p.kind.is_table()))
}

/// The rows on their way from the pages into the new file.
struct Rows<'a> {
    contents: &'a Contents,
    log: &'a dyn PageSource,
    proof: Proof<'a>,
    output: Output<'a>,
    /// Overflow pages of the log that belong to a row already.
    used: Claims,
    /// How many cells name a page as one on which they go on.
    named: &'a HashMap<u32, u32>,
    allowance: Allowance,
    broken: u64,
}

impl Rows<'_> {
    fn page(&mut self, number: u32, tree: Option<&Tree>) -> Result<(), SalvageError> {
        let (mut bytes, mut content) = (Vec::new(), Vec::new());
        self.log.read(number, &mut bytes)?;
        let Some(page) = Page::parse(&bytes, number, self.log.layout()) else { return Ok(()) };
        for n in 0..page.cells {
            let Some(cell) = page.cell(n) else { continue };
            let Some(payload) = cell.payload else { continue };
            let rowid = page.kind.is_table().then_some(cell.rowid);
            let place = Place { root: tree.map(|t| t.root), page: number, rowid };
            let borrowed = self.gather(&payload, tree, rowid, &mut content)?;
            let record = borrowed.and_then(|b| Some((b, Record::parse(&content)?)));
            let Some((borrowed, record)) = record else {
                self.used.give_back(self.log);
                self.broken += 1;
                continue;
            };
            match tree.and_then(|t| Some((t, t.table.as_ref()?))) {
                Some((tree, table)) if !borrowed || self.proof.holds(tree, rowid, &payload)? => {
                    self.output.put(table, place, &record)?;
                }
                _ => self.output.lose(place, &record)?,
            }
        }
        Ok(())
    }

    /// Puts a payload together. Answers true if a part comes from the main file and must be proved, `None` if it cannot be had.
    fn gather(
        &mut self,
        payload: &Payload<'_>,
        tree: Option<&Tree>,
        rowid: Option<i64>,
        content: &mut Vec<u8>,
    ) -> io::Result<Option<bool>> {
        if payload.overflow == 0 {
            content.clear();
            content.extend_from_slice(payload.local);
            return Ok(Some(false));
        }
        let ours = chain(self.log, payload, &mut self.allowance)?;
        // A ghost reads what the other generation copied into the main file, and so writes rows of that one among its own. Where both
        // have gone on over pages of the same numbers, the log has only the ghost's.
        if ours.iter().any(|page| self.named.get(page).is_some_and(|n| *n > 1))
            && let (Some(main), Some(tree)) = (self.proof.main, tree)
            && self.proof.has(tree, rowid, payload)?
            && gather(main, payload, content, &mut |_| self.allowance.take())? == Chain::Whole
        {
            return Ok(Some(false));
        }
        let borrowed = Cell::new(false);
        let is_of_main = |page: u32| {
            let of_main = !self.contents.pages.contains_key(&page);
            borrowed.set(borrowed.get() || of_main);
            of_main
        };
        let whole = self.used.gather(self.log, payload, content, &is_of_main)?;
        Ok((whole == Chain::Whole).then(|| borrowed.get()))
    }
}
