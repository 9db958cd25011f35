"""Fusion-in-Decoder equals a slow reader, which encodes each passage separately, without cache and padding."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from drtk.models.seq2seq import DecodingState, GenerationModel
from drtk.query_expansion.fid_reader import decode_answers, encode_passages
from drtk.text.batching import TokenizedTexts

# Four questions with 3, 1, 5 and 2 passages of differing length.
LENGTHS = ((5, 9, 2), (7,), (3, 3, 12, 1, 6), (11, 4))
LONGEST = 8


class Pads:
    """Fake tokenizer with the attributes that decoding uses."""

    pad_token_id = 0


def reader(kind: str) -> GenerationModel:
    """Create an untrained model (vocabulary size 40) with large weights, so that answers differ."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        if kind == "t5":
            config = T5Config(
                vocab_size=40, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0,
                pad_token_id=0, eos_token_id=1,
            )  # fmt: skip
            writer = GenerationModel(T5ForConditionalGeneration(config), Pads, True, 0, (1,), 128)
        else:
            config = BartConfig(
                vocab_size=40, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
                pad_token_id=0, bos_token_id=3, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
            )  # fmt: skip
            writer = GenerationModel(BartForConditionalGeneration(config), Pads, True, 2, (2,), 64)
    for weights in writer.model.parameters():
        weights.data *= 2 if kind == "t5" else 12
    writer.model.double().eval()  # so that rounding hides nothing
    return writer


def inputs() -> tuple[list[list[Tensor]], TokenizedTexts, list[np.ndarray]]:
    """Return the passage tokens by question, the same as one table, and the table rows of each question."""
    generator = torch.Generator().manual_seed(2)
    passages = [[torch.randint(10, 40, (1, length), generator=generator) for length in each] for each in LENGTHS]
    tokens = TokenizedTexts.from_lists([ids[0].tolist() for each in passages for ids in each], None)
    ends = np.cumsum([len(each) for each in LENGTHS])
    return passages, tokens, [np.arange(end - len(each), end) for each, end in zip(LENGTHS, ends, strict=True)]


def slow_logits(writer: GenerationModel, passages: Sequence[Tensor], before: Sequence[int]) -> Tensor:
    """Return the next-token logits after the decoder tokens `before`, (vocabulary,)."""
    model = writer.model
    states = [model.get_encoder()(input_ids=ids).last_hidden_state for ids in passages]  # (1, tokens, hidden) each
    found = model(
        encoder_outputs=BaseModelOutput(last_hidden_state=torch.cat(states, dim=1)),
        decoder_input_ids=torch.tensor([[writer.start, *before]]),
        use_cache=False,
    )
    return found.logits[0, -1]


def slow_answer(writer: GenerationModel, passages: Sequence[Tensor]) -> tuple[list[int], float]:
    tokens: list[int] = []
    score = 0.0
    while len(tokens) < LONGEST:
        chances = slow_logits(writer, passages, tokens).log_softmax(dim=-1)
        token = int(chances.argmax())
        score += float(chances[token])
        if token in writer.ends:
            break
        tokens.append(token)
    return tokens, score


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_answers_equal_those_of_separately_encoded_passages(kind):
    writer = reader(kind)
    passages, tokens, groups = inputs()
    with torch.inference_mode():
        endless = [slow_answer(writer, each)[0] for each in passages]
        firsts = {answer[0] for answer in endless}
        # This token ends some answers, not all, and not at once.
        writer.ends = (next(token for answer in endless for token in answer if token not in firsts),)
        expected = [slow_answer(writer, each) for each in passages]
        assert len({len(answer) for answer, _ in expected}) > 1  # questions leave the batch at different times
        for budget in (1, 20, 10_000):  # a passage at a time, some, all
            hidden, mask = encode_passages(writer, tokens, groups, budget=budget)
            actual = decode_answers(writer, hidden, mask, max_new_tokens=LONGEST)
            assert [answer.tokens for answer in actual] == [answer for answer, _ in expected]
            assert [answer.score for answer in actual] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_padding_each_passage_as_in_the_public_code_gives_the_same_logits():
    # Questions of one batch, every passage padded to 16 tokens, every question to 5 passages: (4, 5 x 16).
    writer = reader("t5")
    passages, tokens, groups = inputs()
    ids = torch.zeros((len(passages), 5, 16), dtype=torch.long)
    for row, each in enumerate(passages):
        for place, one in enumerate(each):
            ids[row, place, : one.shape[1]] = one[0]
    mask = (ids > 0).long()
    seen = mask.clone()
    seen[:, :, 0] = 1  # an encoder must see something of what is no passage; the decoder does not
    with torch.inference_mode():
        states = writer.model.encoder(input_ids=ids.view(20, 16), attention_mask=seen.view(20, 16)).last_hidden_state
        theirs = writer.model(
            encoder_outputs=(states.view(4, 80, -1),), attention_mask=mask.view(4, 80), decoder_input_ids=torch.zeros((4, 1), dtype=torch.long)
        ).logits[:, -1]  # fmt: skip
        hidden, ours = encode_passages(writer, tokens, groups, budget=50)
        logits = DecodingState(writer, None, ours, hidden=hidden).logits
        torch.testing.assert_close(logits, theirs, atol=1e-8, rtol=1e-8)
    assert hidden.shape[:2] == (4, 25)  # 3 + 3 + 12 + 1 + 6, not 80
