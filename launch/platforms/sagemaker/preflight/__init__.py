"""Checks of a SageMaker job before it is sent: offline without an account, online through read-only
calls to AWS.
"""
