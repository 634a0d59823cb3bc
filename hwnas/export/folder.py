"""The folder of an export: it appears whole or not at all, and says of every file what it held."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hwnas.core import files
from hwnas.core.errors import ConfigError, LockedError, ProofError, RunError
from hwnas.core.safe_read import CorruptFileError, read_bytes
from hwnas.hardware import backends

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

PROOF, CARD, SIGNATURE = "proof.json", "MODEL_CARD.md", "proof.sig"
BUILDING = ".hwnas-building"  #: what is not finished, in the folder that exports go into
_GIT = (".git", ".gitattributes", ".gitignore")  # what a repository of models adds
_SHOWN = 5  # files that are named


@contextmanager
def building(root: Path, name: str) -> Iterator[Path]:
    """Give a new folder for ``root/name``, which is there only if ``keep`` was called."""
    folder = root / BUILDING / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(root / BUILDING, ignore_errors=True)


def check_free(root: Path, name: str) -> None:
    """Refuse to export what is there already.

    Raises:
        RunError: there is such a folder.
    """
    if (root / name).exists():
        raise RunError(f"{root / name} is there already: remove it, or choose another dir=DIR.")


def keep(folder: Path, root: Path, name: str) -> Path:
    """Give what was built its name; one of an earlier, failed export is replaced."""
    place = root / name
    if name.endswith(".failed"):
        shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    os.rename(folder, place)
    return place


def sweep(root: Path, *, beside: bool) -> None:
    """Remove what killed exports left in ``root``, which is locked, and in folders beside it."""
    shutil.rmtree(root / BUILDING, ignore_errors=True)
    for left in root.parent.glob(f"*/{BUILDING}") if beside else ():
        try:
            lock = files.lock_folder(left.parent)
        except LockedError:
            continue  # another process builds there
        shutil.rmtree(left)
        if [entry.name for entry in left.parent.iterdir()] == [files.LOCK]:
            shutil.rmtree(left.parent)
        lock.close()


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file of an export, but its proof and the signature of that."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] in _GIT or str(name) in (PROOF, SIGNATURE):
            continue
        if path.is_symlink():
            found[str(name)] = "a link"
        elif path.is_file():
            found[str(name)] = files.file_digest(path)
    return found


def differences(recorded: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return in words which files are missing, changed or not of the export."""
    missing = [f"{name} is missing" for name in recorded if name not in there]
    changed = [f"{n} was changed" for n, d in recorded.items() if there.get(n, d) != d]
    extra = [f"{name} is not of the export" for name in there if name not in recorded]
    found = missing + changed + extra
    return found[:_SHOWN] + [f"{len(found) - _SHOWN} more"] * (len(found) > _SHOWN)


def check_unchanged(folder: Path, recorded: Mapping[str, str]) -> None:
    """Refuse an export whose files are not those that its proof is of.

    Raises:
        ProofError: it names them.
    """
    if differing := differences(recorded, digests(folder)):
        raise ProofError(f"{folder}: {'; '.join(differing)}.")


# Signatures of exports: who says what ``proof.json`` says, by a key of theirs (Ed25519).
#
# The proof has the digest of every file, so that its signature is one of all. Source: RFC 8032.

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


def check_signature(folder: Path, key: str | None) -> str:
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
        proof, signature = (
            read_bytes(folder / PROOF, _MOST_PROOF),
            read_bytes(folder / SIGNATURE, _MOST),
        )
        public.verify(bytes.fromhex(signature.decode("ascii")), proof)
    except FileNotFoundError:
        return ""  # it is no export, as its reader says
    except (InvalidSignature, ValueError, CorruptFileError):
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
        return read_bytes(Path(path), _MOST)
    except FileNotFoundError:
        raise ConfigError(f"{option}={path}: there is no such file.") from None
    except CorruptFileError as problem:
        raise ConfigError(f"{option}={path}: {problem}.") from None


def _check_installed(what: str) -> None:
    if backends.lacking(_NEEDS):
        raise ConfigError(f"{what} needs cryptography: pip install 'hwnas[sign]'")
