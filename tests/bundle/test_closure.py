"""What a definition needs of its module: what binds it, what changes that, and what these use; nothing else."""

from __future__ import annotations

import ast

from exop.bundle.closure import needed, parts_of, slets_in

MODULE = '''
"""A module."""
from __future__ import annotations
import os
import json as js
try:
    import fast
except ImportError:
    fast = None

TABLE = {}
TABLE["a"] = 1
TABLE.update(b=2)
total = 0
total += 1
other: int = 3
use(TABLE)

def one(number, other=other):
    total = number
    return js.dumps(TABLE)

class Base:
    number = 1

class Two(Base):
    def method(self) -> "Quoted":
        return fast

class Quoted:
    pass

if __name__ == "__main__":
    one(1)
'''


def lines(*names: str) -> list[str]:
    """The first line of each statement that is needed."""
    return [ast.unparse(part.node).splitlines()[0] for part in needed(parts_of(ast.parse(MODULE)), names)]


FUTURE = "from __future__ import annotations"


def test_a_function_needs_what_it_asks_for():
    """Its globals and what changes them, and its defaults; not its own locals, and not who only uses it."""
    changes = ["TABLE = {}", "TABLE['a'] = 1", "TABLE.update(b=2)"]
    assert lines("one") == [FUTURE, "import json as js", *changes, "other: int = 3", "def one(number, other=other):"]


def test_a_class_needs_its_bases_and_annotations():
    """Also in quotes, and what is bound in a `try`."""
    assert lines("Two") == [FUTURE, "try:", "class Base:", "class Two(Base):", "class Quoted:"]


def test_a_name_needs_what_changes_it():
    """`total += 1` binds nothing new, and belongs to it."""
    assert lines("total") == [FUTURE, "total = 0", "total += 1"]


def test_slets_are_found_without_running_anything():
    """Functions with the mark, called or not, whatever the module is called; classes below `Slet`, also further."""
    source = """
@slet
def a(): ...
@slet(atomic=True)
def b(): ...
@exop.slet
def c(): ...
@other
def d(): ...
class E(Slet): ...
class F(E): ...
class G(exop.Slet, own_driver=True): ...
class H: ...
"""
    assert slets_in(ast.parse(source)) == ["a", "b", "c", "E", "F", "G"]
