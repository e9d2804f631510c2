"""Diagnosis of a slow run from the files that it has written: its causes, their fixes, and the
gains to expect.
"""
