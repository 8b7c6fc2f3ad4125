"""Reports of the commands as dataclasses. Generated from schemas/json by generate_reports.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Optional, Union

AgreementTexts = Literal["own", "given"]
"""Origin of the texts of an agreement."""

Check = Literal["fit", "tokens", "logits", "acceptance", "target", "speculator", "drafted", "baseline", "speedup", "invariance", "agreement"]
"""Checks of `verify`."""

DecidedBy = Literal["kept", "role", "rule", "mtp-type", "pure", "mix"]
"""Source of a tensor's output type."""

FileChange = Literal["new", "changed", "equal"]
"""Comparison of a local file with the repository's."""

Finding = Literal["same", "unknown", "differs", "refuses"]
"""Result of comparing one property of a head and a body."""

FitCause = Literal["layout", "keys", "packed", "not-finite", "zero", "constant", "lost-rows", "scale", "norm-offset", "dead-part", "untrained", "draft-vocab", "tokens"]
"""Kinds of damage that the preflight check distinguishes."""

FloorMeasure = Literal["all-drafts", "first-draft-position"]
"""Draft tokens over which the acceptance of a floor is measured."""

HeadPlace = Literal["inline", "sidecar", "none"]
"""Location of an MTP head."""

MeasureKind = Literal["mean-kl", "top-agreement", "same-text", "perplexity", "acceptance", "tokens-per-s"]
"""Quantities that are compared with an earlier report."""

Outcome = Literal["pass", "fail", "not-exercised"]
"""The outcome of a check that may not have been exercised."""

PairingOutcome = Literal["compatible", "plausible", "refused"]
"""Conclusion from comparing a head with a body."""

PassportStatus = Literal["valid", "stale", "edited", "unchecked"]
"""Comparison of a passport with the file that carries it."""

Rollback = Literal["truncation", "states", "checkpoint"]
"""Method of rolling back rejected draft tokens."""

Severity = Literal["certain", "odd"]
"""Certainty of a finding."""

SpeedChange = Literal["faster", "slower", "unclear"]
"""The verdict on a comparison of speeds."""

StopReason = Literal["end-of-text", "length", "context", "interrupted"]
"""Reason why generation stopped."""

TaskFlag = Literal["high-entropy", "looping"]
"""Reason why the acceptance rate of a task is less meaningful than that of others."""

Verdict = Literal["pass", "fail"]
"""The outcome of a check."""

WorkContent = Union[dict[str, Any], dict[str, Any], dict[str, Any]]
"""Content of a file of a shard."""

WorkKind = Literal["convert", "quantize", "imatrix", "kld", "verify"]
"""A command that can be divided."""

WorkParts = Literal["separate", "shared"]
"""Form of the parts that shards write."""



@dataclass(frozen=True)
class AgreementReport:
    """Drafts at every position of texts that the target wrote, or that were given, compared with its
    choices.
    """

    texts: AgreementTexts
    """Origin of the texts."""

    n_texts: int
    """Number of texts."""

    n_positions: int
    """Number of positions with drafts: the tokens after the prompts."""

    n_other_choices: int
    """Number of positions at which the target, reading the text, chooses another token than the text
    has. In texts of its own there are none.
    """

    writing_ms: Optional[float]
    """Time to write the texts, in milliseconds; null for given texts and for those that other checks
    decoded.
    """

    speculators: list[SpeculatorAgreement]
    """Results by speculator. Only those with a model are compared: drafts of the others depend on
    earlier drafts.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AgreementReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            texts=data["texts"],
            n_texts=data["n_texts"],
            n_positions=data["n_positions"],
            n_other_choices=data["n_other_choices"],
            writing_ms=data["writing_ms"],
            speculators=[SpeculatorAgreement.from_dict(v) for v in data["speculators"]],
        )


@dataclass(frozen=True)
class BaselineReport:
    """Comparison of a report with an earlier one on the same prompts."""

    report: str
    """Path of the earlier report."""

    model: str
    """Target of the earlier report."""

    n_prompts: int
    """Number of prompts in both reports."""

    n_positions: int
    """Number of positions at which both reports predict a next token."""

    n_same_text: int
    """Number of prompts whose continuation without drafts equals the earlier one, token for token.
    """

    kl: Optional[KlDivergence]
    """Divergence of the next token's distribution from the earlier one's; null in reports of older
    versions.
    """

    measures: list[Measure]
    """All compared measures; those whose tolerance allows any value are left out."""

    verdict: Verdict
    """Fail if any measure is worse than its limit."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BaselineReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            report=data["report"],
            model=data["model"],
            n_prompts=data["n_prompts"],
            n_positions=data["n_positions"],
            n_same_text=data["n_same_text"],
            kl=None if (found := data.get("kl", None)) is None else KlDivergence.from_dict(found),
            measures=[Measure.from_dict(v) for v in data["measures"]],
            verdict=data["verdict"],
        )


@dataclass(frozen=True)
class BenchReport:
    """Cost of a model's forward passes on this machine, and the accepted draft tokens needed to break
    even.
    """

    schema_version: int
    """`SCHEMA_VERSION`."""

    provenance: Optional[Provenance]
    """Program, date, machine and inputs; null in reports of older versions."""

    model: str
    """Path of the model's file."""

    backend: str
    """Backend that ran the model, with its instruction set or device."""

    n_threads: int
    """CPU threads."""

    cpu: Optional[CpuModel]
    """The CPU; null in reports of older versions."""

    weight_bytes: int
    """Bytes of weights that a forward pass over one token reads."""

    n_prompt: int
    """Number of prompt tokens, processed in batches of the usual prefill size."""

    prefill_tokens_per_s: float
    """Prompt tokens processed per second."""

    decode_tokens_per_s: float
    """Tokens of one sequence decoded per second, without drafts."""

    decode_gigabytes_per_s: float
    """Weights read per second while decoding, in units of 10^9 bytes."""

    read_gigabytes_per_s: Optional[float]
    """Memory read bandwidth of the same threads, measured in this run, in units of 10^9 bytes per
    second; null for a device other than the CPU.
    """

    read_gigabytes_per_s_of_one_thread: Optional[float]
    """The same of one thread alone; null in reports of older versions."""

    prefetch_distance: Optional[int]
    """Distance at which products prefetch weights, in cache lines of 64 bytes, measured in this run
    unless set; 0 for no prefetching, null if it was not measured or streams are prefetched.
    """

    prefetches_streams: bool
    """True if products prefetch several streams (`--prefetch streams`)."""

    read_bandwidth_share: Optional[float]
    """`decode_gigabytes_per_s` divided by `read_gigabytes_per_s`; more than 1 if weights stay in the
    CPU's caches.
    """

    n_rounds: int
    """Number of rounds; each time is the median of all rounds."""

    widths: list[WidthCost]
    """Cost of forward passes over 1, 2, ... tokens of one sequence, after the prompt."""

    prefill: list[PrefillCost]
    """Cost that each speculator adds to prefill."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BenchReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            provenance=None if (found := data.get("provenance", None)) is None else Provenance.from_dict(found),
            model=data["model"],
            backend=data["backend"],
            n_threads=data["n_threads"],
            cpu=None if (found := data.get("cpu", None)) is None else CpuModel.from_dict(found),
            weight_bytes=data["weight_bytes"],
            n_prompt=data["n_prompt"],
            prefill_tokens_per_s=data["prefill_tokens_per_s"],
            decode_tokens_per_s=data["decode_tokens_per_s"],
            decode_gigabytes_per_s=data["decode_gigabytes_per_s"],
            read_gigabytes_per_s=data.get("read_gigabytes_per_s", None),
            read_gigabytes_per_s_of_one_thread=data.get("read_gigabytes_per_s_of_one_thread", None),
            prefetch_distance=data.get("prefetch_distance", None),
            prefetches_streams=data.get("prefetches_streams", False),
            read_bandwidth_share=data.get("read_bandwidth_share", None),
            n_rounds=data["n_rounds"],
            widths=[WidthCost.from_dict(v) for v in data["widths"]],
            prefill=[PrefillCost.from_dict(v) for v in data.get("prefill", [])],
        )


@dataclass(frozen=True)
class BenchTasksReport:
    """Speed and acceptance rate by task."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    provenance: Optional[Provenance]
    """Program, date, machine and inputs; null in reports of older versions."""

    model: str
    """Path of the target's file."""

    speculators: list[str]
    """Speculators, in the order they are tried."""

    policy: Optional[str]
    """Policy that picks the draft of a chain to verify: `first` or `best`; null in reports of older
    versions.
    """

    n_draft_max: int
    """Maximum draft length in tokens."""

    backend: str
    """Backend that ran the models, with its instruction set or device."""

    n_threads: int
    """CPU threads."""

    n_runs: Optional[int]
    """Number of timed runs of all tasks with drafts; there are as many without. Null in reports of
    older versions.
    """

    tasks: list[TaskReport]
    """Results of each task, in file order."""

    aggregate: TasksAggregate
    """Totals of all tasks."""

    aggregate_unflagged: Optional[TasksAggregate]
    """Totals of the tasks without a flag; null if no task has a flag, as it would equal `aggregate`.
    """

    plain_wall_s_total: float
    """Seconds that all tasks took without drafts, prefill included: the median of all runs."""

    break_even: Optional[BreakEven]
    """Comparison of the measured speedup with the one expected from pass costs; null if nothing was
    decoded.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BenchTasksReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            provenance=None if (found := data.get("provenance", None)) is None else Provenance.from_dict(found),
            model=data["model"],
            speculators=data["speculators"],
            policy=data.get("policy", None),
            n_draft_max=data["n_draft_max"],
            backend=data["backend"],
            n_threads=data["n_threads"],
            n_runs=data.get("n_runs", None),
            tasks=[TaskReport.from_dict(v) for v in data["tasks"]],
            aggregate=TasksAggregate.from_dict(data["aggregate"]),
            aggregate_unflagged=None if (found := data.get("aggregate_unflagged", None)) is None else TasksAggregate.from_dict(found),
            plain_wall_s_total=data["plain_wall_s_total"],
            break_even=None if (found := data.get("break_even", None)) is None else BreakEven.from_dict(found),
        )


@dataclass(frozen=True)
class BreakEven:
    """Accepted draft tokens needed to break even, given the cost of forward passes, and those
    accepted.
    """

    accepted_per_pass: float
    """Accepted draft tokens per target pass."""

    needed_per_pass: float
    """Accepted draft tokens per target pass that pay for drafting and for the wider passes, at the
    measured cost of a pass of each width.
    """

    expected_speedup: float
    """Speedup over decoding without drafts expected from these costs."""

    speedup: float
    """Measured speedup, in the run with the median ratio."""

    holds: bool
    """True if drafting is faster than plain decoding, or if the expected speedup is less than 5
    percent.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BreakEven:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            accepted_per_pass=data["accepted_per_pass"],
            needed_per_pass=data["needed_per_pass"],
            expected_speedup=data["expected_speedup"],
            speedup=data["speedup"],
            holds=data["holds"],
        )


@dataclass(frozen=True)
class BuildLookupReport:
    """Result of writing a lookup file."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    model: str
    """Path of the model whose tokenizer is used."""

    output: str
    """Path of the lookup file."""

    size_bytes: int
    """Bytes of the lookup file."""

    lengths: list[int]
    """Shortest and longest n-gram, in tokens."""

    n_texts: int
    """Number of texts that were read."""

    n_tokens: int
    """Number of tokens in these texts."""

    n_ngrams: int
    """Number of n-grams in the file, those of an extended file included."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BuildLookupReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            model=data["model"],
            output=data["output"],
            size_bytes=data["size_bytes"],
            lengths=data["lengths"],
            n_texts=data["n_texts"],
            n_tokens=data["n_tokens"],
            n_ngrams=data["n_ngrams"],
        )


@dataclass(frozen=True)
class CardDraft:
    """A verified speculator."""

    speculator: str
    """Name of the speculator, or names of a chain, separated by commas."""

    files: list[str]
    """Names of the draft files."""

    n_draft_max: int
    """Maximum draft length in tokens."""

    acceptance: Optional[float]
    """Accepted draft tokens divided by drafted ones."""

    tokens_per_target_pass: Optional[float]
    """Tokens generated per forward pass of the target."""

    speedup: Optional[float]
    """Tokens per second with drafts divided by those without."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CardDraft:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            speculator=data["speculator"],
            files=data["files"],
            n_draft_max=data["n_draft_max"],
            acceptance=data["acceptance"],
            tokens_per_target_pass=data["tokens_per_target_pass"],
            speedup=data["speedup"],
        )


@dataclass(frozen=True)
class CardFile:
    """A model of a card. Values that no report states are null."""

    name: str
    """Name of the file, or of the first shard of a split model."""

    file_type: Optional[str]
    """Quantization mix by `general.file_type`."""

    size_bytes: int
    """Bytes of the file, or of all shards."""

    bits_per_weight: float
    """Bits of tensor data per weight."""

    sha256: list[str]
    """SHA-256 of the file, or of each shard."""

    kld: Optional[Estimate]
    """Mean Kullback-Leibler divergence from the base, in nats."""

    same_top: Optional[Estimate]
    """Share of the positions at which the base has the same likeliest token."""

    perplexity_ratio: Optional[Estimate]
    """Perplexity divided by that of the base."""

    draft: Optional[CardDraft]
    """The fastest speculator that was verified with this file."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CardFile:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            file_type=data["file_type"],
            size_bytes=data["size_bytes"],
            bits_per_weight=data["bits_per_weight"],
            sha256=data["sha256"],
            kld=None if (found := data["kld"]) is None else Estimate.from_dict(found),
            same_top=None if (found := data["same_top"]) is None else Estimate.from_dict(found),
            perplexity_ratio=None if (found := data["perplexity_ratio"]) is None else Estimate.from_dict(found),
            draft=None if (found := data["draft"]) is None else CardDraft.from_dict(found),
        )


@dataclass(frozen=True)
class CardReport:
    """A model card that was written."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    card: str
    """Path of the card."""

    sums: str
    """Path of the file with the hashes."""

    files: list[CardFile]
    """Models in the folder, the smallest first."""

    front_matter: list[str]
    """Keys of the front matter, in order."""

    notes: list[str]
    """Facts that the card lacks, one sentence each."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CardReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            card=data["card"],
            sums=data["sums"],
            files=[CardFile.from_dict(v) for v in data["files"]],
            front_matter=data["front_matter"],
            notes=data["notes"],
        )


@dataclass(frozen=True)
class ConformanceReport:
    """Result of `specrun conformance`."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    backend: str
    """Device and instruction set."""

    verdict: Verdict
    """Fail if a trace differs."""

    traces: list[TraceResult]
    """One result for each trace."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ConformanceReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            backend=data["backend"],
            verdict=data["verdict"],
            traces=[TraceResult.from_dict(v) for v in data["traces"]],
        )


