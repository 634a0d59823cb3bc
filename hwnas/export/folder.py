"""Export folders: created atomically, with digests of all files and a signature."""

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
BUILDING = ".hwnas-building"  #: folder of unfinished exports, in their parent folder
_GIT = (".git", ".gitattributes", ".gitignore")  # added by model repositories
_MAX_NAMED = 5  # files


@contextmanager
def building(root: Path, name: str) -> Iterator[Path]:
    """Create an empty temporary folder for the export ``root/name``, and yield its path.

    The folder is removed when the context ends. To keep the export, call ``keep`` before.
    """
    folder = root / BUILDING / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(root / BUILDING, ignore_errors=True)


def check_free(root: Path, name: str) -> None:
    """Check that the export ``root/name`` does not exist yet.

    Raises:
        RunError: it exists.
    """
    if (root / name).exists():
        raise RunError(f"{root / name} already exists: remove it, or choose another dir=DIR.")


def keep(folder: Path, root: Path, name: str) -> Path:
    """Rename a finished temporary folder to ``root/name``, and return this path.

    If ``name`` ends in ``.failed``, an earlier folder of this name is replaced.

    Raises:
        OSError: the path exists and is not an empty folder.
    """
    path = root / name
    if name.endswith(".failed"):
        shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.rename(folder, path)
    return path


def sweep(root: Path, *, beside: bool) -> None:
    """Remove the temporary folders of killed exports in ``root``, which the caller has locked.

    With ``beside`` those in sibling folders of ``root``, too, unless another process locks them; a
    sibling folder that is then empty is also removed.
    """
    shutil.rmtree(root / BUILDING, ignore_errors=True)
    for unfinished in root.parent.glob(f"*/{BUILDING}") if beside else ():
        try:
            lock = files.lock_folder(unfinished.parent)
        except (LockedError, OSError):
            continue  # another process builds there, or it belongs to another user
        shutil.rmtree(unfinished)
        if [entry.name for entry in unfinished.parent.iterdir()] == [files.LOCK]:
            shutil.rmtree(unfinished.parent)
        lock.close()


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 in hexadecimal of all files of an export except proof and signature.

    Keys are paths relative to the folder; symbolic links have the value ``a link``. Files of git
    (``.git``, ``.gitattributes``, ``.gitignore``) are left out.
    """
    result = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] in _GIT or str(name) in (PROOF, SIGNATURE):
            continue
        if path.is_symlink():
            result[str(name)] = "a link"
        elif path.is_file():
            result[str(name)] = files.file_digest(path)
    return result


def differences(recorded: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """Return messages on files that are missing, changed or not part of the export.

    The list is empty if there are none. After five messages, a last one has the number of others.

    Args:
        recorded: sha256 by path, from the proof.
        actual: sha256 by path, from the folder.
    """
    missing = [f"{name} is missing" for name in recorded if name not in actual]
    changed = [f"{n} was changed" for n, d in recorded.items() if actual.get(n, d) != d]
    extra = [f"{name} is not part of the export" for name in actual if name not in recorded]
    lines = missing + changed + extra
    n_more = len(lines) - _MAX_NAMED
    return lines[:_MAX_NAMED] + [f"{n_more} more"] * (n_more > 0)


def check_unchanged(folder: Path, recorded: Mapping[str, str]) -> None:
    """Check that all files of an export are those of its proof.

    Raises:
        ProofError: a file is missing, changed or additional; the message has up to five names.
    """
    if differing := differences(recorded, digests(folder)):
        raise ProofError(
            f"{folder}: {'; '.join(differing)}. The export is not as it was written: restore "
            "changed and missing files and remove others, or export the network again."
        )


# Signatures (Ed25519, RFC 8032) of ``proof.json``, which has the digests of all other files.

_MAX_KEY = 1 << 14  # bytes
_MAX_PROOF = 16 << 20
_NEEDS = {"cryptography": "cryptography"}
_MAKE = "openssl genpkey -algorithm ed25519 -out KEY.pem"
_UNSIGNED = (
    "It is not signed: digests detect accidental changes only, since a digest can be changed, too."
)


def private_key(path: str) -> "Ed25519PrivateKey":
    """Return the private Ed25519 key in a PEM file ``path``, the value of the option ``sign``.

    Raises:
        ConfigError: the file is missing or unreadable, has no such key, or the key has a password;
            or the package ``cryptography`` is not installed.
    """
    _check_installed(f"sign={path}")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_pem("sign", path), None)
    except (ValueError, TypeError):  # TypeError: it needs a password
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"sign={path} is not a private Ed25519 key (PEM, without a password); create one: "
            f"{_MAKE}"
        )
    return key


def sign(folder: Path, key: "Ed25519PrivateKey") -> None:
    """Write ``proof.sig``, the signature of ``proof.json``, into an export."""
    signature = key.sign((folder / PROOF).read_bytes())
    (folder / SIGNATURE).write_text(f"{signature.hex()}\n", encoding="ascii")


def check_signature(folder: Path, key: str | None) -> str:
    """Check the signature of an export, and return a sentence about the result.

    The sentence is empty if ``key`` is given and the folder has no ``proof.json``.

    Args:
        folder: The export.
        key: File of a public key (Ed25519, PEM); ``None``: the signature is not checked, and the
            sentence is about whether there is one.

    Raises:
        ProofError: the export is not signed, or the signature does not match ``proof.json`` and
            the key.
        ConfigError: the key cannot be read, or ``cryptography`` is not installed.
    """
    signed = (folder / SIGNATURE).is_file()
    if key is None:
        unchecked = f"{folder / SIGNATURE} was not checked: give the public key by key=FILE."
        return unchecked if signed else _UNSIGNED
    public = _public_key(key)
    if not signed and (folder / PROOF).is_file():
        raise ProofError(
            f"{folder} is not signed (it has no {SIGNATURE}): omit key={key}, or use a signed "
            "export (hwnas export with sign=KEY.pem)."
        )
    from cryptography.exceptions import InvalidSignature

    try:
        proof, signature = (
            read_bytes(folder / PROOF, _MAX_PROOF),
            read_bytes(folder / SIGNATURE, _MAX_KEY),
        )
        public.verify(bytes.fromhex(signature.decode("ascii")), proof)
    except FileNotFoundError:
        return ""  # no export: ``read_proof`` says so
    except (InvalidSignature, ValueError, CorruptFileError):
        raise ProofError(
            f"{folder}: {SIGNATURE} does not match {PROOF} and the key {key}: the export was "
            "changed or signed by somebody else. Do not use it, or give the right key."
        ) from None
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
        raise ConfigError(
            f"key={path} is not a public Ed25519 key (PEM); derive it from the private one: {make}"
        )
    return key


def _pem(option: str, path: str) -> bytes:
    try:
        return read_bytes(Path(path), _MAX_KEY)
    except FileNotFoundError:
        raise ConfigError(f"{option}={path}: file not found; correct the path.") from None
    except CorruptFileError as problem:
        raise ConfigError(
            f"{option}={path} cannot be read: {problem}. Give the path of a readable PEM file."
        ) from None


def _check_installed(option: str) -> None:
    if backends.lacking(_NEEDS):
        raise ConfigError(f"{option} needs the package cryptography: pip install 'hwnas[sign]'")
