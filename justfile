# `just` comes with the dev extra: `bin/test` once, then `.venv/bin/just`. Every recipe is a command you could type.

export PATH := justfile_directory() / ".venv/bin:" + env_var("PATH")

# lint and test
default: lint test

# make .venv with everything that development needs
setup:
    root='{{justfile_directory()}}' && . bin/env.sh && drtk_environment dev data quickstart

# the quick tests; arguments go to pytest
test *args:
    bin/test {{args}}

# the tests marked slow: real corpora, agreement with Lucene, throughput
slow *args:
    bin/test -m slow {{args}}

# apply each fault of tests/mutations.toml to a copy of the checkout; the default tests must notice it
mutants *args:
    python tests/mutants.py {{args}}

# format, and mend what the linter can
fmt:
    ruff format .
    ruff check --fix .

# style, types, spelling, and whether the generated docs are current
lint: docs-check
    codespell README.md docs bin
    ruff check .
    ruff format --check .
    mypy

# write the expected outputs anew; then read the diff
golden:
    DRTK_UPDATE_GOLDEN=1 bin/test tests/golden -n 0
    git diff --stat -- tests/golden

# write the generated parts of docs/
docs:
    python docs/generate.py

# are they current?
docs-check:
    python docs/generate.py --check

# the whole pipeline on the sample collection
quickstart *args:
    bin/quickstart {{args}}

# the benchmarks by name, or all of them: storage, encoding, search … beside their peers
bench *names:
    for name in {{ if names == "" { "$(ls benchmarks/*.py | xargs -n 1 basename -s .py)" } else { names } }}; do python benchmarks/$name.py; done

# a method from beginning to end: docs/cookbook/METHOD.sh into runs/METHOD; what else the script wants (MODEL …) comes after METHOD
reproduce method *args:
    sh docs/cookbook/{{method}}.sh runs/{{method}} {{args}}

# SQuAD: chunk, both BM25 engines and the reference figures; data in ../shared/data or $DRTK_TEST_DATA
squad:
    sh docs/cookbook/squad.sh runs/squad

# SimLM's pipeline: CORPUS QUERIES QRELS TEST_QRELS MODEL [OUT]; docs/cookbook/simlm.md
simlm +inputs:
    sh docs/cookbook/simlm.sh {{inputs}}

# one encoder on every collection of a folder in BEIR's layout: BEIR MODEL [OUT]; docs/cookbook/beir.md
beir +inputs:
    sh docs/cookbook/beir.sh {{inputs}}

# EAR on SQuAD with both scorers, from the encoder MODEL; docs/cookbook/ear.sh
ear model:
    sh docs/cookbook/ear.sh runs/ear {{model}}
