//! Records are crafted byte by byte around real files of this machine, and processes are lists of them.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test builds its situation by ordinary means")]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use super::*;

const FREAD: u32 = 1;
const FREAD_AND_FWRITE: u32 = 3;

/// A record with everything that is read set, and every other byte set to one that would be noticed.
fn file_record(id: FileId, mode: u16, links: u16, size: i64, path: &[u8]) -> Vec<u8> {
    let mut record = vec![0xa5; FILE_RECORD];
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &u32::try_from(id.0).unwrap().to_ne_bytes());
    put(4, &mode.to_ne_bytes());
    put(6, &links.to_ne_bytes());
    put(8, &id.1.to_ne_bytes());
    put(88, &size.to_ne_bytes());
    put(152, path);
    put(152 + path.len(), &[0]);
    record
}

fn descriptor_record(flags: u32, file: &[u8]) -> Vec<u8> {
    let mut record = vec![0xa5; 24];
    record[..4].copy_from_slice(&flags.to_ne_bytes());
    [record.as_slice(), file].concat()
}

fn region_record(protection: u32, start: u64, length: u64, file: &[u8]) -> Vec<u8> {
    let mut record = vec![0xa5; 96];
    record[..4].copy_from_slice(&protection.to_ne_bytes());
    record[80..88].copy_from_slice(&start.to_ne_bytes());
    record[88..96].copy_from_slice(&length.to_ne_bytes());
    [record.as_slice(), file].concat()
}

/// The record of a file as it is on this disk now.
fn record_of(path: &Path) -> Vec<u8> {
    let m = std::fs::symlink_metadata(path).unwrap();
    let path = path.as_os_str().as_bytes();
    file_record((m.dev(), m.ino()), m.mode() as u16, m.nlink() as u16, m.size() as i64, path)
}

fn open(number: i32, flags: u32, file: &[u8]) -> Open {
    descriptor(number, &descriptor_record(flags, file)).unwrap()
}

#[test]
fn a_record_says_which_file_it_is_and_how_it_is_open() {
    let file = file_record((16_777_220, u64::MAX - 1), 0o100_600, 3, 4096, b"/Users/me/a b/state.db-wal");
    assert_eq!(
        descriptor(9, &descriptor_record(FREAD_AND_FWRITE, &file)).unwrap(),
        Open {
            descriptor: Some(9),
            id: (16_777_220, u64::MAX - 1),
            regular: true,
            writable: true,
            links: 3,
            size: Some(4096),
            path: b"/Users/me/a b/state.db-wal".to_vec(),
        }
    );
    assert!(!open(9, FREAD, &file).writable);
    for not_regular in [0o040_755, 0o010_600, 0o140_600, 0o020_600] {
        assert!(!open(9, FREAD, &file_record((1, 2), not_regular, 1, 0, b"/x")).regular);
    }
    assert_eq!(open(9, FREAD, &file_record((1, 2), 0o100_600, 1, -1, b"/x")).size, None);
    assert_eq!(open(9, FREAD, &file_record((1, 2), 0o100_600, 0, 0, b"")).path, b"");
    assert_eq!(open(9, FREAD, &file_record((1, 2), 0o100_600, 0, 0, &[b'/'; 1023])).path.len(), 1023);

    let (mapped, next) = region(&region_record(3, 0x1000, 0x4000, &file)).unwrap();
    assert_eq!((mapped.descriptor, mapped.writable, mapped.id, next), (None, true, (16_777_220, u64::MAX - 1), 0x5000));
    assert!(!region(&region_record(5, 0x1000, 0x4000, &file)).unwrap().0.writable);
}

