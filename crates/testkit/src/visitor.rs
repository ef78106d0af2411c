//! Other programs that use the same database: Debian's `sqlite3` and Python's `sqlite3`, driven line by line, so that a
//! test can hold one open at an exact point.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::need;
use crate::process::{Child, Finished, run};

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The `sqlite3` command with a database open.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    errors: String,
}

impl Shell {
    /// Opens `database`; `None` after saying that the test is skipped where there is no `sqlite3`.
    pub fn open(database: &Path) -> Option<Shell> {
        let program = need::command("sqlite3")?;
        // Its errors go where its answers go: on two streams nobody could tell whether all of them have come.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(program);
        assert!(database.is_absolute(), "{}", database.display());
        // `-batch` and no init file: nothing of the developer's own settings; an absolute path is never an option.
        command.args(["-batch", "-init", "/dev/null", "-cmd", ".timeout 10000"]).arg(database);
        let mut child = Child::spawn(&mut command);
        child.send(".bail off");
        Some(Shell { child, errors: String::new() })
    }

    /// Runs SQL and returns its output lines, errors among them (`Error: ...`, `Runtime error ...`, `Parse error ...`).
    pub fn sql(&mut self, sql: &str) -> Vec<String> {
        const END: &str = "\u{1}end of answer";
        self.child.send(sql);
        self.child.send(&format!(".print \"{END}\""));
        let mut lines = Vec::new();
        loop {
            let line = self.child.line(DEADLINE);
            if line == END {
                return lines;
            }
            if ["Error", "Runtime error", "Parse error"].iter().any(|begin| line.starts_with(begin)) {
                self.errors.push_str(&line);
                self.errors.push('\n');
            }
            lines.push(line);
        }
    }

    /// The errors that it has answered with so far, a line each.
    pub fn errors(&self) -> &str {
        &self.errors
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Leaves in the ordinary way: the database is closed.
    pub fn quit(mut self) {
        self.child.close_input();
        self.child.wait(DEADLINE);
    }
}

/// One run of the `sqlite3` command: opens, runs `sql`, closes. `None` where there is no `sqlite3`.
pub fn shell_once(database: &Path, sql: &str) -> Option<Finished> {
    let program = need::command("sqlite3")?;
    let mut command = Command::new(program);
    command.args(["-batch", "-init", "/dev/null", "-cmd", ".timeout 10000"]).arg(database).arg(sql);
    Some(run(&mut command, DEADLINE))
}

/// The interpreter itself. What `python3` names may be a script of a version manager that starts a dozen processes first.
pub fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let mut ask = Command::new("python3");
        ask.args(["-I", "-c", "import sys; print(sys.executable)"]);
        PathBuf::from(run(&mut ask, DEADLINE).success().stdout.trim())
    })
}

const PYTHON: &str = r#"
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
for line in sys.stdin:
    try:
        answer = {"rows": [list(row) for row in connection.execute(json.loads(line))]}
    except sqlite3.Error as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
connection.close()
"#;

/// Python's `sqlite3` with a database open.
#[derive(Debug)]
pub struct Python {
    child: Child,
}

impl Python {
    /// Opens `database`.
    pub fn open(database: &Path) -> Python {
        Python::open_with(database, |_| {})
    }

    /// Opens `database` in a process that `prepare` has changed, for example by arming it with the adversary.
    pub fn open_with(database: &Path, prepare: impl FnOnce(&mut Command)) -> Python {
        let mut command = Command::new(python());
        command.args(["-I", "-c", PYTHON]).arg(database);
        prepare(&mut command);
        Python { child: Child::spawn(&mut command) }
    }

    /// Runs one statement and returns its rows.
    ///
    /// # Errors
    /// What SQLite said.
    pub fn sql(&mut self, sql: &str) -> Result<Vec<Value>, String> {
        self.child.send(&Value::from(sql).to_string());
        let answer: Value = serde_json::from_str(&self.child.line(DEADLINE)).expect("JSON from the Python visitor");
        match (&answer["rows"], &answer["error"]) {
            (Value::Array(rows), _) => Ok(rows.clone()),
            (_, error) => Err(error.as_str().unwrap_or_default().to_owned()),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Leaves in the ordinary way: the database is closed.
    pub fn quit(mut self) {
        self.child.close_input();
        self.child.wait(DEADLINE);
    }
}

/// Runs SQL in a process of its own with Python's `sqlite3` that closes the database again; the rows of the last statement. Panics
/// with what a statement was refused for.
pub fn python_once(database: &Path, statements: &[&str]) -> Vec<Value> {
    let mut python = Python::open(database);
    let mut rows = Vec::new();
    for statement in statements {
        rows = python.sql(statement).unwrap_or_else(|e| panic!("{statement}: {e}"));
    }
    python.quit();
    rows
}
