"""The inside of a Vertex AI job: the entry point, ranks, folders, and the experiment that it writes
to.
"""