#[test]
fn what_is_no_such_record_is_not_understood() {
    let good = descriptor_record(FREAD, &file_record((1, 2), 0o100_600, 1, 0, b"/x"));
    assert_eq!(good.len(), 1200);
    for length in (0..good.len()).step_by(7).chain([1199]) {
        assert_eq!(descriptor(3, &good[..length]), None, "cut to {length} bytes");
        assert_eq!(region(&good[..length]), None);
    }
    // A later version of the system with a longer record.
    assert_eq!(descriptor(3, &[good.as_slice(), &[0; 8]].concat()), None);
    // A path without an end.
    let mut endless = good.clone();
    endless[176..].fill(b'x');
    assert_eq!(descriptor(3, &endless), None);
    assert_eq!(descriptor(3, &vec![0xff; DESCRIPTOR_RECORD]), None);
    assert_eq!(region(&vec![0xff; REGION_RECORD]), None);
    // A region behind which there is no address would be asked for again and again.
    let file = file_record((1, 2), 0o100_600, 1, 0, b"/x");
    assert_eq!(region(&region_record(1, u64::MAX - 1, 4096, &file)), None);
    assert_eq!(region(&region_record(1, 7, 0, &file)).unwrap().1, 8, "an empty region leads on");
}

#[test]
fn garbage_of_any_kind_is_taken_apart_without_harm() {
    let mut state: u64 = std::env::var("STATEHOUSE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_130);
    println!("STATEHOUSE_SEED={state}");
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let directory = tempfile::tempdir().unwrap();
    let target = Target::of(&Family::of(&directory.path().join("state.db")).unwrap()).unwrap();
    for _ in 0..2000 {
        let length = [DESCRIPTOR_RECORD, REGION_RECORD, random() as usize % 2000][random() as usize % 3];
        let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        if random() % 2 == 0
            && let Some(last) = bytes.last_mut()
        {
            *last = 0;
        }
        let found = descriptor(1, &bytes).into_iter().chain(region(&bytes).map(|r| r.0));
        target.held(&found.collect::<Vec<_>>());
        assert!(numbers(&bytes).len() <= length / ENTRY);
    }
}

#[test]
fn of_the_descriptors_only_those_of_files_are_asked_about() {
    let entries: Vec<u8> = [(0, 1), (1, 2), (7, 1), (9, 6)]
        .iter()
        .flat_map(|(n, kind): &(i32, u32)| [n.to_ne_bytes(), kind.to_ne_bytes()].concat())
        .collect();
    assert_eq!(numbers(&entries), [0, 7]);
    assert_eq!(numbers(&entries[..13]), [0], "a half entry is none");
    assert!(numbers(&[]).is_empty());
}

type Processes = BTreeMap<i32, Look>;
type Change = Box<dyn FnOnce(&mut Processes)>;

/// A machine with the processes that a test gives it.
#[derive(Default)]
struct Machine {
    processes: Processes,
    about: BTreeMap<i32, About>,
    unproved: bool,
    /// What happens when a process is looked at for the second time.
    then: Option<Change>,
    looks: usize,
}

impl System for Machine {
    fn prove(&mut self) -> Result<(), String> {
        if self.unproved { Err("the record of /bin/sh is another".to_owned()) } else { Ok(()) }
    }

    fn processes(&mut self) -> std::io::Result<Vec<i32>> {
        Ok(self.processes.keys().copied().collect())
    }

    fn look(&mut self, pid: i32) -> Look {
        self.looks += 1;
        if self.looks == 2
            && let Some(then) = self.then.take()
        {
            then(&mut self.processes);
        }
        self.processes.get(&pid).cloned().unwrap_or(Look::Gone)
    }

    fn about(&mut self, pid: i32) -> About {
        self.about.get(&pid).cloned().unwrap_or_default()
    }
}

struct Home {
    directory: tempfile::TempDir,
    family: Family,
    /// What is open keeps its number; ext4 would hand it to the next file at once.
    _open: Vec<std::fs::File>,
}

impl Home {
    fn new() -> Home {
        let directory = tempfile::tempdir().unwrap();
        let make = |name| std::fs::File::create(directory.path().join(name)).unwrap();
        let open = ["state.db", "state.db-wal", "state.db-shm"].map(make).into();
        let family = Family::of(&directory.path().join("state.db")).unwrap();
        Home { directory, family, _open: open }
    }

    fn record(&self, name: &str) -> Vec<u8> {
        record_of(&self.family.directory().join(name))
    }

    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.directory.path().join(from), self.directory.path().join(to)).unwrap();
    }

    fn whole(&self) -> Look {
        let names = ["state.db", "state.db-wal", "state.db-shm"];
        Look::Files(names.iter().zip(5..).map(|(name, n)| open(n, FREAD_AND_FWRITE, &self.record(name))).collect())
    }

    fn scan(&self, machine: &mut Machine) -> Report {
        scan(&self.family, machine, 100).unwrap()
    }
}

