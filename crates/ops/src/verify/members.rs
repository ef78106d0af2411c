//! Whether every live process of a house writes, and is read by others.

use statehouse_sqlite::members::{self, Record};
use statehouse_sqlite::process::ProcessId;

use super::Proof;
use super::view::View;
use crate::canary::{self, Answer, Asking};
use crate::check::{Found, Outcome};

impl View {
    /// Asks each member for a row, and has each read by a fresh process through the path.
    pub(super) fn written_by_members(&self, proof: &Proof<'_>) -> Found {
        if let Some(danger) = self.danger() {
            return danger;
        }
        let mut waiting: Vec<Record> = match members::list(self.family()) {
            Ok(all) => all.into_iter().filter(|m| canary::ROLES.contains(&m.role.as_str())).collect(),
            Err(e) => return Found::error("the members cannot be listed", &e),
        };
        if waiting.is_empty() {
            return Found::new(Outcome::Skip, "no service of Statehouse has it open");
        }
        let asking = match Asking::begin(self.family(), proof.patience) {
            Ok(asking) => asking,
            Err(e) => return Found::error("the members cannot be asked", &e),
        };
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        // Two with one role write the same row, so they are asked one after the other.
        while !waiting.is_empty() {
            let mut round: Vec<Record> = Vec::new();
            waiting.retain(|m| {
                let first = !round.iter().any(|r| r.role == m.role);
                if first {
                    round.push(m.clone());
                }
                !first
            });
            let of: Vec<ProcessId> = round.iter().map(|m| m.process).collect();
            let answers = match asking.ask(&of, proof.patience) {
                Ok(answers) => answers,
                Err(e) => return Found::error("the members cannot be asked", &e),
            };
            for member in &round {
                let answer = answers.iter().find(|a| a.process == member.process);
                match self.judge(proof, member, answer) {
                    Ok(()) => good.push(called(member)),
                    Err(why) => bad.push(format!("{} {why}", called(member))),
                }
            }
        }
        if bad.is_empty() {
            return Found::new(Outcome::Ok, "every service wrote a row that another process reads through the path")
                .detail(good.join(", "));
        }
        Found::new(Outcome::Fail, bad.join("; "))
            .detail(if good.is_empty() { String::new() } else { format!("well: {}", good.join(", ")) })
            .hint("Look at that process (`statehouse holders`, its log below logs/); a house starts a service again when it ends.")
    }

    fn judge(&self, proof: &Proof<'_>, member: &Record, answer: Option<&Answer>) -> Result<(), String> {
        let Some(answer) = answer else {
            // It may have ended meanwhile in an orderly way, and that is no fault.
            let still = members::list(self.family()).is_ok_and(|all| all.iter().any(|m| m.process == member.process));
            let why = match (still, member.parked) {
                (false, _) => "ended before it had written a row",
                (true, true) => "has let go of the database for maintenance and did not write a row in time",
                (true, false) => "did not write a row in time when it was asked to",
            };
            return Err(why.to_owned());
        };
        let token = match (&answer.token, &answer.error) {
            (Some(token), _) => token,
            (None, error) => {
                return Err(format!("cannot write a row: {}", error.as_deref().unwrap_or("it does not say why")));
            }
        };
        match proof.other.canary(&self.family().main(), &canary::row_of(&member.role)) {
            Ok(Some(seen)) if seen == *token => Ok(()),
            Ok(_) => Err("wrote a row that another process does not read through the path".to_owned()),
            Err(e) => Err(format!("wrote a row, and another process cannot read through the path: {e}")),
        }
    }
}

fn called(member: &Record) -> String {
    format!("{} (PID {})", member.role, member.process.pid)
}
