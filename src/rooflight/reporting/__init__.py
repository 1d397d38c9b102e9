"""A ledger as people read it: terminal, notebook, Markdown, CSV, JSON."""
