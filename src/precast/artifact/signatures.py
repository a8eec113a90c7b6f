"""Authenticates files: ed25519 signatures, stored beside them.

The manifest is signed, which contains the SHA-256 of everything else in the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast.artifact.schema import Shape, Text, parse_json
from precast.errors import InputTypeError, InputValueError, SignatureError, ToolMissingError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SUFFIX = ".sig"
MAX_SIGNATURE = 100_000
_CONTEXT = b"precast manifest, signed with ed25519, version 1\0"
_FORMAT = "precast-signature-1"
_SHAPE: Shape = {
    "format": Text(_FORMAT),
    "public_key": Text(r"[0-9a-f]{64}"),
    "signature": Text(r"[0-9a-f]{128}"),
}

Key = str | os.PathLike[str] | bytes
"""A key: the path of a PEM file, its content, the 32 bytes of the key itself, or a key of ``cryptography``."""


def sign(manifest: bytes, key: Any) -> bytes:
    """The text of a signature file for this manifest."""
    private = private_key(key)
    public = private.public_key().public_bytes_raw()
    content = {
        "format": _FORMAT,
        "public_key": public.hex(),
        "signature": private.sign(_CONTEXT + manifest).hex(),
    }
    return json.dumps(content, indent=1).encode() + b"\n"


def check_signature(manifest: bytes, signature: bytes | None, trusted: Any) -> None:
    """Raise unless the signature is one of this manifest by a trusted key."""
    keys = {public_key(key) for key in (trusted if _is_several(trusted) else [trusted])}
    if signature is None:
        raise SignatureError(
            "the file has no signature",
            why="one was required, but there is none beside the file",
            fix=f"get the {SUFFIX} file that belongs to it, or pass signature=",
        )
    if len(signature) > MAX_SIGNATURE:
        raise _broken("it is too large")
    content: Any = parse_json(signature, _SHAPE, name="the signature")
    signer = bytes.fromhex(content["public_key"])
    if signer not in keys:
        raise SignatureError(
            f"the file is signed by {signer.hex()[:16]}…",
            why="that is not one of the trusted keys",
            fix="name this key if you trust its owner, or get the file from someone you trust",
        )
    _verify(signer, bytes.fromhex(content["signature"]), _CONTEXT + manifest)


def _verify(signer: bytes, signature: bytes, message: bytes) -> None:
    _require_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, message)
    except (InvalidSignature, ValueError) as problem:
        raise _broken("it is not one of this file: the file was changed, or the signature is another's") from problem


def public_key(key: Any) -> bytes:
    """The 32 bytes of a public key given in any of its forms."""
    if isinstance(key, bytes) and len(key) == 32:
        return key
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found: Ed25519PublicKey | object = key
    if isinstance(key, str | os.PathLike | bytes):
        found = _parsed(key, load_pem_public_key)
    if not isinstance(found, Ed25519PublicKey):
        raise _no_key(key, "public")
    return found.public_bytes_raw()


def private_key(key: Any) -> Ed25519PrivateKey:
    """A private key given in any of its forms."""
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if isinstance(key, bytes) and len(key) == 32:
        return Ed25519PrivateKey.from_private_bytes(key)
    found: Ed25519PrivateKey | object = key
    if isinstance(key, str | os.PathLike | bytes):
        found = _parsed(key, lambda content: load_pem_private_key(content, password=None))
    if not isinstance(found, Ed25519PrivateKey):
        raise _no_key(key, "private")
    return found


def _parsed(key: Key, parse: Any) -> object:
    try:
        content = key if isinstance(key, bytes) else Path(key).read_bytes()
    except OSError as problem:
        raise InputValueError(
            f"The key {os.fsdecode(key)} cannot be read.",
            why=problem.strerror or str(problem),
            fix="Check the path; openssl genpkey -algorithm ed25519 -out private.pem makes a key.",
        ) from problem
    try:
        parsed: object = parse(content)
    except (ValueError, TypeError) as problem:
        raise InputTypeError(
            "The key cannot be read.", why=str(problem), fix="Pass an unencrypted PEM file of an ed25519 key."
        ) from problem
    return parsed


def _is_several(trusted: Any) -> bool:
    return isinstance(trusted, Sequence | set | frozenset) and not isinstance(trusted, str | bytes)


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as problem:
        raise ToolMissingError(
            "Signatures need the package 'cryptography'.",
            why="it is not installed, and a signature that cannot be checked does not count",
            fix="pip install 'precast[sign]'",
        ) from problem


def _no_key(key: object, kind: str) -> InputTypeError:
    return InputTypeError(
        f"A {type(key).__name__} is no {kind} ed25519 key.",
        why="files are signed with ed25519",
        fix="Pass the path of a PEM file, its bytes, the 32 bytes of the key, or a key of 'cryptography'.",
    )


def _broken(why: str) -> SignatureError:
    return SignatureError("the signature of the file is wrong", why=why, fix="get both again from where they were made")
