//! Jobs and their occurrences.

use statehouse_sessions::*;

use crate::House;

fn trim() -> JobKind {
    JobKind::Housekeeping { name: "trim".into() }
}

#[test]
fn a_job_has_one_row_a_name() {
    let house = House::new();
    let job = house.store.ensure_job("trim", trim(), 60).unwrap();
    let again = house.store.ensure_job("trim", JobKind::Housekeeping { name: "other".into() }, 5).unwrap();
    assert_eq!((again.id, again.every_seconds, &again.kind), (job.id, 60, &trim()));
    assert!(job.next_due_at > Micros::now() && !job.paused);
    assert_eq!(house.store.ensure_job("never", trim(), 0).unwrap_err().code(), "invalid");
    assert_eq!(house.store.ensure_job("huge", trim(), u64::MAX).unwrap_err().code(), "invalid");
    assert_eq!(house.store.jobs().unwrap().len(), 1);
}

#[test]
fn missed_times_are_one_occurrence_and_each_is_claimed_once() {
    let house = House::new();
    let holder = Holder("s".into());
    let job = house.store.ensure_job("trim", trim(), 60).unwrap();
    assert!(house.store.claim_occurrence(&holder, Micros(job.next_due_at.0 - 1)).unwrap().is_none());
    let late = Micros(job.next_due_at.0 + 150_000_000);
    let claimed = house.store.claim_occurrence(&holder, late).unwrap().unwrap();
    assert_eq!((claimed.job.id, claimed.due_at), (job.id, job.next_due_at));
    assert_eq!(claimed.job.next_due_at, Micros(job.next_due_at.0 + 180_000_000));
    assert!(house.store.claim_occurrence(&holder, late).unwrap().is_none());
    assert_eq!(house.store.jobs().unwrap()[0].next_due_at, claimed.job.next_due_at);

    house.store.finish_occurrence(job.id, claimed.due_at, Some("broke".into())).unwrap();
    house.store.finish_occurrence(job.id, claimed.due_at, None).unwrap();
    let error: Option<String> =
        house.store.database().read(|c| Ok(c.query_row("SELECT error FROM occurrence", [], |r| r.get(0))?)).unwrap();
    assert_eq!(error.as_deref(), Some("broke"));
    let unknown = house.store.finish_occurrence(job.id, Micros(1), None).unwrap_err();
    assert_eq!(unknown.code(), "not_found");
}

#[test]
fn paused_jobs_rest() {
    let house = House::new();
    let job = house.store.ensure_job("trim", trim(), 60).unwrap();
    house.store.database().write(|c| Ok(c.execute("UPDATE job SET paused = 1", [])?)).unwrap();
    assert!(house.store.claim_occurrence(&Holder("s".into()), job.next_due_at).unwrap().is_none());
}

#[test]
fn an_occurrence_goes_to_one_of_two_processes() {
    let house = House::new();
    let other = SqliteStore::open(&house.path(), "other", OpenMode::existing()).unwrap();
    let due = (0..20).map(|n| house.store.ensure_job(&n.to_string(), trim(), 60).unwrap().next_due_at).max().unwrap();
    let claim_all =
        |store: &SqliteStore| std::iter::from_fn(|| store.claim_occurrence(&Holder("h".into()), due).unwrap()).count();
    let (a, b) = std::thread::scope(|scope| {
        let b = scope.spawn(|| claim_all(&other));
        (claim_all(&house.store), b.join().unwrap())
    });
    assert_eq!(a + b, 20);
}

#[test]
fn another_interval_takes_effect_from_now() {
    let house = House::new();
    let job = house.store.ensure_job("trim", trim(), 3600).unwrap();
    let quick = house.store.set_interval(job.id, 1).unwrap();
    assert_eq!((quick.id, quick.every_seconds), (job.id, 1));
    assert!(quick.next_due_at <= Micros(Micros::now().0 + 1_000_000), "an hour is not waited for first");
    let slow = house.store.set_interval(job.id, 7200).unwrap();
    assert_eq!((slow.every_seconds, slow.next_due_at), (7200, quick.next_due_at));
    assert_eq!(house.store.set_interval(job.id, 0).unwrap_err().code(), "invalid");
    assert_eq!(house.store.set_interval(JobId::new(), 5).unwrap_err().code(), "not_found");
}
