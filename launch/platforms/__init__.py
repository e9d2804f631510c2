"""One package per platform: its job, request, checks, rehearsal, and how a job is followed."""
