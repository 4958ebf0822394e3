"""Benchmarks: thin drivers around the C++ programs that do the timing, and the plots of their results."""
