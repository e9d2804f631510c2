"""The launcher: describes a training job, checks it, rehearses it here, and starts it on a platform.

Imports no torch.
"""
