//! [`ModelFile`]: the location of a model, on this machine or on the Hub.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, bail};
use hub::{Hub, Reference, Repo, SCHEME};
use schemas::progress::{Task, Unit};

use crate::hint::Hinted;
use crate::{hub_config, output};

/// File type that is selected if none is named, as in llama.cpp.
const DEFAULT_TYPE: &str = "Q4_K_M";

/// The path of a GGUF file, `hf://org/name[@revision]/FILE.gguf` or `hf://org/name[@revision][:TYPE]`.
#[derive(Clone, Debug)]
pub(super) struct ModelFile {
    given: PathBuf,
    local: OnceLock<PathBuf>,
}

/// The flag of every command that reads one model.
#[derive(Debug, clap::Args)]
pub(super) struct ModelFlag {
    /// Target model: GGUF file, or hf://org/name/FILE.gguf
    ///
    /// For a split model, give the first shard. A file on the Hub is downloaded once. -hf org/name[:TYPE] selects it by
    /// type [default type: Q4_K_M, else the first file] [env: LLAMA_ARG_MODEL, LLAMA_ARG_HF_REPO]
    #[arg(short, long, value_name = "M.gguf")]
    model: Option<ModelFile>,
    /// The model that the environment names, once it was needed.
    #[arg(skip)]
    from_environment: OnceLock<ModelFile>,
}

impl ModelFlag {
    /// Returns the local path; see [`ModelFile::path`].
    pub(super) fn path(&self) -> anyhow::Result<&Path> {
        if let Some(model) = &self.model {
            return model.path();
        }
        let named = environment_model().ok_or_else(|| {
            Hinted::new(
                "no model was given",
                "name one: MODEL.gguf or -m MODEL.gguf, or -hf org/name for one on the Hub",
            )
        })?;
        self.from_environment.get_or_init(|| named).path()
    }
}

/// Returns the model of llama.cpp's environment variables.
fn environment_model() -> Option<ModelFile> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let repository = || {
        let name = set("LLAMA_ARG_HF_REPO")?.into_string().ok()?;
        Some(OsString::from(hub_reference(&name)))
    };
    set("LLAMA_ARG_MODEL")
        .or_else(repository)
        .map(ModelFile::from)
}

/// The model, as a flag or as the first argument.
#[derive(Debug, clap::Args)]
pub(super) struct TargetArgs {
    #[command(flatten)]
    flag: ModelFlag,
    /// Target model, instead of -m
    #[arg(index = 1, value_name = "MODEL")]
    target: Option<ModelFile>,
}

impl TargetArgs {
    /// Returns the local path; see [`ModelFile::path`].
    pub(super) fn path(&self) -> anyhow::Result<&Path> {
        match (&self.flag.model, &self.target) {
            (None, Some(model)) => model.path(),
            _ => self.flag.path(),
        }
    }

    /// True if the command line names a model; the environment does not count.
    pub(super) fn is_given(&self) -> bool {
        self.flag.model.is_some() || self.target.is_some()
    }

    /// Returns the first argument if a flag already names the model.
    pub(super) fn spare_argument(&self) -> Option<&Path> {
        let spare = self.target.as_ref().filter(|_| self.flag.model.is_some());
        spare.map(|spare| spare.given.as_path())
    }
}

impl From<OsString> for ModelFile {
    fn from(given: OsString) -> ModelFile {
        ModelFile {
            given: PathBuf::from(given),
            local: OnceLock::new(),
        }
    }
}

impl ModelFile {
    /// Returns the local path; a file on the Hub is downloaded at the first call.
    pub(super) fn path(&self) -> anyhow::Result<&Path> {
        if let Some(local) = self.local.get() {
            return Ok(local);
        }
        let text = self.given.to_str().filter(|text| text.starts_with(SCHEME));
        let local = match text {
            Some(text) => fetch(text)?,
            None => self.given.clone(),
        };
        Ok(self.local.get_or_init(|| local))
    }
}

/// Converts the value of `-hf org/name[:TYPE]` to an `hf://` reference.
pub(super) fn hub_reference(name: &str) -> String {
    if name.starts_with(SCHEME) {
        return name.to_owned();
    }
    format!("{SCHEME}{name}")
}