@dataclass(frozen=True)
class ConformanceRound:
    """One verified target pass."""

    position: int
    """Number of tokens in the target's KV cache before the pass."""

    drafter: Optional[str]
    """Name of the speculator whose draft was verified; null without a draft."""

    drafted: list[int]
    """Draft token ids."""

    n_accepted: int
    """Number of accepted draft tokens."""

    committed: list[int]
    """Token ids that the pass added to the text: the accepted ones, and the target's choice after
    them.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ConformanceRound:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            position=data["position"],
            drafter=data["drafter"],
            drafted=data["drafted"],
            n_accepted=data["n_accepted"],
            committed=data["committed"],
        )


@dataclass(frozen=True)
class ConformanceTraceReport:
    """A decoding run that every engine can repeat, and its expected result."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    model: TracedFile
    """The target."""

    drafts: list[TracedFile]
    """Files of the speculators."""

    spec_types: list[str]
    """Speculators, in the order in which they are asked; empty for plain decoding."""

    n_draft_max: int
    """Maximum draft length of model-based speculators, in tokens."""

    prompt: list[int]
    """Token ids of the prompt."""

    n_predict: int
    """Number of tokens to generate greedily; tokens that end a text do not end it."""

    expected: Optional[ExpectedTrace]
    """The result; null until it is recorded."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ConformanceTraceReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            model=TracedFile.from_dict(data["model"]),
            drafts=[TracedFile.from_dict(v) for v in data["drafts"]],
            spec_types=data["spec_types"],
            n_draft_max=data["n_draft_max"],
            prompt=data["prompt"],
            n_predict=data["n_predict"],
            expected=None if (found := data.get("expected", None)) is None else ExpectedTrace.from_dict(found),
        )


@dataclass(frozen=True)
class ConvertReport:
    """Result of converting a Hugging Face checkpoint to a GGUF file."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    input: str
    """Folder of the checkpoint, or its reference on the Hub."""

    architecture: str
    """`general.architecture`."""

    outtype: str
    """Requested element type: `f32`, `f16`, `bf16`, `q8_0` or `auto`."""

    mtp: str
    """Handling of the MTP head: `inline`, `only`, `without`, or `dspark` for a DSpark draft in its
    place.
    """

    output: FileReport
    """Output file."""

    source: Optional[SourceReport]
    """Hub repository of the checkpoint; null for a local folder."""

    written: bool
    """True if the file was written; false under `--dry-run`."""

    notes: list[str]
    """Notes on the result for the user, one sentence each."""

    elapsed_ms: int
    """Time from start to the finished file, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ConvertReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            input=data["input"],
            architecture=data["architecture"],
            outtype=data["outtype"],
            mtp=data["mtp"],
            output=FileReport.from_dict(data["output"]),
            source=None if (found := data["source"]) is None else SourceReport.from_dict(found),
            written=data["written"],
            notes=data["notes"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class CopyReport:
    """Tensor data that a command copied from its inputs without reading it into memory."""

    by_kernel_bytes: int
    """Bytes of tensor data that the operating system's kernel copied from file to file."""

    shared_bytes: int
    """Bytes of these whose blocks the files now share (reflinks)."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CopyReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            by_kernel_bytes=data["by_kernel_bytes"],
            shared_bytes=data["shared_bytes"],
        )


@dataclass(frozen=True)
class Counters:
    """Counters of one or more sequences.

    A target pass takes the newest token and a draft, and commits the accepted draft tokens and one
    bonus token sampled by the target. Draft tokens after an end-of-sequence token are not counted
    as accepted.
    """

    n_tokens: int
    """Number of generated tokens, bonus tokens included."""

    n_drafted: int
    """Number of draft tokens that the target verified."""

    n_accepted: int
    """Number of draft tokens that the target accepted."""

    acceptance: Optional[float]
    """Accepted draft tokens divided by drafted ones; null if nothing was drafted."""

    n_target_passes: int
    """Number of target passes after the prompt."""

    tokens_per_target_pass: Optional[float]
    """Mean number of accepted and bonus tokens per target pass, an upper bound of the speedup. 1 in
    plain decoding; null without a pass.
    """

    accepted_lengths: list[int]
    """Entry `k` is the number of target passes that accepted `k` draft tokens. Passes without a draft
    count as 0.
    """

    by_draft_position: list[DraftPosition]
    """Acceptance by draft position, the first token first."""

    by_speculator: list[SpeculatorCounters]
    """Counters of each speculator, in the order they are tried."""

    decode_ms: float
    """Decoding time after the prompt, in milliseconds."""

    tokens_per_s: Optional[float]
    """Tokens generated per second of decoding time; null if no time was measured."""

    gigabytes_per_s: Optional[float]
    """Target weights read by all passes, divided by the decoding time, in units of 10^9 bytes per
    second; null if no time was measured.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Counters:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_tokens=data["n_tokens"],
            n_drafted=data["n_drafted"],
            n_accepted=data["n_accepted"],
            acceptance=data["acceptance"],
            n_target_passes=data["n_target_passes"],
            tokens_per_target_pass=data["tokens_per_target_pass"],
            accepted_lengths=data["accepted_lengths"],
            by_draft_position=[DraftPosition.from_dict(v) for v in data["by_draft_position"]],
            by_speculator=[SpeculatorCounters.from_dict(v) for v in data["by_speculator"]],
            decode_ms=data["decode_ms"],
            tokens_per_s=data["tokens_per_s"],
            gigabytes_per_s=data["gigabytes_per_s"],
        )


@dataclass(frozen=True)
class CoverageReport:
    """Number of tokens of one vocabulary by their translation to the other."""

    n_exact: int
    """Tokens translated to one token."""

    n_sequence: int
    """Tokens translated to several tokens."""

    n_none: int
    """Tokens without a translation."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CoverageReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_exact=data["n_exact"],
            n_sequence=data["n_sequence"],
            n_none=data["n_none"],
        )


@dataclass(frozen=True)
class CpuModel:
    """The model of a CPU."""

    name: str
    """Name as the system reports it; `unknown` if it reports none."""

    family: Optional[int]
    """Family number of an x86 CPU; null for other CPUs."""

    model: Optional[int]
    """Model number of an x86 CPU; null for other CPUs."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CpuModel:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            family=data["family"],
            model=data["model"],
        )


@dataclass(frozen=True)
class CudaDeviceReport:
    """One CUDA device."""

    index: int
    """Device number; `--device cuda:0` is the first."""

    name: str
    """Name of the device as the driver reports it."""

    compute_capability: str
    """CUDA compute capability, such as `9.0`."""

    memory_bytes: int
    """Total device memory in bytes."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CudaDeviceReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            index=data["index"],
            name=data["name"],
            compute_capability=data["compute_capability"],
            memory_bytes=data["memory_bytes"],
        )


@dataclass(frozen=True)
class DemoReport:
    """Result of the whole pipeline on the bundled models."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    folder: Optional[str]
    """Folder of the files; null if they were removed."""

    stages: list[Stage]
    """Stages in the order they ran."""

    verify: Optional[VerifyReport]
    """Full result of the last stage; null if an earlier stage failed."""

    verdict: Verdict
    """Pass if every stage passed."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DemoReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            folder=data["folder"],
            stages=[Stage.from_dict(v) for v in data["stages"]],
            verify=None if (found := data["verify"]) is None else VerifyReport.from_dict(found),
            verdict=data["verdict"],
        )


@dataclass(frozen=True)
class DevicesReport:
    """Devices of this machine that can run models."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    cpu: Optional[CpuModel]
    """The CPU; null in reports of older versions."""

    n_threads: int
    """Number of CPU threads that this process may use."""

    read_gigabytes_per_s: Optional[float]
    """Memory read bandwidth of all threads, in units of 10^9 bytes per second; null if it was not
    measured.
    """

    read_gigabytes_per_s_of_one_thread: Optional[float]
    """The same of one thread alone."""

    prefetch_distance: Optional[int]
    """Distance at which products prefetch weights, in cache lines of 64 bytes, chosen by measurement;
    0 for no prefetching, null if it was not measured or streams are prefetched.
    """

    prefetches_streams: bool
    """True if products prefetch several streams (`--prefetch streams`)."""

    instruction_sets: list[str]
    """Instruction sets of this CPU that have kernels, best first."""

    cuda_driver: Optional[str]
    """CUDA version that the driver supports; null without a driver."""

    cuda_compiler: Optional[str]
    """Version of NVRTC, which compiles the kernels; null if it is not installed."""

    cuda_devices: list[CudaDeviceReport]
    """CUDA devices in the driver's order."""

    cuda_problems: list[str]
    """Problems that prevent the use of CUDA devices, with their fixes."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DevicesReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            cpu=None if (found := data.get("cpu", None)) is None else CpuModel.from_dict(found),
            n_threads=data["n_threads"],
            read_gigabytes_per_s=data.get("read_gigabytes_per_s", None),
            read_gigabytes_per_s_of_one_thread=data.get("read_gigabytes_per_s_of_one_thread", None),
            prefetch_distance=data.get("prefetch_distance", None),
            prefetches_streams=data.get("prefetches_streams", False),
            instruction_sets=data["instruction_sets"],
            cuda_driver=data["cuda_driver"],
            cuda_compiler=data["cuda_compiler"],
            cuda_devices=[CudaDeviceReport.from_dict(v) for v in data["cuda_devices"]],
            cuda_problems=data["cuda_problems"],
        )


@dataclass(frozen=True)
class Difference:
    """Result of one of the two decodings at a position where they differ."""

    token: Optional[int]
    """Token id; null if this decoding had ended."""

    text: Optional[str]
    """Text of the token."""

    logits_hash: Optional[str]
    """Hash of the logits from which the token was chosen; null if this decoding had ended."""

    logit: Optional[float]
    """Logit of the token; null if this decoding had ended."""

    runner_up: Optional[TokenLogit]
    """Most likely of all other tokens, with its logit. The margin is the difference of the two logits.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Difference:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            token=data["token"],
            text=data.get("text", None),
            logits_hash=data["logits_hash"],
            logit=data["logit"],
            runner_up=None if (found := data["runner_up"]) is None else TokenLogit.from_dict(found),
        )


@dataclass(frozen=True)
class Distribution:
    """Distribution of a number over all scored positions."""

    mean: Estimate
    """The mean."""

    percentiles: list[Percentile]
    """Percentiles in descending order, from the maximum (100) to the minimum (0)."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Distribution:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            mean=Estimate.from_dict(data["mean"]),
            percentiles=[Percentile.from_dict(v) for v in data["percentiles"]],
        )


@dataclass(frozen=True)
class DraftFlagsReport:
    """Result of `specconv draft-flags`."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    path: str
    """Path of the file."""

    passport: PassportReport
    """The passport of the file."""

    flags: list[str]
    """Flags and their values; empty if the target was verified alone, or the passport does not hold.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DraftFlagsReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            path=data["path"],
            passport=PassportReport.from_dict(data["passport"]),
            flags=data["flags"],
        )


@dataclass(frozen=True)
class DraftPosition:
    """Acceptance at one draft position."""

    n_drafted: int
    """Number of drafts that reached this position."""

    n_accepted: int
    """Number of drafts whose token at this position was accepted."""

    acceptance: Optional[float]
    """Accepted draft tokens divided by drafted ones; null if nothing was drafted."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DraftPosition:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_drafted=data["n_drafted"],
            n_accepted=data["n_accepted"],
            acceptance=data["acceptance"],
        )


@dataclass(frozen=True)
class Estimate:
    """An estimate."""

    value: float
    """The value."""

    standard_error: float
    """Its standard error, as if positions were independent."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Estimate:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            value=data["value"],
            standard_error=data["standard_error"],
        )


@dataclass(frozen=True)
class ExpectedTrace:
    """Expected result of a trace."""

    tolerance: float
    """Maximum difference of a logit of `logits` in engines that do not compute the same bits."""

    min_lead: float
    """Smallest lead of a generated token over the second best. Engines within the tolerance generate
    the same tokens if it exceeds twice the tolerance.
    """

    tokens: list[int]
    """The generated token ids."""

    n_drafted: int
    """Number of drafted tokens, the sum over `rounds`."""

    n_accepted: int
    """Number of accepted draft tokens, the sum over `rounds`."""

    rounds: list[ConformanceRound]
    """Target passes after the one over the prompt, in order. The pass over the prompt gives the first
    token.
    """

    logits_hash: str
    """Hash of all logits of `logits`, in order: of the full rows, one after another."""

    logits: list[PositionLogits]
    """Logits from which each token was chosen, in order."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ExpectedTrace:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            tolerance=data["tolerance"],
            min_lead=data["min_lead"],
            tokens=data["tokens"],
            n_drafted=data["n_drafted"],
            n_accepted=data["n_accepted"],
            rounds=[ConformanceRound.from_dict(v) for v in data["rounds"]],
            logits_hash=data["logits_hash"],
            logits=[PositionLogits.from_dict(v) for v in data["logits"]],
        )


@dataclass(frozen=True)
class FailedCheck:
    """A check that failed."""

    check: Check
    """Check that failed."""

    speculator: Optional[str]
    """Name of the speculator; null for a check of the files or of the target alone."""

    prompt_id: Optional[str]
    """The prompt's `id`; null for a check over all prompts."""

    message: str
    """One sentence with what was found and what was expected."""

    baseline: Optional[float]
    """The value in the earlier report; null without `--baseline`."""

    found: Optional[float]
    """The measured value; null if the check measures none."""

    limit: Optional[float]
    """Worst value that passes; null if the check measures none."""

    likely_causes: list[str]
    """Preflight findings that may explain the failure."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FailedCheck:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            check=data["check"],
            speculator=data["speculator"],
            prompt_id=data["prompt_id"],
            message=data["message"],
            baseline=data.get("baseline", None),
            found=data.get("found", None),
            limit=data.get("limit", None),
            likely_causes=data["likely_causes"],
        )


@dataclass(frozen=True)
class FileReport:
    """A file that was written, or would be under `--dry-run`."""

    path: str
    """Path of the file, or of the first shard of a split model."""

    parts: list[str]
    """Paths of all shards of a split model, in order; empty for a single file."""

    size_bytes: int
    """Bytes of the file, or of all shards."""

    sha256: list[str]
    """SHA-256 of the file, or of each shard; empty for `--dry-run` and for an edit in place."""

    n_tensors: int
    """Number of tensors."""

    types: list[TypeShare]
    """Tensors by element type, the largest share first."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FileReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            path=data["path"],
            parts=data["parts"],
            size_bytes=data["size_bytes"],
            sha256=data.get("sha256", []),
            n_tensors=data["n_tensors"],
            types=[TypeShare.from_dict(v) for v in data["types"]],
        )


@dataclass(frozen=True)
class FinishReport:
    """Result of `specconv finish` for model files."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    plan: str
    """Path of the plan."""

    plan_sha256: str
    """SHA-256 of the plan."""

    outputs: list[FinishedFile]
    """The files."""

    renamed_bytes: int
    """Bytes of these that the shards wrote as whole files, which were renamed."""

    kernel_copied_bytes: int
    """Bytes of tensor data that the kernel copied from the parts."""

    shared_bytes: int
    """Bytes of these whose blocks are shared with the parts: they took neither space nor time."""

    kept: bool
    """True if an earlier run had already written the files."""

    elapsed_ms: int
    """Time from start to the finished files, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FinishReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            plan=data["plan"],
            plan_sha256=data["plan_sha256"],
            outputs=[FinishedFile.from_dict(v) for v in data["outputs"]],
            renamed_bytes=data["renamed_bytes"],
            kernel_copied_bytes=data["kernel_copied_bytes"],
            shared_bytes=data["shared_bytes"],
            kept=data["kept"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class FinishedFile:
    """A file that `specconv finish` wrote."""

    path: str
    """Path as in the command."""

    size_bytes: int
    """Size in bytes."""

    modified_ns: str
    """Modification time in nanoseconds since 1970, as text."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FinishedFile:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            path=data["path"],
            size_bytes=data["size_bytes"],
            modified_ns=data["modified_ns"],
        )


@dataclass(frozen=True)
class FirstDifference:
    """First position at which speculative decoding differs from plain decoding."""

    position: int
    """Position in the sequence, the prompt included, from 0."""

    plain: Difference
    """Result of plain decoding at this position."""

    speculative: Difference
    """Result of speculative decoding at this position."""

    rollback: Optional[Rollback]
    """Method of rolling back the target's caches after a rejected draft token."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FirstDifference:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            position=data["position"],
            plain=Difference.from_dict(data["plain"]),
            speculative=Difference.from_dict(data["speculative"]),
            rollback=data.get("rollback", None),
        )


@dataclass(frozen=True)
class FitFinding:
    """Property of a file that working models never or rarely have."""

    file: str
    """Path of the file."""

    subject: str
    """Tensor, key or other part of the file that the finding is about."""

    cause: FitCause
    """Likely kind of damage."""

    severity: Severity
    """Certainty of the finding."""

    message: str
    """One sentence with what was found and what was expected."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FitFinding:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            file=data["file"],
            subject=data["subject"],
            cause=data["cause"],
            severity=data["severity"],
            message=data["message"],
        )


@dataclass(frozen=True)
class FitReport:
    """Result of the preflight check of the files."""

    n_tensors: int
    """Tensors whose values were read."""

    findings: list[FitFinding]
    """Findings, certain ones first."""

    verdict: Verdict
    """Fail if any finding is certain."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FitReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_tensors=data["n_tensors"],
            findings=[FitFinding.from_dict(v) for v in data["findings"]],
            verdict=data["verdict"],
        )


