//! Comparison with an earlier report: the same prompts and texts, the target's current logits for
//! them, and the acceptance rates of its speculators.

use std::path::{Path, PathBuf};

use kernels::backend::Backend;
use runner::context::Context;
use schemas::input;
use schemas::report::{
    BaselineReport, Counters, DraftPosition, KlDivergence, Measure, MeasureKind, PromptScores,
    SpeculatorVerdict, Spread, TargetScores, Verdict, VerifyReport,
};

use crate::error::Error;
use crate::scores::{Likeliest, divergence, each_row, read_likeliest};
use crate::spread::divergences;

/// Tolerances of a comparison with an earlier report.
///
/// The defaults are met by a sound Q4_K_M of the bundled family compared with its BF16 file;
/// docs/verify.md has the figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    /// Maximum mean KL divergence, in nats.
    pub kl: f64,
    /// Minimum share of positions with the same most likely token.
    pub top: f64,
    /// Maximum ratio of the perplexities.
    pub perplexity: f64,
    /// Maximum decrease of an acceptance rate if the target's texts have changed, in addition to
    /// the statistical error.
    pub acceptance: f64,
    /// Maximum share of prompts whose text without drafts has changed; 1 disables the comparison of
    /// texts.
    pub text: f64,
    /// Minimum ratio of the tokens per second, if machine and threads are the same; 0 disables the
    /// comparison of speeds.
    pub speed: f64,
}

impl Tolerances {
    /// The defaults.
    pub const DEFAULT: Tolerances = Tolerances {
        kl: 0.1,
        top: 0.85,
        perplexity: 1.1,
        acceptance: 0.03,
        text: 1.0,
        speed: 0.5,
    };

    /// Returns a tolerance by the name used on the command line.
    pub fn by_name(&mut self, name: &str) -> Option<&mut f64> {
        Some(match name {
            "kl" => &mut self.kl,
            "top" => &mut self.top,
            "perplexity" => &mut self.perplexity,
            "acceptance" => &mut self.acceptance,
            "text" => &mut self.text,
            "speed" => &mut self.speed,
            _ => return None,
        })
    }
}

/// Standard deviations of statistical error tolerated in a decrease of acceptance.
const N_SIGMA: f64 = 2.0;
/// Minimum number of drafts for a comparison of acceptance rates.
const MIN_DRAFTS: u64 = 50;

/// An earlier report.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// Path of the report.
    pub path: PathBuf,
    /// The report.
    pub report: VerifyReport,
    /// Tolerances of the comparison.
    pub tolerances: Tolerances,
}

impl Baseline {
    /// Reads a report of `specrun verify`.
    ///
    /// # Errors
    /// The file cannot be read, is not such a report, or lacks the scores needed for a comparison.
    pub fn read(path: &Path, tolerances: Tolerances) -> Result<Baseline, Error> {
        let error = |message: String| Error::Baseline {
            path: path.to_path_buf(),
            message,
        };
        let text = input::read_text(path, input::Kind::Stream, input::MAX_LIST)
            .map_err(|e| error(e.to_string()))?;
        let report: VerifyReport = serde_json::from_str(&text).map_err(|e| {
            error(format!(
                "not a report of this version of specrun verify: {e}"
            ))
        })?;
        if report.target.is_none() {
            let message = "the report has no scores of its target: make it with the checks \
                           identity or acceptance";
            return Err(error(message.to_owned()));
        }
        let path = path.to_path_buf();
        Ok(Baseline {
            path,
            report,
            tolerances,
        })
    }

    fn error(&self, message: String) -> Error {
        let path = self.path.clone();
        Error::Baseline { path, message }
    }

