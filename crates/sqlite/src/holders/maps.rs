//! Which files a process has mapped together with others, without having all its maps written out.
//!
//! Writing out the maps of a process is the most expensive thing that `/proc` does, and few of them are shared maps of files.
//! Since 6.11 Linux names just those, one after the other (`PROCMAP_QUERY` of `linux/fs.h`).

#![expect(unsafe_code, reason = "the question is an ioctl that rustix does not have")]

use std::os::fd::{AsRawFd, OwnedFd};

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const SHARED: u64 = 0x08;
const COVERING_OR_NEXT: u64 = 0x10;
const FILE_BACKED: u64 = 0x20;

/// `_IOWR('f', 17, struct procmap_query)`, as most architectures count.
const PROCMAP_QUERY: u64 = (3 << 30) | ((size_of::<Query>() as u64) << 16) | ((b'f' as u64) << 8) | 17;

/// Longer names are no names of files of a database; where one is met, everything must be read.
const LONGEST: usize = 4096;

/// False if it is certain that no shared map of a file is `wanted`, in the process whose `maps` this is. A map is told by the
/// device and inode as `maps` shows them, and the name.
pub(super) fn may_have(maps: &OwnedFd, mut wanted: impl FnMut((u32, u32), u64, &[u8]) -> bool) -> bool {
    // Elsewhere the numbers of such questions are made up in another way.
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")) {
        return true;
    }
    let mut name = [0_u8; LONGEST];
    let mut from = 0;
    loop {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            query_flags: SHARED | COVERING_OR_NEXT | FILE_BACKED,
            query_addr: from,
            vma_name_size: LONGEST as u32,
            vma_name_addr: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        // SAFETY: the number carries the size of the structure that the pointer leads to, so the kernel writes no further;
        // the only pointer in it that it follows leads to a buffer of this frame of which the length is said, and the length
        // of the other one is zero. A kernel that does not know the number says so and touches nothing.
        let answer = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
        if answer != 0 {
            return std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOENT);
        }
        let named = name.get(..query.vma_name_size as usize).unwrap_or(&[]);
        let named = named.strip_suffix(b"\0").unwrap_or(named);
        if wanted((query.dev_major, query.dev_minor), query.inode, named) || query.vma_end <= from {
            return true;
        }
        from = query.vma_end;
    }
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::unwrap_used,
        clippy::disallowed_methods,
        reason = "a test looks at itself and stops at the first surprise"
    )]

    use super::*;

    #[test]
    fn each_shared_map_of_a_file_is_named() {
        let maps = || OwnedFd::from(std::fs::File::open("/proc/self/maps").unwrap());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x)").unwrap();
        let index = directory.path().join("s.db-shm");
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&index).unwrap());
        let mut seen = Vec::new();
        let any = may_have(&maps(), |_, i, name| {
            seen.push((i, name.to_vec()));
            false
        });
        if any {
            println!("this kernel does not know the question");
            assert_eq!(seen, []);
            return;
        }
        let name = index.as_os_str().as_encoded_bytes();
        assert!(seen.iter().any(|(i, n)| *i == inode && n == name), "{seen:?}");
        assert!(may_have(&maps(), |_, i, _| i == inode));
        std::fs::remove_file(&index).unwrap();
        assert!(may_have(&maps(), |_, i, name| i == inode && name.ends_with(b"s.db-shm (deleted)")));
        drop(connection);
        assert!(!may_have(&maps(), |_, i, _| i == inode));
    }
}