@dataclass(frozen=True)
class Floor:
    """Acceptance rate that a speculator must reach."""

    acceptance: float
    """Smallest acceptance rate that passes, from 0 to 1."""

    over: FloorMeasure
    """Draft tokens over which acceptance is measured."""

    measured: Optional[float]
    """Measured acceptance rate; null if nothing was drafted, which fails."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Floor:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            acceptance=data["acceptance"],
            over=data["over"],
            measured=data["measured"],
        )


@dataclass(frozen=True)
class GenerateReport:
    """A continuation of one prompt."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    model: str
    """Path of the target's file."""

    backend: str
    """Backend that ran the models, with its instruction set or device."""

    prompt_id: Optional[str]
    """The prompt's `id` in the prompt file; null for a single prompt."""

    prompt_tokens: list[int]
    """The prompt's token ids; 4294967295 in the place of an embedding."""

    tokens: list[int]
    """Generated token ids, without the prompt."""

    text: str
    """Text of the generated tokens."""

    stop: StopReason
    """Reason why generation stopped."""

    counters: Counters
    """Counters of decoding."""

    timings: Timings
    """Times and counts of this prompt, under the names of llama.cpp's server."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GenerateReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            model=data["model"],
            backend=data["backend"],
            prompt_id=data["prompt_id"],
            prompt_tokens=data["prompt_tokens"],
            tokens=data["tokens"],
            text=data["text"],
            stop=data["stop"],
            counters=Counters.from_dict(data["counters"]),
            timings=Timings.from_dict(data.get("timings", {'cache_n': 0, 'prompt_n': 0, 'prompt_ms': 0.0, 'prompt_per_token_ms': 0.0, 'prompt_per_second': 0.0, 'predicted_n': 0, 'predicted_ms': 0.0, 'predicted_per_token_ms': 0.0, 'predicted_per_second': 0.0, 'draft_n': 0, 'draft_n_accepted': 0})),
        )


@dataclass(frozen=True)
class GraftMtpReport:
    """Result of grafting an MTP head onto a model, or of refusing it because the two do not belong
    together.
    """

    schema_version: int
    """`SCHEMA_VERSION`."""

    target: str
    """Path of the model that receives the head."""

    donor: str
    """Path of the file or checkpoint that provides the head."""

    pairing: PairingReport
    """Check that the head belongs to the model."""

    forced: bool
    """True if the pair was refused and the file written anyway."""

    n_grafted_tensors: int
    """Number of tensors of the head."""

    grafted_bytes: int
    """Bytes of their data, without padding."""

    copied: CopyReport
    """Tensor data of the file copied without reading it into memory."""

    output: Optional[FileReport]
    """Output file; null if the pair was refused."""

    written: bool
    """True if the file was written; false under `--dry-run`."""

    verdict: Verdict
    """Fail if the pair was refused."""

    elapsed_ms: int
    """Time from start to the finished file, in milliseconds."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GraftMtpReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            target=data["target"],
            donor=data["donor"],
            pairing=PairingReport.from_dict(data["pairing"]),
            forced=data["forced"],
            n_grafted_tensors=data["n_grafted_tensors"],
            grafted_bytes=data["grafted_bytes"],
            copied=CopyReport.from_dict(data["copied"]),
            output=None if (found := data["output"]) is None else FileReport.from_dict(found),
            written=data["written"],
            verdict=data["verdict"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class GraftVocabReport:
    """Result of adding a draft-to-target map to a draft model."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    draft: str
    """Path of the draft model."""

    map: str
    """Path of the file with the map."""

    n_draft: int
    """Number of tokens in the draft's vocabulary."""

    n_target: int
    """Number of tokens in the target's vocabulary."""

    missing_special: list[int]
    """Special tokens of the target that the draft cannot propose."""

    output: FileReport
    """Output file."""

    written: bool
    """True if the file was written; false under `--dry-run`."""

    elapsed_ms: int
    """Time from start to the finished file, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GraftVocabReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            draft=data["draft"],
            map=data["map"],
            n_draft=data["n_draft"],
            n_target=data["n_target"],
            missing_special=data["missing_special"],
            output=FileReport.from_dict(data["output"]),
            written=data["written"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class HashReport:
    """Result of hashing files or of checking them against a manifest."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    algorithm: str
    """Hash function of `data` and `tensors`: `sha256` or `xxh64`."""

    files: list[HashedFile]
    """Hashes of each file; each shard of a split model has its own entry."""

    differences: list[str]
    """Differences from the manifest; empty without a manifest."""

    verdict: Verdict
    """Fail if there are differences."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HashReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            algorithm=data["algorithm"],
            files=[HashedFile.from_dict(v) for v in data["files"]],
            differences=data["differences"],
            verdict=data["verdict"],
        )


@dataclass(frozen=True)
class HashedFile:
    """Hashes of a GGUF file."""

    path: str
    """Path of the file."""

    size_bytes: int
    """Bytes of the file."""

    sha256: str
    """SHA-256 of the whole file, in hexadecimal."""

    data: str
    """Hash of the data of all tensors, without padding and without keys."""

    tensors: list[HashedTensor]
    """Hash of each tensor's data, in file order."""

    provenance: dict[str, str]
    """Keys of the file that state the origin of the model, with their values."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HashedFile:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            path=data["path"],
            size_bytes=data["size_bytes"],
            sha256=data["sha256"],
            data=data["data"],
            tensors=[HashedTensor.from_dict(v) for v in data["tensors"]],
            provenance=data["provenance"],
        )


@dataclass(frozen=True)
class HashedInput:
    """Hash of an input file."""

    path: str
    """Path of the file."""

    size_bytes: int
    """Bytes of the file."""

    sha256: str
    """SHA-256 of the whole file, in hexadecimal."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HashedInput:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            path=data["path"],
            size_bytes=data["size_bytes"],
            sha256=data["sha256"],
        )


@dataclass(frozen=True)
class HashedTensor:
    """Hash of a tensor's data."""

    name: str
    """Name of the tensor."""

    hash: str
    """Hash in hexadecimal."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HashedTensor:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            hash=data["hash"],
        )


@dataclass(frozen=True)
class HeadReport:
    """MTP head as the keys declare it and as the tensors contain it."""

    place: HeadPlace
    """Location of the head by its tensors."""

    n_declared: int
    """`nextn_predict_layers`; 0 if the key is absent."""

    n_tensors: int
    """Number of the head's tensors in the file."""

    size_bytes: int
    """Bytes of their data."""

    missing: list[str]
    """Required tensors of a declared head that the file lacks."""

    extra: list[str]
    """Tensors of an undeclared head, or tensors that are not part of the head's layout."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HeadReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            place=data["place"],
            n_declared=data["n_declared"],
            n_tensors=data["n_tensors"],
            size_bytes=data["size_bytes"],
            missing=data["missing"],
            extra=data["extra"],
        )


@dataclass(frozen=True)
class HeadTensorReport:
    """Value statistics of one tensor of a head."""

    tensor: str
    """Name of the tensor in the donor."""

    type: str
    """Element type of the tensor."""

    n_elements: int
    """Number of elements."""

    size_bytes: int
    """Bytes of the tensor's data."""

    values: Optional[ValuesReport]
    """Value statistics; null for a type that cannot be dequantized."""

    trunk: Optional[ValuesReport]
    """Value statistics of the corresponding tensor in a trunk layer of the body; null if there is
    none.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HeadTensorReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            tensor=data["tensor"],
            type=data["type"],
            n_elements=data["n_elements"],
            size_bytes=data["size_bytes"],
            values=None if (found := data["values"]) is None else ValuesReport.from_dict(found),
            trunk=None if (found := data["trunk"]) is None else ValuesReport.from_dict(found),
        )


@dataclass(frozen=True)
class HistogramBin:
    """Positions whose value is in a range."""

    from_: float
    """Start of the range; the first range includes all smaller values."""

    to: float
    """End of the range, exclusive."""

    n: int
    """Number of positions."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HistogramBin:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            from_=data["from"],
            to=data["to"],
            n=data["n"],
        )


@dataclass(frozen=True)
class ImatrixEntryReport:
    """One entry of an importance matrix."""

    tensor: str
    """Name of the weight."""

    n_columns: int
    """Number of sums per count."""

    counts: list[int]
    """Input rows of each expert, or one number for the whole tensor."""

    unused_experts: list[int]
    """Experts without input rows; quantizers weight all of their columns alike."""

    statistics: Optional[ImatrixStatistics]
    """The statistics; null if no expert had rows."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ImatrixEntryReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            tensor=data["tensor"],
            n_columns=data["n_columns"],
            counts=data["counts"],
            unused_experts=data["unused_experts"],
            statistics=None if (found := data["statistics"]) is None else ImatrixStatistics.from_dict(found),
        )


@dataclass(frozen=True)
class ImatrixLayer:
    """Statistics of a layer, over all its entries."""

    layer: int
    """Number of the layer."""

    is_head: bool
    """True if it is an MTP head."""

    sum_sq: float
    """Sum of the energies."""

    gain: Optional[float]
    """Root of the mean energy, relative to that of the layer before."""

    l2_dist: Optional[float]
    """Euclidean distance of the means from those of the layer before."""

    cossim: Optional[float]
    """Cosine similarity with the layer before."""

    pearson: Optional[float]
    """Pearson correlation with the layer before."""

    covariance: Optional[float]
    """Covariance with the layer before."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ImatrixLayer:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            layer=data["layer"],
            is_head=data["is_head"],
            sum_sq=data["sum_sq"],
            gain=data["gain"],
            l2_dist=data["l2_dist"],
            cossim=data["cossim"],
            pearson=data["pearson"],
            covariance=data["covariance"],
        )


@dataclass(frozen=True)
class ImatrixReport:
    """An importance matrix: sums over the inputs of weights."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    provenance: Optional[Provenance]
    """Program, date, machine and inputs."""

    path: Optional[str]
    """Path of the written file; null if statistics of a file were computed."""

    datasets: list[str]
    """Names of the texts that it was collected on, those of merged files first."""

    n_ctx: int
    """Chunk length in tokens; each chunk starts with an empty KV cache."""

    n_chunks: int
    """Number of chunks, those of merged files included."""

    n_chunks_evaluated: int
    """Number of chunks that this run evaluated."""

    perplexity: Optional[Estimate]
    """Perplexity of the target on the second halves of these chunks; null if it was not computed.
    """

    entries: list[ImatrixEntryReport]
    """The entries in file order."""

    layers: list[ImatrixLayer]
    """Statistics of each layer."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ImatrixReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            provenance=None if (found := data["provenance"]) is None else Provenance.from_dict(found),
            path=data["path"],
            datasets=data["datasets"],
            n_ctx=data["n_ctx"],
            n_chunks=data["n_chunks"],
            n_chunks_evaluated=data["n_chunks_evaluated"],
            perplexity=None if (found := data["perplexity"]) is None else Estimate.from_dict(found),
            entries=[ImatrixEntryReport.from_dict(v) for v in data["entries"]],
            layers=[ImatrixLayer.from_dict(v) for v in data["layers"]],
        )


@dataclass(frozen=True)
class ImatrixStatistics:
    """Statistics of an entry, over the mean and the mean square (energy) of each column. Comparisons
    are with the same weight of the nearest layer before that has it.
    """

    sum_sq: float
    """Sum of the energies."""

    mean: float
    """Mean of the means."""

    n_elements: int
    """Number of columns."""

    std_deviation: float
    """Standard deviation of the means."""

    skewness: float
    """Skewness of the means."""

    kurtosis: float
    """Excess kurtosis of the means."""

    gain: Optional[float]
    """Root of the mean energy, relative to that of the layer before."""

    h_norm: Optional[float]
    """Entropy of the energies in percent of the largest possible one; null for one column."""

    l2_dist: Optional[float]
    """Euclidean distance of the means from those of the layer before."""

    cossim: Optional[float]
    """Cosine similarity with the layer before."""

    pearson: Optional[float]
    """Pearson correlation with the layer before."""

    covariance: Optional[float]
    """Covariance with the layer before."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ImatrixStatistics:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            sum_sq=data["sum_sq"],
            mean=data["mean"],
            n_elements=data["n_elements"],
            std_deviation=data["std_deviation"],
            skewness=data["skewness"],
            kurtosis=data["kurtosis"],
            gain=data["gain"],
            h_norm=data["h_norm"],
            l2_dist=data["l2_dist"],
            cossim=data["cossim"],
            pearson=data["pearson"],
            covariance=data["covariance"],
        )


@dataclass(frozen=True)
class InputFile:
    """A model file that was read."""

    name: str
    """Name without folders."""

    size_bytes: int
    """Bytes of the file."""

    sha256: str
    """SHA-256 of the whole file, in hexadecimal."""

    file_type: Optional[str]
    """Quantization mix by `general.file_type`; null if the key is absent."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> InputFile:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            size_bytes=data["size_bytes"],
            sha256=data["sha256"],
            file_type=data["file_type"],
        )


@dataclass(frozen=True)
class InspectReport:
    """Contents of a GGUF file, and the check that its tensors match its keys."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    path: str
    """Path of the file, or of the first shard of a split model."""

    n_parts: int
    """Number of shards; 1 for a model that is not split."""

    size_bytes: int
    """Bytes of all shards."""

    gguf_version: int
    """Version of the GGUF format."""

    alignment_bytes: int
    """Alignment of tensor data in bytes."""

    architecture: Optional[str]
    """`general.architecture`; null if the key is absent."""

    name: Optional[str]
    """`general.name`; null if the key is absent."""

    file_type: Optional[str]
    """Quantization mix by `general.file_type`; null if the key is absent."""

    n_tensors: int
    """Number of tensors."""

    n_elements: int
    """Number of elements of all tensors."""

    types: list[TypeShare]
    """Tensors by element type, the largest share first."""

    layers: Optional[LayersReport]
    """Layers; null for an unsupported architecture or invalid keys."""

    mtp: Optional[HeadReport]
    """MTP head; null if `layers` is null."""

    tokenizer: Optional[TokenizerReport]
    """Tokenizer; null if the file has none."""

    passport: Optional[PassportReport]
    """Result of a verification that the file carries; null if it carries none."""

    keys: list[KeyReport]
    """All key-values, in file order."""

    tensors: Optional[list[TensorReport]]
    """All tensors, in file order; null unless requested."""

    notes: list[str]
    """Checks that were skipped, with the reason."""

    problems: list[str]
    """Differences between the tensors and what the keys declare, one sentence each."""

    verdict: Verdict
    """Fail if there are problems."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> InspectReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            path=data["path"],
            n_parts=data["n_parts"],
            size_bytes=data["size_bytes"],
            gguf_version=data["gguf_version"],
            alignment_bytes=data["alignment_bytes"],
            architecture=data["architecture"],
            name=data["name"],
            file_type=data["file_type"],
            n_tensors=data["n_tensors"],
            n_elements=data["n_elements"],
            types=[TypeShare.from_dict(v) for v in data["types"]],
            layers=None if (found := data["layers"]) is None else LayersReport.from_dict(found),
            mtp=None if (found := data["mtp"]) is None else HeadReport.from_dict(found),
            tokenizer=None if (found := data["tokenizer"]) is None else TokenizerReport.from_dict(found),
            passport=None if (found := data.get("passport", None)) is None else PassportReport.from_dict(found),
            keys=[KeyReport.from_dict(v) for v in data["keys"]],
            tensors=None if (found := data["tensors"]) is None else [TensorReport.from_dict(v) for v in found],
            notes=data["notes"],
            problems=data["problems"],
            verdict=data["verdict"],
        )


@dataclass(frozen=True)
class Interval:
    """Range that contains a mean with a probability of 95 %."""

    low: float
    """Lower end."""

    high: float
    """Upper end."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Interval:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            low=data["low"],
            high=data["high"],
        )


@dataclass(frozen=True)
class InvarianceReport:
    """Logits of texts in random batches, together with other sequences and on several thread counts,
    compared with decoding each text alone, token by token.
    """

    n_texts: int
    """Number of texts, taken from the prompts."""

    threads: list[int]
    """Thread counts that were tested."""

    n_passes: int
    """Number of random forward passes."""

    n_rows: int
    """Number of logit rows compared, those recomputed after a rollback included."""

    n_different: int
    """Number of rows with a different hash."""

    differences: list[RowDifference]
    """First different rows."""

    verdict: Verdict
    """Fail if any row differs."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> InvarianceReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_texts=data["n_texts"],
            threads=data["threads"],
            n_passes=data["n_passes"],
            n_rows=data["n_rows"],
            n_different=data["n_different"],
            differences=[RowDifference.from_dict(v) for v in data["differences"]],
            verdict=data["verdict"],
        )


