//! Random tables that part and are merged, with the result worked out without a line of the product's code.

use std::collections::BTreeMap;

use statehouse_testkit::Seed;

use super::*;

const SCHEMA: &str = "
    CREATE TABLE n(id INTEGER PRIMARY KEY, v, w TEXT);
    CREATE TABLE k(a TEXT COLLATE NOCASE, b, v, PRIMARY KEY(a, b)) WITHOUT ROWID;
    CREATE TABLE c(a, b, v, PRIMARY KEY(a, b));
    CREATE TABLE x(k BLOB PRIMARY KEY, v);
    CREATE TABLE o(v, w);";

/// The tables with the number of columns in the key, which come first.
const TABLES: [(&str, usize, usize); 5] = [("n", 1, 3), ("k", 2, 3), ("c", 2, 3), ("x", 1, 2), ("o", 0, 2)];

const VALUES: [&str; 12] =
    ["NULL", "1", "1.0", "'1'", "x'31'", "''", "'a'", "'A'", "'é'", "-5", "9223372036854775807", "0.1"];
const KEYS: [&str; 8] = ["'a'", "'A'", "'b'", "'ab'", "1", "1.5", "2", "x'61'"];

fn change(seed: &mut Seed, steps: u64) -> String {
    let mut sql = String::from("BEGIN;");
    for _ in 0..steps {
        let (table, keys, columns) = *seed.pick(&TABLES);
        let key = |seed: &mut Seed| match table {
            "n" => seed.below(40).to_string(),
            "c" if seed.one_in(4) => "NULL".to_owned(),
            _ => (*seed.pick(&KEYS)).to_owned(),
        };
        let mut row: Vec<String> = (0..keys).map(|_| key(seed)).collect();
        row.extend((keys..columns).map(|_| (*seed.pick(&VALUES)).to_owned()));
        let row = row.join(", ");
        match seed.below(6) {
            0 => sql += &format!("DELETE FROM {table} WHERE v IS {};", seed.pick(&VALUES)),
            1 => sql += &format!("INSERT OR REPLACE INTO {table} VALUES({row});"),
            _ => sql += &format!("INSERT OR IGNORE INTO {table} VALUES({row});"),
        }
    }
    sql + "COMMIT;"
}

/// Rows by key, as texts: number and text of one key are told apart, `1` and `1.0` are one key, and so are `a` and `A` in
/// a column without case. Rows whose key is open are known by all they hold.
fn model(path: &Path, (table, keys, columns): (&str, usize, usize)) -> BTreeMap<String, Vec<String>> {
    let c = Connection::open(path).unwrap();
    let mut key = vec!["''".to_owned()];
    for (n, name) in ["a", "b"].iter().enumerate().take(keys) {
        let name = match table {
            "n" => "id",
            "x" => "k",
            _ => name,
        };
        let fold = if table == "k" && n == 0 {
            format!("CASE typeof({name}) WHEN 'text' THEN lower({name}) ELSE {name} END")
        } else {
            name.to_owned()
        };
        key.push(format!(
            "CASE WHEN typeof({name}) IN ('integer','real') THEN quote({name} * 1.0) ELSE quote({fold}) END"
        ));
    }
    let names: Vec<&str> = match table {
        "n" => vec!["id", "v", "w"],
        "k" | "c" => vec!["a", "b", "v"],
        "x" => vec!["k", "v"],
        _ => vec!["v", "w"],
    };
    assert_eq!(names.len(), columns);
    let content: Vec<String> = names.iter().map(|n| format!("typeof({n}) || quote({n})")).collect();
    let sql = format!("SELECT {}, {} FROM {table}", key.join(" || ',' || "), content.join(" || ',' || "));
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut statement = c.prepare(&sql).unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (key, content): (String, String) = (row.get(0).unwrap(), row.get(1).unwrap());
        let open = keys == 0 || key.split(',').any(|k| k == "NULL");
        found.entry(if open { format!("content {content}") } else { key }).or_default().push(content);
    }
    found
}

#[test]
fn random_tables_that_parted_are_counted_and_merged_as_a_model_says() {
    let mut seed = Seed::of_run("random_tables_that_parted");
    for round in 0..15 {
        let steps = 5 + seed.below(60);
        let (base, live, captured) =
            (change(&mut seed, steps), change(&mut seed, steps / 2), change(&mut seed, steps / 2));
        let two = Two::new(&format!("{SCHEMA}{base}"), &live, &captured);
        let shown = two.show();
        let mut wanted = BTreeMap::new();
        for table in TABLES {
            let (ours, theirs) = (model(&two.live(), table), model(&two.captured(), table));
            let total = |m: &BTreeMap<String, Vec<String>>| m.values().map(|r| r.len() as u64).sum::<u64>();
            let [mut missing, mut same, mut conflicting, mut matched] = [0; 4];
            let mut after = ours.clone();
            let one_each = table.1 == 0 && total(&ours) == 1 && total(&theirs) == 1;
            for (key, rows) in &theirs {
                let here = ours.get(key).cloned().unwrap_or_default();
                let both = here.len().min(rows.len()) as u64;
                matched += both;
                if !here.is_empty() && here[0] != rows[0] {
                    conflicting += 1;
                } else {
                    same += both;
                    let more = rows.len() as u64 - both;
                    if one_each {
                        conflicting += more;
                    } else {
                        missing += more;
                        after.entry(key.clone()).or_default().extend(rows[both as usize..].iter().cloned());
                    }
                }
            }
            let expected = [missing, same, conflicting, total(&ours) - matched, 0];
            assert_eq!(counts(&shown, table.0), expected, "round {round}, {}\n{base}\n{live}\n{captured}", table.0);
            wanted.insert(table.0, (after, missing));
        }
        let merged = two.merge();
        assert_eq!(merged.rows, wanted.values().map(|(_, n)| n).sum::<u64>(), "round {round}");
        for table in TABLES {
            assert_eq!(model(&two.live(), table), wanted[table.0].0, "round {round}, {}", table.0);
        }
        assert_eq!(two.rows("PRAGMA integrity_check"), ["\"ok\""]);
        assert_eq!(two.merge().rows, 0, "round {round}: a second merge brings nothing");
    }
}
