"""Settings that every test shares."""

from hypothesis import settings

# Deterministic: a commit that passes once passes again. No deadline: machines differ.
settings.register_profile("canal", deadline=None, derandomize=True)
settings.load_profile("canal")
