"""Benchmarks of reshard and of its peers; start them with `make bench` or `make bench-quick`."""
