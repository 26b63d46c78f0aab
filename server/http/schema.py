"""OpenAPI for what FastAPI cannot see: bodies that a handler reads itself, and headers."""

from typing import Any

from pydantic import BaseModel

BINARY = {"type": "string", "format": "binary"}
_FORMATS = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")

# What the JSON schema of a list of texts does not say about a filter.
FILTERS: dict[str, Any] = {"items": {"type": "string", "pattern": r"^(id|label|metadata\..+)="}}

# The headers of answers by status; "" stands for every status.
_HEADERS: dict[str, dict[str, str]] = {
    "": {
        "X-Request-Id": "The id that was sent with the request, or a new one. The log has it, too."
    },
    "202": {"Location": "The address of the job."},
    "401": {"WWW-Authenticate": "Bearer"},
    "429": {"Retry-After": "Seconds after which to try again."},
    "503": {"Retry-After": "Seconds after which to try again, if this may help."},
}


def image_body(
    options: type[BaseModel],
    example: dict[str, Any] | None = None,
    several: bool = False,
    without: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Describes a body with an image, as a form or raw. Options are in the address or in the form.

    With an ``example``, JSON is possible too. ``without``: options that only JSON can have.
    """
    schema = options.model_json_schema()
    fields = {
        name: _as_text(value) for name, value in schema["properties"].items() if name not in without
    }
    image = {"type": "array", "items": BINARY, "minItems": 1} if several else BINARY
    content: dict[str, Any] = {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"image": image, **fields},
                "required": ["image"],
                "additionalProperties": False,
            }
        }
    }
    content |= {kind: {"schema": BINARY} for kind in _FORMATS}
    if example is not None:
        content["application/json"] = {"schema": schema, "example": example}
    parameters = [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": value.get("description", ""),
            "schema": {key: v for key, v in value.items() if key != "description"},
        }
        for name, value in fields.items()
    ]
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}


def _as_text(field: dict[str, Any]) -> dict[str, Any]:
    """An option as text: there is no null, and an object is written as JSON."""
    rest = {name: value for name, value in field.items() if name != "anyOf"}
    for kind in field.get("anyOf", []):
        if kind != {"type": "null"}:
            rest |= kind
    if rest.get("type") == "object":
        rest.pop("additionalProperties", None)
        rest |= {"type": "string", "contentMediaType": "application/json"}
    return rest


def with_headers(schema: dict[str, Any]) -> dict[str, Any]:
    """Adds our headers to the description of every answer."""
    for path in schema["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                described = {**_HEADERS[""], **_HEADERS.get(status, {})}
                known = answer.setdefault("headers", {})
                for name, description in described.items():
                    known[name] = {"description": description, "schema": {"type": "string"}}
    return schema