fn machine<const N: usize>(processes: [(i32, Look); N]) -> Machine {
    Machine { processes: processes.into(), ..Machine::default() }
}

#[test]
fn a_holder_is_named_with_its_files_and_what_stops_it() {
    let place = Home::new();
    let stranger = open(3, FREAD, &record_of(Path::new("/etc/passwd")));
    let mut machine =
        machine([(7, place.whole()), (8, Look::Files(vec![stranger])), (9, Look::Gone), (100, place.whole())]);
    let program = Some("/usr/local/bin/her\nmes".to_owned());
    machine.about.insert(7, About { user: Some(501), started: Some(951_827_696_000_001), program });
    let report = place.scan(&mut machine);
    assert_eq!(report.verdict, Verdict::Held);
    assert_eq!(report.uninspected, 0);
    assert!(report.limits[0].contains("no locks"), "{:?}", report.limits);
    let pids: Vec<_> = report.holders.iter().map(|h| (h.pid, h.is_self)).collect();
    assert_eq!(pids, [(Some(7), false), (Some(100), true)]);
    let holder = &report.holders[0];
    assert_eq!(holder.user.as_deref(), Some("501"));
    assert_eq!(holder.start_time.as_deref(), Some("2000-02-29T12:34:56.000001Z"));
    assert_eq!(holder.stop, "kill 7  # /usr/local/bin/her\\nmes");
    assert_eq!(report.holders[1].stop, "kill 100");
    assert!(!report.alarming());
    let files: Vec<_> = holder.files.iter().map(|f| (f.member, f.generation, f.descriptor, f.writable)).collect();
    assert_eq!(
        files,
        [
            (Member::Main, Standing::Current, Some(5), true),
            (Member::Wal, Standing::Current, Some(6), true),
            (Member::Shm, Standing::Current, Some(7), true)
        ]
    );
}

#[test]
fn nobody_is_quiet_and_one_that_cannot_be_looked_at_is_unknown() {
    let place = Home::new();
    let report = place.scan(&mut machine([(7, Look::Files(Vec::new()))]));
    assert_eq!((report.verdict, report.uninspected), (Verdict::Quiet, 0));
    let report = place.scan(&mut machine([(1, Look::Denied), (7, Look::Files(Vec::new()))]));
    assert_eq!((report.verdict, report.uninspected), (Verdict::Unknown, 1));
    assert!(report.limits.iter().any(|l| l.contains("as root")), "{:?}", report.limits);
    // Somebody is known, and there may be more.
    let report = place.scan(&mut machine([(1, Look::Denied), (7, place.whole())]));
    assert_eq!((report.verdict, report.holders.len()), (Verdict::Unknown, 1));
}

#[test]
fn records_that_are_not_understood_prove_nothing() {
    let place = Home::new();
    let mut machine = machine([(7, place.whole()), (8, Look::Files(Vec::new()))]);
    machine.unproved = true;
    let report = place.scan(&mut machine);
    assert_eq!((report.verdict, report.uninspected, report.holders.len()), (Verdict::Unknown, 2, 0));
    assert!(report.limits[0].contains("/bin/sh"), "{:?}", report.limits);
}

