//! JSON results of every command. Each command has one struct; field names state the unit.
//!
//! All machine-readable output is declared here, separate from the types that compute it, so that those
//! can change freely. The JSON Schemas in schemas/json are generated from these structs. Renaming or
//! removing a field increments [`SCHEMA_VERSION`]; adding one does not.

mod agreement;
mod bench;
mod card;
mod conformance;
mod convert;
mod counters;
mod demo;
mod devices;
mod file;
mod generate;
mod graft;
mod hash;
mod imatrix;
mod inspect;
mod invariance;
mod kld;
mod lock;
mod logits;
mod lookup;
mod passport;
mod perplexity;
mod plan;
mod provenance;
mod publish;
mod quantize;
mod rewrite;
mod scores;
mod server;
mod speed;
mod surface;
mod tasks;
mod timings;
mod tokenize;
mod trace;
mod tune;
mod verify;
mod vocab;
mod work;

pub use agreement::{AgreementReport, AgreementTexts, SpeculatorAgreement};
pub use bench::{BenchReport, PrefillCost, WidthCost};
pub use card::{CardDraft, CardFile, CardReport};
pub use conformance::{
    ConformanceReport, ConformanceRound, ConformanceTrace, ExpectedTrace, TraceResult, TracedFile,
};
pub use convert::{ConvertReport, SourceReport};
pub use counters::{Counters, DraftPosition, SpeculatorCounters};
pub use demo::{DemoReport, Stage};
pub use devices::{CudaDeviceReport, DevicesReport};
pub use file::{CopyReport, FileReport, TypeShare};
pub use generate::{GenerateReport, StopReason};
pub use graft::{
    Finding, GraftReport, HeadTensorReport, PairingCheck, PairingOutcome, PairingReport,
    RepairReport, RequantizeMtpReport, SplitReport, ValuesReport,
};
pub use hash::{HashReport, HashedFile, HashedInput, HashedTensor, ManifestReport};
pub use imatrix::{ImatrixEntryReport, ImatrixLayer, ImatrixReport, ImatrixStatistics};
pub use inspect::{
    HeadPlace, HeadReport, InspectReport, KeyReport, LayersReport, TensorReport, TokenizerReport,
};
pub use invariance::{InvarianceReport, RowDifference};
pub use kld::{Distribution, Estimate, HistogramBin, KldReport, ModelDivergence, Percentile};
pub use lock::{LockFile, LockedRanges, LockedSource, LockedTool, RebuildReport};
pub use logits::{LogitsReport, PositionLogits, TokenLogit};
pub use lookup::BuildLookupReport;
pub use passport::{DraftFlagsReport, Passport, PassportReport, PassportStatus};
pub use perplexity::PerplexityReport;
pub use plan::{PlanPart, PlanReport, Rollback};
pub use provenance::{CpuModel, InputFile, Provenance};
pub use publish::{FileChange, PublishFile, PublishReport};
pub use quantize::{DecidedBy, QuantizeReport, TensorChange, TypeChange};
pub use rewrite::{MergeReport, MetadataReport, PartsReport};
pub use scores::{BaselineReport, KlDivergence, Measure, MeasureKind, PromptScores, TargetScores};
pub use server::{OwnAcceptance, ServerCheck, ServerDifference, ServerPrompt, ServerReport};
pub use speed::{Interval, KindSpeed, SpeedChange, SpeedComparison, Spread};
pub use surface::{SurfaceBreakEven, SurfaceCell, SurfaceReport};
pub use tasks::{BreakEven, LoopReport, TaskFlag, TaskReport, TasksAggregate, TasksReport};
pub use timings::Timings;
pub use tokenize::TokenizeReport;
pub use trace::TraceRound;
pub use tune::{TuneChoice, TuneMeasurement, TuneMeasurements, TuneMix, TuneReport, TuneSettings};
pub use verify::{
    Check, Difference, FailedCheck, FirstDifference, FitCause, FitFinding, FitReport, Floor,
    FloorMeasure, MatrixCell, Severity, SpeculatorVerdict, VerifyReport, VerifyRun, WayShape,
};
pub use vocab::{
    CoverageReport, GraftVocabReport, MapVocabReport, SplitVocabReport, TrimVocabReport,
};
pub use work::{
    FinishReport, FinishedFile, PartFile, PartManifest, PartRange, RunReport, WorkContent,
    WorkFile, WorkInput, WorkKind, WorkOutput, WorkParts, WorkPlan, WorkShard, WorkSlice,
    WorkSource, WorkTensor,
};

use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};

/// Version of all reports, incremented when a field is renamed or removed.
pub const SCHEMA_VERSION: u32 = 1;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All checks passed.
    Pass,
    /// A check ran and failed.
    Fail,
}

impl Verdict {
    /// Converts the result of a check.
    pub fn of(holds: bool) -> Verdict {
        match holds {
            true => Verdict::Pass,
            false => Verdict::Fail,
        }
    }
}

/// The outcome of a check that may not have been exercised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// All checks passed.
    Pass,
    /// A check ran and failed.
    Fail,
    /// No check failed, but the checked behavior never occurred.
    NotExercised,
}

/// Returns the JSON Schema of every report with the name of its command.
pub fn json_schemas() -> Vec<(&'static str, Schema)> {
    // Each schema needs its own generator: a shared one would include the definitions of all earlier
    // schemas.
    let generator = || {
        SchemaSettings::draft2020_12()
            .for_serialize()
            .into_generator()
    };
    macro_rules! schemas {
        ($($name:literal: $report:ty),* $(,)?) => {
            vec![$(($name, generator().into_root_schema_for::<$report>())),*]
        };
    }
    schemas! {
        "bench": BenchReport,
        "bench-tasks": TasksReport,
        "build-lookup": BuildLookupReport,
        "card": CardReport,
        "conformance": ConformanceReport,
        "conformance-trace": ConformanceTrace,
        "convert": ConvertReport,
        "demo": DemoReport,
        "devices": DevicesReport,
        "draft-flags": DraftFlagsReport,
        "finish": FinishReport,
        "generate": GenerateReport,
        "spec-trace": TraceRound,
        "graft-mtp": GraftReport,
        "graft-vocab": GraftVocabReport,
        "hash": HashReport,
        "imatrix": ImatrixReport,
        "inspect": InspectReport,
        "kld": KldReport,
        "lock": LockFile,
        "logits": LogitsReport,
        "manifest": ManifestReport,
        "map-vocab": MapVocabReport,
        "merge": MergeReport,
        "perplexity": PerplexityReport,
        "plan": PlanReport,
        "publish": PublishReport,
        "quantize": QuantizeReport,
        "rebuild": RebuildReport,
        "repair-mtp": RepairReport,
        "requantize-mtp": RequantizeMtpReport,
        "run": RunReport,
        "set-metadata": MetadataReport,
        "split": PartsReport,
        "split-mtp": SplitReport,
        "split-vocab": SplitVocabReport,
        "tokenize": TokenizeReport,
        "trim-vocab": TrimVocabReport,
        "tune": TuneReport,
        "tune-measurements": TuneMeasurements,
        "verify": VerifyReport,
        "verify-url": ServerReport,
        "work-part": PartManifest,
        "work-plan": WorkPlan,
    }
}
