//! `specrun verify --url`: checks of a running server.

use std::fmt::{self, Display};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use minijinja::context;
use minijinja::value::Serde;
use schemas::report::{
    Outcome, OwnAcceptance, ServerCheck, ServerDifference, ServerReport, Verdict,
};
use verify::prompts::Prompt;
use verify::server::{ServerCheckConfig, check_server};
use verify::tasks::TasksConfig;

use super::cases::Case;
use super::page::junit_of;
use super::{Args, verdict};
use crate::output::{self, Format, count};
use crate::provenance::provenance;
use crate::specrun::bench::tasks::measure;
use crate::specrun::page::html::{Answer, Cell, Page, Section, Table, Tone, origin};
use crate::specrun::page::{self, Pages, Render, number};

const MARKDOWN: &str = include_str!("server.md.jinja");

/// Tokens generated per prompt.
const N_PREDICT: usize = 128;

/// The server to verify.
#[derive(Debug, clap::Args)]
pub(super) struct ServerArgs {
    /// Server to verify in place of files, such as http://127.0.0.1:8080
    ///
    /// llama-server, vLLM, specrun serve, or another server with /v1/completions
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    /// Second server with the same model, whose texts must be equal
    ///
    /// For servers without a switch for speculation per request: start this one without speculation
    #[arg(long, value_name = "URL", requires = "url")]
    url2: Option<String>,
    /// Maximum number of requests at the same time
    #[arg(long, value_name = "N", default_value = "8", requires = "url")]
    concurrency: NonZeroUsize,
    /// API key of both servers
    #[arg(
        long,
        value_name = "KEY",
        env = "LLAMA_API_KEY",
        hide_env_values = true
    )]
    api_key: Option<String>,
}

/// Verifies a server.
pub(super) fn run(args: &Args, url: &str, mut prompts: Vec<Prompt>) -> anyhow::Result<Verdict> {
    for prompt in &mut prompts {
        prompt.n_predict = args.length.n_predict.or(prompt.n_predict);
    }
    let formats: [(&Option<PathBuf>, Render<ServerReport>); 4] = [
        (&args.report, json),
        (&args.junit, junit),
        (&args.markdown, markdown),
        (&args.html, html),
    ];
    let inputs: Vec<&Path> = args.prompts.iter().map(PathBuf::as_path).collect();
    let pages = Pages::new(&formats, &inputs, args.overwrite.existing())?;
    let config = ServerCheckConfig {
        url: url.to_owned(),
        url2: args.server.url2.clone(),
        key: args.server.api_key.clone(),
        prompts,
        n_predict: N_PREDICT,
        n_concurrent: args.server.concurrency.get(),
    };
    let own = match args.model.target().is_given() {
        true => Some(own_acceptance(
            args,
            args.model.path()?,
            config.prompts.clone(),
        )?),
        false => None,
    };
    let report = ServerReport {
        own,
        provenance: Some(provenance([], Some(&config.prompts))?),
        ..check_server(&config)?
    };
    pages.write(&report)?;
    output::result(Format::of(args.json), &report, &Text(&report))?;
    Ok(report.verdict)
}

/// Decodes the prompts with the engine of this program.
fn own_acceptance(
    args: &Args,
    model: &Path,
    prompts: Vec<Prompt>,
) -> anyhow::Result<OwnAcceptance> {
    let config = TasksConfig {
        model: model.to_path_buf(),
        drafts: args.spec.drafts()?,
        spec_types: args.spec.spec_types()?.unwrap_or_default(),
        prompts,
        n_predict: N_PREDICT,
        options: args.spec.options(&args.model.caches, &args.context)?,
        n_runs: 1,
    };
    let report = measure(&args.model.device()?, &config)?;
    Ok(OwnAcceptance {
        model: report.model,
        speculators: report.speculators,
        draft_n: report.aggregate.total_draft,
        draft_n_accepted: report.aggregate.total_draft_accepted,
        accept_rate: report.aggregate.aggregate_accept_rate,
    })
}

fn json(report: &ServerReport) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

fn junit(report: &ServerReport) -> anyhow::Result<String> {
    let cases: Vec<Case> = report.checks.iter().map(case).collect();
    junit_of(&cases, &report.url)
}

