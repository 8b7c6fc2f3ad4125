//! The acceptance surface: acceptance and speed over context length, temperature and task.
//!
//! Each prompt is the end of a context whose beginning is filled with a text, so that all lengths continue the same
//! tasks. Decoding with and without drafts alternates, and texts must be identical.

use kernels::backend::Backend;
use runner::run_config::RunConfig;
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{Completion, DecodeConfig, Driver, Request, TextConfig};
use runner::tally::Tally;
use runner::tokenizer::EncodeConfig;
use schemas::progress::{Task, Unit};
use schemas::report::{Check, FailedCheck, SurfaceBreakEven, SurfaceCell, SurfaceReport};

use crate::error::Error;
use crate::prompts::Prompt;
use crate::report::ratio;
use crate::spread::spread;

use super::VerifyConfig;
use super::catch_panic::catch_panic;
use super::failed_checks::{failed_run, failed_surface};
use super::prompt_decoder::PromptDecoder;
use super::setting::Setting;

/// Context lengths and temperatures to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct SurfaceConfig {
    /// Context lengths in tokens, ascending.
    pub contexts: Vec<usize>,
    /// Temperatures, ascending.
    pub temperatures: Vec<f32>,
    /// Maximum number of tokens to generate for each prompt.
    pub n_predict: usize,
}

/// Timed runs of each cell.
const N_RUNS: usize = 3;
/// Prompts of each kind.
const N_PER_KIND: usize = 2;

/// Returns the runs of the surface, whose models have to be loaded: two drivers at a time.
pub(super) fn runs(
    config: &VerifyConfig,
    surface: &SurfaceConfig,
    settings: &[Setting],
) -> Vec<RunConfig> {
    let n_ctx = surface.contexts.iter().max().copied().unwrap_or_default();
    let run = |setting| RunConfig {
        n_seq: 2,
        ..run(config, surface, setting, n_ctx)
    };
    settings.iter().map(run).collect()
}

fn run(
    config: &VerifyConfig,
    surface: &SurfaceConfig,
    setting: &Setting,
    n_context: usize,
) -> RunConfig {
    let n_ctx = n_context.saturating_add(surface.n_predict);
    config.options.run(setting, 1, n_ctx)
}

/// Measures all cells. Returns failed checks besides the report.
///
/// # Errors
/// A prompt cannot be decoded, no prompt is text alone, or the run was interrupted.
pub(super) fn surface<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    surface: &SurfaceConfig,
    settings: &[Setting],
) -> Result<(SurfaceReport, Vec<FailedCheck>), Error> {
    let chosen = choose(&config.prompts);
    if chosen.is_empty() {
        return Err(Error::NoTextPrompts);
    }
    let filler = filler(bench, config);
    let mut report = SurfaceReport {
        contexts: surface.contexts.iter().map(|&n| n as u64).collect(),
        temperatures: surface.temperatures.iter().map(|&t| decimal(t)).collect(),
        n_runs: N_RUNS as u32,
        cells: Vec::new(),
        break_even: Vec::new(),
    };
    let n_cells = settings.len() * surface.contexts.len() * surface.temperatures.len();
    let task = Task::start(
        "measure the acceptance surface",
        n_cells as u64,
        Unit::Steps("cells"),
    );
    let mut failed = Vec::new();
    for setting in settings {
        for &n_context in &surface.contexts {
            let texts = Texts {
                requests: requests(bench, &chosen, &filler, n_context, surface.n_predict),
                kinds: chosen
                    .iter()
                    .map(|&i| config.prompts[i].kind.clone())
                    .collect(),
                n_context,
            };
            let measured = catch_panic(|| measure(bench, config, surface, setting, &texts, &task));
            match measured {
                Ok(cells) => {
                    let cells = cells?;
                    failed.extend(cells.iter().filter_map(failed_surface));
                    report.cells.extend(cells);
                }
                Err(panic) => {
                    let name = setting.name();
                    failed.push(failed_run(Check::Speculator, Some(&name), &panic));
                }
            }
        }
    }
    report.break_even = break_even(&report, settings);
    Ok((report, failed))
}

/// Rounds to the decimal that the user gave: 0.8 has no exact `f32`.
fn decimal(temperature: f32) -> f64 {
    (f64::from(temperature) * 1e6).round() / 1e6
}

/// Returns the indices of the first prompts of each kind, without those that contain embeddings.
fn choose(prompts: &[Prompt]) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    let prompts_of_text = prompts.iter().enumerate();
    for (i, prompt) in prompts_of_text.filter(|(_, prompt)| prompt.parts.is_empty()) {
        let same = chosen.iter().filter(|&&j| prompts[j].kind == prompt.kind);
        if same.count() < N_PER_KIND {
            chosen.push(i);
        }
    }
    chosen
}

