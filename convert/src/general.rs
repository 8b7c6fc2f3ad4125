//! Keys that describe the model: recommended sampling, name, origin, license. Sources, in order of
//! precedence: the generation config, the model card, the id in the config, the folder's name.

use std::path::Path;

use schemas::gguf::{Metadata, Value};
use schemas::size::Size;
use serde_json::{Map, Value as Json};
use serde_yaml_ng::Value as Yaml;

use crate::card::{self, Card, scalar};
use crate::error::Error;
use crate::hf_config::{HfConfig, read_optional_object};
use crate::model_id::{ModelId, title};
use crate::note::Note;

/// Parts of the model's name for the file name.
#[derive(Debug)]
pub(crate) struct Naming {
    pub(crate) name: String,
    pub(crate) basename: Option<String>,
    pub(crate) finetune: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) size_label: String,
}

/// Returns the descriptive keys of a checkpoint with this size.
pub(crate) fn metadata(
    config: &HfConfig,
    size: Size,
    notes: &mut Vec<Note>,
) -> Result<(Metadata, Naming), Error> {
    let name = config.name.clone().or_else(|| folder_id(&config.folder));
    let ids = [config_id(&config.root), name];
    let ids = ids.iter().flatten();
    let sources = Sources {
        card: card::read(&config.folder, notes)?,
        ids: ids.map(|id| ModelId::parse(id, size.n_params())).collect(),
    };
    let naming = sources.naming(size);
    let mut out = Writer(Metadata::new());
    sampling(&config.folder, &mut out, notes)?;
    sources.describe(&naming, size.n_params(), &mut out);
    Ok((out.0, naming))
}

/// Sources of descriptive fields, in order of precedence.
struct Sources {
    card: Card,
    ids: Vec<ModelId>,
}

impl Sources {
    /// Returns a field from the first source that has it.
    fn field(&self, in_card: &[&str], in_id: fn(&ModelId) -> Option<String>) -> Option<String> {
        let card = self.card.text(in_card);
        card.or_else(|| self.ids.iter().find_map(in_id))
    }

    fn naming(&self, size: Size) -> Naming {
        Naming {
            name: self
                .field(&["name", "model_name"], |id| Some(title(&id.name)))
                .unwrap_or_default(),
            basename: self.field(&["basename", "model_basename", "model_type"], |id| {
                id.basename.clone()
            }),
            finetune: self.field(&["finetune", "model_finetune"], |id| id.finetune.clone()),
            version: self.field(&["version", "model_version"], |id| id.version.clone()),
            size_label: self
                .field(&["size_label", "model_size_label"], |id| {
                    id.size_label.clone()
                })
                .unwrap_or_else(|| size.label()),
        }
    }

    fn describe(&self, naming: &Naming, n_params: u64, out: &mut Writer) {
        let card = &self.card;
        out.text("name", Some(naming.name.clone()));
        out.text(
            "author",
            card.text(&["author", "model_author", "model_creator"]),
        );
        out.text("version", naming.version.clone());
        out.text(
            "organization",
            self.field(&["organization", "model_organization"], |id| {
                id.organization.as_deref().map(title)
            }),
        );
        out.text("finetune", naming.finetune.clone());
        out.text("basename", naming.basename.clone());
        out.text(
            "description",
            card.text(&["description", "model_description"]),
        );
        out.text("size_label", Some(naming.size_label.clone()));
        out.text("license", card.texts(&["license"]).map(|all| all.join(",")));
        out.text("license.name", card.text(&["license_name"]));
        out.text("license.link", card.text(&["license_link"]));
        out.text("source.url", card.text(&["url", "model_url"]));
        out.text("source.doi", card.text(&["doi", "model_doi"]));
        out.text("source.uuid", card.text(&["uuid", "model_uuid"]));
        out.text(
            "source.repo_url",
            card.text(&["repo_url", "model_repo_url"]),
        );
        let base_models = ["base_model", "base_models", "base_model_sources"];
        out.origins("base_model", card.items(&base_models), n_params);
        let datasets = ["datasets", "dataset", "dataset_sources"];
        out.origins("dataset", card.items(&datasets), n_params);
        out.texts("tags", card, ["tags", "pipeline_tag"]);
        out.texts("languages", card, ["languages", "language"]);
    }
}

/// Returns the id that the config was saved under, unless it is a local path.
fn config_id(config: &Map<String, Json>) -> Option<String> {
    let id = config.get("_name_or_path")?.as_str()?;
    (id.matches('/').count() <= 1).then(|| id.to_owned())
}

/// Returns the folder's name, also for `.` and similar paths.
fn folder_id(folder: &Path) -> Option<String> {
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    name(folder).or_else(|| name(&folder.canonicalize().ok()?))
}

