"""Training: the start of a run, the loop, its state, and how it resumes."""
