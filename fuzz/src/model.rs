//! A tiny model with some bytes changed; it decodes eight tokens if it can be loaded.

use std::path::Path;
use std::sync::Arc;

use kernels::cpu::{Cpu, CpuConfig};
use runner::loaded_models::load_driver;
use runner::model_files::{DraftFiles, Files};
use runner::run_config::RunConfig;
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{DecodeConfig, Request};
use schemas::gguf::{Plan, layout};

use crate::{Run, files};

/// Returns the bytes of the model file and the size of its header.
fn base() -> (Vec<u8>, usize) {
    let is_qwen3 = |plan: &Plan| plan.metadata.need_str("general.architecture") == Ok("qwen3");
    let mut plan = fixtures::all().find(is_qwen3).expect("it is in the table");
    // The fixture's merge would produce a token that is not in its vocabulary.
    let merges = "tokenizer.ggml.merges";
    plan.metadata.set(merges, Vec::<String>::new());
    let layout = layout(&plan).expect("a fixture can be written");
    let mut bytes = layout.header;
    let n_header = bytes.len();
    for (tensor, offset) in plan.tensors.iter().zip(layout.offsets) {
        bytes.resize(offset as usize, 0);
        bytes.extend(tensor.read_all().expect("the data is in memory"));
    }
    bytes.resize(layout.size_bytes as usize, 0);
    (bytes, n_header)
}

/// Applies a list of five-byte edits: an offset and a value. An offset with its highest bit set is
/// taken modulo the header size, others modulo the file size.
pub(crate) fn edited() -> Run {
    let (base, n_header) = base();
    let file = files::InputFile::new();
    Box::new(move |edits| {
        let mut bytes = base.clone();
        for edit in edits.as_chunks::<5>().0 {
            let [a, b, c, d, value] = *edit;
            let place = u32::from_le_bytes([a, b, c, d]);
            let len = match place >> 31 {
                0 => bytes.len(),
                _ => n_header,
            };
            bytes[(place & i32::MAX as u32) as usize % len] = value;
        }
        let n_tokens = decode(file.with(&bytes));
        // Without this check every run could fail in the header unnoticed.
        assert!(
            n_tokens == Some(8) || bytes != base,
            "the unchanged model does not decode"
        );
        n_tokens.is_some()
    })
}

/// Returns the number of decoded tokens; `None` if the model cannot be loaded or run.
fn decode(model: &Path) -> Option<usize> {
    let files = Files::open(model, &DraftFiles::default()).ok()?;
    let requests = [Request::new("fuzzed", vec![1, 2, 3], 8)];
    let config = RunConfig::new(Vec::new(), files.n_ctx(&requests, None));
    let cpu = CpuConfig {
        threads: 1,
        ..CpuConfig::default()
    };
    let backend = Arc::new(Cpu::new(cpu).expect("every CPU has an implementation"));
    let mut driver = load_driver(&files, &backend, &config).ok()?;
    let mut decode = DecodeConfig::new(Sampler::new(SampleConfig::GREEDY).expect("valid"), &|_| {
        false
    });
    let (completions, _) = driver.decode(&requests, &mut decode).ok()?;
    Some(completions.iter().map(|text| text.tokens.len()).sum())
}