fn case(check: &ServerCheck) -> Case {
    let failure = || {
        let differences: Vec<String> = check.differences.iter().map(difference).collect();
        [vec![check.found.clone()], differences].concat().join("\n")
    };
    Case {
        stage: "server",
        name: check.name.clone(),
        found: check.found.clone(),
        failure: (check.outcome == Outcome::Fail).then(failure),
        skipped: check.outcome == Outcome::NotExercised,
    }
}

fn markdown(report: &ServerReport) -> anyhow::Result<String> {
    page::render("server.md", MARKDOWN, context! { report => Serde(report) })
}

fn html(report: &ServerReport) -> anyhow::Result<String> {
    let count_of = |outcome| {
        report
            .checks
            .iter()
            .filter(|c| c.outcome == outcome)
            .count() as u64
    };
    let n_failed = count_of(Outcome::Fail);
    let first = report.checks.iter().find(|c| c.outcome == Outcome::Fail);
    let safe = match first {
        Some(check) => (Tone::Fail, "No", format!("{}: {}", check.name, check.found)),
        None if count_of(Outcome::Pass) == 0 => (Tone::Odd, "Not compared", String::new()),
        None if report.draft_n == 0 => (
            Tone::Odd,
            "Not compared",
            "Equal requests give equal texts, but the server drafted no token.".to_owned(),
        ),
        None => {
            let passed = count(count_of(Outcome::Pass), "check");
            let skipped = match count_of(Outcome::NotExercised) {
                0 => String::new(),
                n => format!(", {n} not exercised"),
            };
            let drafted = count(report.draft_n, "drafted token");
            let detail = format!(
                "{passed} passed{skipped}: equal requests give equal texts, with {drafted}."
            );
            (Tone::Pass, "Yes", detail)
        }
    };
    let accepted = match report.accept_rate {
        Some(rate) => (Tone::Plain, format!("{:.1} %", 100.0 * rate)),
        None => (Tone::Odd, "Unknown".to_owned()),
    };
    let own = report.own.as_ref().map_or(String::new(), |own| {
        format!("; specrun on {}: {}", own.model, number(own.accept_rate, 4))
    });
    let detail = format!(
        "{} of {} draft tokens{own}. \"specrun bench\" measures the speed.",
        report.draft_n_accepted, report.draft_n
    );
    let answers = [
        ("Is it safe to use?", safe.0, safe.1.to_owned(), safe.2),
        ("Are drafts accepted?", accepted.0, accepted.1, detail),
    ];
    let answers = answers.map(|(question, tone, answer, detail)| Answer {
        question,
        tone,
        answer,
        detail,
    });
    let mut facts = vec![("Server", report.url.clone())];
    facts.extend(report.url2.clone().map(|url| ("Compared with", url)));
    facts.extend(report.model.clone().map(|model| ("Model", model)));
    facts.extend(
        report
            .version
            .as_deref()
            .map(|version| ("Version", short(version))),
    );
    let origin = origin(report.provenance.as_ref(), "", 0).into_iter();
    // The machine is that of this program, and the backend of the server is unknown.
    facts.extend(origin.filter_map(|(name, value)| match name {
        "Machine" => Some(("Verified from", value)),
        "Backend" => None,
        name => Some((name, value)),
    }));
    let mut checks: Vec<&ServerCheck> = report.checks.iter().collect();
    // Failures first.
    checks.sort_by_key(|check| check.outcome != Outcome::Fail);
    let checks = checks.into_iter().map(|check| {
        let (tone, outcome) = match check.outcome {
            Outcome::Pass => (Tone::Pass, "pass"),
            Outcome::Fail => (Tone::Fail, "fail"),
            Outcome::NotExercised => (Tone::Odd, "not exercised"),
        };
        let lines = check
            .differences
            .iter()
            .flat_map(|d| [difference(d), d.request.clone()]);
        let found = Cell::text(&check.found).with_lines(lines.collect());
        vec![Cell::text(&check.name), Cell::of(tone, outcome), found]
    });
    let prompts = report.prompts.iter().map(|p| {
        let mut row = vec![Cell::text(&p.prompt_id)];
        let n = p.predicted_n.map_or("-".to_owned(), |n| n.to_string());
        let accepted = format!("{} of {}", p.draft_n_accepted, p.draft_n);
        let values = [
            n,
            accepted,
            number(p.accept_rate, 3),
            number(p.predicted_per_second, 1),
        ];
        row.extend(values.map(Cell::number));
        row
    });
    let section = |title: &str, columns: &[&'static str], rows| Section {
        title: title.to_owned(),
        tables: vec![Table::new(columns, rows)],
        ..Section::default()
    };
    let page = Page {
        command: "specrun verify",
        subject: report.url.clone(),
        verdict: Some(match n_failed {
            0 => (Tone::Pass, "passed".to_owned()),
            n => (Tone::Fail, format!("{} failed", count(n, "check"))),
        }),
        answers: answers.into(),
        facts,
        sections: vec![
            section("Checks", &["check", "result", "found"], checks.collect()),
            section(
                "Acceptance",
                &["prompt", "tokens", "accepted", "acceptance", "tokens/s"],
                prompts.collect(),
            ),
        ],
    };
    page.html()
}

