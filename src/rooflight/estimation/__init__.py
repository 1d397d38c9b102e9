"""What the mathematics says a step costs."""
