//! The conformance kit: it is reproduced from the lists of architectures and speculators, and our runner passes it.
//!
//! `UPDATE_GOLDEN=1 cargo test --workspace --test e2e conformance` writes the kit again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use fixtures::regular::{regular, text};
use runner::speculate::{DraftKind, SpecType};
use schemas::arch::{ARCHS, DRAFTS};
use schemas::gguf::Plan;
use schemas::report::{ConformanceTrace, SCHEMA_VERSION, TracedFile};

use crate::util::{Dir, read_json, root, specconv, specrun};

/// The architecture of the model that drafts in separate files and n-gram speculators draft for.
const TARGET: &str = "qwen3";
/// Another architecture with the same tokens, as a draft model.
const DRAFT_MODEL: &str = "qwen3moe";
/// The architecture that assistants draft for, and its assistants: one scores all tokens, the other clusters of them.
const ASSISTED: &str = "gemma4";
const ASSISTANTS: [&str; 2] = ["gemma4-assistant", "gemma4-assistant-clusters"];
/// Maximum draft length.
const N_DRAFT_MAX: usize = 3;
/// Smallest lead of a token over the second best: engines within the tolerance choose the same token.
const MIN_LEAD: f32 = 0.1;
/// Texts that are tried until one is suitable.
const N_TRIED: u32 = 128;

/// A run of the kit, before a prompt is chosen.
struct Case {
    name: String,
    model: String,
    drafts: Vec<String>,
    spec_types: Vec<SpecType>,
    n_prompt: usize,
    n_predict: usize,
}

impl Case {
    fn new(name: &str, model: &str) -> Case {
        Case {
            name: name.to_owned(),
            model: model.to_owned(),
            drafts: Vec::new(),
            spec_types: Vec::new(),
            n_prompt: 12,
            n_predict: 24,
        }
    }

    fn of_type(name: &str, model: &str, spec_type: SpecType) -> Case {
        Case {
            spec_types: vec![spec_type],
            ..Case::new(name, model)
        }
    }

    /// Returns the trace without its result. Every attempt has another prompt.
    fn trace(&self, attempt: u32) -> ConformanceTrace {
        let file = |name: &String| TracedFile {
            path: format!("../models/{name}.gguf"),
            sha256: String::new(),
        };
        let names = self.spec_types.iter();
        ConformanceTrace {
            schema_version: SCHEMA_VERSION,
            model: file(&self.model),
            drafts: self.drafts.iter().map(file).collect(),
            spec_types: names.map(|kind| kind.name().to_owned()).collect(),
            n_draft_max: N_DRAFT_MAX,
            prompt: text(65 + attempt, self.n_prompt),
            n_predict: self.n_predict,
            expected: None,
        }
    }
}

/// Returns the models of the kit: every architecture, and the drafts for [`TARGET`].
fn models() -> Vec<(String, Plan)> {
    let mut models: Vec<(String, Plan)> = ARCHS
        .iter()
        .map(|arch| (arch.name.to_owned(), fixtures::model(arch)))
        .collect();
    let (_, target) = models.iter().find(|(name, _)| name == TARGET).unwrap();
    let [eagle3, eagle3_shared] = fixtures::eagle3(target);
    let [dflash, dspark, dflash2] = fixtures::block_drafts(target);
    let (_, target) = models.iter().find(|(name, _)| name == ASSISTED).unwrap();
    let assistants = fixtures::assistants(target).into_iter();
    let assistants = ASSISTANTS.map(str::to_owned).into_iter().zip(assistants);
    let assistants: Vec<(String, Plan)> = assistants.collect();
    models.extend([
        ("eagle3".to_owned(), eagle3),
        ("eagle3-shared".to_owned(), eagle3_shared),
        ("dflash".to_owned(), dflash),
        ("dspark".to_owned(), dspark),
        ("dflash2".to_owned(), dflash2),
    ]);
    models.extend(assistants);
    let models = models.into_iter();
    models.map(|(name, plan)| (name, regular(plan))).collect()
}

