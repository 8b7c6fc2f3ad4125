//! [`Strings`]: a list of short strings in one allocation.

use std::fmt;
use std::ops::{Index, Range};

use bstr::BStr;

/// Concatenated byte strings. Vocabularies have hundreds of thousands, of a few bytes each.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    /// End of each string in `bytes`.
    ends: Vec<usize>,
}

impl Strings {
    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Checks whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns string `i`.
    pub fn get(&self, i: usize) -> Option<&BStr> {
        let end = *self.ends.get(i)?;
        let range = self.start(i)..end;
        Some(BStr::new(&self.bytes[range]))
    }

    /// Returns all strings in order.
    pub fn iter(&self) -> Iter<'_> {
        let left = 0..self.len();
        Iter {
            strings: self,
            left,
        }
    }

    /// Appends a string.
    pub fn push(&mut self, text: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(text.as_ref());
        self.ends.push(self.bytes.len());
    }

    /// Keeps the first `len` strings.
    pub fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.bytes.truncate(self.start(self.len()));
    }

    /// Releases unused capacity.
    pub fn shrink_to_fit(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    fn start(&self, i: usize) -> usize {
        i.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

impl Index<usize> for Strings {
    type Output = BStr;

    fn index(&self, i: usize) -> &BStr {
        self.get(i).expect("an index below the length")
    }
}

impl<T: AsRef<[u8]>> Extend<T> for Strings {
    fn extend<I: IntoIterator<Item = T>>(&mut self, texts: I) {
        texts.into_iter().for_each(|text| self.push(text));
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Strings {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Strings {
        let mut strings = Strings::default();
        strings.extend(texts);
        strings
    }
}

impl<'a> IntoIterator for &'a Strings {
    type Item = &'a BStr;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Iterator over a [`Strings`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    strings: &'a Strings,
    left: Range<usize>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a BStr;

    fn next(&mut self) -> Option<&'a BStr> {
        self.strings.get(self.left.next()?)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_a_list_of_texts(texts: Vec<Vec<u8>>, len in 0..8usize) {
            let mut strings: Strings = texts.iter().collect();
            prop_assert_eq!(strings.len(), texts.len());
            prop_assert!(strings.iter().eq(texts.iter().map(BStr::new)));
            prop_assert_eq!(strings.get(texts.len()), None);

            let mut first = texts;
            first.truncate(len);
            strings.truncate(len);
            prop_assert_eq!(&strings, &first.iter().collect::<Strings>());
            strings.push("next");
            prop_assert_eq!(strings.iter().last(), Some(BStr::new("next")));
        }
    }
}