/// Reads the recommended sampling parameters from `generation_config.json`.
fn sampling(folder: &Path, out: &mut Writer, notes: &mut Vec<Note>) -> Result<(), Error> {
    let config = match read_optional_object(&folder.join("generation_config.json")) {
        Ok(config) => config.unwrap_or_default(),
        // The file is only advisory, and many are broken, so it is skipped.
        Err(Error::Json { source, .. }) => {
            notes.push(Note::Ignored {
                file: "generation_config.json".to_owned(),
                why: source.to_string(),
            });
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let sequence = config.get("sequence").and_then(Json::as_str);
    out.text("sampling.sequence", sequence.map(str::to_owned));
    for (key, field, integer) in SAMPLING {
        let penalty = (*key == "penalty_repeat").then_some("repetition_penalty");
        let number = config.get(*field).or_else(|| config.get(penalty?));
        let value: Option<Value> = match integer {
            true => number
                .and_then(Json::as_i64)
                .and_then(|n| i32::try_from(n).ok())
                .map(Value::I32),
            false => number.and_then(Json::as_f64).map(|x| Value::F32(x as f32)),
        };
        if let Some(value) = value {
            out.0.set(format!("general.sampling.{key}"), value);
        }
    }
    Ok(())
}

/// Key, field of the generation config, and whether its value is an integer.
const SAMPLING: &[(&str, &str, bool)] = &[
    ("top_k", "top_k", true),
    ("top_p", "top_p", false),
    ("min_p", "min_p", false),
    ("xtc_probability", "xtc_probability", false),
    ("xtc_threshold", "xtc_threshold", false),
    ("temp", "temperature", false),
    ("penalty_last_n", "penalty_last_n", true),
    ("penalty_repeat", "penalty_repeat", false),
    ("mirostat", "mirostat", true),
    ("mirostat_tau", "mirostat_tau", false),
    ("mirostat_eta", "mirostat_eta", false),
];

/// Writes keys under `general.`; empty texts and lists are skipped.
struct Writer(Metadata);

impl Writer {
    fn text(&mut self, key: &str, text: Option<String>) {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.0.set(format!("general.{key}"), text);
        }
    }

    /// Writes the items of both fields, if there are any.
    fn texts(&mut self, key: &str, card: &Card, fields: [&str; 2]) {
        let texts: Vec<String> = fields
            .iter()
            .filter_map(|&field| card.texts(&[field]))
            .flatten()
            .collect();
        if !texts.is_empty() {
            self.0.set(format!("general.{key}"), texts);
        }
    }

    /// Writes the models or data sets that this model is derived from.
    fn origins(&mut self, key: &str, items: Option<Vec<&Yaml>>, n_params: u64) {
        let Some(items) = items else { return };
        self.0
            .set(format!("general.{key}.count"), items.len() as u32);
        for (i, item) in items.into_iter().enumerate() {
            for (field, text) in origin(item, n_params) {
                self.text(&format!("{key}.{i}.{field}"), text);
            }
        }
    }
}

/// Returns the properties of an origin: the fields of a mapping, or those derived from a link or an id on
/// the Hub.
fn origin(item: &Yaml, n_params: u64) -> Vec<(&'static str, Option<String>)> {
    const FIELDS: [&str; 9] = [
        "name",
        "author",
        "version",
        "organization",
        "description",
        "url",
        "doi",
        "uuid",
        "repo_url",
    ];
    if let Yaml::Mapping(fields) = item {
        return FIELDS
            .map(|field| (field, fields.get(field).and_then(scalar)))
            .into();
    }
    let Some(text) = scalar(item) else {
        return Vec::new();
    };
    let is_link = ["http://", "https://", "ssh://"]
        .iter()
        .any(|scheme| text.starts_with(scheme));
    let id = match is_link {
        true => hub_id(&text),
        false => Some(text.as_str()),
    };
    let parsed = id
        .map(|id| ModelId::parse(id, n_params))
        .unwrap_or_default();
    let repo_url = match (is_link, &parsed.organization) {
        (true, _) => Some(text.clone()),
        (false, Some(org)) => Some(format!("https://huggingface.co/{org}/{}", parsed.name)),
        (false, None) => None,
    };
    vec![
        ("name", Some(title(&parsed.name))),
        ("version", parsed.version),
        ("organization", parsed.organization.as_deref().map(title)),
        ("repo_url", repo_url),
    ]
}

/// Returns the id in a link to a Hub page of a model or data set.
fn hub_id(link: &str) -> Option<&str> {
    let path = link
        .strip_prefix("https://huggingface.co/")
        .or_else(|| link.strip_prefix("http://huggingface.co/"))?;
    let (org, name) = path.split_once('/')?;
    (!org.is_empty() && !name.is_empty() && !name.contains('/')).then_some(path)
}
