"""Which object does ``data.transforms`` stand for, and which library is it of?"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Union

from segtrain.config import file_digest, importable, transform_source
from segtrain.errors import ConfigError, MissingExtra, SegtrainError

OLDEST = (1, 4, 24)  # of albumentations: its random state can be set for each call, and masks are padded by fill_mask


def build(given: Any) -> Any:
    """The pipeline of a setting or of an object. Raises ConfigError, or MissingExtra."""
    setting = isinstance(given, (str, dict)) or (
        isinstance(given, (list, tuple)) and all(isinstance(item, dict) for item in given)
    )
    return _composed(load(given) if setting else given)


def load(setting: Union[str, dict[str, Any], Sequence[dict[str, Any]]]) -> Any:
    """The object that a value of ``data.transforms`` stands for. Raises ConfigError, or MissingExtra."""
    if isinstance(setting, str):
        return _from_code(setting)
    library = albumentations()
    try:
        if isinstance(setting, dict):
            return library.from_dict(setting)
        return library.Compose([_named(library, item) for item in setting])
    except SegtrainError:
        raise
    except Exception as error:
        raise ConfigError(
            f"data.transforms: albumentations {library.__version__} cannot build it: {' '.join(str(error).split())[:500]}",
            code="transforms-cannot-build",
            found=str(error),
        ) from None


def albumentations() -> Any:
    """The library, without its question to the network for a newer version. Raises MissingExtra or ConfigError."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    try:
        library = importlib.import_module("albumentations")
    except ImportError as error:
        if error.name and error.name.split(".")[0] != "albumentations":
            raise ConfigError(
                f"data.transforms: albumentations cannot be imported ({error})",
                code="albumentations-import",
                found=str(error),
            ) from None
        raise MissingExtra("albumentations", "albumentations", "data.transforms") from None
    if tuple(int(part) for part in re.findall(r"\d+", library.__version__)[:3]) < OLDEST:
        raise ConfigError(
            f"data.transforms: albumentations {library.__version__} draws from random numbers of the whole process, or names the "
            "padding of masks in other ways: pip install 'segtrain[albumentations]'",
            code="albumentations-too-old",
            found=library.__version__,
        )
    return library


def _named(library: Any, item: Any) -> Any:
    """``{"OneOf": {"transforms": [{"Blur": {}}, ...], "p": 1}}`` to the albumentations object."""
    if not isinstance(item, dict) or len(item) != 1:
        raise ConfigError(
            f"data.transforms: {item!r} must be one name with its settings, as {{HorizontalFlip: {{p: 0.5}}}}",
            code="transforms-not-one-name",
            found=item,
        )
    ((name, settings),) = item.items()
    cls = getattr(library, str(name), None)
    if not inspect.isclass(cls):
        near = difflib.get_close_matches(str(name), [n for n in dir(library) if n[0].isupper()], n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see its documentation"
        raise ConfigError(
            f"data.transforms: albumentations {library.__version__} has no {name!r}: {hint}",
            code="transforms-unknown-name",
            found=name,
        )
    settings = dict(settings or {})
    if "transforms" in settings:
        settings["transforms"] = [_named(library, inner) for inner in settings["transforms"]]
    if issubclass(cls, library.BasicTransform):
        known = {
            n for c in cls.__mro__ if "__init__" in vars(c) for n in inspect.signature(vars(c)["__init__"]).parameters
        }
        unknown = sorted(set(settings) - known)
        if unknown:  # the library would warn and go on without them
            raise ConfigError(
                f"data.transforms: {name} of albumentations {library.__version__} has no setting {', '.join(unknown)}; "
                f"it has {', '.join(sorted(known - {'self', 'args', 'kwargs'}))}",
                code="transforms-unknown-setting",
                name=name,
                found=unknown,
            )
    return cls(**settings)


def _from_code(text: str) -> Any:
    """The attribute of a Python file or module. Raises ConfigError, also where the file is not that of the config's digest."""
    try:
        path, attribute, digest = transform_source(text)
    except ValueError as error:
        raise ConfigError(
            f"data.transforms={text}: {error}", code="transforms-not-found", key="data.transforms", found=text
        ) from None
    if digest and file_digest(path) != digest:
        raise ConfigError(
            f"data.transforms={text}: {path} has changed since this config was resolved: put it back, or start another run",
            code="transforms-file-changed",
            file=str(path),
        )
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    place = text.partition("@")[0].rpartition(":")[0]
    try:
        with importable():
            module = _file_module(place) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"data.transforms={text}: {path} fails: {type(error).__name__}: {error}",
            code="transforms-import-fails",
            file=str(path),
            found=f"{type(error).__name__}: {error}",
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(
            f"data.transforms={text}: {path} has no {attribute!r}",
            code="transforms-no-attribute",
            file=str(path),
            found=attribute,
        ) from None


def _file_module(place: str) -> Any:
    name = "segtrain_transforms_" + hashlib.sha256(os.path.abspath(place).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kind_of(pipeline: Any) -> str:
    """albumentations, torchvision or function. Raises ConfigError for anything else."""
    modules = [] if inspect.isclass(pipeline) else [cls.__module__ for cls in type(pipeline).__mro__]
    if any(module.startswith("albumentations.") for module in modules):
        return "albumentations"
    if any(module.startswith("torchvision.transforms.v2") for module in modules):
        return "torchvision"
    if any(module.startswith("torchvision.") for module in modules):
        raise ConfigError(
            f"data.transforms: {type(pipeline).__name__} of torchvision.transforms knows no masks: take that of "
            "torchvision.transforms.v2",
            code="transforms-without-masks",
            found=type(pipeline).__name__,
        )
    if inspect.isclass(pipeline) or not callable(pipeline):
        raise ConfigError(
            f"data.transforms: {pipeline!r} is no transform: give an albumentations or torchvision v2 object, or a function "
            "f(image, mask, rng) -> (image, mask)",
            code="not-a-transform",
            found=repr(pipeline),
        )
    return "function"


def _composed(given: Any) -> Any:
    """A list of transforms as one."""
    if not isinstance(given, (list, tuple)) or not given:
        return given
    if kind_of(given[0]) == "torchvision":
        from segtrain.data.augment.transforms_torch import compose

        return compose(given)
    return albumentations().Compose(list(given))
