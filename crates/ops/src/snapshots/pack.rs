//! Compressed snapshots (zstd, one frame with its own checksum), made and unpacked as streams.

use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom, Write};
use std::path::Path;

use statehouse_sqlite::files;

use super::error::{Error, Result, io};
use super::record::Snapshot;
use crate::progress::{Progress, Watch};

/// Level 3 is zstd's own default: about as fast as a disk.
const LEVEL: i32 = 3;
/// Bytes of a step.
const STEP: usize = 1 << 20;

/// Copies and hashes what was copied. Returns the number of bytes and the hash.
pub(super) fn through(
    from: &mut dyn Read,
    to: &mut dyn Write,
    watch: Watch<'_>,
) -> std::io::Result<(u64, blake3::Hash)> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; STEP];
    let mut done = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok((done, hasher.finalize())),
            Ok(read) => &buffer[..read],
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        hasher.update(read);
        to.write_all(read)?;
        done += read.len() as u64;
        watch(Progress::At(done));
    }
}

/// The hash of a file from its beginning to its end.
pub(super) fn hash(mut file: &File, watch: Watch<'_>) -> std::io::Result<(u64, blake3::Hash)> {
    file.seek(SeekFrom::Start(0))?;
    through(&mut file, &mut std::io::sink(), watch)
}

/// Compresses a whole file into an empty one.
pub(super) fn compress(plain: &mut File, packed: &mut File, watch: Watch<'_>) -> std::io::Result<()> {
    plain.seek(SeekFrom::Start(0))?;
    let mut encoder = zstd::stream::write::Encoder::new(packed, LEVEL)?;
    encoder.include_checksum(true)?;
    let mut buffer = vec![0; STEP];
    let mut done = 0;
    loop {
        let read = plain.read(&mut buffer)?;
        if read == 0 {
            encoder.finish()?;
            return Ok(());
        }
        encoder.write_all(&buffer[..read])?;
        done += read as u64;
        watch(Progress::At(done));
    }
}

/// Unpacks a whole file into `to`, and hashes what comes out.
pub(super) fn decompress(
    packed: &mut File,
    to: &mut dyn Write,
    watch: Watch<'_>,
) -> std::io::Result<(u64, blake3::Hash)> {
    packed.seek(SeekFrom::Start(0))?;
    through(&mut zstd::stream::read::Decoder::new(packed)?, to, watch)
}

/// Writes the database in a snapshot to a new private file at `to`, compares its hash with the recorded one, and puts it on the
/// disk. The new file is removed if that does not go well.
///
/// # Errors
/// [`Error::Changed`], or the system's answer, for example that `to` is there already.
pub fn unpack(snapshot: &Snapshot, to: &Path, watch: Watch<'_>) -> Result<()> {
    if to.symlink_metadata().is_ok() {
        return Err(io("create", to, std::io::ErrorKind::AlreadyExists));
    }
    let mut from = files::open(&snapshot.path).map_err(|e| io("open", &snapshot.path, e))?;
    let mut new = files::open_private(to).map_err(|e| io("create", to, e))?;
    watch(Progress::Begins { what: "copying the snapshot", bytes: Some(snapshot.plain_bytes) });
    let unpacked = match snapshot.compressed {
        true => decompress(&mut from, &mut new, watch),
        false => through(&mut from, &mut new, watch),
    };
    let proved = unpacked.map_err(|e| unreadable(snapshot, to, e)).and_then(|(bytes, hash)| {
        let hash = hash.to_hex().to_string();
        if (bytes, Some(&hash)) != (snapshot.plain_bytes, snapshot.plain_blake3.as_ref()) {
            return Err(changed(snapshot, bytes, &hash));
        }
        new.sync_all().map_err(|e| io("write", to, e))
    });
    proved.inspect_err(|_| {
        let _ = std::fs::remove_file(to);
    })
}

/// What zstd says about bytes that are not its own is told as a changed file; everything else is the system's answer.
fn unreadable(snapshot: &Snapshot, to: &Path, e: std::io::Error) -> Error {
    match e.raw_os_error() {
        None if snapshot.compressed => {
            Error::Changed { path: snapshot.path.clone(), found: format!("it cannot be unpacked: {e}") }
        }
        _ => io("copy a snapshot to", to, e),
    }
}

pub(super) fn changed(snapshot: &Snapshot, bytes: u64, hash: &str) -> Error {
    let recorded = snapshot.plain_blake3.as_deref().unwrap_or("nothing");
    let found = format!(
        "recorded were {} bytes with BLAKE3 {recorded}; it has {bytes} bytes with {hash}",
        snapshot.plain_bytes
    );
    Error::Changed { path: snapshot.path.clone(), found }
}
