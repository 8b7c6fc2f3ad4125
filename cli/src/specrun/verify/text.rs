//! Text output of the report.

use std::fmt::{self, Display};

use schemas::report::{
    AgreementReport, AgreementTexts, BaselineReport, Counters, FailedCheck, FitReport, Floor,
    InputFile, Interval, Outcome, Provenance, Severity, SpeculatorVerdict, SpeedComparison,
    SurfaceReport, TargetScores, VerifyReport, VerifyRun,
};

use super::answers::answers;
use super::cases::measure_name;
use super::surface::{break_even, is_of};
use super::verdict;
use crate::output::{bytes, count, is_verbose};
use crate::specrun::page::{change, number};

/// Formats a report as text.
pub(super) struct Text<'a>(pub(super) &'a VerifyReport);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0;
        if let Some(provenance) = &r.provenance {
            origin(f, provenance)?;
        }
        if let Some(fit) = &r.fit {
            preflight(f, fit)?;
        }
        if let Some(report) = &r.target {
            target(f, report)?;
        }
        for speculator in &r.speculators {
            totals(f, speculator)?;
            let own = r
                .runs
                .iter()
                .filter(|run| run.speculator == speculator.name);
            let own: Vec<&VerifyRun> = own.collect();
            if !own.is_empty() {
                runs(f, &own)?;
            }
        }
        if let Some(found) = &r.agreement {
            agreement(f, found)?;
        }
        if let Some(found) = &r.surface {
            surface(f, found)?;
        }
        for cell in &r.matrix {
            let shape = &cell.shape;
            writeln!(
                f,
                "{}, drafts of up to {}, {}, temperature {}: {} of {} prompts identical",
                cell.speculator,
                shape.n_draft_max,
                count(shape.n_parallel.into(), "sequence"),
                shape.temperature,
                cell.n_identical,
                cell.n_prompts
            )?;
        }
        if let Some(i) = &r.invariance {
            writeln!(
                f,
                "\ninvariance: {} of {} rows differ, {}\n  {} texts in {} passes on {:?} threads",
                i.n_different,
                i.n_rows,
                verdict(i.verdict),
                i.n_texts,
                i.n_passes,
                i.threads
            )?;
        }
        if let Some(baseline) = &r.baseline {
            measures(f, baseline)?;
        }
        r.failed.iter().try_for_each(|check| failure(f, check))?;
        writeln!(f)?;
        for answer in answers(r) {
            let text = format!("{} {}. {}", answer.question, answer.answer, answer.detail);
            writeln!(f, "{}", text.replace('×', "x"))?;
        }
        write!(f, "\nverdict: {}", verdict(r.verdict))?;
        let unexercised = r.speculators.iter();
        let unexercised = unexercised.filter(|s| s.verdict == Outcome::NotExercised);
        let names: Vec<&str> = unexercised.map(|s| s.name.as_str()).collect();
        if names.is_empty() {
            return Ok(());
        }
        write!(f, "; not exercised: {}", names.join(" and "))
    }
}

/// Writes the result of the check of the files, and its warnings.
fn preflight(f: &mut fmt::Formatter<'_>, fit: &FitReport) -> fmt::Result {
    let (n_tensors, verdict) = (fit.n_tensors, verdict(fit.verdict));
    writeln!(f, "fit: {n_tensors} tensors, {verdict}")?;
    let warnings = fit.findings.iter().filter(|x| x.severity == Severity::Odd);
    for warning in warnings {
        let (file, subject) = (&warning.file, &warning.subject);
        writeln!(f, "  warning: {file}: {subject}: {}", warning.message)?;
    }
    Ok(())
}

/// Writes the results of the target without speculators.
fn target(f: &mut fmt::Formatter<'_>, target: &TargetScores) -> fmt::Result {
    write!(f, "target: {} rows of logits, ", target.n_rows)?;
    match target.n_not_finite {
        0 => write!(f, "all finite")?,
        n => write!(f, "{n} NOT FINITE")?,
    }
    if let Some(perplexity) = target.perplexity {
        write!(f, ", perplexity {perplexity:.3}")?;
    }
    if let Some(speed) = &target.speed {
        let (min, max) = (speed.min, speed.max);
        write!(f, "\n  {:.1} tok/s ({min:.1} to {max:.1})", speed.median)?;
    }
    writeln!(f)
}

/// Writes a failed check and its likely causes.
fn failure(f: &mut fmt::Formatter<'_>, check: &FailedCheck) -> fmt::Result {
    let kind = format!("{:?}", check.check).to_lowercase();
    write!(f, "\nFAILED {kind}")?;
    if let Some(speculator) = &check.speculator {
        write!(f, ", {speculator}")?;
    }
    if let Some(id) = &check.prompt_id {
        write!(f, ", prompt {id}")?;
    }
    writeln!(f, ": {}", check.message)?;
    for cause in &check.likely_causes {
        writeln!(f, "  likely cause: {cause}")?;
    }
    Ok(())
}

