//! Windows: how the Restart Manager is asked. What its answers mean is in `restart.rs`.

#![expect(unsafe_code, reason = "the Restart Manager is an interface of C")]

use std::os::windows::ffi::OsStrExt as _;
use std::path::Path;

use windows_sys::Win32::Foundation::{CloseHandle, ERROR_ACCESS_DENIED, ERROR_MORE_DATA, ERROR_SUCCESS};
use windows_sys::Win32::System::ProcessStatus::EnumProcesses;
use windows_sys::Win32::System::RestartManager::{
    CCH_RM_SESSION_KEY, RM_PROCESS_INFO, RmEndSession, RmGetList, RmRegisterResources, RmStartSession,
};
use windows_sys::Win32::System::Threading::{OpenProcess, PROCESS_QUERY_LIMITED_INFORMATION};

use super::restart::{self, Asked, Found, User};
use super::{Holder, Report};
use crate::error::{Error, Result};
use crate::family::{Family, Member, Status};

pub(super) fn scan(family: &Family) -> Result<Report> {
    let mut asked = Vec::new();
    for member in Member::ALL {
        let path = family.path(member);
        if let Some(status) = Status::of(&path).map_err(|e| Error::io("look at", &path, e))? {
            asked.push(Asked { member, status, users: users(&path) });
        }
    }
    let uninspected = uninspected().map_err(|e| Error::io("list the processes for", &family.main(), e))?;
    Ok(restart::conclude(&family.main(), Found { asked, proof: proof(), uninspected, own: std::process::id() }))
}

/// Open files cannot be removed or replaced on Windows, so nobody can be left on a retired generation; and who has lost
/// its locks is not told.
pub(super) fn dangerous(_family: &Family) -> Result<Vec<Holder>> {
    Ok(Vec::new())
}

/// Asks about the running program, while it is open.
fn proof() -> Result<Vec<User>, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    #[expect(clippy::disallowed_methods, reason = "the running program is no database")]
    let file = std::fs::File::open(&program).map_err(|e| e.to_string())?;
    let users = users(&program);
    drop(file);
    users
}

/// A conversation with the Restart Manager; there are 64 at most for each user, so it ends with its scope.
struct Session(u32);

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the session was started and is ended only here.
        unsafe { RmEndSession(self.0) };
    }
}

fn done(action: &str, code: u32) -> Result<(), String> {
    match code {
        ERROR_SUCCESS => Ok(()),
        code => Err(format!("{action}: {}", std::io::Error::from_raw_os_error(code.cast_signed()))),
    }
}

/// Who has a file open or mapped.
fn users(path: &Path) -> Result<Vec<User>, String> {
    let path = path.to_str().and_then(restart::plain).ok_or("its path is too long or has another form")?;
    let mut handle = 0;
    let mut key = [0u16; CCH_RM_SESSION_KEY as usize + 1];
    // SAFETY: both pointers lead to what the call fills: a number, and room for the name of a session with its zero.
    done("RmStartSession", unsafe { RmStartSession(&raw mut handle, 0, key.as_mut_ptr()) })?;
    let session = Session(handle);
    let wide: Vec<u16> = std::ffi::OsStr::new(&path).encode_wide().chain([0]).collect();
    let files = [wide.as_ptr()];
    // SAFETY: one path that ends with a zero, and neither processes nor services, which null pointers with a count of zero
    // stand for; all of it lives to the end of this function.
    let registered =
        unsafe { RmRegisterResources(session.0, 1, files.as_ptr(), 0, std::ptr::null(), 0, std::ptr::null()) };
    done("RmRegisterResources", registered)?;
    list(&session)
}

fn list(session: &Session) -> Result<Vec<User>, String> {
    /// Between two calls more processes may come; this many times there is more room than the last answer asked for.
    const TRIES: usize = 10;
    let mut room = 16;
    for _ in 0..TRIES {
        let mut infos = vec![RM_PROCESS_INFO::default(); room];
        let mut count = u32::try_from(room).map_err(|e| e.to_string())?;
        let (mut needed, mut reasons) = (0, 0);
        // SAFETY: the pointers lead to numbers and to `count` structures, and the call fills no more of them than that.
        let code =
            unsafe { RmGetList(session.0, &raw mut needed, &raw mut count, infos.as_mut_ptr(), &raw mut reasons) };
        if code == ERROR_MORE_DATA {
            room = room.max(needed as usize).saturating_add(16);
            continue;
        }
        done("RmGetList", code)?;
        let user = |info: &RM_PROCESS_INFO| User {
            pid: info.Process.dwProcessId,
            started: u64::from(info.Process.ProcessStartTime.dwHighDateTime) << 32
                | u64::from(info.Process.ProcessStartTime.dwLowDateTime),
            name: restart::text(&info.strAppName),
            service: restart::text(&info.strServiceShortName),
        };
        return Ok(infos.iter().take(count as usize).map(user).collect());
    }
    Err("RmGetList: the list grows faster than it can be read".to_owned())
}

/// How many processes this user may not ask for anything.
fn uninspected() -> std::io::Result<usize> {
    let mut pids = vec![0u32; 1 << 12];
    let count = loop {
        let length = u32::try_from(size_of_val(pids.as_slice())).map_err(std::io::Error::other)?;
        let mut filled = 0;
        // SAFETY: the pointers lead to `length` bytes and to a number.
        if unsafe { EnumProcesses(pids.as_mut_ptr(), length, &raw mut filled) } == 0 {
            return Err(std::io::Error::last_os_error());
        }
        if filled < length {
            break filled as usize / size_of::<u32>();
        }
        pids.resize(pids.len() * 2, 0);
    };
    let refused = |pid: &&u32| {
        // SAFETY: no pointer is passed, and a handle that is given is closed once.
        unsafe {
            let handle = OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, 0, **pid);
            if !handle.is_null() {
                CloseHandle(handle);
                return false;
            }
        }
        std::io::Error::last_os_error().raw_os_error() == Some(ERROR_ACCESS_DENIED.cast_signed())
    };
    Ok(pids.iter().take(count).filter(refused).count())
}
