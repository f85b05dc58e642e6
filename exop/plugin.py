"""Names that plugins need for channel kinds, and for slets whose ports depend on settings."""

from exop.hooks import Plugins, hookimpl
from exop.model.slets.ports import PortSpec, PortType
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import Setting, SletSpec
from exop.runtime.channels.base import Channel, Outlet
from exop.runtime.dataflow.batches import to_items
from exop.runtime.dataflow.entry import Entry, fan_out, in_turn

__all__ = ["Channel", "Entry", "Outlet", "Plugins", "PortSpec", "PortType", "Setting", "SletSpec", "fan_out"]
__all__ += ["hookimpl", "in_turn", "spec_of", "to_items"]
