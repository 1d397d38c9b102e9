"""Results as people read them: every one becomes a document of sections, tables and charts, which writers write."""
