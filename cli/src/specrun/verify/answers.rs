//! The answers of a verification to the questions of its reader: may the model be used with drafts, and do
//! they save time. Every format shows them first.

use schemas::report::{
    Check, FailedCheck, Outcome, SpeculatorVerdict, SpeedChange, SpeedComparison, VerifyReport,
};

use super::cases::{cases, stages};
use crate::output::count;
use crate::specrun::page::html::{Answer, Tone};

/// Returns the answers, the first question first.
pub(super) fn answers(report: &VerifyReport) -> [Answer; 2] {
    [safe(report), faster(report)]
}

/// True if a check of this speculator failed.
pub(super) fn has_failed(report: &VerifyReport, s: &SpeculatorVerdict) -> bool {
    let names = report.failed.iter().map(|failed| &failed.speculator);
    s.verdict == Outcome::Fail || names.flatten().any(|name| *name == s.name)
}

/// Answers if all checks passed, and states separately if drafts leave texts unchanged.
fn safe(report: &VerifyReport) -> Answer {
    let answer = |tone, answer: &str, detail: String| Answer {
        question: "Is it safe to use?",
        tone,
        answer: answer.to_owned(),
        detail,
    };
    let (is_changed, identity) = identity(report);
    let n_faults = report.failed.iter().filter(|f| f.check == Check::Fit);
    let n_faults = n_faults.count() as u64;
    if n_faults > 0 {
        let faults = count(n_faults, "fault");
        let detail = format!("The files have {faults}, so nothing was decoded.");
        return answer(Tone::Fail, "No", detail);
    }
    if let [first, others @ ..] = &report.failed[..] {
        let others = match others.len() as u64 {
            0 => String::new(),
            n => format!(" {} failed besides.", count(n, "other check")),
        };
        let reason = reason(first);
        // The reasons name the texts that changed.
        let identity = identity.filter(|_| !is_changed);
        let identity = identity.map_or(String::new(), |identity| format!(" {identity}"));
        return answer(Tone::Fail, "No", format!("{reason}.{others}{identity}"));
    }
    let identity = identity.unwrap_or_default();
    // The identity check was not requested, but its result is known.
    if is_changed {
        return answer(Tone::Fail, "No", identity);
    }
    if !identity.is_empty() {
        let cases = cases(report);
        let n_passed = cases.iter().filter(|case| !case.skipped).count() as u64;
        let stages = stages(&cases).join(", ");
        let idle = report.speculators.iter();
        let idle = idle.filter(|s| s.verdict == Outcome::NotExercised);
        let idle: Vec<&str> = idle.map(|s| s.name.as_str()).collect();
        let idle = match idle.is_empty() {
            true => String::new(),
            false => format!(" Not exercised: {}.", idle.join(" and ")),
        };
        let detail = format!(
            "{} passed: {stages}. {identity}{idle}",
            count(n_passed, "check")
        );
        return answer(Tone::Pass, "Yes", detail);
    }
    let detail = match (&report.target, &report.fit) {
        _ if report.speculators.is_empty() && report.agreement.is_some() => {
            "Drafts were compared with the choices of the target, but nothing was decoded with them: --check \
             identity compares the texts."
                .to_owned()
        }
        _ if !report.speculators.is_empty() => {
            "No token was drafted, so nothing was compared.".to_owned()
        }
        _ if report.surface.is_some() => {
            "Texts with and without drafts are equal on the acceptance surface, but their logits were not compared: \
             --check identity compares them."
                .to_owned()
        }
        (Some(target), _) => format!(
            "The target alone was checked: {} of logits, all finite. No drafter was compared.",
            count(target.n_rows, "row")
        ),
        (None, Some(fit)) => format!(
            "Only the files were checked: {}, no fault found.",
            count(fit.n_tensors, "tensor")
        ),
        (None, None) => "No text was decoded.".to_owned(),
    };
    answer(Tone::Odd, "Not compared", detail)
}

/// States if texts with and without drafts are the same, and if they differ; `None` if nothing was compared.
fn identity(report: &VerifyReport) -> (bool, Option<String>) {
    let decoded = report.speculators.iter().filter(|s| s.error.is_none());
    let changed = decoded.clone().filter(|s| s.n_identical < s.n_prompts);
    let changed: Vec<String> = changed
        .map(|s| {
            let n = s.n_prompts - s.n_identical;
            format!("{} on {n} of {} prompts", s.name, s.n_prompts)
        })
        .collect();
    if !changed.is_empty() {
        let changed = changed.join(", ");
        let text = format!("Drafts change the text or its logits: {changed}.");
        return (true, Some(text));
    }
    let drafted = decoded.filter(|s| s.counters.n_drafted > 0);
    let text = drafted.map(|s| s.n_prompts).max().map(|n| {
        format!(
            "Texts with and without drafts are identical: all tokens are equal, and all logits bit by bit, on {}.",
            count(n, "prompt")
        )
    });
    (false, text)
}

/// Formats a failed check as a sentence without its full stop.
fn reason(failed: &FailedCheck) -> String {
    let mut reason = String::new();
    if let Some(name) = &failed.speculator {
        reason = format!("{name}: ");
    }
    if let Some(id) = &failed.prompt_id {
        reason += &format!("prompt {id}: ");
    }
    reason + failed.message.trim_end_matches('.')
}

