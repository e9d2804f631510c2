"""The typed config of a run: YAML files, ``section.key=value`` overrides, checks, and a hash."""

# ruff: noqa: F401 (names for other packages)

from segtrain.config.automatic import ENCODERS, named, pretrained
from segtrain.config.data import Data
from segtrain.config.evaluation import Eval
from segtrain.config.load import (
    RUN_HEADER,
    load_config,
    load_saved,
    make_config,
    parse_overrides,
    refuse_older_run,
)
from segtrain.config.loss import Loss, LossTerm
from segtrain.config.networks import (
    SMP,
    architectures,
    is_file_name,
    local_paths,
    refuse_arch,
    refuse_names,
    unknown_name,
)
from segtrain.config.optim import AdamWOptim, MuonOptim, Optim, SGDOptim
from segtrain.config.origin import IMAGENET_MEAN, IMAGENET_STD, Origin
from segtrain.config.rules import rivals_of_graphs
from segtrain.config.run import PARTS, PLAN, Config, keys_with, read_parts
from segtrain.config.section import Section, Size, duration_in_steps, interval_in_steps, joined
from segtrain.config.sources import file_digest, importable, transform_source
from segtrain.config.training import FEW_IMAGES, FEW_STEPS, Checkpoint, Log, Model, Parallel, Train
from segtrain.config.yaml_text import load_yaml
