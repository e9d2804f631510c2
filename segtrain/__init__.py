"""segtrain: a distributed trainer for semantic segmentation. Importing it imports no torch."""

__version__ = "0.1.0"
