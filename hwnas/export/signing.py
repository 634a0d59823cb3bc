"""Signatures of exports: who says what ``proof.json`` says, by a key of theirs (Ed25519).

The proof has the digest of every file, so that its signature is one of all. Source: RFC 8032.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from hwnas import backends
from hwnas.errors import ConfigError, ProofError
from hwnas.export.folder import PROOF, SIGNATURE
from hwnas.records.bounded import Damaged, content

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

_MOST = 1 << 14  # bytes of a key
_MOST_PROOF = 16 << 20
_NEEDS = {"cryptography": "cryptography"}
_MAKE = "openssl genpkey -algorithm ed25519 -out KEY.pem"
_UNSIGNED = (
    "It is not signed: digests show accidents, not forgery, for whoever changes a file can change "
    "its digest."
)


def private_key(path: str) -> "Ed25519PrivateKey":
    """Return the key of ``sign=PATH``.

    Raises:
        ConfigError: it is none, or ``cryptography`` is not installed.
    """
    _check_installed(f"sign={path}")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_pem("sign", path), None)
    except (ValueError, TypeError):  # TypeError: it needs a password
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"sign={path}: no private Ed25519 key without a password: {_MAKE}")
    return key


def sign(folder: Path, key: "Ed25519PrivateKey") -> None:
    """Write the signature of a folder's proof."""
    signature = key.sign((folder / PROOF).read_bytes())
    (folder / SIGNATURE).write_text(f"{signature.hex()}\n", encoding="ascii")


def check(folder: Path, key: str | None) -> str:
    """Return what there is to say of an export's signature.

    Args:
        folder: Of the export.
        key: The file of a public key.

    Raises:
        ProofError: it is not signed, or not by the owner of the key.
        ConfigError: there is no such key, or ``cryptography`` is not installed.
    """
    signed = (folder / SIGNATURE).is_file()
    if key is None:
        how = f"{folder / SIGNATURE} was not checked: say key=FILE, the public key of who signed."
        return how if signed else _UNSIGNED
    public = _public_key(key)
    if not signed and (folder / PROOF).is_file():
        raise ProofError(f"{folder} is not signed.")
    from cryptography.exceptions import InvalidSignature

    try:
        proof, signature = content(folder / PROOF, _MOST_PROOF), content(folder / SIGNATURE, _MOST)
        public.verify(bytes.fromhex(signature.decode("ascii")), proof)
    except FileNotFoundError:
        return ""  # it is no export, as its reader says
    except (InvalidSignature, ValueError, Damaged):
        raise ProofError(f"{folder}: its proof was not signed by the owner of {key}.") from None
    return f"Its proof was signed by the owner of {key}."


def _public_key(path: str) -> "Ed25519PublicKey":
    _check_installed(f"key={path}")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_pem("key", path))
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        make = "openssl pkey -in KEY.pem -pubout -out PUBLIC.pem"
        raise ConfigError(f"key={path}: no public Ed25519 key: {make}")
    return key


def _pem(option: str, path: str) -> bytes:
    try:
        return content(Path(path), _MOST)
    except FileNotFoundError:
        raise ConfigError(f"{option}={path}: there is no such file.") from None
    except Damaged as problem:
        raise ConfigError(f"{option}={path}: {problem}.") from None


def _check_installed(what: str) -> None:
    if backends.lacking(_NEEDS):
        raise ConfigError(f"{what} needs cryptography: pip install 'hwnas[sign]'")
