"""The program inside the namespaces of a rehearsal: ``python -m launch.aws.rehearse ORDERS``, started by run.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from launch.aws.rehearse.play import Orders, play
from launch.aws.rehearse.report import save
from segtrain.errors import EXIT_ERROR, SegtrainError


def main(path: Path) -> int:
    orders = Orders(**json.loads(path.read_text()))
    try:
        report = play(orders, lambda text: print(text, flush=True))
    except SegtrainError as error:
        path.with_name("error.txt").write_text(str(error))
        return EXIT_ERROR
    save(report, path.with_name("report.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
