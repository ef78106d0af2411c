//! What destroys bytes in place, under the same identity, is noticed at once and stops the writing; what only looks like it
//! does not.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use statehouse_testkit::home::TestDir;
use statehouse_testkit::wait::{until, until_some};

use crate::holder::Holder;
use crate::support::{Random, Sibling, visitor, with};

const SOON: Duration = Duration::from_secs(20);

/// What somebody does to a database under a running process.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Deed {
    EmptyMain,
    EmptyLog,
    HalveLog,
    EmptyIndex,
    HalveIndex,
    ForeignMain,
    OlderMain,
    GarbageMain,
    GarbageLogHeader,
}

impl Deed {
    const ALL: [Deed; 9] = [
        Deed::EmptyMain,
        Deed::EmptyLog,
        Deed::HalveLog,
        Deed::EmptyIndex,
        Deed::HalveIndex,
        Deed::ForeignMain,
        Deed::OlderMain,
        Deed::GarbageMain,
        Deed::GarbageLogHeader,
    ];

    /// Which file is destroyed.
    fn suffix(self) -> &'static str {
        match self {
            Deed::EmptyMain | Deed::ForeignMain | Deed::OlderMain | Deed::GarbageMain => "",
            Deed::EmptyLog | Deed::HalveLog | Deed::GarbageLogHeader => "-wal",
            Deed::EmptyIndex | Deed::HalveIndex => "-shm",
        }
    }

    fn commit(self, files: &Files) {
        let file = with(&files.path, self.suffix());
        let length = |n| std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(n).unwrap();
        let now = std::fs::metadata(&file).unwrap().len();
        match self {
            Deed::EmptyMain | Deed::EmptyLog | Deed::EmptyIndex => length(0),
            // A log that was begun anew is longer than what is in use of it.
            Deed::HalveLog => length(32 + frames(&files.path) / 2 * (24 + 4096)),
            Deed::HalveIndex => length(now / 2),
            Deed::ForeignMain => drop(std::fs::copy(&files.foreign, &file).unwrap()),
            Deed::OlderMain => drop(std::fs::copy(&files.older, &file).unwrap()),
            Deed::GarbageMain => overwrite(&file, &[0xa5; 4096], 0),
            Deed::GarbageLogHeader => overwrite(&file, &[0xa5; 32], 0),
        }
    }
}

fn overwrite(file: &Path, bytes: &[u8], at: u64) {
    use std::os::unix::fs::FileExt;
    std::fs::OpenOptions::new().write(true).open(file).unwrap().write_all_at(bytes, at).unwrap();
}

/// How many frames of the log are in use, by the word of the index.
fn frames(path: &Path) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut word = [0; 4];
    let index = std::fs::File::open(with(path, "-shm")).unwrap();
    index.read_exact_at(&mut word, 16).unwrap();
    u64::from(u32::from_ne_bytes(word))
}

#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) path: PathBuf,
    /// A database of somebody else's.
    foreign: PathBuf,
    /// The main file as it was before half of the rows.
    pub(crate) older: PathBuf,
}

