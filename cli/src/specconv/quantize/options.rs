//! [`Options`]: the quantization options, both as flags and as keys of a recipe.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use quantize::{FType, Imatrix, KeyOverride, QuantizeConfig, TypeRule, parse_type};
use schemars::JsonSchema;
use schemas::input;
use serde::{Deserialize, Serialize};

use crate::hint::Hinted;

/// Recipe of `specconv quantize`: options, named like their flags.
// Values keep the text that the user typed, so that a recipe can be written back. They are validated
// when read and converted to a config in one place.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
#[schemars(title = "quantize-recipe")]
pub(super) struct Options {
    /// GGUF file, first shard of a split model, checkpoint folder, or hf://org/name
    #[arg(skip)]
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub(super) input: Option<PathBuf>,
    /// File to write
    ///
    /// {ftype} in its name is replaced by the type, {FTYPE} by the type in capitals
    #[arg(skip)]
    #[serde(rename = "out", skip_serializing_if = "Option::is_none")]
    pub(super) output: Option<PathBuf>,
    /// File type, or several separated by commas
    ///
    /// Each type is written to its own file
    #[arg(skip)]
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(super) ftypes: Option<String>,
    /// Number of threads; 0 for one per core
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) threads: Option<usize>,
    /// Memory limit of all buffers together, in MiB
    ///
    /// At least one tensor row is buffered
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_buffer_size: Option<u32>,

    /// Quantize all weights to one type, without a mix
    #[arg(long, help_heading = TYPES, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", hide_possible_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pure: Option<bool>,
    /// Do not quantize output.weight
    #[arg(long, help_heading = TYPES, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", hide_possible_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) leave_output_tensor: Option<bool>,
    /// Type of output.weight
    ///
    /// Also the type of token embeddings that serve as the output
    #[arg(long, help_heading = TYPES, value_name = "TYPE", value_parser = checked::<ElementType>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output_tensor_type: Option<String>,
    /// Type of the token embeddings
    #[arg(long, help_heading = TYPES, value_name = "TYPE", value_parser = checked::<ElementType>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_embedding_type: Option<String>,
    /// Type of the MTP head's weights
    ///
    /// eh_proj is stored with at least the bits of Q8_0
    #[arg(long, help_heading = TYPES, value_name = "TYPE", value_parser = checked::<ElementType>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mtp_type: Option<String>,
    /// Type of tensors whose names match, such as ffn_down=q6_K
    ///
    /// REGEX is a regular expression that matches anywhere in the name. The first match decides. May be given
    /// several times
    #[arg(long, help_heading = TYPES, value_name = "REGEX=TYPE", value_parser = checked::<TypeRule>)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tensor_type: Vec<String>,
    /// File of REGEX=TYPE rules, separated by spaces or lines
    ///
    /// They are applied after those of --tensor-type
    #[arg(long, help_heading = TYPES, value_name = "FILE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tensor_type_file: Vec<PathBuf>,
    /// Allow requantizing tensors that are already quantized
    ///
    /// Loses more precision than quantizing from 16 or 32 bits
    #[arg(long, help_heading = TYPES, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", hide_possible_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allow_requantize: Option<bool>,

    /// Importance matrix, as written by specrun imatrix or llama-imatrix (GGUF or .dat)
    #[arg(long, help_heading = IMATRIX, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) imatrix: Option<PathBuf>,
    /// Use only importance matrix entries with PART in their names
    ///
    /// May be given several times
    #[arg(long, help_heading = IMATRIX, value_name = "PART")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) include_weights: Vec<String>,
    /// Ignore importance matrix entries with PART in their names
    ///
    /// May be given several times
    #[arg(long, help_heading = IMATRIX, value_name = "PART", conflicts_with = "include_weights")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) exclude_weights: Vec<String>,

    /// Layers to remove, counted from 0, such as 3,7
    ///
    /// Later layers are renumbered
    #[arg(long, help_heading = MODEL, value_name = "LAYERS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) prune_layers: Vec<u32>,
    /// Write as many shards as the input has
    ///
    /// Each has the same tensors as in the input
    #[arg(long, help_heading = MODEL, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", hide_possible_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keep_split: Option<bool>,
    /// Key to set in the result
    ///
    /// TYPE is int, float, bool or str. May be given several times
    #[arg(long, help_heading = MODEL, value_name = "KEY=TYPE:VALUE")]
    #[arg(value_parser = checked::<KeyOverride>)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) override_kv: Vec<String>,
}

const TYPES: &str = "Types of tensors";
const IMATRIX: &str = "Importance matrix";
const MODEL: &str = "Changes to the model";

