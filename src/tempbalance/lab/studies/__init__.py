"""The paper's experiments, a file each: what is trained, and what is made of it."""
