"""`exop certs` issues, revokes and shows the certificates of platforms; `exop policy` checks a policy file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

from exop.cli.options import Json
from exop.cli.text import answer, columns

Authority: TypeAlias = Annotated[
    Path,
    Parameter(name="--authority", env_var="EXOP_AUTHORITY", help="The folder of the authority: by default, certs."),
]
Days: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1, lte=36_500))]
_HERE: Final = Path("certs")


def certs_init(directory: Path = _HERE, /, *, days: Days = 3650, json: Json = False) -> int:
    """Create an authority, which issues the certificates by which platforms know each other.

    Keep the folder, and a backup of it, on a host that only administrators can use: with `ca.key`, any platform can be
    imitated. Platforms accept only the certificates of their own authority.

    Example: `exop certs init certs`

    Args:
        directory: The new folder: by default, certs.
        days: Days of validity: 3650 by default.
    """
    from exop.remoting.authority import create_authority

    create_authority(directory, days=days)
    text = f"{directory}: authority made; `exop certs issue NAME --authority {directory}` makes an identity"
    return answer({"authority": str(directory)}, text, json=json)


def certs_issue(
    name: str,
    /,
    *,
    authority: Authority = _HERE,
    days: Days = 365,
    also: tuple[str, ...] = (),
    renew: bool = False,
    json: Json = False,
) -> int:
    """Issue a key and a certificate for the platform NAME, in the folder NAME of the authority.

    Copy the folder to the host of the platform, for `exop serve --name NAME --identity FOLDER`. The certificate is
    valid from an hour ago, because the clocks of hosts differ.

    Example: `exop certs issue edge-1`

    Args:
        name: The name of the platform.
        days: Days of validity: 365 by default.
        also: A host name or IP address to put into the certificate, for other tools.
        renew: Replace a valid certificate, which remains valid until it expires.
    """
    from exop.remoting.authority import issue

    folder = issue(authority, name, days=days, also=also, renew=renew)
    text = f"{folder}: copy this folder to its host; `exop serve --name {name} --identity {folder.name}` uses it"
    return answer({"name": name, "identity": str(folder)}, text, json=json)


def certs_revoke(name: str, /, *, authority: Authority = _HERE, json: Json = False) -> int:
    """Revoke all certificates of the platform NAME.

    Copy the new `revoked.pem` to the identity of every other platform: within 10 s, these close the connections of the
    revoked platform, and accept no others. No restart is needed.

    Example: `exop certs revoke edge-1`

    Args:
        name: The name of the platform.
    """
    from exop.remoting.authority import REVOKED, revoke

    serials = revoke(authority, name)
    text = f"{name}: revoked {', '.join(serials)}; copy {authority / REVOKED} to the identities on all other hosts"
    return answer({"name": name, "revoked": serials, "list": str(authority / REVOKED)}, text, json=json)


def certs_show(*, authority: Authority = _HERE, json: Json = False) -> int:
    """List the certificates that an authority has issued, with their validity.

    Example: `exop certs show --json`
    """
    from exop.remoting.authority import certificates

    found = certificates(authority)
    head = ("name", "state", "since", "until", "serial")
    rows = ([one[fact] for fact in head] for one in found)
    return answer(found, lambda: columns(head, rows) if found else "no certificate is issued", json=json)


def policy(file: Path, /, *, json: Json = False) -> int:
    """Check a policy file, and show the role and the channels of each peer.

    A running platform reads its policy again when the file changes; an invalid file changes nothing.

    Example: `exop policy policy.toml`

    Args:
        file: The policy file: the argument of `exop serve --policy FILE`.
    """
    from exop.remoting.policy import read_policy

    peers = read_policy(file)
    facts: dict[str, dict[str, Any]] = {name: rights._asdict() for name, rights in peers.items()}
    rows = [
        (name, one.role or "-", ", ".join(one.read) or "-", ", ".join(one.write) or "-") for name, one in peers.items()
    ]
    table = columns(("peer", "role", "reads", "writes"), rows) if rows else "no peer may do anything"
    return answer(facts, table, json=json)
