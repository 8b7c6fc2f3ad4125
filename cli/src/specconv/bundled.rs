//! The bundled model family, embedded in the program: the demo needs no download.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use schemas::outfile::{self, Existing, OutputNames, Partial, folder_of};

use super::write::NO_INPUTS;
use crate::interrupt;

macro_rules! bundled {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_bytes!(concat!("../../../models/", $path)).as_slice())),*]
    };
}

/// Files under models/, by relative path. A constant would be in the program once for each use.
static FILES: [(&str, &[u8]); 14] = bundled![
    "tiny-qwen35-mtp/config.json",
    "tiny-qwen35-mtp/generation_config.json",
    "tiny-qwen35-mtp/model.safetensors",
    "tiny-qwen35-mtp/tokenizer.json",
    "tiny-qwen35-mtp/tokenizer_config.json",
    "tiny-draft/config.json",
    "tiny-draft/generation_config.json",
    "tiny-draft/model.safetensors",
    "tiny-draft/tokenizer.json",
    "tiny-draft/tokenizer_config.json",
    "tiny-eagle3/config.json",
    "tiny-eagle3/model.safetensors",
    "tiny-dflash/config.json",
    "tiny-dflash/model.safetensors",
];

/// Writes the family into a folder, all files or none.
pub(super) fn unpack(folder: &Path, existing: Existing) -> anyhow::Result<()> {
    let paths: Vec<PathBuf> = FILES.iter().map(|(name, _)| folder.join(name)).collect();
    let mut names = OutputNames::new(NO_INPUTS, existing);
    for path in &paths {
        let parent = folder_of(path);
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        names.claim_file(path)?;
    }
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    interrupt::while_writing(|_| {
        let partials = Partial::create_all(&paths)?;
        for (partial, (_, bytes)) in partials.iter().zip(&FILES) {
            let written = partial.file().write_all(bytes);
            written.with_context(|| partial.path().display().to_string())?;
        }
        Ok(outfile::publish(partials)?)
    })
}
