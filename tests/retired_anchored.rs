//! A ghost and a second generation that both write and checkpoint: with an anchor no row of either is lost, and without one some are.

use std::fs;
use std::path::Path;

use serde_json::Value;
use statehouse_testkit::kernel;
use statehouse_testkit::peers::hermes_python;
use statehouse_testkit::wait::until;
use statehouse_testkit::{Finished, Seed, TestDir, run};

use crate::anchor::Anchor;
use crate::house::{PATIENCE, beside};
use crate::retired_ghosts::captured_as_told;
use crate::retired_merge::{Hermes, Program, command, left_without_locks, merge, number, retired, show, sql, stats};

fn holders(path: &Path) -> Finished {
    run(command(&["holders", "--json"]).arg(path), PATIENCE)
}

/// What `holders` says of one process.
fn holder(path: &Path, pid: u32) -> Value {
    let report: Value = serde_json::from_str(&holders(path).stdout).unwrap();
    let found = report["holders"].as_array().unwrap().iter().find(|h| h["pid"] == pid).cloned();
    found.unwrap_or_else(|| panic!("{pid} is not there: {report:#}"))
}

/// Until the anchor has let go of what was removed.
fn retired_under(anchor: &mut Anchor) {
    assert_eq!(anchor.told("released")["why"], "retired");
    anchor.told("anchored");
}

/// A thousand messages each, in turns, and both copy their logs into the main file as they like.
fn both_write(ghost: &mut Hermes, second: &mut Hermes) {
    for _ in 0..5 {
        ghost.order("ghost 200");
        second.order("second 200");
    }
}

const KINDS: [(&str, u64); 3] = [("before", 10), ("ghost", 1000), ("second", 1000)];

fn of(path: &Path, kind: &str) -> u64 {
    number(path, &format!("SELECT count(*) FROM messages WHERE content LIKE '{kind} %'"))
}

#[test]
fn with_an_anchor_a_ghost_of_hermes_and_a_second_one_lose_no_message_though_both_checkpoint() {
    let Some(interpreter) = hermes_python() else { return };
    let directory = TestDir::new();
    let store = directory.join("state.db");
    let mut ghost = Hermes::on(&interpreter, &store, "ghost");
    ghost.order("before 10");
    let mut anchor = Anchor::on(&store);
    let mut ghost = left_without_locks(&interpreter, &store, ghost);
    retired_under(&mut anchor);
    let mut second = Hermes::on(&interpreter, &store, "second");
    until("the main file stays as it is", PATIENCE, || is_braked(&beside(&store, "-shm")));
    both_write(&mut ghost, &mut second);
    let (of_ghost, of_anchor) = (holder(&store, ghost.0.pid()), holder(&store, anchor.0.pid()));
    assert_eq!((&of_ghost["ghost"], &of_ghost["kept_back"]), (&true.into(), &true.into()), "{of_ghost:#}");
    for wrong in ["ghost", "naked", "kept_back"] {
        assert_eq!(of_anchor[wrong], false, "{of_anchor:#}");
    }
    assert_eq!(of_anchor["locks"]["checkpoint"], false, "it copies nothing: {of_anchor:#}");
    let id = captured_as_told(&store);
    // A capture is no reason to let it go on.
    ghost.order("later 300");
    assert_eq!(holder(&store, ghost.0.pid())["kept_back"], true);
    let id_of_all = captured_as_told(&store);
    assert_ne!(id, id_of_all);
    ghost.0.kill();
    assert_eq!(sql(&store, "PRAGMA integrity_check"), ["ok"]);
    let there = number(&store, "SELECT count(*) FROM messages");
    let own = of(&store, "ghost") + of(&store, "later");
    assert!(own < 1300, "the control: all of the ghost is there without a merge");
    let before = of(&store, "before");
    let shown = show(&id_of_all, &store);
    let counted = &shown["tables"]["messages"];
    let missing = counted["missing"].as_u64().unwrap() + counted["renumbered"].as_u64().unwrap();
    assert_eq!(missing, 1300 - own + 10 - before, "{shown:#}");
    assert_eq!(counted["conflicting"], 0, "{shown:#}");
    assert!(shown["gone"].as_array().is_none_or(Vec::is_empty), "{shown:#}");
    merge(&id_of_all, &store);
    second.order("after 4");
    for (kind, messages) in KINDS.into_iter().chain([("later", 300), ("after", 4)]) {
        assert_eq!(of(&store, kind), messages, "{kind}");
    }
    assert_eq!(number(&store, "SELECT count(*) FROM messages"), there + missing + 4);
    assert_eq!(sql(&store, "PRAGMA integrity_check"), ["ok"]);
    second.0.close_input();
    second.0.wait(PATIENCE);
    let said = stats(&interpreter, &store);
    assert!(said.contains("2314") || said.contains("2,314"), "{said}");
    assert_eq!(merge(&id_of_all, &store)["rows"], 0);
    until("what was captured and is written no more is let go of", PATIENCE, || {
        let of_anchor = holder(&store, anchor.0.pid());
        of_anchor["files"].as_array().unwrap().iter().all(|f| f["generation"] == "current")
    });
    assert_eq!(sql(&store, "PRAGMA wal_checkpoint(TRUNCATE)"), ["0 0 0"], "and the log can be copied again");
    anchor.stop();
}

