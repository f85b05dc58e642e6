"""The channel kinds, one file each."""

from exop.runtime.channels.direct import DirectChannel
from exop.runtime.channels.latch import LatchChannel
from exop.runtime.channels.log import LogChannel
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.channels.table import TableChannel
from exop.runtime.channels.window import WindowChannel

#: The kinds that come with the platform, as the stock plugin registers them.
BUILT_IN = (DirectChannel, QueueChannel, WindowChannel, LatchChannel, TableChannel, LogChannel)
