"""The run folder: its ownership by one process, its checkpoints, and its copy in a bucket."""
