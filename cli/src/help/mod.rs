//! Layout of the help texts. Short help (`-h`) shows the flags that matter and fits a screen; long help
//! (`--help`) shows all flags in groups. Examples are lines of [`Topic`], so that a test can parse them.

pub(crate) mod specconv;
pub(crate) mod specrun;

use std::ffi::OsString;

use clap::{Arg, Command};

/// Help of one command, besides its flags.
pub(crate) struct Topic {
    /// Name of the command.
    pub(crate) command: &'static str,
    /// Ids of the flags in short help.
    pub(crate) short: &'static [&'static str],
    /// Command lines that a user could type.
    pub(crate) examples: &'static [&'static str],
}

/// Headings of long help with the ids of their flags. An entry `command id` has precedence over `id`.
/// Flags with a heading of their own keep it.
const GROUPS: [(&str, &[&str]); 9] = [
    (
        "Input",
        &[
            "add",
            "as",
            "base_logits",
            "chat",
            "chat_template_file",
            "chat_template_kwargs",
            "chunks",
            "compare",
            "copied_inputs",
            "draft",
            "embeddings",
            "file",
            "from_chunk",
            "graft-mtp mtp",
            "graft-mtp outtype",
            "ids",
            "in_file",
            "kind",
            "map",
            "model",
            "no_chat",
            "no_special",
            "parse_special",
            "prompt",
            "prompts",
            "recipe",
            "replace-mtp mtp",
            "replace-mtp outtype",
            "special",
            "target",
            "target_model_dir",
            "text",
            "tokenizer_from",
            "tokens",
            "trunk_layers",
        ],
    ),
    (
        "Output",
        &[
            "allow_requantize",
            "base_model",
            "body",
            "delete_splits",
            "dry_run",
            "dspark",
            "dynamic",
            "force",
            "ignore_eos",
            "keep",
            "keep_parts",
            "language",
            "layout",
            "license",
            "message",
            "mtp",
            "mtp_embeddings",
            "mtp_type",
            "n",
            "n_predict",
            "no_clusters",
            "no_mtp",
            "no_tensor_first_split",
            "nextn",
            "outfile",
            "output_format",
            "output_frequency",
            "outtype",
            "overwrite",
            "plan",
            "private",
            "process_output",
            "record",
            "remove",
            "replace_plan",
            "repo",
            "reserve_header",
            "resume",
            "revision",
            "save_frequency",
            "save_logits",
            "split-vocab map",
            "split_max_size",
            "split_max_tensors",
            "top",
        ],
    ),
    ("Sampling", &["min_p", "seed", "temp", "top_k", "top_p"]),
    (
        "Speculation",
        &[
            "lookup_cache_dynamic",
            "lookup_cache_static",
            "model_draft",
            "policy",
            "spec_draft_auto",
            "spec_draft_fixed",
            "spec_draft_n_max",
            "spec_draft_n_min",
            "spec_draft_p_min",
            "spec_draft_p_split",
            "spec_draft_type_k",
            "spec_draft_type_v",
            "spec_type",
            "spec_verification",
            "spec_vocab_map",
        ],
    ),
    (
        "Machine",
        &[
            "batch_size",
            "cache_type_k",
            "cache_type_v",
            "ctx_size",
            "device",
            "isa",
            "max_buffer_size",
            "n_gpu_layers",
            "no_repack",
            "parallel",
            "parts",
            "prefetch",
            "shard",
            "shards",
            "threads",
        ],
    ),
    (
        "Checks",
        &[
            "baseline",
            "verify check",
            "matrix",
            "min_accept",
            "min_drafted",
            "min_speedup",
            "strict",
            "tolerance",
        ],
    ),
    (
        "Measurement",
        &[
            "bands",
            "bpw",
            "contexts",
            "draft_weight",
            "imatrix",
            "kld",
            "measurements",
            "n_prompt",
            "no_compare",
            "repetitions",
            "size",
            "tasks",
            "temps",
            "types",
            "width",
        ],
    ),
    (
        "Server",
        &[
            "alias",
            "api_key",
            "api_key_file",
            "host",
            "concurrency",
            "max_queue",
            "port",
            "shutdown_timeout",
            "url",
            "url2",
        ],
    ),
    (
        "Reports",
        &[
            "github",
            "hash check",
            "html",
            "json",
            "junit",
            "locked",
            "manifest",
            "markdown",
            "no_hash",
            "no_ppl",
            "print_recipe",
            "print_supported_models",
            "report",
            "sarif",
            "show_statistics",
            "spec_trace",
            "stamp",
            "tensors",
            "xxh64",
        ],
    ),
];

/// Flags that stay in the list of general options.
#[cfg(test)]
const GENERAL: [&str; 4] = ["help", "quiet", "verbose", "version"];

fn group(command: &str, id: &str) -> Option<&'static str> {
    let exact = format!("{command} {id}");
    let find = |key: &str| GROUPS.iter().find(|(_, ids)| ids.contains(&key));
    let found = find(&exact).or_else(|| find(id));
    found.map(|&(heading, _)| heading)
}

