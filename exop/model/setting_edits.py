"""The edits of a mesh that change settings, at once or at a point in the stream, and states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from exop.errors import MeshError
from exop.model.condition import read_condition
from exop.model.lines import Line, channel_names, line_for
from exop.model.memento import Memento, check_memento

if TYPE_CHECKING:
    from exop.model.mesh import Mesh


class Settings:
    """Changes of settings and states; the base of `Mesh`."""

    def configure(self, name: str, /, *, when: str | None = None, close_windows: bool = False, **settings: Any) -> Mesh:
        """Change settings of a node, or of a channel that has the name.

        With *when*, a condition on the items (`"report.time >= 3600"`), they take effect exactly at the first item for
        which it holds, behind the lines that are pending already. Without it they take effect now, and what was
        pending is cancelled.

        Raises:
            UnknownName: no such node, or no such setting.
            SettingError: a value does not fit.
            ConditionError: *when* is no condition on the node's items.
        """
        mesh = cast("Mesh", self)
        if name not in mesh.nodes and name in mesh.channels:
            return self.configure_channel(name, when=when, close_windows=close_windows, **settings)
        node = mesh.node(name)
        if close_windows:
            raise MeshError(f"{name} is a slet, which has no open windows; configure the window channel before it")
        if when is not None:
            return mesh.edited({name: replace(node, pending=(*node.pending, line_for(node, when, settings)))})
        return mesh.edited({name: replace(node.with_settings(settings), pending=())})

    def configure_channel(
        self, name: str, /, *, when: str | None = None, close_windows: bool = False, **settings: Any
    ) -> Mesh:
        """Change settings of a channel, at once or *when* a condition on its items (`"item.time >= 3600"`) holds.

        The open windows of a window channel run to their end as they are; with *close_windows* what is in them leaves
        at that point, and the new ones begin there.

        Raises:
            UnknownName: no such channel.
            ConditionError: *when* is no condition on the channel's items.
        """
        mesh = cast("Mesh", self)
        channel = mesh.channel(name)
        if when is None:
            now = replace(channel.with_settings(settings), pending=(), close_windows=close_windows)
            return mesh.edited(channels={name: now})
        if not settings and not close_windows:
            raise MeshError(f"{name}: nothing is to change when {when}; name a setting")
        line = Line(read_condition(when, channel_names(mesh, name)).text, settings, close_windows)
        return mesh.edited(channels={name: replace(channel, pending=(*channel.pending, line))})

    def restore(self, name: str, memento: Memento, /) -> Mesh:
        """Give a node another state; the slet is exchanged for one like it, which begins with a copy of *memento*.

        Raises:
            UnknownName: there is no such node.
            MeshError: its slet keeps no memento, or one of another class.
            StoredStateError: a value in it is not of its field's type.
        """
        mesh = cast("Mesh", self)
        node = mesh.node(name)
        check_memento(f"{mesh.name}.{name}", node.slet, memento)
        return mesh.edited({name: replace(node, memento=memento.copied())})
