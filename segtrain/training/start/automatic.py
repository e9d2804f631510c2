"""What ``model.arch=auto`` means on this machine. Imports torch only if there is a GPU."""

from __future__ import annotations

from pathlib import Path

from segtrain.config import ENCODERS, Config, load_saved, named, pretrained
from segtrain.errors import ConfigError
from segtrain.observe.journal import say_on_stderr
from segtrain.parallel.spawn import visible_gpus


def settled(
    config: Config, download: bool = True, own_model: bool = False, quiet: bool = False
) -> Config:
    """The config with a network in place of ``auto``: a pretrained one on a GPU, else pico.

    A run keeps the network that it began with, and one with ``model.init=RUN`` takes that of RUN.
    Unless ``quiet``, prints a line about a pretrained network, or why there is none. ``download``:
    fetch its weights. ``own_model``: the user passed a model, which needs no settings.
    """
    model = config.model
    if model.arch.lower() != "auto":
        return config
    scratch = named(config, "pico")
    if model.init and not own_model:
        return _continued(config) or scratch
    # options are those of a network, and have been pico's since before there was auto
    memory = 0.0 if own_model or model.options else gpu_memory(config.train.device)
    say = (lambda text: None) if quiet else say_on_stderr
    if not memory:
        return scratch
    wanted = pretrained(config, memory)
    for candidate in (wanted, scratch):
        if _has_begun(candidate):
            return candidate
    encoder = wanted.model.encoder
    known = encoder in ENCODERS.values() and wanted.model.encoder_weights == "imagenet"
    about = f"model.arch=auto: {wanted.model.arch} with {encoder}"
    if known and download:
        # timm takes a second to import
        from segtrain.models.published import fetch

        if reason := fetch(encoder):
            say(
                f"warning: {about} for {memory:.0f} GB, but its weights cannot be fetched "
                f"({reason}): pico trains from scratch instead; to bring them, copy "
                f"model.safetensors of timm/{encoder[3:]} from the Hugging Face Hub, and set "
                "model.encoder_weights=FILE"
            )
            return scratch
    weights = "Apache-2.0" if known else wanted.model.encoder_weights or "none"
    say(f"{about} for {memory:.0f} GB, weights: {weights}; --print-config shows its recipe")
    return wanted


def gpu_memory(device: str) -> float:
    """GB of the smallest GPU that this process may train on; 0 for a CPU."""
    if device == "cpu" or not visible_gpus():
        return 0.0
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in range(count)]
    return min(sizes, default=0) / 1e9


def _saved(run: Path) -> Config | None:
    """The config in a run folder; None if it has none that can be read."""
    try:
        return load_saved(run / "config.yaml")
    except ConfigError:
        return None


def _continued(config: Config) -> Config | None:
    """The config with the network of the run folder ``model.init``."""
    begun = _saved(Path(config.model.init))
    if begun is None:
        return None
    network = {key: getattr(begun.model, key) for key in ("arch", "encoder", "options", "fast")}
    return config.model_copy(update={"model": config.model.model_copy(update=network)})


def _has_begun(config: Config) -> bool:
    """Whether the run folder has a checkpoint of this network."""
    begun = _saved(config.run_dir)
    saved = any((config.run_dir / "checkpoints").glob("step-*.pt"))
    return saved and begun is not None and begun.model.arch == config.model.arch
