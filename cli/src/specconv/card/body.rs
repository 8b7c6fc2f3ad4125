//! The part of a card that this program writes: the table of files and the commands.

use anyhow::ensure;
use minijinja::context;
use schemas::report::CardFile;

use super::SUMS;
use super::evidence::Evidence;
use super::folder::{Folder, Model};
use crate::output::bytes;
use crate::specrun::page::{decimal, estimate, render};

const BEGIN: &str = "<!-- specconv card: the part up to the next marker is generated -->";
const END: &str = "<!-- specconv card: end -->";

/// Puts the generated part into a card: in place of the earlier part, else at the end.
pub(super) fn merge(existing: &str, generated: &str, title: &str) -> anyhow::Result<String> {
    let part = format!("{BEGIN}\n\n{generated}\n{END}\n");
    if existing.trim().is_empty() {
        return Ok(format!("\n# {title}\n\n{part}"));
    }
    ensure!(
        existing.matches(BEGIN).count() <= 1 && existing.matches(END).count() <= 1,
        "a marker of the generated part occurs twice, expected once"
    );
    match (existing.find(BEGIN), existing.find(END)) {
        (None, None) => Ok(format!("{}\n\n{part}", existing.trim_end())),
        (Some(begin), Some(end)) if begin < end => {
            let after = &existing[end + END.len()..];
            let after = after.strip_prefix('\n').unwrap_or(after);
            Ok(format!("{}{part}{after}", &existing[..begin]))
        }
        _ => anyhow::bail!("only one marker of the generated part, expected {BEGIN:?} and {END:?}"),
    }
}

/// Renders the generated part.
pub(super) fn render_part(
    folder: &Folder,
    evidence: &Evidence,
    repo: Option<&str>,
) -> anyhow::Result<String> {
    let files: Vec<&CardFile> = folder.models.iter().map(|model| &model.card).collect();
    let columns = columns(&files);
    let rows = (0..files.len()).map(|i| {
        let cells = columns.iter().map(|(_, cells)| cells[i].clone());
        cells.collect::<Vec<String>>()
    });
    let divergences = evidence.divergences.iter().map(|d| {
        context! {
            base => &d.base,
            text => &d.text,
            n_scored => d.n_scored,
            n_chunks => d.n_chunks,
            n_ctx => d.n_ctx,
            files => (evidence.divergences.len() > 1).then_some(&d.files),
        }
    });
    let shown = context! {
        names => columns.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        rows => rows.collect::<Vec<_>>(),
        divergences => divergences.collect::<Vec<_>>(),
        matrices => matrices(&folder.models),
        has_acceptance => files.iter().any(|file| file.draft.is_some()),
        commands => commands(&files, repo),
        sums => SUMS,
    };
    render("body.md", include_str!("body.md.jinja"), shown)
}

/// Columns of the table: names and cells. A column that no file has a value for is left out.
fn columns(files: &[&CardFile]) -> Vec<(&'static str, Vec<String>)> {
    let column = |name, cell: &dyn Fn(&CardFile) -> Option<String>| {
        let cells: Vec<Option<String>> = files.iter().map(|file| cell(file)).collect();
        let is_known = cells.iter().any(Option::is_some);
        let cells = cells.into_iter().map(Option::unwrap_or_default);
        is_known.then(|| (name, cells.collect()))
    };
    let columns = [
        column("file", &|file| Some(file.name.clone())),
        column("type", &|file| file.file_type.clone()),
        column("size", &|file| Some(bytes(file.size_bytes))),
        column("bits per weight", &|file| {
            Some(decimal(file.bits_per_weight, 2))
        }),
        column("mean KLD", &|file| Some(estimate(file.kld.as_ref()?, 6))),
        column("same top token", &|file| {
            Some(format!("{} %", decimal(100.0 * file.same_top?.value, 2)))
        }),
        column("perplexity ratio", &|file| {
            Some(decimal(file.perplexity_ratio?.value, 4))
        }),
        column("acceptance", &|file| {
            let draft = file.draft.as_ref()?;
            Some(format!(
                "{} ({})",
                decimal(draft.acceptance?, 3),
                draft.speculator
            ))
        }),
        column("SHA-256", &|file| {
            let hashes = file.sha256.iter().map(|hash| format!("`{hash}`"));
            Some(hashes.collect::<Vec<_>>().join("<br>"))
        }),
    ];
    columns.into_iter().flatten().collect()
}

