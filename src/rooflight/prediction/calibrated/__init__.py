"""Seconds of ops on a device that was calibrated."""
