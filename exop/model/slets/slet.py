"""`@slet` and `Slet`: a signature becomes a slet (the signature is the contract)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, dataclass_transform, overload

from exop.model.slets.memento import as_dataclass
from exop.model.slets.ports import OutputPort, PortType
from exop.model.slets.signature import read_class, read_function, wrong
from exop.model.slets.spec import DEAD_LETTERS, POLICIES, Policy, SletSpec, unfit_bounds
from exop.model.slets.tie import Committed

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Callable[..., Any])
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
    """Make a function a slet; it stays the function it was.

    The positional parameter is the input port, a parameter typed as a `Memento` the state, keyword-only parameters
    are the configuration, and the return annotation tells what leaves by `out`.

    Args:
        function: The function, when used without parentheses.
        name: The slet's name; the function's own by default.
        care: What happens to an item that makes trouble; an application may say otherwise. `on_error`: the policy when
            the slet raises; `timeout`: an item that takes longer, in seconds, is reported; `dead_letters`: so many
            items are kept at the most by the policy of that name. And what an application cannot choose: `atomic`, a
            second try of an item starts from a copy of the memento of before it; `effects`, it acts on something
            outside of the mesh (a file, a service), so that two of it must not run side by side. Sources and sinks do,
            unless they say `effects=False`; others do not, unless they say `effects=True`.
        specialised: A function of the complete settings and of the types of the inputs, by port, as far as they are
            known. It returns the specification with the ports that the slet has with them (`SletSpec.with_outputs`).

    Raises:
        SletError: the signature is no slet; the message tells what to write instead.
    """

    def mark(plain: F) -> F:
        spec = read_function(plain)
        _check_care(spec.name, care)
        spec = replace(spec, name=name or spec.name, **care)
        plain.__slet__ = spec  # type: ignore[attr-defined]
        if specialised is not None:
            plain.specialised = specialised  # type: ignore[attr-defined]
        return plain

    return mark if function is None else mark(function)


def input_port(method: M) -> M:
    """Make a method of a `Slet` class an input port of the method's name."""
    method.__input_port__ = True  # type: ignore[attr-defined]
    return method


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Slet:
    """The base of slets with several ports, or with something to open and close.

    Fields typed `OutputPort[T]` and `InputPort[T]` are injected, a field typed as a `Memento` is the state, all other
    fields are the configuration. Methods marked `@input_port` take the items; what they return leaves by `out`. A
    class with `__iter__` is driven by the platform: an α-slet, or a slet that pulls its inputs. `__enter__` opens (and
    returns only when the slet is ready), `__exit__` closes.

    A class with a class method `specialised(settings, inputs)` has ports that depend on its settings and on its inputs;
    it pushes by `self.outputs[name]`. Fields typed `OutputPorts[T]` and `InputPorts[T]`, and input methods with a
    second parameter for the name, stand for any number of ports.

    Class keywords: `own_driver=True` (pushes from threads of its own), and all those of `@slet`.
    A subclass inherits them, all but the name.
    """

    #: The slet keeps state that is in no memento (an engine's own): it is never replaced without being told to lose it.
    keeps_own_state: ClassVar[bool] = False
    #: The application takes checkpoints: set by the platform before the first item.
    checkpointed: ClassVar[bool] = False
    #: Opening takes the interpreter for long (it computes, or imports): a plan warns of it before it is done once.
    heavy_opening: ClassVar[bool] = False
    #: A change of settings opens a new instance, which takes the place of the old one: they cannot be set in place.
    reopens: ClassVar[bool] = False
    #: The output ports by name, and the names of the input ports; set where there is a `specialised`, or a family.
    outputs: ClassVar[Mapping[str, OutputPort[Any]]]
    inputs: ClassVar[tuple[str, ...]]
    __slet__: ClassVar[SletSpec | None] = None
    __slet_options__: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, *, name: str | None = None, own_driver: bool | None = None, **more: Any) -> None:
        care = {key: more.pop(key) for key in _CARE if key in more}
        super().__init_subclass__(**more)
        given = {**care, "own_driver": own_driver}
        options = {**cls.__slet_options__, **{key: value for key, value in given.items() if value is not None}}
        cls.__slet_options__ = options
        care = {key: options[key] for key in _CARE if key in options}
        _check_care(cls.__qualname__, care)
        as_dataclass(cls, "slet", eq=False, repr=False)
        spec = read_class(cls, own_driver=options.get("own_driver", False))
        if spec is not None:
            spec = replace(spec, name=name or spec.name, **care)
        cls.__slet__ = spec

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def ready(self) -> None:
        """Return when the slet can work at once: for engines that have to warm up.

        Called after `__enter__`, and before anything stands still for it.
        """

    def quiesce(self) -> None:
        """Return when everything that was handed over has been put out: for slets with a driver of their own.

        Called before such a slet is replaced or removed, while nothing more comes in. A slet without inputs stops
        putting out: what its memento says is then what has left.
        """

    def proceed(self) -> None:
        """Go on after `quiesce`: the change for which it was called was not made.

        Called once more when that call of `quiesce` was given up and returns later.
        """

    def committed(self) -> Committed | None:
        """How far the engine has come by its own account: for slets with a `Tie`, whose account is taken otherwise."""
        return None

    def inherit(self, predecessor: Any) -> None:
        """Go on with the state inside of *predecessor*, a slet that has been quiesced: for engines that keep their own.

        Called while nothing comes in; raising refuses the change, and the predecessor goes on.
        """

    @classmethod
    def inherits(cls, before: Any, after: Any) -> str | None:
        """Why the node *after*, of this class, cannot go on with the state inside of the node *before*; `None`: it can.

        Asked when a change is planned: nothing is open.
        """
        return "its engine keeps it, and the platform cannot read it there"

    def metrics(self) -> dict[str, int | float | str]:
        """Figures of the slet's own, shown beside the platform's."""
        return {}


def spec_of(thing: Any) -> SletSpec:
    """The specification of a `@slet` function or a `Slet` class.

    Raises:
        SletError: it is neither.
    """
    if isinstance(thing, SletSpec):
        return thing
    spec = getattr(thing, "__slet__", None)
    if isinstance(spec, SletSpec):
        return spec
    name = getattr(thing, "__qualname__", repr(thing))
    if isinstance(thing, type) and issubclass(thing, Slet):
        raise wrong(name, "the class has no port", "mark a method with @input_port, or define __iter__")
    raise wrong(name, "it was never marked", "put @slet above the function, or derive from Slet")


#: What `@slet` and the class keywords say about items that make trouble.
_CARE = ("atomic", "on_error", "timeout", "dead_letters", "effects")


def _check_care(name: str, care: Mapping[str, Any]) -> None:
    strange = [key for key in care if key not in _CARE]
    if strange:
        raise wrong(name, f"@slet has no option {', '.join(strange)}", f"use name, {', '.join(_CARE)}")
    policy = care.get("on_error", "suspend")
    if policy not in POLICIES:
        raise wrong(name, f"on_error={policy!r} is no policy", f"use one of {', '.join(POLICIES)}")
    problem = unfit_bounds(care.get("timeout"), care.get("dead_letters"))
    if problem is not None:
        raise wrong(name, *problem.split("; ", 1))