#[test]
fn who_writes_into_a_removed_log_is_a_ghost() {
    let place = Home::new();
    let before = place.whole();
    std::fs::remove_file(place.directory.path().join("state.db-wal")).unwrap();
    let report = place.scan(&mut machine([(7, before.clone())]));
    assert!(report.alarming(), "{report:?}");
    assert!(report.holders[0].ghost && !report.holders[0].naked);
    // The same when there is a new one.
    std::fs::write(place.directory.path().join("state.db-wal"), "new").unwrap();
    let report = place.scan(&mut machine([(7, before), (8, place.whole())]));
    assert_eq!(report.holders.iter().map(|h| h.ghost).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_replaced_main_file_makes_a_ghost_though_another_name_still_leads_to_it() {
    let place = Home::new();
    std::fs::hard_link(place.directory.path().join("state.db"), place.directory.path().join("kept")).unwrap();
    let before = place.whole();
    std::fs::write(place.directory.path().join("new"), "new").unwrap();
    place.rename("new", "state.db");
    let report = place.scan(&mut machine([(7, before)]));
    let main = &report.holders[0].files[0];
    assert_eq!((main.member, main.generation, main.deleted), (Member::Main, Standing::Retired, false));
    assert!(report.holders[0].ghost);
}

#[test]
fn who_only_reads_what_was_removed_is_no_ghost() {
    let place = Home::new();
    let wal = open(6, FREAD, &place.record("state.db-wal"));
    std::fs::remove_file(place.directory.path().join("state.db-wal")).unwrap();
    let report = place.scan(&mut machine([(7, Look::Files(vec![wal]))]));
    assert_eq!((report.verdict, report.holders[0].ghost), (Verdict::Held, false));
    assert!(report.limits.iter().any(|l| l.contains("pid 7")), "its main file is elsewhere: {:?}", report.limits);
}

#[test]
fn one_that_is_just_letting_go_is_not_called_a_ghost() {
    let place = Home::new();
    let before = place.whole();
    std::fs::remove_file(place.directory.path().join("state.db-wal")).unwrap();
    std::fs::write(place.directory.path().join("state.db-wal"), "new").unwrap();
    let after = place.whole();
    let mut fickle = machine([(7, before.clone())]);
    fickle.then = Some(Box::new(move |processes| drop(processes.insert(7, after))));
    let report = place.scan(&mut fickle);
    assert!(!report.alarming(), "{report:?}");
    assert_eq!((report.verdict, report.holders.len()), (Verdict::Held, 1));
    // And one that ended is not there.
    let mut ended = machine([(7, before)]);
    ended.then = Some(Box::new(|processes| drop(processes.remove(&7))));
    assert_eq!(place.scan(&mut ended).verdict, Verdict::Quiet);
}

#[test]
fn a_file_of_the_same_name_in_another_place_is_a_stranger() {
    let place = Home::new();
    let other = Home::new();
    let before = other.whole();
    for name in ["state.db", "state.db-wal", "state.db-shm"] {
        std::fs::remove_file(other.directory.path().join(name)).unwrap();
    }
    assert_eq!(place.scan(&mut machine([(7, before)])).verdict, Verdict::Quiet);
    // The name is a directory's, or has nothing before it.
    for path in [b"".as_slice(), b"/", b"state.db", b"/state.db", b"\xff\xfe"] {
        let id = (place.family.generation().unwrap().main.unwrap().device, u64::MAX);
        let record = file_record(id, 0o100_600, 1, 0, path);
        assert_eq!(place.scan(&mut machine([(7, Look::Files(vec![open(3, 3, &record)]))])).verdict, Verdict::Quiet);
    }
}

#[test]
fn another_spelling_of_the_directory_or_the_name_hides_nobody() {
    let place = Home::new();
    let alias = tempfile::tempdir().unwrap();
    let link = alias.path().join("link");
    std::os::unix::fs::symlink(place.directory.path(), &link).unwrap();
    let id = (place.family.generation().unwrap().main.unwrap().device, u64::MAX);
    // As the kernel may spell it: by another way to the same directory, and in the letters of the disk.
    let directory = place.family.directory().as_os_str().as_bytes();
    let last = place.family.directory().file_name().unwrap().as_bytes();
    let by_another_way = [directory, b"/../", last].concat();
    for directory in [directory, &by_another_way] {
        for name in [b"/state.db-wal".as_slice(), b"/State.DB-WAL"] {
            let record = file_record(id, 0o100_600, 0, 0, &[directory, name].concat());
            let report = place.scan(&mut machine([(7, Look::Files(vec![open(3, 3, &record)]))]));
            assert!(report.alarming(), "{}", String::from_utf8_lossy(&[directory, name].concat()));
        }
    }
    let report = scan(&Family::of(&link.join("state.db")).unwrap(), &mut machine([(7, place.whole())]), 1).unwrap();
    assert_eq!(report.holders.len(), 1, "found through a link as well");
    // In its own letters it is another file, and it is there.
    std::fs::write(place.directory.path().join("STATE.db"), "another").unwrap();
    let another = open(3, 3, &place.record("STATE.db"));
    assert_eq!(place.scan(&mut machine([(7, Look::Files(vec![another]))])).verdict, Verdict::Quiet);
}

#[test]
fn a_deleted_file_of_unknown_name_keeps_the_answer_open() {
    let place = Home::new();
    let device = place.family.generation().unwrap().main.unwrap().device;
    let nameless = |device, links, flags| {
        let record = file_record((device, u64::MAX), 0o100_600, links, 0, b"");
        place.scan(&mut machine([(7, Look::Files(vec![open(3, flags, &record)]))]))
    };
    let report = nameless(device, 0, FREAD_AND_FWRITE);
    assert_eq!((report.verdict, report.uninspected), (Verdict::Unknown, 0));
    assert!(report.limits.iter().any(|l| l.contains("not cleared") && l.contains("pid 7")), "{:?}", report.limits);
    assert_eq!(nameless(device + 1, 0, FREAD_AND_FWRITE).verdict, Verdict::Quiet, "it is on another volume");
    assert_eq!(nameless(device, 1, FREAD_AND_FWRITE).verdict, Verdict::Quiet, "it has a name");
    assert_eq!(nameless(device, 0, FREAD).verdict, Verdict::Quiet, "nothing can be written into it");
}

#[test]
fn what_is_mapped_and_closed_is_held() {
    let place = Home::new();
    let index = region(&region_record(3, 0x1000, 0x8000, &place.record("state.db-shm"))).unwrap().0;
    let report = place.scan(&mut machine([(7, Look::Files(vec![index.clone()]))]));
    let file = &report.holders[0].files[0];
    assert_eq!((file.member, file.via, file.descriptor), (Member::Shm, Via::Mapping, None));
    // The same file by descriptor as well is one file.
    let reader = open(4, FREAD, &place.record("state.db-shm"));
    let report = place.scan(&mut machine([(7, Look::Files(vec![reader, index]))]));
    let file = &report.holders[0].files[0];
    assert_eq!(
        (report.holders[0].files.len(), file.via, file.descriptor, file.writable),
        (1, Via::Descriptor, Some(4), true)
    );
}

#[test]
fn a_reused_number_is_another_process() {
    let place = Home::new();
    let before = place.whole();
    std::fs::remove_file(place.directory.path().join("state.db-wal")).unwrap();
    let mut machine = machine([(7, before)]);
    struct Reused<'a>(&'a mut Machine, u64);
    impl System for Reused<'_> {
        fn prove(&mut self) -> Result<(), String> {
            self.0.prove()
        }
        fn processes(&mut self) -> std::io::Result<Vec<i32>> {
            self.0.processes()
        }
        fn look(&mut self, pid: i32) -> Look {
            self.0.look(pid)
        }
        fn about(&mut self, _: i32) -> About {
            self.1 += 1;
            About { started: Some(self.1), ..About::default() }
        }
    }
    assert!(!scan(&place.family, &mut Reused(&mut machine, 0), 1).unwrap().alarming());
    assert!(scan(&place.family, &mut machine, 1).unwrap().alarming(), "the control: the same process all the time");
}
