"""The documentation: names exist, generated parts are current, examples run."""

import ast
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from huggingface_hub import ModelCard

from drtk.cli.main import COMMANDS
from tests.bm25_data import skip_without_lucene
from tests.contract.calls import FUNCTIONS
from tests.contract.hub import HUB, save_scifact
from tests.contract.run_drtk import make_environment, run_shell, run_successfully
from tests.contract.test_registries import ENTRIES, REGISTRIES
from tests.embedding_server import run_server
from tests.pdf_files import make_pdf
from tests.tiny_models import make_collection, save_tiny_encoder

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SECTIONS = ("Description", "Examples", "See also")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_command_has_a_page_with_its_sections():
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (DOCS / "commands").glob("*.md")}
    assert pages.keys() - {"README"} == set(COMMANDS)
    for command in COMMANDS:
        assert pages[command].startswith(f"# drtk {command}\n")
        headings = re.findall(r"^## (.+)$", pages[command], re.MULTILINE)
        assert [heading for heading in headings if heading in SECTIONS] == list(SECTIONS)
    assert "- `--resume`: Continue an interrupted run." in pages["README"]
    assert "--resume  " not in pages["index"]  # described in README only
    assert "--tune  " in pages["search"]


def test_the_list_of_methods_leads_to_every_page():
    listed = re.findall(
        r"^- \[([\w-]+)\]\(\1\.md\):", (DOCS / "methods" / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(path.stem for path in (DOCS / "methods").glob("*.md") if path.stem != "README")


@pytest.mark.slow
def test_generated_parts_are_current_and_a_check_notices_an_outdated_page(tmp_path):
    shutil.copytree(DOCS, tmp_path / "docs")
    for name in ("drtk", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = [sys.executable, str(tmp_path / "docs" / "generate.py")]
    page = tmp_path / "docs" / "commands" / "chunk.md"
    current = page.read_text(encoding="utf-8")
    page.write_text(current.replace("--max-words", "--most-words", 1), encoding="utf-8")
    outcome = subprocess.run([*command, "--check"], env=make_environment(), capture_output=True, text=True, check=False)
    assert outcome.returncode == 1
    assert outcome.stderr == "docs/commands/chunk.md: is not current; run: python docs/generate.py\n"
    assert subprocess.run(command, env=make_environment(), check=False).returncode == 0
    assert page.read_text(encoding="utf-8") == current


def test_every_registry_entry_is_mentioned():
    # Outside of the generated options.
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    text = "\n".join(re.sub(r"<!-- generated -->.*?<!-- /generated -->", "", page, flags=re.DOTALL) for page in pages)
    words = set(re.findall(r"[\w-]+", text))
    missing = [(place, name) for place, name in ENTRIES if name not in words]
    missing = [each for each in missing if not re.search(rf"(?<![\w-]){re.escape(each[1])}(?![\w-])", text)]
    assert not missing, [(REGISTRIES[place].kind, name) for place, name in missing]


def test_the_functions_that_the_documentation_names_exist():
    for page in PAGES:
        for file, function in re.findall(r"`([\w/]+\.py):([\w.]+?)`", page.read_text(encoding="utf-8")):
            body: list[ast.stmt] = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
            for name in function.split("."):
                named = [node for node in body if name in names_of(node)]
                assert named, f"{relative(page)}: {file} has no {function}"
                body = getattr(named[0], "body", [])


def names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {node.target.id} if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else set()


def test_the_tests_that_the_documentation_names_exist():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {name for source in sources for name in re.findall(r"^ *def (test_\w+)", source, re.MULTILINE)}
    for page in PAGES:
        missing = set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))) - tests
        assert not missing, f"{relative(page)}: {missing}"


def read_prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.+)$", read_prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_resolve():
    for page in [*PAGES, ROOT / "README.md"]:
        for target, anchor in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)]*))?\)", read_prose(page)):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{relative(page)}: no {target}"
            assert not anchor or anchor in anchors_of(linked), f"{relative(page)}: no {target}#{anchor}"


