"""One typed description of a run: flat YAML, ``section.key=value`` overrides, and a hash.

pydantic was chosen over jsonargparse, tyro and OmegaConf: it checks types and ranges with errors that name
the key, writes a JSON schema, is on most machines already, and leaves the command line to us (jsonargparse and
tyro make a flag of every field and import slowly; OmegaConf checks neither ranges nor combinations).
"""

from segtrain.config.data import Data
from segtrain.config.load import RUN_HEADER, load_config, load_saved, make_config, parse_overrides, upgrade_settings
from segtrain.config.loss import Loss, LossTerm
from segtrain.config.networks import SMP, architectures, is_file_name, refuse_arch, refuse_names
from segtrain.config.optim import AdamWOptim, MuonOptim, Optim, SGDOptim
from segtrain.config.records import Checkpoint, Eval, Log
from segtrain.config.run import Config
from segtrain.config.section import Section, Size, duration_in_steps
from segtrain.config.sources import file_digest, importable, transform_source
from segtrain.config.training import Model, Parallel, Train
from segtrain.config.yaml_text import load_yaml

__all__ = [
    "RUN_HEADER",
    "SMP",
    "AdamWOptim",
    "Checkpoint",
    "Config",
    "Data",
    "Eval",
    "Log",
    "Loss",
    "LossTerm",
    "Model",
    "MuonOptim",
    "Optim",
    "Parallel",
    "SGDOptim",
    "Section",
    "Size",
    "Train",
    "architectures",
    "duration_in_steps",
    "file_digest",
    "importable",
    "is_file_name",
    "load_config",
    "load_saved",
    "load_yaml",
    "make_config",
    "parse_overrides",
    "refuse_arch",
    "refuse_names",
    "transform_source",
    "upgrade_settings",
]
