"""Measuring SavedModels: latency and throughput, in the graph and end to end."""

from fusion.saved_model.bench.report import END_TO_END, IN_GRAPH, BenchReport, Measurement, Ratio
from fusion.saved_model.bench.run import DEFAULT_BATCHES, DEFAULT_SECONDS, bench_models

__all__ = [
    "DEFAULT_BATCHES",
    "DEFAULT_SECONDS",
    "END_TO_END",
    "IN_GRAPH",
    "BenchReport",
    "Measurement",
    "Ratio",
    "bench_models",
]
