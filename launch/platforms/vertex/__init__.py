"""Jobs on Vertex AI: description, request, image, checks, rehearsal, submission, and following."""
