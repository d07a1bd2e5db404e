"""Settings of the property tests: the same examples on every run, and no time limit on one."""

from hypothesis import settings

settings.register_profile("maths", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("maths")