    /// Compares a finished report with this one. The context is the target's, with one sequence as
    /// long as the longest text of both reports.
    ///
    /// # Errors
    /// The reports have no prompt in common, or its tokens differ.
    pub(crate) fn compare<B: Backend>(
        &self,
        context: &mut Context<B>,
        now: &VerifyReport,
    ) -> Result<BaselineReport, Error> {
        let scores = |report: &'_ VerifyReport| -> Option<TargetScores> { report.target.clone() };
        let (Some(before), Some(after)) = (scores(&self.report), scores(now)) else {
            return Err(self.error("the report has no scores of its target".to_owned()));
        };
        let mut sums = Sums::default();
        for now in &after.prompts {
            let same = |prompt: &&PromptScores| prompt.prompt_id == now.prompt_id;
            let Some(prompt) = before.prompts.iter().find(same) else {
                continue;
            };
            let kept = self.read_prompt(prompt, before.n_top, now)?;
            sums.n_prompts += 1;
            sums.n_same_text += u64::from(prompt.tokens == now.tokens);
            each_row(context, prompt.tokens[..].into(), |position, row| {
                sums.add(&kept[position], row);
            })?;
        }
        let Some(kl) = divergences(&sums.divergences) else {
            return Err(self.error("the reports share no prompt".to_owned()));
        };
        let is_same_text = sums.n_same_text == sums.n_prompts;
        let mut measures = self.target_measures(&sums, &kl, &before, &after);
        let same_text = sums.n_same_text as f64 / sums.n_prompts as f64;
        let same_text = at_least(
            MeasureKind::SameText,
            1.0,
            same_text,
            1.0 - self.tolerances.text,
        );
        for speculator in &now.speculators {
            let same = |s: &&SpeculatorVerdict| s.name == speculator.name;
            if let Some(before) = self.report.speculators.iter().find(same) {
                let is_same_length = now.n_draft_max == self.report.n_draft_max;
                let counters = [&before.counters, &speculator.counters];
                let acceptances = self.acceptances(counters, is_same_text, is_same_length);
                let speeds = [before, speculator].map(|s| Some(s.speed.as_ref()?.tokens_per_s));
                let speed = self.speed(now, speeds);
                measures.extend(acceptances.into_iter().chain(speed).map(|measure| Measure {
                    speculator: Some(speculator.name.clone()),
                    ..measure
                }));
            }
        }
        measures.extend(self.speed(now, [before.speed, after.speed]));
        // Last, because the other measures are more informative. A limit that allows any text is
        // not a check.
        measures.extend((self.tolerances.text < 1.0).then_some(same_text));
        Ok(BaselineReport {
            report: self.path.display().to_string(),
            model: self.report.model.clone(),
            n_prompts: sums.n_prompts,
            n_positions: sums.divergences.len() as u64,
            kl: Some(kl),
            n_same_text: sums.n_same_text,
            verdict: Verdict::of(measures.iter().all(|measure| measure.holds)),
            measures,
        })
    }

    fn read_prompt(
        &self,
        before: &PromptScores,
        n_top: u32,
        now: &PromptScores,
    ) -> Result<Vec<Likeliest>, Error> {
        let id = &before.prompt_id;
        let prompt = |scores: &PromptScores| {
            let n = scores.n_prompt_tokens as usize;
            scores.tokens.get(..n).map(<[u32]>::to_vec)
        };
        if prompt(before).is_none() || prompt(before) != prompt(now) {
            return Err(self.error(format!(
                "prompt {id}: its tokens differ from the report's: another text or another \
                 tokenizer"
            )));
        }
        let kept = read_likeliest(before, n_top);
        kept.ok_or_else(|| self.error(format!("prompt {id}: its scores are damaged")))
    }

