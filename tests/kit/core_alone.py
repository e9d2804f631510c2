"""An installation of the core alone: the repository without the platforms and the launcher, in a folder of its own.

python tests/kit/core_alone.py [ARGUMENTS]      runs pytest there: tests/core and tests/data, unless others are named
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ("tests/core", "tests/data")
# launch/core/rehearse holds a bucket server and a stand-in of smdistributed, which tests use.
NEEDED_BY_TESTS = ("tests", "configs", "docs", "launch/core/rehearse")


def copy_package(folder: Path) -> Path:
    """Copy the package into ``folder``."""
    ignore = shutil.ignore_patterns("platforms", "_checkout", "__pycache__")
    return Path(shutil.copytree(ROOT / "segtrain", folder / "segtrain", ignore=ignore))


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="segtrain-core-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # some tests drop their rights
        copy_package(folder)
        for part in NEEDED_BY_TESTS:
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy2(ROOT / "pyproject.toml", folder)
        environment = {**os.environ, "PYTHONPATH": name}
        named = any(argument.startswith("tests/") for argument in arguments)
        command = [sys.executable, "-m", "pytest", *arguments, *(() if named else TESTS)]
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
