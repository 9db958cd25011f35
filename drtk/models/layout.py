"""The files around the weights: sentence-transformers' layout read and written, and drtk's own record in meta.json."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from drtk.errors import DrtkError, MismatchError
from drtk.io.atomic import write_json
from drtk.io.json_files import check_object, read_json, read_object
from drtk.io.manifest import FOLDER_MANIFEST
from drtk.models.recipe import Recipe
from drtk.settings.encoding import Title

MODULES, SETTINGS, SHARED = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
ROUTER = "router_config.json"
_OLD_SETTINGS = [f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlnet")]
_OLD_SETTINGS.append("sentence_xlm-roberta_config.json")
_OLD_POOLINGS = {  # in the order in which sentence-transformers puts the vectors side by side
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Layout:
    """Where the backbone lies, the recipe, and the folders of Dense modules between pooling and normalisation.

    recipe: a length of 0 in it stands for "not stated": the tokenizer knows
    sealed: the recipe is that of a model drtk wrote, so what contradicts it is a mistake
    """

    backbone: Path
    recipe: Recipe
    dense: tuple[Path, ...] = ()
    sealed: bool = False


def read_layout(folder: Path) -> Layout:
    """The layout of a model folder; a plain Hugging Face encoder has CLS pooling and no normalisation.

    Raises MismatchError for a folder that is no encoder, or holds a module drtk cannot run.
    """
    if (folder / MODULES).exists():
        layout = _sentence_transformers(folder)
    elif (folder / "config.json").exists():
        layout = Layout(folder, Recipe(query_length=0, passage_length=0))
    else:
        raise MismatchError(f"{folder}: is no model folder: it has neither {MODULES} nor config.json")
    stated = _stated_recipe(folder)
    return layout if stated is None else replace(layout, recipe=stated, sealed=True)


def _stated_recipe(folder: Path) -> Recipe | None:
    """The recipe in the meta.json of a model drtk wrote; that of a pair of towers lies one folder up."""
    for place in (folder, folder.parent) if folder.name in ("query", "passage") else (folder,):
        if (place / FOLDER_MANIFEST).exists():
            manifest = read_object(place / FOLDER_MANIFEST, towers=list | None)
            mine = place == folder or folder.name in (manifest.get("towers") or ())
            if mine and isinstance(manifest.get("encoding"), dict):
                return Recipe.from_dict(manifest["encoding"])
    return None


def _sentence_transformers(folder: Path) -> Layout:
    backbone, recipe, dense = folder, Recipe(pooling=()), []
    for module in read_modules(folder):
        kind, path = str(module["type"]).rpartition(".")[2], folder / module["path"]
        if kind == "Transformer":
            backbone = path
            settings = module_settings(path)
            recipe = replace(recipe, lowercase=bool(settings.get("do_lower_case", False)))
            recipe = replace(recipe, **_lengths(settings))
        elif kind == "Pooling":
            content = read_object(path / "config.json", include_prompt=bool | None)
            recipe = replace(recipe, pooling=_poolings(content), include_prompt=content.get("include_prompt", True))
        elif kind == "Dense" and not recipe.normalize:
            dense.append(path)
        elif kind == "Normalize":
            recipe = replace(recipe, normalize=True)
        elif kind != "Dropout":  # which does nothing outside training
            raise MismatchError(f"{folder / MODULES}: holds a module drtk cannot run there: {module['type']}")
    if not recipe.pooling:
        raise MismatchError(f"{folder / MODULES}: holds no Pooling module, so it gives no vector a text")
    return Layout(backbone, replace(recipe, **_shared(folder)), tuple(dense))


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of modules.json. Raises DrtkError if one is not an object with a type and a path."""
    content = read_json(folder / MODULES)
    place = str(folder / MODULES)
    if not isinstance(content, list) or not content:
        raise DrtkError(f"{place}: expected a list of modules; the file is damaged: restore a copy")
    return [check_object(module, place, type=str, path=str) for module in content]


def read_shared(folder: Path) -> dict[str, Any]:
    """Return the content of config_sentence_transformers.json; {} if there is no such file."""
    if not (folder / SHARED).exists():
        return {}
    keys = {"prompts": dict | None, "similarity_fn_name": str | None, "truncate_dim": int | None}
    return read_object(folder / SHARED, **keys)


