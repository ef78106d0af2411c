//! One door to randomness: a seed that is printed and can be given.

use std::io::Write;

/// A small generator (SplitMix64) with a printed seed: `STATEHOUSE_SEED=N` repeats a run.
#[derive(Debug, Clone)]
pub struct Seed {
    state: u64,
}

impl Seed {
    /// The seed of the environment variable `STATEHOUSE_SEED`, else a new one; printed in either case.
    pub fn of_run(name: &str) -> Seed {
        let seed = match std::env::var("STATEHOUSE_SEED") {
            Ok(text) => text.parse().expect("STATEHOUSE_SEED must be a number"),
            Err(_) => {
                use std::hash::{BuildHasher, Hasher, RandomState};
                RandomState::new().build_hasher().finish()
            }
        };
        // Written to the stream itself: the test harness hides what print macros write when a test passes.
        let _ = writeln!(std::io::stderr(), "{name}: STATEHOUSE_SEED={seed}");
        Seed::new(seed)
    }

    /// A generator that starts at `seed`.
    pub fn new(seed: u64) -> Seed {
        Seed { state: seed }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.bits().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Seed;

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let (mut a, mut b) = (Seed::new(7), Seed::new(7));
        assert_eq!(a.bytes(100), b.bytes(100));
        assert_ne!(Seed::new(8).bits(), Seed::new(7).bits());
    }
}
