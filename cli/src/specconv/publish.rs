//! `specconv publish`: uploads a folder to the Hub as one commit.

use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use hub::{CAN_UPLOAD, Change, Comparison, Hub, LocalFile, Reference, SCHEME, Upload};
use schemas::progress::{Task, Unit};
use schemas::report::{FileChange, PublishFile, PublishReport, SCHEMA_VERSION, Verdict};

use crate::hint::Hinted;
use crate::hub_config;
use crate::output::{self, Format, bytes, count};

/// Upload a folder to the Hugging Face Hub as one commit
///
/// Files are compared with the repository by hash; equal ones are not uploaded, and files that only the
/// repository has are kept. The repository is created if it does not exist. The token is read from HF_TOKEN, or
/// from the file that "hf auth login" writes.
///
/// Uploads need a build with the feature upload; --dry-run does not.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder to upload; hidden files are left out
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Repository on the Hub
    #[arg(value_name = "ORG/NAME")]
    repo: String,
    /// List new, changed and equal files, and upload nothing
    #[arg(long)]
    dry_run: bool,
    /// Create the repository as a private one
    #[arg(long)]
    private: bool,
    /// Branch to commit to
    #[arg(long, value_name = "BRANCH", default_value = "main")]
    revision: String,
    /// Commit message
    #[arg(short, long, value_name = "TEXT", default_value = "Upload GGUF files")]
    message: String,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Verdict> {
    let repo = args.repo.strip_prefix(SCHEME).unwrap_or(&args.repo);
    let reference: Reference = format!("{SCHEME}{repo}").parse()?;
    ensure!(
        reference.file.is_none() && reference.revision.is_none(),
        "{}: expected a repository, org/name; --revision selects a branch",
        args.repo
    );
    if !CAN_UPLOAD && !args.dry_run {
        let message = "this program was built without the feature upload, so it cannot upload files; build it \
                       with \"cargo install --path cli --features full,upload\", or use the Hub's own program";
        let hint = equivalent(&args.folder, &reference.repo, args);
        return Err(Hinted::new(message, hint).into());
    }
    let files = local_files(&args.folder)?;
    let hub = Hub::new(hub_config::from_environment()?);
    let total = files.iter().map(|file| file.size_bytes).sum();
    let task = Task::start("compare", total, Unit::Bytes);
    let compared = hub.compare(&reference.repo, &args.revision, files, &|n| task.advance(n))?;
    drop(task);
    let mut report = report_of(&compared);
    if !args.dry_run && report.upload_bytes + compared.to_upload().count() as u64 > 0 {
        let label = format!("upload {SCHEME}{}", reference.repo);
        let task = Task::start(&label, report.upload_bytes, Unit::Bytes);
        let done = AtomicU64::new(0);
        let upload = Upload {
            message: args.message.clone(),
            is_private: args.private,
        };
        // The crate reports totals, the task counts steps.
        let advance = move |total: u64| {
            let before = done.fetch_max(total, Ordering::Relaxed);
            task.advance(total.saturating_sub(before));
        };
        report.commit = Some(hub.upload(&compared, &upload, advance)?);
    }
    let text = Text {
        report: &report,
        is_dry_run: args.dry_run,
    };
    output::result(Format::of(args.json), &report, &text)?;
    Ok(Verdict::Pass)
}

/// Returns the command of the Hub's own program that uploads a folder.
fn equivalent(folder: &Path, repo: &str, args: &Args) -> String {
    let mut line = format!("hf upload {repo} {} .", folder.display());
    if args.private {
        line += " --private";
    }
    if args.revision != "main" {
        line += &format!(" --revision {}", args.revision);
    }
    line + &format!(" --commit-message '{}'", args.message)
}

/// Lists the files of a folder and its subfolders, except hidden ones.
fn local_files(folder: &Path) -> anyhow::Result<Vec<LocalFile>> {
    let mut files = Vec::new();
    collect(folder, "", &mut files)?;
    ensure!(
        !files.is_empty(),
        "{}: no files, expected the files to publish",
        folder.display()
    );
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<LocalFile>) -> anyhow::Result<()> {
    let shown = || folder.display().to_string();
    for entry in fs::read_dir(folder).with_context(shown)? {
        let path = entry.with_context(shown)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{}: name is not UTF-8", path.display()))?;
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{prefix}{name}");
        let found = fs::metadata(&path).with_context(|| path.display().to_string())?;
        if found.is_dir() {
            collect(&path, &format!("{name}/"), files)?;
            continue;
        }
        ensure!(
            found.is_file(),
            "{}: not a regular file, expected files and folders",
            path.display()
        );
        files.push(LocalFile {
            name,
            path,
            size_bytes: found.len(),
        });
    }
    Ok(())
}

fn report_of(compared: &Comparison) -> PublishReport {
    let file = |(file, change): &(LocalFile, Change)| PublishFile {
        name: file.name.clone(),
        size_bytes: file.size_bytes,
        change: match change {
            Change::New => FileChange::New,
            Change::Changed => FileChange::Changed,
            Change::Equal => FileChange::Equal,
        },
    };
    PublishReport {
        schema_version: SCHEMA_VERSION,
        repository: compared.repo.clone(),
        revision: compared.revision.clone(),
        is_new: compared.parent.is_none(),
        files: compared.files.iter().map(file).collect(),
        only_on_hub: compared.only_on_hub.clone(),
        upload_bytes: compared.to_upload().map(|file| file.size_bytes).sum(),
        commit: None,
    }
}

/// Text output of the report.
struct Text<'a> {
    report: &'a PublishReport,
    is_dry_run: bool,
}

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.report;
        for file in &r.files {
            let change = match file.change {
                FileChange::New => "new",
                FileChange::Changed => "changed",
                FileChange::Equal => "equal",
            };
            writeln!(f, "{change:8} {:>9}  {}", bytes(file.size_bytes), file.name)?;
        }
        for name in &r.only_on_hub {
            writeln!(f, "{:8} {:>9}  {name}", "kept", "")?;
        }
        let n = r
            .files
            .iter()
            .filter(|file| file.change != FileChange::Equal);
        let what = format!(
            "{}, {}",
            count(n.count() as u64, "file"),
            bytes(r.upload_bytes)
        );
        let place = format!("{SCHEME}{}", r.repository);
        let new = if r.is_new { " (a new repository)" } else { "" };
        match &r.commit {
            Some(commit) => write!(f, "uploaded {what} to {place} at commit {commit}"),
            None if self.is_dry_run => write!(f, "would upload {what} to {place}{new}"),
            None => write!(f, "{place} has all files"),
        }
    }
}