/// Parses the name of an element type that weights can have.
struct ElementType;

impl std::str::FromStr for ElementType {
    type Err = quantize::UnknownType;

    fn from_str(name: &str) -> Result<ElementType, quantize::UnknownType> {
        parse_type(name).map(|_| ElementType)
    }
}

/// Returns the text unmodified if it parses as `T`.
fn checked<T: std::str::FromStr>(text: &str) -> Result<String, T::Err> {
    text.parse::<T>().map(|_| text.to_owned())
}

/// Checks one value of a recipe, by its key.
pub(super) fn check(key: &str, text: &str) -> anyhow::Result<()> {
    match key {
        "type" => parse_ftypes(text).map(|_| ()),
        "output-tensor-type" | "token-embedding-type" | "mtp-type" => {
            Ok(checked::<ElementType>(text).map(|_| ())?)
        }
        "tensor-type" => Ok(checked::<TypeRule>(text).map(|_| ())?),
        "override-kv" => Ok(checked::<KeyOverride>(text).map(|_| ())?),
        _ => Ok(()),
    }
}

/// Parses comma-separated file types.
fn parse_ftypes(text: &str) -> anyhow::Result<Vec<FType>> {
    let mut ftypes = Vec::new();
    for name in text.split(',') {
        let ftype = name.trim().parse()?;
        ensure!(
            !ftypes.contains(&ftype),
            "file type {ftype} is named twice in {text:?}"
        );
        ftypes.push(ftype);
    }
    Ok(ftypes)
}

impl Options {
    /// Reads `[IN] [OUT] [TYPE] [NTHREADS]`. The first word that names types separates files from
    /// threads, so the very first word can be a type only if a recipe names the input.
    pub(super) fn read_positionals(
        &mut self,
        words: &[OsString],
        recipe: &Options,
    ) -> anyhow::Result<()> {
        let is_type = |word: &OsString| word.to_str().is_some_and(|w| parse_ftypes(w).is_ok());
        let n_before = usize::from(recipe.input.is_none());
        let n_skipped = words.iter().skip(n_before).position(is_type);
        let (files, rest) = match n_skipped {
            Some(n_skipped) => words.split_at(n_before + n_skipped),
            None if recipe.ftypes.is_some() && words.len() <= 2 => (words, Default::default()),
            // Reports the error of the word that should be a type.
            None => match words.get(2).or(words.get(1)) {
                Some(word) => (words, std::slice::from_ref(word)),
                None => bail!(order(
                    "no type was given: expected IN [OUT.gguf] TYPE [NTHREADS], or a recipe that names them",
                    words,
                )),
            },
        };
        if let Some(ftypes) = rest.first() {
            let ftypes = text(ftypes, "a type")?;
            if ftypes.ends_with(".gguf") {
                bail!(order(
                    &format!("{ftypes}: no type was given after the output"),
                    words
                ));
            }
            parse_ftypes(&ftypes)?;
            self.ftypes = Some(ftypes);
        }
        if let Some(threads) = rest.get(1) {
            let n = text(threads, "a number of threads")?;
            let n: i64 = n.parse().map_err(|_| {
                let message = format!("{n:?}: expected a number of threads after the type");
                order(&message, words)
            })?;
            // As in llama-quantize, zero or a negative number selects all cores.
            self.threads = Some(n.max(0) as usize);
        }
        ensure!(
            files.len() <= 2 && rest.len() <= 2,
            "expected IN [OUT.gguf] TYPE [NTHREADS], found {} arguments",
            words.len()
        );
        self.input = files.first().map(PathBuf::from);
        self.output = files.get(1).map(PathBuf::from);
        Ok(())
    }

    /// Combines these options with a recipe, which supplies the missing ones. Rules by name come before
    /// the recipe's, since the first match decides; key overrides come after, since the last one wins.
    pub(super) fn or_recipe(self, recipe: Options) -> Options {
        Options {
            input: self.input.or(recipe.input),
            output: self.output.or(recipe.output),
            ftypes: self.ftypes.or(recipe.ftypes),
            threads: self.threads.or(recipe.threads),
            max_buffer_size: self.max_buffer_size.or(recipe.max_buffer_size),
            pure: self.pure.or(recipe.pure),
            leave_output_tensor: self.leave_output_tensor.or(recipe.leave_output_tensor),
            output_tensor_type: self.output_tensor_type.or(recipe.output_tensor_type),
            token_embedding_type: self.token_embedding_type.or(recipe.token_embedding_type),
            mtp_type: self.mtp_type.or(recipe.mtp_type),
            tensor_type: [self.tensor_type, recipe.tensor_type].concat(),
            tensor_type_file: [self.tensor_type_file, recipe.tensor_type_file].concat(),
            allow_requantize: self.allow_requantize.or(recipe.allow_requantize),
            imatrix: self.imatrix.or(recipe.imatrix),
            include_weights: non_empty(self.include_weights, recipe.include_weights),
            exclude_weights: non_empty(self.exclude_weights, recipe.exclude_weights),
            prune_layers: non_empty(self.prune_layers, recipe.prune_layers),
            keep_split: self.keep_split.or(recipe.keep_split),
            override_kv: [recipe.override_kv, self.override_kv].concat(),
        }
    }

