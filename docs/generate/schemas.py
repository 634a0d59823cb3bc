"""JSON Schemas of the YAML files that users write, and a page of two of them, from their types."""

import dataclasses
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NotRequired, Union, is_typeddict

from text import code, page, sentence, table

from hwnas.core.options import AllowedRange, allowed_range, field_comments
from hwnas.core.schema import NumberBounds
from hwnas.fleet.fleet_file import Fleet
from hwnas.fleet.service_file import Service
from hwnas.hardware.target import Target
from hwnas.models.spaces.files import SpaceFile

Schema = dict[str, Any]
Bounds = NumberBounds | AllowedRange | None
Arguments = tuple[Any, ...]
_PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", types.NoneType: "null"}


def pages() -> Iterator[tuple[str, str]]:
    """Yield the schema of each kind of file, and the page of the files of a plan."""
    service, fleet = _of_type(Service), _of_type(Fleet)
    for name, schema in {
        "search-space": _of_type(SpaceFile),
        "target": _target(),
        "service": service,
        "fleet": fleet,
    }.items():
        content = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"hwnas {name} file",
            **schema,
        }
        yield f"reference/schema/{name}.json", json.dumps(content, indent=1) + "\n"
    sections = [*_tables("service.yaml", service), *_tables("fleet.yaml", fleet)]
    yield "reference/plan-files.md", page("Service and fleet files", _PLAN_FILES, *sections)


_PLAN_FILES = """\
All fields of the two files that `hwnas plan` reads: {doc}`../how-to/fleet/plan`. Fields are
optional unless they are marked as required. `NAME` stands for a name of your own."""


def _tables(place: str, schema: Schema) -> Iterator[str]:
    """Yield a heading and a table for the fields of each object in a schema."""
    if fields := schema.get("properties", {}):
        yield f"## `{place}`"
        required = schema.get("required", ())
        yield table(
            ("Field", "Range", "Default", "Meaning"),
            [
                (
                    f"`{name}`",
                    _range(field),
                    "required" if name in required else code(field.get("default")),
                    sentence(field.get("description", "")),
                )
                for name, field in fields.items()
            ],
        )
    for name, field in fields.items():
        yield from _tables(f"{place}: {name}" if ":" not in place else f"{place}.{name}", field)
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from _tables(f"{place}.NAME" if inner != "items" else place, schema[inner])
    for inner in schema.get("anyOf", ()):
        yield from _tables(place, inner)


def _range(field: Schema) -> str:
    """Return the range of a number, or the allowed values."""
    if values := field.get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    if options := field.get("anyOf"):
        return next(filter(None, map(_range, options)), "")
    low, high = field.get("minimum", field.get("exclusiveMinimum")), field.get("maximum")
    if low is None or high is None:
        return ""
    return f"{'(' if 'exclusiveMinimum' in field else '['}{low:g}, {high:g}]"


def _target() -> Schema:
    """Return the schema of target files, which may inherit fields from another one."""
    schema = _of_type(Target)
    schema["properties"]["defaults"] = {
        "type": "array",
        "description": "target files whose fields this one inherits, for example [ethos_u55_256]",
    }
    required = schema.pop("required")
    return schema | {"anyOf": [{"required": ["defaults"]}, {"required": required}]}


def _of_type(kind: Any, bounds: Bounds = None) -> Schema:
    """Return the schema of a type of ``hwnas.core.schema``."""
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if (convert := _SPECIAL.get(origin)) is not None:
        return convert(arguments, bounds)
    if origin in _PLAIN:
        limits = _length("Length", bounds) if origin is str else _limits(bounds)
        return {"type": _PLAIN[origin]} | (limits if origin is not types.NoneType else {})
    return _of_fields(kind)


def _of_union(arguments: Arguments, bounds: Bounds) -> Schema:
    return {"anyOf": [_of_type(each, bounds) for each in arguments]}


def _of_list(arguments: Arguments, bounds: Bounds) -> Schema:
    inner = bounds if isinstance(bounds, AllowedRange) else None
    return {"type": "array", "items": _of_type(arguments[0], inner)} | _length("Items", bounds)


def _of_dict(arguments: Arguments, bounds: Bounds) -> Schema:
    inner = bounds if isinstance(bounds, AllowedRange) else None
    values = {"type": "object", "additionalProperties": _of_type(arguments[1], inner)}
    return values | _length("Properties", bounds)


_SPECIAL: dict[Any, Callable[[Arguments, Bounds], Schema]] = {
    Annotated: lambda arguments, _: _of_type(arguments[0], arguments[1]),
    NotRequired: lambda arguments, bounds: _of_type(arguments[0], bounds),
    Literal: lambda arguments, _: {"enum": [*arguments]},
    Any: lambda *_: {},
    Union: _of_union,
    types.UnionType: _of_union,
    list: _of_list,
    tuple: _of_list,
    dict: _of_dict,
}


def _of_fields(kind: Any) -> Schema:
    """Return the schema of a dataclass or a ``TypedDict``."""
    module = vars(sys.modules[kind.__module__])
    hints, comments = typing.get_type_hints(kind, module, include_extras=True), field_comments(kind)
    if is_typeddict(kind):
        declared: dict[str, Any] = dict.fromkeys(hints)
        required = sorted(kind.__required_keys__)
    else:
        declared = {entry.name: entry for entry in dataclasses.fields(kind)}
        required = [name for name, entry in declared.items() if _is_required(entry)]
    properties = {}
    for name, entry in declared.items():
        hint = hints[name] if entry is None or isinstance(entry.type, str) else entry.type
        schema = _of_type(hints.get(name, hint), allowed_range(entry) if entry else None)
        if comment := comments.get(name, ""):
            schema = {"description": comment.replace("``", "`"), **schema}
        if entry is not None and (default := _default(entry)) is not None:
            schema["default"] = default
        properties[name] = schema
    result: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return result | ({"required": required} if required else {})


def _is_required(entry: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return entry.default is missing and entry.default_factory is missing


def _default(entry: "dataclasses.Field[Any]") -> Any:
    """Return the default of a field if it is a JSON scalar."""
    is_scalar = isinstance(entry.default, str | int | float | bool)
    return entry.default if is_scalar else None


def _limits(bounds: Bounds) -> Schema:
    if isinstance(bounds, AllowedRange):
        low, high = (float(end) for end in bounds.text[1:-1].split(","))
        return {
            "minimum" if bounds.text[0] == "[" else "exclusiveMinimum": low,
            "maximum" if bounds.text[-1] == "]" else "exclusiveMaximum": high,
        }
    if bounds is None:
        return {}
    limits = {} if math.isinf(bounds.maximum) else {"maximum": bounds.maximum}
    if not math.isinf(bounds.minimum):
        limits["exclusiveMinimum" if bounds.exclusive else "minimum"] = bounds.minimum
    return limits


def _length(of: str, bounds: object) -> Schema:
    if not isinstance(bounds, NumberBounds):
        return {}
    low = {"min" + of: bounds.minimum} if bounds.minimum > 0 else {}
    return low if math.isinf(bounds.maximum) else low | {"max" + of: bounds.maximum}