def module_settings(path: Path) -> dict[str, Any]:
    """What sentence-transformers noted of a Transformer module beside its weights; nothing where there is no such file."""
    for name in (SETTINGS, *_OLD_SETTINGS):
        if (path / name).exists():
            return read_object(path / name)
    return {}


def _lengths(settings: dict[str, Any]) -> dict[str, Any]:
    longest = settings.get("max_seq_length") or 0
    return {
        "query_length": settings.get("query_length") or longest,
        "passage_length": settings.get("document_length") or longest,
    }


def _poolings(content: dict[str, Any]) -> tuple[str, ...]:
    if "pooling_mode" in content:
        mode = content["pooling_mode"]
        return (mode,) if isinstance(mode, str) else tuple(mode)
    return tuple(name for key, name in _OLD_POOLINGS.items() if content.get(key)) or ("mean",)


def _shared(folder: Path) -> dict[str, Any]:
    """Prompts, similarity and truncation; an empty "document" prompt, which recent versions write unasked, is none."""
    content = read_shared(folder)
    prompts = {name: text for name, text in (content.get("prompts") or {}).items() if text}
    passage = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), "")
    return {
        "query_prompt": prompts.get("query", ""),
        "passage_prompt": passage,
        "similarity": content.get("similarity_fn_name") or "cosine",  # what sentence-transformers takes for unsaid
        "truncate": content.get("truncate_dim"),
    } | ({"title": title} if (title := content.get("title")) in get_args(Title) else {})


def write_layout(folder: Path, recipe: Recipe, *, hidden: int, dense: int) -> None:
    """Write the files that let SentenceTransformer(folder) give the vectors drtk gives.

    hidden: width of the backbone's token vectors; dense: number of Dense modules, whose folders others write
    """
    kinds = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * recipe.normalize]
    paths = ["" if kind == "Transformer" else f"{number}_{kind}" for number, kind in enumerate(kinds)]
    rows = enumerate(zip(kinds, paths, strict=True))
    write_json(
        folder / MODULES,
        [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (kind, path) in rows
        ],
    )
    longest = max(recipe.query_length, recipe.passage_length)
    write_json(folder / SETTINGS, {"max_seq_length": longest, "do_lower_case": recipe.lowercase})
    for path in paths[1:]:
        (folder / path).mkdir(exist_ok=True)
    chosen = {key: name in recipe.pooling for key, name in _OLD_POOLINGS.items()}
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": hidden, **chosen, "include_prompt": recipe.include_prompt},
    )
    if recipe.normalize:
        write_json(folder / paths[-1] / "config.json", {})
    _write_shared(folder, recipe)


def write_pair_layout(folder: Path, recipe: Recipe) -> None:
    """Write what lets SentenceTransformer(folder) encode queries with `query` and all else with `passage`, two model folders
    that are there already: one module, a Router (sentence-transformers 5), over the modules of both.
    """
    types: dict[str, str] = {}
    structure: dict[str, list[str]] = {}
    for role, task in (("query", "query"), ("passage", "document")):
        for module in read_modules(folder / role):
            name = f"{role}/{module['path']}" if module["path"] else role
            types[name] = module["type"]
            structure.setdefault(task, []).append(name)
    how = {"default_route": "document", "allow_empty_key": True}
    write_json(folder / ROUTER, {"types": types, "structure": structure, "parameters": how})
    write_json(folder / MODULES, [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}])
    _write_shared(folder, recipe)


def _write_shared(folder: Path, recipe: Recipe) -> None:
    shared: dict[str, Any] = {
        "prompts": {"query": recipe.query_prompt, "document": recipe.passage_prompt},
        "default_prompt_name": None,
        "similarity_fn_name": recipe.similarity or "dot",
    }
    if recipe.truncate:
        shared["truncate_dim"] = recipe.truncate
    if recipe.title != Recipe.title:  # an entry of drtk's own, which sentence-transformers ignores
        shared["title"] = recipe.title
    write_json(folder / SHARED, shared)