@dataclass(frozen=True)
class KeyReport:
    """One key-value pair."""

    key: str
    """The key."""

    type: str
    """Type of the value; arrays as `[string; 2048]`."""

    value: str
    """Value as text; long arrays and strings are truncated."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KeyReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            key=data["key"],
            type=data["type"],
            value=data["value"],
        )


@dataclass(frozen=True)
class KindSpeed:
    """Speed on the prompts of one kind."""

    kind: Optional[str]
    """The `kind` of the prompts; null for prompts without one."""

    tokens_per_s: float
    """Tokens generated per second with drafts."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KindSpeed:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            kind=data["kind"],
            tokens_per_s=data["tokens_per_s"],
        )


@dataclass(frozen=True)
class KlDivergence:
    """Kullback-Leibler divergence over all compared positions, in nats. All tokens that were not
    recorded count as one.
    """

    mean: float
    """The mean."""

    standard_error: Optional[float]
    """Standard error of the mean, as if positions were independent; null for a single position."""

    median: float
    """The median."""

    p90: float
    """The 90th percentile."""

    p95: float
    """The 95th percentile."""

    p99: float
    """The 99th percentile."""

    p99_9: float
    """The 99.9th percentile."""

    max: float
    """The largest value."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KlDivergence:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            mean=data["mean"],
            standard_error=data["standard_error"],
            median=data["median"],
            p90=data["p90"],
            p95=data["p95"],
            p99=data["p99"],
            p99_9=data["p99_9"],
            max=data["max"],
        )


@dataclass(frozen=True)
class KldReport:
    """Divergence of quantized models from their base on a text."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    provenance: Optional[Provenance]
    """Program, date, machine and inputs."""

    base: str
    """Path of the base model's file, or of a file with its logits."""

    text: Optional[str]
    """Path of the text file; null if the tokens are those of a file with logits."""

    n_ctx: int
    """Chunk length in tokens; each chunk starts with an empty KV cache."""

    n_chunks: int
    """Number of complete chunks."""

    n_scored: int
    """Number of scored tokens: the second half of each chunk."""

    base_perplexity: Estimate
    """Perplexity of the base model."""

    models: list[ModelDivergence]
    """The models that were compared with the base, in the order given."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> KldReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            provenance=None if (found := data["provenance"]) is None else Provenance.from_dict(found),
            base=data["base"],
            text=data["text"],
            n_ctx=data["n_ctx"],
            n_chunks=data["n_chunks"],
            n_scored=data["n_scored"],
            base_perplexity=Estimate.from_dict(data["base_perplexity"]),
            models=[ModelDivergence.from_dict(v) for v in data["models"]],
        )


@dataclass(frozen=True)
class LayersReport:
    """Number of layers by kind."""

    n_block: int
    """`block_count`: trunk and MTP layers."""

    n_attention: int
    """Trunk layers with softmax attention."""

    n_recurrent: int
    """Trunk layers with a recurrent state."""

    n_feed_forward: int
    """Trunk layers with a feed-forward network only."""

    n_mtp: int
    """MTP layers."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LayersReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_block=data["n_block"],
            n_attention=data["n_attention"],
            n_recurrent=data["n_recurrent"],
            n_feed_forward=data.get("n_feed_forward", 0),
            n_mtp=data["n_mtp"],
        )


@dataclass(frozen=True)
class LockReport:
    """Inputs and outputs of a command that wrote models; `specconv lock` writes it as TOML."""

    version: int
    """Version of the format: 1."""

    command: list[str]
    """Command of specconv with its arguments, without those that do not affect the files."""

    tool: LockedTool
    """The program that wrote the files."""

    source: list[LockedSource]
    """Hub repositories that were read."""

    input: list[HashedInput]
    """Files that were read whole, with paths as given on the command line: weights, descriptions of
    models, importance matrices, recipes. A file of a Hub repository begins with `hf://`.
    """

    output: list[HashedInput]
    """Files that were written."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LockReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            version=data["version"],
            command=data["command"],
            tool=LockedTool.from_dict(data["tool"]),
            source=[LockedSource.from_dict(v) for v in data.get("source", [])],
            input=[HashedInput.from_dict(v) for v in data.get("input", [])],
            output=[HashedInput.from_dict(v) for v in data.get("output", [])],
        )


@dataclass(frozen=True)
class LockedRanges:
    """Byte ranges of a file on the Hub."""

    file: str
    """Path in the repository."""

    ranges: list[str]
    """First and last byte of each range, as in `0-1023`, in ascending order."""

    sha256: str
    """SHA-256 of the bytes of all ranges, in hexadecimal."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LockedRanges:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            file=data["file"],
            ranges=data["ranges"],
            sha256=data["sha256"],
        )


@dataclass(frozen=True)
class LockedSource:
    """A Hub repository in a lock file."""

    repository: str
    """`org/name`."""

    revision: str
    """Requested revision."""

    commit: str
    """Commit hash of the revision."""

    weights: list[LockedRanges]
    """Byte ranges of weights that were read."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LockedSource:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            repository=data["repository"],
            revision=data["revision"],
            commit=data["commit"],
            weights=[LockedRanges.from_dict(v) for v in data.get("weights", [])],
        )


@dataclass(frozen=True)
class LockedTool:
    """The program that wrote the files of a lock file."""

    version: str
    """Version of the program."""

    commit: str
    """Commit that the program was built from; `unknown` for a build outside a repository."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LockedTool:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            version=data["version"],
            commit=data["commit"],
        )


@dataclass(frozen=True)
class LogitsReport:
    """Logits after each token."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    model: str
    """Path of the model's file."""

    tokens: list[int]
    """Input token ids."""

    positions: list[PositionLogits]
    """Logits after each token, in order."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LogitsReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            model=data["model"],
            tokens=data["tokens"],
            positions=[PositionLogits.from_dict(v) for v in data["positions"]],
        )


@dataclass(frozen=True)
class LoopReport:
    """A passage of the text that repeats one n-gram at least three times."""

    n_gram: int
    """Length of the n-gram in tokens."""

    n_tokens: int
    """Length of the passage in tokens."""

    share: float
    """Share of the passage in the text, from 0 to 1."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LoopReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_gram=data["n_gram"],
            n_tokens=data["n_tokens"],
            share=data["share"],
        )


@dataclass(frozen=True)
class ManifestReport:
    """Origin and hashes of the files that a command wrote."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    made_by: str
    """Name and version of the program."""

    options: str
    """Options that affect the output bytes."""

    sources: list[SourceReport]
    """Hub repositories that were read, with their commits."""

    inputs: list[HashedInput]
    """Files that were read; for Hub repositories, all but the weights."""

    algorithm: str
    """Hash function of `data` and `tensors` in `files`."""

    files: list[HashedFile]
    """Files that were written; each shard of a split model has its own entry."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ManifestReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            made_by=data["made_by"],
            options=data["options"],
            sources=[SourceReport.from_dict(v) for v in data["sources"]],
            inputs=[HashedInput.from_dict(v) for v in data["inputs"]],
            algorithm=data["algorithm"],
            files=[HashedFile.from_dict(v) for v in data["files"]],
        )


@dataclass(frozen=True)
class MapVocabReport:
    """Result of mapping the vocabularies of a target and of a draft model with another tokenizer.
    """

    schema_version: int
    """`SCHEMA_VERSION`."""

    target: str
    """Path of the target."""

    draft: str
    """Path of the draft model."""

    target_to_draft: CoverageReport
    """Coverage of the target's tokens by the draft model's."""

    draft_to_target: CoverageReport
    """Coverage of the draft model's tokens by the target's."""

    output: FileReport
    """The file with the map."""

    written: bool
    """True if the file was written; false under `--dry-run`."""

    elapsed_ms: int
    """Time from start to the finished file, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MapVocabReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            target=data["target"],
            draft=data["draft"],
            target_to_draft=CoverageReport.from_dict(data["target_to_draft"]),
            draft_to_target=CoverageReport.from_dict(data["draft_to_target"]),
            output=FileReport.from_dict(data["output"]),
            written=data["written"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class MatrixCell:
    """One speculator with one set of decoding settings, compared with plain decoding at these
    settings.
    """

    speculator: str
    """Name of the speculator; for a chain, all names in order, separated by commas."""

    shape: WayShape
    """Decoding settings."""

    n_prompts: int
    """Number of prompts decoded."""

    n_identical: int
    """Number of prompts whose tokens and logits are identical to those of plain decoding."""

    n_tokens: int
    """Number of generated tokens."""

    acceptance: Optional[float]
    """Accepted draft tokens divided by drafted ones; null if nothing was drafted."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MatrixCell:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            speculator=data["speculator"],
            shape=WayShape.from_dict(data["shape"]),
            n_prompts=data["n_prompts"],
            n_identical=data["n_identical"],
            n_tokens=data["n_tokens"],
            acceptance=data["acceptance"],
        )


@dataclass(frozen=True)
class Measure:
    """One measure compared with its earlier value."""

    kind: MeasureKind
    """Quantity that was measured."""

    speculator: Optional[str]
    """Name of the speculator; null for the target alone."""

    draft_position: Optional[int]
    """Draft position, from 1; null for a measure that does not belong to one position."""

    baseline: float
    """Value in the earlier report."""

    found: float
    """Value in this report."""

    limit: float
    """Worst value that passes."""

    holds: bool
    """True if the value is within the limit."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measure:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            kind=data["kind"],
            speculator=data["speculator"],
            draft_position=data["draft_position"],
            baseline=data["baseline"],
            found=data["found"],
            limit=data["limit"],
            holds=data["holds"],
        )


@dataclass(frozen=True)
class MergeReport:
    """Result of merging the shards of a model."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    inputs: list[str]
    """Paths of the shards, in order."""

    output: FileReport
    """The merged model."""

    written: bool
    """True if the file was written; false under `--dry-run`."""

    deleted: bool
    """True if the shards were deleted after merging."""

    elapsed_ms: int
    """Time from start to the finished file, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MergeReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            inputs=data["inputs"],
            output=FileReport.from_dict(data["output"]),
            written=data["written"],
            deleted=data["deleted"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class ModelDivergence:
    """Divergence of one model from the base. Probabilities are those of the scored tokens."""

    model: str
    """Path of the model's file."""

    size_bytes: int
    """Bytes of the file."""

    bits_per_weight: float
    """Bits of tensor data per weight."""

    perplexity: Estimate
    """Perplexity of the model."""

    ln_perplexity_ratio: Estimate
    """Logarithm of the perplexity divided by that of the base."""

    perplexity_ratio: Estimate
    """Perplexity divided by that of the base."""

    perplexity_difference: Estimate
    """Perplexity minus that of the base."""

    correlation: Optional[float]
    """Correlation of the logarithms of both perplexities; null if one of them does not vary."""

    kld: Distribution
    """Kullback-Leibler divergence of the model's next-token distribution from the base's, in nats.
    """

    kld_histogram: list[HistogramBin]
    """Positions by divergence, in ascending ranges without gaps."""

    delta_p_percent: Distribution
    """Probability of the text's next token minus the base's, in percent."""

    delta_p_rms_percent: Estimate
    """Root of the mean square of `delta_p_percent`."""

    same_top: Estimate
    """Share of the positions at which both models have the same likeliest token."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelDivergence:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            model=data["model"],
            size_bytes=data["size_bytes"],
            bits_per_weight=data["bits_per_weight"],
            perplexity=Estimate.from_dict(data["perplexity"]),
            ln_perplexity_ratio=Estimate.from_dict(data["ln_perplexity_ratio"]),
            perplexity_ratio=Estimate.from_dict(data["perplexity_ratio"]),
            perplexity_difference=Estimate.from_dict(data["perplexity_difference"]),
            correlation=data["correlation"],
            kld=Distribution.from_dict(data["kld"]),
            kld_histogram=[HistogramBin.from_dict(v) for v in data.get("kld_histogram", [])],
            delta_p_percent=Distribution.from_dict(data["delta_p_percent"]),
            delta_p_rms_percent=Estimate.from_dict(data["delta_p_rms_percent"]),
            same_top=Estimate.from_dict(data["same_top"]),
        )


@dataclass(frozen=True)
class OwnAcceptance:
    """Acceptance of specrun on the prompts that a server was verified with."""

    model: str
    """Path of the model's file."""

    speculators: list[str]
    """Speculators, in the order they are tried."""

    draft_n: int
    """Number of draft tokens."""

    draft_n_accepted: int
    """Number of accepted draft tokens."""

    accept_rate: Optional[float]
    """Accepted draft tokens divided by drafted ones; null if nothing was drafted."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> OwnAcceptance:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            model=data["model"],
            speculators=data["speculators"],
            draft_n=data["draft_n"],
            draft_n_accepted=data["draft_n_accepted"],
            accept_rate=data["accept_rate"],
        )


@dataclass(frozen=True)
class PairingCheck:
    """One comparison of the head with the body."""

    subject: str
    """Key, tensor or other property that was compared."""

    finding: Finding
    """Result of the comparison."""

    target: str
    """Value of the body."""

    donor: str
    """Value of the head."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PairingCheck:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            subject=data["subject"],
            finding=data["finding"],
            target=data["target"],
            donor=data["donor"],
        )


@dataclass(frozen=True)
class PairingReport:
    """Check that a head and a body belong together."""

    outcome: PairingOutcome
    """Conclusion from all checks."""

    donor_block: int
    """Block index of the (first) head in the donor."""

    target_block: int
    """Block index of the head in the target."""

    checks: list[PairingCheck]
    """Comparisons of the head with the body."""

    tensors: list[HeadTensorReport]
    """Value statistics of the head's tensors."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PairingReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            outcome=data["outcome"],
            donor_block=data["donor_block"],
            target_block=data["target_block"],
            checks=[PairingCheck.from_dict(v) for v in data["checks"]],
            tensors=[HeadTensorReport.from_dict(v) for v in data["tensors"]],
        )


@dataclass(frozen=True)
class PartFile:
    """A file of a part."""

    name: str
    """Name in the folder of parts."""

    size_bytes: int
    """Size in bytes."""

    ranges: list[PartRange]
    """Ranges that the shard wrote, in file order. The rest of a separate file is zero."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PartFile:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            size_bytes=data["size_bytes"],
            ranges=[PartRange.from_dict(v) for v in data["ranges"]],
        )


@dataclass(frozen=True)
class PartRange:
    """Bytes that a shard wrote: the header, or rows of a tensor."""

    offset: int
    """Offset in the file, in bytes."""

    size_bytes: int
    """Number of bytes."""

    xxh3: str
    """XXH3 in hexadecimal."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PartRange:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            offset=data["offset"],
            size_bytes=data["size_bytes"],
            xxh3=data["xxh3"],
        )


@dataclass(frozen=True)
class Passport:
    """Proved properties of a model, and the hash of the tensors that they were proved of."""

    tool_version: str
    """Version and commit of the program."""

    date: str
    """Date and time in UTC, as in RFC 3339."""

    tensors_sha256: str
    """SHA-256 over the names, types, shapes and data of all tensors."""

    settings_sha256: str
    """SHA-256 over the keys of the architecture and of the tokenizer, without chat templates."""

    speculator: str
    """Fastest speculator that passed, or names of a chain, separated by commas; `none` if the target
    was verified alone.
    """

    drafts: list[str]
    """Names of the draft files."""

    drafts_sha256: list[str]
    """Hash of the tensors of each draft file."""

    n_draft: int
    """Draft length with the most tokens per second, by acceptance and the cost of passes; 0 without a
    speculator.
    """

    exact: bool
    """True if tokens and logits were equal to those of plain decoding, bit for bit."""

    n_prompts: int
    """Number of prompts decoded."""

    prompts_sha256: str
    """SHA-256 of the prompts, as in the report."""

    acceptance: list[float]
    """Acceptance by draft position, the first token first."""

    pass_cost: list[float]
    """Time of a pass over 1, 2, .. tokens, divided by that over one token."""

    speedup: Optional[float]
    """Tokens per second with drafts divided by those without; null if no speed was measured."""

    backend: str
    """Backend, with its instruction set or device."""

    cpu: str
    """Name of the CPU."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Passport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            tool_version=data["tool_version"],
            date=data["date"],
            tensors_sha256=data["tensors_sha256"],
            settings_sha256=data["settings_sha256"],
            speculator=data["speculator"],
            drafts=data["drafts"],
            drafts_sha256=data["drafts_sha256"],
            n_draft=data["n_draft"],
            exact=data["exact"],
            n_prompts=data["n_prompts"],
            prompts_sha256=data["prompts_sha256"],
            acceptance=data["acceptance"],
            pass_cost=data["pass_cost"],
            speedup=data["speedup"],
            backend=data["backend"],
            cpu=data["cpu"],
        )