/// Shortens the commit at the end of a server's version.
fn short(version: &str) -> String {
    const SHOWN: usize = 10;
    let start = version.rfind(|c: char| !c.is_ascii_hexdigit());
    // A letter before the commit can have more than one byte.
    let start = start.map_or(0, |i| {
        i + version[i..].chars().next().map_or(1, char::len_utf8)
    });
    match version.len() - start > 2 * SHOWN {
        true => version[..start + SHOWN].to_owned(),
        false => version.to_owned(),
    }
}

/// Formats a difference as one line.
fn difference(d: &ServerDifference) -> String {
    let gap = match (d.top_gap, d.is_near_tie) {
        (Some(gap), Some(true)) => {
            format!("; near tie: the two most likely tokens are {gap:.2e} apart")
        }
        (Some(gap), _) => format!("; the two most likely tokens are {gap:.3} apart"),
        (None, _) => String::new(),
    };
    format!(
        "prompt {}, position {}: {:?}, expected {:?}{gap}",
        d.prompt_id, d.position, d.found, d.expected
    )
}

/// Text output.
struct Text<'a>(&'a ServerReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        write!(f, "{}", r.url)?;
        for (name, value) in [("", &r.model), ("version ", &r.version)] {
            if let Some(value) = value {
                write!(f, ", {name}{value}")?;
            }
        }
        writeln!(f, "\n")?;
        let width = r.prompts.iter().map(|p| p.prompt_id.chars().count());
        let width = width.max().unwrap_or(0).max("prompt".len());
        writeln!(
            f,
            "{:<width$}  generated  drafted  accepted   rate    tok/s",
            "prompt"
        )?;
        for p in &r.prompts {
            let n = p.predicted_n.map_or("-".to_owned(), |n| n.to_string());
            writeln!(
                f,
                "{:<width$}  {n:>9}  {:>7}  {:>8}  {:>5}  {:>7}",
                p.prompt_id,
                p.draft_n,
                p.draft_n_accepted,
                number(p.accept_rate, 3),
                number(p.predicted_per_second, 1)
            )?;
        }
        let rate = number(r.accept_rate, 4);
        let (drafted, accepted) = (r.draft_n, r.draft_n_accepted);
        writeln!(
            f,
            "\ndrafted {drafted}, accepted {accepted}, acceptance {rate}"
        )?;
        if let Some(own) = &r.own {
            writeln!(
                f,
                "specrun with {} on {}: drafted {}, accepted {}, acceptance {}",
                own.speculators.join(","),
                own.model,
                own.draft_n,
                own.draft_n_accepted,
                number(own.accept_rate, 4)
            )?;
        }
        writeln!(f)?;
        for check in &r.checks {
            let outcome = match check.outcome {
                Outcome::Pass => "pass",
                Outcome::Fail => "FAIL",
                Outcome::NotExercised => "not exercised",
            };
            writeln!(f, "{:<42} {outcome}: {}", check.name, check.found)?;
            for d in &check.differences {
                writeln!(f, "  {}\n  $ {}", difference(d), d.request)?;
            }
        }
        write!(f, "\n{}", verdict(r.verdict))
    }
}
