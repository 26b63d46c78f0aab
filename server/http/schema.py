"""The parts of the OpenAPI description that FastAPI cannot see: bodies that a handler reads itself."""

from typing import Any

from pydantic import BaseModel

BINARY = {"type": "string", "format": "binary"}
_FORMATS = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")

# Of an item's filter; what the JSON schema of a list of texts does not say.
FILTERS: dict[str, Any] = {"items": {"type": "string", "pattern": r"^(id|label|metadata\..+)="}}

_ANSWERED: dict[str, dict[str, str]] = {  # by status, or in all of them
    "": {"X-Request-Id": "As sent with the request, or a new one; the log has it too."},
    "202": {"Location": "Where the job is followed."},
    "401": {"WWW-Authenticate": "Bearer"},
    "429": {"Retry-After": "In so many seconds."},
    "503": {"Retry-After": "In so many seconds, if that may help."},
}


def image_body(
    options: type[BaseModel],
    example: dict[str, Any] | None = None,
    several: bool = False,
    without: tuple[str, ...] = (),
) -> dict[str, Any]:
    """An image as a form or raw, its options in the address or in the form; JSON if there is an example.

    ``without``: options that only JSON can have.
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
    """An option where everything is text: there is no null, and an object is written as JSON."""
    rest = {name: value for name, value in field.items() if name != "anyOf"}
    for kind in field.get("anyOf", []):
        if kind != {"type": "null"}:
            rest |= kind
    if rest.get("type") == "object":
        rest.pop("additionalProperties", None)
        rest |= {"type": "string", "contentMediaType": "application/json"}
    return rest


def with_headers(schema: dict[str, Any]) -> dict[str, Any]:
    """Says of every answer which headers of ours it has."""
    for path in schema["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                said = {**_ANSWERED[""], **_ANSWERED.get(status, {})}
                known = answer.setdefault("headers", {})
                for name, description in said.items():
                    known[name] = {"description": description, "schema": {"type": "string"}}
    return schema
