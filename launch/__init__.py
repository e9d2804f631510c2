"""The launcher: describes a training job, checks it, rehearses it on this machine, and starts it on
a platform.

Imports no torch.
"""
