"""`@slet` and `Slet`: the signature of a function or class is the contract of a slet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, dataclass_transform, overload

from exop.model.slets.memento import as_dataclass
from exop.model.slets.ports import OutputPort, PortType
from exop.model.slets.signature import read_class, read_function, wrong
from exop.model.slets.spec import DEAD_LETTERS, POLICIES, Policy, SletSpec, invalid_bounds

F = TypeVar("F", bound=Callable[..., Any])
Specialised: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, PortType]], SletSpec]


@overload
def slet(function: F) -> F: ...
@overload
def slet(
    *,
    name: str | None = None,
    atomic: bool = False,
    on_error: Policy = "suspend",
    timeout: float | None = None,
    dead_letters: int = DEAD_LETTERS,
    effects: bool | None = None,
    specialised: Specialised | None = None,
) -> Callable[[F], F]: ...
def slet(
    function: F | None = None, *, name: str | None = None, specialised: Specialised | None = None, **care: Any
) -> F | Callable[[F], F]:
    """Make a function a slet; it remains an ordinary function.

    The positional parameter is the input port, a parameter annotated with a `Memento` is the state, keyword-only
    parameters are the settings, and the return annotation is the type of the output `out`.

    Args:
        function: The function, when used without parentheses.
        name: The name of the slet; by default the name of the function.
        care: The treatment of items that fail. An application may override the first three: `on_error`, the policy when
            the slet raises; `timeout`, the seconds after which a slow item is reported; `dead_letters`, the maximum
            number of items kept by the policy of that name. The others belong to the slet: `atomic`, a retry starts
            from a copy of the memento before the item; `effects`, whether it acts on something outside of the mesh (a
            file, a service), so that two instances must not run side by side. The default is true for sources and sinks
            only.
        specialised: A function of the complete settings, and of the known types of the inputs by port. It returns the
            specification with the ports for these (`SletSpec.with_outputs`).

    Raises:
        SletError: the signature is not that of a slet; the message says what to write instead.
    """

    def mark(plain: F) -> F:
        spec = read_function(plain)
        _check_care(spec.name, care)
        plain.__slet__ = replace(spec, name=name or spec.name, **care)  # type: ignore[attr-defined]
        if specialised is not None:
            plain.specialised = specialised  # type: ignore[attr-defined]
        return plain

    return mark if function is None else mark(function)


def input_port(method: F) -> F:
    """Make a method of a `Slet` class an input port with the name of the method."""
    method.__input_port__ = True  # type: ignore[attr-defined]
    return method


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Slet:
    """The base of slets with several ports, or with resources to open and close.

    Fields annotated with `OutputPort[T]` and `InputPort[T]` are injected, a field annotated with a `Memento` is the
    state, and all other fields are settings. Methods marked with `@input_port` process items; their results are emitted
    at `out`. The platform iterates a class with `__iter__`, which is an α-slet or a slet that pulls its inputs.
    `__enter__` opens the slet, and returns when the slet is ready; `__exit__` closes the slet.

    With a class method `specialised(settings, inputs)`, the ports depend on the settings and the types of the inputs,
    and the slet pushes by `self.outputs[name]`. Fields annotated with `OutputPorts[T]` and `InputPorts[T]`, and input
    methods with another parameter for the name of the port before the item, denote any number of ports.

    The class keywords are those of `@slet`, `own_driver=True` (the slet pushes from its own threads), and
    `exclusive=True` (the slet owns a port, file or device, so that only one instance can be open: a change closes the
    old slet before it opens the new one). Subclasses inherit all keywords except the name.
    """

    #: The slet keeps state outside of a memento, such as that of an engine: replacing it requires `lose_state`.
    keeps_own_state: ClassVar[bool] = False
    #: The slet can move to another host: `pack` returns its internal state as bytes, and `inherit` accepts them.
    packs: ClassVar[bool] = False
    #: Whether the application takes checkpoints; set by the platform before the first item.
    checkpointed: ClassVar[bool] = False
    #: Opening occupies the interpreter for long (computation, imports); plans warn of it.
    heavy_opening: ClassVar[bool] = False
    #: The maximum number of single items that a queue passes to a port of batches in one call; 0: one by one. Of a
    #: source: more than 0 if the sizes of its batches depend on how much is there.
    gathers: ClassVar[int] = 0
    #: Settings cannot be changed in place: a new instance is opened, which replaces the old one.
    reopens: ClassVar[bool] = False
    #: The output ports, and the types of the input ports, by name; set if the slet has `specialised` or families.
    outputs: ClassVar[Mapping[str, OutputPort[Any]]]
    inputs: ClassVar[Mapping[str, PortType]]
    __slet__: ClassVar[SletSpec | None] = None
    __slet_options__: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, *, name: str | None = None, **more: Any) -> None:
        given = {key: more.pop(key, None) for key in (*_CARE, *_TRAITS)}
        try:
            super().__init_subclass__(**more)
        except TypeError as error:
            if not more:  # raised by the code of a base class
                raise
            problem = f"the class has no keyword {', '.join(more)}"
            raise wrong(cls.__qualname__, problem, f"use name, {', '.join((*_TRAITS, *_CARE))}") from error
        care = {**cls.__slet_options__, **{key: value for key, value in given.items() if value is not None}}
        cls.__slet_options__ = {**care}
        drives, exclusive = (bool(care.pop(name, False)) for name in _TRAITS)
        _check_care(cls.__qualname__, care)
        if exclusive and (cls.keeps_own_state or cls.packs):
            problem = "it is exclusive, and the state that it keeps outside of a memento is lost when it closes"
            raise wrong(cls.__qualname__, problem, "keep the state in a memento, or drop exclusive=True")
        cls.reopens = exclusive or cls.reopens  # its settings name what it owns
        as_dataclass(cls, "slet", eq=False, repr=False)
        if (spec := read_class(cls, own_driver=drives)) is not None:
            spec = replace(spec, name=name or spec.name, exclusive=exclusive, **care)
            if exclusive and not spec.inputs and next(one for one in cls.__mro__ if "repeats" in vars(one)) is Slet:
                setattr(cls, "repeats", classmethod(lambda cls, settings: False))  # noqa: B010 (what comes in comes once)
        cls.__slet__ = spec

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def ready(self) -> None:
        """Wait until the slet works at full speed. For engines that need to warm up.

        Called after `__enter__`, before any driver waits for the slet.
        """

    def quiesce(self) -> None:
        """Wait until all results of the items so far have been emitted. For slets with their own driver.

        Called before such a slet is replaced or removed, while no items arrive. A slet without inputs must stop
        producing, and its memento must then match the emitted items.
        """

    def resting(self) -> int:
        """Return the number of items inside: those that have arrived and whose results are not emitted.

        For slets with their own driver. Called by any thread, also while items arrive; it must return at once. A slet
        that defines `quiesce` and not `resting` is taken to emit one result for each item.
        """
        return 0

    def proceed(self) -> None:
        """Continue after `quiesce`, because the change was cancelled.

        Called once more if an abandoned call of `quiesce` returns later.
        """

    def holds_own_state(self) -> bool:
        """Return whether the open slet keeps state as with `keeps_own_state`, for slets whose class does not tell."""
        return False

    def pack(self) -> bytes:
        """Return the internal state, with which `inherit` continues on another host. For engines that set `packs`.

        Called after `quiesce`.
        """
        return b""

    def inherit(self, predecessor: Any) -> None:
        """Take over the internal state of the quiesced slet *predecessor*. For engines with internal state.

        If the predecessor is on another host, *predecessor* is the result of its `pack`.
        Called while no items arrive. An exception cancels the change, and the old slet continues.
        """

    def native_engine(self, port: str) -> str | None:
        """Return the name under which this engine reads the channel of *port* by itself, if the channel can be read so.

        Then only control items arrive at the port, and `Tie.native` has the channel (see `Channel.native`).
        """
        return None

    def takes_references(self, port: str) -> bool:
        """Whether *port*, which takes columns, receives lists of references (`exop.engine.Reference`) as they are."""
        return False

    @classmethod
    def inherits(cls, before: Any, after: Any) -> str | None:
        """Return the reason why the node *after* cannot take over the internal state of the node *before*, or `None`.

        *after* is a node of this class. Called when a change is planned, without open instances.
        """
        return "its engine keeps it, and the platform cannot read it there"

    @classmethod
    def try_inherit(cls, predecessor: Any, after: Any) -> str:
        """Try on a copy whether the node *after* can take over the internal state of the slet *predecessor*, which
        continues to run. Called when a change is planned, after `inherits`.

        Return what the plan says about it; an `ExopError` refuses the change.
        """
        return ""

    @classmethod
    def repeats(cls, settings: Mapping[str, Any]) -> bool:
        """Return whether the same results come in the same order again after a restart with the same memento and items.

        A source that merges several partitions may emit those after its last checkpoint in another order; results may
        depend on a clock. An exclusive source does not repeat, unless its class says so.
        """
        return True

    @classmethod
    def restores(cls, before: Any, after: Any) -> str | None:
        """Return the reason why the node *after* cannot continue with the memento of the node *before*, or `None`.

        *after* is a node of this class, and keeps a memento. Called when a change is planned.
        """
        return None

    def metrics(self) -> dict[str, int | float | str]:
        """Return metrics of the slet, which are shown beside those of the platform."""
        return {}


def spec_of(thing: Any) -> SletSpec:
    """Return the specification of a `@slet` function or a `Slet` class.

    Raises:
        SletError: it is neither.
    """
    if isinstance(thing, SletSpec):
        return thing
    if isinstance(spec := getattr(thing, "__slet__", None), SletSpec):
        return spec
    name = getattr(thing, "__qualname__", repr(thing))
    if isinstance(thing, str):
        raise wrong(name, "it is the name of one", f"write `platform.slets()[{name}]`")
    if isinstance(thing, type) and issubclass(thing, Slet):
        raise wrong(name, "the class has no port", "mark a method with @input_port, or define __iter__")
    raise wrong(name, "it is not marked", "put @slet above the function, or derive from Slet")


#: Options of `@slet`, and class keywords, about items that fail.
_CARE = ("atomic", "on_error", "timeout", "dead_letters", "effects")
#: Keywords of classes only.
_TRAITS = ("own_driver", "exclusive")


def _check_care(name: str, care: Mapping[str, Any]) -> None:
    if strange := [key for key in care if key not in _CARE]:
        raise wrong(name, f"@slet has no option {', '.join(strange)}", f"use name, {', '.join(_CARE)}")
    if (policy := care.get("on_error", "suspend")) not in POLICIES:
        raise wrong(name, f"on_error={policy!r} is no policy", f"use one of {', '.join(POLICIES)}")
    if problem := invalid_bounds(care.get("timeout"), care.get("dead_letters")):
        raise wrong(name, *problem.split("; ", 1))
