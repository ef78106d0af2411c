//! macOS: how libproc is asked. What its answers mean is in `libproc.rs`.

#![expect(unsafe_code, reason = "libproc is an interface of C")]

use std::mem::offset_of;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use super::libproc::{self, About, DESCRIPTOR_RECORD, Look, Open, REGION_RECORD, System};
use super::{Holder, Report};
use crate::error::Result;
use crate::family::{Family, Status};

// Of `sys/proc_info.h`; the rest is in `libc`.
const PROC_ALL_PIDS: u32 = 1;
const PROC_PIDFDVNODEPATHINFO: libc::c_int = 2;
/// The first region at or behind an address that a file is mapped to.
const PROC_PIDREGIONPATHINFO2: libc::c_int = 22;

// The offsets that `libproc.rs` reads at are those of the declarations.
const _: () = {
    assert!(DESCRIPTOR_RECORD == 24 + size_of::<libc::vnode_info_path>());
    assert!(offset_of!(libc::vnode_info_path, vip_path) == 152);
    assert!(offset_of!(libc::vinfo_stat, vst_dev) == 0);
    assert!(offset_of!(libc::vinfo_stat, vst_mode) == 4);
    assert!(offset_of!(libc::vinfo_stat, vst_nlink) == 6);
    assert!(offset_of!(libc::vinfo_stat, vst_ino) == 8);
    assert!(offset_of!(libc::vinfo_stat, vst_size) == 88);
};

pub(super) fn scan(family: &Family) -> Result<Report> {
    libproc::scan(family, &mut Live, std::process::id().cast_signed())
}

/// Of the two dangers only one can be seen here: writing into files that are not the database any more.
pub(super) fn dangerous(family: &Family) -> Result<Vec<Holder>> {
    let mut report = scan(family)?;
    report.holders.retain(|h| h.ghost && !h.is_self);
    Ok(report.holders)
}

/// The machine that this runs on.
struct Live;

/// A file that every macOS has and that is no database.
const KNOWN: &str = "/bin/sh";

impl System for Live {
    fn prove(&mut self) -> Result<(), String> {
        #[expect(clippy::disallowed_methods, reason = "no database is a program of the system")]
        let file = std::fs::File::open(KNOWN).map_err(|e| format!("{KNOWN}: {e}"))?;
        let own = std::process::id().cast_signed();
        let Look::Files(files) = self.look(own) else { return Err("this process cannot be looked at".to_owned()) };
        let told = files.iter().find(|f| f.descriptor == Some(file.as_raw_fd()));
        understood(told.ok_or("a descriptor is missing")?, Some(KNOWN))?;
        // One that was deleted since, as a program is by its update, is no counterproof.
        let mapped = files.iter().filter(|f| f.descriptor.is_none()).any(|f| understood(f, None).is_ok());
        if mapped { Ok(()) } else { Err("no mapped file is understood".to_owned()) }
    }

    fn processes(&mut self) -> std::io::Result<Vec<i32>> {
        let bytes = grown(|buffer, length| {
            // SAFETY: the pointer leads to `length` bytes that nothing else uses meanwhile, and the call writes no more.
            unsafe { libc::proc_listpids(PROC_ALL_PIDS, 0, buffer, length) }
        })?;
        let pids = bytes.chunks_exact(4).filter_map(|b| b.first_chunk().copied().map(i32::from_ne_bytes));
        // Number 0 is the kernel itself.
        let pids: Vec<i32> = pids.filter(|pid| *pid > 0).collect();
        if pids.is_empty() { Err(std::io::Error::other("no process is listed")) } else { Ok(pids) }
    }

    fn look(&mut self, pid: i32) -> Look {
        let entries = grown(|buffer, length| {
            // SAFETY: as above.
            unsafe { libc::proc_pidinfo(pid, libc::PROC_PIDLISTFDS, 0, buffer, length) }
        });
        let entries = match entries {
            Ok(entries) => entries,
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Look::Gone,
            Err(_) => return Look::Denied,
        };
        let mut files = Vec::new();
        let mut record = [0; DESCRIPTOR_RECORD];
        for number in libproc::numbers(&entries) {
            let (buffer, length) = (record.as_mut_ptr().cast(), DESCRIPTOR_RECORD as libc::c_int);
            // SAFETY: the pointer leads to `length` bytes that nothing else uses meanwhile, and the call writes no more.
            let answer =
                answered(|| unsafe { libc::proc_pidfdinfo(pid, number, PROC_PIDFDVNODEPATHINFO, buffer, length) });
            match answer {
                Ok(n) => match record.get(..n).and_then(|r| libproc::descriptor(number, r)) {
                    Some(open) => files.push(open),
                    None => return Look::Denied,
                },
                // It was closed meanwhile, or its volume is gone.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EBADF | libc::ENOENT)) => {}
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Look::Gone,
                Err(_) => return Look::Denied,
            }
        }
        mapped(pid, &mut files)
    }

