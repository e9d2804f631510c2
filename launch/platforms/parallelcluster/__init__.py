"""Checks of a ParallelCluster recipe: what its schema lets pass, and what costs money or loses work
later.
"""
