"""The inside of a Slurm step: its hosts and ranks."""
