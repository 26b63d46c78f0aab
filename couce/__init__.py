"""CouCE: image retrieval that looks at the object, not at its background."""

__version__ = "0.1.0"
