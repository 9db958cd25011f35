"""Unknown options are answered with their names here."""

import pytest

from tests.contract.run_drtk import run_in_process


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("train-retriever --lr 1", "no such option --lr; did you mean --learning-rate?"),
        ("train-retriever --temperature-warmup", "--temperature-warmup is a setting: --set temperature_warmup=true"),
        ("rerank-queries train --no-skip-ties", "--no-skip-ties is a setting: --set skip_ties=false"),
        ("encode --dtype float16", "no such option --dtype; did you mean --precision or --vector-dtype?"),
        ("train-retriever --learning_rate 1", "no such option --learning_rate; did you mean --learning-rate?"),
        ("train-retriever --max-seq-length 1", "did you mean --query-length or --passage-length?"),
        ("train-retriever --temprature 1", "no such option --temprature; did you mean --set temperature=VALUE?"),
        ("search --hits 1", "no such option --hits; did you mean --depth?"),
        (
            "encode --sparse",
            "no such option --sparse; sparse encoders are recognized by their model folder; for a plain masked language model",
        ),
        ("doc2query --keep 0.5", "no such option --keep; filter the queries with drtk keep-queries afterwards"),
        ("chunk --set banana=1", "no such option --set banana (drtk presets --fields 'chunk' lists the settings)"),
        ("chunk --set reserve_specials=true", "did you mean --set reserve_special?"),
        ("chunk --set overlap=2 --overlap 3", "--set overlap and --overlap cannot be combined; give one"),
        ("chunk --set punkt_mb=much", "--set punkt_mb: expected float, got 'much'"),
    ],
)
def test_an_unknown_option_is_answered_with_its_name_or_meaning(call: str, message: str) -> None:
    outcome = run_in_process(*call.split())
    assert outcome.status == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
