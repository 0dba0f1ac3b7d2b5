"""Formats in which weights are kept in files, each read without running anything that a file contains."""
