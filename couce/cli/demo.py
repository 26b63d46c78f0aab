def demo() -> None:
    """Walk the whole road on the embedded data set, as far as it is built."""
    print("todo")
