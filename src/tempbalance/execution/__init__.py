"""When and where layers are scored: now, in the background, within a budget, on one process or many.

A model goes in, the rows that take effect at a call of ``step`` come out. Read `inline`,
`distributed`, `background`, `budget`.
"""
