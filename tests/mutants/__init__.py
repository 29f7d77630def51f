"""Named mutations of the program, each with the tests that must notice it: `python3 -m tests.mutants`.

Not part of CI, as a run of all takes a quarter of an hour.
"""
