"""Response times as a histogram of milliseconds: small, exact enough, and a part of the memento of who answers."""

from dataclasses import dataclass, field

import numpy as np

from .columns import Floats


@dataclass
class Latency:
    """The response times of one kind of answer, against a limit in seconds."""

    limit: float
    counts: dict[int, int] = field(default_factory=dict)
    answers: int = 0
    late: int = 0
    worst: float = 0.0

    def add(self, seconds: Floats) -> None:
        """Count the answers of a batch."""
        self.answers += len(seconds)
        self.late += int((seconds > self.limit).sum())
        least, most = float(seconds.min()), float(seconds.max())
        self.worst = max(self.worst, most)
        if int(least * 1000) == int(most * 1000):
            step = int(most * 1000)
            self.counts[step] = self.counts.get(step, 0) + len(seconds)
            return
        steps, counts = np.unique((seconds * 1000).astype(np.int64), return_counts=True)
        for step, count in zip(steps.tolist(), counts.tolist(), strict=True):
            self.counts[step] = self.counts.get(step, 0) + count

    def quantile(self, share: float) -> float:
        """The response time that *share* of the answers kept, in seconds, to the millisecond."""
        wanted, seen = share * self.answers, 0
        for step in sorted(self.counts):
            seen += self.counts[step]
            if seen >= wanted:
                return min((step + 1) / 1000, round(self.worst, 3))
        return 0.0
