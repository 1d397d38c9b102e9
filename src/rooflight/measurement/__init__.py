"""What the silicon did: the same ops, really run. Counters, time and memory fill the ledger's other side."""
