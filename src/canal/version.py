"""The version, where everything can ask for it."""

__version__ = "0.1.0"
