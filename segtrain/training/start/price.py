"""The price of a machine, for train.budget. Imports no torch."""

from __future__ import annotations

from segtrain.config import Config
from segtrain.errors import ConfigError
from segtrain.machines import machines
from segtrain.platforms.sagemaker.hosts import machine_type


def price_of(config: Config) -> float | None:
    """Dollars per hour of one machine: ``train.price``, or the on-demand price of SageMaker's type; None: unknown."""
    known = machines().get(machine_type())
    return config.train.price or (known.price if known else None)


def refuse_budget(config: Config) -> None:
    """Raises ConfigError for a budget without a price."""
    if config.train.budget and price_of(config) is None:
        where = f"no price of {machine_type()} is known" if machine_type() else "the type of this machine is unknown"
        raise ConfigError(
            f"train.budget={config.train.budget} needs a price, and {where}: add train.price=DOLLARS, per hour and "
            "machine, or use train.deadline",
            code="no-price", found=machine_type(),
        )  # fmt: skip
