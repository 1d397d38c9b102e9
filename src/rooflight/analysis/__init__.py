"""Why: causes of gaps, verdicts and advice, two ledgers side by side, and what is wrong with somebody's table."""
