//! References to a repository, or to a file in it: `hf://org/name[@revision][/file]`.

use std::fmt;
use std::str::FromStr;

/// Prefix of every reference.
pub const SCHEME: &str = "hf://";

/// A repository, optionally with a revision and a file in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `org/name`.
    pub repo: String,
    /// A branch, a tag, a pull request (`refs/pr/1`) or a commit; `None` for the main branch.
    pub revision: Option<String>,
    /// A path in the repository.
    pub file: Option<String>,
}

/// Error for a text that is not a reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a reference to a repository, expected hf://org/name[@revision][/file]")]
pub struct InvalidReference {
    /// The text.
    pub found: String,
}

impl FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Reference, InvalidReference> {
        parse(text).ok_or_else(|| InvalidReference {
            found: text.to_owned(),
        })
    }
}

fn parse(text: &str) -> Option<Reference> {
    let path = text.strip_prefix(SCHEME)?;
    let mut parts = path.trim_end_matches('/').split('/');
    let org = parts.next().filter(|part| is_name(part))?;
    let (name, revision) = match parts.next()?.split_once('@') {
        None => (path.split('/').nth(1)?, None),
        // Revisions `refs/x/y` are commonly written with unescaped slashes.
        Some((name, "refs")) => {
            let revision = format!("refs/{}/{}", parts.next()?, parts.next()?);
            (name, Some(revision))
        }
        Some((name, revision)) => (name, Some(revision.replace("%2F", "/"))),
    };
    let is_path = |path: &str| path.split('/').all(|part| !["", ".", ".."].contains(&part));
    let file = parts.collect::<Vec<_>>().join("/");
    let valid = is_name(name)
        && revision.as_deref().is_none_or(is_path)
        && (file.is_empty() || is_path(&file));
    valid.then(|| Reference {
        repo: format!("{org}/{name}"),
        revision,
        file: (!file.is_empty()).then_some(file),
    })
}

/// Checks whether a text is a valid name of an account or a repository.
fn is_name(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty() && part.chars().all(allowed) && !part.starts_with(['.', '-'])
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read() {
        for (text, repo, revision, file) in [
            ("hf://org/name", "org/name", None, None),
            ("hf://org/name/", "org/name", None, None),
            ("hf://a-b/C.1_d@v1.0", "a-b/C.1_d", Some("v1.0"), None),
            ("hf://o/n@refs/pr/12", "o/n", Some("refs/pr/12"), None),
            ("hf://o/n@a%2Fb/m.gguf", "o/n", Some("a/b"), Some("m.gguf")),
            ("hf://o/n/dir/m.gguf", "o/n", None, Some("dir/m.gguf")),
        ] {
            let expected = Reference {
                repo: repo.to_owned(),
                revision: revision.map(str::to_owned),
                file: file.map(str::to_owned),
            };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        let shown = "hf://o/n@refs/pr/12/dir/m.gguf";
        assert_eq!(shown.parse::<Reference>().unwrap().to_string(), shown);
    }

    #[test]
    fn invalid_references_are_rejected() {
        for text in [
            "org/name",
            "hf://",
            "hf://name",
            "hf://org/",
            "hf://../name",
            "hf://org/na me",
            "hf://org/name@",
            "hf://org/name@refs/pr",
            "hf://org/name//m.gguf",
            "hf://org/name/../m.gguf",
            "hf://org/name@../x",
            "hf://org/name?download",
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.contains("expected hf://org/name"), "{text}: {error}");
        }
    }
}
