//! Stands in for the admission that is being built, with its interface and the least of its behaviour.
#![expect(missing_docs, reason = "replaced when the real one lands")]

use std::time::Duration;

use rusqlite::{Connection, FileControl, OpenFlags};
use rusqlite::config::DbConfig;
use statehouse_sqlite::holders::{self, Report, Verdict};
use statehouse_sqlite::{Error, Family, Reason, Result, protect};

pub struct Wanted<'a> {
    pub what: &'a str,
    pub drain: Option<Duration>,
    pub force: bool,
    pub patience: Duration,
    pub tell: &'a dyn Fn(&str),
}

pub struct Admission {
    family: Family,
    connection: Connection,
    overridden: Vec<String>,
}

pub struct Forecast {
    pub report: Report,
    pub refused: Option<Error>,
}

pub fn forecast(family: &Family) -> Result<Forecast> {
    let report = holders::scan(family)?;
    let refused = (report.verdict != Verdict::Quiet).then(|| {
        let names: Vec<String> = report.holders.iter().map(|h| format!("PID {}: {}", h.pid.unwrap_or(0), h.stop)).collect();
        Error::refused(Reason::HeldNaked, family.main(), names.join("; "))
    });
    Ok(Forecast { report, refused })
}

impl Admission {
    pub fn obtain(family: &Family, wanted: &Wanted<'_>) -> Result<Admission> {
        (wanted.tell)(wanted.what);
        let mut overridden = Vec::new();
        if let Some(refused) = forecast(family)?.refused {
            if !wanted.force {
                return Err(refused);
            }
            overridden.push(refused.to_string());
        }
        protect()?;
        let connection = Connection::open_with_flags(
            family.main(),
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_EXRESCODE,
        )?;
        connection.file_control(None::<&str>, FileControl::PersistWal(&mut 1))?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.busy_timeout(wanted.patience)?;
        for (name, value) in [("mmap_size", 0), ("wal_autocheckpoint", 0), ("trusted_schema", 0)] {
            connection.pragma_update(None, name, value)?;
        }
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        Ok(Admission { family: family.clone(), connection, overridden })
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    pub fn family(&self) -> &Family {
        &self.family
    }

    pub fn overridden(&self) -> &[String] {
        &self.overridden
    }

    pub fn alone<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        work(&self.connection)
    }
}
