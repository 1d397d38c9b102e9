"""The command line: one module a verb. Only here is anything printed."""
