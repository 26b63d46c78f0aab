"""Filters, and the conditions that the two backends get."""

import pytest

from couce.errors import CouceError
from couce.index.filters import clauses, parse, to_milvus, to_sql


def test_values_never_enter_the_sql() -> None:
    text, parameters = to_sql(
        clauses({"label": "x'; DROP TABLE items", "metadata.a'b": ["c'd", 3, True]})
    )
    assert "'" not in text.replace("'text'", "").replace("'integer', 'real'", "")
    assert "a'b" in parameters
    assert text.count("?") == len(parameters)


def test_milvus_literals_are_quoted() -> None:
    found = to_milvus(clauses({"label": ['a"b', "c\\d"], "metadata.k": [1, 2.5, False, None]}))
    assert found == (
        'label in ["a\\"b", "c\\\\d"] and (metadata["k"] == 1 or metadata["k"] == 2.5'
        ' or metadata["k"] == false or (not exists metadata["k"]))'
    )


def test_the_command_line() -> None:
    assert parse([]) is None
    assert parse(["label=a=b", "label=c"]) == {"label": ["a=b", "c"]}
    assert parse(["metadata.x=true"]) == {"metadata.x": ["true", True]}
    with pytest.raises(CouceError, match="field=value"):
        parse(["label"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"lable": "x"}, "did you mean 'label'"),
        ({"label": 1}, "cannot be 1"),
        ({"id": None}, "cannot be None"),
        ({"metadata.x": {"deep": 1}}, "cannot be"),
        ({"label": "\udcff"}, "not text in UTF-8"),
    ],
)
def test_wrong_filters_are_sentences(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(CouceError, match=words):
        clauses(wrong)  # type: ignore[arg-type]
