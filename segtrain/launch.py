"""The launcher for use in Python: ``from segtrain.launch import sagemaker``, with a checkout or an
installed package.

A wheel contains launch/ as segtrain/_checkout/launch, because ROS 2 also has a package named
``launch``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from segtrain.errors import ConfigError

_NEEDED = "docker/sagemaker/entrypoint.sh"  # exists only beside segtrain's own launch/


def home() -> Path:
    """The folder that holds launch/, configs/ and docker/. Raises ConfigError."""
    package = Path(__file__).resolve().parent
    for folder in (package / "_checkout", package.parent):
        if (folder / "launch/sagemaker.py").is_file() and (folder / _NEEDED).is_file():
            return folder
    why = (
        f"{package} was installed without the launcher (launch/): install segtrain from its "
        "wheel, or use a checkout"
    )
    raise ConfigError(why, code="launcher-missing")


def _load() -> None:
    """Make ``import launch`` find segtrain's package, whatever else is on sys.path."""
    folder = home() / "launch"
    known = sys.modules.get("launch")
    if known is not None:
        if folder in [Path(path).resolve() for path in getattr(known, "__path__", ())]:
            return
        other = getattr(known, "__file__", None)
        why = (
            f"another package named 'launch' is loaded already ({other}): import "
            "segtrain.launch before it"
        )
        raise ConfigError(why, code="another-launch-package")
    init, paths = folder / "__init__.py", [str(folder)]
    spec = importlib.util.spec_from_file_location("launch", init, submodule_search_locations=paths)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["launch"] = module
    spec.loader.exec_module(module)


_load()
from launch import fsx as fsx  # noqa: E402
from launch import sagemaker as sagemaker  # noqa: E402
