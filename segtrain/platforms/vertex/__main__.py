"""Entry point of a container: ``python -m segtrain.platforms.vertex``."""

import sys

from segtrain.platforms.vertex.entry import main

sys.exit(main())
