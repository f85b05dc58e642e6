"""Writing readings to a topic: `exop run apps/sensors/feed.py folder=FOLDER brokers=HOST:PORT [speed=N]`."""

from pathlib import Path

from apps.sensors.builder import TOPIC, check_readings
from apps.sensors.readings import PARTITIONS, partition_file
from apps.sensors.slets import Replay
from exop import Application


def feed(*, folder: Path, brokers: str, speed: float = 0.0, start: float = 0.0) -> Application:
    """Sensors-feed: write the readings of a folder to the topic `readings`, each when it is due.

    Args:
        folder: The readings.
        brokers: The addresses of some brokers, `HOST:PORT`.
        speed: How many times faster than they were recorded the readings are written; 0: without waiting.
        start: The time of the clock at second 0 of the recording; 0: when the application starts.

    Raises:
        BuilderError: a file is missing, or the speed is not possible.
    """
    check_readings(folder, speed)
    app = Application("sensors-feed")
    written = app.channel("written", "kafka", topic=TOPIC, brokers=brokers, by="sensor", partitions=PARTITIONS)
    for number in range(PARTITIONS):
        path = partition_file(folder, number)
        app.add(f"read-{number}", Replay, path=path, speed=speed, start=start, out=written)
    return app
