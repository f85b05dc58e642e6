"""The channel kinds: `direct` is in `base`, `latch` is in `table`, and each other kind in the module of its name."""

from exop.runtime.channels.base import DirectChannel
from exop.runtime.channels.inbox import Inbox
from exop.runtime.channels.log import LogChannel
from exop.runtime.channels.outbox import Outbox
from exop.runtime.channels.partitioned_log import PartitionedLogChannel
from exop.runtime.channels.queue import QueueChannel
from exop.runtime.channels.reader import Reader
from exop.runtime.channels.table import LatchChannel, TableChannel
from exop.runtime.channels.window import WindowChannel

#: The kinds that the stock plugin registers.
BUILT_IN = (DirectChannel, QueueChannel, WindowChannel, LatchChannel, TableChannel, LogChannel, PartitionedLogChannel)
#: The kinds by which ports reach channels on other hosts, which the platform adds to a mesh.
REMOTE = (Outbox, Inbox, Reader)
