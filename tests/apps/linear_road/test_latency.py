"""Response times as a histogram."""

import numpy as np

from apps.linear_road.latency import Latency


def test_quantiles_are_exact_to_the_millisecond():
    """The median and the 99th percentile of many batches, as if all times had been kept."""
    latency = Latency(limit=5.0)
    for start in range(0, 1000, 100):
        latency.add(np.arange(start, start + 100) / 1000)
    assert (latency.quantile(0.5), latency.quantile(0.99)) == (0.5, 0.99)
    assert (latency.answers, latency.worst) == (1000, 0.999)


def test_late_answers_are_counted():
    """Late is above the limit, not at it."""
    latency = Latency(limit=5.0)
    latency.add(np.array([4.9, 5.0, 5.001]))
    assert latency.late == 1


def test_without_answers_there_is_no_response_time():
    """An empty histogram has the quantile 0."""
    assert Latency(limit=5.0).quantile(0.5) == 0.0