/// A store with rows in the main file and rows that are only in the log.
pub(crate) struct Scene {
    _directory: TestDir,
    pub(crate) files: Files,
    pub(crate) holder: Holder,
    pub(crate) acknowledged: u32,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let directory = TestDir::new();
        let path = directory.join("s.db");
        let (foreign, older) = (directory.join("foreign"), directory.join("older"));
        visitor(&foreign, "CREATE TABLE other(a, b); INSERT INTO other VALUES(1, randomblob(20000))");
        let mut holder = Holder::with_store(&path);
        let mut acknowledged = 0;
        for n in 0..30 {
            holder.ok(&format!("put early{n}"));
            acknowledged += 1;
        }
        checkpoint(&path, "PASSIVE");
        std::fs::copy(&path, &older).unwrap();
        for n in 0..30 {
            holder.ok(&format!("put middle{n}"));
            acknowledged += 1;
        }
        checkpoint(&path, "TRUNCATE");
        for n in 0..5 {
            holder.ok(&format!("put late{n}"));
            acknowledged += 1;
        }
        Scene { _directory: directory, files: Files { path, foreign, older }, holder, acknowledged }
    }

    fn bytes(&self, suffix: &str) -> Vec<u8> {
        std::fs::read(with(&self.files.path, suffix)).unwrap()
    }

    fn evidence(&self) -> Vec<PathBuf> {
        let retired = with(&self.files.path, ".statehouse").join("retired");
        let Ok(entries) = std::fs::read_dir(retired) else { return Vec::new() };
        let all = entries.map(|e| e.unwrap().path());
        all.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("destroyed-")).collect()
    }

    /// What must hold from the notice on, for a deed that cannot be undone.
    fn stopped(&mut self, deed: Deed, before: &[Vec<u8>; 2]) {
        until("the handle says that it did not go on", SOON, || self.holder.events().contains("NotReopened"));
        let after = self.bytes(deed.suffix());
        let began = Instant::now();
        for n in 0..3 {
            let refused = self.holder.order(&format!("put never{n}")).unwrap_err();
            assert!(refused.starts_with("destroyed "), "{refused}");
        }
        let refused = self.holder.order("count").unwrap_err();
        assert!(refused.starts_with("destroyed "), "{refused}");
        assert!(began.elapsed() < Duration::from_secs(5), "a clear answer comes at once: {:?}", began.elapsed());
        assert!(self.bytes(deed.suffix()) == after, "{deed:?}: what is left was written into");
        let evidence = self.evidence();
        assert_eq!(evidence.len(), 1, "{evidence:?} {}", self.holder.events());
        let kept = if deed.suffix().is_empty() { ("wal.captured", &before[1]) } else { ("main.captured", &before[0]) };
        assert!(std::fs::read(evidence[0].join(kept.0)).unwrap().starts_with(kept.1), "{deed:?}: the rest is kept");
        // Nobody of ours begins on it either, and is told where everything is.
        let refused = Holder::start().order(&format!("open {}", self.files.path.display())).unwrap_err();
        assert!(refused.starts_with("refused_destroyed "), "{refused}");
        assert!(refused.contains("/retired/destroyed-"), "{refused}");
    }
}

pub(crate) fn checkpoint(path: &Path, mode: &str) {
    visitor(path, &format!("PRAGMA busy_timeout=5000; PRAGMA wal_checkpoint({mode})"));
}

fn while_idle(deed: Deed) {
    let mut scene = Scene::new();
    let before = [scene.bytes(""), scene.bytes("-wal")];
    // A look of its own at the state that is destroyed then.
    std::thread::sleep(Duration::from_millis(600));
    deed.commit(&scene.files);
    let done = Instant::now();
    until("the handle notices", SOON, || scene.holder.events().contains("Fenced"));
    eprintln!("{deed:?}: noticed after {:?}: {}", done.elapsed(), scene.holder.events());
    if deed.suffix() == "-shm" {
        return goes_on(scene);
    }
    scene.stopped(deed, &before);
}

/// An index says nothing that the log does not say.
fn goes_on(mut scene: Scene) {
    until("the handle goes on", SOON, || scene.holder.events().contains("Reopened"));
    scene.holder.ok("put again");
    assert_eq!(scene.holder.ok("count"), (scene.acknowledged + 1).to_string(), "{}", scene.holder.events());
    assert_eq!(visitor(&scene.files.path, "SELECT count(*) FROM k"), (scene.acknowledged + 1).to_string());
    assert_eq!(visitor(&scene.files.path, "PRAGMA integrity_check"), "ok");
}

