//! What is left below the watched directory, apart from the disk it lies on.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Entry {
    /// A file with its content.
    File(Vec<u8>),
    /// A directory.
    Directory,
}

/// Names with what they lead to, relative to the watched directory; a directory comes before what is in it. Files that end
/// in `-shm` are left out, for they are mapped: nobody can know what a disk keeps of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Image {
    /// The names.
    pub names: BTreeMap<PathBuf, Entry>,
}

impl Image {
    /// What is really below `root`.
    pub fn of(root: &Path) -> Image {
        let mut image = Image::default();
        image.add(root, Path::new(""));
        image
    }

    fn add(&mut self, root: &Path, below: &Path) {
        for entry in fs::read_dir(root.join(below)).expect("the watched directory") {
            let entry = entry.expect("an entry");
            let path = below.join(entry.file_name());
            let kind = entry.file_type().expect("its kind");
            if kind.is_dir() {
                self.names.insert(path.clone(), Entry::Directory);
                self.add(root, &path);
            } else if kind.is_file() {
                self.names.insert(path.clone(), Entry::File(fs::read(root.join(&path)).expect("its content")));
            }
        }
    }

    /// Whether what is made with this name is never in an image.
    pub(crate) fn is_left_out(path: &Path) -> bool {
        path.as_os_str().as_encoded_bytes().ends_with(b"-shm")
    }

    /// Makes it so below `root`, a directory that does not exist yet.
    pub fn write(&self, root: &Path) {
        let mut private = fs::DirBuilder::new();
        private.mode(0o700);
        private.create(root).expect("a directory for the image");
        for (path, entry) in &self.names {
            let path = root.join(path);
            match entry {
                Entry::Directory => private.create(&path).expect("a directory of the image"),
                Entry::File(content) => {
                    let mut options = fs::OpenOptions::new();
                    let file = options.write(true).create_new(true).mode(0o600).open(&path);
                    std::io::Write::write_all(&mut file.expect("a file of the image"), content).expect("its content");
                }
            }
        }
    }

    /// The content of a file.
    pub fn file(&self, path: impl AsRef<Path>) -> Option<&[u8]> {
        match self.names.get(path.as_ref()) {
            Some(Entry::File(content)) => Some(content),
            _ => None,
        }
    }

    /// A number that is another for another image.
    pub fn number(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        self.hash(&mut hash);
        hash.finish()
    }

    /// The first difference, in words.
    pub(crate) fn difference(&self, real: &Image) -> Option<String> {
        for (path, entry) in &self.names {
            match (entry, real.names.get(path)) {
                (entry, Some(there)) if entry == there => {}
                (Entry::File(noted), Some(Entry::File(there))) => {
                    let at = noted.iter().zip(there).position(|(a, b)| a != b);
                    let lengths = format!("{} and {} bytes", noted.len(), there.len());
                    return Some(format!("{} differs ({lengths}, first at {at:?})", path.display()));
                }
                (_, there) => {
                    return Some(format!("{} is {}", path.display(), there.map_or("not there", |_| "another")));
                }
            }
        }
        let unknown = real.names.keys().find(|path| !self.names.contains_key(*path));
        unknown.map(|path| format!("{} came from nowhere", path.display()))
    }
}