    fn target_measures(
        &self,
        sums: &Sums,
        divergence: &KlDivergence,
        before: &TargetScores,
        after: &TargetScores,
    ) -> Vec<Measure> {
        let n = sums.divergences.len() as f64;
        let Tolerances {
            kl,
            top,
            perplexity,
            ..
        } = self.tolerances;
        let mut measures = vec![
            at_most(MeasureKind::MeanKl, 0.0, divergence.mean, kl),
            at_least(
                MeasureKind::TopAgreement,
                1.0,
                sums.n_same_top as f64 / n,
                top,
            ),
        ];
        // Perplexities over different numbers of prompts cannot be compared.
        if let (Some(x), Some(y)) = (before.perplexity, after.perplexity)
            && before.n_scored == after.n_scored
        {
            measures.push(at_most(MeasureKind::Perplexity, x, y, x * perplexity));
        }
        measures
    }

    /// Compares acceptance rates at each position of a draft. If the texts are the same, so are the
    /// chances, and any larger decrease is the drafter's fault; otherwise the statistical error is
    /// tolerated too. Positions that drafts of the same maximum length no longer reach count as rejected.
    fn acceptances(
        &self,
        counters: [&Counters; 2],
        is_same_text: bool,
        is_same_length: bool,
    ) -> Vec<Measure> {
        let [before, after] = counters;
        let mut measures = Vec::new();
        for (i, before) in before.by_draft_position.iter().enumerate() {
            let never = DraftPosition {
                acceptance: Some(0.0),
                ..*before
            };
            let after = after.by_draft_position.get(i);
            let after = after.or(is_same_length.then_some(&never));
            let (Some(x), Some(after)) = (before.acceptance, after) else {
                continue;
            };
            let Some(y) = after.acceptance else { continue };
            if before.n_drafted.min(after.n_drafted) < MIN_DRAFTS {
                continue;
            }
            let variance = |p: f64, n: u64| p * (1.0 - p) / n as f64;
            let sigma = (variance(x, before.n_drafted) + variance(y, after.n_drafted)).sqrt();
            let chance = match is_same_text {
                true => 0.0,
                false => N_SIGMA * sigma,
            };
            let limit = x - self.tolerances.acceptance - chance;
            let measure = at_least(MeasureKind::Acceptance, x, y, limit);
            measures.push(Measure {
                draft_position: Some(i as u32 + 1),
                ..measure
            });
        }
        measures
    }

    /// Compares median speeds, if machine, threads and sequences are the same. A decrease counts if
    /// it exceeds the spread: every run now is slower than the slowest run before.
    fn speed(&self, now: &VerifyReport, speeds: [Option<Spread>; 2]) -> Option<Measure> {
        let [Some(before), Some(after)] = speeds else {
            return None;
        };
        let machine = |r: &VerifyReport| (r.backend.clone(), r.n_threads, r.n_parallel);
        let is_comparable = machine(now) == machine(&self.report) && self.tolerances.speed > 0.0;
        let limit = before.median * self.tolerances.speed;
        let measure = at_least(MeasureKind::TokensPerS, before.median, after.median, limit);
        is_comparable.then_some(Measure {
            holds: measure.holds || after.max >= before.min,
            ..measure
        })
    }
}

/// Sums over the positions of all texts.
#[derive(Default)]
struct Sums {
    n_prompts: u64,
    n_same_text: u64,
    n_same_top: u64,
    /// KL divergence at each position.
    divergences: Vec<f64>,
}

impl Sums {
    fn add(&mut self, kept: &Likeliest, row: &[f32]) {
        let Some(&(top, _)) = kept.first() else {
            return;
        };
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // Any of several equal logits is the largest.
        self.n_same_top += u64::from(row.get(top as usize) == Some(&largest));
        self.divergences.push(divergence(kept, row));
    }
}

fn at_least(kind: MeasureKind, baseline: f64, found: f64, limit: f64) -> Measure {
    Measure {
        kind,
        speculator: None,
        draft_position: None,
        baseline,
        found,
        limit,
        holds: found >= limit,
    }
}

fn at_most(kind: MeasureKind, baseline: f64, found: f64, limit: f64) -> Measure {
    Measure {
        holds: found <= limit,
        ..at_least(kind, baseline, found, limit)
    }
}