/// Returns the tokens that fill contexts: the given text, else the prompts one after another.
fn filler<B: Backend>(bench: &PromptDecoder<'_, B>, config: &VerifyConfig) -> Vec<u32> {
    let encoding = EncodeConfig {
        add_special: false,
        parse_special: false,
    };
    match &config.text {
        Some(given) => bench.files.tokenizer.encode(&given.text, encoding),
        None => {
            let texts = config.prompts.iter();
            let texts = texts.map(|prompt| bench.files.tokenizer.encode(&prompt.prompt, encoding));
            texts.flatten().collect()
        }
    }
}

/// Texts of one context length.
struct Texts {
    requests: Vec<Request>,
    /// Kind of each prompt.
    kinds: Vec<Option<String>>,
    n_context: usize,
}

/// Returns the prompts with this number of tokens: the end of each, after as much of the filler as is missing.
fn requests<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    chosen: &[usize],
    filler: &[u32],
    n_context: usize,
    n_predict: usize,
) -> Vec<Request> {
    // Texts begin with these tokens, such as BOS.
    let start = bench.files.tokenizer.encode("", EncodeConfig::PROMPT);
    let start = &start[..start.len().min(n_context)];
    let n_rest = n_context - start.len();
    let requests = chosen.iter().map(|&i| &bench.requests[i]);
    let extended = requests.map(|request| {
        let own = request.tokens.strip_prefix(start);
        let own = own.unwrap_or(&request.tokens);
        let own = &own[own.len().saturating_sub(n_rest)..];
        let mut tokens = start.to_vec();
        tokens.extend(filler.iter().cycle().take(n_rest - own.len()));
        tokens.extend_from_slice(own);
        Request::new(&*request.id, tokens, request.n_predict.min(n_predict))
    });
    extended.collect()
}

/// Results of decoding all texts once.
struct Run {
    completions: Vec<Completion>,
}

/// Measures all temperatures of a setting at one context length.
fn measure<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    surface: &SurfaceConfig,
    setting: &Setting,
    texts: &Texts,
    task: &Task,
) -> Result<Vec<SurfaceCell>, Error> {
    let driver = |setting: &Setting| {
        let run = run(config, surface, setting, texts.n_context);
        bench.loaded.driver(&run)
    };
    let mut drivers = [driver(&Setting::PLAIN)?, driver(setting)?];
    let mut cells = Vec::new();
    for &temperature in &surface.temperatures {
        let sample = match temperature > 0.0 {
            true => SampleConfig::at(temperature, config.options.sample.seed),
            false => SampleConfig::GREEDY,
        };
        let mut runs: Vec<[Run; 2]> = Vec::new();
        for _ in 0..N_RUNS {
            let [plain, drafted] = drivers.each_mut();
            let plain = decode(bench, config, plain, &texts.requests, sample)?;
            let drafted = decode(bench, config, drafted, &texts.requests, sample)?;
            runs.push([plain, drafted]);
        }
        let mut kinds: Vec<Option<&String>> = vec![None];
        for kind in texts.kinds.iter().flatten() {
            if !kinds.contains(&Some(kind)) {
                kinds.push(Some(kind));
            }
        }
        // One kind is all of them.
        if kinds.len() == 2 {
            kinds.pop();
        }
        let cell = |kind: Option<&String>| cell(setting, texts, kind, temperature, &runs);
        cells.extend(kinds.into_iter().map(cell));
        task.advance(1);
    }
    Ok(cells)
}

fn decode<B: Backend>(
    bench: &PromptDecoder<'_, B>,
    config: &VerifyConfig,
    driver: &mut Driver<B>,
    requests: &[Request],
    sample: SampleConfig,
) -> Result<Run, Error> {
    let tokenizer = &bench.files.tokenizer;
    let is_end = |token| tokenizer.is_end_of_generation(token);
    let text = TextConfig::new(Sampler::new(sample)?);
    let mut failure = None;
    let mut decode = DecodeConfig {
        on_failure: Some(&mut |found| failure = Some(found)),
        ..DecodeConfig::new(text, &is_end)
    };
    let (completions, _) = driver.decode_until(requests, &mut decode, &config.stop)?;
    if (config.stop)() {
        return Err(Error::Interrupted);
    }
    match failure {
        Some(failure) => Err(failure.error.into()),
        None => Ok(Run { completions }),
    }
}

