"""The authority that issues the certificates of platforms, as files: `ca.pem`, `ca.key`, `revoked.pem` and `issued/`.

Imports the library cryptography, which only identities need.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from exop.errors import IdentityError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    missing = {"place": "certificates", "problem": "the library cryptography is not installed"}
    raise IdentityError(**missing, cure="install it: pip install 'exop[tls]'") from None

#: Certificates are valid from an hour before they are issued, because the clocks of hosts differ.
BACK_DATED: Final = timedelta(hours=1)
PEM: Final = serialization.Encoding.PEM
CA, CA_KEY, REVOKED, ISSUED = "ca.pem", "ca.key", "revoked.pem", "issued"


def create_authority(folder: Path, *, days: int = 3650, now: datetime | None = None) -> None:
    """Create an authority: a key, its certificate, and an empty list of revoked certificates.

    Raises:
        IdentityError: the folder holds an authority already, or cannot be written.
    """
    at, key, name = now or datetime.now(UTC), ec.generate_private_key(ec.SECP256R1()), _subject("exop authority")
    if (folder / CA).exists() or (folder / CA_KEY).exists():
        raise problem_at(folder, "it holds an authority already", "take another folder")
    _make_folder(folder)
    _make_folder(folder / ISSUED)
    _write(folder / CA_KEY, _key_bytes(key))
    draft = _draft(name, key, at, at + timedelta(days=days), ("key_cert_sign", "crl_sign"))
    _write(folder / CA, draft.issuer_name(name).sign(key, SHA256()).public_bytes(PEM))
    _write_revoked(folder, [], at)


def issue(
    authority: Path,
    name: str,
    *,
    days: int | None = None,
    also: Sequence[str] = (),
    renew: bool = False,
    now: datetime | None = None,
) -> Path:
    """Issue a key and a certificate for the platform *name*; return the folder to copy to its host: `AUTHORITY/NAME`.

    The certificate is valid for 365 days, and also contains the host names and IP addresses *also*, for other tools.
    With *renew*, a valid certificate is replaced, which remains valid until it expires or is revoked; of the last
    certificate, what is not given is taken: the number of days, and *also*.

    Raises:
        IdentityError: the name has a valid certificate already, or none to renew, or cannot be that of a platform.
    """
    at, key = now or datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    # The name is that of files as well, and a part of the names of channels.
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) or f"{name}.pem" in (CA, REVOKED) or name == ISSUED:
        cure = "take letters, digits, dots, - and _ (at most 64)"
        raise problem_at(name, "it cannot be the name of a platform in a certificate", cure)
    if (valid := _valid(authority, name, at)) and not renew:
        problem = f"{name} has a certificate, valid until {valid[-1]['until']}"
        raise problem_at(authority, problem, "replace it with --renew, or revoke it first")
    ca, ca_key = _authority(authority)
    span, names = timedelta(days=365 if days is None else days), [*map(_general_name, (name, *also))]
    if renew:
        if not (earlier := [one for one in _issued(authority) if name_of(one) == name]):
            raise problem_at(authority, f"no certificate of {name!r} was issued", "issue the first one without --renew")
        before = earlier[-1]
        if days is None:
            span = before.not_valid_after_utc - before.not_valid_before_utc - BACK_DATED
        names = names if also else [*before.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
    end = min(at + span, ca.not_valid_after_utc)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _draft(_subject(name), key, at, end, ("digital_signature",))
        .issuer_name(ca.subject)
        .add_extension(both, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, SHA256())
    )
    data = certificate.public_bytes(PEM)
    _make_folder(folder := authority / name)
    # The record comes first, so that every certificate in use can be revoked.
    _write(authority / ISSUED / f"{certificate.serial_number:x}.pem", data)
    _write(folder / f"{name}.key", _key_bytes(key))
    _write(folder / f"{name}.pem", data)
    for file in (CA, REVOKED):
        _write(folder / file, read(authority / file))
    return folder


def revoke(authority: Path, name: str, *, now: datetime | None = None) -> list[str]:
    """Revoke all valid certificates of *name*; return their serial numbers.

    `revoked.pem` is replaced in the authority and in the folders of identities in it; other hosts need a copy.

    Raises:
        IdentityError: no certificate of the name is valid.
    """
    at = now or datetime.now(UTC)
    if not (serials := [one["serial"] for one in _valid(authority, name, at)]):
        names = ", ".join(sorted({one["name"] for one in _valid(authority, None, at)})) or "none"
        raise problem_at(authority, f"no certificate of {name!r} is valid", f"names with a valid one: {names}")
    before = read_revoked(authority / REVOKED, read_certificate(authority / CA))
    _write_revoked(authority, [*before, *(int(serial, 16) for serial in serials)], at)
    return serials


def certificates(authority: Path, *, now: datetime | None = None) -> list[dict[str, str]]:
    """Return the issued certificates, the oldest first: `name`, `serial`, `since`, `until`, and `state`."""
    at, void = now or datetime.now(UTC), read_revoked(authority / REVOKED, read_certificate(authority / CA))
    return [
        {
            "name": name_of(one),
            "serial": f"{one.serial_number:x}",
            "since": f"{one.not_valid_before_utc:%F %T%z}",
            "until": f"{one.not_valid_after_utc:%F %T%z}",
            "state": "revoked" if one.serial_number in void else "valid" if one.not_valid_after_utc > at else "expired",
        }
        for one in _issued(authority)
    ]


def problem_at(place: Path | str, problem: str, cure: str) -> IdentityError:
    """Return the error about a file or folder."""
    return IdentityError(place=str(place), problem=problem, cure=cure)


def read(path: Path) -> bytes:
    """Return the content of a file of an authority or identity; raises `IdentityError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        made = "make an authority with `exop certs init DIR`, and identities with `exop certs issue NAME`"
        cure = f"{CA_KEY} alone is no authority: copy its whole folder" if (path.parent / CA_KEY).exists() else made
        raise problem_at(path, f"it cannot be read: {error.strerror}", cure) from None


def read_certificate(path: Path) -> x509.Certificate:
    """Return the certificate in a file; raises `IdentityError`."""
    try:
        return x509.load_pem_x509_certificate(read(path))
    except ValueError as error:
        raise problem_at(path, f"it is no certificate: {error}", "copy it again") from None


def read_revoked(path: Path, authority: x509.Certificate) -> frozenset[int]:
    """Return the serial numbers in a list of revoked certificates, signed by *authority*; raises `IdentityError`."""
    try:
        found = x509.load_pem_x509_crl(read(path))
    except ValueError as error:
        raise problem_at(path, f"it is no list of revoked certificates: {error}", "copy it again") from None
    key: Any = authority.public_key()
    if not found.is_signature_valid(key):
        raise problem_at(path, f"it is not signed by the authority in {CA}", "copy both files again")
    return frozenset(one.serial_number for one in found)


def newest_revoked(folder: Path, authority: x509.Certificate, known: dict[int, frozenset[int]]) -> frozenset[int]:
    """Return the numbers in the list of an identity; raises `IdentityError` if it takes back what one before it had.

    *known* has the numbers in the last list, by authority; the folder keeps that list over a restart, if it can.
    """
    number = authority.serial_number
    path, seen = folder / REVOKED, folder / f"revoked-{number:x}.seen"
    revoked, before = read_revoked(path, authority), known.get(number, frozenset())
    if (before := before | (read_revoked(seen, authority) if seen.exists() else frozenset())) - revoked:
        cure = f"copy the newest list; to take a revocation back, remove {seen.name}, and start the platform again"
        raise problem_at(path, "it is older than a list that was in force", cure)
    known[number] = revoked
    if revoked != before:
        with suppress(IdentityError):
            _write(seen, read(path))
    return revoked


def name_of(certificate: x509.Certificate) -> str:
    """Return the common name of a certificate: the name of the platform."""
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _valid(authority: Path, name: str | None, at: datetime) -> list[dict[str, str]]:
    """Return the valid certificates of a name, or of all names."""
    return [one for one in certificates(authority, now=at) if one["state"] == "valid" and name in (None, one["name"])]


def _issued(authority: Path) -> list[x509.Certificate]:
    """Return all certificates in the order in which they were issued, also those of one second."""
    paths = sorted((authority / ISSUED).glob("*.pem"), key=lambda path: path.stat().st_mtime_ns)
    return sorted(map(read_certificate, paths), key=lambda one: one.not_valid_before_utc)


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        key: Any = serialization.load_pem_private_key(read(folder / CA_KEY), None)
    except (ValueError, TypeError) as error:
        raise problem_at(folder / CA_KEY, f"it is no key: {error}", "restore it from a backup") from None
    if (certificate := read_certificate(folder / CA)).public_key() != key.public_key():
        raise problem_at(folder / CA_KEY, f"it does not fit {CA} beside it", "copy the whole folder of the authority")
    return certificate, key


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _draft(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, at: datetime, end: datetime, used_for: Sequence[str]
) -> x509.CertificateBuilder:
    """Return an unsigned certificate, of an authority if it is used to sign certificates."""
    usages = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"]
    usages += ["key_cert_sign", "crl_sign", "encipher_only", "decipher_only"]
    signs = "key_cert_sign" in used_for
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - BACK_DATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(x509.KeyUsage(**{usage: usage in used_for for usage in usages}), critical=True)
    )


def _write_revoked(folder: Path, serials: Sequence[int], at: datetime) -> None:
    """Sign the list of revoked certificates, and write it to the authority and to the identities in its folder."""
    authority, key = _authority(folder)
    # The list does not expire before the authority: a list that is not renewed in time would refuse all peers.
    draft = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(at - BACK_DATED)
        .next_update(authority.not_valid_after_utc)
        .add_extension(x509.CRLNumber(int(at.timestamp() * 1000)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    for serial in serials:
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at - BACK_DATED)
        draft = draft.add_revoked_certificate(one.build())
    data = draft.sign(key, SHA256()).public_bytes(PEM)
    for place in (folder, *(path.parent for path in folder.glob(f"*/{REVOKED}"))):
        _write(place / REVOKED, data)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return bytes(key.private_bytes(PEM, form, plain))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise problem_at(folder, f"it cannot be made: {error.strerror}", "take another folder") from None


def _write(path: Path, data: bytes) -> None:
    """Write a file for its owner only; a reader finds the old content or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise problem_at(path, f"it cannot be written: {error.strerror}", "see its owner and the free space") from None
