"""What can be counted on a CPU: floating-point instructions through perf events, oneDNN's primitives."""
