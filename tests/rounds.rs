//! Rounds under a live house: clients talk to the gateway all the time, and at a random point of each round somebody removes
//! files, renames others over them, drops locks while strangers come and go, or does two of these at once; now and then a
//! service is killed as well. After each round every row that was acknowledged is there, and the whole house answers.
//!
//! A few rounds are run with the suite; `STATEHOUSE_ROUNDS=200` runs as many as it says. With `STATEHOUSE_TIMES=1` the time from
//! each deed to each answer is printed, and that the whole house answers within two seconds is judged; without it only that it
//! answers, for on a machine that does other things at the same time two seconds say little.

mod deeds;
mod foreign;
mod inplace;
mod judge;
mod traffic;

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use statehouse_testkit::{Home, Seed, until};

use crate::house::{PATIENCE, Up, integrity};
use deeds::{Deed, SERVICES, Stock};
use judge::Took;
use traffic::Traffic;

/// Rounds that are run with the suite: each deed once, and some twice.
const ROUNDS: u64 = 20;

/// Within this the whole house answers again.
const SOON: Duration = Duration::from_secs(2);

fn rounds() -> u64 {
    std::env::var("STATEHOUSE_ROUNDS").ok().map_or(ROUNDS, |n| n.parse().expect("STATEHOUSE_ROUNDS must be a number"))
}

/// True if times are printed and judged.
fn judged() -> bool {
    std::env::var_os("STATEHOUSE_TIMES").is_some()
}

fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

struct Run {
    home: Home,
    up: Up,
    seed: Seed,
    stock: Stock,
    took: Vec<(Vec<Deed>, Option<&'static str>, Took)>,
}

impl Run {
    fn round(&mut self, round: u64, traffic: &Traffic) {
        traffic.begin(round);
        let seed = &mut self.seed;
        if round == 0 || seed.one_in(8) {
            assert!(self.stock.keep_older(&self.home), "a copy can be made");
        }
        let deeds = Deed::of_round(round, seed);
        let victim = seed.one_in(4).then(|| *seed.pick(&SERVICES));
        let before = seed.one_in(2);
        let pids: Vec<u32> = SERVICES.iter().map(|name| self.up.pid(name)).collect();
        let (told, named) = (judge::last_incident(&self.home), judge::named_incidents(&self.home));
        let mut dropped = 0;
        std::thread::sleep(Duration::from_micros(seed.below(300_000)));
        if before {
            self.kill(victim);
        }
        for (n, deed) in deeds.iter().enumerate() {
            let seed = &mut self.seed;
            if n > 0 {
                std::thread::sleep(Duration::from_micros(seed.below(150_000)));
            }
            if judged() {
                say(&format!("round {round}: {deed:?}, killed {victim:?}"));
            }
            dropped += deeds::act(*deed, &self.home, &pids, &mut self.stock, seed);
        }
        if !before {
            std::thread::sleep(Duration::from_micros(self.seed.below(50_000)));
            self.kill(victim);
        }
        let since = Instant::now();
        if let Some(name) = victim {
            self.up.read_until("exited");
            while self.up.read_until("ready")["service"] != name {}
            if name == "gateway" {
                traffic.moved(self.up.url("gateway"));
            }
        }
        let took = judge::answers_again(&self.home, &self.up, traffic, since);
        if judged() {
            say(&format!("round {round}: {deeds:?}, killed {victim:?}: {took:?}"));
        }
        judge::nothing_is_lost(&self.home, traffic);
        judge::the_round_is_shown(&self.home, traffic, round);
        if let Some(verdict) = integrity(&self.home.store()) {
            assert_eq!(verdict, "ok", "after {deeds:?}, killed {victim:?}");
        }
        // One who was killed meanwhile cannot tell.
        if dropped > 0 && victim.is_none() {
            until("the dropped locks are an incident", PATIENCE, || judge::last_incident(&self.home) > told);
        }
        // Two deeds at once, or one that somebody did not live to tell of, are as many incidents as there were generations.
        if let ([deed], None) = (&deeds[..], victim) {
            judge::the_deed_is_one_closed_incident(&self.home, &named, *deed);
        }
        self.took.push((deeds, victim, took));
    }

