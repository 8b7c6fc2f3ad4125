//! Gemma 4 assistants: clusters of tokens, which llama.cpp's converter leaves out, and variants of the target.

use convert::{Converted, MtpMode, Note, OutType};
use safetensors::Dtype;
use schemas::gguf::DType;
use serde_json::json;

use crate::checkpoint::{Checkpoint, Stored};

/// Tokens and width of the reference, and its number of clusters.
const N_VOCAB: usize = 900;
const N_EMBD: usize = 32;
const N_CLUSTER: usize = 18;

/// The reference assistant with clusters of 50 tokens, in this order.
fn with_clusters(order: impl Fn(i64) -> i64) -> Checkpoint {
    let checkpoint = Checkpoint::of("gemma4-assistant");
    checkpoint.edit_json("config.json", |config| {
        config["use_ordered_embeddings"] = json!(true);
        config["num_centroids"] = json!(N_CLUSTER);
        config["centroid_intermediate_top_k"] = json!(3);
    });
    checkpoint.edit_weights(|tensors| {
        tensors.push(Stored {
            name: "masked_embedding.centroids.weight".to_owned(),
            dtype: Dtype::F32,
            shape: vec![N_CLUSTER, N_EMBD],
            bytes: vec![0; 4 * N_CLUSTER * N_EMBD],
        });
        let tokens = (0..N_VOCAB as i64).map(order);
        tensors.push(Stored {
            name: "masked_embedding.token_ordering".to_owned(),
            dtype: Dtype::I64,
            shape: vec![N_VOCAB],
            bytes: tokens.flat_map(i64::to_le_bytes).collect(),
        });
    });
    checkpoint
}

fn converted(checkpoint: &Checkpoint) -> Converted {
    let converted = checkpoint.convert(OutType::F32, MtpMode::Inline);
    converted.unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn clusters_are_kept() {
    let plan = converted(&with_clusters(|row| 899 - row)).plan;
    let key = |name: &str| plan.metadata.u32(&format!("gemma4-assistant.{name}"));
    assert_eq!(key("centroid_count"), Ok(Some(18)));
    assert_eq!(key("centroid_used_count"), Ok(Some(3)));
    let centroids = plan
        .tensor("masked_embd_centroids.weight")
        .expect("is kept");
    assert_eq!(centroids.shape, [32, 18]);
    let ordering = plan.tensor("masked_embd_ordering").expect("is kept");
    assert_eq!((ordering.dtype, &*ordering.shape), (DType::I32, &[900][..]));
    let bytes = ordering.read_all().expect("lies in memory");
    assert_eq!(bytes[..8], [899i32, 898].map(i32::to_le_bytes).concat());
}

/// The reader would score all tokens, as the config asks for.
#[test]
fn unused_clusters_are_left_out() {
    let checkpoint = with_clusters(|row| row);
    checkpoint.edit_json("config.json", |config| {
        config["use_ordered_embeddings"] = json!(false);
    });
    let expected = converted(&Checkpoint::of("gemma4-assistant")).plan;
    let plan = converted(&checkpoint).plan;
    assert!(plan.metadata.iter().eq(expected.metadata.iter()));
    assert_eq!(plan.tensors.len(), expected.tensors.len());
}

/// For llama.cpp, which cannot load them.
#[test]
fn unwanted_clusters_are_left_out() {
    let checkpoint = with_clusters(|row| row);
    let kept = converted(&checkpoint);
    assert!(kept.notes.contains(&Note::Clusters));
    let expected = converted(&Checkpoint::of("gemma4-assistant")).plan;
    let left_out = checkpoint.convert_without_clusters();
    let left_out = left_out.unwrap_or_else(|e| panic!("{e}"));
    assert!(left_out.notes.iter().all(|note| *note != Note::Clusters));
    let plan = left_out.plan;
    assert!(plan.metadata.iter().eq(expected.metadata.iter()));
    assert_eq!(plan.tensors.len(), expected.tensors.len());
}

#[test]
fn an_order_that_lacks_a_token_is_rejected() {
    type Order = fn(i64) -> i64;
    let cases: [(Order, &str); 3] = [
        (|row| row / 2 * 2, "token 0 again in row 1"),
        (|row| row + 1, "token 900 in row 899"),
        (|row| -row, "token -1 in row 1"),
    ];
    for (order, found) in cases {
        assert_eq!(
            with_clusters(order).refusal(MtpMode::Inline),
            format!(
                "model.safetensors: tensor masked_embedding.token_ordering: {found}, expected each of the tokens 0 \
                 to 899 once"
            )
        );
    }
}

/// Layers with full attention may have their own number of KV heads, and wide layers have a list of widths.
#[test]
fn lists_by_layer() {
    let checkpoint = Checkpoint::of("gemma4");
    checkpoint.edit_json("config.json", |config| {
        config["use_double_wide_mlp"] = json!(true);
        config["num_global_key_value_heads"] = json!(2);
    });
    checkpoint.edit_weights(|tensors| {
        // The last two layers share keys and values.
        for tensor in tensors {
            let is_wide = ["layers.4.mlp.", "layers.5.mlp."];
            if !is_wide.iter().any(|part| tensor.name.contains(part)) {
                continue;
            }
            let axis = usize::from(tensor.name.contains("down_proj"));
            tensor.shape[axis] *= 2;
            tensor.bytes.extend_from_within(..);
        }
    });
    let plan = converted(&checkpoint).plan;
    let list = |name: &str| plan.metadata.u32s(&format!("gemma4.{name}"));
    let widths = vec![128, 128, 128, 128, 256, 256];
    assert_eq!(list("feed_forward_length"), Ok(Some(widths)));
    assert_eq!(list("attention.head_count_kv"), Ok(Some(vec![2; 6])));
    let wide = plan.tensor("blk.5.ffn_up.weight").expect("is there");
    assert_eq!(wide.shape, [64, 256]);
}
