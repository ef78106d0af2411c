//! Who uses a database: `cargo run --example holders -- PATH [TIMES]` prints what `statehouse holders --json` prints, and
//! with TIMES how long each look took, in milliseconds.

use std::path::Path;
use std::time::Instant;

use statehouse_sqlite::{Family, holders};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("holders PATH [TIMES]")?;
    let family = Family::of(Path::new(&path))?;
    for _ in 0..arguments.next().map_or(Ok(0), |n| n.parse::<u32>())? {
        let begun = Instant::now();
        holders::scan(&family)?;
        eprintln!("{:.2}", begun.elapsed().as_secs_f64() * 1000.0);
    }
    println!("{}", serde_json::to_string_pretty(&holders::scan(&family)?)?);
    Ok(())
}
