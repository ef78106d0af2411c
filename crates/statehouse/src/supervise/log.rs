//! A log file of bounded size: at [`LIMIT`] bytes it is put aside as `.1`, the one before that as `.2`, and what is older
//! goes. A full disk costs log lines and nothing else.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use statehouse_sqlite::files;

/// The size at which a log is put aside.
const LIMIT: u64 = 8 << 20;
const KEPT: u32 = 2;

/// A log file that is written by this process alone.
pub(crate) struct RotatingLog {
    path: PathBuf,
    limit: u64,
    open: Option<(File, u64)>,
}

impl RotatingLog {
    /// The log at `path`; it is opened when something is written.
    pub(crate) fn new(path: PathBuf) -> RotatingLog {
        RotatingLog { path, limit: LIMIT, open: None }
    }

    /// Appends `bytes`, or drops them if that cannot be done.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        if self.try_write(bytes).is_err() {
            self.open = None;
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.open.as_ref().is_some_and(|(_, size)| size + bytes.len() as u64 > self.limit) {
            self.open = None;
            self.put_aside()?;
        }
        let (file, size) = match &mut self.open {
            Some(open) => open,
            closed => {
                let mut file = files::open_private(&self.path)?;
                let size = file.seek(SeekFrom::End(0))?;
                closed.insert((file, size))
            }
        };
        file.write_all(bytes)?;
        *size += bytes.len() as u64;
        Ok(())
    }

    fn put_aside(&self) -> std::io::Result<()> {
        for n in (1..KEPT).rev() {
            match std::fs::rename(numbered(&self.path, n), numbered(&self.path, n + 1)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        std::fs::rename(&self.path, numbered(&self.path, 1))
    }
}

fn numbered(path: &Path, n: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{n}"));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn a_log_never_grows_past_its_limit_and_two_old_ones_are_kept() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("gateway.log");
        let mut log = RotatingLog { path: path.clone(), limit: 100, open: None };
        for i in 0..100u8 {
            log.write(&[b'0' + i % 10; 30]);
        }
        drop(log);
        let sizes: Vec<u64> = [path.clone(), numbered(&path, 1), numbered(&path, 2)]
            .iter()
            .map(|p| p.metadata().unwrap().len())
            .collect();
        assert!(sizes.iter().all(|s| (1..=100).contains(s)), "{sizes:?}");
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 3);
        // What was there before a restart is kept.
        let before = path.metadata().unwrap().len();
        RotatingLog { path: path.clone(), limit: 1000, open: None }.write(b"more");
        assert_eq!(path.metadata().unwrap().len(), before + 4);
    }
}
