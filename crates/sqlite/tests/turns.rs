//! Writers of our own processes take turns.

use std::path::Path;

use statehouse_sqlite::turnstile::JUST_BEFORE;
use statehouse_testkit::home::TestDir;

use crate::holder::Holder;

/// When a turn was asked for, when it was done, its place in the order of turns, and whose it was.
struct Wait {
    asked: u64,
    done: u64,
    /// When the one before it of the same process was done.
    since: u64,
    place: u64,
    who: usize,
}

fn waits(log: &Path, who: usize) -> Vec<Wait> {
    let mut since = 0;
    let parse = |line: &str| {
        let words: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let wait = Wait { asked: words[0], done: words[1], since, place: words[2], who };
        since = wait.done;
        wait
    };
    std::fs::read_to_string(log).unwrap().lines().map(parse).collect()
}

/// The most turns in a row that one other writer was given while this one waited.
fn longest_run(all: &[Wait], mine: usize) -> usize {
    // `all` is in the order of turns: those before this one that were not done when this one was asked for.
    let while_waiting = all[..mine].iter().rev().take_while(|other| other.done > all[mine].asked);
    let (mut longest, mut run, mut last) = (0, 0, usize::MAX);
    for other in while_waiting {
        run = if other.who == last { run + 1 } else { 1 };
        last = other.who;
        // One that was under way already was not let in before this one.
        longest = longest.max(run - usize::from(other.asked < all[mine].asked));
    }
    longest
}

/// Runs the same order in three processes at once: what each answered, and what all of them logged.
fn three(start: impl Fn() -> Holder, order: impl Fn(&Path) -> String) -> (Vec<u64>, Vec<Wait>) {
    let logs = TestDir::new();
    let log = |n: usize| logs.join(format!("log{n}"));
    let mut holders: Vec<Holder> = (0..3).map(|_| start()).collect();
    for (n, holder) in holders.iter_mut().enumerate() {
        holder.send(&order(&log(n)));
    }
    let counts = holders.iter_mut().map(|h| h.answer().unwrap().parse().unwrap()).collect();
    let mut all: Vec<Wait> = (0..3).flat_map(|n| waits(&log(n), n)).collect();
    all.sort_by_key(|w| w.place);
    (counts, all)
}

/// Nobody got less than a fifth of another, and nobody was let in more than three times while another waited. A process
/// that the machine did not let run for a while does not wait at the turnstile, however long it takes: those waits are shown,
/// and not judged.
fn judge(what: &str, counts: &[u64], all: &[Wait]) {
    let longest = |judged: &dyn Fn(&Wait) -> bool| {
        (0..all.len()).filter(|n| judged(&all[*n])).map(|n| longest_run(all, n)).max().unwrap_or(0)
    };
    let in_time = longest(&|w| w.done - w.since < JUST_BEFORE);
    let slowest = all.iter().map(|w| w.done - w.asked).max().unwrap();
    let late = all.iter().filter(|w| w.done - w.since >= JUST_BEFORE).count();
    eprintln!(
        "{what} {counts:?}; longest run {in_time}, with the {late} that were put aside {}; longest wait {:.1} ms",
        longest(&|_| true),
        slowest as f64 / 1e6
    );
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(least * 5 >= *most, "{counts:?}");
    assert!(in_time <= 3, "one was let in {in_time} times while another waited");
    assert!(late < all.len(), "not one wait could be judged");
}

#[test]
fn three_tight_writers_share_the_store_evenly() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let start = || Holder::with_store(&path);
    let (counts, all) = three(start, |log| format!("tight 10 {}", log.display()));
    judge("commits", &counts, &all);
}

#[test]
fn nobody_is_let_in_again_and_again_while_another_waits_at_the_turnstile() {
    let directory = TestDir::new();
    let order = |log: &Path| format!("turns 5 {} {}", directory.path().display(), log.display());
    let (counts, all) = three(Holder::start, order);
    judge("turns", &counts, &all);
}
