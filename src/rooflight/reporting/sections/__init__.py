"""The tables and sentences of a document, one module a subject."""
