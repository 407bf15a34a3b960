"""Eyas trains, proves and serves EAGLE-3 drafts for large language models."""

__version__ = "0.1.0"