fn while_writing(deed: Deed) {
    let mut scene = Scene::new();
    let destroyed = AtomicBool::new(false);
    let files = scene.files.clone();
    let mut refusal = None;
    std::thread::scope(|s| {
        s.spawn(|| {
            // Some way from the next checkpoint, after which the log is begun anew and nobody misses what was in it.
            let begun = frames(&files.path);
            until("some are written", SOON, || frames(&files.path) > begun + 20);
            deed.commit(&files);
            destroyed.store(true, Ordering::SeqCst);
        });
        for n in 0.. {
            let after = destroyed.load(Ordering::SeqCst);
            match scene.holder.order(&format!("put w{n}")) {
                Ok(_) if after && deed.suffix() != "-shm" => {
                    panic!("{deed:?}: acknowledged after the destruction; {}", scene.holder.events())
                }
                Ok(_) => scene.acknowledged += 1,
                Err(e) => {
                    refusal = Some(e);
                    break;
                }
            }
            if after && scene.holder.events().contains("Reopened") {
                break;
            }
        }
    });
    eprintln!("{deed:?}: {refusal:?}: {}", scene.holder.events());
    if deed.suffix() == "-shm" {
        // One that was refused may be there all the same.
        until("the handle goes on", SOON, || scene.holder.events().contains("Reopened"));
        let count: u32 = scene.holder.ok("count").parse().unwrap();
        let least = scene.acknowledged;
        assert!((least..=least + 1).contains(&count), "{count} of {least}");
        assert_eq!(visitor(&scene.files.path, "PRAGMA integrity_check"), "ok");
        return;
    }
    let refusal = refusal.unwrap();
    assert!(refusal.starts_with("destroyed "), "{refusal}");
    let main = if deed.suffix().is_empty() { Vec::new() } else { scene.bytes("") };
    scene.stopped(deed, &[main, Vec::new()]);
}

macro_rules! deeds {
    ($($idle:ident, $writing:ident, $deed:ident;)*) => {
        $(
            #[test]
            fn $idle() {
                while_idle(Deed::$deed);
            }

            #[test]
            fn $writing() {
                while_writing(Deed::$deed);
            }
        )*

        #[test]
        fn every_deed_has_its_tests() {
            assert_eq!([$(Deed::$deed),*], Deed::ALL);
        }
    };
}

deeds! {
    an_emptied_main_file_stops_an_idle_handle, an_emptied_main_file_stops_a_writer, EmptyMain;
    an_emptied_log_stops_an_idle_handle, an_emptied_log_stops_a_writer, EmptyLog;
    half_a_log_stops_an_idle_handle, half_a_log_stops_a_writer, HalveLog;
    an_emptied_index_is_made_anew_under_an_idle_handle, an_emptied_index_is_made_anew_under_a_writer, EmptyIndex;
    half_an_index_is_made_anew_under_an_idle_handle, half_an_index_is_made_anew_under_a_writer, HalveIndex;
    a_foreign_database_copied_over_the_main_file_stops_an_idle_handle, a_foreign_database_copied_over_the_main_file_stops_a_writer, ForeignMain;
    an_older_copy_over_the_main_file_stops_an_idle_handle, an_older_copy_over_the_main_file_stops_a_writer, OlderMain;
    garbage_over_the_main_file_stops_an_idle_handle, garbage_over_the_main_file_stops_a_writer, GarbageMain;
    garbage_over_the_head_of_the_log_stops_an_idle_handle, garbage_over_the_head_of_the_log_stops_a_writer, GarbageLogHeader;
}

#[test]
fn after_a_person_has_removed_the_mark_the_store_can_be_opened() {
    let scene = Scene::new();
    checkpoint(&scene.files.path, "TRUNCATE");
    let good = scene.bytes("");
    std::thread::sleep(Duration::from_millis(600));
    Deed::ForeignMain.commit(&scene.files);
    until("the handle stops", SOON, || scene.holder.events().contains("NotReopened"));
    std::fs::write(&scene.files.path, good).unwrap();
    std::fs::remove_file(with(&scene.files.path, ".statehouse").join("destroyed.json")).unwrap();
    goes_on(scene);
}

