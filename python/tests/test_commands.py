"""Commands as functions: reports, errors, progress, interruption."""

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest
from conftest import MODELS

import specconv


def test_reports_are_typed(model, folder):
    report = specconv.quantize(model, folder / "q8.gguf", "Q8_0")
    assert isinstance(report, specconv.reports.QuantizeReport)
    assert report.ftype == "Q8_0"
    assert report.output.size_bytes == (folder / "q8.gguf").stat().st_size
    assert report.output.types[0].dtype == "Q8_0"


def test_several_types_give_several_reports(folder):
    reports = specconv.convert(
        MODELS / "tiny-draft", folder / "draft-{ftype}.gguf", outtype=["f16", "q8_0"]
    )
    assert [report.outtype for report in reports] == ["f16", "q8_0"]
    assert (folder / "draft-f16.gguf").exists() and (folder / "draft-q8_0.gguf").exists()


def test_files_equal_those_of_the_program(model, folder):
    other = folder / "program.gguf"
    command = [sys.executable, "-m", "specconv", "convert", MODELS / "tiny-qwen35-mtp", "-o", other]
    subprocess.run(command, check=True, capture_output=True)
    assert other.read_bytes() == model.read_bytes()


def test_a_head_is_split_off_and_grafted_back(model, folder):
    body, head, whole = folder / "body.gguf", folder / "head.gguf", folder / "whole.gguf"
    specconv.split_mtp(model, body=body, mtp=head)
    assert specconv.inspect(body).mtp.place == "none"
    specconv.graft_mtp(body, head, whole)
    assert whole.read_bytes() == model.read_bytes()


def test_a_head_that_does_not_fit_raises(model, folder):
    body = folder / "refused-body.gguf"
    specconv.split_mtp(model, body=body)
    with pytest.raises(specconv.Error):
        specconv.graft_mtp(body, folder / "draft-f16.gguf", folder / "no.gguf")
    assert not (folder / "no.gguf").exists()


def test_inspect_lists_tensors(model):
    report = specconv.inspect(model, tensors=True)
    assert report.passed and report.architecture == "qwen35"
    assert len(report.tensors) == report.n_tensors
    assert specconv.inspect(model).tensors is None


def test_verify_passes_and_reports_acceptance(quantized, folder):
    page = folder / "verify.html"
    report = specconv.verify(
        quantized, spec_type="draft-mtp", n_predict=16, check=["fit", "identity"], html=page
    )
    assert report.passed and not report.failed
    assert report.speculators[0].name == "draft-mtp"
    assert "draft-mtp" in page.read_text()


def test_a_failed_check_is_a_report(quantized):
    report = specconv.verify(
        quantized, spec_type="draft-mtp", n_predict=16, check="acceptance", min_accept=1.0
    )
    assert not report.passed
    assert report.failed[0].check == "acceptance"


def test_errors_have_the_texts_of_the_program(folder):
    missing = folder / "missing.gguf"
    with pytest.raises(specconv.Error) as caught:
        specconv.inspect(missing)
    command = [sys.executable, "-m", "specconv", "inspect", missing]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[0] == f"error: {caught.value}"


def test_errors_have_hints(model, folder):
    with pytest.raises(specconv.Error) as caught:
        specconv.quantize(model, folder / "x.gguf", "Q4_K_X")
    assert "Q4_K_X" in str(caught.value)
    with pytest.raises(specconv.Error) as caught:
        specconv.convert(MODELS / "tiny-qwen35-mtp", model)
    assert "--overwrite" in f"{caught.value} {caught.value.hint}"
    assert specconv.convert(MODELS / "tiny-qwen35-mtp", model, overwrite=True).written


def test_progress_reaches_the_total(model, folder):
    seen = []
    specconv.quantize(model, folder / "progress.gguf", "Q8_0", progress=seen.append)
    writing = [event for event in seen if event.label.startswith("write")]
    assert writing[-1].done == writing[-1].total > 0
    assert writing[-1].unit == "bytes"


def test_notes_are_logged(model, folder, caplog):
    caplog.set_level(logging.INFO, "specconv")
    specconv.quantize(model, folder / "notes.gguf", "Q4_K_M", args=["--threads=1"])
    assert all(record.name == "specconv" for record in caplog.records)


def test_an_exception_of_the_callback_is_raised(model, folder):
    def fail(progress):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        specconv.quantize(model, folder / "raises.gguf", "Q8_0", progress=fail)


def test_threads_run_at_the_same_time(model, folder):
    results = {}

    def run(name):
        results[name] = specconv.quantize(model, folder / f"{name}.gguf", "Q8_0", threads=1)

    threads = [threading.Thread(target=run, args=(f"t{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = {report.output.path for report in results.values()}
    assert paths == {str(folder / f"t{i}.gguf") for i in range(3)}


def test_ctrl_c_ends_verify(quantized):
    code = (
        "import specconv, sys\n"
        "try:\n"
        "    print('started', flush=True)\n"
        "    specconv.verify(sys.argv[1], n_predict=100000, args=['--matrix=full'])\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(7)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, quantized], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"started\n"
    # The interpreter's own handler receives the signal wherever the call is.
    while process.poll() is None:
        os.kill(process.pid, signal.SIGINT)
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            pass
    process.stdout.close()
    assert process.returncode == 7


def test_versions_agree():
    command = [sys.executable, "-m", "specconv", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[0] == f"specconv {specconv.__version__}"
    assert "commit: " in printed and "target: " in printed


def test_exit_codes(model):
    run = lambda *args: subprocess.run(  # noqa: E731
        [sys.executable, "-m", "specconv", *args], capture_output=True
    ).returncode
    assert run("inspect", model) == 0
    assert run("inspect", "missing.gguf") == 2
    assert run("no-such-command") == 2
