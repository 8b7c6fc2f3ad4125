//! `specconv card`: the model card of a folder of GGUF files, from the reports of other commands.

mod body;
mod evidence;
mod folder;
mod front_matter;

use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use schemas::input;
use schemas::outfile::{Existing, OutputNames};
use schemas::report::{CardReport, SCHEMA_VERSION, Verdict};

use crate::output::{self, Format, count};
use crate::report_file::{self, ReportFile};

use evidence::Evidence;
use folder::Folder;
use front_matter::{FrontMatter, Given};

/// Name of the card.
const CARD: &str = "README.md";
/// Name of the file with the hashes.
const SUMS: &str = "SHA256SUMS";

/// Write the model card and hashes of a folder of GGUF files
///
/// Numbers come from reports (--json) of convert, quantize, specrun kld and specrun verify. Reports are matched
/// with files by SHA-256. Facts that no report and no file states are left out.
///
/// Writes FOLDER/README.md and FOLDER/SHA256SUMS. If the card exists, only the part between its markers and
/// the keys given by flags are replaced; model-index is always replaced.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder with the GGUF files to publish
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Reports of convert, quantize, specrun kld and specrun verify
    #[arg(value_name = "REPORT.json")]
    reports: Vec<PathBuf>,
    /// Base model on the Hub [default: the repository that was converted]
    #[arg(long, value_name = "ORG/NAME")]
    base_model: Option<String>,
    /// License identifier of the Hub, such as apache-2.0 [default: general.license of the files]
    #[arg(long, value_name = "ID")]
    license: Option<String>,
    /// Languages as ISO 639 codes [default: general.languages of the files]
    #[arg(long, value_name = "CODE", value_delimiter = ',')]
    language: Vec<String>,
    /// Repository of the files on the Hub: llama-server commands then download from it
    #[arg(long, value_name = "ORG/NAME")]
    repo: Option<String>,
    /// Print the card instead of writing it
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let [card, sums] = [CARD, SUMS].map(|name| args.folder.join(name));
    let mut names = OutputNames::new(&args.reports, Existing::Refuse);
    let outputs = match args.dry_run {
        true => None,
        false => Some([
            ReportFile::update(&card, &mut names)?,
            ReportFile::update(&sums, &mut names)?,
        ]),
    };
    let existing = existing_card(&card)?;
    let mut evidence = Evidence::read(&args.reports)?;
    let mut folder = Folder::open(&args.folder)?;
    evidence.apply(&mut folder)?;

    let given = Given {
        base_model: args.base_model.clone(),
        license: args.license.clone(),
        language: args.language.clone(),
    };
    let (old_front, old_body) =
        front_matter::split(&existing).with_context(|| card.display().to_string())?;
    let front = FrontMatter::new(&old_front, &given, &folder, &evidence);
    let generated = body::render_part(&folder, &evidence, args.repo.as_deref())?;
    let body = body::merge(old_body, &generated, &folder.title())
        .with_context(|| card.display().to_string())?;
    let content = format!("---\n{}---\n{body}", front.text());

    let mut notes = front.notes();
    notes.extend(evidence.notes.iter().cloned());
    let report = CardReport {
        schema_version: SCHEMA_VERSION,
        card: card.display().to_string(),
        sums: sums.display().to_string(),
        files: folder
            .models
            .iter()
            .map(|model| model.card.clone())
            .collect(),
        front_matter: front.keys(),
        notes,
    };
    for note in &report.notes {
        output::note(note);
    }
    if let Some([card, sums]) = outputs {
        let hashes = folder.sums().into_bytes();
        report_file::publish(vec![(card, content.into_bytes()), (sums, hashes)])?;
    } else if !args.json {
        output::data(&content)?;
        return Ok(Verdict::Pass);
    }
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(Verdict::Pass)
}

/// Reads the card of an earlier run; empty if there is none.
fn existing_card(path: &Path) -> anyhow::Result<String> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(String::new());
    }
    let text = input::read_text(path, input::Kind::File, input::MAX_HANDWRITTEN);
    let text = text.with_context(|| path.display().to_string())?;
    ensure!(
        !text.contains('\r'),
        "{}: line breaks are CR LF, expected LF",
        path.display()
    );
    Ok(text)
}

/// Text output of the report.
struct Text<'a>(&'a CardReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        let measured = |has: fn(&schemas::report::CardFile) -> bool| {
            r.files.iter().filter(|file| has(file)).count()
        };
        write!(
            f,
            "{}: {}, {} with a divergence, {} with a verified draft",
            r.card,
            count(r.files.len() as u64, "model"),
            measured(|file| file.kld.is_some()),
            measured(|file| file.draft.is_some()),
        )
    }
}
