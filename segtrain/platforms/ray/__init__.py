"""Ranks that Ray Train starts, and hosts that make samples for them over Ray."""
