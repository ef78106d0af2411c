//! What virtual tables hold: it is compared and comes back, or it is named.

use super::*;

/// Says of a virtual table that it is another one, as a program has it whose module or tokenizer is not here.
fn declared(name: &str, sql: &str) -> String {
    format!(
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = '{sql}' WHERE name = '{name}';
         PRAGMA writable_schema = RESET;"
    )
}

#[test]
fn texts_that_are_in_a_search_index_alone_are_counted_and_come_back() {
    for module in ["fts5", "fts4", "fts3"] {
        let two = Two::new(
            &format!(
                "CREATE VIRTUAL TABLE f USING {module}(title, body); INSERT INTO f(rowid, title, body) VALUES(1, 'a', 'alpha');"
            ),
            "INSERT INTO f(rowid, title, body) VALUES(7, 'here', 'beta')",
            "INSERT INTO f(rowid, title, body) VALUES(7, 'there', 'gamma'), (8, 'there', 'delta'), (-3, NULL, 'epsilon')",
        );
        assert_eq!(counts(&two.show(), "f"), [2, 1, 1, 0, 0], "{module}");
        assert!(!two.show().is_all_here());
        let merged = two.merge();
        assert_eq!((merged.rows, merged.read_back), (2, Some(true)), "{module}");
        assert_eq!(two.rows("SELECT rowid FROM f WHERE f MATCH 'delta OR epsilon' ORDER BY rowid"), ["-3", "8"]);
        assert_eq!(two.rows("SELECT title FROM f WHERE rowid = 7"), ["\"here\""]);
        let conflict = two.conflicts().remove(0);
        assert_eq!((&conflict["key"]["rowid"], &conflict["captured"]["body"]), (&7.into(), &"gamma".into()));
        assert_eq!(two.rows("PRAGMA integrity_check"), ["\"ok\""]);
        assert_eq!(two.merge().rows, 0, "{module}");
    }
}

#[test]
fn boxes_that_are_in_an_rtree_alone_come_back_with_what_is_said_of_them() {
    let two = Two::new(
        "CREATE VIRTUAL TABLE r USING rtree(id, x0, x1, +name); INSERT INTO r VALUES(1, 0.1, 0.2, 'both')",
        "INSERT INTO r VALUES(2, 1, 2, 'here')",
        "INSERT INTO r VALUES(2, 1, 2, 'there'), (3, 0.3, 1e9, 'there')",
    );
    assert_eq!(counts(&two.show(), "r"), [1, 1, 1, 0, 0]);
    assert_eq!(two.merge().rows, 1);
    assert_eq!(two.rows("SELECT id, name FROM r ORDER BY id"), ["1|\"both\"", "2|\"here\"", "3|\"there\""]);
    assert_eq!(two.rows("SELECT rtreecheck('r')"), ["\"ok\""]);
    assert_eq!(two.merge().rows, 0);
}

#[test]
fn a_module_that_is_not_here_is_named_and_everything_else_comes_back() {
    let vectors = declared("v", "CREATE VIRTUAL TABLE v USING vec0(e float[4])");
    let base = format!(
        "CREATE TABLE t(id INTEGER PRIMARY KEY); CREATE VIRTUAL TABLE v USING fts5(a); CREATE TABLE v_rowids(id INTEGER PRIMARY KEY);
         CREATE TABLE vast(x); {vectors}"
    );
    let two =
        Two::new(&base, "", "INSERT INTO t VALUES(1); INSERT INTO v_rowids VALUES(1); INSERT INTO vast VALUES(1)");
    let shown = two.show();
    let why = shown.tables["v"].not_compared.clone().unwrap();
    assert!(why.contains("vec0"), "{why}");
    assert!(!shown.is_all_here());
    let own = shown.tables["v_rowids"].left_alone.clone().unwrap();
    assert!(own.contains("virtual table v "), "{own}");
    let merged = two.merge();
    assert_eq!(merged.brought.keys().collect::<Vec<_>>(), ["t", "vast"]);
    assert_eq!(two.rows("SELECT count(*) FROM v_rowids"), ["0"], "only its module may write it");
    let again = two.merge();
    assert_eq!(again.rows, 0);
    assert!(!again.shown.is_all_here(), "what was not compared is not said to be here");
}

#[test]
fn an_index_whose_tokenizer_is_not_here_is_counted_and_left() {
    let index = declared("f", "CREATE VIRTUAL TABLE f USING fts5(a, tokenize=''cjk_unicode61'')");
    let two = Two::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY); CREATE VIRTUAL TABLE f USING fts5(a)",
        &index,
        &format!("INSERT INTO f VALUES('there'); INSERT INTO t VALUES(1); {index}"),
    );
    let shown = two.show();
    assert_eq!(shown.tables["f"].missing, 1);
    assert!(shown.tables["f"].left_alone.as_ref().unwrap().contains("cjk_unicode61"));
    assert_eq!(two.merge().rows, 1);
    assert!(!two.merge().shown.is_all_here());
}

