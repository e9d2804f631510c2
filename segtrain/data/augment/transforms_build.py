"""Builds the augmentation pipeline that ``data.transforms`` describes."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from segtrain.config import file_digest, importable, transform_source
from segtrain.errors import ConfigError, MissingExtra, SegtrainError, closest

# The first version of albumentations with a random state that can be set per call, and with
# fill_mask to pad masks.
OLDEST = (1, 4, 24)


def transforms_error(reason: str, *, code: str, **values: Any) -> ConfigError:
    """The error for a pipeline that cannot be used."""
    return ConfigError(f"data.transforms: {reason}", code=code, **values)


def build(given: Any) -> Any:
    """Build the pipeline from a value of ``data.transforms`` or from objects. Raises ConfigError or
    MissingExtra.
    """
    if isinstance(given, str):
        given = _from_code(given)
    elif all(
        isinstance(part, dict) for part in (given if isinstance(given, (list, tuple)) else [given])
    ):
        return _from_names(given)
    if not isinstance(given, (list, tuple)) or not given:
        return given
    if kind_of(given[0]) == "torchvision":
        from torchvision.transforms import v2

        return v2.Compose(list(given))
    return albumentations().Compose(list(given))


def _from_names(setting: dict[str, Any] | Sequence[dict[str, Any]]) -> Any:
    """An albumentations pipeline, from a dict of ``albumentations.to_dict`` or a list of names with
    settings.
    """
    library = albumentations()
    try:
        if isinstance(setting, dict):
            return library.from_dict(setting)
        return library.Compose([_named(library, item) for item in setting])
    except SegtrainError:
        raise
    except Exception as error:
        raise transforms_error(
            f"albumentations {library.__version__} cannot build it: "
            f"{' '.join(str(error).split())[:500]}",
            code="transforms-cannot-build",
            found=str(error),
        ) from None


def albumentations() -> Any:
    """Import albumentations, without its online check for a newer version. Raises MissingExtra or
    ConfigError.
    """
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    try:
        library = importlib.import_module("albumentations")
    except ImportError as error:
        if error.name and error.name.split(".")[0] != "albumentations":
            reason = f"albumentations cannot be imported ({error})"
            raise transforms_error(reason, code="albumentations-import", found=str(error)) from None
        raise MissingExtra("albumentations", "albumentations", "data.transforms") from None
    if tuple(int(part) for part in re.findall(r"\d+", library.__version__)[:3]) < OLDEST:
        raise transforms_error(
            f"albumentations {library.__version__} is too old: pip install "
            "'segtrain[albumentations]'",
            code="albumentations-too-old",
            found=library.__version__,
        )
    return library


def _named(library: Any, item: Any) -> Any:
    """The albumentations object for an item such as ``{"OneOf": {"transforms": [{"Blur": {}}, ...],
    "p": 1}}``.
    """
    if not isinstance(item, dict) or len(item) != 1:
        reason = f"{item!r} must be one name with its settings, as {{HorizontalFlip: {{p: 0.5}}}}"
        raise transforms_error(reason, code="transforms-not-one-name", found=item)
    ((name, settings),) = item.items()
    cls = getattr(library, str(name), None)
    if not inspect.isclass(cls):
        near = closest(str(name), (known for known in dir(library) if known[0].isupper()))
        hint = f"did you mean {near!r}?" if near else "see its documentation"
        reason = f"albumentations {library.__version__} has no {name!r}: {hint}"
        raise transforms_error(reason, code="transforms-unknown-name", found=name)
    settings = dict(settings or {})
    if "transforms" in settings:
        settings["transforms"] = [_named(library, inner) for inner in settings["transforms"]]
    if issubclass(cls, library.BasicTransform):
        makers = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
        known = {parameter for maker in makers for parameter in inspect.signature(maker).parameters}
        unknown = sorted(set(settings) - known)
        if unknown:  # albumentations would only warn and ignore them
            settable = ", ".join(sorted(known - {"self", "args", "kwargs"}))
            message = (
                f"{name} of albumentations {library.__version__} has no setting "
                f"{', '.join(unknown)}"
            )
            reason = f"{message}; it has {settable}"
            raise transforms_error(
                reason, code="transforms-unknown-setting", name=name, found=unknown
            )
    return cls(**settings)


def _from_code(text: str) -> Any:
    """The object that ``FILE.py:NAME`` or ``MODULE:NAME`` names. Raises ConfigError, also for a
    changed file digest.
    """
    try:
        path, attribute, digest = transform_source(text)
    except ValueError as error:
        raise transforms_error(
            f"{text}: {error}", code="transforms-not-found", found=text
        ) from None
    if digest and file_digest(path) != digest:
        raise transforms_error(
            f"{text}: {path} has changed since this config was resolved: restore it, or "
            "start another run",
            code="transforms-file-changed",
            file=str(path),
        )
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    source = text.partition("@")[0].rpartition(":")[0]
    try:
        with importable():
            module = (
                _file_module(source) if source.endswith(".py") else importlib.import_module(source)
            )
    except (Exception, SystemExit) as error:
        found = f"{type(error).__name__}: {error}"
        reason = f"{text}: {path} fails: {found}"
        raise transforms_error(
            reason, code="transforms-import-fails", file=str(path), found=found
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        reason = f"{text}: {path} has no {attribute!r}"
        raise transforms_error(
            reason, code="transforms-no-attribute", file=str(path), found=attribute
        ) from None


def _file_module(source: str) -> Any:
    name = "segtrain_transforms_" + hashlib.sha256(os.path.abspath(source).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kind_of(pipeline: Any) -> str:
    """The kind of a pipeline: "albumentations", "torchvision", or "function". Raises ConfigError
    for anything else.
    """
    modules = (
        [] if inspect.isclass(pipeline) else [cls.__module__ for cls in type(pipeline).__mro__]
    )
    for package in ("albumentations.", "torchvision.transforms.v2"):
        if any(module.startswith(package) for module in modules):
            return package.partition(".")[0]
    if any(module.startswith("torchvision.") for module in modules):
        name = type(pipeline).__name__
        raise transforms_error(
            f"{name} of torchvision.transforms cannot transform masks: use that of "
            "torchvision.transforms.v2",
            code="transforms-without-masks",
            found=name,
        )
    if inspect.isclass(pipeline) or not callable(pipeline):
        wanted = (
            "an albumentations or torchvision v2 object, or a function f(image, mask, rng) "
            "-> (image, mask)"
        )
        raise transforms_error(
            f"{pipeline!r} is not a transform: give {wanted}", code="not-a-transform"
        )
    return "function"


def parts_of(pipeline: Any, wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield all objects in a pipeline for which ``wanted`` is true, the pipeline itself included.

    Searches lists, tuples, dicts, and the attributes of wanted objects, but not those of other
    objects.
    """
    seen: set[int] = set()
    waiting = [pipeline]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (list, tuple)):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
        elif wanted(part) and id(part) not in seen:
            seen.add(id(part))
            yield part
            waiting += vars(part).values()
