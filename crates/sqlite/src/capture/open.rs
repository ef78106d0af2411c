//! Opening what another process has open, through `/proc`.
//!
//! A path of a descriptor leads to the very file, whatever its name leads to. Between the look at a process and the opening the
//! number may have been closed and given to another file, and the process may have ended and another may have its number: so
//! what was opened is compared by device and inode, and is opened for reading only, without ever waiting.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::family::Status;
use crate::holders::{HeldFile, Holder, Via};

/// A file of another process, open for reading.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) file: File,
    /// As it was when it was opened.
    pub(super) status: Status,
    pub(super) held: HeldFile,
}

/// Why a file could not be opened.
#[derive(Debug)]
pub(super) enum Closed {
    /// This user may not.
    NotAllowed,
    /// The process has closed it, or has ended.
    Gone,
    /// Anything else.
    Failed(std::io::Error),
}

/// Opens a file that `holder` has.
pub(super) fn open(holder: &Holder, held: &HeldFile) -> Result<Open, Closed> {
    let pid = holder.pid.ok_or(Closed::Gone)?;
    let paths: Vec<String> = match (held.via, held.descriptor) {
        // The first thread shows only its own table of descriptors, and others may have another one.
        (Via::Descriptor, Some(number)) => std::iter::once(format!("/proc/{pid}/fd/{number}"))
            .chain(entries(&format!("/proc/{pid}/task")).map(|task| format!("/proc/{pid}/task/{task}/fd/{number}")))
            .collect(),
        _ => mapped(pid, held),
    };
    let mut why = Closed::Gone;
    for path in paths {
        match one(&path, held) {
            Ok(open) => return Ok(open),
            // What the first path says is said of the process; the others are only other ways.
            Err(e) if matches!(why, Closed::Gone) => why = e,
            Err(_) => {}
        }
    }
    Err(why)
}

fn one(path: &str, held: &HeldFile) -> Result<Open, Closed> {
    // Looked at first: opening a device or a FIFO can have effects.
    let status = rustix::fs::statat(CWD, path, AtFlags::empty()).map_err(why)?;
    let regular = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    // The number of the device is another one in maps on some file systems.
    let same_device = held.via == Via::Mapping || status.st_dev == held.device;
    if !regular || !same_device || status.st_ino != held.inode {
        return Err(Closed::Gone);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(why)?);
    let seen = Status::of_descriptor(file.as_fd()).map_err(Closed::Failed)?;
    if (seen.identity.device, seen.identity.inode) != (status.st_dev, status.st_ino) {
        return Err(Closed::Gone);
    }
    Ok(Open { file, status: seen, held: held.clone() })
}

/// The areas of memory of a process; only the administrator may open them.
fn mapped(pid: i32, held: &HeldFile) -> Vec<String> {
    let directory = format!("/proc/{pid}/map_files");
    let is = |path: &String| rustix::fs::stat(path.as_str()).is_ok_and(|s| s.st_ino == held.inode);
    entries(&directory).map(|area| format!("{directory}/{area}")).filter(is).take(1).collect()
}

fn entries(directory: &str) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(directory).ok().into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned())
}

fn why(e: Errno) -> Closed {
    match e {
        Errno::ACCESS | Errno::PERM => Closed::NotAllowed,
        Errno::NOENT | Errno::SRCH => Closed::Gone,
        e => Closed::Failed(e.into()),
    }
}