    /// `kill -9`. Not of the supervisor: then everybody ends at once, and nobody has the removed files any more.
    fn kill(&self, victim: Option<&str>) {
        if let Some(pid) = victim.and_then(|name| Pid::from_raw(self.up.pid(name).cast_signed())) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

#[test]
fn whatever_is_removed_replaced_or_unlocked_under_a_house_no_acknowledged_row_is_lost() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let traffic = Traffic::new(up.url("gateway"), home.token());
    let seed = Seed::of_run("whatever_is_removed_replaced_or_unlocked_under_a_house_no_acknowledged_row_is_lost");
    let stock = Stock::new(&home);
    let mut run = Run { home, up, seed, stock, took: Vec::new() };
    std::thread::scope(|scope| {
        for name in ["ada", "ben", "cleo"] {
            let traffic = &traffic;
            scope.spawn(move || traffic.talk(name));
        }
        // A panic in a round must not leave the scope waiting for clients that nobody stops.
        let all = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..rounds() {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.round(round, &traffic)));
                if let Err(panic) = done {
                    say(&format!("it was round {round}"));
                    for name in SERVICES {
                        let log =
                            fs::read_to_string(run.home.path().join(format!("logs/{name}.log"))).unwrap_or_default();
                        let last: Vec<&str> = log.lines().rev().take(30).collect();
                        say(&format!("last of {name}:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n")));
                    }
                    std::panic::resume_unwind(panic);
                }
            }
        }));
        traffic.end();
        if let Err(panic) = all {
            std::panic::resume_unwind(panic);
        }
    });
    let Run { home, up, took, .. } = run;
    let asked = traffic.ledger().acknowledged.len();
    say(&format!("{asked} rows were acknowledged in {} rounds", took.len()));
    assert!(asked as u64 > rounds() * 10, "only {asked} messages were acknowledged");
    // Every interrupted turn is taken up again and answered once.
    until("every message has its answer", PATIENCE, || {
        let (asked, answered) = (judge::rows_by_sqlite3(&home, "user"), judge::rows_by_sqlite3(&home, "assistant"));
        answered.values().all(|n| *n == 1) && asked.len() == answered.len()
    });
    up.stop();
    judge::nothing_is_lost(&home, &traffic);
    if let Some(verdict) = integrity(&home.store()) {
        assert_eq!(verdict, "ok");
    }
    report(&took);
}

/// How long the parts of the house took to answer.
fn report(all: &[(Vec<Deed>, Option<&'static str>, Took)]) {
    let line = |what: &str, mut times: Vec<Duration>| {
        times.sort();
        let Some(last) = times.last() else { return };
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1000.0;
        let longest = last.as_secs_f64() * 1000.0;
        say(&format!(
            "{what}: n {}, p50 {:.0} ms, p90 {:.0} ms, p99 {:.0} ms, longest {longest:.0} ms",
            times.len(),
            at(50),
            at(90),
            at(99)
        ));
    };
    for (killed, what) in [(false, "nobody killed"), (true, "one killed")] {
        let some: Vec<Took> = all.iter().filter(|t| t.1.is_some() == killed).map(|t| t.2).collect();
        for (n, part) in ["first row", "page", "readiness", "all files"].iter().enumerate() {
            line(&format!("{what}, {part}"), some.iter().map(|t| t.all()[n]).collect());
        }
        line(&format!("{what}, the whole house"), some.iter().map(|t| t.longest()).collect());
    }
    if judged() {
        for (deeds, victim, took) in all {
            if victim.is_none() {
                assert!(took.longest() < SOON, "{deeds:?}: {took:?}");
            }
        }
    }
}