/// What can be had after the same without an anchor.
#[test]
fn without_an_anchor_the_same_two_lose_messages_for_good() {
    let Some(interpreter) = hermes_python() else { return };
    let directory = TestDir::new();
    let store = directory.join("state.db");
    let mut ghost = Hermes::on(&interpreter, &store, "ghost");
    ghost.order("before 10");
    let mut ghost = left_without_locks(&interpreter, &store, ghost);
    let mut second = Hermes::on(&interpreter, &store, "second");
    // One of them may find that it is no database any more, and end.
    'turns: for _ in 0..5 {
        for (hermes, order) in [(&mut ghost, "ghost 200"), (&mut second, "second 200")] {
            hermes.0.send(order);
            if hermes.0.try_line(PATIENCE).is_none() {
                break 'turns;
            }
        }
    }
    let id = captured(&store);
    ghost.0.kill();
    second.0.kill();
    let shown = show(&id, &store);
    assert!(shown["gone"].as_array().is_some_and(|gone| !gone.is_empty()), "the control: something is gone: {shown:#}");
}

/// Another program's database, and an anchor on it if one is wanted.
fn database(directory: &TestDir, anchored: bool) -> (std::path::PathBuf, Option<Anchor>) {
    let path = directory.join("app.db");
    sql(&path, "PRAGMA journal_mode=wal;CREATE TABLE t(id INTEGER PRIMARY KEY, v);INSERT INTO t VALUES(1, 'both')");
    let anchor = anchored.then(|| Anchor::on(&path));
    (path, anchor)
}

/// A program on the database whose log the anchor has taken hold of.
fn program(path: &Path, anchor: Option<&Anchor>) -> Program {
    let mut program = Program::on(path);
    program.sql(&["INSERT INTO t VALUES(2, 'both')"]);
    if let Some(anchor) = anchor {
        let log = beside(path, "-wal");
        until("the log is held", PATIENCE, || kernel::descriptors(anchor.0.pid()).iter().any(|d| d.path == log));
    }
    program
}

/// Captures what anybody has, and answers the id.
fn captured(path: &Path) -> String {
    let taken = run(command(&["retired", "capture", "--all", "--json"]).arg(path), PATIENCE).json();
    assert_eq!(taken["captures"].as_array().map(Vec::len), Some(1), "{taken:#}");
    taken["captures"][0]["id"].as_str().unwrap().to_owned()
}

fn rows(first: u32, text: &str) -> String {
    let last = first + 999;
    format!(
        "WITH n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) \
         INSERT INTO t SELECT i, '{text} ' || i || hex(zeroblob(200)) FROM n"
    )
}

#[test]
fn a_ghost_that_closes_in_an_orderly_way_runs_over_nothing_and_its_rows_are_with_the_anchor() {
    for anchored in [true, false] {
        let directory = TestDir::new();
        let (path, anchor) = database(&directory, anchored);
        let mut ghost = program(&path, anchor.as_ref());
        ghost.sql(&["PRAGMA wal_checkpoint"]);
        for suffix in ["-wal", "-shm"] {
            fs::remove_file(beside(&path, suffix)).unwrap();
        }
        let mut anchor = anchor;
        anchor.iter_mut().for_each(retired_under);
        let mut second = Program::on(&path);
        second.sql(&[&rows(10_000, "second"), "PRAGMA wal_checkpoint"]);
        // Nothing but the anchor holds the database.
        second.touch(&[path.clone(), beside(&path, "-shm")]);
        ghost.sql(&[&rows(20_000, "ghost"), "PRAGMA wal_checkpoint(TRUNCATE)"]);
        second.sql(&[&rows(30_000, "second")]);
        let log = fs::metadata(beside(&path, "-wal")).unwrap();
        ghost.0.close_input();
        ghost.0.wait(PATIENCE);
        if let Some(anchor) = anchor {
            let same = fs::metadata(beside(&path, "-wal")).is_ok_and(|now| same_file(&now, &log));
            assert!(same, "the log of the second one is in its place");
            let id = captured(&path);
            second.sql(&["PRAGMA wal_checkpoint"]);
            second.0.kill();
            assert_eq!(show(&id, &path)["tables"]["t"]["missing"], 1000);
            merge(&id, &path);
            assert_eq!(number(&path, "SELECT count(*) FROM t"), 3002);
            assert_eq!(sql(&path, "PRAGMA integrity_check"), ["ok"]);
            anchor.stop();
        } else {
            assert!(
                !beside(&path, "-wal").exists(),
                "the control: the close of the ghost takes the log of another away"
            );
        }
    }
}