    /// Returns the input file or folder.
    pub(super) fn input(&self) -> anyhow::Result<&Path> {
        self.input
            .as_deref()
            .context("no input: expected IN, or in = \"IN\" in the recipe")
    }

    /// Returns the types to write.
    pub(super) fn ftypes(&self) -> anyhow::Result<Vec<FType>> {
        parse_ftypes(
            self.ftypes
                .as_deref()
                .context("no type: expected TYPE, or type = \"TYPE\" in the recipe")?,
        )
    }

    /// Returns the quantization config for a type.
    pub(super) fn config(
        &self,
        ftype: FType,
        imatrix: Option<Imatrix>,
    ) -> anyhow::Result<QuantizeConfig> {
        let dtype = |name: &Option<String>| name.as_deref().map(parse_type).transpose();
        let overrides = self.override_kv.iter().map(|text| text.parse());
        Ok(QuantizeConfig {
            ftype,
            allow_requantize: self.allow_requantize == Some(true),
            imatrix,
            pure: self.pure == Some(true),
            leave_output: self.leave_output_tensor == Some(true),
            output_type: dtype(&self.output_tensor_type)?,
            embedding_type: dtype(&self.token_embedding_type)?,
            tensor_types: self.tensor_types()?,
            mtp_type: dtype(&self.mtp_type)?,
            overrides: overrides.collect::<Result<_, _>>()?,
            prune_layers: self.prune_layers.clone(),
            keep_split: self.keep_split == Some(true),
        })
    }

    fn tensor_types(&self) -> anyhow::Result<Vec<TypeRule>> {
        let rules = self.tensor_type.iter().map(|text| text.parse());
        let mut rules: Vec<TypeRule> = rules.collect::<Result<_, _>>()?;
        for path in &self.tensor_type_file {
            let name = || path.display().to_string();
            let text = input::read_text(path, input::Kind::Stream, input::MAX_HANDWRITTEN);
            let text = text.with_context(name)?;
            for (i, line) in text.lines().enumerate() {
                for word in line.split_ascii_whitespace() {
                    let rule = word.parse();
                    rules.push(rule.with_context(|| format!("{}:{}", path.display(), i + 1))?);
                }
            }
        }
        Ok(rules)
    }

    /// Opens the importance matrix, if one is named.
    pub(super) fn imatrix(&self) -> anyhow::Result<Option<Imatrix>> {
        ensure!(
            self.include_weights.is_empty() || self.exclude_weights.is_empty(),
            "include-weights cannot be combined with exclude-weights"
        );
        let Some(path) = &self.imatrix else {
            ensure!(
                self.include_weights.is_empty() && self.exclude_weights.is_empty(),
                "include-weights and exclude-weights need an importance matrix (imatrix)"
            );
            return Ok(None);
        };
        let mut imatrix = Imatrix::open(path)?;
        imatrix.exclude(&self.exclude_weights);
        if !self.include_weights.is_empty() {
            imatrix.include(&self.include_weights);
        }
        Ok(Some(imatrix))
    }
}

/// Returns an error about positional arguments that shows their order with the user's own file names.
fn order(message: &str, words: &[OsString]) -> Hinted {
    let is_file = |word: &&OsString| word.to_string_lossy().ends_with(".gguf");
    let mut files = words
        .iter()
        .filter(is_file)
        .map(|word| word.to_string_lossy());
    let input = files.next().unwrap_or("model.gguf".into());
    let output = files.next().unwrap_or("model-q4.gguf".into());
    Hinted::new(
        message,
        format!(
            "\"specconv quantize {input} {output} Q4_K_M\"; \"specconv quantize --help\" lists the types"
        ),
    )
}

fn text(word: &OsString, expected: &str) -> anyhow::Result<String> {
    let text = word.to_str().map(str::to_owned);
    text.with_context(|| format!("{}: expected {expected}", word.display()))
}

fn non_empty<T>(first: Vec<T>, second: Vec<T>) -> Vec<T> {
    if first.is_empty() { second } else { first }
}
