"""The parts of `benchmarks/estimate.py`: what is asked, of whom, how it is measured and shown."""
