//! What a disk keeps when the power fails.
//!
//! The content of a file is kept if it was written before a flush of that file began that has ended; so is its length. A
//! name is kept if its directory was flushed so. Whatever came later may be kept or not: of content any sectors, of names
//! either a beginning of all changes in their order (as a journal does) or a beginning of those of each directory. A name may
//! be kept before the content is: a file that was renamed into place without a flush is empty then.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use super::{Entry, Found, History, Image, New, Place, What};
use crate::seed::Seed;

/// What the disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;

/// What the disk says was flushed, and was not.
#[derive(Debug, Clone, PartialEq)]
pub enum Lie {
    /// Nothing: it is honest.
    None,
    /// Files whose names end so.
    Files(&'static str),
    /// Directories.
    Directories,
}

/// How an image was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Everything that was flushed, and nothing else.
    Durable,
    /// Everything that was done.
    Live,
    /// All names, and of content what was flushed.
    NamesFirst,
    /// Of names what was flushed, and all content.
    ContentFirst,
    /// Anything in between.
    Mixed,
}

/// The power has failed.
#[derive(Debug)]
pub struct Cut<'a> {
    /// How many notes came before.
    pub point: usize,
    /// The lines that were answered before, each with who did.
    pub answers: &'a [(u32, String)],
    /// What the mapped file held before, from the oldest to the newest.
    pub indexes: &'a [&'a [u8]],
    /// What may be left.
    pub images: Vec<(Kind, Image)>,
    /// Where mapped files are now. They are on no image, whatever their names have become.
    pub(super) mapped: Vec<PathBuf>,
}

#[derive(Debug, Default)]
struct File {
    durable: Vec<u8>,
    pending: Vec<usize>,
    name: String,
    /// Made as an `-shm`.
    mapped: bool,
}

type Names = BTreeMap<String, usize>;

#[derive(Debug, Default)]
struct Directory {
    durable: Names,
    live: Names,
}

/// A name that was given or, with `None`, taken away.
type Edit = (usize, String, Option<usize>);

/// A change of names that is made as a whole.
#[derive(Debug)]
struct Change {
    begin: usize,
    edits: Vec<Edit>,
}

/// Each thing has a number of its own, for an inode's number is given to another when it is gone.
#[derive(Debug, Default)]
struct State {
    files: HashMap<usize, File>,
    directories: HashMap<usize, Directory>,
    others: Vec<usize>,
    by_inode: HashMap<u64, usize>,
    next: usize,
    changes: Vec<Change>,
    /// What a journal that keeps the order has written for sure.
    journal: usize,
}

impl State {
    fn add(&mut self, inode: u64) -> usize {
        self.next += 1;
        self.by_inode.insert(inode, self.next);
        self.next
    }

    fn begin(&mut self, found: &Found) -> usize {
        match found {
            Found::File(inode, content) => {
                let n = self.add(*inode);
                self.files.insert(n, File { durable: content.clone(), ..File::default() });
                n
            }
            Found::Directory(inode, names) => {
                let n = self.add(*inode);
                let names: Names = names.iter().map(|(name, found)| (name.clone(), self.begin(found))).collect();
                for (name, n) in &names {
                    if let Some(file) = self.files.get_mut(n) {
                        file.name.clone_from(name);
                        file.mapped = Image::is_left_out(Path::new(name));
                    }
                }
                self.directories.insert(n, Directory { durable: names.clone(), live: names });
                n
            }
        }
    }

    fn directory(&self, place: &Place) -> usize {
        *self.by_inode.get(&place.0).unwrap_or_else(|| panic!("an unknown directory with {}", place.1))
    }

    fn at(&self, place: &Place) -> Option<usize> {
        self.directories.get(&self.directory(place)).and_then(|d| d.live.get(&place.1)).copied()
    }

    fn change(&mut self, begin: usize, edits: Vec<Edit>) {
        for (directory, name, object) in &edits {
            let directory = self.directories.get_mut(directory).expect("a directory");
            match object {
                Some(object) => {
                    directory.live.insert(name.clone(), *object);
                    if let Some(file) = self.files.get_mut(object) {
                        file.name.clone_from(name);
                    }
                }
                None => {
                    directory.live.remove(name);
                }
            }
        }
        self.changes.push(Change { begin, edits });
    }

