//! Layers with a sliding window. Readers know the pattern of the architecture; other patterns have a key.

use convert::{MtpMode, OutType};
use schemas::arch::{Hparams, keys};
use serde_json::json;

use crate::checkpoint::Checkpoint;

/// Returns which layers have a window, and whether the file lists them, for these layer kinds.
fn windows(kinds: [&str; 7]) -> (Vec<bool>, bool) {
    let checkpoint = Checkpoint::of("gemma3");
    checkpoint.edit_json("config.json", |j| j["layer_types"] = json!(kinds));
    let converted = checkpoint.convert(OutType::F32, MtpMode::Inline).unwrap();
    let metadata = &converted.plan.metadata;
    let hparams = Hparams::from_metadata(metadata).unwrap();
    let layers = (0..7)
        .map(|layer| hparams.window(layer).is_some())
        .collect();
    let key = format!("gemma3.{}", keys::SLIDING_WINDOW_PATTERN);
    (layers, metadata.contains(&key))
}

const SLIDES: &str = "sliding_attention";
const SEES: &str = "full_attention";

#[test]
fn the_usual_layers_need_no_key() {
    let usual = [SLIDES, SLIDES, SLIDES, SLIDES, SLIDES, SEES, SLIDES];
    let layers = usual.map(|kind| kind == SLIDES).to_vec();
    assert_eq!(windows(usual), (layers, false));
}

#[test]
fn other_layers_are_listed() {
    let other = [SEES, SLIDES, SLIDES, SEES, SEES, SEES, SLIDES];
    let layers = other.map(|kind| kind == SLIDES).to_vec();
    assert_eq!(windows(other), (layers, true));
}

#[test]
fn without_such_layers_there_is_no_window() {
    assert_eq!(windows([SEES; 7]), (vec![false; 7], false));
}
