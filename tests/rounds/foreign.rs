//! Other programs' databases come and go in the place of the store, at any moment. A house that opens by name and has looked a
//! moment before would change their journal mode, or copy its own log into them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use statehouse_testkit::visitor::Python;
use statehouse_testkit::{Home, Seed, until};

use super::traffic::Traffic;
use super::{PATIENCE, judge};
use crate::house::Up;

const TIMES: usize = 40;

#[test]
fn another_programs_database_that_comes_and_goes_in_the_place_of_the_store_is_never_written() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let traffic = Traffic::new(up.url("gateway"), home.token());
    let mut seed = Seed::of_run("another_programs_database_that_comes_and_goes_in_the_place_of_the_store");
    let others: Vec<PathBuf> = ["wal", "delete"]
        .map(|mode| {
            let other = home.path().join(format!("of-another-program-{mode}"));
            let mut python = Python::open(&other);
            for sql in [
                &format!("PRAGMA journal_mode={mode}"),
                "PRAGMA application_id=7",
                "CREATE TABLE o(a)",
                "INSERT INTO o VALUES(randomblob(90000))",
            ] {
                python.sql(sql).unwrap();
            }
            python.quit();
            other
        })
        .into();
    let before: Vec<Vec<u8>> = others.iter().map(|o| fs::read(o).unwrap()).collect();
    std::thread::scope(|scope| {
        let talking = &traffic;
        scope.spawn(move || talking.talk("dora"));
        let all = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for time in 0..TIMES {
                let other = seed.below(2) as usize;
                if seed.one_in(2) {
                    let _ = fs::remove_file(home.store());
                    std::thread::sleep(Duration::from_micros(seed.below(500_000)));
                }
                fs::rename(&others[other], home.store()).unwrap();
                std::thread::sleep(Duration::from_micros(seed.below(150_000)));
                fs::rename(home.store(), &others[other]).unwrap();
                std::thread::sleep(Duration::from_micros(seed.below(400_000)));
                let now = fs::read(&others[other]).unwrap();
                assert!(now == before[other], "time {time}: somebody wrote into {}", others[other].display());
            }
            let gone = std::time::Instant::now();
            until("a row is acknowledged", PATIENCE, || traffic.first_after(gone).is_some());
        }));
        traffic.end();
        if let Err(panic) = all {
            std::panic::resume_unwind(panic);
        }
    });
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| judge::nothing_is_lost(&home, &traffic)));
    if let Err(panic) = looked {
        for name in super::SERVICES {
            eprintln!("log of {name}:\n{}", fs::read_to_string(home.path().join(format!("logs/{name}.log"))).unwrap());
        }
        std::panic::resume_unwind(panic);
    }
    up.stop();
    judge::nothing_is_lost(&home, &traffic);
}
