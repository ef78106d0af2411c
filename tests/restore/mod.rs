//! A good file in the place of a database: live where that can be, by rename where nobody is in the way, and never half.

mod beside;
mod ended;
mod killed;
mod live;
mod own;
mod rebuilt;
mod replaced;
mod sidecars;
mod snapshot;
mod sources;
mod told;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use statehouse_testkit::visitor::{Python, python_once as sql};
use statehouse_testkit::{Finished, run};

use crate::house::{PATIENCE, binary};

/// The program, away from any home.
fn command(arguments: &[&str], paths: &[&Path]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).args(paths).arg("--json").env("STATEHOUSE_HOME", "/nonexistent");
    command
}

/// `restore SOURCE PATH` with more arguments.
fn restore(source: &Path, path: &Path, more: &[&str]) -> Finished {
    run(command(&[&["restore"], more].concat(), &[source, path]).env_remove("SQLITE_TMPDIR"), PATIENCE)
}

/// What makes a database with these rows.
const TABLE: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, x)";

fn fill(from: u32, to: u32, word: &str) -> String {
    format!(
        "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i+1 FROM n WHERE i<{to}) \
         SELECT i, '{word}' || i || hex(zeroblob(100)) FROM n"
    )
}

/// A closed database with rows 1 to `rows` of this word.
fn database(path: &Path, mode: &str, page_size: u32, rows: u32, word: &str) -> PathBuf {
    let (page_size, mode) = (format!("PRAGMA page_size={page_size}"), format!("PRAGMA journal_mode={mode}"));
    sql(path, &[&page_size, &mode, TABLE, &fill(1, rows, word)]);
    path.to_owned()
}

/// What a fresh process of another program sees: how many rows, of which words, and whether all is sound.
fn content(path: &Path) -> Result<Value, String> {
    let mut python = Python::open(path);
    let seen = (|| {
        let sound = python.sql("PRAGMA integrity_check")?;
        let rows = python.sql("SELECT count(*), min(id), max(id), count(DISTINCT substr(x, 1, 3)), min(x) FROM t")?;
        Ok(serde_json::json!([sound, rows]))
    })();
    python.quit();
    seen
}

/// What [`content`] sees of a sound database with rows 1 to `rows` of a word of three letters.
fn expected(rows: u32, word: &str) -> Result<Value, String> {
    let first = format!("{word}1{}", "00".repeat(100));
    Ok(serde_json::json!([[["ok"]], [[rows, 1, rows, 1, first]]]))
}

/// Copies every file of a directory into a new one below it.
fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}
