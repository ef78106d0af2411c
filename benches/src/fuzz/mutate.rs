//! Making valid input invalid.

use statehouse_testkit::Seed;

/// Changes `bytes` in one to four places: flips, overwrites with odd values, cuts, repeats, inserts.
pub(crate) fn mutate(bytes: &mut Vec<u8>, seed: &mut Seed) {
    const ODD: &[u8] = &[0, 1, 0x7f, 0x80, 0xff, b'"', b'\\', b'{', b'}', b'[', b'%', b'\r', b'\n', 0xc3, 0xed, 0xf4];
    for _ in 0..=seed.below(4) {
        let at = seed.below(bytes.len() as u64 + 1) as usize;
        match seed.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << seed.below(8),
            1 if at < bytes.len() => bytes[at] = *seed.pick(ODD),
            2 => bytes.truncate(at),
            3 => {
                let end = (at + seed.below(32) as usize).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + seed.below(64) as usize).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            5 => {
                let length = seed.below(16) as usize;
                let noise = seed.bytes(length);
                bytes.splice(at..at, noise);
            }
            _ if at + 4 <= bytes.len() => {
                let number = *seed.pick(&[0_u32, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 512, 65536]);
                bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
            }
            _ => {}
        }
    }
}

/// Changes bytes in place, a block of a file at most: what bit rot, a torn write or a stray writer leaves.
pub(crate) fn damage(bytes: &mut [u8], seed: &mut Seed) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..=seed.below(3) {
        let at = seed.below(bytes.len() as u64) as usize;
        let end = (at + [1, 4, 512, 4096][seed.below(4) as usize]).min(bytes.len());
        match seed.below(3) {
            0 => bytes[at] ^= 1 << seed.below(8),
            1 => bytes[at..end].fill(*seed.pick(&[0, 0xff])),
            _ => {
                let noise = seed.bytes(end - at);
                bytes[at..end].copy_from_slice(&noise);
            }
        }
    }
}
