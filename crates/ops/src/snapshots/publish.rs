//! What becomes of a copy: it gets its name and its record, or it is put away.

use std::path::Path;

use statehouse_sqlite::Status;

use super::error::{Error, Result, io};
use super::record::{self, Snapshot};
use super::staged::Staged;
use super::work::Work;
use super::{keep, pack};
use crate::progress::Progress;

impl Work<'_> {
    /// Compresses the copy, proves by unpacking that all of it comes out again, and gives that its name.
    pub(super) fn publish_packed(&self, place: &Path, mut plain: Staged, snapshot: Snapshot) -> Result<Snapshot> {
        let mut packed = Staged::create(self.inspected, place, &format!("{}.zst", snapshot.id))?;
        let path = packed.path.clone();
        let io = |e: std::io::Error| io("write", &path, e);
        (self.watch)(Progress::Begins { what: "compressing", bytes: Some(snapshot.plain_bytes) });
        pack::compress(&mut plain.file, &mut packed.file, self.watch).map_err(io)?;
        packed.file.sync_all().map_err(io)?;
        (self.watch)(Progress::Begins { what: "unpacking it again", bytes: Some(snapshot.plain_bytes) });
        let unpacked = pack::decompress(&mut packed.file, &mut std::io::sink(), self.watch).map_err(io)?;
        let (bytes, hash) = pack::hash(&packed.file, &|_| {}).map_err(io)?;
        if (unpacked.0, Some(unpacked.1.to_hex().to_string())) != (snapshot.plain_bytes, snapshot.plain_blake3.clone())
        {
            let found = "what comes out of the compressed copy is not what went in".to_owned();
            return Err(Error::Unverified { database: self.family().main(), found, kept: None });
        }
        let snapshot = Snapshot { bytes, blake3: Some(hash.to_hex().to_string()), compressed: true, ..snapshot };
        self.publish(place, packed, snapshot)
    }

    /// Gives the copy its name, and writes down what is known of it.
    pub(super) fn publish(&self, place: &Path, staged: Staged, mut snapshot: Snapshot) -> Result<Snapshot> {
        snapshot.path = place.join(record::file_name(&snapshot.id, snapshot.compressed));
        self.name(place, staged, &mut snapshot)?;
        Ok(snapshot)
    }

    fn name(&self, place: &Path, staged: Staged, snapshot: &mut Snapshot) -> Result<()> {
        staged.publish(&snapshot.path)?;
        record::sync(place)?;
        let status = Status::of(&snapshot.path).map_err(|e| io("look at", &snapshot.path, e))?;
        snapshot.modified_ns = status.map_or(0, |s| s.modified_ns);
        snapshot.serial = record::all(self.family())?.last().map_or(0, |s| s.serial) + 1;
        snapshot.ms = self.begun.elapsed().as_secs_f64() * 1000.0;
        record::write(self.inspected, place, snapshot).inspect_err(|_| {
            // Without a record nobody would ever find it, nor remove it.
            let _ = std::fs::remove_file(&snapshot.path);
        })
    }

    /// Records a copy that is not sound, and keeps it only where there is no good one.
    pub(super) fn put_away(
        &self,
        place: &Path,
        id: &str,
        staged: Staged,
        found: String,
        (bytes, hash): (u64, blake3::Hash),
    ) -> Result<Snapshot> {
        let all = record::all(self.family())?;
        let only = !all.iter().any(Snapshot::is_good);
        let kept = only.then(|| place.join(record::unsound_name(id)));
        let error = Error::Unverified { database: self.family().main(), found, kept: kept.clone() };
        let mut snapshot = record::failed(self.family(), id, &self.wish.reason, &error)?;
        match kept {
            None => {
                drop(staged);
                let _ = record::write(self.inspected, place, &snapshot);
            }
            Some(path) => {
                let hex = hash.to_hex().to_string();
                snapshot = Snapshot {
                    path,
                    bytes,
                    blake3: Some(hex.clone()),
                    plain_bytes: bytes,
                    plain_blake3: Some(hex),
                    ..snapshot
                };
                self.name(place, staged, &mut snapshot)?;
                // One of them is enough.
                for old in all.iter().filter(|s| !s.verified && !s.path.as_os_str().is_empty()) {
                    let _ = std::fs::remove_file(&old.path);
                    let _ = record::write(self.inspected, place, &Snapshot { blake3: None, ..old.clone() });
                }
            }
        }
        let _ = keep::prune(self.family(), &self.wish.keep);
        Err(error)
    }
}
