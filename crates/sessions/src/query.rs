//! What a person asks for, and whether a text has it.
//!
//! A word is found where it stands as a word; a `"phrase"`, letters of scripts without spaces, and emoji are found
//! anywhere. A word with `*` at its end is found where a word begins with it. All of them must occur.

use crate::fold::{Folded, continues, fold, spaced_word};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    folded: String,
    /// The text before, or after, must not go on with the same word.
    begins: bool,
    ends: bool,
}

/// A parsed query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query {
    terms: Vec<Term>,
}

impl Query {
    /// Every text is a query; what has no word in it finds nothing.
    pub(crate) fn parse(query: &str) -> Query {
        let mut terms = Vec::new();
        // Between quotes lie phrases: every second part. A quote that is never closed is closed by the end.
        for (part, text) in query.split('"').enumerate() {
            if part % 2 == 1 {
                terms.extend(Term::new(text.trim(), false, false));
                continue;
            }
            for word in text.split_whitespace() {
                let stem = word.trim_end_matches('*');
                terms.extend(Term::new(stem, true, stem.len() == word.len()));
            }
        }
        Query { terms }
    }

    /// True if nothing can be found by it.
    pub(crate) fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// True if a text of ASCII alone cannot have it, so that it need not be looked at.
    pub(crate) fn beyond_ascii(&self) -> bool {
        self.terms.iter().any(|t| !t.folded.is_ascii())
    }

    /// True if the folded `text` has every term.
    pub(crate) fn matches(&self, text: &str) -> bool {
        self.terms.iter().all(|t| t.find(text, 0).is_some())
    }

    /// Where terms stand in the original of `folded`, in order, without overlaps.
    pub(crate) fn places(&self, folded: &Folded) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        for term in &self.terms {
            let mut from = 0;
            while let Some(at) = term.find(&folded.text, from) {
                let end = at + term.folded.len();
                places.push(folded.original(at, end));
                from = end;
            }
        }
        places.sort_unstable();
        let mut apart: Vec<(usize, usize)> = Vec::with_capacity(places.len());
        for place in places {
            match apart.last_mut() {
                Some(last) if place.0 < last.1 => last.1 = last.1.max(place.1),
                _ => apart.push(place),
            }
        }
        apart
    }
}

impl Term {
    fn new(text: &str, begins: bool, ends: bool) -> Option<Term> {
        let folded = fold(text);
        (!folded.trim().is_empty()).then_some(Term { folded, begins, ends })
    }

    fn find(&self, text: &str, from: usize) -> Option<usize> {
        let mut from = from;
        loop {
            let at = from + text.get(from..)?.find(&self.folded)?;
            let end = at + self.folded.len();
            let before = text.get(..at).and_then(|t| t.chars().next_back());
            let after = text.get(end..).and_then(|t| t.chars().next());
            let first = self.folded.chars().next();
            let last = self.folded.chars().next_back();
            let joined = |a: Option<char>, b: Option<char>| a.is_some_and(spaced_word) && b.is_some_and(spaced_word);
            let cut = after.is_some_and(continues);
            if !(cut || self.begins && joined(before, first) || self.ends && joined(last, after)) {
                return Some(at);
            }
            from = at + first.map_or(1, char::len_utf8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(query: &str, text: &str) -> bool {
        Query::parse(query).matches(&fold(text))
    }

    #[test]
    fn words_stand_alone_and_all_must_occur() {
        assert!(has("cat", "The CAT sat"));
        assert!(!has("cat", "concatenate"));
        assert!(has("concat*", "concatenate"));
        assert!(!has("cat*", "concatenate"));
        assert!(has("cat", "concatenate a cat"));
        assert!(has("sat cat", "The CAT sat"));
        assert!(!has("cat dog", "The CAT sat"));
        assert!(has("cafe", "im Café."));
        assert!(has("state.db", "open /h/state.db now"));
    }

    #[test]
    fn phrases_are_found_anywhere() {
        assert!(has("\"at sa\"", "The CAT sat"));
        assert!(has("\"the cat", "The\nCAT sat"));
        assert!(!has("\"sat the\"", "The CAT sat"));
    }

    #[test]
    fn unspaced_scripts_and_emoji_are_found_anywhere() {
        assert!(has("東", "私は東京に住む"));
        assert!(has("京に", "私は東京に住む"));
        assert!(has("🦀", "hi🦀🦀there"));
        assert!(has("❤", "a❤\u{fe0f}b"));
        assert!(has("한", "대한민국"));
        assert!(!has("하", "대한민국"));
        assert!(!has("か", "が"));
        assert!(has("ＡＢＣ", "the abc"));
        assert!(has("abc東", "xx abc東京"));
    }

    #[test]
    fn nothing_is_found_by_nothing() {
        for query in ["", "  ", "\"\"", "*", "\u{fe0f}"] {
            assert!(Query::parse(query).is_empty(), "{query:?}");
        }
    }

    #[test]
    fn places_are_apart_and_in_order() {
        let text = "abcabc É abc";
        let places = Query::parse("\"abc\" e \"cab\"").places(&Folded::of(text));
        assert_eq!(places, [(0, 6), (7, 9), (10, 13)]);
    }
}
