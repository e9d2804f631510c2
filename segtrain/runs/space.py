"""The file of a sweep: the config of all trials, and the settings that are searched."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import yaml
from pydantic import Field, ValidationError

from segtrain.base.files import read_text
from segtrain.config import Config, Section, load_config, load_yaml
from segtrain.config.paste import flow
from segtrain.errors import ConfigError, closest, one_line

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Number = Union[int, float]
Class = Union[str, dict[str, dict[str, Any]]]  # NAME, or {NAME: {argument: value}}


class NumberRange(Section):
    """Numbers from ``low`` to ``high``; whole ones if both are."""

    low: Number
    high: Number
    log: bool = False
    step: Union[Number, None] = None


class Sweep(Section):
    """``config`` and ``settings`` are those of all trials. ``space``: setting -> its choices, or a
    range. ``sampler`` and ``pruner``: classes of Optuna.
    """

    config: Union[str, None] = None
    settings: dict[str, Any] = Field({})
    space: dict[str, Union[NumberRange, tuple[Any, ...]]] = Field(min_length=1)
    trials: int = Field(20, ge=1)
    workers: int = Field(1, ge=1)
    sampler: Class = "TPESampler"
    pruner: Class = "MedianPruner"
    seed: int = Field(0, ge=0)
    out: str

    def config_of(self, parameters: Mapping[str, Any], *more: str) -> Config:
        """The config of a trial. Raises ConfigError. ``parameters``: choices are YAML texts."""
        searched = [
            f"{key}={value if isinstance(value, str) else flow(value)}"
            for key, value in parameters.items()
        ]
        fixed = [f"{key}={flow(value)}" for key, value in self.settings.items()]
        return load_config(self.config, [*fixed, *searched, *more])

    def distributions(self) -> dict[str, BaseDistribution]:
        """The space for Optuna. Raises ConfigError for a range or a choice that is not possible."""
        made = {key: _distribution(key, values) for key, values in self.space.items()}
        for key, values in self.space.items():
            ends = (
                (values.low, values.high) if isinstance(values, NumberRange) else map(flow, values)
            )
            for value in ends:
                self.config_of({key: value})
        return made


def read_sweep(file: str | Path) -> Sweep:
    """Raises ConfigError with one line per mistake."""
    path = Path(file)
    try:
        content = load_yaml(read_text(path))
        return Sweep.model_validate({"out": f"sweeps/{path.stem}", **(content or {})})
    except ValidationError as error:
        mistakes = [
            f"{file}: {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()
        ]
        problem = "\n".join(dict.fromkeys(mistakes))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, TypeError) as error:
        problem = f"{file} is not the YAML file of a sweep: {one_line(error)}"
    raise ConfigError(
        f"{problem}: a sweep has {', '.join(Sweep.model_fields)}",
        code="invalid-sweep",
        file=str(file),
    )


def _distribution(key: str, values: NumberRange | tuple[Any, ...]) -> BaseDistribution:
    from optuna import distributions

    try:
        if not isinstance(values, NumberRange):
            return distributions.CategoricalDistribution([flow(value) for value in values])
        numbers = [value for value in (values.low, values.high, values.step) if value is not None]
        if all(isinstance(value, int) for value in numbers):
            return distributions.IntDistribution(
                int(values.low), int(values.high), values.log, int(values.step or 1)
            )
        return distributions.FloatDistribution(values.low, values.high, values.log, values.step)
    except ValueError as error:
        raise ConfigError(f"space: {key}: {error}", code="invalid-range", key=key) from None


def optuna_object(module: Any, spec: Class, **arguments: Any) -> Any:
    """An object of a class of ``module``, with the arguments in ``spec`` and those of ``arguments``
    that the class takes. Raises ConfigError.
    """
    name, own = (spec, {}) if isinstance(spec, str) else next(iter(spec.items()))
    kind = getattr(module, name, None)
    place = module.__name__
    if kind is None:
        hint = f"did you mean {closest(name, dir(module), 0.0)}?"
        raise ConfigError(f"{place} has no {name!r}: {hint}", code="unknown-class", found=name)
    taken = inspect.signature(kind).parameters
    usual = {key: value for key, value in arguments.items() if key in taken}
    try:
        return kind(**{**usual, **own})
    except (TypeError, ValueError) as error:
        text = f"{place}.{name}: {error}: see its arguments in Optuna's documentation"
        raise ConfigError(text, code="invalid-arguments", found=name) from None