/// Downloads a model, including all shards of a split one; returns the path of the first shard.
fn fetch(text: &str) -> anyhow::Result<PathBuf> {
    // Repository names and the revisions in use contain no colon.
    let (location, ftype) = match text[SCHEME.len()..].rsplit_once(':') {
        Some((location, ftype)) if !ftype.contains('/') => {
            (format!("{SCHEME}{location}"), Some(ftype))
        }
        _ => (text.to_owned(), None),
    };
    let reference: Reference = location.parse()?;
    let repo = Hub::new(hub_config::from_environment()?).open(&reference)?;
    let names: Vec<&str> = repo
        .files()
        .filter(|name| name.ends_with(".gguf"))
        .collect();
    let first = match &reference.file {
        Some(file) => names.iter().copied().find(|name| name == file),
        None => choose(&names, ftype),
    };
    let Some(first) = first else {
        let missing = match (&reference.file, ftype) {
            (Some(file), _) => format!("no file {file}"),
            (None, Some(ftype)) => format!("no GGUF file of type {ftype}"),
            (None, None) => bail!("{location}: the repository has no GGUF file"),
        };
        bail!(
            "{SCHEME}{}: {missing}, expected one of {}",
            reference.repo,
            names.join(", ")
        );
    };
    download(&repo, &shards(&names, first))?;
    let path = repo.folder().join(first);
    path.is_file().then_some(()).with_context(|| {
        format!(
            "{}: the Hub lists no hash for this file, so it cannot be verified",
            repo.path(first).display()
        )
    })?;
    Ok(path)
}

fn download(repo: &Repo, names: &[&str]) -> anyhow::Result<()> {
    let mut ranges = Vec::new();
    for name in names {
        let file = repo
            .open(name)?
            .with_context(|| repo.path(name).display().to_string())?;
        ranges.push((*name, 0..file.size_bytes()));
    }
    let missing = repo.missing_bytes(&ranges)?;
    let label = format!("download {}", repo.path(names[0]).display());
    let task = Task::start(&label, missing, Unit::Bytes);
    repo.prefetch(&ranges, &|n| task.advance(n))?;
    drop(task);
    if missing > 0 {
        let (bytes, commit) = (output::bytes(missing), repo.commit());
        output::note(&format_args!(
            "downloaded {bytes} from hf://{} at commit {commit}",
            repo.name()
        ));
    }
    Ok(())
}

/// Selects the file of a type, or of [`DEFAULT_TYPE`], else the first model.
fn choose<'a>(names: &[&'a str], ftype: Option<&str>) -> Option<&'a str> {
    let is_first = |name: &&&str| parse_shard_name(name).is_none_or(|(_, number, _)| number == 1);
    let mut models: Vec<&str> = names.iter().filter(is_first).copied().collect();
    models.sort_unstable();
    // Files that accompany a model; a repository of heads contains nothing else.
    const COMPANIONS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];
    let is_model = |name: &str| {
        let file = name.rsplit('/').next().unwrap_or(name).to_lowercase();
        !COMPANIONS.iter().any(|name| file.contains(name))
    };
    if models.iter().any(|name| is_model(name)) {
        models.retain(|name| is_model(name));
    }
    let of_type = |ftype: &str| {
        let ftype = ftype.to_lowercase();
        let is_of_type = |name: &str| {
            let name = name.to_lowercase();
            ['.', '-']
                .iter()
                .any(|end| name.contains(&format!("{ftype}{end}")))
        };
        models.iter().copied().find(|name| is_of_type(name))
    };
    match ftype {
        Some(ftype) => of_type(ftype),
        None => of_type(DEFAULT_TYPE).or(models.first().copied()),
    }
}

/// Splits `PREFIX-00001-of-00003.gguf` into prefix, number and count.
fn parse_shard_name(name: &str) -> Option<(&str, u32, u32)> {
    let stem = name.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(number) && is_number(count))
        .then(|| Some((prefix, number.parse().ok()?, count.parse().ok()?)))?
}

/// Returns all shards of a split model, or the single file.
fn shards<'a>(names: &[&'a str], first: &'a str) -> Vec<&'a str> {
    let Some((prefix, _, count)) = parse_shard_name(first) else {
        return vec![first];
    };
    let same =
        |name: &&str| parse_shard_name(name).is_some_and(|(p, _, c)| (p, c) == (prefix, count));
    let mut shards: Vec<&str> = names.iter().copied().filter(same).collect();
    shards.sort_unstable();
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_chosen_like_in_llama_cpp() {
        let names = [
            "mmproj-m-Q4_K_M.gguf",
            "m-BF16.gguf",
            "m-Q4_K_S.gguf",
            "m-q4_k_m.gguf",
            "sub/m-Q8_0-00002-of-00002.gguf",
            "sub/m-Q8_0-00001-of-00002.gguf",
        ];
        assert_eq!(choose(&names, None), Some("m-q4_k_m.gguf"));
        assert_eq!(choose(&names, Some("bf16")), Some("m-BF16.gguf"));
        assert_eq!(choose(&names, Some("Q4_K")), None);
        let split = choose(&names, Some("Q8_0")).unwrap();
        assert_eq!(split, "sub/m-Q8_0-00001-of-00002.gguf");
        assert_eq!(shards(&names, split), [names[5], names[4]]);
        assert_eq!(choose(&names[..2], None), Some("m-BF16.gguf"));
        assert_eq!(choose(&["mtp-m-Q8_0.gguf"], None), Some("mtp-m-Q8_0.gguf"));
        assert_eq!(choose(&[], None), None);
    }
}
