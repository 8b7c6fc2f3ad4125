"""Commands of both programs as functions that return their reports."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from typing import Any, Literal, Optional, Union, overload

from . import _native
from ._errors import CheckFailed
from ._progress import ProgressArgument, callback
from .reports import (
    ConvertReport,
    GraftMtpReport,
    InspectReport,
    QuantizeReport,
    SplitMtpReport,
    VerifyReport,
)

_Path = Union[str, "os.PathLike[str]"]
_Paths = Union[_Path, Sequence[_Path]]

_logger = logging.getLogger("specconv")
_LEVELS = {"warning": logging.WARNING, "error": logging.ERROR}


def _log(kind: str, text: str) -> None:
    _logger.log(_LEVELS.get(kind, logging.INFO), "%s", text)


def _list(values: Any) -> list[Any]:
    """Returns a sequence as a list, and a single value as a list of one."""
    if values is None:
        return []
    if isinstance(values, (str, os.PathLike)):
        return [values]
    return list(values)


def _flags(**flags: Any) -> list[str]:
    """Returns the flags of a command. ``None`` and ``False`` omit a flag, sequences repeat it."""
    args = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            args.append(flag)
        elif value is not None and value is not False:
            for item in [value] if isinstance(value, (int, float)) else _list(value):
                args.append(f"{flag}={os.fspath(item) if isinstance(item, os.PathLike) else item}")
    return args


def _call(
    program: str, command: str, args: Sequence[Any], progress: ProgressArgument
) -> tuple[Any, bool]:
    words = [command, "--json", *(os.fspath(a) if isinstance(a, os.PathLike) else a for a in args)]
    stdout, passed = _native.call(program, words, _log, callback(progress))
    return json.loads(stdout), passed


@overload
def convert(
    src: _Path,
    out: Optional[_Path] = ...,
    *,
    outtype: str = ...,
    mtp: Literal["inline", "only", "without", "dspark"] = ...,
    tokenizer_from: Optional[_Path] = ...,
    target_model_dir: Optional[_Path] = ...,
    threads: Optional[int] = ...,
    dry_run: bool = ...,
    overwrite: bool = ...,
    progress: ProgressArgument = ...,
    args: Sequence[str] = ...,
) -> ConvertReport: ...
@overload
def convert(
    src: _Path,
    out: Optional[_Path] = ...,
    *,
    outtype: list[str],
    mtp: Literal["inline", "only", "without", "dspark"] = ...,
    tokenizer_from: Optional[_Path] = ...,
    target_model_dir: Optional[_Path] = ...,
    threads: Optional[int] = ...,
    dry_run: bool = ...,
    overwrite: bool = ...,
    progress: ProgressArgument = ...,
    args: Sequence[str] = ...,
) -> list[ConvertReport]: ...
def convert(
    src: _Path,
    out: Optional[_Path] = None,
    *,
    outtype: Union[str, list[str]] = "auto",
    mtp: Literal["inline", "only", "without", "dspark"] = "inline",
    tokenizer_from: Optional[_Path] = None,
    target_model_dir: Optional[_Path] = None,
    threads: Optional[int] = None,
    dry_run: bool = False,
    overwrite: bool = False,
    progress: ProgressArgument = None,
    args: Sequence[str] = (),
) -> Union[ConvertReport, list[ConvertReport]]:
    """Converts a checkpoint folder, or ``hf://org/name``, to GGUF: ``specconv convert``.

    A list of types writes one file each, with ``{ftype}`` in the name ``out``. ``args`` are further flags of the
    command.
    """
    flags = _flags(
        outfile=out,
        outtype=",".join(_list(outtype)),
        mtp=mtp == "only",
        no_mtp=mtp == "without",
        dspark=mtp == "dspark",
        tokenizer_from=tokenizer_from,
        target_model_dir=target_model_dir,
        threads=threads,
        dry_run=dry_run,
        overwrite=overwrite,
    )
    report, _ = _call("specconv", "convert", [*flags, *args, "--", src], progress)
    reports = [ConvertReport.from_dict(r) for r in (report if isinstance(report, list) else [report])]
    return reports if isinstance(outtype, list) else reports[0]


def quantize(
    src: _Path,
    out: _Path,
    ftype: str,
    *,
    mtp_type: Optional[str] = None,
    output_tensor_type: Optional[str] = None,
    token_embedding_type: Optional[str] = None,
    tensor_type: Sequence[str] = (),
    imatrix: Optional[_Path] = None,
    threads: Optional[int] = None,
    dry_run: bool = False,
    overwrite: bool = False,
    progress: ProgressArgument = None,
    args: Sequence[str] = (),
) -> QuantizeReport:
    """Quantizes a model or a checkpoint folder: ``specconv quantize``.

    ``tensor_type`` are rules such as ``"attn_v=q6_k"``. ``args`` are further flags of the command.
    """
    flags = _flags(
        mtp_type=mtp_type,
        output_tensor_type=output_tensor_type,
        token_embedding_type=token_embedding_type,
        tensor_type=tensor_type,
        imatrix=imatrix,
        threads=threads,
        dry_run=dry_run,
        overwrite=overwrite,
    )
    report, _ = _call("specconv", "quantize", [*flags, *args, "--", src, out, ftype], progress)
    return QuantizeReport.from_dict(report)


def split_mtp(
    src: _Path,
    *,
    body: Optional[_Path] = None,
    mtp: Optional[_Path] = None,
    threads: Optional[int] = None,
    dry_run: bool = False,
    overwrite: bool = False,
    progress: ProgressArgument = None,
    args: Sequence[str] = (),
) -> SplitMtpReport:
    """Splits a model into its body and its MTP head: ``specconv split-mtp``."""
    flags = _flags(
        body=body, mtp=mtp, threads=threads, dry_run=dry_run, overwrite=overwrite
    )
    report, _ = _call("specconv", "split-mtp", [*flags, *args, "--", src], progress)
    return SplitMtpReport.from_dict(report)


def graft_mtp(
    target: _Path,
    mtp: _Path,
    out: _Path,
    *,
    mtp_embeddings: Optional[str] = None,
    force: bool = False,
    threads: Optional[int] = None,
    dry_run: bool = False,
    overwrite: bool = False,
    progress: ProgressArgument = None,
    args: Sequence[str] = (),
) -> GraftMtpReport:
    """Adds the MTP head of ``mtp`` to ``target``: ``specconv graft-mtp``.

    Raises :class:`CheckFailed` if the head does not belong to the model; nothing is written then.
    """
    flags = _flags(
        target=target,
        mtp=mtp,
        outfile=out,
        mtp_embeddings=mtp_embeddings,
        force=force,
        threads=threads,
        dry_run=dry_run,
        overwrite=overwrite,
    )
    data, passed = _call("specconv", "graft-mtp", [*flags, *args], progress)
    report = GraftMtpReport.from_dict(data)
    if not passed:
        raise CheckFailed(f"{os.fspath(target)}: the head of {os.fspath(mtp)} was refused", report)
    return report


def inspect(path: _Path, *, tensors: bool = False) -> InspectReport:
    """Describes a file and checks its tensors against its keys: ``specconv inspect``."""
    args = [*_flags(tensors=tensors), "--", path]
    report, _ = _call("specconv", "inspect", args, None)
    return InspectReport.from_dict(report)


def verify(
    model: _Path,
    *,
    draft: _Paths = (),
    spec_type: Union[str, Sequence[str], None] = None,
    prompts: Optional[_Path] = None,
    n_predict: Optional[int] = None,
    check: Union[str, Sequence[str], None] = None,
    min_accept: Optional[float] = None,
    min_speedup: Optional[float] = None,
    baseline: Optional[_Path] = None,
    report: Optional[_Path] = None,
    junit: Optional[_Path] = None,
    sarif: Optional[_Path] = None,
    markdown: Optional[_Path] = None,
    html: Optional[_Path] = None,
    threads: Optional[int] = None,
    overwrite: bool = False,
    progress: ProgressArgument = None,
    args: Sequence[str] = (),
) -> VerifyReport:
    """Proves that speculation changes only the speed, and that drafts are accepted: ``specrun verify``.

    A failed check is part of the report (``report.passed``, ``report.failed``), not an exception.
    """
    flags = _flags(
        model_draft=draft,
        spec_type=",".join(_list(spec_type)) or None,
        prompts=prompts,
        n_predict=n_predict,
        check=",".join(_list(check)) or None,
        min_accept=min_accept,
        min_speedup=min_speedup,
        baseline=baseline,
        report=report,
        junit=junit,
        sarif=sarif,
        markdown=markdown,
        html=html,
        threads=threads,
        overwrite=overwrite,
    )
    data, _ = _call("specrun", "verify", [*flags, *args, "--", model], progress)
    return VerifyReport.from_dict(data)
