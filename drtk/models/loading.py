"""Load configurations, tokenizers and weights with transformers, and reject incomplete checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from drtk.errors import DrtkError, MismatchError
from drtk.runtime.integrity import read_json
from drtk.runtime.progress import silence_transformers
from drtk.runtime.remote_code import TRUST_ADVICE, is_remote_code_trusted
from drtk.text.tokenizers import open_tokenizer

# Buffers that older checkpoints contain
_NO_WEIGHTS = {"inv_freq", "masked_bias", "position_ids", "token_type_ids", "version"}
_MAX_NAMES = 3  # names of weights in an error message


@contextmanager
def report_load_errors(folder: Path, problem: str) -> Iterator[None]:
    """Silence transformers; convert exceptions except DrtkError to a DrtkError "FOLDER: PROBLEM: reason; advice"."""
    try:
        with silence_transformers():
            yield
    except DrtkError:
        raise
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
        reason = reason.replace("`", "'")  # names in backquotes would be printed as options
        if isinstance(error, UnpicklingError):  # torch advises to load the file unsafely
            reason = "a PyTorch file is damaged or contains code"
        raise DrtkError(f"{folder}: {problem}: {reason}; restore the folder or use another model") from error


def load_config(folder: Path) -> Any:
    """Load the transformers configuration of a model folder. Raises MismatchError for remote code that is not trusted."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    is_trusted = is_remote_code_trusted()
    code = "" if is_trusted else _find_remote_code(folder)
    if code and read_json(folder / "config.json").get("model_type") not in CONFIG_MAPPING:
        raise MismatchError(f"{folder}: requires remote code ({code}); {TRUST_ADVICE}")
    return AutoConfig.from_pretrained(folder, trust_remote_code=is_trusted)


def _find_remote_code(folder: Path) -> str:
    """Return the name of the remote-code class in config.json (`auto_map`); "" if there is none."""
    content = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    names = content.get("auto_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names:
        return ""
    return str(names.get("AutoModel") or next(iter(names.values())))


def load_tokenizer(folder: Path, config: Any) -> Any:
    """Load the tokenizer of a model folder, and check that it works and fits the model.

    config: transformers configuration of the model
    Raises MismatchError for missing or truncated files, or a vocabulary that does not fit the model's embeddings, DrtkError
    if the tokenizer cannot tokenize a word.
    """
    tokenizer = open_tokenizer(str(folder))
    num_embeddings = getattr(config.get_text_config(), "vocab_size", None)
    largest = max(tokenizer.get_vocab().values(), default=-1)
    advice = "restore the tokenizer that belongs to the model"
    if num_embeddings and largest >= num_embeddings:
        raise MismatchError(
            f"{folder}: its tokenizer has token ids up to {largest:,}, but the model has {num_embeddings:,} embeddings; "
            f"{advice}"
        )
    if missing := _find_missing_special_tokens(tokenizer):
        raise MismatchError(f"{folder}: its tokenizer's vocabulary has no {', '.join(missing)}; {advice}")
    if num_embeddings and len(tokenizer) < num_embeddings / 4:  # padded vocabularies leave some embeddings unused
        raise MismatchError(
            f"{folder}: its tokenizer has {len(tokenizer):,} tokens, but the model has {num_embeddings:,} embeddings; {advice}"
        )
    with report_load_errors(folder, "its tokenizer does not work"):
        tokenizer("a")
    return tokenizer


def _find_missing_special_tokens(tokenizer: Any) -> list[str]:
    """Return the special tokens that a WordPiece vocabulary file lacks; transformers adds them without warning."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "WordPiece":
        return []
    vocabulary = backend.get_vocab(with_added_tokens=False)
    special = (tokenizer.unk_token, tokenizer.cls_token, tokenizer.sep_token)
    return [token for token in special if token and token not in vocabulary]


def load_pretrained(
    auto_class: Any, folder: Path, *, key_mapping: dict[str, str] | None = None, **options: Any
) -> tuple[Any, list[str]]:
    """Load a model in float32; return (model, names of randomly initialized weights of head and pooler).

    These are the weights that the checkpoint lacks or has in another shape.
    auto_class: class of transformers, such as AutoModel    key_mapping, options: arguments of its `from_pretrained`
    Raises MismatchError if backbone weights are missing, unexpected or do not have the shape given in config.json.
    """
    model, info = auto_class.from_pretrained(
        folder,
        dtype=torch.float32,
        key_mapping=key_mapping,
        ignore_mismatched_sizes=True,  # reported below
        output_loading_info=True,
        trust_remote_code=is_remote_code_trusted(),
        **options,
    )
    if key_mapping:  # otherwise transformers reverts the renaming when it saves the model
        model._weight_conversions = [
            conversion
            for conversion in model._weight_conversions
            if not key_mapping.keys() & {*conversion._original_source_patterns}
        ]
    missing = sorted(name for name in info["missing_keys"] if name.split(".")[-1] not in _NO_WEIGHTS)
    shapes = {name: f"{list(actual)}, not {list(expected)}" for name, actual, expected in info["mismatched_keys"]}
    needed = [name for name in missing if _is_needed(model, name)]
    unexpected = [name for name in sorted(info["unexpected_keys"]) if needed or _is_backbone(model, name)]
    misshapen = [f"{name}: {shapes[name]}" for name in sorted(shapes) if _is_needed(model, name)]
    problems = [
        f"{len(names):,} {what}: {', '.join(names[:_MAX_NAMES])}{', …' if len(names) > _MAX_NAMES else ''}"
        for what, names in (("missing", needed), ("unexpected", unexpected), ("of another shape", misshapen))
        if names
    ]
    if problems:
        code = "" if is_remote_code_trusted() else _find_remote_code(folder)
        advice = (
            f"the model requires remote code ({code}); {TRUST_ADVICE}"
            if code
            else "rename the weights, or restore weights and config.json"
        )
        raise MismatchError(f"{folder}: its weights do not match its config.json ({'; '.join(problems)}); {advice}")
    return model, [*missing, *shapes]


def _get_backbone_prefix(model: Any) -> str:
    """Return the prefix of the names of the backbone's weights in a model with a head; "" in a model without head."""
    name = model.base_model_prefix
    return f"{name}." if name and hasattr(model, name) else ""


def _is_needed(model: Any, name: str) -> bool:
    """Return whether a weight of the model must be in the checkpoint: all weights of the backbone, except the pooler."""
    return name.startswith(_get_backbone_prefix(model)) and "pooler" not in name.split(".")


def _is_backbone(model: Any, name: str) -> bool:
    """Return whether a weight missing from the model belongs to a backbone module, except pooler and buffers."""
    prefix, body = f"{model.base_model_prefix}.", _get_backbone_prefix(model)
    inner = name.removeprefix(prefix)
    backbone: nn.Module = model.get_submodule(body.rstrip(".")) if body else model
    buffers = {name for name, _ in model.named_buffers()}  # which older checkpoints contain
    parts = inner.split(".")
    if "pooler" in parts or parts[-1] in _NO_WEIGHTS or name in buffers or body + inner in buffers:
        return False
    return parts[0] in dict(backbone.named_children())