fn same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Rows of the two lie between each other, so that each reads pages that the other one would have copied into the main file.
#[test]
fn rows_of_both_that_lie_side_by_side_are_all_kept_while_both_checkpoint_all_the_time() {
    let mut seed = Seed::of_run("rows_of_both_that_lie_side_by_side");
    for round in 0..4 {
        // The last one is the control.
        let anchored = round < 3;
        let directory = TestDir::new();
        let (path, anchor) = database(&directory, anchored);
        sql(
            &path,
            "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) \
             INSERT INTO t SELECT i * 10000, hex(randomblob(150)) FROM n",
        );
        let mut ghost = program(&path, anchor.as_ref());
        for suffix in ["-wal", "-shm"] {
            fs::remove_file(beside(&path, suffix)).unwrap();
        }
        let mut anchor = anchor;
        anchor.iter_mut().for_each(retired_under);
        let mut second = Program::on(&path);
        second.sql(&["SELECT count(*) FROM t"]);
        if anchored {
            until("the main file stays as it is", PATIENCE, || is_braked(&beside(&path, "-shm")));
        }
        let mut written = 0;
        for _ in 0..60 {
            let (who, writer) = if seed.one_in(2) { (1, &mut ghost) } else { (2, &mut second) };
            let copies = seed.one_in(2).then(|| "PRAGMA wal_checkpoint(TRUNCATE)".to_owned());
            let statements: Vec<String> = (0..=seed.below(20))
                .map(|_| {
                    written += 1;
                    // Two different ones never have the same.
                    let id = (written * 2 + who) * 1_000_003 % 20_000_003;
                    let length = [5, 60, 500][usize::try_from(seed.below(3)).unwrap()];
                    format!("INSERT INTO t VALUES({id}, 'w{who} ' || hex(randomblob({length})))")
                })
                .chain(copies)
                .collect();
            let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
            if !writer.tried(&statements) {
                assert!(!anchored, "with an anchor everybody can go on");
                break;
            }
        }
        let id = captured(&path);
        ghost.0.kill();
        second.0.kill();
        if anchored {
            let shown = show(&id, &path);
            assert!(shown["gone"].as_array().is_none_or(Vec::is_empty), "{shown:#}");
            merge(&id, &path);
            assert_eq!(sql(&path, "PRAGMA integrity_check"), ["ok"]);
            assert_eq!(number(&path, "SELECT count(*) FROM t WHERE v LIKE 'w_ %'"), written);
        } else {
            let shown = retired(&["show", &id], &path);
            let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
            assert!(
                shown["gone"].as_array().is_none_or(|g| !g.is_empty()),
                "the control: something is gone: {shown:#}"
            );
        }
        anchor.into_iter().for_each(|a| drop(a.stop()));
    }
}

/// True if somebody keeps checkpointers away from this index.
fn is_braked(index: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let lock = format!(":{} 121 121", fs::metadata(index).unwrap().ino());
    fs::read_to_string("/proc/locks").unwrap().lines().any(|l| l.contains(" READ ") && l.ends_with(&lock))
}

#[test]
fn a_generation_that_comes_back_to_its_paths_is_held_and_checkpointed_as_before() {
    let directory = TestDir::new();
    let (path, anchor) = database(&directory, true);
    let mut anchor = anchor.unwrap();
    let mut program = program(&path, Some(&anchor));
    fs::create_dir(directory.join("away")).unwrap();
    let away = |suffix: &str| beside(&directory.join("away/app.db"), suffix);
    for _ in 0..3 {
        for suffix in ["-wal", "-shm"] {
            fs::rename(beside(&path, suffix), away(suffix)).unwrap();
        }
        assert_eq!(anchor.told("released")["why"], "retired");
        until("it is kept back", PATIENCE, || is_braked(&away("-shm")));
        program.sql(&["INSERT INTO t(v) VALUES('meanwhile')"]);
        for suffix in ["-wal", "-shm"] {
            fs::rename(away(suffix), beside(&path, suffix)).unwrap();
        }
        until("it is held again", PATIENCE, || anchor.holds(&path));
        until("it is not kept back", PATIENCE, || !is_braked(&beside(&path, "-shm")));
        assert_eq!(sql(&path, "PRAGMA wal_checkpoint(TRUNCATE)"), ["0 0 0"], "and nobody is kept from copying the log");
    }
    // All three are a database under another name, which is in nobody's hands when its program has ended.
    for suffix in ["-wal", "-shm", ""] {
        fs::rename(beside(&path, suffix), away(suffix)).unwrap();
    }
    program.0.kill();
    assert_eq!(sql(&away(""), "SELECT count(*) FROM t;PRAGMA wal_checkpoint(TRUNCATE)"), ["5", "0 0 0"]);
    anchor.stop();
}
