"""Evaluations that run beside the server, each in a process of its own."""
