//! Builds the lock core. It is C because `fcntl` is variadic, and a variadic function cannot be defined portably in Rust.

fn main() {
    // A snapshot reads the pages of a database through SQLite's table of them. Without it every snapshot would fail, and that is to
    // be known now. The settings are in `.cargo/config.toml`, which cargo reads only inside the checkout.
    println!("cargo:rerun-if-env-changed=LIBSQLITE3_FLAGS");
    let flags = std::env::var("LIBSQLITE3_FLAGS").unwrap_or_default();
    assert!(
        flags.contains("SQLITE_ENABLE_DBPAGE_VTAB"),
        "build inside the checkout, or set LIBSQLITE3_FLAGS as .cargo/config.toml does: SQLITE_ENABLE_DBPAGE_VTAB is missing"
    );
    println!("cargo:rerun-if-changed=core");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        cc::Build::new()
            .files(["core/locks.c", "core/mapped.c"])
            .warnings(true)
            .extra_warnings(true)
            .flag_if_supported("-std=c11")
            .compile("statehouse_locks");
    }
}
