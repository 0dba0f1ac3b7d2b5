"""The paper's numbers: a file for each of its tables and one for what its text states."""
