"""Training loops on one network and on batches that are on the device already: each library's loop,
and ours.

Each side has ``run(task, mark)``, which trains ``task.network`` for ``task.steps`` steps and calls
``mark()`` after each.
"""
