"""Jobs on Amazon SageMaker: their description, request, images, checks, and submission."""
