"""Runs a rehearsal in its Linux namespaces: ``python -m launch.platforms.sagemaker.rehearse FILE``. Started by
``launch.core.rehearse.process.perform``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from launch.core.rehearse.process import played
from launch.platforms.sagemaker.rehearse.play import play

if __name__ == "__main__":
    sys.exit(played(Path(sys.argv[1]), play))
