//! What other systems have of this crate. They are compiled rarely, so the cut is kept by a test that runs here.

/// What compiles everywhere.
const EVERYWHERE: [&str; 9] = ["error", "family", "header", "holders", "image", "pages", "shell", "wal", "words"];

#[test]
fn a_new_module_does_not_break_the_systems_that_lack_what_it_needs() {
    let source = include_str!("../src/lib.rs");
    let lines: Vec<&str> = source.lines().collect();
    let mut everywhere = Vec::new();
    for pair in lines.windows(2) {
        let Some(name) = pair[1].trim_start_matches("pub ").strip_prefix("mod ").and_then(|m| m.strip_suffix(';'))
        else {
            continue;
        };
        if pair[0] != "#[cfg(target_os = \"linux\")]" {
            everywhere.push(name);
        }
    }
    everywhere.sort_unstable();
    assert_eq!(
        everywhere, EVERYWHERE,
        "mark a module in lib.rs as Linux's; or check that it compiles for macOS and Windows, and add it here"
    );
}