@dataclass(frozen=True)
class PassportReport:
    """A passport that a file carries, and the comparison with its tensors."""

    status: PassportStatus
    """Comparison with the file."""

    passport: Optional[Passport]
    """Contents; null if a key is missing or of another type."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PassportReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            status=data["status"],
            passport=None if (found := data["passport"]) is None else Passport.from_dict(found),
        )


@dataclass(frozen=True)
class Percentile:
    """The value below which a share of all values lies; values between two positions are interpolated.
    """

    percent: float
    """The share in percent."""

    value: float
    """The value."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Percentile:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            percent=data["percent"],
            value=data["value"],
        )


@dataclass(frozen=True)
class PerplexityReport:
    """Perplexity of a model on a text."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    model: str
    """Path of the model's file."""

    text: str
    """Path of the text file."""

    n_ctx: int
    """Chunk length in tokens; each chunk starts with an empty KV cache."""

    n_chunks: int
    """Number of complete chunks."""

    n_scored: int
    """Number of scored tokens: the second half of each chunk."""

    perplexity: float
    """`exp` of the mean negative log-likelihood of the scored tokens."""

    standard_error: float
    """Standard error of the perplexity, as if tokens were independent."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PerplexityReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            model=data["model"],
            text=data["text"],
            n_ctx=data["n_ctx"],
            n_chunks=data["n_chunks"],
            n_scored=data["n_scored"],
            perplexity=data["perplexity"],
            standard_error=data["standard_error"],
        )


@dataclass(frozen=True)
class PlanPart:
    """Memory of the target or of one speculator."""

    name: str
    """`target`, or the name of the speculator."""

    file: Optional[str]
    """Path of the model file; null for a speculator without a model."""

    weight_bytes: int
    """Weights used by this part alone, in bytes as stored in the file. Each weight is held once,
    mapped from the file or repacked.
    """

    kv_bytes: int
    """KV cache, in bytes."""

    kv_types: Optional[list[str]]
    """Element types of the K and V caches; null for a part without caches."""

    state_bytes: int
    """Current states of recurrent layers, in bytes."""

    kept_state_bytes: int
    """Earlier states kept for rollback, in bytes."""

    checkpoint_bytes: int
    """States of checkpoints, in bytes."""

    hidden_bytes: int
    """Hidden states of the target that the draft model reads, in bytes."""

    activation_bytes: int
    """Activations of the largest forward pass, in bytes."""

    logit_bytes: int
    """Logits of the largest forward pass, in bytes."""

    table_bytes: int
    """N-gram tables, in bytes; initial size for tables that grow with the text."""

    n_draft_max: int
    """Maximum draft length of the speculator in tokens; for the target, the longest of all
    speculators.
    """

    n_kept_states: int
    """Number of earlier states kept for each sequence."""

    rollback: Optional[Rollback]
    """Method of rolling back rejected draft tokens; null for a part without caches."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PlanPart:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            file=data["file"],
            weight_bytes=data["weight_bytes"],
            kv_bytes=data["kv_bytes"],
            kv_types=data["kv_types"],
            state_bytes=data["state_bytes"],
            kept_state_bytes=data["kept_state_bytes"],
            checkpoint_bytes=data["checkpoint_bytes"],
            hidden_bytes=data["hidden_bytes"],
            activation_bytes=data["activation_bytes"],
            logit_bytes=data["logit_bytes"],
            table_bytes=data["table_bytes"],
            n_draft_max=data["n_draft_max"],
            n_kept_states=data["n_kept_states"],
            rollback=data["rollback"],
        )


@dataclass(frozen=True)
class PlanReport:
    """Memory that a run needs, computed before anything is allocated."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    model: str
    """Path of the target's file."""

    n_seq: int
    """Sequences decoded at once."""

    n_ctx: int
    """Context length of each sequence, in tokens."""

    parts: list[PlanPart]
    """Memory of the target, then of each speculator."""

    total_bytes: int
    """Memory of all parts, in bytes."""

    free_bytes: Optional[int]
    """Free memory at present, in bytes; null if the system does not report it."""

    fits: Optional[bool]
    """True if the run fits in free memory; null if that is unknown."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PlanReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            model=data["model"],
            n_seq=data["n_seq"],
            n_ctx=data["n_ctx"],
            parts=[PlanPart.from_dict(v) for v in data["parts"]],
            total_bytes=data["total_bytes"],
            free_bytes=data["free_bytes"],
            fits=data["fits"],
        )


@dataclass(frozen=True)
class PositionLogits:
    """Logits after one token."""

    logits_hash: str
    """Hash of the full row, in hexadecimal: equal if and only if (but for collisions) the rows are
    bit-identical.
    """

    top: list[TokenLogit]
    """Largest logits, in descending order; ties are ordered by token id."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PositionLogits:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            logits_hash=data["logits_hash"],
            top=[TokenLogit.from_dict(v) for v in data["top"]],
        )


@dataclass(frozen=True)
class PrefillCost:
    """Cost that a speculator adds to prefill, up to its first draft."""

    speculator: str
    """Name of the speculator."""

    tokens_per_s: float
    """Prompt tokens processed per second with the speculator, the median of all rounds."""

    plain_tokens_per_s: float
    """Prompt tokens processed per second without it, measured alternately."""

    added: float
    """Prefill time of the speculator divided by that of the target."""

    work: float
    """Multiply-adds of the speculator in prefill divided by those of the target. The output projection
    is left out, because prefill does not need it.
    """

    limit: float
    """Largest `added` that passes: `work` plus 0.05."""

    holds: bool
    """True if `added` is at most `limit`."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PrefillCost:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            speculator=data["speculator"],
            tokens_per_s=data["tokens_per_s"],
            plain_tokens_per_s=data["plain_tokens_per_s"],
            added=data["added"],
            work=data["work"],
            limit=data["limit"],
            holds=data["holds"],
        )


@dataclass(frozen=True)
class PromptScores:
    """One prompt and its continuation."""

    prompt_id: str
    """The prompt's `id`."""

    n_prompt_tokens: int
    """Number of entries of `tokens` that belong to the prompt."""

    tokens: list[int]
    """Token ids of the prompt, followed by those generated without drafts."""

    likeliest: str
    """The `n_top` most likely next tokens after each token, in order, the most likely first. Each
    takes eight bytes: the id as u32 and the natural logarithm of its probability as f32, both
    little-endian. The whole array is encoded in base64.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PromptScores:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            prompt_id=data["prompt_id"],
            n_prompt_tokens=data["n_prompt_tokens"],
            tokens=data["tokens"],
            likeliest=data["likeliest"],
        )


@dataclass(frozen=True)
class Provenance:
    """Program that made a report, date, machine, and hashes of the inputs."""

    tool_version: str
    """Version of the program."""

    tool_commit: str
    """Commit that the program was built from; `unknown` for a build outside a repository."""

    date: str
    """Date and time in UTC, as in RFC 3339."""

    cpu: CpuModel
    """The CPU."""

    files: list[InputFile]
    """Model files, the target's first; each shard of a split model has its own entry."""

    prompts_sha256: Optional[str]
    """SHA-256 of the prompts: of the id, the text and the number of tokens to generate for each
    prompt, in file order, each preceded by its length as little-endian u64. Null for a command
    without prompts.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Provenance:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            tool_version=data["tool_version"],
            tool_commit=data["tool_commit"],
            date=data["date"],
            cpu=CpuModel.from_dict(data["cpu"]),
            files=[InputFile.from_dict(v) for v in data["files"]],
            prompts_sha256=data["prompts_sha256"],
        )


@dataclass(frozen=True)
class PublishFile:
    """A file of the folder."""

    name: str
    """Path in the folder and in the repository."""

    size_bytes: int
    """Bytes of the file."""

    change: FileChange
    """Comparison with the repository."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PublishFile:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            size_bytes=data["size_bytes"],
            change=data["change"],
        )


@dataclass(frozen=True)
class PublishReport:
    """Files of a folder compared with a repository of the Hub, and the commit that added them."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    repository: str
    """`org/name`."""

    revision: str
    """Branch of the commit."""

    is_new: bool
    """True if the repository does not exist yet."""

    files: list[PublishFile]
    """Files of the folder, in order of their names."""

    only_on_hub: list[str]
    """Names of files that only the repository has; they are kept."""

    upload_bytes: int
    """Bytes of the new and changed files."""

    commit: Optional[str]
    """Commit hash; null under `--dry-run`, and if no file differs."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PublishReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            repository=data["repository"],
            revision=data["revision"],
            is_new=data["is_new"],
            files=[PublishFile.from_dict(v) for v in data["files"]],
            only_on_hub=data["only_on_hub"],
            upload_bytes=data["upload_bytes"],
            commit=data["commit"],
        )


@dataclass(frozen=True)
class QuantizeReport:
    """Result of quantizing a model."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    input: str
    """Path of the GGUF file or of the checkpoint's folder."""

    input_data_bytes: int
    """Bytes of tensor data in the input."""

    ftype: str
    """Quantization mix, such as `Q4_K_M`."""

    output: FileReport
    """Output file."""

    bits_per_weight: float
    """Bits per weight over all tensors of the output."""

    written: bool
    """True if the file was written; false under `--dry-run`."""

    types: list[TypeChange]
    """Changes by output type, the largest share of the output first."""

    tensors: list[TensorChange]
    """Change of each tensor, in the order of the output."""

    peak_buffer_bytes: int
    """Peak size of the writer's buffers in bytes; 0 under `--dry-run`."""

    notes: list[str]
    """Notes on the result for the user, one sentence each."""

    elapsed_ms: int
    """Time from start to the finished file, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> QuantizeReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            input=data["input"],
            input_data_bytes=data["input_data_bytes"],
            ftype=data["ftype"],
            output=FileReport.from_dict(data["output"]),
            bits_per_weight=data["bits_per_weight"],
            written=data["written"],
            types=[TypeChange.from_dict(v) for v in data["types"]],
            tensors=[TensorChange.from_dict(v) for v in data["tensors"]],
            peak_buffer_bytes=data["peak_buffer_bytes"],
            notes=data["notes"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class RebuildReport:
    """Result of `specconv rebuild`."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    lock: str
    """Path of the lock file."""

    locked: bool
    """True with `--locked`: nothing is written if something differs. Otherwise the lock file is
    updated.
    """

    command: list[str]
    """The command that was run."""

    differences: list[str]
    """Inputs, commits and outputs that differ from the lock file, one sentence each."""

    outputs: list[HashedInput]
    """Files that were written; empty if none were."""

    verdict: Verdict
    """Fail if something differs with `--locked`."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RebuildReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            lock=data["lock"],
            locked=data["locked"],
            command=data["command"],
            differences=data["differences"],
            outputs=[HashedInput.from_dict(v) for v in data["outputs"]],
            verdict=data["verdict"],
        )


@dataclass(frozen=True)
class RepairMtpReport:
    """Result of repairing the layout of a file's MTP head."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    input: str
    """Path of the input file."""

    faults: list[str]
    """Faults found in the layout; if empty, no file is written."""

    output: Optional[FileReport]
    """The repaired file; null if no repair was needed."""

    written: bool
    """True if the file was written; false under `--dry-run`."""

    elapsed_ms: int
    """Time from start to the finished file, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RepairMtpReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            input=data["input"],
            faults=data["faults"],
            output=None if (found := data["output"]) is None else FileReport.from_dict(found),
            written=data["written"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class RequantizeMtpReport:
    """Result of requantizing the MTP head of a model."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    input: str
    """Path of the input file."""

    head_bytes_before: int
    """Bytes of the head in the input."""

    head_bytes_after: int
    """Bytes of the head in the output."""

    output: FileReport
    """Output file."""

    written: bool
    """True if the file was written; false under `--dry-run`."""

    elapsed_ms: int
    """Time from start to the finished file, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RequantizeMtpReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            input=data["input"],
            head_bytes_before=data["head_bytes_before"],
            head_bytes_after=data["head_bytes_after"],
            output=FileReport.from_dict(data["output"]),
            written=data["written"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class RowDifference:
    """A row of logits that depends on the batch or on the thread count."""

    prompt_id: str
    """The prompt's `id`."""

    position: int
    """Position in the sequence, from 0."""

    n_tokens: int
    """Number of tokens in the pass."""

    n_sequences: int
    """Number of sequences in the pass."""

    n_threads: int
    """CPU threads."""

    alone: str
    """Hash of the row when decoded alone, in hexadecimal."""

    found: str
    """Hash of the row in this pass, in hexadecimal."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RowDifference:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            prompt_id=data["prompt_id"],
            position=data["position"],
            n_tokens=data["n_tokens"],
            n_sequences=data["n_sequences"],
            n_threads=data["n_threads"],
            alone=data["alone"],
            found=data["found"],
        )


@dataclass(frozen=True)
class RunReport:
    """Result of `specconv run`."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    plan: str
    """Path of the plan."""

    shard: int
    """Number of the shard, from 0."""

    kept: bool
    """True if the part was already right, so that nothing was written."""

    size_bytes: int
    """Bytes of the part, without padding."""

    resumed_bytes: int
    """Bytes of tensor data that were kept from an interrupted run."""

    elapsed_ms: int
    """Time from start to the finished part, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            plan=data["plan"],
            shard=data["shard"],
            kept=data["kept"],
            size_bytes=data["size_bytes"],
            resumed_bytes=data["resumed_bytes"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class ServerCheck:
    """One check."""

    name: str
    """Name of the check."""

    outcome: Outcome
    """Its outcome; `not-exercised` if the server does not offer what the check needs."""

    found: str
    """Short result."""

    differences: list[ServerDifference]
    """The first difference of each prompt whose text differs."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ServerCheck:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            outcome=data["outcome"],
            found=data["found"],
            differences=[ServerDifference.from_dict(v) for v in data["differences"]],
        )


@dataclass(frozen=True)
class ServerDifference:
    """The first difference between two texts."""

    prompt_id: str
    """Name of the prompt."""

    position: int
    """Number of equal tokens before the difference, or of equal bytes if the server returns no token
    ids.
    """

    expected: str
    """The text from there on, as it was expected."""

    found: str
    """The text from there on, as it was found."""

    top_gap: Optional[float]
    """Log-probability of the most likely token at this position minus that of the second; null if the
    server returns none.
    """

    is_near_tie: Optional[bool]
    """True if the gap is so small that rounding can decide between the two tokens."""

    request: str
    """The request, as a command line."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ServerDifference:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            prompt_id=data["prompt_id"],
            position=data["position"],
            expected=data["expected"],
            found=data["found"],
            top_gap=data["top_gap"],
            is_near_tie=data["is_near_tie"],
            request=data["request"],
        )


@dataclass(frozen=True)
class ServerPrompt:
    """Speed and acceptance of one prompt."""

    prompt_id: str
    """Name of the prompt."""

    predicted_n: Optional[int]
    """Number of generated tokens; null if the server does not report it."""

    predicted_per_second: Optional[float]
    """Tokens generated per second; null if the server does not report it."""

    draft_n: int
    """Number of draft tokens."""

    draft_n_accepted: int
    """Number of accepted draft tokens."""

    accept_rate: Optional[float]
    """Accepted draft tokens divided by drafted ones; null if nothing was drafted."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ServerPrompt:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            prompt_id=data["prompt_id"],
            predicted_n=data["predicted_n"],
            predicted_per_second=data["predicted_per_second"],
            draft_n=data["draft_n"],
            draft_n_accepted=data["draft_n_accepted"],
            accept_rate=data["accept_rate"],
        )


