"""The paper's experiments, and ours beyond it: entries in YAML files, and the functions that some of them name."""
