"""Runs a rehearsal in its Linux namespaces: ``python -m launch.aws.rehearse FILE``. Started by
``launch.rehearse.apart.perform``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from launch.aws.rehearse.play import play
from launch.rehearse.apart import played

if __name__ == "__main__":
    sys.exit(played(Path(sys.argv[1]), play))