#[test]
fn without_the_mark_the_content_is_proved_again() {
    let mut scene = Scene::new();
    std::thread::sleep(Duration::from_millis(600));
    Deed::ForeignMain.commit(&scene.files);
    until("the handle stops", SOON, || scene.holder.events().contains("NotReopened"));
    let mark = with(&scene.files.path, ".statehouse").join("destroyed.json");
    std::fs::remove_file(&mark).unwrap();
    until("the mark is there again", SOON, || mark.exists());
    assert!(scene.holder.order("put never").unwrap_err().starts_with("destroyed "));
}

#[test]
fn garbage_in_the_middle_of_the_main_file_is_found_before_writing_goes_on() {
    let mut scene = Scene::new();
    checkpoint(&scene.files.path, "TRUNCATE");
    std::thread::sleep(Duration::from_millis(600));
    overwrite(&scene.files.path, &[0xa5; 3000], 4096);
    until("the handle stops", SOON, || scene.holder.events().contains("NotReopened"));
    assert!(scene.holder.order("put never").unwrap_err().starts_with("destroyed "), "{}", scene.holder.events());
}

#[test]
fn garbage_in_a_page_that_opening_needs_is_told_as_destroyed_and_not_looked_into_for_ever() {
    let mut scene = Scene::new();
    let path = scene.files.path.clone();
    let long = "a_column_with_a_long_name TEXT NOT NULL DEFAULT 'and a long default value'";
    // Of a file of this size most pages have no sum that is remembered.
    let tables: Vec<String> = (0..120).map(|n| format!("CREATE TABLE filler_{n}({long})")).collect();
    visitor(&path, &format!("CREATE TABLE big AS SELECT zeroblob(800000) AS v; {}", tables.join(";")));
    visitor(&path, "INSERT INTO big SELECT zeroblob(800000)");
    checkpoint(&path, "TRUNCATE");
    scene.holder.ok("put before");
    checkpoint(&path, "TRUNCATE");
    std::thread::sleep(Duration::from_millis(600));
    let of_the_schema = visitor(&path, "SELECT pageno FROM dbstat WHERE name='sqlite_schema' AND pagetype='leaf'");
    let pages: Vec<u64> = of_the_schema.lines().map(|l| l.parse().unwrap()).collect();
    let one = pages.iter().find(|page| **page > 100 && **page % 3 != 0).unwrap_or_else(|| panic!("{pages:?}"));
    overwrite(&path, &[0xa5; 4096], (one - 1) * 4096);
    let told = until_some("it is told", SOON, || {
        let said = scene.holder.order("put never").unwrap_err();
        said.starts_with("destroyed ").then_some(said)
    });
    assert!(scene.holder.events().contains("is being checked"), "the control: {}", scene.holder.events());
    assert!(told.contains("written into by another program"), "{told}");
    until("what is left is copied", SOON, || scene.evidence().len() == 1);
}

#[test]
fn an_index_that_is_cut_off_again_and_again_kills_no_process_of_ours() {
    let mut random = Random::new("cutting the index off");
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut holders: Vec<Holder> = (0..3).map(|_| Holder::with_store(&path)).collect();
    let mut acknowledged = 0;
    for round in 0..60 {
        for (n, holder) in holders.iter_mut().enumerate() {
            holder.send(&format!("put r{round}h{n}"));
        }
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        let length = [0, 3, 40, 100, 5000, 20000][random.below(6) as usize];
        let index = std::fs::OpenOptions::new().write(true).open(with(&path, "-shm"));
        index.unwrap().set_len(length).unwrap();
        for holder in &mut holders {
            acknowledged += usize::from(holder.answer().is_ok());
        }
    }
    let count: usize = holders[0].ok("count").parse().unwrap();
    assert!(count >= acknowledged, "{count} of {acknowledged} rows are left");
    for holder in &mut holders {
        assert_eq!(holder.ok("count"), count.to_string());
    }
    eprintln!("{acknowledged} of 180 were acknowledged, {count} are there");
    assert!(acknowledged > 100, "{acknowledged}: {}", holders[0].events());
    assert_eq!(visitor(&path, "SELECT count(*) FROM k"), count.to_string());
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
}

