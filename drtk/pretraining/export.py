"""Save the encoder, its masked-LM head and the other trained modules of pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import TrainerCallback

from drtk.models.checkpoint import TextEncoder, save_encoder
from drtk.models.encoder import Encoder
from drtk.models.lm_head import HEADS, get_head_path, save_lm_head
from drtk.models.model_folder import EncodingConfig
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.network import PretrainingNetwork
from drtk.training.best_checkpoint import save_weights

MODULES_FILE = "readers"


class EncoderExporter:
    """Writer of model folders that AutoModel and SentenceTransformer load, with the heads in the subfolder heads/."""

    def __init__(self, folder: Path, network: PretrainingNetwork, tokenizer: Any, settings: PretrainSettings) -> None:
        self.folder, self.network, self.tokenizer, composition = folder, network, tokenizer, network.composition
        self.encoding = EncodingConfig(
            pooling=(composition.pooling,),
            query_length=settings.max_length,
            passage_length=settings.max_length,
            title=EncodingConfig.title if composition.title == "none" else composition.title,
        )

    def build_encoder(self) -> TextEncoder:
        """Return the encoder with its current weights and the encoding settings to save."""
        return TextEncoder(Encoder(self.network.backbone, pooling=self.encoding.pooling), self.tokenizer, self.encoding)

    def save(self, folder: Path) -> None:
        """Write the encoder, the masked-LM head, the decoders, the projectors and the joint generator to a folder."""
        save_encoder(self.build_encoder(), folder)
        save_lm_head(self.network.head, folder)
        modules = (self.network.backbone, self.network.head)
        saved = {tensor.data_ptr() for module in modules for tensor in module.state_dict().values() if tensor.numel()}
        others = {name: tensor for name, tensor in self.network.state_dict().items() if tensor.data_ptr() not in saved}
        if others:
            save_weights(others, get_head_path(folder, MODULES_FILE))


def load_training_modules(network: PretrainingNetwork, model: Path) -> int:
    """Load the decoders and projectors that an earlier pre-training saved in `model`, and return the number of tensors."""
    path = model / HEADS / f"{MODULES_FILE}.safetensors"
    if not path.exists():
        return 0
    state = network.state_dict()
    matching = {
        name: tensor for name, tensor in load_file(path).items() if name in state and state[name].shape == tensor.shape
    }
    network.load_state_dict(matching, strict=False)
    return len(matching)


class EncoderExportCallback(TrainerCallback):
    """Trainer callback that exports the encoder to OUT/step-N every `every` steps."""

    def __init__(self, exporter: EncoderExporter, *, every: int) -> None:
        self._exporter, self._every = exporter, every

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        if state.is_world_process_zero and step % self._every == 0 and step < state.max_steps:
            self._exporter.save(self._exporter.folder / f"step-{step}")
