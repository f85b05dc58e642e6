"""The settings of the generator, with their limits."""

from __future__ import annotations

from dataclasses import dataclass

from exop.errors import ExopError

#: More roads than this do not fit into 32-bit vehicle numbers for three hours.
MOST_ROADS = 1_000


class BadSetting(ExopError):
    """Traffic that cannot be made: `option`, `value`, `cure`."""

    template = "{option} {value} is not possible; {cure}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The traffic wanted.

    The defaults give one road the load of the usual public generators: some 30 reports a second in the first minute,
    800 after 20 minutes, and the peak after about two hours.
    """

    xways: float = 1.0
    minutes: int = 20
    seed: int = 1
    #: Trips begun per minute and road in the first minute, and how many times that at the peak (minute 90).
    cars_per_minute: int = 1_400
    peak: float = 1.4
    #: Minutes from the end of an accident to the next one of the road, and how long its cars stand; both vary by half.
    accident_gap: float = 2.0
    accident_length: float = 5.0
    #: Traffic jams at a time per direction of a road.
    jams: int = 2

    def __post_init__(self) -> None:
        checks = [
            ("--xways", self.xways, 0 < self.xways <= MOST_ROADS and self.xways * 2 == int(self.xways * 2)),
            ("--minutes", self.minutes, self.minutes >= 1),
            ("--seed", self.seed, self.seed >= 0),
            ("--cars-per-minute", self.cars_per_minute, self.cars_per_minute >= 1),
            ("--peak", self.peak, 1 <= self.peak <= 10),
            ("--accident-gap", self.accident_gap, self.accident_gap > 0),
            ("--accident-length", self.accident_length, self.accident_length >= 2),
            ("--jams", self.jams, 0 <= self.jams <= 20),
        ]
        for option, value, possible in checks:
            if not possible:
                raise BadSetting(option=option, value=value, cure=CURES[option])

    @property
    def ways(self) -> int:
        """Directions of roads: two per road; the half road of 0.5 or 1.5 has only the east."""
        return int(self.xways * 2)

    @property
    def roads(self) -> int:
        """Roads, the half one included."""
        return (self.ways + 1) // 2


CURES = {
    "--xways": f"give a multiple of 0.5 up to {MOST_ROADS}; 0.5 is one direction of one road",
    "--minutes": "give at least 1",
    "--seed": "give 0 or more",
    "--cars-per-minute": "give at least 1",
    "--peak": "give 1 (no peak) to 10",
    "--accident-gap": "give more than 0 minutes",
    "--accident-length": "give at least 2 minutes: four reports make a car stopped",
    "--jams": "give 0 to 20",
}