/// Writes one line per prompt of a speculator.
fn runs(f: &mut fmt::Formatter<'_>, runs: &[&VerifyRun]) -> fmt::Result {
    let width = runs.iter().map(|run| run.prompt_id.chars().count()).max();
    let width = width.unwrap_or(0).max("prompt".len());
    writeln!(
        f,
        "  {:<width$}  {:<6}  {:<6}  generated  drafted  accepted   rate  per pass{}",
        "prompt",
        "tokens",
        "logits",
        if is_verbose() { "  last logits" } else { "" }
    )?;
    for run in runs {
        let c = &run.counters;
        writeln!(
            f,
            "  {:<width$}  {:<6}  {:<6}  {:>9}  {:>7}  {:>8}  {:>5}  {:>8}{}",
            run.prompt_id,
            same(run.tokens_identical),
            same(run.logits_identical),
            c.n_tokens,
            c.n_drafted,
            c.n_accepted,
            number(c.acceptance, 3),
            number(c.tokens_per_target_pass, 2),
            match is_verbose() {
                true => format!("  {}", run.last_logits_hash),
                false => String::new(),
            }
        )?;
    }
    Ok(())
}

/// Writes program, date, machine and inputs.
fn origin(f: &mut fmt::Formatter<'_>, p: &Provenance) -> fmt::Result {
    let (version, commit, date) = (&p.tool_version, &p.tool_commit, &p.date);
    let commit = match is_verbose() {
        true => commit,
        false => commit.get(..10).unwrap_or(commit),
    };
    writeln!(f, "specrun {version} ({commit}), {date}, {}", p.cpu.name)?;
    for InputFile {
        name,
        size_bytes,
        sha256,
        file_type,
    } in &p.files
    {
        let file_type = file_type.as_deref().unwrap_or("type unknown");
        write!(f, "{name}: {}, {file_type}", bytes(*size_bytes))?;
        match is_verbose() {
            true => writeln!(f, ", sha256 {sha256}")?,
            false => writeln!(f)?,
        }
    }
    match &p.prompts_sha256 {
        Some(sha256) if is_verbose() => writeln!(f, "prompts: sha256 {sha256}"),
        _ => Ok(()),
    }
}

/// Writes the comparison with an earlier report.
fn measures(f: &mut fmt::Formatter<'_>, b: &BaselineReport) -> fmt::Result {
    writeln!(
        f,
        "\nagainst {} ({}): {} positions of {} prompts, {} with the same text",
        b.report, b.model, b.n_positions, b.n_prompts, b.n_same_text
    )?;
    if let Some(kl) = &b.kl {
        writeln!(
            f,
            "  KL divergence: mean {:.5} +- {}, median {:.5}, 90% {:.5}, 95% {:.5}, 99% {:.5}, \
             99.9% {:.5}, max {:.5}",
            kl.mean,
            number(kl.standard_error, 5),
            kl.median,
            kl.p90,
            kl.p95,
            kl.p99,
            kl.p99_9,
            kl.max
        )?;
    }
    for m in &b.measures {
        let name = measure_name(m);
        let held = if m.holds { "held" } else { "MISSED" };
        writeln!(
            f,
            "  {name:<38}  was {:>9.4}  now {:>9.4}  limit {:>9.4}  {held}",
            m.baseline, m.found, m.limit
        )?;
    }
    Ok(())
}

/// Number of draft positions in the text output; the JSON report has all.
const MAX_POSITIONS: usize = 8;

/// Writes the results of a speculator over all prompts.
fn totals(f: &mut fmt::Formatter<'_>, s: &SpeculatorVerdict) -> fmt::Result {
    let c = &s.counters;
    if let Some(error) = &s.error {
        return writeln!(f, "\n{}: {}\n  {error}", s.name, outcome(s.verdict));
    }
    writeln!(
        f,
        "\n{}: {} of {} prompts identical, {}",
        s.name,
        s.n_identical,
        s.n_prompts,
        outcome(s.verdict)
    )?;
    if c.n_drafted == 0 {
        return writeln!(f, "  drafted no token: nothing was verified");
    }
    writeln!(
        f,
        "  drafted {}, accepted {}, acceptance {}, {} tokens/pass",
        c.n_drafted,
        c.n_accepted,
        number(c.acceptance, 3),
        number(c.tokens_per_target_pass, 2),
    )?;
    if c.by_speculator.len() > 1 {
        for member in &c.by_speculator {
            let (name, n_accepted) = (&member.name, member.n_accepted);
            match member.n_drafted {
                0 => writeln!(f, "    {name}: not exercised in the chain")?,
                n => writeln!(f, "    {name}: drafted {n}, accepted {n_accepted}")?,
            }
        }
    }
    if let Some(speed) = &s.speed {
        speed_line(f, speed)?;
    }
    acceptance_lines(f, c)?;
    if let Some(floor) = &s.floor {
        floor_line(f, floor, s.floor_held)?;
    }
    Ok(())
}

