//! Gives back the memory of program text that was needed once.
//!
//! A process that lives long and does little keeps every page of the program resident that its start has touched: the
//! command line's parser, the formatting of messages. These pages are the file's own, so the kernel can read them again at any
//! time; it does not take them away by itself while memory is plenty.

#![expect(unsafe_code, reason = "there is no safe way to give pages back")]

use crate::process;

/// Gives back all pages of read-only file mappings of this process that nobody has written to. What is needed again is
/// mapped again when it is touched. Does nothing where the system does not tell what is mapped.
pub fn give_back() {
    let mut text = Vec::new();
    if process::read_file(rustix::fs::CWD, "/proc/self/smaps", &mut text).is_err() {
        return;
    }
    for (start, length) in clean_file_mappings(&String::from_utf8_lossy(&text)) {
        // SAFETY: the range is a whole mapping of this process as the kernel has just described it: private, of a file, not
        // writable, and without a page of its own, which is the program and its libraries; these stay mapped as long as it runs.
        // Giving their pages back changes no byte that can be read there: the next access maps the same page of the same file.
        // If the call fails nothing has happened.
        unsafe {
            libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED);
        }
    }
}

/// Address and length of the private mappings of files that are not writable and have no pages of their own.
fn clean_file_mappings(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in smaps.lines() {
        if let Some(mapping) = header(line) {
            candidate = mapping;
        } else if let Some(own) = line.strip_prefix("Anonymous:")
            && own.trim() == "0 kB"
        {
            found.extend(candidate.take());
        }
    }
    found
}

/// `Some` for the line that begins a mapping; inside it the range, if it is a read-only private one of a file.
fn header(line: &str) -> Option<Option<(usize, usize)>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let permissions = fields.next()?;
    let of_file = fields.nth(2)? != "0" && fields.next().is_some_and(|path| path.starts_with('/'));
    let suitable = of_file && matches!(permissions, "r-xp" | "r--p") && end > start;
    Some(suitable.then(|| (start, end - start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_read_only_mappings_of_files_without_pages_of_their_own_are_given_back() {
        let mapping = |first: &str, anonymous: u32| {
            format!("{first}\nSize: 4 kB\nRss: 4 kB\nAnonymous:    {anonymous} kB\nVmFlags: rd mr\n")
        };
        let smaps = [
            mapping("1000-3000 r--p 00000000 fe:00 11 /usr/bin/x", 0),
            mapping("3000-7000 r-xp 00002000 fe:00 11 /usr/bin/x", 0),
            mapping("7000-8000 r--p 00006000 fe:00 11 /usr/bin/x", 4),
            mapping("8000-9000 rw-p 00007000 fe:00 11 /usr/bin/x", 0),
            mapping("9000-a000 r--s 00000000 fe:00 12 /var/state.db-shm", 0),
            mapping("a000-b000 rw-p 00000000 00:00 0 [heap]", 0),
            mapping("b000-c000 r-xp 00000000 00:00 0 [vdso]", 0),
            mapping("c000-d000 r--p 00000000 00:00 0", 0),
        ];
        assert_eq!(clean_file_mappings(&smaps.concat()), [(0x1000, 0x2000), (0x3000, 0x4000)]);
        assert_eq!(clean_file_mappings("garbage\nAnonymous: 0 kB\n"), []);
    }

    #[test]
    fn a_process_goes_on_after_it_has_given_everything_back() {
        for _ in 0..3 {
            give_back();
            assert!(format!("{:?}", process::boot_time()).contains("Some"));
        }
    }
}
