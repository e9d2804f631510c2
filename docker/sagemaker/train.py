"""The program that each process of a SageMaker job runs. It is at the top of the bundle."""

import sys

from segtrain.platforms.sagemaker.entry import main

if __name__ == "__main__":
    sys.exit(main())
