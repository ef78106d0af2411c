//! Directories, sibling processes and random numbers for the tests of this crate.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) use statehouse_testkit::volume::Volume;

/// A numbers generator whose seed is printed, and taken from `STATEHOUSE_SEED` if that is set.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(what: &str) -> Random {
        let seed = std::env::var("STATEHOUSE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
        });
        println!("{what}: STATEHOUSE_SEED={seed}");
        Random(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }
}

/// Waits for a condition; the limit only ends a test that would hang.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(30), "waited 30 s for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the system's own `sqlite3` command, a stranger with a library that is not ours.
pub(crate) fn visitor(database: &Path, sql: &str) -> String {
    let run = Command::new("sqlite3").arg(database).arg(sql).output().expect("the sqlite3 command is installed");
    assert!(run.status.success(), "sqlite3 {sql}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap().trim_end().to_owned()
}

/// A process with Python's `sqlite3` that takes orders on stdin. It ends when the test does, for its stdin ends then.
pub(crate) struct Sibling {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

const SIBLING: &str = r#"
import ctypes, json, mmap, os, sqlite3, sys
c = None
kept = []
for line in sys.stdin:
    order = json.loads(line)
    try:
        answer = None
        if 'connect' in order:
            c = sqlite3.connect(order['connect'], isolation_level=None, timeout=order.get('timeout', 5))
        elif 'sql' in order:
            answer = c.execute(order['sql'], order.get('with', [])).fetchall()
        elif 'touch' in order:
            os.close(os.open(order['touch'], os.O_RDONLY))
        elif 'open' in order:
            kept.append(os.open(order['open'], os.O_RDWR))
            answer = kept[-1]
        elif 'map' in order:
            # Python's own mmap keeps a duplicate of the descriptor.
            fd = os.open(order['map'], os.O_RDWR)
            answer = ctypes.CDLL(None).mmap(None, os.fstat(fd).st_size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
            os.close(fd)
        elif 'close' in order:
            c.close()
            c = None
        print(json.dumps({'ok': answer}), flush=True)
    except Exception as e:
        print(json.dumps({'error': repr(e)}), flush=True)
"#;

impl Sibling {
    /// Starts one that has nothing open yet.
    pub(crate) fn idle() -> Sibling {
        Sibling::run(Command::new("python3").args(["-u", "-c", SIBLING]))
    }

    /// Starts one whose command line is `python3 -u FILE ARGUMENTS`.
    pub(crate) fn run(command: &mut Command) -> Sibling {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 is installed");
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Sibling { child, orders, answers }
    }

    /// Starts one and connects it.
    pub(crate) fn connected(database: &Path) -> Sibling {
        let mut sibling = Sibling::idle();
        sibling.order(serde_json::json!({ "connect": database })).unwrap();
        sibling
    }

    pub(crate) fn script() -> &'static str {
        SIBLING
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order and waits for the answer.
    pub(crate) fn order(&mut self, order: serde_json::Value) -> Result<serde_json::Value, String> {
        writeln!(self.orders, "{order}").map_err(|e| e.to_string())?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|e| e.to_string())?;
        let answer: serde_json::Value = serde_json::from_str(&line).map_err(|e| format!("{e}: {line:?}"))?;
        match answer.get("error") {
            Some(e) => Err(e.to_string()),
            None => Ok(answer["ok"].clone()),
        }
    }

    pub(crate) fn sql(&mut self, sql: &str) -> serde_json::Value {
        self.order(serde_json::json!({ "sql": sql })).unwrap()
    }

    /// Opens a file and closes it again, which drops the POSIX locks of the process on it.
    pub(crate) fn touch(&mut self, file: &Path) {
        self.order(serde_json::json!({ "touch": file })).unwrap();
    }

    /// Ends it at once, so that nothing of SQLite runs any more.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Sibling {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A path with something appended to its name.
pub(crate) fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
