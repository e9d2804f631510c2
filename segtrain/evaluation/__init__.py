"""Scores of a network on a split, and the networks of finished runs."""
