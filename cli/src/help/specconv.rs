//! Help topics of `specconv`.

use super::Topic;

pub(crate) const TOPICS: &[Topic] = &[
    Topic {
        command: "convert",
        short: &[
            "outfile",
            "outtype",
            "mtp",
            "no_mtp",
            "split_max_size",
            "dry_run",
            "resume",
            "overwrite",
            "json",
        ],
        examples: &[
            "models/tiny-qwen35-mtp -o model.gguf",
            "hf://Qwen/Qwen3-0.6B --outtype q4_k_m -o model.gguf",
            "--mtp hf://Qwen/Qwen3-Next-80B-A3B-Instruct",
            "Model-EAGLE3 --target-model-dir Model -o eagle3.gguf",
        ],
    },
    Topic {
        command: "quantize",
        short: &[
            "imatrix",
            "mtp_type",
            "tensor_type",
            "allow_requantize",
            "recipe",
            "dry_run",
            "overwrite",
            "json",
        ],
        examples: &[
            "model.gguf model-q4.gguf Q4_K_M",
            "--imatrix m.imatrix.gguf --mtp-type Q8_0 m-BF16.gguf m-{FTYPE}.gguf Q4_K_M,Q6_K",
        ],
    },
    Topic {
        command: "split-mtp",
        short: &[
            "body",
            "mtp",
            "mtp_type",
            "mtp_embeddings",
            "allow_requantize",
            "dry_run",
            "overwrite",
            "json",
        ],
        examples: &[
            "model.gguf --mtp mtp-model.gguf",
            "model.gguf --body body.gguf --mtp mtp-model.gguf --mtp-embeddings own:q4_k",
        ],
    },
    Topic {
        command: "graft-mtp",
        short: GRAFT,
        examples: &[
            "--target body-Q4_K_M.gguf --mtp mtp-base.gguf -o model.gguf",
            "--target body-Q4_K_M.gguf --mtp hf://org/name --mtp-type q8_0 -o model.gguf",
        ],
    },
    Topic {
        command: "replace-mtp",
        short: GRAFT,
        examples: &["--target model.gguf --mtp mtp-base.gguf -o out.gguf"],
    },
    Topic {
        command: "requantize-mtp",
        short: &[
            "outfile",
            "mtp_type",
            "allow_requantize",
            "dry_run",
            "overwrite",
            "json",
        ],
        examples: &["model.gguf --mtp-type q8_0 -o out.gguf"],
    },
    Topic {
        command: "repair-mtp",
        short: &["outfile", "trunk_layers", "dry_run", "overwrite", "json"],
        examples: &["mtp-broken.gguf -o mtp-model.gguf"],
    },
    Topic {
        command: "graft-vocab",
        short: &[
            "draft",
            "map",
            "kind",
            "outfile",
            "dry_run",
            "overwrite",
            "json",
        ],
        examples: &["--draft eagle3-model.gguf --map d2t.npy -o eagle3-mapped.gguf"],
    },
    Topic {
        command: "split-vocab",
        short: &["map", "outfile", "dry_run", "overwrite", "json"],
        examples: &["eagle3-model.gguf --map d2t.gguf"],
    },
    Topic {
        command: "trim-vocab",
        short: &[
            "text",
            "ids",
            "n",
            "layout",
            "outfile",
            "dry_run",
            "overwrite",
            "json",
        ],
        examples: &[
            "mtp-model.gguf --layout specconv --text corpus.txt -n 32000 -o mtp-model-32k.gguf",
        ],
    },
    Topic {
        command: "map-vocab",
        short: &["target", "draft", "outfile", "dry_run", "overwrite", "json"],
        examples: &["--target model.gguf --draft small.gguf -o map.gguf"],
    },
    Topic {
        command: "split",
        short: &[
            "split_max_size",
            "split_max_tensors",
            "dry_run",
            "overwrite",
            "json",
        ],
        examples: &["--split-max-size 2G model.gguf parts/model"],
    },
    Topic {
        command: "merge",
        short: &["delete_splits", "dry_run", "overwrite", "json"],
        examples: &["model-00001-of-00003.gguf model.gguf"],
    },
    Topic {
        command: "hash",
        short: &["check", "manifest", "xxh64", "overwrite", "json"],
        examples: &[
            "model.gguf --manifest model.manifest",
            "model.gguf --check model.manifest",
        ],
    },
    Topic {
        command: "lock",
        short: &["outfile"],
        examples: &[
            "quantize --recipe model.toml",
            "-o model.lock convert hf://org/name -o model.gguf --outtype q4_k_m",
        ],
    },
    Topic {
        command: "rebuild",
        short: &["locked", "overwrite", "json"],
        examples: &["--locked", "model.lock"],
    },
    Topic {
        command: "set-metadata",
        short: &["remove", "outfile", "reserve_header", "overwrite", "json"],
        examples: &[
            "model.gguf 'general.name=str:My model' tokenizer.ggml.eos_token_id=u32:2",
            "model.gguf --remove general.url -o out.gguf",
        ],
    },
    Topic {
        command: "set-chat-template",
        short: &["outfile", "reserve_header", "overwrite", "json"],
        examples: &["model.gguf chat_template.jinja"],
    },
    Topic {
        command: "inspect",
        short: &["tensors", "json"],
        examples: &["model.gguf", "model.gguf --tensors"],
    },
    Topic {
        command: "draft-flags",
        short: &["no_hash", "json"],
        examples: &["model.gguf"],
    },
    Topic {
        command: "card",
        short: &[
            "base_model",
            "license",
            "language",
            "repo",
            "dry_run",
            "json",
        ],
        examples: &[
            "models quantize.json kld.json verify.json",
            "models kld.json --base-model org/name --license apache-2.0 --repo me/name-GGUF",
        ],
    },
    Topic {
        command: "publish",
        short: &["dry_run", "private", "revision", "message", "json"],
        examples: &[
            "models org/name-GGUF --dry-run",
            "models org/name-GGUF --private",
        ],
    },
    Topic {
        command: "plan",
        short: &["shards", "plan", "parts", "copied_inputs", "replace_plan"],
        examples: &[
            "quantize model.gguf q4.gguf Q4_K_M --shards 8 -o plan.json",
            "convert hf://org/name --shards 64 -o plan.json",
            "imatrix model.gguf -f text.txt --shards 8 -o plan.json",
        ],
    },
    Topic {
        command: "run",
        short: &["shard", "threads", "json"],
        examples: &["plan.json --shard 3"],
    },
    Topic {
        command: "finish",
        short: &["keep_parts", "overwrite", "json"],
        examples: &["plan.json"],
    },
    Topic {
        command: "demo",
        short: &["keep", "threads", "overwrite", "json"],
        examples: &["--keep demo"],
    },
    Topic {
        command: "completions",
        short: &[],
        examples: &[
            "bash > ~/.local/share/bash-completion/completions/specconv",
            "zsh > ~/.zfunc/_specconv",
            "fish > ~/.config/fish/completions/specconv.fish",
        ],
    },
];

/// Flags of graft-mtp and replace-mtp.
const GRAFT: &[&str] = &[
    "target",
    "mtp",
    "outfile",
    "mtp_type",
    "mtp_embeddings",
    "allow_requantize",
    "force",
    "dry_run",
    "overwrite",
    "json",
];
