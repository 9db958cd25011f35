"""Generated texts do not depend on the batch, and equal those of transformers without sampling."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.activations import NewGELUActivation

from drtk.models import generation
from drtk.models.checkpoint import save_pretrained_model
from drtk.models.config import GenerationSettings, InitModelSettings
from drtk.models.generation import (
    InputBatch,
    TextGenerator,
    _sample_next_tokens,
    compute_filtered_probabilities,
    find_ignored_settings,
    generate_tokens,
    iter_generated_tokens,
    sample_tokens,
    sample_uniforms,
)
from drtk.models.init_model import train_tokenizer
from drtk.models.seq2seq import (
    SHARED_KEYS,
    DecodingState,
    GenerationModel,
    count_bytes_per_token,
    load_generation_model,
)
from tests.tiny_models import make_passages

LENGTHS = (5, 9, 12, 3, 7)


def generate_in_transformers(
    writer: GenerationModel, ids: torch.Tensor, mask: torch.Tensor, *, n: int, beams: int, max_new_tokens: int = 12
) -> list[list[int]]:
    """Return the tokens that transformers generates, without the end token."""
    rows = writer.model.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, num_beams=beams, num_return_sequences=n, pad_token_id=0,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    lists = [row[1 if writer.is_encoder_decoder else ids.shape[1] :].tolist() for row in rows]
    return [row[: next((at for at, token in enumerate(row) if token in writer.ends), len(row))] for row in lists]


def flatten(texts: list[list[list[int]]]) -> list[list[int]]:
    return [text for group in texts for text in group]


class Pads:
    """Fake tokenizer with the attributes that decoding uses."""

    pad_token_id = 0


def create_tiny_writer(kind: str) -> GenerationModel:
    """Create an untrained model (vocabulary size 50) with weights so large that distributions differ.

    kind: "t5", "bart" or "gpt2"; "… shared": the texts of an input share its keys
    """
    kind, _, shared = kind.partition(" ")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        size = {"vocab_size": 50}
        if kind == "t5":
            config = T5Config(
                **size, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
                pad_token_id=0, eos_token_id=1,
            )  # fmt: skip
            writer = GenerationModel(T5ForConditionalGeneration(config), Pads, True, 0, (1,), 128)
        elif kind == "bart":
            config = BartConfig(
                **size, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=128,
                pad_token_id=0, bos_token_id=3, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
            )  # fmt: skip
            writer = GenerationModel(BartForConditionalGeneration(config), Pads, True, 2, (2,), 128)
        else:
            config = GPT2Config(**size, n_embd=32, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=1)
            writer = GenerationModel(GPT2LMHeadModel(config), Pads, False, 1, (1,), 128)
    for weights in writer.model.parameters():
        weights.data *= 3
    writer.model.eval()
    if shared:
        writer.model.set_attn_implementation(SHARED_KEYS)
    return writer


def make_inputs(writer: GenerationModel, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random inputs of several lengths, padded on the model's side."""
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(3, 50, (length,), generator=generator).tolist() for length in LENGTHS]
    width = max(LENGTHS[row] for row in rows)
    ids, mask = [], []
    for row in rows:
        pad, text = [0] * (width - LENGTHS[row]), texts[row]
        ids.append(text + pad if writer.is_encoder_decoder else pad + text)
        mask.append([1] * len(text) + pad if writer.is_encoder_decoder else pad + [1] * len(text))
    return torch.tensor(ids), torch.tensor(mask)


