"""`replay`: a failed item, taken from a running platform, is tried again in a test or a debugger."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from exop.errors import SletError, StoredStateError, UnknownName
from exop.model.slets.memento import Memento
from exop.model.slets.ports import OUT, PortSpec
from exop.model.slets.slet import spec_of
from exop.model.slets.spec import SletSpec
from exop.model.slets.stored_memento import declared_by, load_memento
from exop.model.values.class_names import named
from exop.runtime.dataflow.binding import bind_function, bind_method
from exop.runtime.supervision.failure_state import FailedItem
from exop.testing.feeding import entering, leaving
from exop.testing.instances import CollectingOutput, GivenInput, entered, outputs_of


def replay(
    file: str | os.PathLike[str] | FailedItem, *, slet: Any = None, memento: Memento | None = None
) -> list[Any] | dict[str, list[Any]]:
    """Try a failed item again: open its slet, restore the memento, push the item.

    Args:
        file: A file that `exop item export` has written, or an item of `platform.kept_item()` or `dead_letters()`.
        slet: The slet to try; by default the one for which the item has failed.
        memento: The state to try it with; by default the one that is in the file, or a new one if there is none.

    Returns:
        The items that leave by `out`; of a slet with further outputs, those of each port by its name.

    Raises:
        Exception: the exception of the slet.
        StoredStateError: the file is damaged, or the slet, the item or the memento are of code that is not here.
        SletError: the slet has a driver of its own.
        UnknownName: the slet has no such port.
    """
    failed = file if isinstance(file, FailedItem) else FailedItem.from_bytes(Path(file).read_bytes())
    spec = _original(failed) if slet is None else spec_of(slet)
    if spec.own_driver:
        cure = "use exop.testing.open() and call its methods"
        raise SletError(slet=spec.name, what="slet to replay", problem="it has a driver of its own", cure=cure)
    state = memento if memento is not None else _state(failed, spec)
    settings = {name: value for name, value in failed.settings.items() if name in spec.settings}
    spec = spec.asked(spec.name, settings).connected([failed.port])
    with _opened(failed, spec, state, settings) as (call, pushed):
        if spec.iterated:
            results = leaving(spec, call() or ())
        else:
            port = _port(failed, spec)
            found = call(entering(port, failed.item))
            results = leaving(spec, found if spec.results[port.name] == "many" else [found])
        outputs = {port.name: [] for port in spec.outputs} | {name: one.taken() for name, one in pushed().items()}
    if OUT in outputs:
        outputs[OUT] += results
    return outputs if outputs.keys() - {OUT} else outputs.get(OUT, [])


@contextmanager
def _opened(
    failed: FailedItem, spec: SletSpec, state: Memento | None, settings: dict[str, Any]
) -> Iterator[tuple[Callable[..., Any], Callable[[], Mapping[str, CollectingOutput]]]]:
    """Open the slet; yield the function to call, and one that returns its output ports."""
    pulled: Mapping[str, Any] = failed.item if not failed.port and isinstance(failed.item, Mapping) else {}
    if not spec.is_class:
        ports = [GivenInput(port.name, pulled.get(port.name, ())) for port in spec.inputs if port.pulled]
        function = bind_function(spec, state, spec.configured(spec.name, settings))
        yield (lambda *item: function(*ports, *item)), dict
        return
    with entered(spec, state, {**settings, **pulled}) as instance:
        call = instance.__iter__ if spec.iterated else bind_method(instance, _port(failed, spec))
        yield call, partial(outputs_of, instance, spec)


def _port(failed: FailedItem, spec: SletSpec) -> PortSpec:
    ports = {port.name: port for port in spec.inputs if not port.pulled}
    if failed.port not in ports:
        raise UnknownName(place=f"the slet {spec.name}", kind="input port", name=failed.port, known=ports)
    return ports[failed.port]


def _state(failed: FailedItem, spec: SletSpec) -> Memento | None:
    """Return the exported memento as an instance of the class that the tried slet keeps."""
    if spec.state is None:
        return None
    if failed.memento is None:
        return spec.state[1]()
    return load_memento(
        failed.memento, spec.state[1], f"the memento of {failed.place}", declared=declared_by(spec.state[1])
    )


def _original(failed: FailedItem) -> SletSpec:
    """Return the slet for which the item has failed: by the place of its code, else from an installed plugin."""
    with suppress(StoredStateError, SletError):  # the code may have moved, while its identity still holds
        if failed.code is not None:
            return spec_of(named(failed.code))
    # Imported lazily: plugins are loaded only where the code is not found by its name.
    from exop.runtime.catalog import known_slets

    slets = known_slets().slets
    if failed.slet not in slets:
        raise StoredStateError(
            what=f"the slet {failed.slet} of {failed.place}",
            problem="its code is not found here",
            cure="install it, or give it: replay(FILE, slet=…)",
        )
    return slets[failed.slet]