@dataclass(frozen=True)
class SetMetadataReport:
    """Result of changing the keys of a file."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    input: str
    """Path of the input file."""

    output: FileReport
    """Output file; the input itself unless another path was given."""

    set: list[str]
    """Keys with a new value, in file order."""

    removed: list[str]
    """Removed keys."""

    in_place: bool
    """True if the header was edited in place; false if the file was replaced by a new one."""

    elapsed_ms: int
    """Time from start to the finished file, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SetMetadataReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            input=data["input"],
            output=FileReport.from_dict(data["output"]),
            set=data["set"],
            removed=data["removed"],
            in_place=data["in_place"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class SourceReport:
    """A Hub repository that was read."""

    repository: str
    """`org/name`."""

    revision: str
    """Requested revision."""

    commit: str
    """Commit hash of the revision."""

    fetched_bytes: int
    """Bytes downloaded; the rest was in the cache or not needed."""

    total_bytes: int
    """Bytes of the repository's weights and model description files."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SourceReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            repository=data["repository"],
            revision=data["revision"],
            commit=data["commit"],
            fetched_bytes=data["fetched_bytes"],
            total_bytes=data["total_bytes"],
        )


@dataclass(frozen=True)
class SpecTraceReport:
    """One verified target pass of one sequence."""

    round: int
    """Number of the target pass, from 0; all sequences of a pass have the same number."""

    prompt_id: str
    """The prompt's `id`."""

    sequence: int
    """Index of the sequence that decodes the prompt."""

    position: int
    """Number of tokens in the target's KV cache before the pass."""

    drafter: Optional[str]
    """Name of the speculator whose draft was verified; null without a draft."""

    drafted: list[int]
    """Draft token ids."""

    n_accepted: int
    """Number of accepted draft tokens."""

    rollback: Optional[Rollback]
    """Method by which the target rolled back the rejected tokens; null if there were none."""

    n_rerun: int
    """Number of committed tokens that the next pass reruns, because no state was kept at the accepted
    length.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SpecTraceReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            round=data["round"],
            prompt_id=data["prompt_id"],
            sequence=data["sequence"],
            position=data["position"],
            drafter=data["drafter"],
            drafted=data["drafted"],
            n_accepted=data["n_accepted"],
            rollback=data["rollback"],
            n_rerun=data["n_rerun"],
        )


@dataclass(frozen=True)
class SpeculatorAgreement:
    """Agreement of one speculator."""

    name: str
    """Name of the speculator."""

    by_draft_position: list[DraftPosition]
    """Predicted acceptance by draft position: over all positions of the texts whose outcome is known.
    """

    tokens_per_target_pass: Optional[float]
    """Predicted tokens per target pass: 1 plus the sum of the predicted acceptance rates; null without
    a draft.
    """

    decoded: Optional[Counters]
    """Counters of decoding these texts, which follow from the drafts at the positions where a pass
    begins; times are 0. Null for given texts.
    """

    elapsed_ms: float
    """Time of reading the texts and drafting, in milliseconds."""

    floor: Optional[Floor]
    """Required acceptance rate; null without one, or if the check acceptance measures it."""

    floor_held: Optional[bool]
    """True if the predicted rate reached the floor; null without a floor."""

    error: Optional[str]
    """Error or panic that ended the comparison; null if there was none."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SpeculatorAgreement:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            by_draft_position=[DraftPosition.from_dict(v) for v in data["by_draft_position"]],
            tokens_per_target_pass=data["tokens_per_target_pass"],
            decoded=None if (found := data["decoded"]) is None else Counters.from_dict(found),
            elapsed_ms=data["elapsed_ms"],
            floor=None if (found := data["floor"]) is None else Floor.from_dict(found),
            floor_held=data["floor_held"],
            error=data["error"],
        )


@dataclass(frozen=True)
class SpeculatorCounters:
    """Counters of one speculator."""

    name: str
    """Name of the speculator, such as `draft-mtp`."""

    n_drafts: int
    """Number of verified drafts; llama.cpp's `#gen drafts`."""

    n_accepted_drafts: int
    """Number of drafts with at least one accepted token; `#acc drafts`."""

    n_drafted: int
    """Number of draft tokens; `#gen tokens`."""

    n_accepted: int
    """Number of accepted draft tokens; `#acc tokens`."""

    mean_accepted_length: Optional[float]
    """Mean number of tokens committed per verified draft, the bonus token included; `#mean acc len`.
    Null if no draft was verified.
    """

    by_draft_position: list[DraftPosition]
    """Acceptance by draft position, the first token first; `#acc rate/pos`."""

    n_calls_begin: int
    """Number of `begin` calls, one per prompt. This and the next two fields are `#calls(b,g,a)`. Calls
    are counted for all sequences together and are 0 in the counters of one sequence.
    """

    n_calls_draft: int
    """Number of `draft` calls, each for any number of sequences."""

    n_calls_accept: int
    """Number of `accept` calls for its own drafts."""

    begin_ms: float
    """Time in `begin`, in milliseconds; with those in `draft` and `accept`, `dur(b,g,a)`. Times are
    measured for all sequences together and are 0 in the counters of one sequence.
    """

    process_ms: float
    """Time to process the target's passes, prefill included, in milliseconds."""

    draft_ms: float
    """Time in `draft`, in milliseconds."""

    accept_ms: float
    """Time in `accept`, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SpeculatorCounters:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            n_drafts=data["n_drafts"],
            n_accepted_drafts=data["n_accepted_drafts"],
            n_drafted=data["n_drafted"],
            n_accepted=data["n_accepted"],
            mean_accepted_length=data["mean_accepted_length"],
            by_draft_position=[DraftPosition.from_dict(v) for v in data["by_draft_position"]],
            n_calls_begin=data["n_calls_begin"],
            n_calls_draft=data["n_calls_draft"],
            n_calls_accept=data["n_calls_accept"],
            begin_ms=data["begin_ms"],
            process_ms=data["process_ms"],
            draft_ms=data["draft_ms"],
            accept_ms=data["accept_ms"],
        )


@dataclass(frozen=True)
class SpeculatorVerdict:
    """One speculator, or a chain of several, over all prompts."""

    name: str
    """Name of the speculator; for a chain, all names in the order they are tried, separated by commas.
    """

    n_prompts: int
    """Number of prompts decoded."""

    n_identical: int
    """Number of prompts whose tokens and logits are identical to those of plain decoding."""

    counters: Counters
    """Sum of the counters of all prompts; `by_speculator` has the members of a chain. Times come from
    a single run; `speed` has times for comparison.
    """

    speedup: Optional[float]
    """Tokens per second with drafts divided by those without, at the same number of sequences: the
    median of `speed`, 1 for a speculator that drafted nothing; null if no speed was measured.
    """

    speed: Optional[SpeedComparison]
    """Speed with drafts and without, measured alternately; null if no speed was measured or nothing
    was drafted.
    """

    floor: Optional[Floor]
    """Required acceptance rate; null for a speculator without a floor, and for a chain."""

    floor_held: Optional[bool]
    """True if the acceptance rate reached the floor; null without a floor."""

    error: Optional[str]
    """Error or panic that kept the speculator from decoding all prompts; null if there was none.
    """

    verdict: Outcome
    """Pass if all prompts are identical, the floor held and enough tokens were drafted; not-exercised
    if it would pass but drafted no token.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SpeculatorVerdict:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            n_prompts=data["n_prompts"],
            n_identical=data["n_identical"],
            counters=Counters.from_dict(data["counters"]),
            speedup=data["speedup"],
            speed=None if (found := data.get("speed", None)) is None else SpeedComparison.from_dict(found),
            floor=None if (found := data["floor"]) is None else Floor.from_dict(found),
            floor_held=data["floor_held"],
            error=data.get("error", None),
            verdict=data["verdict"],
        )


@dataclass(frozen=True)
class SpeedComparison:
    """Decoding with drafts and without, measured alternately on the same prompts after a warm-up.
    """

    n_runs: int
    """Number of timed runs with drafts; there are as many without."""

    tokens_per_s: Spread
    """Tokens generated per second with drafts."""

    plain_tokens_per_s: Spread
    """Tokens generated per second without drafts."""

    ratio: Spread
    """Speed with drafts divided by the speed without, for each pair of neighbouring runs."""

    ratios: list[float]
    """The ratio of each pair, in the order of the runs; empty in reports of older versions."""

    interval: Optional[Interval]
    """95 % confidence interval of the mean ratio; null with fewer than three pairs and in reports of
    older versions.
    """

    change: SpeedChange
    """Verdict: a change if the interval does not contain 1."""

    by_kind: list[KindSpeed]
    """Median speed with drafts on the prompts of each kind; empty if several sequences are decoded at
    once, because they share their passes.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SpeedComparison:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_runs=data["n_runs"],
            tokens_per_s=Spread.from_dict(data["tokens_per_s"]),
            plain_tokens_per_s=Spread.from_dict(data["plain_tokens_per_s"]),
            ratio=Spread.from_dict(data["ratio"]),
            ratios=data.get("ratios", []),
            interval=None if (found := data.get("interval", None)) is None else Interval.from_dict(found),
            change=data["change"],
            by_kind=[KindSpeed.from_dict(v) for v in data["by_kind"]],
        )


@dataclass(frozen=True)
class SplitMtpReport:
    """Result of splitting a model into its body and its MTP head."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    input: str
    """Path of the model with the inline head."""

    body: Optional[FileReport]
    """The model without the head; null if it was not requested."""

    mtp: Optional[FileReport]
    """The head as a sidecar file; null if it was not requested."""

    written: bool
    """True if the files were written; false under `--dry-run`."""

    elapsed_ms: int
    """Time from start to the finished files, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SplitMtpReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            input=data["input"],
            body=None if (found := data["body"]) is None else FileReport.from_dict(found),
            mtp=None if (found := data["mtp"]) is None else FileReport.from_dict(found),
            written=data["written"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class SplitReport:
    """Result of splitting a model into shards."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    input: str
    """Path of the model."""

    output: FileReport
    """The shards."""

    written: bool
    """True if the files were written; false under `--dry-run`."""

    elapsed_ms: int
    """Time from start to the finished files, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SplitReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            input=data["input"],
            output=FileReport.from_dict(data["output"]),
            written=data["written"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class SplitVocabReport:
    """Result of removing the draft-to-target map from a draft model."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    draft: str
    """Path of the draft model."""

    n_draft: int
    """Number of tokens in the map."""

    map: FileReport
    """The file with the map."""

    output: Optional[FileReport]
    """The draft model without the map; null if it was not requested."""

    written: bool
    """True if the files were written; false under `--dry-run`."""

    elapsed_ms: int
    """Time from start to the finished files, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SplitVocabReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            draft=data["draft"],
            n_draft=data["n_draft"],
            map=FileReport.from_dict(data["map"]),
            output=None if (found := data["output"]) is None else FileReport.from_dict(found),
            written=data["written"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    """Median; for an even number of values, the mean of the middle two."""

    min: float
    """Smallest value."""

    max: float
    """Largest value."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Spread:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            median=data["median"],
            min=data["min"],
            max=data["max"],
        )


@dataclass(frozen=True)
class Stage:
    """One stage of the pipeline."""

    name: str
    """Name of the stage: its action and the file."""

    elapsed_ms: float
    """Time of the stage in milliseconds."""

    size_bytes: Optional[int]
    """Bytes of the file written; null for a stage that writes none."""

    acceptance: Optional[float]
    """Accepted draft tokens divided by drafted ones; null for a stage that drafts none."""

    verdict: Verdict
    """Pass if the stage's check of its result holds."""

    checked: str
    """Short description of that check."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Stage:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            elapsed_ms=data["elapsed_ms"],
            size_bytes=data["size_bytes"],
            acceptance=data["acceptance"],
            verdict=data["verdict"],
            checked=data["checked"],
        )


@dataclass(frozen=True)
class SurfaceBreakEven:
    """The context length at which drafts stop or start to save time."""

    speculator: str
    """Name of the speculator."""

    temperature: float
    """Sampling temperature."""

    n_context: Optional[float]
    """Context length at which the speedup over all tasks is 1: between two measured lengths, by the
    line through their speedups over the logarithm of the length. Null if it is on one side of 1 at
    all lengths.
    """

    speedups: Optional[list[float]]
    """Smallest and largest measured speedup; null if no speed was measured."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SurfaceBreakEven:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            speculator=data["speculator"],
            temperature=data["temperature"],
            n_context=data["n_context"],
            speedups=data["speedups"],
        )


@dataclass(frozen=True)
class SurfaceCell:
    """Acceptance and speed at one context length and temperature."""

    speculator: str
    """Name of the speculator; for a chain, all names in order, separated by commas."""

    n_context: int
    """Tokens before the first generated one."""

    temperature: float
    """Sampling temperature."""

    task: Optional[str]
    """Kind of the prompts; null for all of them together."""

    n_texts: int
    """Number of texts."""

    n_identical: int
    """Number of texts that are identical to those without drafts."""

    n_drafted: int
    """Number of draft tokens that the target verified."""

    n_accepted: int
    """Number of draft tokens that the target accepted."""

    acceptance: Optional[float]
    """Accepted draft tokens divided by drafted ones; null if nothing was drafted."""

    first_acceptance: Optional[float]
    """Acceptance at the first draft position; null if nothing was drafted."""

    tokens_per_target_pass: Optional[float]
    """Mean number of accepted and bonus tokens per target pass; null without a pass."""

    tokens_per_s: Optional[float]
    """Tokens generated per second with drafts, the median of all runs."""

    plain_tokens_per_s: Optional[float]
    """Tokens generated per second without drafts, the median of all runs."""

    speedup: Optional[float]
    """Median of the ratios of neighboring runs with and without drafts."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SurfaceCell:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            speculator=data["speculator"],
            n_context=data["n_context"],
            temperature=data["temperature"],
            task=data["task"],
            n_texts=data["n_texts"],
            n_identical=data["n_identical"],
            n_drafted=data["n_drafted"],
            n_accepted=data["n_accepted"],
            acceptance=data["acceptance"],
            first_acceptance=data["first_acceptance"],
            tokens_per_target_pass=data["tokens_per_target_pass"],
            tokens_per_s=data["tokens_per_s"],
            plain_tokens_per_s=data["plain_tokens_per_s"],
            speedup=data["speedup"],
        )


@dataclass(frozen=True)
class SurfaceReport:
    """Acceptance and speed of each speculator over context length, temperature and task."""

    contexts: list[int]
    """Context lengths, in tokens before the first generated one, ascending."""

    temperatures: list[float]
    """Sampling temperatures, ascending."""

    n_runs: int
    """Number of timed runs of each cell, with and without drafts."""

    cells: list[SurfaceCell]
    """Results, by speculator, context length, temperature and task."""

    break_even: list[SurfaceBreakEven]
    """Context lengths at which drafts stop or start to save time, by speculator and temperature.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SurfaceReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            contexts=data["contexts"],
            temperatures=data["temperatures"],
            n_runs=data["n_runs"],
            cells=[SurfaceCell.from_dict(v) for v in data["cells"]],
            break_even=[SurfaceBreakEven.from_dict(v) for v in data["break_even"]],
        )


@dataclass(frozen=True)
class TargetScores:
    """Probabilities that the target assigns to the prompts and to its own continuations without
    drafts. A later report is compared with them.
    """

    n_scored: int
    """Number of scored prompt tokens: all but the first of each prompt."""

    perplexity: Optional[float]
    """Perplexity: `exp` of the mean negative log-likelihood of the scored tokens; null without any.
    """

    n_rows: int
    """Number of logit rows computed, one for each entry of `tokens` in `prompts`."""

    n_not_finite: int
    """Number of logit rows that contain NaN or infinity."""

    tokens_per_s: Optional[float]
    """Tokens generated per second without drafts, at the report's number of sequences: the median of
    `speed`; null if no speed was measured.
    """

    speed: Optional[Spread]
    """Tokens per second of all timed runs without drafts; null if no speed was measured."""

    n_top: int
    """Number of most likely tokens recorded for each position."""

    prompts: list[PromptScores]
    """Scores of each prompt, in file order."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TargetScores:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_scored=data["n_scored"],
            perplexity=data["perplexity"],
            n_rows=data.get("n_rows", 0),
            n_not_finite=data.get("n_not_finite", 0),
            tokens_per_s=data["tokens_per_s"],
            speed=None if (found := data.get("speed", None)) is None else Spread.from_dict(found),
            n_top=data["n_top"],
            prompts=[PromptScores.from_dict(v) for v in data["prompts"]],
        )


@dataclass(frozen=True)
class TaskReport:
    """One task."""

    task: str
    """Name of the task."""

    flags: list[TaskFlag]
    """Reasons why its acceptance rate is less meaningful than that of other tasks; empty for most.
    """

    longest_loop: Optional[LoopReport]
    """Longest repeated passage of the generated text; null without one."""

    cache_n: int
    """Number of prompt tokens reused from the KV cache."""

    prompt_n: int
    """Number of prompt tokens processed."""

    prompt_ms: float
    """Prefill time with drafts, in milliseconds."""

    prompt_per_second: float
    """Prompt tokens processed per second, with drafts; 0 if no time was measured."""

    predicted_n: int
    """Number of generated tokens."""

    predicted_ms: float
    """Decoding time with drafts, in milliseconds."""

    draft_n: int
    """Number of draft tokens."""

    draft_n_accepted: int
    """Number of accepted draft tokens."""

    accept_rate: Optional[float]
    """Accepted draft tokens divided by drafted ones; null if nothing was drafted."""

    predicted_per_second: Optional[float]
    """Tokens generated per second with drafts, the median of all runs; null if no time was measured.
    """

    plain_per_second: Optional[float]
    """Tokens generated per second without drafts, the median of all runs."""

    speedup: Optional[float]
    """Speed with drafts divided by the speed without: the median of the ratios of neighbouring runs, 1
    if nothing was drafted.
    """

    speed: Optional[SpeedComparison]
    """Speeds of all runs; null if nothing was drafted or no time was measured."""

    by_draft_position: list[DraftPosition]
    """Acceptance by draft position, the first token first."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TaskReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            task=data["task"],
            flags=data.get("flags", []),
            longest_loop=None if (found := data.get("longest_loop", None)) is None else LoopReport.from_dict(found),
            cache_n=data.get("cache_n", 0),
            prompt_n=data["prompt_n"],
            prompt_ms=data.get("prompt_ms", 0.0),
            prompt_per_second=data.get("prompt_per_second", 0.0),
            predicted_n=data["predicted_n"],
            predicted_ms=data.get("predicted_ms", 0.0),
            draft_n=data["draft_n"],
            draft_n_accepted=data["draft_n_accepted"],
            accept_rate=data["accept_rate"],
            predicted_per_second=data["predicted_per_second"],
            plain_per_second=data["plain_per_second"],
            speedup=data["speedup"],
            speed=None if (found := data.get("speed", None)) is None else SpeedComparison.from_dict(found),
            by_draft_position=[DraftPosition.from_dict(v) for v in data["by_draft_position"]],
        )