KINDS = ["t5", "bart", "gpt2", "t5 shared", "bart shared"]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_depend_only_on_seed_and_key(kind: str) -> None:
    writer, keys = create_tiny_writer(kind), list("abcde")
    settings = GenerationSettings(n=4, max_new_tokens=16)
    together = generate_tokens(writer, *make_inputs(writer, [0, 1, 2, 3, 4]), keys, settings, seed=7)
    assert [len(actual) for actual in together] == [4] * 5
    assert len({tuple(text) for actual in together for text in actual}) > 5
    for row in range(5):
        alone = generate_tokens(writer, *make_inputs(writer, [row]), [keys[row]], settings, seed=7)
        assert alone == [together[row]]
    two = generate_tokens(writer, *make_inputs(writer, [3, 1]), ["d", "b"], settings, seed=7)
    assert two == [together[3], together[1]]
    fewer = generate_tokens(writer, *make_inputs(writer, [2]), ["c"], replace(settings, n=2), seed=7)
    assert fewer == [together[2][:2]]  # the first of four are the first of two
    assert generate_tokens(writer, *make_inputs(writer, [2]), ["c"], settings, seed=8) != [together[2]]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_and_beam_texts_are_those_of_transformers(kind: str) -> None:
    writer = create_tiny_writer(kind)
    ids, mask = make_inputs(writer, [0, 1, 2, 3])
    for settings in (GenerationSettings(n=1, decode="greedy"), GenerationSettings(n=2, decode="beam", beams=3)):
        ours = generate_tokens(writer, ids, mask, list("abcd"), replace(settings, max_new_tokens=12), seed=1)
        beams = settings.beams if settings.decode == "beam" else 1
        assert flatten(ours) == generate_in_transformers(writer, ids, mask, n=settings.n, beams=beams)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_inputs_that_join_the_batch_later_are_the_same(kind: str) -> None:
    writer, keys = create_tiny_writer(kind), list("abcde")
    settings = GenerationSettings(n=3, max_new_tokens=16)
    expected = generate_tokens(writer, *make_inputs(writer, [0, 1, 2, 3, 4]), keys, settings, seed=7)
    order, calls = [3, 1, 0, 4, 2], 0

    def read() -> InputBatch | None:  # an input at every third call
        nonlocal calls
        calls += 1
        if calls % 3 or not order:
            return None
        row = order.pop(0)
        return InputBatch(*make_inputs(writer, [row]), [row], [keys[row]])

    texts = {}
    while order:  # decoding ends if there is no input when all texts are finished
        for finished in iter_generated_tokens(writer, read, settings, seed=7):
            texts |= finished
    assert texts == {(row, at): text for row, group in enumerate(expected) for at, text in enumerate(group)}


