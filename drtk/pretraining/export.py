"""What pre-training saves: encoder, LM head, other heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import TrainerCallback

from drtk.models.checkpoint import TextEncoder, save_encoder
from drtk.models.encoder import Encoder
from drtk.models.lm_head import HEADS, head_file, save_lm_head
from drtk.models.model_folder import Recipe
from drtk.pretraining.composition import Composition
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.network import Network
from drtk.training.best_checkpoint import save_weights

READERS_FILE = "readers"


class Keeper:
    """Writes the encoder of a network as a folder that AutoModel and SentenceTransformer load, and its heads beside it."""

    def __init__(
        self, folder: Path, network: Network, tokenizer: Any, composition: Composition, settings: PretrainSettings
    ) -> None:
        self.folder, self.network, self.tokenizer = folder, network, tokenizer
        self.recipe = Recipe(
            pooling=(composition.pooling,),
            query_length=settings.max_length,
            passage_length=settings.max_length,
            title=Recipe.title if composition.title == "none" else composition.title,
        )

    def encoder(self) -> TextEncoder:
        """The encoder as it is now."""
        return TextEncoder(Encoder(self.network.backbone, pooling=self.recipe.pooling), self.tokenizer, self.recipe)

    def save(self, folder: Path) -> None:
        """Write encoder, masked-LM head, and everything else that was trained."""
        save_encoder(self.encoder(), folder)
        save_lm_head(self.network.head, folder)
        others = beside(self.network)
        if others:
            save_weights(others, head_file(folder, READERS_FILE))


def beside(network: Network) -> dict[str, Any]:
    """What is trained beside encoder and masked-LM head, by name."""
    known = {
        value.data_ptr()
        for part in (network.backbone, network.head)
        for value in part.state_dict().values()
        if value.numel()
    }
    return {name: value for name, value in network.state_dict().items() if value.data_ptr() not in known}


def take_up(network: Network, model: Path) -> int:
    """Put what an earlier pre-training left in `model` beside its encoder into the network; how many tensors fitted."""
    path = model / HEADS / f"{READERS_FILE}.safetensors"
    if not path.exists():
        return 0
    mine = network.state_dict()
    found = {name: value for name, value in load_file(path).items() if name in mine and mine[name].shape == value.shape}
    network.load_state_dict(found, strict=False)
    return len(found)


class SaveEncoders(TrainerCallback):
    """Writes the encoder as OUT/step-N every so many steps, for learning curves."""

    def __init__(self, store: Keeper, *, every: int) -> None:
        self._store, self._every = store, every

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        if state.is_world_process_zero and step % self._every == 0 and step < state.max_steps:
            self._store.save(self._store.folder / f"step-{step}")
