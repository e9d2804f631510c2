"""The tests of the suite that are skipped without a GPU."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from gpu_stages.rig import Rig

ROOT = Path(__file__).resolve().parents[2]
FILES = ("test_normalize.py", "test_feed.py", "test_loader.py", "test_workers.py")
NAMES = "cuda or gpu or pinned or page"


def run(rig: Rig) -> None:
    if importlib.util.find_spec("pytest") is None:
        rig.left_out("tests of the suite", "pytest is not installed")
        return
    # conftest.py imports more packages than training needs.
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-k", NAMES]
    if rig.tiny:
        command.append("--collect-only")  # of one file
    done = subprocess.run(
        [*command, *(f"tests/data/{name}" for name in FILES[: 1 if rig.tiny else None])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=max(1.0, rig.left_s),
    )
    last = (
        done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr.strip()[-300:]
    )
    missing = re.search(
        r"ModuleNotFoundError: No module named '([\w.]+)'", done.stdout + done.stderr
    )
    if missing:
        rig.left_out("tests of the suite", f"{missing[1]} is not installed")
        return
    print(done.stdout, done.stderr)
    ran = done.returncode != 0 or " passed" in last
    rig.note("tests of the suite that need a GPU", last, done.returncode == 0 if ran else None)
