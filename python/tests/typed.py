"""Uses of the module that type checkers must accept, with the types that they must infer."""

from __future__ import annotations

import pathlib
import sys

import specconv
from specconv.reports import ConvertReport, GenerateReport, VerifyReport


def show(progress: specconv.Progress) -> None:
    print(progress.label, progress.done / max(progress.total, 1), file=sys.stderr)


def main(folder: pathlib.Path) -> int:
    one: ConvertReport = specconv.convert(folder, "model.gguf", progress=show)
    several: list[ConvertReport] = specconv.convert(
        folder, "model-{ftype}.gguf", outtype=["f16", "q8_0"]
    )
    sizes: list[int] = [report.output.size_bytes for report in [one, *several]]

    with specconv.open("model.gguf") as file:
        shapes: dict[str, tuple[int, ...]] = {name: file[name].shape for name in file}
        largest = max(file.tensors, key=lambda tensor: tensor.n_bytes)
        mean = float(largest.dequantize().mean())

    verified: VerifyReport = specconv.verify("model.gguf", spec_type=["draft-mtp"], check="fit")
    causes: list[str] = [cause for failed in verified.failed for cause in failed.likely_causes]

    model = specconv.Model.load("model.gguf")
    report: GenerateReport = model.generate("a", 4)
    text = "".join(model.generate("a", 4, stream=True))
    print(sizes, shapes, mean, causes, report.counters.acceptance, text)
    return 0 if verified.passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main(pathlib.Path(sys.argv[1])))
    except specconv.Error as error:
        sys.exit(f"{error} ({error.hint})")
