//! Search indexes over other tables that nothing tells of the rows which come back.

use serde::Serialize;
use statehouse_sqlite::Family;
use statehouse_sqlite::shell::word;

use super::show::Shown;

/// A search index that must be made anew when rows have come back, for nothing tells it of them.
#[derive(Debug, Clone, Serialize)]
pub struct Rebuild {
    /// The index.
    pub index: String,
    /// The table or view whose rows it finds.
    pub over: String,
    /// What makes it anew.
    pub command: String,
}

/// The indexes that do not learn of the rows that come back.
pub(super) fn rebuild(shown: &Shown, unkept: Vec<(String, String)>, family: &Family) -> Vec<Rebuild> {
    let has_rows_to_come = |over: &str| match shown.tables.iter().find(|(name, _)| name.eq_ignore_ascii_case(over)) {
        Some((name, _)) => shown.has_rows_to_come(name),
        // What a view shows may be of any table.
        None => shown.to_bring_back() > 0,
    };
    let path = word(&family.main().to_string_lossy());
    let of = |(index, over): (String, String)| {
        let name = crate::maintenance::quoted(&index);
        let command = format!("sqlite3 {path} {}", word(&format!("INSERT INTO {name}({name}) VALUES('rebuild')")));
        Rebuild { index, over, command }
    };
    unkept.into_iter().filter(|(_, over)| has_rows_to_come(over)).map(of).collect()
}
