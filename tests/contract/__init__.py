import pytest

# Their assertions are shown as those of test files are.
pytest.register_assert_rewrite("tests.contract.sentences", "tests.contract.changing")