def test_batches_are_processed_together_and_returned_in_order(models: Path) -> None:
    texts = [passage.text for passage in make_passages(16)]
    parts = [slice(0, 5), slice(5, 5), slice(5, 7), slice(7, 16)]
    generated = []
    for batch_tokens in (None, 150):
        settings = GenerationSettings(n=3, max_new_tokens=12, batch_tokens=batch_tokens)
        generator = TextGenerator(f"{models}/t5", settings, seed=3, device="cpu")
        batches = [(generator.tokenize(texts[part]), [f"d{at}" for at in range(16)][part]) for part in parts]
        generated.append([*generator.generate_batches(batches)])
        assert generated[-1] == [generator.generate(*batch) for batch in batches]
    assert generated[0] == generated[1]
    assert [len(batch) for batch in generated[0]] == [5, 0, 2, 9]


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_the_padded_cache_fits_into_the_budget(kind: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 480
    settings = GenerationSettings(n=2, max_new_tokens=8, batch_tokens=budget, top_p=1.0)
    generator = TextGenerator(f"{models}/{kind}", settings, seed=3, device="cpu")
    passages = [passage.text for passage in make_passages(30)]
    short = [text[:9] for text in passages] * 3
    texts = short + [" ".join([text] * 9) for text in passages[:1]] + short
    sizes: list[int] = []
    step = DecodingState.append

    def record_size(self: DecodingState, tokens: torch.Tensor) -> None:
        step(self, tokens)
        caches = [self._self_attention] + ([self._cache.cross_attention_cache] if kind == "t5" else [])
        sizes.append(sum(cache.layers[0].keys.shape[0] * cache.layers[0].keys.shape[2] for cache in caches))

    monkeypatch.setattr(DecodingState, "append", record_size)
    batches = [(generator.tokenize([text]), [str(at)]) for at, text in enumerate(texts)]
    lengths = [int(tokens.lengths[0]) for tokens, _ in batches]
    assert max(lengths) > 10 * lengths[0]
    assert len([*generator.generate_batches(batches)]) == len(texts)
    assert 0.7 * budget < max(sizes) <= budget


def test_the_default_budget_is_half_of_a_gpu(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("t5", "bart", "gpt2"):  # 2 layers, keys and values, width 32, float32
        assert count_bytes_per_token(create_tiny_writer(kind)) == 2 * 2 * 32 * 4
    free = 1 << 30
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free, free))
    for new in (1, 64):
        generator = TextGenerator(f"{models}/t5", GenerationSettings(max_new_tokens=new), seed=3, device="cpu")
        assert generator._choose_budget() == 16_384
        generator._device = torch.device("cuda")
        vocabulary = generator._model.model.config.vocab_size
        rows = generator._choose_budget() / new  # of inputs without tokens
        size = rows * (new * count_bytes_per_token(generator._model) + vocabulary * 4)
        assert size == pytest.approx(free / 2, rel=1e-3)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_logits_equal_transformers(models: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    folder = models / kind
    writer = load_generation_model(folder)
    assert not any(isinstance(module, NewGELUActivation) for module in writer.model.modules())
    monkeypatch.setattr("drtk.models.seq2seq._CPU_ENCODED_TOKENS", 25)  # two texts of 12 tokens
    ids, mask = make_inputs(writer, [0, 1, 2, 3, 4])
    if kind == "t5":
        reference = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        start = torch.full((len(ids), 1), writer.start)
        expected = reference(input_ids=ids, attention_mask=mask, decoder_input_ids=start).logits[:, -1]
    else:
        reference = AutoModelForCausalLM.from_pretrained(folder).eval()
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        expected = reference(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -1]
    torch.testing.assert_close(DecodingState(writer, ids, mask).logits, expected, atol=1e-5, rtol=1e-5)


def test_finished_rows_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = create_tiny_writer("bart")
    widths: list[int] = []
    step = DecodingState.append

    def record_width(self: DecodingState, tokens: torch.Tensor) -> None:
        widths.append(len(tokens))
        step(self, tokens)

    monkeypatch.setattr(DecodingState, "append", record_width)
    settings = GenerationSettings(n=20, max_new_tokens=40, top_k=0, top_p=1.0)
    generate_tokens(writer, *make_inputs(writer, [0, 1]), ["a", "b"], settings, seed=1)
    assert widths[0] == 40
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 40


@pytest.mark.parametrize(("decode", "n", "beams"), [("greedy", 1, 1), ("sample", 3, 1), ("beam", 2, 3)])
def test_every_decoding_method_begins_with_the_forced_token(decode: Any, n: int, beams: int) -> None:
    settings = GenerationSettings(n=n, decode=decode, max_new_tokens=10, **({"beams": beams} if beams > 1 else {}))
    writer = create_tiny_writer("bart")
    ids, mask = make_inputs(writer, [0, 1, 2, 3])
    free = generate_tokens(writer, ids, mask, list("abcd"), settings, seed=1)
    assert any(text[:1] != [7] for text in flatten(free))
    writer.first = 7
    forced = generate_tokens(writer, ids, mask, list("abcd"), settings, seed=1)
    assert all(text[0] == 7 for text in flatten(forced))
    writer.model.generation_config.forced_bos_token_id = 7
    if decode != "sample":
        assert flatten(forced) == generate_in_transformers(writer, ids, mask, max_new_tokens=10, n=n, beams=beams)


def test_the_forced_first_token_is_stored_in_the_folder(tmp_path: Path) -> None:
    model = create_tiny_writer("bart").model
    model.generation_config.forced_bos_token_id = 7
    tokenizer = train_tokenizer(["some words for a tokenizer"], InitModelSettings(vocab_size=50, min_frequency=1))
    save_pretrained_model(model, tokenizer, tmp_path)
    writer = load_generation_model(tmp_path)
    assert (writer.start, writer.first, writer.ends) == (2, 7, (2,))
    save_pretrained_model(writer.model, tokenizer, tmp_path / "again")
    assert load_generation_model(tmp_path / "again").first == 7  # training keeps it


def test_beam_search_ignores_the_generation_settings_that_sampling_ignores() -> None:
    writer = create_tiny_writer("bart")
    ids, mask = make_inputs(writer, [0, 1, 2, 3])
    settings = GenerationSettings(n=2, decode="beam", beams=3, max_new_tokens=12)
    before = generate_tokens(writer, ids, mask, list("abcd"), settings, seed=1)
    wishes = {"no_repeat_ngram_size": 1, "min_length": 11, "repetition_penalty": 3.0, "num_beams": 7, "max_length": 4}
    for name, value in wishes.items():
        setattr(writer.model.generation_config, name, value)
    assert generate_in_transformers(writer, ids, mask, n=2, beams=3) != flatten(before)  # they do matter
    assert generate_tokens(writer, ids, mask, list("abcd"), settings, seed=1) == before
    assert writer.model.generation_config.no_repeat_ngram_size == 1


def test_ignored_settings_depend_on_the_decoding() -> None:
    model = create_tiny_writer("bart").model
    assert find_ignored_settings(model, "beam") == {}
    for name, value in {"no_repeat_ngram_size": 3, "min_length": 0, "early_stopping": True, "top_k": 4}.items():
        setattr(model.generation_config, name, value)
    assert find_ignored_settings(model, "greedy") == find_ignored_settings(model, "sample")
    assert find_ignored_settings(model, "greedy") == {"no_repeat_ngram_size": 3}
    assert find_ignored_settings(model, "beam") == {"no_repeat_ngram_size": 3, "early_stopping": True}


@pytest.mark.parametrize("filters", [{"top_k": 20}, {"top_k": 0, "top_p": 1.0}])
def test_greedy_and_sample_replaces_the_first_sample_by_the_greedy_text(filters: dict[str, Any]) -> None:
    writer, keys = create_tiny_writer("t5"), list("abcde")
    inputs = make_inputs(writer, [0, 1, 2, 3, 4])
    shape = {"max_new_tokens": 12, **filters}
    greedy = generate_tokens(writer, *inputs, keys, GenerationSettings(n=1, decode="greedy", max_new_tokens=12), seed=7)
    sampled = generate_tokens(writer, *inputs, keys, GenerationSettings(n=4, decode="sample", **shape), seed=7)
    both = generate_tokens(writer, *inputs, keys, GenerationSettings(n=4, decode="greedy+sample", **shape), seed=7)
    assert both == [[first[0], *others[1:]] for first, others in zip(greedy, sampled, strict=True)]
    assert any(first[0] != others[0] for first, others in zip(greedy, sampled, strict=True))


FIVE = torch.tensor([[0.40, 0.25, 0.20, 0.10, 0.05]]).log()


def test_top_k_comes_before_the_nucleus() -> None:
    # the three most likely, brought to a sum of 1: .470588 .294118 .235294; two of them reach .7: .40/.65 and .25/.65.
    # The other order keeps three: .40 + .25 = .65 < .7, so .20 stays as well
    kept, tokens = compute_filtered_probabilities(FIVE, top_k=3, top_p=0.7, temperature=1.0)
    assert kept[0].tolist() == pytest.approx([0.615385, 0.384615, 0.0], abs=2e-6)
    assert tokens[0].tolist() == [0, 1, 2]
    alone, _ = compute_filtered_probabilities(FIVE, top_k=3, top_p=1.0, temperature=1.0)
    assert alone[0].tolist() == pytest.approx([0.470588, 0.294118, 0.235294], abs=2e-6)


def test_the_temperature_sharpens_the_distribution() -> None:
    everything, tokens = compute_filtered_probabilities(FIVE, top_k=0, top_p=1.0, temperature=1.0)
    assert everything[0].tolist() == pytest.approx([0.40, 0.25, 0.20, 0.10, 0.05], abs=2e-6)
    assert tokens[0].tolist() == [0, 1, 2, 3, 4]
    sharp, _ = compute_filtered_probabilities(FIVE, top_k=0, top_p=1.0, temperature=0.5)  # squares of sum .275
    assert sharp[0].tolist() == pytest.approx([square / 0.275 for square in (0.16, 0.0625, 0.04, 0.01, 0.0025)])
    kept, _ = compute_filtered_probabilities(FIVE, top_k=0, top_p=0.0001, temperature=1.0)
    assert kept[0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_all_tokens_are_sorted_only_if_the_most_likely_are_too_few(monkeypatch) -> None:
    monkeypatch.setattr(generation, "_TOP_P_TOKENS", 2)
    for top_p, width in ((0.64, 2), (0.66, 5)):  # .40 + .25 = .65
        kept, tokens = compute_filtered_probabilities(FIVE, top_k=0, top_p=top_p, temperature=1.0)
        expected = np.array([0.40, 0.25, 0.20, 0, 0][:width])
        assert tokens[0].tolist() == [0, 1, 2, 3, 4][:width]
        assert kept[0].tolist() == pytest.approx(expected / expected.sum(), abs=2e-6)
    # a text that needs all tokens does not change the others
    logits = torch.tensor([[0.0, 9.0, 8.0, 0.0, 0.0], [0.0, 0.1, 0.2, 0.3, 0.4]])
    alone, alone_tokens = compute_filtered_probabilities(logits[:1], top_k=0, top_p=0.9, temperature=1.0)
    both, tokens = compute_filtered_probabilities(logits, top_k=0, top_p=0.9, temperature=1.0)
    assert tokens.tolist() == [[1, 2, 0, 0, 0], [4, 3, 2, 1, 0]]
    assert (both[0].tolist(), tokens[0, :2].tolist()) == ([*alone[0].tolist(), 0, 0, 0], alone_tokens[0].tolist())
    assert (both[1] > 0).tolist() == [True] * 5


def test_sample_tokens_inverts_the_cumulative_distribution() -> None:
    probabilities, tokens = torch.tensor([[0.5, 0.3, 0.2, 0.0]] * 6), torch.tensor([[7, 8, 9, 5]] * 6)
    places = torch.tensor([0.0, 0.499, 0.5, 0.799, 0.8, 0.9999999])
    assert sample_tokens(probabilities, tokens, places).tolist() == [7, 7, 8, 8, 9, 9]


def test_sampling_from_all_tokens_has_their_probabilities() -> None:
    probabilities = torch.tensor([0.4, 0.25, 0.0, 0.2, 0.1, 0.05, 0.0])
    uniform = torch.from_numpy(sample_uniforms(["a"], seed=1, count=1, steps=20_000)[0, 0])
    settings = GenerationSettings(top_k=0, top_p=1.0)
    tokens = _sample_next_tokens(probabilities.log().expand(len(uniform), 7), uniform, settings)
    shares = torch.bincount(tokens, minlength=7) / len(tokens)
    assert shares.tolist() == pytest.approx(probabilities.tolist(), abs=0.03)
    assert shares[[2, 6]].tolist() == [0, 0]


@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=12),
    st.integers(0, 12),
    st.floats(0.01, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_sampled_tokens_pass_the_filters(logits: list[float], top_k: int, top_p: float, place: float) -> None:
    kept, tokens = compute_filtered_probabilities(torch.tensor([logits]), top_k=top_k, top_p=top_p, temperature=1.0)
    assert float(kept.sum()) == pytest.approx(1.0, abs=1e-5)
    token = int(sample_tokens(kept, tokens, torch.tensor([place], dtype=torch.float64))[0])
    assert float(kept[0][tokens[0] == token][0]) > 0


def test_random_numbers_depend_only_on_seed_key_sample_and_step() -> None:
    table = sample_uniforms(["a", "b"], seed=1, count=3, steps=5)
    assert table.shape == (2, 3, 5)
    assert (sample_uniforms(["b"], seed=1, count=1, steps=5) == table[1, :1]).all()
    assert (sample_uniforms(["a"], seed=1, count=3, steps=2) == table[0, :, :2]).all()
    assert len(np.unique(table)) == 30
    assert (sample_uniforms(["a"], seed=2, count=3, steps=5) != table[:1]).all()
    assert table.min() >= 0
    assert table.max() < 1
    many = sample_uniforms([f"p{at}" for at in range(500)], seed=1, count=4, steps=8)
    for numbers in (many.ravel(), many[:, 0, 0], many[:, 3, 7]):
        shares = np.histogram(numbers, bins=5, range=(0, 1))[0] / numbers.size
        assert shares.tolist() == pytest.approx([0.2] * 5, abs=0.1)
    neighbors = np.corrcoef(many[..., 0].ravel(), many[..., 1].ravel())[0, 1]
    assert abs(neighbors) < 0.2
