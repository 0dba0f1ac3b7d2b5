"""The paper's experiments, and ours beyond it: each module has ``STUDIES``."""
