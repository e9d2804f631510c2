"""One typed description of a run: flat YAML, ``section.key=value`` overrides, and a hash.

pydantic was chosen over jsonargparse, tyro and OmegaConf: it checks types and ranges with errors that name
the key, writes a JSON schema, is on most machines already, and leaves the command line to us (jsonargparse and
tyro make a flag of every field and import slowly; OmegaConf checks neither ranges nor combinations).
"""

from segtrain.config.data import Data
from segtrain.config.load import load_config, make_config, parse_overrides
from segtrain.config.records import Checkpoint, Eval, Log
from segtrain.config.run import Config
from segtrain.config.section import Section, Size, duration_in_steps
from segtrain.config.sources import file_digest, importable, transform_source
from segtrain.config.training import Loss, LossTerm, Model, Optim, Parallel, Train

__all__ = [
    "Checkpoint",
    "Config",
    "Data",
    "Eval",
    "Log",
    "Loss",
    "LossTerm",
    "Model",
    "Optim",
    "Parallel",
    "Section",
    "Size",
    "Train",
    "duration_in_steps",
    "file_digest",
    "importable",
    "load_config",
    "make_config",
    "parse_overrides",
    "transform_source",
]
