//! Opens what a power cut left in every way that matters, and says what is missing.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::{Cut, History, Image, Lie};
use crate::seed::Seed;

/// How an image is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Way {
    /// By the product, not by SQLite alone.
    pub ours: bool,
    /// With an anchor that was started first.
    pub anchored: bool,
    /// What lies beside it as `-shm`.
    pub index: Index,
}

/// What lies beside an image as `-shm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Index {
    /// Nothing.
    None,
    /// One that was there at any time before.
    Old,
    /// The last one that was there.
    Newest,
}

impl Way {
    const fn new(ours: bool, anchored: bool, index: Index) -> Way {
        Way { ours, anchored, index }
    }

    /// SQLite alone, with nothing beside it: what every disk that loses something shows.
    pub const PLAIN: Way = Way::new(false, false, Index::None);

    /// Those that a test looks at.
    pub const ALL: [Way; 8] = [
        Way::PLAIN,
        Way::new(true, false, Index::None),
        Way::new(false, false, Index::Old),
        Way::new(true, false, Index::Old),
        Way::new(false, false, Index::Newest),
        Way::new(false, true, Index::Old),
        Way::new(false, true, Index::Newest),
        Way::new(true, true, Index::Newest),
    ];
}

/// What is wrong with what was found, in a sentence.
pub type Wrong = dyn Fn(&BTreeSet<String>) -> Option<String>;
/// What was promised by these answers.
pub type Promises<'a> = dyn Fn(&[(u32, String)]) -> Option<Promise> + 'a;
/// Opens the image of which this is the main file, and says what is in it.
pub type Opens<'a> = dyn FnMut(&Path, Way) -> Result<BTreeSet<String>, String> + 'a;

/// What must be so at a point.
pub struct Promise {
    /// All of these are found.
    pub kept: Vec<String>,
    /// What else is wrong with what was found, in a sentence.
    pub wrong: Box<Wrong>,
}

impl Promise {
    /// All of these are found, and more may be.
    pub fn of(kept: Vec<String>) -> Promise {
        Promise { kept, wrong: Box::new(|_| None) }
    }
}

/// What was found wrong.
#[derive(Debug)]
pub struct Losses {
    /// A sentence each, beginning with the point.
    pub list: Vec<String>,
    /// How many images were opened, each way counted.
    pub opened: usize,
    first: usize,
}

impl Losses {
    /// Panics with what happened before the first loss, if there is one.
    pub fn assert_none(&self, history: &History) {
        let Some(_) = self.list.first() else { return };
        let shown = &self.list[..self.list.len().min(20)];
        panic!("{} losses: {shown:#?}\nbefore the first:\n{}", self.list.len(), history.tell(60, self.first));
    }

    /// Panics if no row was missed: the same judgement must find a loss where there is one.
    pub fn assert_some(&self, lie: &Lie) {
        assert!(
            self.list.iter().any(|l| l.contains("missing")),
            "nothing lost on a disk with {lie:?}: {:#?}",
            self.list
        );
    }
}

/// What is judged, and how.
pub struct Judge<'a> {
    /// The path of the main file below the watched directory.
    pub main: &'a str,
    /// Whether opening without us also looks at what lies in other directories.
    pub beside: bool,
    /// In which ways.
    pub ways: &'a [Way],
    /// What was promised by these answers. `None` if not even a database was.
    pub promise: &'a Promises<'a>,
    /// Opens the image of which this is the main file, and says what is in it. An error is a loss.
    pub open: &'a mut Opens<'a>,
}

impl Judge<'_> {
    /// Lets the power fail at all points on a disk that lies as `lie` says. Images that are equal are opened once a way.
    pub fn losses(&mut self, history: &History, lie: &Lie, seed: &Seed) -> Losses {
        let mut known: HashMap<(u64, Way), Result<BTreeSet<String>, String>> = HashMap::new();
        let mut losses = Losses { list: Vec::new(), opened: 0, first: 0 };
        let (mut seed, mut ages) = (seed.clone(), seed.clone());
        // In memory if there is room for it: flushes of what is thrown away again cost nothing there.
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory for images");
        history.cut(&history.points(), lie, &mut seed, |cut| {
            let Some(promise) = (self.promise)(cut.answers) else { return };
            for (kind, image) in &cut.images {
                // Before the first commit there may be no database yet.
                if image.file(self.main).is_none_or(<[u8]>::is_empty) && promise.kept.is_empty() {
                    continue;
                }
                // SQLite alone does not look at what is kept beside the database, so many images are equal to it.
                let mut family = image.clone();
                family.names.retain(|path, _| path.parent() == Path::new(self.main).parent());
                let numbers = [family.number(), image.number()];
                let old = ages.below(cut.indexes.len().max(1) as u64) as usize;
                for way in self.ways.iter().copied() {
                    let found =
                        known.entry((numbers[usize::from(way.ours || self.beside)], way)).or_insert_with(|| {
                            losses.opened += 1;
                            self.found(place.path(), image, way, cut, old)
                        });
                    let mut wrong = String::new();
                    match found {
                        Err(e) => wrong.clone_from(e),
                        Ok(found) => {
                            let missing = promise.kept.iter().filter(|key| !found.contains(key.as_str())).count();
                            if missing > 0 {
                                let _ = write!(wrong, "{missing} of {} rows are missing; ", promise.kept.len());
                            }
                            wrong.push_str(&(promise.wrong)(found).unwrap_or_default());
                        }
                    }
                    if !wrong.is_empty() {
                        losses.first = if losses.list.is_empty() { cut.point } else { losses.first };
                        losses.list.push(format!("at {}, {kind:?}, {way:?}: {wrong}", cut.point));
                    }
                }
            }
        });
        losses
    }

    fn found(
        &mut self,
        around: &Path,
        image: &Image,
        way: Way,
        cut: &Cut<'_>,
        old: usize,
    ) -> Result<BTreeSet<String>, String> {
        let root = around.join("image");
        image.write(&root);
        let main = root.join(self.main);
        let index = match way.index {
            Index::None => None,
            Index::Old => cut.indexes.get(old),
            Index::Newest => cut.indexes.last(),
        };
        if let Some(index) = index {
            let mut path = OsString::from(&main);
            path.push("-shm");
            // Where the directory is gone there is no database either.
            let _ = fs::write(path, index);
        }
        let found = (self.open)(&main, way);
        fs::remove_dir_all(&root).expect("remove an image");
        found
    }
}
