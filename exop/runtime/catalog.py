"""`Catalog`: the slets, channel kinds, functions, transports and builders that plugins register."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from exop.errors import PluginError
from exop.hooks import Plugins
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from exop.runtime.channels.base import Channel
from exop.safe_repr import RAISED, message

if TYPE_CHECKING:
    from exop.model.expressions.functions import Function

_IN_USE: ContextVar[Catalog | None] = ContextVar("exop catalog in use", default=None)


class Catalog:
    """The slets and channel kinds of one platform, from its plugins; `plugins.broken` has the refused ones."""

    def __init__(self, plugins: Plugins) -> None:
        self.plugins = plugins
        self.slets: dict[str, SletSpec] = {}
        self.kinds: dict[str, type[Channel]] = {}
        self.functions: dict[str, Function] = {}
        self._owners: dict[str, str] = {}

    def gather(self) -> None:
        """Call the hooks of every plugin (again), and remove the slets and kinds of plugins that were unloaded."""
        # The tables are replaced, never changed: other threads may be reading them.
        there = {None, *self.plugins.names()}
        self.slets = {identity: spec for identity, spec in self.slets.items() if spec.plugin in there}
        self.kinds = {name: kind for name, kind in self.kinds.items() if self._owners[name] in there}
        functions, self.functions = self.functions, {}
        hooks = ("register_channels", self._add_kind), ("register_slets", self._add_slet)
        for hook, take in (("register_functions", self._add_function), *hooks):
            for plugin, one in self._offers(hook):
                self._take(plugin, take, one)
        if gone := {name: one for name, one in functions.items() if name not in self.functions}:
            from exop.model.expressions.functions import withdraw

            withdraw(gone)

    def embed(self, slets: Iterable[SletSpec]) -> None:
        """Add slets of this process, by MODULE:NAME; slets of plugins take precedence."""
        self.slets = {spec.identity: spec for spec in slets if spec.plugin is None} | self.slets

    def transports(self) -> dict[str, Callable[[str], Any]]:
        """Return the functions that make the handle of a platform from its address, by the scheme of the address."""
        found: dict[str, Callable[[str], Any]] = {}
        for plugin, offered in self.plugins.ask("register_transports"):
            self._take(plugin, lambda _, offer: found.update(offer), offered)
        return found

    def builders(self) -> dict[str, list[Callable[..., Any]]]:
        """Return the application builders, by plugin."""
        found: dict[str, list[Callable[..., Any]]] = {}
        for plugin, builder in self._offers("register_builders"):
            found.setdefault(plugin, []).append(builder)
        return found

    def _add_kind(self, plugin: str, kind: type[Channel]) -> None:
        # The name of a bundle contains the version: two versions of a bundle may be registered at the same time.
        name = f"{plugin}:{kind.kind}" if "@" in plugin else kind.kind
        if self.kinds.get(name, kind) is not kind:
            problem = f"the channel kind {name!r} is registered already ({self.kinds[name].__module__}); rename it"
            raise PluginError(plugin=plugin, problem=problem)
        self.kinds = {**self.kinds, name: kind}
        self._owners[name] = plugin

    def _add_function(self, plugin: str, thing: Any) -> None:
        # Imported lazily: few plugins have functions.
        from exop.model.expressions.functions import offer

        self.functions |= offer(plugin, thing)

    def _add_slet(self, plugin: str, thing: Any) -> None:
        spec = spec_of(thing).of(plugin)
        if self.slets.get(spec.identity, spec).factory is not spec.factory:
            problem = f"it registers two slets as {spec.identity!r}; set another name= for one of them"
            raise PluginError(plugin=plugin, problem=problem)
        self.slets = {**self.slets, spec.identity: spec}

    def _offers(self, hook: str) -> Iterator[tuple[str, Any]]:
        for plugin, offered in self.plugins.ask(hook):
            try:
                each = list(offered or ())
            except RAISED as error:  # a result that is no list, or a generator that raises
                problem = f"{hook}() returned no list: {message(error)}"
                self.plugins.note(plugin, PluginError(plugin=plugin, problem=problem))
            else:
                yield from ((plugin, one) for one in each)

    def _take(self, plugin: str, take: Callable[[str, Any], None], offer: Any) -> None:
        try:
            take(plugin, offer)
        except RAISED as problem:  # one invalid slet or kind must not stop the platform
            self.plugins.note(plugin, problem)


@contextmanager
def in_use(catalog: Catalog) -> Iterator[None]:
    """Make `known_slets` return *catalog* within the block, instead of the slets of the installed plugins."""
    token = _IN_USE.set(catalog)
    try:
        yield
    finally:
        _IN_USE.reset(token)


def known_slets(plugins: Plugins | None = None) -> Catalog:
    """Return the catalog of *plugins*; by default the one set by `in_use`, or else that of the installed plugins."""
    if plugins is None:
        if (known := _IN_USE.get()) is not None:
            return known
        plugins = Plugins()
        plugins.discover()
    catalog = Catalog(plugins)
    catalog.gather()
    return catalog