/// Arranges the help of all commands. `args` decides between short and long help.
pub(crate) fn arrange(command: Command, topics: &'static [Topic], args: &[OsString]) -> Command {
    let is_short = args.iter().any(|arg| arg == "-h");
    let program = command.get_name().to_owned();
    // -q and -v have the same meaning everywhere: the program's own help shows them.
    let is_subcommand = is_short && args.len() > 2;
    let command = ["quiet", "verbose"]
        .into_iter()
        .fold(command, |command, id| {
            command.mut_arg(id, |arg| arg.hide_short_help(is_subcommand))
        });
    command.mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        let Some(topic) = topics.iter().find(|topic| topic.command == name) else {
            return command;
        };
        let after = command.get_after_help().map(ToString::to_string);
        let examples = examples(&program, topic);
        let long = [after, Some(examples.clone())].into_iter().flatten();
        let long: Vec<String> = long.collect();
        command
            .mut_args(|arg| place(arg, &name, topic, is_short))
            .after_help(format!(
                "{examples}\n\n\"{program} {name} --help\" lists all flags"
            ))
            .after_long_help(long.join("\n\n"))
    })
}

fn place(arg: Arg, command: &str, topic: &Topic, is_short: bool) -> Arg {
    if arg.is_positional() {
        return arg;
    }
    if is_short {
        return shortened(arg, topic);
    }
    match (
        arg.get_help_heading(),
        group(command, arg.get_id().as_str()),
    ) {
        (None, Some(heading)) => arg.help_heading(heading),
        _ => arg,
    }
}

/// Arranges a flag for short help: flags of the topic in its order, one or two lines each.
fn shortened(arg: Arg, topic: &Topic) -> Arg {
    let mut ids = topic.short.iter();
    let Some(order) = ids.position(|id| arg.get_id() == id) else {
        return arg.hide_short_help(true);
    };
    let aliases: Vec<String> = arg
        .get_all_aliases()
        .unwrap_or_default()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let is_file = arg
        .get_value_names()
        .is_some_and(|names| names.iter().all(|name| name.contains('.')));
    let n_values = arg.get_value_names().map_or(0, <[_]>::len);
    let arg = arg.help_heading(None).display_order(order).hide_env(true);
    // Aliases still parse, but are listed in long help only.
    let arg = arg.visible_alias(None).aliases(aliases);
    match is_file && n_values == 1 {
        true => arg.value_name("FILE"),
        false => arg,
    }
}

fn examples(program: &str, topic: &Topic) -> String {
    let lines = topic.examples.iter();
    let lines = lines.map(|line| format!("\n  {program} {} {line}", topic.command));
    let title = match topic.examples.len() {
        1 => "Example:",
        _ => "Examples:",
    };
    title.to_owned() + &lines.collect::<String>()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Splits a command line at spaces outside of single quotes.
    fn words(line: &str) -> Vec<OsString> {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for c in line.chars() {
            match c {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                c => words.last_mut().unwrap().push(c),
            }
        }
        words.into_iter().map(OsString::from).collect()
    }

    /// Checks the help of a program: every command has a topic with examples that `parse` accepts, and
    /// every flag has a group.
    pub(crate) fn check(
        mut command: Command,
        topics: &'static [Topic],
        parse: &dyn Fn(Vec<OsString>) -> Result<(), clap::Error>,
    ) {
        let program = command.get_name().to_owned();
        command.build();
        let is_listed = |c: &&Command| !c.is_hide_set() && c.get_name() != "help";
        for command in command.get_subcommands().filter(is_listed) {
            let name = command.get_name();
            let topic = topics.iter().find(|topic| topic.command == name);
            let topic = topic.unwrap_or_else(|| panic!("{program} {name} has no help topic"));
            assert!(!topic.examples.is_empty(), "{name} has no example");
            for line in topic.examples {
                let line = format!("{program} {name} {line}");
                // A shell would handle a pipe or a redirection.
                let own = line.split([';', '>', '|']).next().unwrap().trim_end();
                parse(words(own)).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
            let ids: Vec<&str> = command
                .get_arguments()
                .map(|a| a.get_id().as_str())
                .collect();
            for id in topic.short {
                assert!(ids.contains(id), "{name} has no flag {id}");
            }
            let lost = command.get_arguments().filter(|arg| {
                let id = arg.get_id().as_str();
                let is_placed = arg.is_positional()
                    || arg.is_hide_set()
                    || arg.get_help_heading().is_some()
                    || GENERAL.contains(&id)
                    || group(name, id).is_some();
                !is_placed
            });
            let lost: Vec<&str> = lost.map(|arg| arg.get_id().as_str()).collect();
            assert!(
                lost.is_empty(),
                "{program} {name}: flags in no group: {lost:?}"
            );
        }
    }
}