/// Describes the importance matrices that the files state.
fn matrices(models: &[Model]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for model in models {
        let text = |key: &str| model.metadata.str(key).ok().flatten();
        let number = |key: &str| match model.metadata.get(key) {
            Some(value) => value.to_string(),
            None => String::new(),
        };
        let Some(file) = text("quantize.imatrix.file") else {
            continue;
        };
        let name = file.rsplit('/').next().unwrap_or(file);
        let mut line = format!("`{name}`");
        let chunks = number("quantize.imatrix.chunks_count");
        if !chunks.is_empty() {
            line += &format!(", {chunks} chunks");
        }
        if let Some(dataset) = text("quantize.imatrix.dataset") {
            let dataset = dataset.rsplit('/').next().unwrap_or(dataset);
            line += &format!(" of `{dataset}`");
        }
        if !found.contains(&line) {
            found.push(line);
        }
    }
    found
}

/// Returns a llama-server command for each file with a verified draft, else for the first file, each with a
/// comment.
fn commands(files: &[&CardFile], repo: Option<&str>) -> Vec<(String, String)> {
    let model = |file: &CardFile| match (repo, &file.file_type) {
        (Some(repo), Some(file_type)) => format!("llama-server -hf {repo}:{file_type}"),
        (Some(repo), None) => format!("llama-server -hf {repo} -hff {}", file.name),
        (None, _) => format!("llama-server -m {}", file.name),
    };
    let drafted = files.iter().filter_map(|file| {
        let draft = file.draft.as_ref()?;
        let mut line = model(file);
        for draft_file in &draft.files {
            line += &format!(" -md {draft_file}");
        }
        line += &format!(
            " --spec-type {} --spec-draft-n-max {}",
            draft.speculator, draft.n_draft_max
        );
        let facts = [
            draft
                .acceptance
                .map(|rate| format!("acceptance {}", decimal(rate, 3))),
            draft
                .tokens_per_target_pass
                .map(|n| format!("{} tokens per pass", decimal(n, 2))),
            draft
                .speedup
                .map(|factor| format!("speedup {}", decimal(factor, 2))),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        Some((format!("{}: {}", file.name, facts.join(", ")), line))
    });
    let mut commands: Vec<(String, String)> = drafted.collect();
    if let (true, Some(file)) = (commands.is_empty(), files.first()) {
        commands.push((file.name.clone(), model(file)));
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_outside_of_the_markers_is_kept() {
        let first = merge("", "one", "Tiny").unwrap();
        assert!(
            first.starts_with("\n# Tiny\n\n<!-- specconv card"),
            "{first}"
        );
        let edited = first.replace("# Tiny", "# Mine") + "\n## Notes\n\nkept\n";
        let second = merge(&edited, "two", "Tiny").unwrap();
        assert_eq!(second, edited.replace("one", "two"));
        assert_eq!(merge(&second, "two", "Tiny").unwrap(), second);
        let foreign = merge("# Theirs\n", "one", "Tiny").unwrap();
        assert!(
            foreign.starts_with("# Theirs\n\n<!-- specconv card"),
            "{foreign}"
        );
        assert!(merge(&format!("{BEGIN}\n"), "x", "t").is_err());
        assert!(merge(&format!("{END}\n{BEGIN}\n"), "x", "t").is_err());
        assert!(merge(&format!("{first}{first}"), "x", "t").is_err());
    }
}
