"""The start of a run: its settings and data are checked, its network is built, and its checkpoint
is restored.
"""
