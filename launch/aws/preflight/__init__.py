"""Checks of a SageMaker job on the laptop: offline without an account, online by calls that only read."""
