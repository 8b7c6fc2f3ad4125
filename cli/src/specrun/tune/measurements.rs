//! The file with measurements. It is written after each one, so that an interrupted run can continue.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use schemas::gguf::DType;
use schemas::input;
use schemas::outfile::{self, Partial};
use schemas::report::{InputFile, SCHEMA_VERSION, TuneMeasurement, TuneMeasurements, TuneSettings};
use sha2::{Digest, Sha256};
use verify::divergence::exchange::{Effect, ExchangeConfig};
use verify::perplexity::Text;

use crate::hint::Hinted;
use crate::output;

/// Types of the tensors that differ from the base, by name.
pub(super) type Types = BTreeMap<String, DType>;

/// The measurements of a run and of earlier ones.
pub(super) struct Measurements {
    path: PathBuf,
    file: TuneMeasurements,
}

impl Measurements {
    /// Opens the file of an earlier run, or starts a new one.
    ///
    /// # Errors
    /// The file cannot be read, or belongs to another model, text or importance matrix.
    pub(super) fn open(
        path: &Path,
        files: &[InputFile],
        text: &Text,
        config: ExchangeConfig,
    ) -> anyhow::Result<Measurements> {
        let chunks =
            (text.tokens.len() / config.n_ctx).min(config.n_chunks_max.unwrap_or(usize::MAX));
        let tokens = &text.tokens[..chunks * config.n_ctx];
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|token| token.to_le_bytes())
            .collect();
        let settings = TuneSettings {
            files: files.to_vec(),
            tokens_sha256: sha256(&bytes),
            n_ctx: config.n_ctx,
            n_chunks: chunks,
        };
        let new = TuneMeasurements {
            schema_version: SCHEMA_VERSION,
            settings,
            measured: Vec::new(),
        };
        let mut measurements = Measurements {
            path: path.to_path_buf(),
            file: new,
        };
        if path.exists() {
            measurements.resume()?;
        }
        Ok(measurements)
    }

    /// Reads the measurements of an earlier run with the same settings.
    fn resume(&mut self) -> anyhow::Result<()> {
        let shown = || self.path.display().to_string();
        let text = input::read_text(&self.path, input::Kind::File, input::MAX_LIST);
        let text = text.with_context(shown)?;
        let known: TuneMeasurements = serde_json::from_str(&text)
            .with_context(|| format!("{}: not measurements of specrun tune", shown()))?;
        let hashes = |settings: &TuneSettings| -> Vec<String> {
            settings
                .files
                .iter()
                .map(|file| file.sha256.clone())
                .collect()
        };
        let (found, expected) = (&known.settings, &self.file.settings);
        let is_same = hashes(found) == hashes(expected)
            && (&found.tokens_sha256, found.n_ctx, found.n_chunks)
                == (&expected.tokens_sha256, expected.n_ctx, expected.n_chunks);
        if !is_same {
            let message = format!(
                "{}: measurements of another model, importance matrix, text or context size",
                shown()
            );
            let hint = "give another file with --measurements, or delete this one";
            return Err(Hinted::new(message, hint).into());
        }
        ensure!(
            known.measured.iter().all(|m| m.kld.value.is_finite()),
            "{}: a divergence that is not finite",
            shown()
        );
        if !known.measured.is_empty() {
            output::note(&format_args!(
                "{}: continuing after {}",
                shown(),
                output::count(known.measured.len() as u64, "measurement")
            ));
        }
        self.file.measured = known.measured;
        Ok(())
    }

    /// Returns the effect of these types, if it was measured.
    pub(super) fn find(&self, types: &Types) -> Option<Effect> {
        let hash = hash(types);
        let mut measured = self.file.measured.iter();
        let found = measured.find(|m| m.types_sha256 == hash)?;
        Some(Effect {
            kld: found.kld,
            acceptance: found.acceptance,
        })
    }

    /// Adds a measurement and writes the file.
    pub(super) fn add(
        &mut self,
        group: &str,
        dtype: &str,
        types: &Types,
        data_bytes: u64,
        effect: Effect,
    ) -> anyhow::Result<()> {
        self.file.measured.push(TuneMeasurement {
            group: group.to_owned(),
            dtype: dtype.to_owned(),
            types_sha256: hash(types),
            data_bytes,
            kld: effect.kld,
            acceptance: effect.acceptance,
        });
        let text = serde_json::to_string_pretty(&self.file)? + "\n";
        let partial = Partial::create_one(&self.path)?;
        let written = partial.file().write_all(text.as_bytes());
        written.with_context(|| self.path.display().to_string())?;
        Ok(outfile::publish(vec![partial])?)
    }
}

fn hash(types: &Types) -> String {
    let lines: String = types
        .iter()
        .map(|(name, dtype)| format!("{name}={dtype}\n"))
        .collect();
    sha256(lines.as_bytes())
}

/// Returns the SHA-256 in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
