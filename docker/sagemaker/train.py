"""What does each process of a SageMaker job run? This file, which lies at the top of the bundle."""

import sys

from segtrain.platforms.sagemaker import main

if __name__ == "__main__":
    sys.exit(main())
