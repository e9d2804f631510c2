"""Measurements on the user's own data and machine: what does a sample cost, and does that feed the devices?"""
