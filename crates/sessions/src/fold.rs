//! Folding: what a search regards as the same letter.
//!
//! Text is decomposed (NFKD), diacritics and invisible joiners are dropped and case is folded, so `CAFÉ`, `café` and
//! a decomposed `café` are one word, and full-width forms equal ASCII. Marks that make another letter are kept: the
//! voicing marks of kana, vowel signs and viramas of Indic scripts. Searching for the folded form of a query inside the
//! folded text, with [`Folded`] leading back to the original, is what all of search rests on.

use unicode_normalization::char::{canonical_combining_class, decompose_compatible};

fn dropped(c: char) -> bool {
    match c {
        // Soft hyphen, word joiner, byte order mark, variation selectors; marks that enclose.
        '\u{ad}' | '\u{2060}' | '\u{feff}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' => true,
        '\u{20d0}'..='\u{20f0}' => true,
        // Classes 7 to 9 are nuktas, kana voicing marks and viramas.
        c if c < '\u{300}' => false,
        c => !matches!(canonical_combining_class(c), 0 | 7..=9),
    }
}

/// Gives the folded form of one character to `emit`: nothing, one or several characters.
pub(crate) fn fold_char(c: char, mut emit: impl FnMut(char)) {
    if c.is_ascii() {
        return emit(if c.is_ascii_whitespace() { ' ' } else { c.to_ascii_lowercase() });
    }
    decompose_compatible(c, |d| match d {
        d if dropped(d) => {}
        d if d.is_whitespace() => emit(' '),
        'ß' | 'ẞ' => {
            emit('s');
            emit('s');
        }
        // Letters that have no decomposition but are typed without their stroke.
        'Ł' | 'ł' => emit('l'),
        'Ø' | 'ø' => emit('o'),
        'Đ' | 'đ' => emit('d'),
        'ı' => emit('i'),
        'ς' => emit('σ'),
        d => d.to_lowercase().for_each(&mut emit),
    });
}

/// Replaces `out` by the folded form of `text`.
pub(crate) fn fold_into(text: &str, out: &mut String) {
    out.clear();
    if text.is_ascii() {
        out.push_str(text);
        out.make_ascii_lowercase();
        if out.bytes().any(|b| b != b' ' && b.is_ascii_whitespace()) {
            *out = out.replace(|c: char| c.is_ascii_whitespace(), " ");
        }
        return;
    }
    text.chars().for_each(|c| fold_char(c, |f| out.push(f)));
}

/// The folded form of `text`.
pub(crate) fn fold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    fold_into(text, &mut out);
    out
}

/// A folded text that knows where each part of it came from.
pub(crate) struct Folded {
    pub(crate) text: String,
    /// For each byte of `text`, where its original character begins; one more entry for the end.
    origins: Vec<usize>,
}

impl Folded {
    pub(crate) fn of(text: &str) -> Folded {
        let mut folded =
            Folded { text: String::with_capacity(text.len()), origins: Vec::with_capacity(text.len() + 1) };
        for (at, c) in text.char_indices() {
            fold_char(c, |f| {
                folded.text.push(f);
                folded.origins.resize(folded.text.len(), at);
            });
        }
        folded.origins.push(text.len());
        folded
    }

    /// The range of the original that a range of the folded text stands for; marks that follow belong to it.
    pub(crate) fn original(&self, from: usize, to: usize) -> (usize, usize) {
        let begin = self.origins.get(from).copied().unwrap_or_default();
        // A match may end within what one character unfolds to (`ﬁ`): then the whole character is meant.
        let last = to.checked_sub(1).and_then(|l| self.origins.get(l)).copied().unwrap_or(begin);
        let end = self.origins.iter().skip(to).copied().find(|o| *o > last).unwrap_or(last);
        (begin, end)
    }
}

/// Letters of scripts that are written without spaces between words (or with particles attached): found anywhere.
fn unspaced(c: char) -> bool {
    matches!(u32::from(c),
        0x0e00..=0x0eff | 0x1000..=0x109f | 0x1100..=0x11ff | 0x1780..=0x17ff | 0x2e80..=0x9fff | 0xa960..=0xa97f
        | 0xac00..=0xd7ff | 0xf900..=0xfaff | 0x2_0000..=0x3_ffff)
}

/// Letters and digits that make words with their neighbours.
pub(crate) fn spaced_word(c: char) -> bool {
    c.is_alphanumeric() && !unspaced(c)
}

/// Continues the letter before it: vowels and finals of a Hangul syllable, voicing marks of kana.
pub(crate) fn continues(c: char) -> bool {
    matches!(c, '\u{1160}'..='\u{11ff}' | '\u{3099}' | '\u{309a}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_diacritics_and_width_fold() {
        for (a, b) in [
            ("CAFÉ", "cafe\u{301}"),
            ("Straße", "STRASSE"),
            ("ΣΊΣΥΦΟΣ", "σίσυφος"),
            ("ＡＢＣ１", "abc1"),
            ("İstanbul", "istanbul"),
            ("Łódź", "lodz"),
            ("Tiếng Việt", "tieng viet"),
            ("❤\u{fe0f}", "❤"),
            ("한글", "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}"),
            ("ｶﾞ", "ガ"),
            ("مُحَمَّد", "محمد"),
            ("a\n\tb", "A  B"),
        ] {
            assert_eq!(fold(a), fold(b), "{a} and {b}");
        }
        assert_ne!(fold("か"), fold("が"));
        assert_ne!(fold("की"), fold("कि"));
    }

    #[test]
    fn the_way_back_covers_whole_characters() {
        let original = "xÉ\u{301}y ﬁn";
        let folded = Folded::of(original);
        assert_eq!(folded.text, "xey fin");
        assert_eq!(folded.original(1, 2), (1, 5));
        let (from, to) = folded.original(4, 5);
        assert_eq!(&original[from..to], "ﬁ");
        assert_eq!(folded.original(0, folded.text.len()), (0, original.len()));
    }
}
