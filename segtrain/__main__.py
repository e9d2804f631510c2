"""``python -m segtrain``, which is what torchrun starts."""

import sys

from segtrain.cli import main

sys.exit(main())