/// Answers how much time drafts save, and how certain it is.
fn faster(report: &VerifyReport) -> Answer {
    let answer = |tone, answer: &str, detail: String| Answer {
        question: "Is it faster?",
        tone,
        answer: answer.to_owned(),
        detail,
    };
    let measured = report.speculators.iter();
    let measured = measured.filter_map(|s| Some((s, s.speed.as_ref()?)));
    let working = measured.filter(|(s, _)| !has_failed(report, s));
    let ratio = |(_, speed): &(_, &SpeedComparison)| speed.ratio.median;
    let is_faster = |(_, speed): &(_, &SpeedComparison)| speed.change == SpeedChange::Faster;
    let best = working.max_by(|a, b| {
        let by_ratio = ratio(a).total_cmp(&ratio(b));
        is_faster(a).cmp(&is_faster(b)).then(by_ratio)
    });
    let Some((s, speed)) = best else {
        let failed = report.failed.iter().find(|f| f.speculator.is_some());
        return match failed {
            Some(failed) => answer(Tone::Fail, "Not usable", reason(failed) + "."),
            None => answer(Tone::Plain, "Not measured", predicted(report)),
        };
    };
    let (tone, text) = match speed.change {
        // A gain is no reason to use what failed a check.
        SpeedChange::Faster if !report.failed.is_empty() => (Tone::Plain, "Yes"),
        SpeedChange::Faster => (Tone::Pass, "Yes"),
        SpeedChange::Slower => (Tone::Fail, "No"),
        SpeedChange::Unclear => (Tone::Odd, "Unclear"),
    };
    let text = format!("{text}, {:.2}×", speed.ratio.median);
    let detail = format!(
        "{} {}. {:.1} tokens/s, {:.1} without drafts.",
        s.name,
        certainty(speed),
        speed.tokens_per_s.median,
        speed.plain_tokens_per_s.median
    );
    answer(tone, &text, detail)
}

/// States the speeds of the acceptance surface. Without one, names the drafter with the most tokens per pass, if
/// drafts were compared with the target's choices.
fn predicted(report: &VerifyReport) -> String {
    let cells = report.surface.iter().flat_map(|surface| &surface.cells);
    let cells = cells.filter_map(|cell| Some((&cell.speculator, cell.speedup?)));
    let best = cells.max_by(|(_, a), (_, b)| a.total_cmp(b));
    if let Some((name, speedup)) = best {
        return format!(
            "Only the acceptance surface was measured, where {name} reaches {speedup:.2}×; the check speed is more exact."
        );
    }
    let found = report.agreement.iter().flat_map(|found| &found.speculators);
    let found = found.filter_map(|s| Some((&s.name, s.tokens_per_target_pass?)));
    match found.max_by(|(_, a), (_, b)| a.total_cmp(b)) {
        Some((name, per_pass)) => {
            format!(
                "No speed with drafts was measured. {name}: {per_pass:.2} tokens per pass are predicted."
            )
        }
        None => "No speed with drafts was measured.".to_owned(),
    }
}

/// States how often drafts were faster, and the interval of the mean speedup.
fn certainty(speed: &SpeedComparison) -> String {
    let n = speed.ratios.len();
    let is_slower = speed.ratio.median < 1.0;
    let in_favor = speed.ratios.iter().filter(|&&r| (r < 1.0) == is_slower);
    let word = if is_slower { "slower" } else { "faster" };
    let counted = format!("was {word} in {} of {n} runs", in_favor.count());
    let Some(interval) = speed.interval else {
        return format!("{counted}, too few to be certain");
    };
    let mean = format!(
        "with 95 % confidence the mean is {:.2}× to {:.2}×",
        interval.low, interval.high
    );
    match speed.change {
        SpeedChange::Unclear => format!(
            "{counted}; {mean}, so the drafts may save no time; a machine that does nothing else gives a \
             smaller interval"
        ),
        _ => format!("{counted}; {mean}"),
    }
}

#[cfg(test)]
mod tests {
    use schemas::report::{Interval, Spread};

    use super::*;

    #[test]
    fn certainty_says_what_the_numbers_say() {
        let spread = |median| Spread {
            median,
            min: 0.9,
            max: 2.5,
        };
        let mut speed = SpeedComparison {
            n_runs: 3,
            tokens_per_s: spread(30.0),
            plain_tokens_per_s: spread(20.0),
            ratio: spread(1.5),
            ratios: vec![0.9, 1.5, 2.5],
            interval: Some(Interval {
                low: 0.4,
                high: 5.3,
            }),
            change: SpeedChange::Unclear,
            by_kind: Vec::new(),
        };
        let text = certainty(&speed);
        let expected =
            "was faster in 2 of 3 runs; with 95 % confidence the mean is 0.40× to 5.30×, so";
        assert!(text.starts_with(expected), "{text}");
        speed.ratios = vec![0.8, 0.9, 1.1];
        speed.ratio = spread(0.9);
        speed.interval = None;
        assert_eq!(
            certainty(&speed),
            "was slower in 2 of 3 runs, too few to be certain"
        );
    }
}
