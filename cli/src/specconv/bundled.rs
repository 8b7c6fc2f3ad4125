//! The bundled model family, inside the program: the demo needs no download.

use std::fs;
use std::path::Path;

use anyhow::Context;

macro_rules! bundled {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_bytes!(concat!("../../../models/", $path)).as_slice())),*]
    };
}

/// Files under models/, by their path there.
const FILES: [(&str, &[u8]); 12] = bundled![
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
];

/// Writes the family into a folder.
pub(super) fn unpack(folder: &Path) -> anyhow::Result<u64> {
    for (name, bytes) in FILES {
        let path = folder.join(name);
        let parent = path.parent().expect("every name has a folder");
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
    }
    Ok(FILES.iter().map(|(_, bytes)| bytes.len() as u64).sum())
}
