//! Snapshots as restoring needs them: found by id, and one taken of the state that is replaced.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use statehouse_sqlite::admission::Admission;
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::{Error as DatabaseError, Family, files, immutable, side};

use super::error::{Error, Result};
use crate::maintenance::error::io;
use crate::maintenance::whole::{self, Rows};
use crate::progress::{Progress, Watch};

fn directory(family: &Family) -> PathBuf {
    family.side_directory().join("snapshots")
}

/// The file of a snapshot; `None` if there is no such snapshot.
pub(crate) fn find(family: &Family, id: &str) -> Result<Option<PathBuf>> {
    let plain = directory(family).join(format!("{id}.snapshot"));
    if plain.exists() {
        return Ok(Some(plain));
    }
    let packed = directory(family).join(format!("{id}.snapshot.zst"));
    if packed.exists() {
        let hint = "Nothing was changed. Unpack it with `zstd -d` into a file of another name, and restore from that.";
        return Err(Error::SourceUnfit { path: packed, found: "it is compressed".to_owned(), hint });
    }
    Ok(None)
}

/// Copies what is there into a new snapshot with the reason `before-restore`, and proves that the copy is good.
pub(crate) fn before(admission: &Admission, watch: Watch<'_>) -> Result<(String, PathBuf)> {
    use std::os::fd::AsFd as _;
    let (family, reader) = (admission.family(), admission.connection());
    let inspected = &secure::inspect(family, Purpose::Own)?;
    let place = directory(family);
    let side = side::create(inspected)?;
    side::subdirectory(inspected, side.as_fd(), "snapshots", &place)?;
    let now = jiff::Timestamp::now();
    let id = format!("{}-{}", now.strftime("%Y%m%dT%H%M%S%6f"), std::process::id());
    let partial = place.join(format!("{id}.partial.{}", std::process::id()));
    let path = place.join(format!("{id}.snapshot"));
    let made = copy(reader, &partial, watch).and_then(|()| prove(reader, &partial));
    let rows = match made {
        Ok(rows) => rows,
        Err(e) => {
            let _ = std::fs::remove_file(&partial);
            return Err(e);
        }
    };
    let file = files::open_private(&partial).map_err(|e| io("open", &partial, e))?;
    inspected.hand_over(file.as_fd()).map_err(|e| io("write", &partial, e))?;
    let bytes = file.metadata().map_err(|e| io("look at", &partial, e))?.len();
    std::fs::rename(&partial, &path).map_err(|e| io("rename", &partial, e))?;
    let record = serde_json::json!({
        "id": id, "path": path, "database": family.main(), "created_at": format!("{now:.6}"), "reason": "before-restore",
        "bytes": bytes, "rows": rows.by_table(), "verified": true, "blake3": null, "compressed": false, "error": null,
    });
    let json = place.join(format!("{id}.json"));
    files::replace(&json, record.to_string().as_bytes()).map_err(|e| io("write", &json, e))?;
    super::copy::flush_directory(&place)?;
    Ok((id, path))
}

fn copy(reader: &Connection, to: &Path, watch: Watch<'_>) -> Result<()> {
    drop(files::open_private(to).map_err(|e| io("create", to, e))?);
    let mut new = super::copy::unprotected(to)?;
    watch(Progress::Begins { what: "keeping the present state", bytes: None });
    let backup = Backup::new(reader, &mut new)?;
    loop {
        match backup.step(4096)? {
            StepResult::Done => break,
            StepResult::More => {}
            _ => return Err(DatabaseError::Busy { waited: std::time::Duration::ZERO, holder: None }.into()),
        }
    }
    drop(backup);
    new.close().map_err(|(_, e)| e)?;
    super::copy::set_mode_of_file(to, false)
}

fn prove(reader: &Connection, copy: &Path) -> Result<Rows> {
    let fresh = immutable(copy)?;
    whole::require(&fresh, copy)?;
    let (before, after) = (Rows::count(reader, |_| true)?, Rows::count(&fresh, |_| true)?);
    let found = before.differences(&after);
    if found.is_empty() { Ok(after) } else { Err(Error::Work(crate::maintenance::Error::RowsDiffer { found })) }
}