def test_papers_are_cited_with_one_year():
    years = defaultdict(set)  # by authors, and by system: "SimLM (Wang 2023)"
    for page in [*PAGES, *ROOT.glob("drtk/**/*.py"), *ROOT.glob("drtk/presets/*.toml")]:
        text = page.read_text(encoding="utf-8")
        cited = r"([\w-]+)\W{0,3}[,;(] ?([A-Z][A-Za-z, ]+?)(?: and others)? ((?:19|20)\d\d)\b"
        for system, authors, year in re.findall(cited, text):
            years[system].add(year)
            years[authors].add(year)
    several = {name for name in years if len(years[name]) > 1}
    assert several == {"Chuang", "Formal", "Gao and Callan", "Wu"}  # each wrote two papers


def test_no_page_installs_a_package_called_drtk():
    for page in [*PAGES, ROOT / "README.md"]:
        # drtk is on no package index; what has its name there is somebody else's.
        assert not re.findall(r"pip install '?drtk\b", page.read_text(encoding="utf-8"))


def test_commands_and_options_named_in_code_exist():
    for page in [*PAGES, ROOT / "README.md"]:
        for block in re.findall(r"```sh.*?\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            text = block.replace("\\\n", " ")
            for line in re.findall(r"(?:^|[|(;&] *|\$\()drtk ([a-z][^|;&\n#]*)", text, re.MULTILINE):
                name = next((name for name in FUNCTIONS if re.match(rf"{name}\b(?!-)", line)), line.split()[0])
                assert name in FUNCTIONS or name in COMMANDS, f"{relative(page)}: drtk {line}"
                unknown = set(re.findall(r"(?<= )--[a-z][\w-]*", line)) - options_of(name)
                assert not unknown, f"{relative(page)}: drtk {line}: {unknown}"


@cache
def options_of(command: str) -> set[str]:
    """Return the options of a command, or of all steps of a group."""
    steps = [step for step in FUNCTIONS if step == command or step.split()[0] == command]
    return {"--help"} | {
        word
        for step in steps
        for word in re.findall(r"--[a-z][\w-]*", run_successfully(*step.split(), "--help").out.decode())
    }


def examples() -> list[tuple[str, str]]:
    """Return (page, script) for all code blocks marked `sh test`."""
    return [
        (relative(page), block)
        for page in PAGES
        for block in re.findall(r"^```sh test\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ]


QUICK = ("chunk", "convert", "encode", "eval", "fuse", "import", "index", "mine-negatives", "search", "serve")


def marked_examples() -> list[ParameterSet]:
    """Return the examples; all are marked slow, except the first one of each command in QUICK."""
    seen: set[str] = set()
    marked = []
    for page, script in examples():
        quick = Path(page).stem in QUICK and page not in seen
        seen.add(page)
        marked.append(pytest.param(page, script, marks=() if quick else pytest.mark.slow))
    return marked


@pytest.mark.parametrize(("page", "script"), marked_examples())
def test_the_examples_on_the_pages_run(page, script, workplace):
    if re.search("--type (bm25|impact) ", script):
        skip_without_lucene()
    for name, save in HUB.items():
        if name in script:
            save(workplace / name)
    save_scifact(workplace / "home")
    with socket.create_server(("127.0.0.1", 0)) as free:
        script = script.replace("8765", str(free.getsockname()[1]))
    settings = {"IR_DATASETS_HOME": str(workplace / "home"), "DRTK_CACHE": str(workplace / "cache"), "NO_PROXY": "*"}
    with run_server("BAAI/bge-m3") as server:
        script = script.replace("http://localhost:8000/v1#BAAI/bge-m3", server.model)
        outcome = run_shell("-eu", "-c", script, folder=workplace, **settings)
    assert outcome.returncode == 0, f"{page}\n{script}\n{outcome.stderr}"


def shell_blocks(page: Path, begin: str, end: str) -> str:
    """Return the shell commands between two headings of a page."""
    text = page.read_text(encoding="utf-8")
    text = text[text.index(begin) : text.index(end)]
    return "".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


@pytest.fixture
def checkout(workplace: Path) -> Path:
    """Return a folder that looks like a checkout after `bin/quickstart`, with a tiny collection and encoder."""
    folder = workplace.parent / "checkout"
    quickstart = folder / "runs" / "quickstart"
    (quickstart / "data" / "qrels").mkdir(parents=True)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    (folder / "docs").symlink_to(DOCS)
    documents, queries, _ = make_collection(100)
    for name, rows in (("documents", documents), ("queries", queries)):
        (quickstart / "data" / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for split, part in (("train", queries[:80]), ("test", queries[80:])):
        lines = [f"{row['_id']}\td{row['_id'][1:]}\t1\n" for row in part]
        (quickstart / "data" / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    save_tiny_encoder(quickstart / "minilm", max_length=160)
    return folder


@pytest.mark.slow
def test_the_readme_pipeline_runs_as_printed(checkout):
    pytest.importorskip("matplotlib")
    skip_without_lucene()
    script = shell_blocks(ROOT / "README.md", "## A pipeline", "## Commands")
    outcome = run_shell("-eu", "-c", script, folder=checkout)
    assert outcome.returncode == 0, f"{script}\n{outcome.stderr}"
    for warning in ("no judged document was retrieved", "not in the run"):
        assert warning not in outcome.stderr
    for name in ("comparison.html", "differences.png"):
        assert (checkout / "runs" / "by-hand" / name).exists()
    card = ModelCard.load(checkout / "runs" / "by-hand" / "retriever" / "README.md")
    assert (card.data.pipeline_tag, card.data.library_name) == ("sentence-similarity", "sentence-transformers")


@pytest.mark.slow
def test_the_readme_serves_a_folder_of_documents(checkout, forkserver):
    pytest.importorskip("fastapi")
    pytest.importorskip("pypdfium2")
    (checkout / "docs").unlink()  # a link to this documentation, which takes longer
    (checkout / "docs").mkdir()
    (checkout / "docs" / "guide.md").write_text("# Training\n\nResume an interrupted training with --resume.\n")
    (checkout / "docs" / "wings.pdf").write_bytes(
        make_pdf(
            "Start\n" + "The wing is thin.\n" * 40, "Lift\ngrows with speed.", bookmarks=(("Start", 0), ("Lift", 1))
        )
    )
    script = shell_blocks(ROOT / "README.md", "## Your own documents", "## A pipeline")
    commands, separator, serve = script.partition("drtk serve ")
    assert separator
    (search,) = re.findall(r"`(drtk search .*?)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    outcome = run_shell("-eu", "-c", commands + search, folder=checkout)
    assert "--resume" in outcome.stdout, outcome.stderr

    log = checkout / "serve.log"
    server = forkserver.start(["serve", *serve.split(), "--port", "0"], checkout, log)
    try:
        while not (addresses := re.findall(r"http://127\.0\.0\.1:\d+", log.read_text())):
            assert server.status(timeout=0.05) is None, log.read_text()
        with urllib.request.urlopen(f"{addresses[0]}/api/search?query=lift+and+speed", timeout=60) as answer:
            (system,) = json.load(answer)
        assert system["hits"][0]["place"] == "docs/wings.pdf, page 2"
    finally:
        server.kill()


def test_the_readme_and_the_quickstart_use_the_same_file_names():
    names = re.findall(r"-o (\S+)", shell_blocks(ROOT / "README.md", "## A pipeline", "drtk compare"))
    quickstart = (ROOT / "bin" / "quickstart").read_text(encoding="utf-8")
    assert set(names) - set(re.findall(r'-o "\$out/(\S+)"', quickstart)) == set()
    assert {"retriever", "trained.run"} < set(names)


@pytest.mark.slow
def test_the_tutorial_runs_as_printed(checkout):
    pytest.importorskip("faiss")
    skip_without_lucene()
    page = DOCS / "tutorial.md"
    outcome = run_shell("-eu", "-c", shell_blocks(page, "# Tutorial", "## What next"), folder=checkout)
    assert outcome.returncode == 0, outcome.stderr
    printed = re.findall(r"^```text printed\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(printed) == 3
    for block in printed:  # those that do not depend on the encoder, which is another one here
        assert block in outcome.stdout
    assert outcome.stdout.count("no problems found") == 2
    assert re.search(r"^minilm .*\ntrained ", outcome.stdout, re.MULTILINE)  # the last table of eval


def test_every_command_has_an_example_that_runs():
    for command in COMMANDS:
        scripts = [script for page, script in examples() if page == f"docs/commands/{command}.md"]
        assert any(re.search(rf"\bdrtk {command}\b", script) for script in scripts)
