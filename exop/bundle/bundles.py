"""The bundles of one platform: installed, started, updated, stopped, uninstalled and listed, one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from exop.bundle.dev import Build, Development
from exop.bundle.installed import Bundle, BundleContext, Installed
from exop.bundle.manifest import MANIFEST, Manifest, best, missing_requirements, wired_to
from exop.bundle.modules import load_code, unload
from exop.bundle.store import OFFERED, Archive, BundleStore, checked_archive, read_archive, remembered, stored_bundles
from exop.errors import BundleError, BundleInUse, ExopError, RequirementMissing, StateError, UnknownName
from exop.hosts.protocol.together import change_together
from exop.logs import logger
from exop.model.meshes.checks import sinks_that_refuse
from exop.remoting.api.folder_archive import archive_of
from exop.runtime.history import PLATFORM
from exop.wiring import Plan

#: Plain facts about one bundle.
Facts: TypeAlias = dict[str, Any]


class Bundles:
    """`platform.bundles`: the bundles of a platform, which are installed, updated and removed while it runs.

        platform.bundles.install("bundles/speeds")
        platform.bundles.start("speeds")
        platform.apply(platform.mesh("road").replace("averages", platform.slets()["speeds@1.0.0:average"]))

    Every method returns plain data, in the form of the rows of `list`. `RemotePlatform.bundles` has the same methods.

    Attributes:
        broken: The bundles in the state directory that can no longer be read, with the reason.

    Raises:
        StateError: the state directory cannot be used.
    """

    def __init__(self, context: BundleContext) -> None:
        self._context = context
        self._lock = threading.RLock()
        self._store = BundleStore(context.state / "bundles" if context.state is not None else None)
        self._known = Installed()
        self._again: dict[str, tuple[str, ...]] = {}  # those that were started when the platform was closed
        whole, self.broken = stored_bundles(self._store.folder)
        offered: Mapping[str, tuple[str, ...]] = {}
        with suppress(StateError):  # the manifests have names, too, until the next start of a bundle
            offered = remembered(self._store.folder, OFFERED)
        for folder, archive in whole.items():
            self._known[archive.manifest.key] = Bundle(archive, folder, offers=offered.get(folder.name, ()))

    def install(self, path: str | os.PathLike[str]) -> Facts:
        """Store the bundle in a folder or a zip archive without importing its code, and return its facts.

        Raises:
            ArchiveRefused: the file is not the archive of a bundle, or is dangerous.
            BundleError: the manifest is invalid, or another bundle of this name and version is installed.
            StateError: the bundle cannot be written.
        """
        return self.install_archive(archive_of(Path(path)), str(path))

    def install_archive(self, data: bytes, name: str) -> Facts:
        """Store the bundle in an archive, which is given as bytes. Errors refer to the archive by *name*."""
        archive = read_archive(data, name)
        with self._recorded("install", archive.manifest.key):
            return self._facts(self._install(archive))

    def start(self, name: str, imports_from: Collection[str] = ()) -> Facts:
        """Start the required bundles, import the code of a bundle, and register its slets and channel kinds.

        *name* is `name@version`, or only the name for the highest version; *imports_from* are preferred for imports.

        Raises:
            UnknownName: no bundle of this name is installed.
            RequirementMissing: requirements are missing; the error names all of them.
            BundleBroken: the code of the bundle could not be loaded; the error names the file and the line.
            BundleError: the bundle is started already, with other imports.
        """
        with self._recorded("start", name):
            if (one := self._find(name)).code is not None and (others := ", ".join({*imports_from} - {*one.wires})):
                problem = f"is started already, with imports from {', '.join(one.wires) or 'no bundle'}, not {others}"
                cure = f"stop it, after its users: `exop bundle stop {one.key}`; or give this one another version"
                raise BundleError(bundle=one.key, problem=problem, cure=cure)
            try:
                self._start(one, imports_from)
            except BundleError as problem:
                one.problem = str(problem)
                raise
            return self._facts(one)

    def stop(self, name: str) -> Facts:
        """Unregister the slets and channel kinds of a bundle, and unload its code. The bundle remains installed.

        Raises:
            UnknownName: no bundle of this name is installed, or several versions are started.
            BundleInUse: components, channels or other bundles use the bundle; the error names them.
        """
        with self._recorded("stop", name):
            one = self._find(name, started=True)
            self._stop(one, "stopped")
            return self._facts(one)

    def uninstall(self, name: str) -> Facts:
        """Stop a bundle if it is started, and remove the bundle.

        Raises:
            UnknownName: no bundle of this name is installed, or several versions are installed.
            BundleInUse: components, channels, other bundles or stored applications use the bundle; the error names
                them.
            StateError: the bundle cannot be removed.
        """
        with self._recorded("uninstall", name):
            one = self._find(name, sole=True)
            self._stop(one, "uninstalled")
            self._store.remove(one.key)
            del self._known[one.key]
            self._remember()  # without what it has offered
            return self._facts(one) | {"state": "uninstalled"}

    def update(self, path: str | os.PathLike[str], application: str | None = None, **bounds: Any) -> Facts:
        """Install and start a new version of a bundle, replace the other versions by the new version, and stop them.

        The started bundles that import from one of these are taken along: each gets a version of the same code that
        imports from the new one, such as `work@1.0.0+speeds.2.0.0`, unless its `requires.bundles` excludes that. Every
        component of a replaced version is replaced in all applications, or only in *application*, by one plan for each
        application, on all hosts of it; either all plans are applied or none. An application that spans hosts is
        replaced at its home, and in an update of its own. Returns the facts of the new version, with the `replaced`
        nodes, the bundles taken `along`, the changed `settings` by node, the `stopped` versions, the nodes that run on
        with the old version because their home is `elsewhere`, and `warnings`: of sinks that refuse the new items, and
        of bundles that are not taken along. *bounds*: `timeout`, `pause` and `stall`, as for `Plan.apply`.

        Raises:
            ArchiveRefused, BundleError: as `install`; or no other version is started.
            RequirementMissing, BundleBroken: as `start`.
            MeshError, PlanError: the new version lacks a slet or a port, cannot take over a state, or does not open; a
                host cannot be reached; or several applications would change of which one spans hosts.
                All applications continue with the old version, and the new version is not installed.
            UnknownName: there is no such *application*.
        """
        return self.update_archive(archive_of(Path(path)), str(path), application, **bounds)

    def update_archive(self, data: bytes, name: str, application: str | None = None, **bounds: Any) -> Facts:
        """Update a bundle to the version in an archive (as bytes). Errors refer to the archive by *name*."""
        manifest = read_archive(data, name).manifest
        with self._recorded("update", manifest.key):
            there, running = set(self._known), {one.key for one in self._known.started()}
            if not (old := [one for one in self._known.started(manifest.name) if one.key != manifest.key]):
                cure = f"start the first version by `exop bundle install {name} --start`"
                if manifest.key in running:
                    cure = f"{manifest.key} is started already: raise `version` in bundle.toml"
                raise BundleError(bundle=manifest.name, problem="is not started here in another version", cure=cure)
            self.install_archive(data, name)
            new = self._known[manifest.key]
            try:
                self._start(new)
                renewed, left = self._take_along(dict.fromkeys([one.key for one in old], new))
                plans, elsewhere = _plans(self._context, renewed, left, application)
                warnings = [
                    f"warning: {key} goes on with the old version: it requires {why}" for key, why in left.items()
                ]
                warnings += [one for plan in plans for one in sinks_that_refuse(plan.after, plan.before)]
                change_together(self._context.applications, [plan.bounded(**bounds) for plan in plans])
            except BaseException:
                self._take_back(there, running)
                raise
            for plan in plans:
                self._context.hosts.release(plan.after.name, [*reversed(renewed)])  # the importing ones first
            stopped = []
            for one in self._known.in_order_of_use():
                if one.key in renewed and not self.users(one):
                    self._withdraw(one)
                    stopped.append(one.key)
            self._remember()
            steps = [(f"{plan.after.name}.{step.node}", step) for plan in plans for step in plan.steps]
            settings = {node: [*map(str, step.settings)] for node, step in steps if step.settings}
            replaced = [node for node, step in steps if step.verb == "replace"]
            along = sorted({one.key for one in renewed.values()} - {new.key})
            facts = {"replaced": replaced, "along": along, "settings": settings, "stopped": stopped}
            return self._facts(new) | facts | {"elsewhere": elsewhere, "warnings": warnings}

    def _take_along(self, renewed: dict[str, Bundle]) -> tuple[dict[str, Bundle], dict[str, str]]:
        """Start the code of the bundles that import from *renewed* versions once more, with imports from the new ones.

        Returns the new versions by the old ones; and the bundles that exclude the new ones, each with its requirement.
        """
        left = dict[str, str]()
        for one in reversed(self._known.in_order_of_use()):
            others = [renewed[wire].manifest for wire in one.wires if wire in renewed]
            known = {other.name: other for other in others}
            needs = [needed for needed in one.manifest.bundles if needed.name in known]
            refusing = [str(needed) for needed in needs if best(needed, known.values()) is None]
            if refusing:
                left[one.key] = ", ".join(refusing)
            elif others:
                text = wired_to(one.archive.files[MANIFEST].decode(), one.manifest, others)
                files = {**one.archive.files, MANIFEST: text.encode()}
                renewed[one.key] = self._install(checked_archive(files, one.key))
                try:
                    self._start(renewed[one.key], one.wires)
                except BundleError as error:
                    problem = f"cannot be imported by {one.key}: {getattr(error, 'problem', error)}"
                    cure = f"correct it, or first update or stop {one.key}"
                    raise BundleError(bundle=others[0].key, problem=problem, cure=cure) from error
        return renewed, left

    def _take_back(self, there: Collection[str], running: Collection[str]) -> None:
        """Stop and remove the bundles that were not started, or not installed, when an update began."""
        for one in self._known.in_order_of_use():
            if one.key not in running:
                self._withdraw(one)
        for key in [key for key in self._known if key not in there]:
            self._store.remove(key)
            del self._known[key]
        self._remember()

    def develop(self, folder: str | os.PathLike[str], build: Build) -> Development:
        """Run the application of a folder that is being edited (`exop dev`); *build* returns its mesh."""
        return Development(self._context, Path(folder), build, self._wired)

    def code(self, name: str, /) -> dict[str, Facts]:
        """Return the `digest` and `imports_from` of a bundle and, before it, of those from which it imports.

        Also a function that returns its `archive`. A bundle that is not installed has none of this.
        """
        found: dict[str, Facts] = {}
        if (one := self._known.get(name)) is not None:
            for wired in one.wires:
                found |= self.code(wired)
            archive = partial(archive_of, one.folder)
            found[name] = {"digest": one.archive.digest, "imports_from": [*one.wires], "archive": archive}
        return found

    def list(self) -> Sequence[Facts]:
        """List the installed bundles with their states, contents, missing requirements and users."""
        with self._lock:
            rows = [self._facts(one) for one in self._known.in_order()]
        return rows + [{"bundle": key, "state": "broken", "problem": str(error)} for key, error in self.broken.items()]

    def states(self) -> dict[str, str]:
        """Return the state of each installed bundle, without waiting for the work on one."""
        started = {one.key: "started" if one.code is not None else "installed" for one in self._known.in_order()}
        return started | dict.fromkeys(self.broken, "broken")

    def restore(self) -> None:
        """Start the bundles that were started when the platform was closed; record failures, and continue."""
        self._again = remembered(self._store.folder)
        for key, wires in [*self._again.items()]:
            try:
                with self._lock:
                    self._start(self._find(key), wires)
            except ExopError as problem:
                self._again[key] = wires  # the next start of the platform tries it again
                if key in self._known:
                    self._known[key].problem = f"{problem}; then start it: `exop bundle start {key}`"
                logger("exop.bundle").error("a bundle was not started again", bundle=key, problem=str(problem))

    def close(self) -> None:
        """Remove the code of all bundles from Python; the state directory still lists them as started."""
        with self._lock:
            for one in self._known.in_order_of_use():
                self._withdraw(one)
            self._store.close()

    @contextmanager
    def _recorded(self, verb: str, bundle: str) -> Iterator[None]:
        """Hold the lock of the bundles, and record the work in the history of the platform."""
        history = self._context.applications.history
        with self._lock, history.recorded(PLATFORM, f"{verb} bundle", new=True, node=bundle):
            yield

    def _install(self, archive: Archive) -> Bundle:
        """Store a bundle that is not installed."""
        if (known := self._known.get(archive.manifest.key)) is not None and known.archive.digest != archive.digest:
            cure = f"give this one another version, or uninstall that one: `exop bundle uninstall {known.key}`"
            raise BundleError(bundle=known.key, problem="is installed already, with other files", cure=cure)
        if known is None:
            known = self._known[archive.manifest.key] = Bundle(archive, self._store.put(archive))
            self.broken.pop(known.key, None)
        return known

    def _find(self, name: str, *, started: bool = False, sole: bool = False) -> Bundle:
        """The bundle called *name*: a version of it, or the highest one (of the started ones, if *started*)."""
        if name in self._known:
            return self._known[name]
        versions = [one for one in self._known.in_order() if one.manifest.name == name]
        fitting = (self._known.started(name) or versions) if started else versions
        if not fitting or (len(fitting) > 1 and (started or sole)):
            if fitting:
                cure = f"name one of them: {', '.join(one.key for one in fitting)}"
                raise BundleError(bundle=name, problem=f"has {len(fitting)} versions here", cure=cure)
            place = f"the platform {self._context.name!r}"
            raise UnknownName(place=place, kind="bundle", name=name, known=self._known)
        return fitting[-1]

    def _start(self, one: Bundle, wanted: Collection[str] = (), above: tuple[str, ...] = ()) -> None:
        if one.code is not None:
            return
        if one.key in above:
            problem = f"requires itself: {' → '.join([*above, one.key])}"
            raise BundleError(bundle=one.key, problem=problem, cure="take one of the requirements out")
        required = self._wired(one.manifest, wanted, above)
        if one.key in (plugins := self._context.catalog.plugins).folders:
            plugins.unregister(one.key)  # a command has loaded the folder to build a mesh
            self._context.gather()
        one.code, one.problem = load_code(one.archive, one.folder, required), ""
        one.wires = [other.key for other in required]
        try:
            self._context.catalog.plugins.register(one.key, one.code)
            self._context.gather()
            if (broken := self._context.catalog.plugins.broken.get(one.key)) is not None:
                problem = f"could not be registered: {broken.problem}"
                raise BundleError(bundle=one.key, problem=problem, cure="correct it")
            kinds = [f"{one.key}:{channel.kind}" for channel in one.code.channels]
            one.offers = [*sorted(self._context.slets_of(one.key)), *kinds]
            one.services = self._context.register(one.manifest, one.code)
            self._remember()
        except BaseException:
            self._withdraw(one)
            raise

    def _wired(
        self, manifest: Manifest, wanted: Collection[str] = (), above: tuple[str, ...] = ()
    ) -> Collection[Manifest]:
        """Start the bundles that a bundle requires; return their manifests."""
        with self._lock:
            known = [other.manifest for other in self._known.values()]
            if lacking := missing_requirements(manifest, known):
                raise RequirementMissing(bundle=manifest.key, missing=lacking)
            running = [other.manifest for other in self._known.started()]
            # From the wanted ones, else from started ones, else the highest version.
            preferred = ([other for other in known if other.key in wanted], running, known)
            found = {one.name: next(filter(None, (best(one, there) for there in preferred))) for one in manifest.needed}
            for other in found.values():
                self._start(self._known[other.key], (), (*above, manifest.key))
            return found.values()

    def _stop(self, one: Bundle, event: str) -> None:
        """Withdraw a bundle unless it is used."""
        if users := self.users(one):
            raise BundleInUse(bundle=one.key, event=event, users=users)
        self._withdraw(one)
        self._remember()

    def users(self, one: Bundle) -> Sequence[str]:
        """List the users of a bundle: nodes and channels of applications, stored applications, other bundles."""
        others = [other.key for other in self._known.importing(one)]
        return self._context.users_of(one.key, one.code) + [f"the bundle {key}" for key in others]

    def _withdraw(self, one: Bundle) -> None:
        for registration in one.services:
            registration.unregister()
        one.services = []
        self._again.pop(one.key, None)
        if one.code is not None:
            self._context.catalog.plugins.unregister(one.key)
            self._context.gather()
            unload(one.code.namespace)
            one.code, one.wires = None, ()

    def _remember(self) -> None:
        now = {one.key: tuple(one.wires) for one in reversed(self._known.in_order_of_use())}
        self._store.remember({**now, **self._again, **now})
        self._store.remember({key: one.offers for key, one in self._known.items() if one.offers}, OFFERED)

    def _facts(self, one: Bundle) -> Facts:
        manifest = one.manifest
        lacking = missing_requirements(manifest, [other.manifest for other in self._known.values()])
        state = "started" if one.code is not None else "installed" if lacking else "resolved"
        offers = list(one.offers or map(str, (*manifest.slets, *manifest.channels)))
        return {
            "bundle": one.key,
            "name": manifest.name,
            "version": str(manifest.version),
            "state": state,
            "description": manifest.description,
            "slets": offers[: len(manifest.slets)],
            "channels": offers[len(manifest.slets) :],
            "missing": lacking,
            "imports_from": list(one.wires),
            "used_by": self.users(one),
            "digest": one.archive.digest,
            "folder": str(one.folder),
        } | ({"problem": one.problem} if one.problem else {})


def _plans(
    context: BundleContext, renewed: Mapping[str, Bundle], left: Mapping[str, str], only: str | None
) -> tuple[list[Plan], dict[str, str]]:
    """Plan to replace every component of bundles that are *renewed* by the slet of the same name of the new version.

    Returns a plan for each application, or for *only* one of them, which are all to be made, or none; and the nodes
    that other platforms replace, each with the home of its application. Finished applications stay as they are.
    """
    bundle = next(iter(renewed.values())).key
    plans, elsewhere = list[Plan](), dict[str, str]()
    if only is not None:
        context.hosts.mesh(only)  # raises `UnknownName`
    for mesh, home in context.hosts.running():
        nodes = [node for node in mesh.nodes.values() if node.slet.plugin in renewed]
        if not nodes or only not in (None, mesh.name):
            continue
        if home != context.name:
            elsewhere |= {f"{mesh.name}.{node.name}": home for node in nodes}
            continue
        for node in mesh.nodes.values():
            if (plugin := str(node.slet.plugin)) in left:  # it may have items of the classes of the old version
                problem = f"requires {left[plugin]}, and {mesh.name}.{node.name}, which runs it, is not to get {bundle}"
                cure = f"first update {plugin.partition('@')[0]} to a version whose bundle.toml permits both"
                raise BundleError(bundle=plugin, problem=problem, cure=cure)
        for node in nodes:
            new = renewed[str(node.slet.plugin)].key
            if node.slet.name not in (offered := {spec.name: spec for spec in context.slets_of(new).values()}):
                what, there = repr(node.slet.name), f"{mesh.name}.{node.name}"
                cure = f"offer it again, or replace {there} first"
                raise BundleError(bundle=new, problem=f"offers no slet {what}, which {there} runs", cure=cure)
            mesh = mesh.replace(node.name, offered[node.slet.name])  # noqa: PLW2901 (edit by edit)
        plans.append(context.hosts.plan(mesh))
    if elsewhere and not plans:
        homes = ", ".join(f"`--on {home}`" for home in dict.fromkeys(elsewhere.values()))
        problem = f"would replace only {', '.join(elsewhere)}, of applications that other platforms lead"
        raise BundleError(bundle=bundle, problem=problem, cure=f"give the command to their homes: {homes}")
    if len(plans) > 1 and (wide := [plan.after.name for plan in plans if context.hosts.spans(plan.after)]):
        names = ", ".join(plan.after.name for plan in plans)
        problem = (
            f"cannot replace the slets of {names} in one step: {', '.join(wide)} runs on several hosts, or has done so"
        )
        first = " and ".join(f"`exop bundle update FILE --application {name}`" for name in wide)
        raise BundleError(bundle=bundle, problem=problem, cure=f"update that alone before all others: {first}")
    return plans, elsewhere