#[test]
fn an_index_that_keeps_no_text_is_named_and_one_that_shows_another_is_nothing() {
    let base = "CREATE VIRTUAL TABLE w USING fts5(a, content=''); CREATE VIRTUAL TABLE v USING fts5vocab(w, row);";
    let two = Two::new(base, "", "INSERT INTO w(rowid, a) VALUES(1, 'there')");
    let shown = two.show();
    assert_eq!(shown.tables.keys().collect::<Vec<_>>(), ["w"]);
    assert!(shown.tables["w"].not_compared.is_some() && !shown.is_all_here());
    let merged = two.merge();
    assert_eq!((merged.rows, merged.before), (0, None));
}

#[test]
fn an_index_that_no_trigger_keeps_must_be_made_anew_and_the_command_does_it() {
    let base = "CREATE TABLE m(id INTEGER PRIMARY KEY, body); INSERT INTO m VALUES(1, 'alpha');
        CREATE VIRTUAL TABLE f USING fts5(body, content=m, content_rowid=id); INSERT INTO f(f) VALUES('rebuild');";
    let two = Two::new(base, "", "");
    assert!(two.show().rebuild.is_empty(), "no row comes");
    two.run("", "INSERT INTO m VALUES(2, 'beta')");
    let shown = two.show();
    assert_eq!((shown.rebuild[0].index.as_str(), shown.rebuild[0].over.as_str()), ("f", "m"));
    let merged = two.merge();
    assert_eq!(merged.rows, 1);
    assert_eq!(two.rows("SELECT rowid FROM f WHERE f MATCH 'beta'"), [""; 0], "the control: it does not know of it");
    // It is said once more where rows have come.
    let command = &merged.shown.rebuild[0].command;
    let statement = command
        .split_once("INSERT")
        .map(|(_, s)| format!("INSERT{}", s.trim_end_matches('\'').replace("'\\''", "'")))
        .unwrap();
    Connection::open(two.live()).unwrap().execute_batch(&statement).unwrap();
    assert_eq!(two.rows("SELECT rowid FROM f WHERE f MATCH 'beta'"), ["2"]);
}

#[test]
fn a_search_index_with_texts_of_its_own_that_triggers_fill_has_each_once() {
    let base = "CREATE TABLE m(id INTEGER PRIMARY KEY, body); CREATE VIRTUAL TABLE f USING fts5(body);
        CREATE TRIGGER mi AFTER INSERT ON m BEGIN INSERT INTO f(rowid, body) VALUES(new.id, new.body); END;";
    let two = Two::new(
        base,
        "INSERT INTO m VALUES(1, 'here')",
        "INSERT INTO m VALUES(2, 'there'); INSERT INTO f VALUES('alone')",
    );
    assert_eq!(counts(&two.show(), "f"), [2, 0, 0, 1, 0]);
    let merged = two.merge();
    assert_eq!((merged.shown.conflicting(), merged.read_back), (0, Some(true)));
    assert_eq!(two.rows("SELECT rowid, body FROM f ORDER BY rowid"), ["1|\"here\"", "2|\"there\"", "3|\"alone\""]);
    assert_eq!(two.merge().rows, 0);
}

#[test]
fn a_search_index_of_rows_that_get_other_numbers_follows_from_its_triggers() {
    let base = "CREATE TABLE m(body); CREATE VIRTUAL TABLE f USING fts5(body);
        CREATE TRIGGER mi AFTER INSERT ON m BEGIN INSERT INTO f(rowid, body) VALUES(new.rowid, new.body); END;";
    let two = Two::new(base, "INSERT INTO m VALUES('here'), ('too')", "INSERT INTO m VALUES('there')");
    let shown = two.show();
    assert_eq!(shown.tables.keys().collect::<Vec<_>>(), ["m"]);
    assert_eq!(two.merge().rows, 1);
    assert_eq!(two.rows("SELECT body FROM f ORDER BY body"), ["\"here\"", "\"there\"", "\"too\""]);
    assert_eq!(two.rows("SELECT m.rowid = f.rowid FROM m JOIN f USING(body)"), ["1", "1", "1"]);
}

#[test]
fn a_search_index_that_only_the_capture_has_comes_with_its_texts() {
    let two =
        Two::new("CREATE TABLE a(x)", "", "CREATE VIRTUAL TABLE n USING fts5(body); INSERT INTO n VALUES('text')");
    assert!(two.show().tables["n"].only_captured);
    assert_eq!(two.merge().rows, 1);
    assert_eq!(two.rows("SELECT body FROM n WHERE n MATCH 'text'"), ["\"text\""]);
    assert_eq!(two.merge().rows, 0);
}

#[test]
fn a_search_index_that_is_damaged_is_named_and_everything_else_comes_back() {
    let two = Two::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY); CREATE VIRTUAL TABLE f USING fts5(a); INSERT INTO f VALUES('one')",
        "UPDATE f_data SET block = x'00'",
        "INSERT INTO t VALUES(1); INSERT INTO f VALUES('two')",
    );
    let shown = two.show();
    assert_eq!(shown.tables["f"].missing, 1);
    let merged = two.merge();
    assert_eq!(merged.brought.get("t"), Some(&1));
    assert!(
        merged.shown.tables["f"].not_compared.as_ref().unwrap().contains("damaged"),
        "{:?}",
        merged.shown.tables["f"]
    );
    assert_eq!(merged.read_back, Some(true));
    assert!(!two.merge().shown.is_all_here());
}