    /// A directory was flushed: what was done in it before is kept.
    fn flushed(&mut self, directory: usize, begun: usize) {
        let durable = &mut self.directories.get_mut(&directory).expect("a directory").durable;
        for change in self.changes.iter_mut().filter(|c| c.begin < begun) {
            for edit in change.edits.extract_if(.., |e| e.0 == directory) {
                apply(durable, &edit);
            }
        }
        self.changes.retain(|c| !c.edits.is_empty());
        self.journal = self.journal.max(begun);
    }
}

fn apply(names: &mut Names, (_, name, object): &Edit) {
    match object {
        Some(object) => names.insert(name.clone(), *object),
        None => names.remove(name),
    };
}

pub(super) fn cut(history: &History, points: &[usize], lie: &Lie, seed: &mut Seed, mut look: impl FnMut(&Cut<'_>)) {
    let mut state = State::default();
    let root = state.begin(&history.first);
    let mut answers = Vec::new();
    let mut indexes: Vec<&[u8]> = Vec::new();
    let mut points = points.iter().peekable();
    for n in 0..=history.list.len() {
        while points.next_if(|p| **p == n).is_some() {
            let images = images(history, &state, root, seed);
            let mut mapped = Vec::new();
            walk(&state, root, &|n| state.directories[&n].live.clone(), &mut |path, object| {
                if state.files.get(&object).is_some_and(|f| f.mapped) {
                    mapped.push(path.to_path_buf());
                }
            });
            look(&Cut { point: n, answers: &answers, indexes: &indexes, images, mapped });
        }
        let Some(note) = history.list.get(n) else { break };
        match &note.what {
            What::Written { object, .. } | What::Cut { object, .. } => {
                // What has no name in the directory (a file that was removed, or that never had one) is on no image.
                if let Some(file) = state.by_inode.get(object).and_then(|n| state.files.get_mut(n)) {
                    file.pending.push(n);
                }
            }
            What::Flushed { object, begun } => flushed(history, &mut state, *object, *begun, lie),
            What::Answered { who, data } => {
                let text = String::from_utf8_lossy(&history.bytes[data.clone()]);
                answers.extend(text.lines().map(|line| (*who, line.to_owned())));
            }
            What::Set { object, new, place } => {
                let known = match new {
                    New::No => *state.by_inode.get(object).unwrap_or_else(|| panic!("{} is unknown", place.1)),
                    _ => state.add(*object),
                };
                match new {
                    New::No => {}
                    New::File => {
                        let mapped = Image::is_left_out(Path::new(&place.1));
                        state.files.insert(known, File { mapped, ..File::default() });
                    }
                    New::Directory => drop(state.directories.insert(known, Directory::default())),
                    New::Other => state.others.push(known),
                }
                let edit = (state.directory(place), place.1.clone(), Some(known));
                state.change(note.begin, vec![edit]);
            }
            What::Removed { place } => {
                let edit = (state.directory(place), place.1.clone(), None);
                state.change(note.begin, vec![edit]);
            }
            What::Moved { from, to } => {
                let moved = state.at(from).unwrap_or_else(|| panic!("{} came from elsewhere", to.1));
                let edits = vec![
                    (state.directory(from), from.1.clone(), None),
                    (state.directory(to), to.1.clone(), Some(moved)),
                ];
                state.change(note.begin, edits);
            }
            What::Exchanged { one, other } => {
                let (first, second) = (state.at(one), state.at(other));
                let edits = vec![
                    (state.directory(one), one.1.clone(), second),
                    (state.directory(other), other.1.clone(), first),
                ];
                state.change(note.begin, edits);
            }
            What::Mapped { object } => {
                let file = state.by_inode.get(object).and_then(|n| state.files.get(n));
                // What has no name here never comes back.
                if let Some(file) = file.filter(|f| !f.mapped) {
                    panic!("{} is mapped, so writes to it cannot be seen", file.name);
                }
            }
            What::Index { data } => indexes.push(&history.bytes[data.clone()]),
        }
    }
}

fn flushed(history: &History, state: &mut State, object: u64, begun: usize, lie: &Lie) {
    let Some(n) = state.by_inode.get(&object).copied() else { return };
    if state.directories.contains_key(&n) {
        if *lie != Lie::Directories {
            state.flushed(n, begun);
        }
        return;
    }
    let Some(file) = state.files.get_mut(&n) else { return };
    if matches!(lie, Lie::Files(end) if file.name.ends_with(end)) {
        return;
    }
    let (flushed, rest) = std::mem::take(&mut file.pending).into_iter().partition(|p| history.list[*p].begin < begun);
    file.pending = rest;
    let flushed: Vec<usize> = flushed;
    for p in flushed {
        bring(history, p, &mut file.durable, || true);
    }
}

fn images(history: &History, state: &State, root: usize, seed: &mut Seed) -> Vec<(Kind, Image)> {
    let live = |n: usize| state.directories[&n].live.clone();
    let durable = |n: usize| state.directories[&n].durable.clone();
    let all = |file: &File| {
        let mut content = file.durable.clone();
        file.pending.iter().for_each(|p| bring(history, *p, &mut content, || true));
        content
    };
    let flushed = |file: &File| file.durable.clone();
    let mut images = vec![
        (Kind::Durable, gather(state, root, &durable, &mut { flushed })),
        (Kind::Live, gather(state, root, &live, &mut { all })),
        (Kind::NamesFirst, gather(state, root, &live, &mut { flushed })),
        (Kind::ContentFirst, gather(state, root, &durable, &mut { all })),
    ];
    // From nothing of what was not flushed to all of it; and often only of what was written last.
    let most = seed.below(9);
    let names = some_names(state, seed);
    let mut some = |file: &File| {
        let mut content = file.durable.clone();
        let pending = &file.pending;
        let first = if seed.one_in(2) { seed.below(1 + pending.len() as u64) as usize } else { 0 };
        for p in &pending[first..] {
            bring(history, *p, &mut content, || seed.below(8) < most);
        }
        content
    };
    images.push((Kind::Mixed, gather(state, root, &|n| names[&n].clone(), &mut some)));
    images
}

/// Names of which some changes are kept that were not flushed.
fn some_names(state: &State, seed: &mut Seed) -> HashMap<usize, Names> {
    let mut names: HashMap<usize, Names> =
        state.directories.iter().map(|(n, directory)| (*n, directory.durable.clone())).collect();
    if seed.one_in(2) {
        let sure = state.changes.iter().take_while(|c| c.begin < state.journal).count();
        let kept = sure + seed.below(1 + (state.changes.len() - sure) as u64) as usize;
        for edit in state.changes[..kept].iter().flat_map(|c| &c.edits) {
            apply(names.get_mut(&edit.0).expect("a directory"), edit);
        }
        return names;
    }
    let mut until: HashMap<usize, usize> = HashMap::new();
    let mut directories: Vec<_> = names.keys().copied().collect();
    directories.sort_unstable();
    for directory in directories {
        until.insert(directory, seed.below(1 + state.changes.len() as u64) as usize);
    }
    for (n, change) in state.changes.iter().enumerate() {
        // What changes two names of one directory is made whole; each edit of it has the same limit.
        for edit in change.edits.iter().filter(|e| n < until[&e.0]) {
            apply(names.get_mut(&edit.0).expect("a directory"), edit);
        }
    }
    names
}

/// Shows every name from the root on, a directory before what is in it.
fn walk(state: &State, root: usize, names: &dyn Fn(usize) -> Names, show: &mut dyn FnMut(&Path, usize)) {
    let mut open = vec![(root, PathBuf::new())];
    while let Some((directory, below)) = open.pop() {
        for (name, object) in names(directory) {
            let path = below.join(name);
            show(&path, object);
            if state.directories.contains_key(&object) {
                open.push((object, path));
            }
        }
    }
}

fn gather(
    state: &State,
    root: usize,
    names: &dyn Fn(usize) -> Names,
    content: &mut dyn FnMut(&File) -> Vec<u8>,
) -> Image {
    let mut image = Image::default();
    walk(state, root, names, &mut |path, object| {
        if state.directories.contains_key(&object) {
            image.names.insert(path.to_path_buf(), Entry::Directory);
        } else if let Some(file) = state.files.get(&object).filter(|f| !f.mapped) {
            image.names.insert(path.to_path_buf(), Entry::File(content(file)));
        }
    });
    image
}

/// Brings a change into a file, each of its sectors if `kept` says so.
fn bring(history: &History, note: usize, content: &mut Vec<u8>, mut kept: impl FnMut() -> bool) {
    match &history.list[note].what {
        What::Written { offset, data, .. } => {
            let bytes = &history.bytes[data.clone()];
            let mut done = 0;
            while done < bytes.len() {
                let at = offset + done;
                let size = (SECTOR - at % SECTOR).min(bytes.len() - done);
                if kept() {
                    if content.len() < at + size {
                        content.resize(at + size, 0);
                    }
                    content[at..at + size].copy_from_slice(&bytes[done..done + size]);
                }
                done += size;
            }
        }
        What::Cut { length, .. } if kept() => content.resize(*length, 0),
        _ => {}
    }
}
