"""What is a job to Amazon SageMaker: request, images, checks, submission?"""