    fn about(&mut self, pid: i32) -> About {
        // SAFETY: it consists of numbers and arrays of numbers, for which zeros are values.
        let mut info: libc::proc_bsdinfo = unsafe { std::mem::zeroed() };
        let length = size_of_val(&info) as libc::c_int;
        // SAFETY: the pointer leads to `length` bytes of a structure of the kind that this call fills.
        let filled =
            answered(|| unsafe { libc::proc_pidinfo(pid, libc::PROC_PIDTBSDINFO, 0, (&raw mut info).cast(), length) });
        let known = filled.is_ok_and(|n| n == size_of_val(&info));
        let mut path = [0u8; libc::PROC_PIDPATHINFO_MAXSIZE as usize];
        // SAFETY: the pointer leads to as many bytes as the call is told.
        let n = answered(|| unsafe { libc::proc_pidpath(pid, path.as_mut_ptr().cast(), path.len() as u32) });
        let program = n.ok().and_then(|n| path.get(..n)).filter(|p| !p.is_empty());
        About {
            user: known.then_some(info.pbi_uid),
            started: known
                .then(|| info.pbi_start_tvsec.saturating_mul(1_000_000).saturating_add(info.pbi_start_tvusec)),
            program: program.map(|p| String::from_utf8_lossy(p).into_owned()),
        }
    }
}

/// Adds what is mapped. Whoever maps a file and has closed it uses it all the same.
fn mapped(pid: i32, files: &mut Vec<Open>) -> Look {
    let mut record = [0; REGION_RECORD];
    let mut address = 0;
    loop {
        let (buffer, length) = (record.as_mut_ptr().cast(), REGION_RECORD as libc::c_int);
        // SAFETY: the pointer leads to `length` bytes that nothing else uses meanwhile, and the call writes no more.
        let answer = answered(|| unsafe { libc::proc_pidinfo(pid, PROC_PIDREGIONPATHINFO2, address, buffer, length) });
        match answer {
            Ok(n) if n > 0 => match record.get(..n).and_then(libproc::region) {
                Some((open, next)) if next > address => {
                    // A library is mapped in several pieces.
                    if files.last() != Some(&open) {
                        files.push(open);
                    }
                    address = next;
                }
                _ => return Look::Denied,
            },
            // This is how the end is told, as libproc itself reads it.
            Ok(_) => return Look::Files(std::mem::take(files)),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ESRCH)) => {
                return Look::Files(std::mem::take(files));
            }
            Err(_) => return Look::Denied,
        }
    }
}

/// True if what a record says of a file is what the system says of its path.
fn understood(open: &Open, path: Option<&str>) -> Result<(), String> {
    let told = String::from_utf8_lossy(&open.path);
    let status = Status::of(Path::new(told.as_ref())).ok().flatten().ok_or("a path leads nowhere")?;
    let same = (status.identity.device, status.identity.inode) == open.id;
    let known = path.is_none_or(|p| p == told && !open.writable);
    let alike = open.regular && open.size == Some(status.size) && u32::from(open.links) == status.links;
    if same && known && alike { Ok(()) } else { Err(format!("the record of {told} is another")) }
}

/// Calls with a buffer that is made larger until the answer leaves room in it.
fn grown(mut call: impl FnMut(*mut libc::c_void, libc::c_int) -> libc::c_int) -> std::io::Result<Vec<u8>> {
    let mut buffer = vec![0u8; 1 << 14];
    loop {
        let length = libc::c_int::try_from(buffer.len()).map_err(std::io::Error::other)?;
        let n = answered(|| call(buffer.as_mut_ptr().cast(), length))?;
        if n < buffer.len() {
            buffer.truncate(n);
            return Ok(buffer);
        }
        buffer.resize(buffer.len().saturating_mul(2), 0);
    }
}

/// What a function of libproc answers. They answer 0 both for "nothing" and for a failure, which only `errno` tells apart.
fn answered(call: impl FnOnce() -> libc::c_int) -> std::io::Result<usize> {
    // SAFETY: the function returns a pointer to this thread's own `errno`, which is there as long as the thread is.
    unsafe { *libc::__error() = 0 };
    let n = call();
    if n > 0 {
        return Ok(n as usize);
    }
    let e = std::io::Error::last_os_error();
    if n == 0 && e.raw_os_error() == Some(0) { Ok(0) } else { Err(e) }
}