/// Returns the runs of the kit: plain decoding and the MTP head of every architecture, and every speculator.
fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = ARCHS
        .iter()
        .map(|arch| Case::new(arch.name, arch.name))
        .collect();
    for kind in SpecType::ALL {
        let name = kind.name();
        let draft_kind = kind.spec().model.as_ref().map(|model| model.kind);
        let with = |name: &str, draft: &str| Case {
            drafts: vec![draft.to_owned()],
            ..Case::of_type(name, TARGET, kind)
        };
        match draft_kind {
            // n-grams need a text that repeats itself.
            None => cases.push(Case {
                n_prompt: 64,
                n_predict: 48,
                ..Case::of_type(name, TARGET, kind)
            }),
            Some(DraftKind::Model) => cases.push(with(name, DRAFT_MODEL)),
            Some(DraftKind::Mtp) => {
                let archs = ARCHS.iter().filter(|arch| arch.mtp.is_some());
                cases.extend(
                    archs.map(|arch| {
                        Case::of_type(&format!("{}-{name}", arch.name), arch.name, kind)
                    }),
                );
            }
            Some(DraftKind::Eagle3) => {
                cases.push(with(name, "eagle3"));
                cases.push(with(&format!("{name}-shared"), "eagle3-shared"));
            }
            Some(DraftKind::Dflash) => {
                cases.push(with(name, "dflash"));
                cases.push(with(&format!("{name}-dflash2"), "dflash2"));
            }
            Some(DraftKind::Dspark) => cases.push(with(name, "dspark")),
            // Assistants draft with `draft-mtp`: see below.
            Some(DraftKind::Assistant) => {}
        }
    }
    cases.extend(ASSISTANTS.map(|name| Case {
        drafts: vec![name.to_owned()],
        ..Case::of_type(name, ASSISTED, SpecType::DraftMtp)
    }));
    cases
}

/// True if a recorded text has clear winners, and right and wrong drafts if it has a speculator.
fn is_suitable(trace: &ConformanceTrace) -> bool {
    let expected = trace.expected.as_ref().unwrap();
    let is_mixed = 0 < expected.n_accepted && expected.n_accepted < expected.n_drafted;
    expected.min_lead >= MIN_LEAD && (is_mixed || trace.spec_types.is_empty())
}

/// Writes the kit.
fn make(dir: &Dir) {
    let folder = |name: &str| {
        let path = dir.join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (models_folder, traces) = (folder("models"), folder("traces"));
    for (name, plan) in models() {
        let whole = dir.gguf("whole.gguf", &plan);
        let out = models_folder.join(format!("{name}.gguf"));
        specconv("quantize").arg(&whole).arg(&out).arg("F16").ok();
        fs::remove_file(whole).unwrap();
    }
    let mut open = cases();
    for attempt in 0..N_TRIED {
        let path = |case: &Case| traces.join(format!("{}.json", case.name));
        for case in &open {
            let trace = serde_json::to_string(&case.trace(attempt)).unwrap();
            fs::write(path(case), trace).unwrap();
        }
        let record = specrun("conformance").arg("--record");
        record.args(open.iter().map(path)).ok();
        open.retain(|case| !is_suitable(&read_trace(&path(case))));
        if open.is_empty() {
            return;
        }
    }
    let names = open.iter().map(|case| case.name.as_str());
    panic!("no text is suitable: {:?}", names.collect::<Vec<_>>());
}

fn read_trace(path: &Path) -> ConformanceTrace {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the files of a kit by their paths in it.
fn contents(kit: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for folder in ["models", "traces"] {
        let Ok(entries) = fs::read_dir(kit.join(folder)) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            found.insert(path.strip_prefix(kit).unwrap().to_owned(), bytes);
        }
    }
    found
}

/// The stored kit is the one that the code makes.
#[test]
fn the_kit_is_reproduced() {
    let (dir, stored) = (Dir::new(), root().join("conformance"));
    make(&dir);
    let found = contents(dir.path());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        for folder in ["models", "traces"] {
            let folder = stored.join(folder);
            if folder.exists() {
                fs::remove_dir_all(&folder).unwrap();
            }
            fs::create_dir_all(&folder).unwrap();
        }
        for (path, bytes) in &found {
            fs::write(stored.join(path), bytes).unwrap();
        }
    }
    let expected = contents(&stored);
    let names = |kit: &BTreeMap<PathBuf, Vec<u8>>| kit.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected), "UPDATE_GOLDEN=1 writes it");
    for (path, bytes) in &found {
        assert!(
            *bytes == expected[path],
            "{} differs; UPDATE_GOLDEN=1 writes it",
            path.display()
        );
    }
    let n_bytes: usize = found.values().map(Vec::len).sum();
    assert!(n_bytes < 20 << 20, "the kit has {n_bytes} bytes");
}

#[test]
fn our_runner_passes_on_every_instruction_set() {
    let traces = root().join("conformance/traces");
    for isa in kernels::cpu::Cpu::available() {
        let check = specrun("conformance").arg(&traces);
        let report = check.args(["--isa", &isa.to_string()]).json();
        assert_eq!(report["verdict"], "pass", "{isa}: {report}");
        assert_eq!(report["traces"].as_array().unwrap().len(), cases().len());
    }
    let check = specrun("conformance").arg(traces.join("qwen3.json"));
    let text = check.args(["-t", "2", "--no-repack"]).ok();
    assert!(
        text.starts_with("pass  qwen3  24 tokens, drafted 0, accepted 0\n1 of 1"),
        "{text}"
    );
}