/// Writes the drafts at every position of the texts, compared with the target's choices.
fn agreement(f: &mut fmt::Formatter<'_>, found: &AgreementReport) -> fmt::Result {
    let texts = match found.texts {
        AgreementTexts::Own => "of the target's own",
        AgreementTexts::Given => "given",
    };
    writeln!(
        f,
        "\nagreement: {} of {} {texts}, {} chosen otherwise",
        count(found.n_positions, "position"),
        count(found.n_texts, "text"),
        found.n_other_choices
    )?;
    for s in &found.speculators {
        if let Some(error) = &s.error {
            writeln!(f, "  {}: FAIL\n    {error}", s.name)?;
            continue;
        }
        let rates = s.by_draft_position.iter().take(MAX_POSITIONS);
        let rates: Vec<String> = rates.map(|p| number(p.acceptance, 3)).collect();
        writeln!(
            f,
            "  {}: predicted acceptance by draft position {}, {} tokens/pass",
            s.name,
            rates.join(" "),
            number(s.tokens_per_target_pass, 2)
        )?;
        if let Some(c) = &s.decoded {
            writeln!(
                f,
                "    decoding would draft {}, accept {}, {} tokens/pass",
                c.n_drafted,
                c.n_accepted,
                number(c.tokens_per_target_pass, 2)
            )?;
        }
        if let Some(floor) = &s.floor {
            floor_line(f, floor, s.floor_held)?;
        }
    }
    Ok(())
}

/// Writes acceptance and speed over context length, temperature and task.
fn surface(f: &mut fmt::Formatter<'_>, found: &SurfaceReport) -> fmt::Result {
    for even in &found.break_even {
        writeln!(f, "\n{}, temperature {}", even.speculator, even.temperature)?;
        writeln!(
            f,
            "  {:>8}  {:<14}  acceptance  first  per pass  tok/s   plain  speedup",
            "context", "task"
        )?;
        let own = found.cells.iter().filter(|cell| is_of(cell, even));
        for cell in own {
            writeln!(
                f,
                "  {:>8}  {:<14}  {:>10}  {:>5}  {:>8}  {:>5}  {:>6}  {:>7}",
                cell.n_context,
                cell.task.as_deref().unwrap_or("all"),
                number(cell.acceptance, 3),
                number(cell.first_acceptance, 3),
                number(cell.tokens_per_target_pass, 2),
                number(cell.tokens_per_s, 1),
                number(cell.plain_tokens_per_s, 1),
                number(cell.speedup, 2)
            )?;
        }
        writeln!(f, "  {}", break_even(even))?;
    }
    Ok(())
}

/// Writes a floor, and if it was reached.
fn floor_line(f: &mut fmt::Formatter<'_>, floor: &Floor, is_held: Option<bool>) -> fmt::Result {
    let held = if is_held == Some(true) {
        "held"
    } else {
        "MISSED"
    };
    let found = number(floor.measured, 3);
    writeln!(f, "  floor {:.3}, found {found}: {held}", floor.acceptance)
}

/// Writes the speed and the speedup, with their ranges.
fn speed_line(f: &mut fmt::Formatter<'_>, speed: &SpeedComparison) -> fmt::Result {
    let (tokens_per_s, ratio) = (&speed.tokens_per_s, &speed.ratio);
    writeln!(
        f,
        "  {:.1} tok/s ({:.1} to {:.1}), speedup {:.2} ({:.2} to {:.2}) in {} runs: {}",
        tokens_per_s.median,
        tokens_per_s.min,
        tokens_per_s.max,
        ratio.median,
        ratio.min,
        ratio.max,
        speed.n_runs,
        change(speed.change)
    )?;
    match speed.interval {
        Some(Interval { low, high }) => writeln!(
            f,
            "  95 % confidence interval of the mean speedup: {low:.2} to {high:.2}"
        ),
        None => Ok(()),
    }
}

/// Writes the acceptance rates by draft position, and the number of passes by accepted tokens.
fn acceptance_lines(f: &mut fmt::Formatter<'_>, c: &Counters) -> fmt::Result {
    let rates = c.by_draft_position.iter().take(MAX_POSITIONS);
    let rates: Vec<String> = rates.map(|p| number(p.acceptance, 3)).collect();
    let has_more = c.by_draft_position.len() > MAX_POSITIONS;
    let more = if has_more { " ..." } else { "" };
    let rates = rates.join(" ");
    writeln!(f, "  acceptance by draft position: {rates}{more}")?;
    let lengths = c.accepted_lengths.iter().enumerate();
    let lengths = lengths.filter(|&(_, &n)| n > 0);
    let lengths: Vec<String> = lengths.map(|(k, n)| format!("{k}: {n}")).collect();
    writeln!(f, "  passes by accepted tokens: {}", lengths.join(", "))
}

fn same(identical: bool) -> &'static str {
    if identical { "same" } else { "DIFFER" }
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "pass",
        Outcome::Fail => "FAIL",
        Outcome::NotExercised => "not exercised",
    }
}