#[test]
fn without_the_core_an_index_that_is_cut_off_kills_its_process() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut holder = Holder::with_database(&path, false);
    let index = std::fs::OpenOptions::new().write(true).open(with(&path, "-shm")).unwrap();
    index.set_len(0).unwrap();
    holder.send("sql a SELECT count(*) FROM m");
    until("it is dead", SOON, || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", holder.pid())).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|s| s.trim_start().starts_with(['Z', 'X'])) || stat.is_empty()
    });
}

fn touch(path: &Path) {
    let now = std::fs::FileTimes::new().set_modified(std::time::SystemTime::now());
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_times(now).unwrap();
}

#[test]
fn what_leaves_the_content_as_it_is_stops_nobody() {
    use std::os::unix::fs::PermissionsExt;
    let mut scene = Scene::new();
    let mode = |file: &Path, bits| std::fs::set_permissions(file, std::fs::Permissions::from_mode(bits)).unwrap();
    for n in 0..5 {
        for suffix in ["", "-wal", "-shm"] {
            let file = with(&scene.files.path, suffix);
            mode(&file, 0o640);
            mode(&file, 0o600);
        }
        std::thread::sleep(Duration::from_millis(300));
        scene.holder.ok(&format!("put c{n}"));
    }
    assert_eq!(scene.holder.events(), "", "a change of mode is no reason to stop");
    for n in 0..5 {
        for suffix in ["", "-wal", "-shm"] {
            touch(&with(&scene.files.path, suffix));
        }
        std::thread::sleep(Duration::from_millis(300));
        scene.holder.ok(&format!("put t{n}"));
    }
    let events = scene.holder.events();
    assert!(!events.contains("NotReopened"), "{events}");
    assert_eq!(scene.holder.ok("count"), (scene.acknowledged + 10).to_string());
    assert_eq!(scene.evidence().len(), 0);
}

#[test]
fn a_storm_of_strangers_that_rewrite_everything_by_the_book_is_no_alarm() {
    let mut random = Random::new("strangers by the book");
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut holders: Vec<Holder> = (0..3).map(|_| Holder::with_store(&path)).collect();
    let seconds = 12;
    for (n, holder) in holders.iter_mut().enumerate() {
        holder.send(&format!("tight {seconds} {}", directory.join(format!("log{n}")).display()));
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut stayer = Sibling::connected(&path);
    stayer.sql("PRAGMA journal_size_limit=20000");
    let (mut deeds, mut failed) = (0, 0);
    while Instant::now() < end {
        let sql = match random.below(7) {
            0 => "VACUUM",
            1 => "PRAGMA wal_checkpoint(TRUNCATE)",
            2 => "PRAGMA wal_checkpoint(RESTART)",
            3 => "PRAGMA wal_checkpoint(FULL)",
            4 => "PRAGMA wal_checkpoint(PASSIVE)",
            5 => "CREATE TABLE IF NOT EXISTS s(a); INSERT INTO s VALUES(randomblob(100000)); DROP TABLE s",
            _ => "PRAGMA journal_size_limit=0; CREATE TABLE IF NOT EXISTS l(a); INSERT INTO l VALUES(1)",
        };
        deeds += 1;
        if random.below(2) == 0 {
            let run =
                std::process::Command::new("sqlite3").arg("-cmd").arg(".timeout 2000").arg(&path).arg(sql).output();
            failed += u32::from(!run.unwrap().status.success());
        } else {
            for statement in sql.split(';') {
                failed += u32::from(stayer.order(serde_json::json!({ "sql": statement })).is_err());
            }
        }
    }
    let mut commits = 0;
    for holder in &mut holders {
        commits += holder.answer().unwrap().parse::<u32>().unwrap();
        assert_eq!(holder.events(), "", "no alarm");
    }
    eprintln!("{commits} commits beside {deeds} deeds of strangers, {failed} of which were busy");
    assert!(commits > 300 && deeds > failed * 2, "{commits} {deeds} {failed}");
    assert_eq!(visitor(&path, "SELECT count(*) FROM k"), commits.to_string());
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
}
