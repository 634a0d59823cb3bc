"""What decides an outcome, as digests: equal ones let a run go on and a supernet be used again."""

import hashlib
import json
from dataclasses import MISSING, Field, asdict, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: Metadata of an option that came when there were runs already: where it says the default, it
#: decides what was decided without it.
LATER = {"later": True}


def decisive(options: "DataclassInstance") -> dict[str, Any]:
    """Return options by name, without those that came later and say the default."""
    values = asdict(options)
    later = [field for field in fields(options) if field.metadata.get("later")]
    unsaid = {field.name for field in later if values[field.name] == _default(field)}
    return {name: value for name, value in values.items() if name not in unsaid}


def digest(content: Any) -> str:
    """Return sixteen hex digits that are equal for equal content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
