//! The watched disk sees everything, and loses what a disk may lose.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use statehouse_testkit::disk::{Disk, History, Kind, Lie};
use statehouse_testkit::visitor::python;
use statehouse_testkit::{Seed, TestDir, run};

/// Runs a program in Python in a watched directory with an old file `kept` in it.
fn watched(program: &str) -> (TestDir, Disk) {
    let directory = TestDir::new();
    let root = directory.join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("kept"), "old").unwrap();
    let disk = Disk::below(&root, &directory.join("notes"), None);
    let mut command = Command::new(python());
    command
        .arg("-c")
        .arg(format!("import ctypes, mmap, os\nnew = os.O_CREAT | os.O_RDWR\n{program}"))
        .current_dir(&root);
    let done = run(&mut disk.watches(&command), Duration::from_secs(30)).success();
    assert_eq!(done.stderr, "");
    (directory, disk)
}

/// What a file holds on each kind of image after the last note; `None` where it is not there.
fn left(history: &History, lie: &Lie, name: &str) -> Vec<(Kind, Option<String>)> {
    let mut left = Vec::new();
    let end = *history.points().last().unwrap();
    history.cut(&[end], lie, &mut Seed::new(1), |cut| {
        for (kind, image) in &cut.images {
            left.push((*kind, image.file(name).map(|c| String::from_utf8_lossy(c).into_owned())));
        }
    });
    left
}

fn of(left: &[(Kind, Option<String>)], kind: Kind) -> Option<&str> {
    left.iter().find(|l| l.0 == kind).unwrap().1.as_deref()
}

#[test]
fn a_write_that_goes_past_every_library_is_seen() {
    let program = "\
import platform, mmap
fd = os.open('raw', new)
if platform.machine() == 'x86_64':
    # mov eax, edi; mov rdi, rsi; mov rsi, rdx; mov rdx, rcx; syscall; ret
    code = bytes([0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x0f, 0x05, 0xc3])
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    call = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_long)(address)
    assert call(1, fd, b'seen', 4) == 4
else:
    assert ctypes.CDLL(None).syscall(64, fd, b'seen', 4) == 4";
    let (_directory, disk) = watched(program);
    // The history itself compares what was noted with what is there.
    let history = disk.history();
    assert_eq!(of(&left(&history, &Lie::None, "raw"), Kind::Live), Some("seen"));
}

#[test]
#[should_panic(expected = "the notes are not what happened: kept differs")]
fn what_was_not_watched_is_missed_aloud() {
    let (directory, disk) = watched("os.close(os.open('made', new))");
    std::fs::write(directory.join("root/kept"), "new").unwrap();
    disk.history();
}

#[test]
fn names_and_content_are_kept_as_they_were_flushed() {
    let put = "\
def put(name, flush):
    fd = os.open(name + '.new', new)
    os.write(fd, b'content')
    if flush: os.fsync(fd)
    os.rename(name + '.new', name)
def flush_directory():
    fd = os.open('.', os.O_RDONLY)
    os.fsync(fd)
put('both', True)
put('name', False)
flush_directory()
put('content', True)
os.unlink('kept')
os.mkdir('sub')
os.close(os.open('sub/inner', new))";
    let (_directory, disk) = watched(put);
    let history = disk.history();
    assert_eq!(history.flushes(), 3);
    let content = Some("content");
    for (name, durable, names_first, content_first) in [
        ("both", content, content, content),
        ("name", Some(""), Some(""), content),
        ("content", None, content, None),
        ("kept", Some("old"), None, Some("old")),
        ("sub/inner", None, Some(""), None),
    ] {
        let left = left(&history, &Lie::None, name);
        assert_eq!(of(&left, Kind::Durable), durable, "{name}");
        assert_eq!(of(&left, Kind::NamesFirst), names_first, "{name}");
        assert_eq!(of(&left, Kind::ContentFirst), content_first, "{name}");
    }
    // A disk that lies keeps less.
    assert_eq!(of(&left(&history, &Lie::Directories, "both"), Kind::Durable), None);
    assert_eq!(of(&left(&history, &Lie::Files("both"), "both"), Kind::Durable), Some("content"), "it had another name");
    assert_eq!(of(&left(&history, &Lie::Files(".new"), "both"), Kind::Durable), Some(""));
}

#[test]
fn every_way_to_change_a_file_is_noted_or_refused() {
    let program = "\
fd = os.open('a', new)
os.writev(fd, [b'one ', b'two '])
os.pwritev(fd, [b'O'], 0)
os.truncate('a', 6)
os.lseek(fd, 0, os.SEEK_END)
os.write(fd, b'end')
os.posix_fallocate(fd, 0, 600)
end = os.open('a', os.O_WRONLY | os.O_APPEND)
os.write(end, b'appended')
other = os.open('b', new)
for refused in (lambda: os.copy_file_range(fd, other, 3, 0, 0), lambda: os.sendfile(other, fd, 0, 3)):
    try:
        refused()
        raise SystemExit('not refused')
    except OSError:
        pass
os.link('a', 'linked')
os.symlink('a', 'soft')
os.makedirs('d/e')
os.rename('b', 'd/e/b')
os.rename('d/e', 'f')
here = os.open('f', os.O_RDONLY)
os.close(os.open('in', new, dir_fd=here))
os.unlink('in', dir_fd=here)
os.close(os.open('/proc/self/fd/%d/by-number' % here, new))
os.rmdir('d')
libc = ctypes.CDLL(None)
assert libc.renameat2(-100, b'a', -100, b'kept', 2) == 0
nameless = os.open('.', os.O_TMPFILE | os.O_RDWR)
os.write(nameless, b'nothing')
if os.fork() == 0:
    os.write(os.open('child', new), b'by a child')
    os._exit(0)
os.wait()
import threading
threads = [threading.Thread(target=lambda n=n: [os.pwrite(other, b'%d' % n, 16 * i) for i in range(50)]) for n in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]";
    let (_directory, disk) = watched(program);
    let history = disk.history();
    assert_eq!(of(&left(&history, &Lie::None, "a"), Kind::Live), Some("old"), "exchanged");
}

#[test]
#[should_panic(expected = "mapped, so writes to it cannot be seen")]
fn a_file_that_is_written_through_a_map_is_missed_aloud() {
    let map = "fd = os.open('m', new)\nos.ftruncate(fd, 4096)\nmmap.mmap(fd, 4096)[0:1] = b'x'";
    let (_directory, disk) = watched(map);
    disk.history();
}

#[test]
fn two_watched_programs_have_one_order() {
    let directory = TestDir::new();
    let root = directory.join("root");
    std::fs::create_dir(&root).unwrap();
    let disk = Disk::below(&root, &directory.join("notes"), None);
    let write = |n: u32| {
        let mut command = Command::new(python());
        let program = "import os, sys\nfd = os.open('one', os.O_CREAT | os.O_RDWR)\n\
            for i in range(300): os.pwrite(fd, sys.argv[1].encode(), i % 7); os.close(os.open('n', 66)); os.path.exists('n')";
        command.args(["-c", program, &n.to_string()]).current_dir(Path::new(&root));
        statehouse_testkit::Child::spawn(&mut disk.watches(&command))
    };
    let mut both = [write(1), write(2)];
    for one in &mut both {
        assert!(one.wait(Duration::from_secs(30)).success());
    }
    // What is there in the end was written by the last of them, which only the right order tells.
    disk.history();
}
