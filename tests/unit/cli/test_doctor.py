"""drtk doctor: each message contains the problem or its remedy."""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from typer.testing import CliRunner

from drtk.cli import doctor as diagnosis
from drtk.cli.doctor import CheckResult
from drtk.cli.main import app
from tests.bm25_data import skip_without_lucene


def test_this_environment_is_healthy_and_each_result_has_details(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    results = {result.what: result for check in diagnosis._CHECKS for result in check()}
    assert "missing" not in {result.state for result in results.values()}
    for needed in ("python", "torch", "transformers", "nltk", "bm25s"):
        assert results[needed].state == "ok", results[needed]
    assert results["model hub"].fix == "unset HF_HUB_OFFLINE"
    assert all(result.found for result in results.values())


def test_a_missing_base_library_is_missing_and_an_extra_is_only_absent(monkeypatch):
    def nowhere(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(diagnosis, "version", nowhere)
    base = diagnosis._check_package("bm25s", needed=True)
    extra = diagnosis._check_package("matplotlib", needed=False, use="plots")
    assert (base.state, base.fix) == ("missing", f"{sys.executable} -m pip install bm25s")
    assert (extra.state, extra.found, extra.fix) == ("absent", "plots", f"{sys.executable} -m pip install matplotlib")
    for results, code in (([extra], 0), ([base, extra], 1)):
        monkeypatch.setattr(diagnosis, "_CHECKS", (lambda results=results: results,))
        assert CliRunner().invoke(app, ["doctor"]).exit_code == code


def test_a_version_below_the_minimum_is_reported(monkeypatch):
    monkeypatch.setattr(diagnosis, "version", lambda name: "0.1")
    base = diagnosis._check_package("bm25s", needed=True)
    assert (base.state, base.found) == ("missing", "0.1, but drtk needs >=0.3.10")
    assert base.fix == f"{sys.executable} -m pip install 'bm25s>=0.3.10'"
    assert diagnosis._check_package("wandb", needed=False).state in ("ok", "absent")  # not a requirement


def test_the_packages_of_all_extras_are_checked():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    others = {"cpu", "gpu", "lucene", "dev"}  # faiss and Lucene have their own checks
    extras = [packages for name, packages in project["optional-dependencies"].items() if name not in others]
    names = {re.match(r"[\w-]+", package)[0] for packages in extras for package in packages}
    assert names - {finding.what for finding in diagnosis._check_extras()} == set()


def test_an_unreachable_hub_is_reported_with_the_reason(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens

    (finding,) = diagnosis._check_hub()
    assert finding.state == "absent"
    assert "127.0.0.1:9" in finding.found


def test_java_is_started_and_its_errors_are_reported(monkeypatch):
    skip_without_lucene()
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    monkeypatch.setenv("DRTK_JAVA_OPTIONS", "-Xmx64m")
    *actual, started = diagnosis._check_lucene()
    assert {each.what: each.state for each in actual} == dict.fromkeys(("java runtime", "lucene jar", "pyjnius"), "ok")
    assert started == CheckResult("java start", "ok", "Java starts with $DRTK_JAVA_OPTIONS")
    monkeypatch.setenv("DRTK_JAVA_OPTIONS", "-Xmx1k")  # Java is there, and yet of no use
    *_, started = diagnosis._check_lucene()
    assert started == CheckResult(
        "java start",
        "absent",
        "Lucene cannot be used, because Java does not start: Error occurred during initialization of VM: Too small maximum heap",
        "change or unset $DRTK_JAVA_OPTIONS",
    )
