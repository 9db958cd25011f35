"""Engine vllm: the calls of vLLM's API (0.19 and 0.33) that drtk makes, with a fake module."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from drtk.errors import MismatchError, UsageError
from drtk.models.generation import TextGenerator
from drtk.models.vllm_generator import load_generator
from drtk.query_expansion.config import ExpansionSettings
from tests.expansion_collection import write_rows
from tests.run_commands import run_rows

TEXTS = ["rivers winters", "planets", "market rivers planets"]


class FakeLLM:
    """Fake vllm.LLM whose n-th text is the first n tokens of the prompt, then the end token."""

    engines: ClassVar[list[dict[str, Any]]]
    requests: ClassVar[list[tuple[list[int], dict[str, Any]]]]

    def __init__(self, *, model, dtype, max_model_len, generation_config, trust_remote_code):
        assert not trust_remote_code
        os.write(1, b"[Gloo] Rank 0 is connected\n")
        subprocess.run(["echo", "loading weights"], check=True)
        self.engines.append({"model": model, "dtype": dtype, "length": max_model_len, "config": generation_config})

    def generate(self, prompts, sampling_params, *, use_tqdm=True):
        outputs = []
        for prompt, params in zip(prompts, sampling_params, strict=True):
            ids = prompt["prompt_token_ids"]
            self.requests.append((ids, vars(params)))
            end = params.stop_token_ids[0]
            texts = [(*ids[: number + 1], end, ids[0]) for number in range(getattr(params, "n", 1))]
            outputs.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=text) for text in texts]))
        return outputs


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    module: Any = ModuleType("vllm")
    module.LLM, module.SamplingParams = FakeLLM, SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "")
    monkeypatch.delenv("VLLM_LOGGING_STREAM")
    FakeLLM.engines, FakeLLM.requests = [], []
    return FakeLLM


def make_generator(model: Path, **settings: Any) -> TextGenerator:
    given = ExpansionSettings(engine="vllm", **({"max_new_tokens": 4, "decode": "greedy"} | settings))
    given.check()
    return load_generator(str(model), given, seed=3, device="auto")


@pytest.mark.parametrize(
    ("decode", "temperatures"), [("greedy", [0.0]), ("greedy+sample", [0.0, 0.7]), ("sample", [0.7])]
)
def test_greedy_texts_come_first_and_samples_have_the_settings_and_a_seed(models, vllm, decode, temperatures):
    options: dict[str, Any] = {} if decode == "greedy" else {"temperature": 0.7, "top_k": 9, "n": 3}
    generator = make_generator(models / "gpt2", decode=decode, **options)
    tokens = generator.tokenize(TEXTS)
    texts = generator.generate(tokens, ["a", "b", "a"])
    assert [request["temperature"] for _, request in vllm.requests[:: len(TEXTS)]] == temperatures
    ids = [generator._model.tokenizer(text)["input_ids"] for text in TEXTS]
    assert [prompt for prompt, _ in vllm.requests] == ids * len(temperatures)
    lengths = {"greedy": [1], "greedy+sample": [1, 1, 2], "sample": [1, 2, 3]}[decode]
    assert texts == [generator._detokenize([row[:length] for length in lengths]) for row in ids]
    assert all(request["max_tokens"] == 4 and not request["detokenize"] for _, request in vllm.requests)
    if decode != "greedy":
        samples = [request for _, request in vllm.requests[-len(TEXTS) :]]
        assert {(request["top_k"], request["top_p"]) for request in samples} == {(9, 1.0)}
        assert samples[0]["seed"] == samples[2]["seed"] != samples[1]["seed"]
        assert all(0 <= request["seed"] < 2**63 for request in samples)


def test_the_engine_reads_the_models_folder_and_no_weights_are_loaded_twice(models, vllm, capfd):
    generator = make_generator(models / "gpt2", precision="bfloat16")
    assert capfd.readouterr() == ("", "[Gloo] Rank 0 is connected\nloading weights\n")  # stdout is for records
    os.write(1, b"record\n")
    assert capfd.readouterr().out == "record\n"
    assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
    length = generator.max_input_tokens + 4
    folder = str((models / "gpt2").resolve())
    assert vllm.engines == [{"model": folder, "dtype": "bfloat16", "length": length, "config": "vllm"}]
    assert all(each.is_meta for each in generator._model.model.parameters())
    plain = load_generator(folder, ExpansionSettings(max_new_tokens=4, decode="sample"), seed=3, device="cpu")
    assert (plain.max_input_tokens, plain._model.ends) == (generator.max_input_tokens, generator._model.ends)


def test_batches_keep_their_sizes_and_order_and_an_empty_text_has_a_prompt(models, vllm):
    generator = make_generator(models / "gpt2", decode="sample", n=1)
    batches = [(generator.tokenize(texts), texts) for texts in ([TEXTS[0]], [], ["", *TEXTS[1:]])]
    assert [len(texts) for texts in generator.generate_batches(batches * 7)] == [1, 0, 3] * 7
    assert all(prompt for prompt, _ in vllm.requests)


def test_continue_text_runs_the_engine(models, vllm, folder, capfd):
    write_rows(folder / "c.jsonl", [{"_id": text[:3], "title": "", "text": text} for text in TEXTS])
    call = f"continue-text c.jsonl --model {models}/gpt2 --engine vllm --n 2 --max-new-tokens 8 --bare -q"
    rows = run_rows(capfd, call)
    assert [(row["_id"], len(row["continuations"])) for row in rows] == [(text[:3], 2) for text in TEXTS]
    assert len(vllm.requests) == len(TEXTS)


def test_beams_encoder_decoders_and_a_missing_package_are_errors(models, vllm, monkeypatch):
    for settings, message in (
        ({"decode": "beam"}, "`engine` vllm cannot be combined with `decode` beam"),
        ({"batch_tokens": 100}, "batch_tokens"),
        ({"decode": "sample", "temperature": 3}, "must be at most 2 with `engine` vllm"),
    ):
        with pytest.raises(UsageError, match=message):
            make_generator(models / "gpt2", **settings)
    with pytest.raises(UsageError, match=r"`device` cuda:1: `engine` vllm uses the first GPU"):
        load_generator(str(models / "gpt2"), ExpansionSettings(engine="vllm"), seed=3, device="cuda:1")
    with pytest.raises(MismatchError, match="requires a decoder-only model"):
        make_generator(models / "t5")
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UsageError, match=r"requires vllm; run .*pip install vllm$"):
        make_generator(models / "gpt2")
