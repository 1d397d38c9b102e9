"""Reports: everything that is known of a ledger, a pair or a study, in sections; then as a page, tables or pictures."""