@dataclass(frozen=True)
class TasksAggregate:
    """Totals of several tasks, with drafts."""

    n_requests: int
    """Number of tasks."""

    total_predicted: int
    """Number of generated tokens."""

    total_draft: int
    """Number of draft tokens."""

    total_draft_accepted: int
    """Number of accepted draft tokens."""

    aggregate_accept_rate: Optional[float]
    """Accepted draft tokens divided by drafted ones, rounded to four digits; null if nothing was
    drafted.
    """

    wall_s_total: float
    """Seconds that all tasks took, prefill included, rounded to two digits: the median of all runs.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TasksAggregate:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_requests=data["n_requests"],
            total_predicted=data["total_predicted"],
            total_draft=data["total_draft"],
            total_draft_accepted=data["total_draft_accepted"],
            aggregate_accept_rate=data["aggregate_accept_rate"],
            wall_s_total=data["wall_s_total"],
        )


@dataclass(frozen=True)
class TensorChange:
    """Change of one tensor."""

    name: str
    """Name of the tensor in the output."""

    shape: list[int]
    """Shape, the contiguous axis first."""

    from_: str
    """Element type in the input."""

    to: str
    """Element type in the output."""

    size_before_bytes: int
    """Bytes of data in the input."""

    size_after_bytes: int
    """Bytes of data in the output."""

    decided_by: DecidedBy
    """Source of the output type."""

    pattern: Optional[str]
    """Pattern of the rule that selected the type; null if no rule did."""

    fallback_from: Optional[str]
    """Type that was selected first, if the row length is not a multiple of its block size; otherwise
    null.
    """

    lacks_importance: bool
    """True if the type can use an importance matrix and one was given, but it has no entry for this
    tensor.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TensorChange:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            shape=data["shape"],
            from_=data["from"],
            to=data["to"],
            size_before_bytes=data["size_before_bytes"],
            size_after_bytes=data["size_after_bytes"],
            decided_by=data["decided_by"],
            pattern=data["pattern"],
            fallback_from=data["fallback_from"],
            lacks_importance=data["lacks_importance"],
        )


@dataclass(frozen=True)
class TensorReport:
    """One tensor."""

    name: str
    """Name of the tensor."""

    shape: list[int]
    """Shape, the contiguous axis first."""

    dtype: str
    """Element type."""

    offset_bytes: int
    """Offset of the tensor's data from the start of its file, in bytes."""

    size_bytes: int
    """Bytes of the tensor's data, without padding."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TensorReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            shape=data["shape"],
            dtype=data["dtype"],
            offset_bytes=data["offset_bytes"],
            size_bytes=data["size_bytes"],
        )


@dataclass(frozen=True)
class Timings:
    """Times and counts of one request."""

    cache_n: int
    """Number of prompt tokens reused from the KV cache, a prefix shared with earlier text."""

    prompt_n: int
    """Number of prompt tokens processed."""

    prompt_ms: float
    """Prefill time in milliseconds."""

    prompt_per_token_ms: float
    """Prefill time per processed token in milliseconds; 0 if none was processed."""

    prompt_per_second: float
    """Prompt tokens processed per second; 0 if no time was measured."""

    predicted_n: int
    """Number of generated tokens."""

    predicted_ms: float
    """Decoding time in milliseconds. The first token comes from the prefill and is not included.
    """

    predicted_per_token_ms: float
    """Decoding time per token after the first, in milliseconds; 0 if there are none."""

    predicted_per_second: float
    """Tokens after the first generated per second; 0 if no time was measured."""

    draft_n: int
    """Number of draft tokens that the target verified."""

    draft_n_accepted: int
    """Number of draft tokens that the target accepted."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Timings:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            cache_n=data["cache_n"],
            prompt_n=data["prompt_n"],
            prompt_ms=data["prompt_ms"],
            prompt_per_token_ms=data["prompt_per_token_ms"],
            prompt_per_second=data["prompt_per_second"],
            predicted_n=data["predicted_n"],
            predicted_ms=data["predicted_ms"],
            predicted_per_token_ms=data["predicted_per_token_ms"],
            predicted_per_second=data["predicted_per_second"],
            draft_n=data["draft_n"],
            draft_n_accepted=data["draft_n_accepted"],
        )


@dataclass(frozen=True)
class TokenLogit:
    """A token and its logit."""

    id: int
    """Token id."""

    logit: float
    """Logit."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TokenLogit:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            id=data["id"],
            logit=data["logit"],
        )


@dataclass(frozen=True)
class TokenizeReport:
    """Tokens of a text."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    model: str
    """Path of the model's file."""

    tokens: list[int]
    """Token ids."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TokenizeReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            model=data["model"],
            tokens=data["tokens"],
        )


@dataclass(frozen=True)
class TokenizerReport:
    """The tokenizer in the file."""

    model: str
    """`tokenizer.ggml.model`, the kind of tokenizer."""

    pre: Optional[str]
    """`tokenizer.ggml.pre`, the pre-tokenizer; null if the key is absent."""

    n_tokens: int
    """Number of tokens in the vocabulary."""

    n_merges: int
    """Number of merges."""

    bos_token_id: Optional[int]
    """Beginning-of-sequence token; null if the key is absent."""

    eos_token_id: Optional[int]
    """End-of-sequence token; null if the key is absent."""

    has_chat_template: bool
    """True if the file contains a chat template."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TokenizerReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            model=data["model"],
            pre=data["pre"],
            n_tokens=data["n_tokens"],
            n_merges=data["n_merges"],
            bos_token_id=data["bos_token_id"],
            eos_token_id=data["eos_token_id"],
            has_chat_template=data["has_chat_template"],
        )


@dataclass(frozen=True)
class TraceResult:
    """Result of one trace."""

    name: str
    """File name of the trace without its extension."""

    verdict: Verdict
    """Pass if everything is equal to the expected result, bit for bit."""

    n_tokens: int
    """Number of generated tokens."""

    n_drafted: int
    """Number of drafted tokens."""

    n_accepted: int
    """Number of accepted draft tokens."""

    difference: Optional[str]
    """Description of the first difference; null if there is none."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TraceResult:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            verdict=data["verdict"],
            n_tokens=data["n_tokens"],
            n_drafted=data["n_drafted"],
            n_accepted=data["n_accepted"],
            difference=data["difference"],
        )


@dataclass(frozen=True)
class TracedFile:
    """A model file of a trace."""

    path: str
    """Path of the file, relative to the folder of the trace."""

    sha256: str
    """SHA-256 of the file in hexadecimal; empty until the result is recorded."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TracedFile:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            path=data["path"],
            sha256=data["sha256"],
        )


@dataclass(frozen=True)
class TrimVocabReport:
    """Result of reducing the output head of a draft to a subset of the tokens."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    input: str
    """Path of the draft model, or of the file with the MTP head."""

    n_target: int
    """Number of tokens in the target's vocabulary."""

    n_draft: int
    """Number of tokens in the reduced output head."""

    n_special: int
    """Number of tokens kept regardless of their frequency."""

    n_counted: Optional[int]
    """Number of tokens in the counted texts; null if a token list was given."""

    n_held_out: Optional[int]
    """Number of tokens in the held-out texts; null if there were none."""

    coverage: Optional[float]
    """Share of the held-out tokens that the reduced output head covers."""

    saved_bytes_per_token: int
    """Bytes of weights saved per drafted token."""

    output: FileReport
    """Output file."""

    written: bool
    """True if the file was written; false under `--dry-run`."""

    elapsed_ms: int
    """Time from start to the finished file, in milliseconds."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TrimVocabReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            input=data["input"],
            n_target=data["n_target"],
            n_draft=data["n_draft"],
            n_special=data["n_special"],
            n_counted=data["n_counted"],
            n_held_out=data["n_held_out"],
            coverage=data["coverage"],
            saved_bytes_per_token=data["saved_bytes_per_token"],
            output=FileReport.from_dict(data["output"]),
            written=data["written"],
            elapsed_ms=data["elapsed_ms"],
        )


@dataclass(frozen=True)
class TuneChoice:
    """The type that was chosen for a group."""

    name: str
    """Name of the group."""

    tensors: list[str]
    """Names of its tensors."""

    dtype: str
    """The chosen element type."""

    size_bytes: int
    """Bytes of the tensors in this type."""

    kld: float
    """Divergence that this type caused alone."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TuneChoice:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            tensors=data["tensors"],
            dtype=data["dtype"],
            size_bytes=data["size_bytes"],
            kld=data["kld"],
        )


@dataclass(frozen=True)
class TuneMeasurement:
    """Effect of one mix of types on the base model."""

    group: str
    """Group of tensors in another type, or `all`."""

    dtype: str
    """Element type of the group, or the name of the whole mix."""

    types_sha256: str
    """SHA-256 of the names and types of all tensors that differ from the base."""

    data_bytes: int
    """Bytes of all tensor data."""

    kld: Estimate
    """Mean divergence of the target from the base."""

    acceptance: Optional[float]
    """Acceptance of the MTP head; null without a head."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TuneMeasurement:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            group=data["group"],
            dtype=data["dtype"],
            types_sha256=data["types_sha256"],
            data_bytes=data["data_bytes"],
            kld=Estimate.from_dict(data["kld"]),
            acceptance=data["acceptance"],
        )


@dataclass(frozen=True)
class TuneMeasurementsReport:
    """Measurements of `specrun tune`, kept in a file so that an interrupted run can continue."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    settings: TuneSettings
    """Everything that the measurements depend on."""

    measured: list[TuneMeasurement]
    """Measured mixes, in the order of measurement."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TuneMeasurementsReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            settings=TuneSettings.from_dict(data["settings"]),
            measured=[TuneMeasurement.from_dict(v) for v in data["measured"]],
        )


@dataclass(frozen=True)
class TuneMix:
    """A measured mix of types."""

    name: str
    """`tuned`, or the file type of a standard mix."""

    data_bytes: int
    """Bytes of tensor data."""

    bits_per_weight: float
    """Bits of tensor data per weight."""

    kld: Estimate
    """Mean divergence from the base."""

    acceptance: Optional[float]
    """Acceptance of the MTP head; null without a head."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TuneMix:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            data_bytes=data["data_bytes"],
            bits_per_weight=data["bits_per_weight"],
            kld=Estimate.from_dict(data["kld"]),
            acceptance=data["acceptance"],
        )


@dataclass(frozen=True)
class TuneReport:
    """A recipe that was chosen by measurement."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    provenance: Optional[Provenance]
    """Program, date, machine and inputs."""

    model: str
    """Path of the base model's file."""

    recipe: str
    """Path of the recipe."""

    n_scored: int
    """Number of tokens on which the divergence was measured."""

    base_acceptance: Optional[float]
    """Acceptance of the base model's MTP head; null without a head."""

    groups: list[TuneChoice]
    """Groups of tensors with the chosen types, in the order of the file."""

    data_bytes: int
    """Bytes of tensor data."""

    bits_per_weight: float
    """Bits of tensor data per weight."""

    predicted_kld: float
    """Sum of the divergences that each group caused alone."""

    mixes: list[TuneMix]
    """Divergence of the whole mix, and of the standard mixes of about its size."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TuneReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            provenance=None if (found := data["provenance"]) is None else Provenance.from_dict(found),
            model=data["model"],
            recipe=data["recipe"],
            n_scored=data["n_scored"],
            base_acceptance=data["base_acceptance"],
            groups=[TuneChoice.from_dict(v) for v in data["groups"]],
            data_bytes=data["data_bytes"],
            bits_per_weight=data["bits_per_weight"],
            predicted_kld=data["predicted_kld"],
            mixes=[TuneMix.from_dict(v) for v in data["mixes"]],
        )


@dataclass(frozen=True)
class TuneSettings:
    """Inputs and sizes of measurements."""

    files: list[InputFile]
    """Files of the base model, and the importance matrix."""

    tokens_sha256: str
    """SHA-256 of the token ids of all chunks, each as little-endian u32."""

    n_ctx: int
    """Chunk length in tokens."""

    n_chunks: int
    """Number of chunks."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TuneSettings:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            files=[InputFile.from_dict(v) for v in data["files"]],
            tokens_sha256=data["tokens_sha256"],
            n_ctx=data["n_ctx"],
            n_chunks=data["n_chunks"],
        )


@dataclass(frozen=True)
class TypeChange:
    """Tensors with one output type."""

    dtype: str
    """Name of the output type in ggml."""

    n_tensors: int
    """Number of tensors of this type in the output."""

    size_before_bytes: int
    """Bytes of their data in the input, in any type."""

    size_after_bytes: int
    """Bytes of their data in the output."""

    mb_per_worker_s: Optional[float]
    """Megabytes of input that one worker thread requantizes per second; null if no tensor was
    requantized.
    """

    rmse: Optional[float]
    """Root mean square error of the output's values against the input's, over the requantized tensors.
    Null if there are none, under `--dry-run`, and if an earlier, resumed run wrote some of them.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TypeChange:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            dtype=data["dtype"],
            n_tensors=data["n_tensors"],
            size_before_bytes=data["size_before_bytes"],
            size_after_bytes=data["size_after_bytes"],
            mb_per_worker_s=data["mb_per_worker_s"],
            rmse=data["rmse"],
        )


@dataclass(frozen=True)
class TypeShare:
    """The tensors of one element type."""

    dtype: str
    """Name of the type in ggml, such as `Q4_K`; `type N` for an unknown id."""

    n_tensors: int
    """Number of tensors of this type."""

    n_elements: int
    """Number of their elements."""

    size_bytes: int
    """Bytes of their data, without padding."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TypeShare:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            dtype=data["dtype"],
            n_tensors=data["n_tensors"],
            n_elements=data["n_elements"],
            size_bytes=data["size_bytes"],
        )


