//! API keys.

use axum::http::HeaderMap;
use subtle::ConstantTimeEq;

/// The keys that clients may present; without any, every request is accepted.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Creates a set of keys. Empty ones are ignored.
    pub fn new(keys: impl IntoIterator<Item = String>) -> ApiKeys {
        ApiKeys(keys.into_iter().filter(|key| !key.is_empty()).collect())
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the headers have one of the keys, as `Authorization: Bearer KEY`, `Authorization: KEY` or
    /// `X-Api-Key: KEY`. The comparison takes as long for a wrong key as for the right one.
    pub(crate) fn accept(&self, headers: &HeaderMap) -> bool {
        if self.is_empty() {
            return true;
        }
        let authorization = headers.get("authorization").map(|value| {
            let value = value.as_bytes();
            value.strip_prefix(b"Bearer ").unwrap_or(value)
        });
        let x_api_key = headers.get("x-api-key").map(|value| value.as_bytes());
        let mut accepted = false;
        for given in [authorization, x_api_key].into_iter().flatten() {
            for key in &self.0 {
                accepted |= bool::from(key.as_bytes().ct_eq(given));
            }
        }
        accepted
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_accepted_in_three_forms() {
        let keys = ApiKeys::new(["one".to_owned(), "two".to_owned(), String::new()]);
        let accepts = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            keys.accept(&headers)
        };
        assert!(accepts("authorization", "Bearer one"));
        assert!(accepts("authorization", "two"));
        assert!(accepts("x-api-key", "two"));
        for wrong in [
            "",
            "Bearer ",
            "Bearer three",
            "bearer one",
            "on",
            "Bearer onetwo",
        ] {
            assert!(!accepts("authorization", wrong), "{wrong}");
        }
        assert!(!keys.accept(&HeaderMap::new()));
        assert!(ApiKeys::default().accept(&HeaderMap::new()));
        assert_eq!(format!("{keys:?}"), "2 keys");
    }
}
