"""The command line: one module a verb. Only here is anything printed.

Verbs import what they run inside their functions: help, errors in options and what needs no model must come at once,
and torch takes seconds. Elsewhere in the package imports stand at the top of a module, but for the few that would bring
torch to those who do not need it.
"""
