//! Builds the lock core. It is C because `fcntl` is variadic, and a variadic function cannot be defined portably in Rust.

fn main() {
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