/// Sums the texts of a kind, or all texts.
fn cell(
    setting: &Setting,
    texts: &Texts,
    kind: Option<&String>,
    temperature: f32,
    runs: &[[Run; 2]],
) -> SurfaceCell {
    let is_own = |i: usize| kind.is_none() || texts.kinds[i].as_ref() == kind;
    let own: Vec<usize> = (0..texts.requests.len()).filter(|&i| is_own(i)).collect();
    let speed = |run: &Run| {
        let tallies = || own.iter().map(|&i| &run.completions[i].tally);
        let seconds: f64 = tallies().map(|tally| tally.elapsed.as_secs_f64()).sum();
        let n_tokens: u64 = tallies().map(|tally| tally.n_tokens).sum();
        (seconds > 0.0).then(|| n_tokens as f64 / seconds)
    };
    let speeds: Vec<[Option<f64>; 2]> = runs.iter().map(|run| run.each_ref().map(speed)).collect();
    let median = |values: &[Option<f64>]| {
        let values: Option<Vec<f64>> = values.iter().copied().collect();
        values.and_then(spread).map(|spread| spread.median)
    };
    let of = |side: usize| speeds.iter().map(|pair| pair[side]).collect::<Vec<_>>();
    let ratios = speeds
        .iter()
        .map(|&[plain, drafted]| Some(drafted? / plain?));
    // Texts and drafts are the same in all runs, unless a drafter keeps state between texts.
    let [plain, drafted] = &runs[0];
    let mut total = Tally::default();
    for &i in &own {
        total.add_later(&drafted.completions[i].tally);
    }
    let is_same = |&&i: &&usize| plain.completions[i].tokens == drafted.completions[i].tokens;
    SurfaceCell {
        speculator: setting.name(),
        n_context: texts.n_context as u64,
        temperature: decimal(temperature),
        task: kind.cloned(),
        n_texts: own.len() as u64,
        n_identical: own.iter().filter(is_same).count() as u64,
        n_drafted: total.n_drafted(),
        n_accepted: total.n_accepted(),
        acceptance: total.acceptance(),
        first_acceptance: total.acceptance_at(0),
        tokens_per_target_pass: ratio(total.n_accepted() + total.n_passes, total.n_passes),
        tokens_per_s: median(&of(1)),
        plain_tokens_per_s: median(&of(0)),
        speedup: median(&ratios.collect::<Vec<_>>()),
    }
}

/// Finds where the speedup over all tasks crosses 1.
fn break_even(report: &SurfaceReport, settings: &[Setting]) -> Vec<SurfaceBreakEven> {
    let mut found = Vec::new();
    for setting in settings {
        for &temperature in &report.temperatures {
            let name = setting.name();
            let cells = report.cells.iter().filter(|cell| {
                cell.speculator == name && cell.temperature == temperature && cell.task.is_none()
            });
            let points = cells.filter_map(|cell| Some((cell.n_context as f64, cell.speedup?)));
            let points: Vec<(f64, f64)> = points.collect();
            let speedups = spread(points.iter().map(|&(_, speedup)| speedup));
            found.push(SurfaceBreakEven {
                speculator: name,
                temperature,
                n_context: crossing(&points),
                speedups: speedups.map(|speedups| [speedups.min, speedups.max]),
            });
        }
    }
    found
}

/// Returns the length at which a speedup of 1 is first crossed.
fn crossing(points: &[(f64, f64)]) -> Option<f64> {
    points.windows(2).find_map(|pair| {
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]];
        if (y0 < 1.0) == (y1 < 1.0) {
            return None;
        }
        let share = (1.0 - y0) / (y1 - y0);
        Some((x0.ln() + share * (x1.ln() - x0.ln())).exp())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_is_between_its_neighbors() {
        let found = crossing(&[(100.0, 1.5), (400.0, 1.25), (1600.0, 0.75)]).unwrap();
        assert!((found - 800.0).abs() < 1e-6, "{found}");
        assert_eq!(crossing(&[(100.0, 1.5), (400.0, 1.25)]), None);
        assert_eq!(crossing(&[(100.0, 0.5), (400.0, 0.75)]), None);
        let found = crossing(&[(100.0, 0.5), (400.0, 1.5)]).unwrap();
        assert!((found - 200.0).abs() < 1e-6, "{found}");
    }

    #[test]
    fn two_prompts_of_each_kind_are_chosen() {
        let prompt = |kind: &str| Prompt {
            id: kind.to_owned(),
            prompt: String::new(),
            parts: Vec::new(),
            kind: Some(kind.to_owned()),
            n_predict: None,
        };
        let prompts = ["a", "b", "a", "a", "c", "b", "b"].map(prompt);
        assert_eq!(choose(&prompts), [0, 1, 2, 4, 5]);
    }
}
