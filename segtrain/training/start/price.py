"""The price of a machine, for train.budget. Imports no torch."""

from __future__ import annotations

from segtrain.config import Config
from segtrain.errors import ConfigError
from segtrain.machines import machines


def price_of(config: Config, machine: str) -> float | None:
    """Dollars per hour of one machine: ``train.price``, or the on-demand price of SageMaker's type;
    None: unknown.
    """
    machine_type = machines().get(machine)
    return config.train.price or (machine_type.price if machine_type else None)


def refuse_budget(config: Config, machine: str) -> None:
    """Raises ConfigError for a budget without a price."""
    if config.train.budget and price_of(config, machine) is None:
        where = (
            f"no price of {machine} is known" if machine else "the type of this machine is unknown"
        )
        raise ConfigError(
            f"train.budget={config.train.budget} needs a price, and {where}: add "
            "train.price=DOLLARS, per hour and machine, or use train.deadline",
            code="no-price",
            found=machine,
        )