@dataclass(frozen=True)
class ValuesReport:
    """Statistics of a tensor's values."""

    mean: float
    """Mean of the values."""

    rms: float
    """Root mean square."""

    min: float
    """Smallest value."""

    max: float
    """Largest value."""

    n_zero: int
    """Number of zeros."""

    n_not_finite: int
    """Number of NaNs and infinities, which are excluded from the other statistics."""

    n_implausible: int
    """Number of values with a magnitude that no weight has (below 2^-40 or above 2^10), without zeros.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ValuesReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            mean=data["mean"],
            rms=data["rms"],
            min=data["min"],
            max=data["max"],
            n_zero=data["n_zero"],
            n_not_finite=data["n_not_finite"],
            n_implausible=data["n_implausible"],
        )


@dataclass(frozen=True)
class VerifyReport:
    """Result of verifying that speculation does not change tokens and logits, and that enough draft
    tokens are accepted.
    """

    schema_version: int
    """`SCHEMA_VERSION`."""

    provenance: Optional[Provenance]
    """Program, date, machine and inputs; null in reports of older versions."""

    model: str
    """Path of the target's file."""

    draft: Optional[str]
    """Paths of the draft files, separated by commas; null without any."""

    backend: str
    """Backend that ran the models, with its instruction set or device."""

    n_threads: int
    """CPU threads."""

    n_draft_max: int
    """Maximum draft length in tokens, `--spec-draft-n-max`."""

    n_parallel: int
    """Sequences decoded at once."""

    policy: Optional[str]
    """Policy that picks the draft of a chain to verify: `first` or `best`; null in reports of older
    versions.
    """

    fit: Optional[FitReport]
    """Preflight check of the files, before anything runs; null if it was not requested."""

    runs: list[VerifyRun]
    """Every prompt with every speculator, prompts in file order; empty if the preflight failed or
    there is no speculator.
    """

    speculators: list[SpeculatorVerdict]
    """Totals of each speculator alone, then of all of them as one chain if there are several; empty if
    only the target is verified.
    """

    widths: list[WidthCost]
    """Cost of forward passes over 1, 2, .. tokens, up to the longest draft; empty if nothing was
    decoded.
    """

    matrix: list[MatrixCell]
    """Results for other decoding settings on the same prompts; empty without `--matrix`."""

    invariance: Optional[InvarianceReport]
    """Check that logits depend only on the preceding tokens; null if it was not requested."""

    agreement: Optional[AgreementReport]
    """Drafts at every position of known texts, compared with the target's choices; null if it was not
    requested.
    """

    surface: Optional[SurfaceReport]
    """Acceptance and speed over context length, temperature and task; null without `--contexts` and
    `--temps`.
    """

    target: Optional[TargetScores]
    """Scores of the target on the prompts, the baseline for later reports; null if nothing was
    decoded.
    """

    baseline: Optional[BaselineReport]
    """Comparison with an earlier report; null without `--baseline`."""

    failed: list[FailedCheck]
    """Checks that ran and failed; empty if all hold."""

    verdict: Verdict
    """Pass if no check failed."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> VerifyReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            provenance=None if (found := data.get("provenance", None)) is None else Provenance.from_dict(found),
            model=data["model"],
            draft=data["draft"],
            backend=data["backend"],
            n_threads=data["n_threads"],
            n_draft_max=data["n_draft_max"],
            n_parallel=data["n_parallel"],
            policy=data.get("policy", None),
            fit=None if (found := data["fit"]) is None else FitReport.from_dict(found),
            runs=[VerifyRun.from_dict(v) for v in data["runs"]],
            speculators=[SpeculatorVerdict.from_dict(v) for v in data["speculators"]],
            widths=[WidthCost.from_dict(v) for v in data.get("widths", [])],
            matrix=[MatrixCell.from_dict(v) for v in data["matrix"]],
            invariance=None if (found := data["invariance"]) is None else InvarianceReport.from_dict(found),
            agreement=None if (found := data.get("agreement", None)) is None else AgreementReport.from_dict(found),
            surface=None if (found := data.get("surface", None)) is None else SurfaceReport.from_dict(found),
            target=None if (found := data["target"]) is None else TargetScores.from_dict(found),
            baseline=None if (found := data["baseline"]) is None else BaselineReport.from_dict(found),
            failed=[FailedCheck.from_dict(v) for v in data["failed"]],
            verdict=data["verdict"],
        )


@dataclass(frozen=True)
class VerifyRun:
    """One prompt with one speculator, compared with plain decoding of the same prompt."""

    prompt_id: str
    """The prompt's `id`."""

    prompt_kind: Optional[str]
    """The prompt's `kind`; null if it has none."""

    n_prompt_tokens: int
    """Number of prompt tokens."""

    speculator: str
    """Name of the speculator; for a chain, all names in order, separated by commas."""

    tokens_identical: bool
    """True if all tokens equal those of plain decoding."""

    logits_identical: bool
    """True if the logits of every committed position equal those of plain decoding, bit for bit.
    """

    first_difference: Optional[FirstDifference]
    """First position with different tokens or logits; null if there is none."""

    counters: Counters
    """Counters of speculative decoding."""

    last_logits_hash: str
    """Hash of the logits of the last committed position, in hexadecimal."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> VerifyRun:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            prompt_id=data["prompt_id"],
            prompt_kind=data["prompt_kind"],
            n_prompt_tokens=data["n_prompt_tokens"],
            speculator=data["speculator"],
            tokens_identical=data["tokens_identical"],
            logits_identical=data["logits_identical"],
            first_difference=None if (found := data["first_difference"]) is None else FirstDifference.from_dict(found),
            counters=Counters.from_dict(data["counters"]),
            last_logits_hash=data["last_logits_hash"],
        )


@dataclass(frozen=True)
class VerifyUrlReport:
    """Checks of a running server."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    provenance: Optional[Provenance]
    """Program, date, this machine and the prompts; null in reports of older versions."""

    url: str
    """Address of the server."""

    url2: Optional[str]
    """Address of the server that texts were compared with; null without one."""

    model: Optional[str]
    """Name of the model, as the server reports it."""

    version: Optional[str]
    """Version of the server, as it reports it."""

    n_concurrent: int
    """Maximum number of requests at the same time."""

    checks: list[ServerCheck]
    """The checks, in the order in which they ran."""

    prompts: list[ServerPrompt]
    """Acceptance of each prompt."""

    draft_n: int
    """Number of draft tokens of all prompts."""

    draft_n_accepted: int
    """Number of accepted draft tokens of all prompts."""

    accept_rate: Optional[float]
    """Accepted draft tokens divided by drafted ones; null if nothing was drafted."""

    own: Optional[OwnAcceptance]
    """Acceptance of specrun on the same prompts; null without a model file."""

    verdict: Verdict
    """The outcome of all checks."""

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return self.verdict == "pass"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> VerifyUrlReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            provenance=None if (found := data.get("provenance", None)) is None else Provenance.from_dict(found),
            url=data["url"],
            url2=data["url2"],
            model=data["model"],
            version=data["version"],
            n_concurrent=data["n_concurrent"],
            checks=[ServerCheck.from_dict(v) for v in data["checks"]],
            prompts=[ServerPrompt.from_dict(v) for v in data["prompts"]],
            draft_n=data["draft_n"],
            draft_n_accepted=data["draft_n_accepted"],
            accept_rate=data["accept_rate"],
            own=None if (found := data.get("own", None)) is None else OwnAcceptance.from_dict(found),
            verdict=data["verdict"],
        )


@dataclass(frozen=True)
class WayShape:
    """Decoding settings."""

    n_draft_max: int
    """Maximum draft length in tokens."""

    n_parallel: int
    """Sequences decoded at once."""

    temperature: float
    """Sampling temperature; 0 always takes the most likely token."""

    seed: int
    """Random seed of sampling."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WayShape:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_draft_max=data["n_draft_max"],
            n_parallel=data["n_parallel"],
            temperature=data["temperature"],
            seed=data["seed"],
        )


@dataclass(frozen=True)
class WidthCost:
    """Cost of a forward pass over several tokens, as for verifying a draft that is one token shorter.
    """

    n_tokens: int
    """Number of tokens in the pass."""

    pass_ms: float
    """Time of a pass in milliseconds, the median of all rounds."""

    ratio: float
    """`pass_ms` divided by the time of a pass over one token."""

    break_even_accepted: float
    """Mean number of draft tokens that must be accepted per pass to pay for verification. The cost of
    drafting comes on top.
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WidthCost:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            n_tokens=data["n_tokens"],
            pass_ms=data["pass_ms"],
            ratio=data["ratio"],
            break_even_accepted=data["break_even_accepted"],
        )


@dataclass(frozen=True)
class WorkFile:
    """A file that a shard writes."""

    name: str
    """Name in the folder of parts. Shared files are hidden, and a part of the plan's SHA-256 follows
    their name.
    """

    content: WorkContent
    """Content of the file; of a shared one, the content that the shard writes."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorkFile:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            content=data["content"],
        )


@dataclass(frozen=True)
class WorkInput:
    """A file that a plan reads."""

    path: str
    """Path as in the command."""

    size_bytes: int
    """Size in bytes."""

    sampled_xxh3: str
    """XXH3 in hexadecimal: of all bytes up to 16 MiB, else of 256 blocks of 4 KiB at equal distances.
    """

    modified_ns: Optional[str]
    """Modification time in nanoseconds since 1970, as text; null if it is not compared."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorkInput:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            path=data["path"],
            size_bytes=data["size_bytes"],
            sampled_xxh3=data["sampled_xxh3"],
            modified_ns=data["modified_ns"],
        )


@dataclass(frozen=True)
class WorkOutput:
    """A model file that a plan writes."""

    path: str
    """Path as in the command."""

    size_bytes: int
    """Size in bytes."""

    header_xxh3: str
    """XXH3 of the header in hexadecimal: keys, and names, shapes, types and offsets of the tensors.
    """

    tensors: list[WorkTensor]
    """Tensors in file order."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorkOutput:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            path=data["path"],
            size_bytes=data["size_bytes"],
            header_xxh3=data["header_xxh3"],
            tensors=[WorkTensor.from_dict(v) for v in data["tensors"]],
        )


@dataclass(frozen=True)
class WorkPartReport:
    """Manifest of the part of one shard. A part is complete when its manifest exists."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    plan_sha256: str
    """SHA-256 of the plan."""

    shard: int
    """Number of the shard, from 0."""

    files: list[PartFile]
    """The files, in the order of the plan."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorkPartReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            plan_sha256=data["plan_sha256"],
            shard=data["shard"],
            files=[PartFile.from_dict(v) for v in data["files"]],
        )


@dataclass(frozen=True)
class WorkPlanReport:
    """A command that is divided among shards, as `specconv plan` writes it."""

    schema_version: int
    """`SCHEMA_VERSION`."""

    program: str
    """Name and version of the program. All shards need the same."""

    kind: WorkKind
    """Name of the planned command."""

    command: list[str]
    """Arguments of the program, from the word `plan` on."""

    folder: str
    """Folder in which the command was planned. Relative paths start in the current folder, which is
    this one on machines that share a file system.
    """

    options: str
    """Options besides the inputs that determine the result."""

    inputs: list[WorkInput]
    """Files that are read."""

    sources: list[WorkSource]
    """Repositories on the Hub that are read."""

    outputs: list[WorkOutput]
    """Model files that are written; empty for measurements."""

    parts: WorkParts
    """Form of the parts of model files."""

    shards: list[WorkShard]
    """Work of each shard, in order."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorkPlanReport:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            schema_version=data["schema_version"],
            program=data["program"],
            kind=data["kind"],
            command=data["command"],
            folder=data["folder"],
            options=data["options"],
            inputs=[WorkInput.from_dict(v) for v in data["inputs"]],
            sources=[WorkSource.from_dict(v) for v in data["sources"]],
            outputs=[WorkOutput.from_dict(v) for v in data["outputs"]],
            parts=data["parts"],
            shards=[WorkShard.from_dict(v) for v in data["shards"]],
        )


@dataclass(frozen=True)
class WorkShard:
    """Work of one shard."""

    shard: int
    """Number of the shard, from 0."""

    files: list[WorkFile]
    """Files that the shard writes; empty if there is less work than shards."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorkShard:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            shard=data["shard"],
            files=[WorkFile.from_dict(v) for v in data["files"]],
        )


@dataclass(frozen=True)
class WorkSlice:
    """Rows of a tensor."""

    tensor: int
    """Index of the tensor in the output."""

    first_row: int
    """First row."""

    n_rows: int
    """Number of rows."""

    offset: int
    """Offset of the rows in the output, in bytes."""

    size_bytes: int
    """Bytes of the rows."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorkSlice:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            tensor=data["tensor"],
            first_row=data["first_row"],
            n_rows=data["n_rows"],
            offset=data["offset"],
            size_bytes=data["size_bytes"],
        )


@dataclass(frozen=True)
class WorkSource:
    """A commit on the Hub that a plan reads."""

    repository: str
    """Name of the repository, `org/name`."""

    commit: str
    """Hash of the commit."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorkSource:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            repository=data["repository"],
            commit=data["commit"],
        )


@dataclass(frozen=True)
class WorkTensor:
    """A tensor of a model file."""

    name: str
    """Full name."""

    dtype: str
    """Name of the element type in ggml."""

    shape: list[int]
    """Elements per dimension, the contiguous one first."""

    offset: int
    """Offset of the data in the file, in bytes."""

    size_bytes: int
    """Bytes of data."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorkTensor:
        """Makes the report from its JSON. Unknown fields are ignored."""
        return cls(
            name=data["name"],
            dtype=data["dtype"],
            shape=data["shape"],
            offset=data["offset"],
            size_bytes=data["size_bytes"],
        )

__all__ = [
    "AgreementReport",
    "AgreementTexts",
    "BaselineReport",
    "BenchReport",
    "BenchTasksReport",
    "BreakEven",
    "BuildLookupReport",
    "CardDraft",
    "CardFile",
    "CardReport",
    "Check",
    "ConformanceReport",
    "ConformanceRound",
    "ConformanceTraceReport",
    "ConvertReport",
    "CopyReport",
    "Counters",
    "CoverageReport",
    "CpuModel",
    "CudaDeviceReport",
    "DecidedBy",
    "DemoReport",
    "DevicesReport",
    "Difference",
    "Distribution",
    "DraftFlagsReport",
    "DraftPosition",
    "Estimate",
    "ExpectedTrace",
    "FailedCheck",
    "FileChange",
    "FileReport",
    "Finding",
    "FinishReport",
    "FinishedFile",
    "FirstDifference",
    "FitCause",
    "FitFinding",
    "FitReport",
    "Floor",
    "FloorMeasure",
    "GenerateReport",
    "GraftMtpReport",
    "GraftVocabReport",
    "HashReport",
    "HashedFile",
    "HashedInput",
    "HashedTensor",
    "HeadPlace",
    "HeadReport",
    "HeadTensorReport",
    "HistogramBin",
    "ImatrixEntryReport",
    "ImatrixLayer",
    "ImatrixReport",
    "ImatrixStatistics",
    "InputFile",
    "InspectReport",
    "Interval",
    "InvarianceReport",
    "KeyReport",
    "KindSpeed",
    "KlDivergence",
    "KldReport",
    "LayersReport",
    "LockReport",
    "LockedRanges",
    "LockedSource",
    "LockedTool",
    "LogitsReport",
    "LoopReport",
    "ManifestReport",
    "MapVocabReport",
    "MatrixCell",
    "Measure",
    "MeasureKind",
    "MergeReport",
    "ModelDivergence",
    "Outcome",
    "OwnAcceptance",
    "PairingCheck",
    "PairingOutcome",
    "PairingReport",
    "PartFile",
    "PartRange",
    "Passport",
    "PassportReport",
    "PassportStatus",
    "Percentile",
    "PerplexityReport",
    "PlanPart",
    "PlanReport",
    "PositionLogits",
    "PrefillCost",
    "PromptScores",
    "Provenance",
    "PublishFile",
    "PublishReport",
    "QuantizeReport",
    "RebuildReport",
    "RepairMtpReport",
    "RequantizeMtpReport",
    "Rollback",
    "RowDifference",
    "RunReport",
    "ServerCheck",
    "ServerDifference",
    "ServerPrompt",
    "SetMetadataReport",
    "Severity",
    "SourceReport",
    "SpecTraceReport",
    "SpeculatorAgreement",
    "SpeculatorCounters",
    "SpeculatorVerdict",
    "SpeedChange",
    "SpeedComparison",
    "SplitMtpReport",
    "SplitReport",
    "SplitVocabReport",
    "Spread",
    "Stage",
    "StopReason",
    "SurfaceBreakEven",
    "SurfaceCell",
    "SurfaceReport",
    "TargetScores",
    "TaskFlag",
    "TaskReport",
    "TasksAggregate",
    "TensorChange",
    "TensorReport",
    "Timings",
    "TokenLogit",
    "TokenizeReport",
    "TokenizerReport",
    "TraceResult",
    "TracedFile",
    "TrimVocabReport",
    "TuneChoice",
    "TuneMeasurement",
    "TuneMeasurementsReport",
    "TuneMix",
    "TuneReport",
    "TuneSettings",
    "TypeChange",
    "TypeShare",
    "ValuesReport",
    "Verdict",
    "VerifyReport",
    "VerifyRun",
    "VerifyUrlReport",
    "WayShape",
    "WidthCost",
    "WorkContent",
    "WorkFile",
    "WorkInput",
    "WorkKind",
    "WorkOutput",
    "WorkPartReport",
    "WorkParts",
    "WorkPlanReport",
    "WorkShard",
    "WorkSlice",
    "WorkSource",
    "WorkTensor",
]
