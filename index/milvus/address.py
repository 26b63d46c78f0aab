"""The address of a Milvus collection: milvus+http://user:password@host:19530/collection."""

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from couce.errors import CouceError, unknown_name

_PORT = 19530
_LEVELS = ("Strong", "Bounded", "Session", "Eventually")


@dataclass(frozen=True)
class MilvusAddress:
    """The parts of an address.

    ``milvus+https`` uses TLS. A user name without a password is a token. The options ``db``,
    ``consistency`` (Strong, Bounded, Session or Eventually) and ``timeout`` (in seconds) follow
    after a question mark, as in ``?db=zoo&timeout=5``.
    """

    uri: str
    collection: str
    user: str = ""
    password: str = ""
    token: str = ""
    db: str = ""
    consistency: str = "Strong"
    timeout: float = 10.0

    def __str__(self) -> str:
        """The address without user name, password and token."""
        return f"milvus+{self.uri}/{self.collection}"

    @classmethod
    def parse(cls, text: str) -> "MilvusAddress":
        """Splits an address into its parts.

        >>> address = MilvusAddress.parse("milvus+https://ann:p%40ss@db.example:443/birds?db=zoo")
        >>> address.uri, address.password, address.collection, address.db
        ('https://db.example:443', 'p@ss', 'birds', 'zoo')
        >>> print(address)
        milvus+https://db.example:443/birds
        """
        example = "milvus+http://user:password@host:19530/collection"
        try:
            parts = urlsplit(text.removeprefix("milvus+"))
            port = parts.port or _PORT
        except ValueError:
            raise CouceError(
                f"the port or host of this address is wrong; write it in the form {example}"
            ) from None
        collection = parts.path.strip("/")
        if not parts.hostname or not re.fullmatch(r"[A-Za-z_]\w{0,254}", collection, re.ASCII):
            raise CouceError(
                f"an address has the form {example}; a collection's name must consist of letters,"
                f" digits and _, and cannot be {collection!r}"
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        known = ("db", "consistency", "timeout")
        for name in options:
            if name not in known:
                raise unknown_name("option in the address", name, known)
        level = options.get("consistency", "Strong")
        if level not in _LEVELS:
            raise unknown_name("consistency", level, _LEVELS)
        try:
            timeout = float(options.get("timeout", 10.0))
        except ValueError:
            raise CouceError(
                f"the timeout of an address must be in seconds, not {options['timeout']!r}"
            ) from None
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(
            uri=f"{parts.scheme}://{host}:{port}",
            collection=collection,
            user=user if parts.password is not None else "",
            password=password,
            token="" if parts.password is not None else user,
            db=options.get("db", ""),
            consistency=level,
            timeout=timeout,
        )