/// Every architecture and speculator has a trace, and speculators have right and wrong drafts.
#[test]
fn the_kit_covers_the_lists() {
    let schema = read_json(&root().join("schemas/json/conformance-trace.schema.json"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let traces = root().join("conformance/traces");
    let mut spec_types = BTreeSet::new();
    let mut draft_archs = BTreeSet::new();
    for case in cases() {
        let path = traces.join(format!("{}.json", case.name));
        assert!(validator.is_valid(&read_json(&path)), "{}", path.display());
        let trace = read_trace(&path);
        assert!(is_suitable(&trace), "{}", case.name);
        let expected = trace.expected.unwrap();
        assert_eq!(expected.tokens.len(), trace.n_predict);
        assert_eq!(expected.logits.len(), trace.n_predict);
        assert!(expected.min_lead > 2.0 * expected.tolerance);
        // The passes commit the text after its first token.
        let committed = expected.rounds.iter().flat_map(|round| &round.committed);
        assert!(committed.eq(&expected.tokens[1..]), "{}", case.name);
        if !trace.spec_types.is_empty() {
            let (drafted, accepted) = (expected.n_drafted, expected.n_accepted);
            assert!(
                0 < accepted && accepted < drafted,
                "{}: {accepted} of {drafted}",
                case.name
            );
        }
        spec_types.extend(trace.spec_types);
        for draft in &case.drafts {
            let plan =
                schemas::gguf::open(&root().join(format!("conformance/models/{draft}.gguf")));
            let metadata = plan.unwrap().metadata;
            draft_archs.insert(
                metadata
                    .need_str("general.architecture")
                    .unwrap()
                    .to_owned(),
            );
        }
    }
    let all = SpecType::ALL.map(|kind| kind.name().to_owned());
    assert_eq!(spec_types, BTreeSet::from(all));
    for arch in DRAFTS {
        assert!(
            draft_archs.contains(arch.name),
            "{} has no trace",
            arch.name
        );
    }
}

/// A changed result is a failed check, a changed model or a trace without a result an error.
#[test]
fn differences_are_found() {
    let dir = Dir::new();
    let kit = root().join("conformance");
    let stored = read_trace(&kit.join("traces/qwen35-draft-mtp.json"));
    let model = kit.join("models/qwen35.gguf");
    let model = model.to_str().unwrap();
    let write = |edit: fn(&mut ConformanceTrace)| {
        let mut trace = stored.clone();
        trace.model.path = model.to_owned();
        edit(&mut trace);
        dir.file("trace.json", serde_json::to_string(&trace).unwrap())
    };
    let check = |path: &Path| specrun("conformance").arg(path);

    let path = write(|trace| trace.expected.as_mut().unwrap().tokens[3] += 1);
    let ran = check(&path).run();
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stdout.starts_with("FAIL  trace  token 3 is "),
        "{}",
        ran.stdout
    );

    let path = write(|trace| trace.expected.as_mut().unwrap().rounds[1].n_accepted += 1);
    let ran = check(&path).run();
    assert!(
        ran.stdout.starts_with("FAIL  trace  pass 1: "),
        "{}",
        ran.stdout
    );

    let path = write(|trace| trace.prompt[2] += 1);
    let ran = check(&path).run();
    assert!(ran.stdout.contains("logits hash"), "{}", ran.stdout);

    let path = write(|trace| trace.model.sha256 = "0".repeat(64));
    let error = check(&path).error();
    assert!(error.contains("expects 0000"), "{error}");

    let path = write(|trace| trace.expected = None);
    let error = check(&path).error();
    assert!(
        error.ends_with("the trace has no expected result; --record adds it"),
        "{error}"
    );
    check(&path).arg("--record").ok();
    check(&path).ok();
    assert_eq!(read_trace(&path).expected, stored.expected);

    let path = write(|trace| trace.spec_types = vec!["guess".to_owned()]);
    assert!(check(&path).error().contains("guess"));
    let path = write(|trace| trace.prompt[0] = 1 << 20);
    assert!(check(&path).error().contains("1048576"));
    let path = dir.file("trace.json", "{}");
    assert!(check(&path).error().contains("not a trace"));
    assert!(check(dir.path()).error().contains("not a trace"));
    fs::remove_file(&path).unwrap();
    assert!(check(dir.path()).error().contains("no trace found"));
}
